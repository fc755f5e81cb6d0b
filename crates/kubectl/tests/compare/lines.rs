//! Single lines whose outcome upstream's own command-line tests check, with our kubectl alone.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};

use crate::alone::{Alone, KUBECTL};

/// What a line printed, both streams together, and whether it succeeded.
async fn line(alone: &Alone, line: &str) -> (bool, String) {
    let (words, _) = crate::scenario::words(line);
    let output = alone.command(KUBECTL).args(words).env("KUBERC", "off").output().await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

async fn passes(alone: &Alone, text: &str) -> String {
    let (success, output) = line(alone, text).await;
    assert!(success, "{text}: {output}");
    output
}

/// The line fails, and says this.
async fn fails(alone: &Alone, text: &str, expected: &str) {
    let (success, output) = line(alone, text).await;
    assert!(!success && output.contains(expected), "{text}: no {expected:?} in {output}");
}

fn write(alone: &Alone, name: &str, content: &str) {
    std::fs::write(alone.dir().join(name), content).unwrap();
}

/// A program. Another process writes it: while it is open for writing here, a child that another test is starting has it open too,
/// and nobody can run it ("Text file busy").
fn install(alone: &Alone, name: &str, script: &str) {
    write(alone, "draft", script);
    let dir = alone.dir();
    let installed = std::process::Command::new("install").arg(dir.join("draft")).arg(dir.join(name)).status();
    assert!(installed.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_go_round() {
    let alone = Alone::start().await;
    // What was applied does not differ.
    passes(&alone, "apply -f web.yaml").await;
    assert_eq!(passes(&alone, "diff -f web.yaml").await, "");

    // What was read can be made anew.
    let read = passes(&alone, "get service web -o json").await;
    write(&alone, "again.json", &read);
    passes(&alone, "delete service web").await;
    passes(&alone, "create -f again.json").await;

    fails(&alone, "set selector service web a=b --resource-version=1", "(Conflict)").await;
    let version = passes(&alone, "get service web -o jsonpath={.metadata.resourceVersion}").await;
    passes(&alone, &format!("set selector service web a=b --resource-version={version}")).await;

    install(&alone, "relabel", "#!/bin/sh\nsed -i 's/a: \"1\"/a: \"2\"/' \"$1\"\n");
    let edited = alone.run_with(&["edit", "cm", "settings", "--save-config"], "EDITOR", "./relabel").await;
    assert!(edited.0.contains("configmap/settings edited"), "{edited:?}");
    let applied = passes(&alone, "apply view-last-applied cm settings").await;
    assert!(applied.contains("a: \"2\""), "{applied}");

    passes(&alone, "create cm other --from-literal=a=b").await;
    let all = alone.run_with(&["edit", "cm"], "EDITOR", "cat").await;
    assert!(all.0.contains("kind: List") && all.1 == "Edit cancelled, no changes made.\n", "{all:?}");

    install(
        &alone,
        "annotate",
        "#!/bin/sh\nsed -i 's/^    name: settings/    annotations: {edited: \"yes\"}\\n&/' \"$1\"\n",
    );
    let one = alone.run_with(&["edit", "cm"], "EDITOR", "./annotate").await;
    assert!(one.0.contains("configmap/settings edited\n") && one.0.contains(" skipped\n"), "{one:?}");

    fails(&alone, "edit jobs", "edit cancelled, no objects found").await;
    install(&alone, "annotate", "#!/bin/sh\nsed -i 's/^items:/other:/' \"$1\"\n");
    let spoilt = alone.run_with(&["edit", "cm"], "EDITOR", "./annotate").await;
    assert!(spoilt.1.contains("the edited list has no items"), "{spoilt:?}");

    fails(&alone, "edit -f nokind.yaml", "Object 'Kind' is missing").await;

    // An object that is refused after the old one was deleted: that comes back.
    let web = std::fs::read_to_string(alone.dir().join("web.yaml")).unwrap();
    write(&alone, "worse.yaml", &web.replace("app: applied\n  template", "app: other\n  template"));
    fails(&alone, "apply -f worse.yaml --force --grace-period=1", "is invalid").await;
    assert_eq!(passes(&alone, "get deployment applied -o name").await, "deployment.apps/applied\n");

    // What files say, whether a server has it or not.
    write(&alone, "elsewhere.yaml", &web.replace("name: applied", "name: elsewhere"));
    let exposed = passes(&alone, "expose -f elsewhere.yaml --port=80").await;
    assert_eq!(exposed, "service/elsewhere exposed\n");
    let line = "autoscale -f nowhere.yaml --max=2 --dry-run=client -o name";
    let nowhere = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: nowhere}\n";
    write(&alone, "nowhere.yaml", nowhere);
    assert_eq!(passes(&alone, line).await, "horizontalpodautoscaler.autoscaling/nowhere\n");
    passes(&alone, "patch deployment web --record -p '{\"spec\":{\"minReadySeconds\":1}}'").await;
    let cause = passes(&alone, "get deployment web -o jsonpath={.metadata.annotations}").await;
    assert!(cause.contains("kubernetes.io/change-cause\":\"kubectl patch deployment web --record"), "{cause}");
    let annotation = "jsonpath={.metadata.annotations}";
    passes(&alone, "expose pod web-1 --name=kept --port=80 --save-config").await;
    assert!(passes(&alone, &format!("get service kept -o {annotation}")).await.contains("last-applied"));
    passes(&alone, "autoscale deployment web --max=2 --save-config").await;
    assert!(passes(&alone, &format!("get hpa web -o {annotation}")).await.contains("last-applied"));
    let place = passes(&alone, "get deployment web -o jsonpath={.metadata.namespace}").await;
    let named = format!("autoscale deployment web --max=2 -n {place} --dry-run=client -o yaml");
    let generated = passes(&alone, &named).await;
    assert!(generated.contains(&format!("  namespace: {place}\n")), "{generated}");
    fails(&alone, "set env -f - -", "standard input cannot be used for multiple arguments").await;
    fails(&alone, "exec -f many.yaml -- date", "cannot exec into multiple objects at a time").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_say_what_upstreams_say() {
    let alone = Alone::start().await;
    fails(&alone, "list", "error: unknown command \"list\" for \"kubectl\"\n\nDid you mean this?\n\tget\n").await;
    let why = "the server doesn't have a resource type \"deployments\" in group \"none\"";
    fails(&alone, "create role r --verb=get --resource=deployments.none", why).await;
    passes(&alone, "create clusterrole r --verb=get --resource=pods").await;
    let deleted = passes(&alone, "delete clusterrole r -n default").await;
    let warning = "Warning: deleting cluster-scoped resources, not scoped to the provided namespace\n";
    assert!(deleted.contains(warning), "{deleted}");

    install(&alone, "kubectl-create-thing", "#!/bin/sh\necho made $1\n");
    let script = format!("PATH=.:$PATH {KUBECTL} create thing x");
    let made = alone.command("sh").args(["-c", &script]).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&made.stdout), "made x\n");
    write(&alone, "old.yaml", "apiVersion: rbac.authorization.k8s.io/v1beta1\nkind: Role\nmetadata: {name: r}\n");
    let why = "only rbac.authorization.k8s.io/v1 is supported: not *v1beta1.Role";
    fails(&alone, "auth reconcile -f old.yaml", why).await;
    let scaled = passes(&alone, "scale deployment web --replicas=7 -o jsonpath={.spec.replicas}").await;
    assert_eq!(scaled, "7");
    let why = "strategic merge patch is not supported for example.com/v1, Kind=W locally, try --type merge";
    write(&alone, "custom.yaml", "apiVersion: example.com/v1\nkind: W\nmetadata: {name: w}\n");
    fails(&alone, "patch --local -f custom.yaml -p '{}'", why).await;

    fails(&alone, "replace -f web.yaml --grace-period=1", "--grace-period must have --force specified").await;
    fails(&alone, "replace -f web.yaml --timeout=1s", "--timeout must have --force specified").await;
    passes(&alone, "apply -f web.yaml").await;
    let named = passes(&alone, "rollout history deployment applied --template={{.metadata.name}}:").await;
    assert_eq!(named, "applied:");

    // A base64 text in lines, as base64 writes it.
    let script = format!(
        "{KUBECTL} config set clusters.c.certificate-authority-data --kubeconfig=c \"$(echo YWE=; echo; echo)\"; \
         {KUBECTL} config set clusters.d.certificate-authority-data --kubeconfig=c \"$(printf 'YW\\nE=')\"; grep -o ': YW.*' c"
    );
    let set = alone.command("sh").args(["-c", &script]).output().await.unwrap();
    let set = String::from_utf8_lossy(&set.stdout);
    assert!(set.ends_with(": YWE=\n: YWE=\n"), "{set}");

    write(&alone, "later.kubeconfig", "apiVersion: v2\nkind: Config\n");
    let why =
        "error: error loading config file \"later.kubeconfig\": no kind \"Config\" is registered for version \"v2\"";
    fails(&alone, "get pods --kubeconfig=later.kubeconfig", why).await;

    // Logs of requests, and lists in chunks wherever something is looked up.
    let described = passes(&alone, "describe deployment web -v=6").await;
    for kind in ["deployments/web\"", "replicasets?labelSelector=app%3Dweb&limit=500\"", "limit=500\""] {
        let found = described.lines().any(|line| {
            line.contains("] \"Response\" verb=\"GET\" url=\"https://")
                && line.contains(kind)
                && line.contains("\" status=\"200 OK\" milliseconds=")
        });
        assert!(found, "{kind}: {described}");
    }
    let requested = passes(&alone, "get pods -v=8").await;
    for part in ["] \"Request Body\" body=\"\"", "] \"Request\" verb=\"GET\" url=\"https://", " headers=<\n\tAccept: "]
    {
        assert!(requested.contains(part), "{part}: {requested}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_tell_at_once_and_end_in_time() {
    let alone = Alone::start().await;
    let raw = ["get", "--raw", "/api/v1/namespaces?watch=1"];
    let mut watch = alone.command(KUBECTL).args(raw).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let first = tokio::time::timeout(std::time::Duration::from_secs(60), lines.next_line()).await;
    let first = first.expect("an event while the watch is open").unwrap().unwrap();
    assert!(first.starts_with("{\"type\":\"ADDED\""), "{first}");
    watch.kill().await.unwrap();

    for text in ["events --watch --request-timeout=4", "get pods --watch --request-timeout=4 -v=5"] {
        let seen = passes(&alone, text).await;
        assert!(seen.contains("web-1"), "{text}: {seen}");
        assert_eq!(seen.contains("context deadline exceeded"), text.ends_with("5"), "{text}: {seen}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_names_come_before_short_ones() {
    let alone = Alone::start().await;
    for (plural, group) in [("foos", "bar.com"), ("examples", "test.com"), ("exm", "late.com")] {
        let singular = plural.trim_end_matches('s');
        // The last one's full name is what the others have as a short one.
        let short = if plural == "exm" { "" } else { "shortNames: [exm, exmp], " };
        let definition = format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {plural}.{group}}}\n\
             spec:\n  group: {group}\n  scope: Namespaced\n  names: {{plural: {plural}, singular: {singular}, {short}kind: K{plural}}}\n  \
             versions:\n  - {{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {{type: object}}}}}}\n"
        );
        write(&alone, "definition.yaml", &definition);
        passes(&alone, "apply -f definition.yaml").await;
        passes(&alone, &format!("wait --for=condition=Established crd/{plural}.{group} --timeout=60s")).await;
        let kind = format!("apiVersion: {group}/v1\nkind: K{plural}\nmetadata: {{name: of-{singular}}}\n");
        write(&alone, "object.yaml", &kind);
        passes(&alone, "apply -f object.yaml").await;
    }
    let found = passes(&alone, "get exmp").await;
    assert!(found.contains("of-foo"), "{found}");
    let warning = "Warning: short name \"exmp\" could also match lower priority resource examples.test.com\n";
    assert!(found.contains(warning), "{found}");
    let found = passes(&alone, "get exm").await;
    assert!(found.contains("of-exm") && !found.contains("Warning"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_does_not_wait_for_a_node_that_is_away() {
    let alone = Alone::start().await;
    let node = passes(&alone, "get nodes -o jsonpath={.items[0].metadata.name}").await;
    let spec = format!("{{\"spec\":{{\"nodeName\":\"{node}\",\"terminationGracePeriodSeconds\":1}}}}");
    passes(&alone, &format!("run kept --image=nginx -l kept=yes --overrides '{spec}'")).await;
    let flags = "--force --pod-selector kept=yes --skip-wait-for-delete-timeout=1";
    let drained = passes(&alone, &format!("drain {node} {flags}")).await;
    assert!(drained.contains("pod \"kept\" has DeletionTimestamp older than 1 seconds, skipping\n"), "{drained}");
}
