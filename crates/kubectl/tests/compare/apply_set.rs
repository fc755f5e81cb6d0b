//! `apply --applyset --prune`, which Debian's kubectl does not know: what a set remembers, and what leaves it.

use crate::alone::Alone;

const GATE: &str = "KUBECTL_APPLYSET";

/// A ConfigMap in a file.
fn config_map(name: &str, namespace: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\ndata: {{a: b}}\n"
    )
}

struct Sets {
    alone: Alone,
    namespace: String,
}

impl Sets {
    async fn start() -> Sets {
        let alone = Alone::start().await;
        let (namespace, _) =
            alone.run_with(&["config", "view", "--minify", "-o=jsonpath={..namespace}"], GATE, "true").await;
        Sets { alone, namespace }
    }

    async fn kubectl(&self, line: &str) -> (String, String) {
        let words: Vec<String> = line.split(' ').map(|w| w.replace("{x}", &self.namespace)).collect();
        self.alone.run_with(&words.iter().map(String::as_str).collect::<Vec<_>>(), GATE, "true").await
    }

    /// Applies the text as the set; returns what was printed.
    async fn apply(&self, text: &str, flags: &str) -> (String, String) {
        std::fs::write(self.alone.dir().join("set.yaml"), text.replace("{x}", &self.namespace)).unwrap();
        self.kubectl(&format!("apply -f set.yaml --prune -n {{x}} {flags}")).await
    }

    /// One annotation of the parent.
    async fn remembered(&self, parent: &str, what: &str) -> String {
        self.kubectl(&format!("get {parent} -o=jsonpath={{.metadata.annotations.applyset\\.kubernetes\\.io/{what}}}"))
            .await
            .0
    }

    /// The names of the set's ConfigMaps in all namespaces.
    async fn members(&self) -> String {
        self.kubectl("get cm -A -l applyset.kubernetes.io/part-of -o=jsonpath={.items[*].metadata.name}").await.0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_leaves_the_files_leaves_the_set() {
    let sets = Sets::start().await;
    sets.kubectl("create cm bystander").await;
    let (here, there) = (config_map("one", "{x}"), config_map("two", "{x}"));
    let far = config_map("far", "default");

    let (stdout, stderr) = sets.apply(&format!("{here}{there}{far}"), "--applyset=web").await;
    // A namespace on the command line is one for all.
    assert_eq!(stdout, "configmap/one created\nconfigmap/two created\n");
    assert!(stderr.contains("does not match the namespace"), "{stderr}");

    // Nothing is pruned after a failure, and nothing on a dry run.
    assert_eq!(sets.members().await, "one two");
    let (stdout, _) = sets.apply(&here, "--applyset=web --dry-run=server").await;
    assert_eq!(stdout, "configmap/one unchanged (server dry run)\nconfigmap/two pruned (server dry run)\n");
    let (stdout, _) = sets.apply(&here, "--applyset=web --dry-run=client").await;
    assert_eq!(stdout, "configmap/one unchanged (dry run)\nconfigmap/two pruned (dry run)\n");
    assert_eq!(sets.members().await, "one two");

    let (stdout, stderr) = sets.apply(&here, "--applyset=web").await;
    assert_eq!(stdout, "configmap/one unchanged\nconfigmap/two pruned\n", "{stderr}");
    assert_eq!(sets.members().await, "one");
    assert_eq!(sets.kubectl("get cm bystander -o name").await.0, "configmap/bystander\n");
    assert!(sets.remembered("secret/web", "tooling").await.starts_with("kubectl/v1."));
    assert_eq!(sets.remembered("secret/web", "contains-group-kinds").await, "ConfigMap");

    // Kinds that are new to the set are remembered, and forgotten with their last member.
    let account = "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\n";
    sets.apply(&format!("{here}{account}"), "--applyset=web --server-side").await;
    assert_eq!(sets.remembered("secret/web", "contains-group-kinds").await, "ConfigMap,ServiceAccount");
    let (stdout, _) = sets.apply(&here, "--applyset=web --server-side -o name").await;
    assert_eq!(stdout, "configmap/one\nserviceaccount/a\n");
    assert_eq!(sets.remembered("secret/web", "contains-group-kinds").await, "ConfigMap");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_reaches_where_its_parent_says() {
    let sets = Sets::start().await;
    let one = config_map("one", "{x}");
    sets.apply(&one, "--applyset=cm/web").await;
    let (id, _) = sets.kubectl(r"get cm web -o=jsonpath={.metadata.labels.applyset\.kubernetes\.io/id}").await;
    assert!(id.starts_with("applyset-") && id.ends_with("-v1"), "{id}");

    // A member elsewhere is found once the parent names its namespace, and the name goes with it.
    sets.kubectl("create cm far -n default").await;
    sets.kubectl(&format!("label cm far -n default applyset.kubernetes.io/part-of={id}")).await;
    assert_eq!(sets.apply(&one, "--applyset=cm/web").await.0, "configmap/one unchanged\n");
    sets.kubectl("annotate cm web --overwrite applyset.kubernetes.io/additional-namespaces=default").await;
    let (stdout, stderr) = sets.apply(&one, "--applyset=cm/web").await;
    assert_eq!(stdout, "configmap/one unchanged\nconfigmap/far pruned\n");
    assert!(stderr.contains("Retrying with conflicts forced"), "{stderr}");
    assert_eq!(sets.remembered("cm/web", "additional-namespaces").await, "");

    // Early versions wrote resources instead of kinds.
    sets.kubectl("annotate cm web applyset.kubernetes.io/contains-group-kinds-").await;
    let (_, stderr) = sets.apply(&one, "--applyset=cm/web").await;
    assert!(
        stderr.contains("kubectl requires the \"applyset.kubernetes.io/contains-group-kinds\" annotation"),
        "{stderr}"
    );
    sets.kubectl("annotate cm web applyset.kubernetes.io/contains-group-resources=configmaps,deployments.apps").await;
    let (stdout, stderr) = sets.apply(&config_map("two", "{x}"), "--applyset=cm/web").await;
    assert_eq!(stdout, "configmap/two created\nconfigmap/one pruned\n", "{stderr}");
    assert_eq!(sets.remembered("cm/web", "contains-group-kinds").await, "ConfigMap");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_refuse_what_they_cannot_keep() {
    let sets = Sets::start().await;
    let one = config_map("one", "{x}");
    sets.kubectl("create secret generic foreign").await;
    for (flags, expected) in [
        ("--applyset=web --all", "--all is incompatible with --applyset"),
        ("--applyset=web -l a=b", "--selector is incompatible with --applyset"),
        ("--applyset=web --prune-allowlist=core/v1/Pod", "--prune-allowlist is incompatible with --applyset"),
        ("--applyset=web --force", "--force cannot be used with --prune"),
        ("--applyset=web --prune=false", "--applyset requires --prune"),
        ("--applyset=secrets/", "invalid parent reference \"secrets/\": name cannot be blank"),
        ("--applyset=nothing/web", "invalid parent reference \"nothing/web\": no matches for /, Resource=nothing"),
        ("--applyset=pods/web", "resource \"/v1, Resource=pods\" is not permitted as an ApplySet parent"),
        (
            "--applyset=foreign",
            "ApplySet parent object \"secrets./foreign\" already exists and is missing required annotation \"applyset.kubernetes.io/tooling\"",
        ),
    ] {
        let (stdout, stderr) = sets.apply(&one, flags).await;
        assert_eq!((stdout.as_str(), stderr.as_str()), ("", format!("error: {expected}\n").as_str()), "{flags}");
    }
    let (_, stderr) = sets.kubectl("apply -f set.yaml --prune --applyset=web").await;
    assert_eq!(stderr, "error: namespace is required to use namespace-scoped ApplySet\n");
    let member = one.replace("metadata: {", "metadata: {labels: {applyset.kubernetes.io/part-of: other}, ");
    let (_, stderr) = sets.apply(&member, "--applyset=web").await;
    assert_eq!(stderr, "error: ApplySet label \"applyset.kubernetes.io/part-of\" already set in input data\n");

    // The flag exists only where it was turned on.
    let (_, stderr) = sets.alone.run_with(&["apply", "-f", "set.yaml", "--applyset=web"], GATE, "").await;
    assert!(stderr.starts_with("error: unknown flag: --applyset"), "{stderr}");
}
