//! `-k` and `kubectl kustomize`: builds the manifests of a kustomization directory.
//!
//! Flow: [`accumulate`] reads resources and bases (each built the same way), lets components work on them, adds what
//! `generators` make and runs `patches` and `transformers` in upstream's order; at the top, generated names get their
//! hash, `references` lets every mention of a renamed object follow it, and the objects are put in order.
//! Not here: plug-ins, Helm charts, `vars` and remote bases; each is refused by name.

mod generators;
mod patches;
mod references;
mod replacements;
mod transformers;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::objects::text;

/// An object, and the names it has had: references may use any of them.
#[derive(Clone, Debug)]
struct Resource {
    object: Value,
    former_names: Vec<String>,
    /// Generated: the name gets a hash of the content at the end.
    needs_hash: bool,
}

impl Resource {
    fn new(object: Value) -> Resource {
        Resource { object, former_names: Vec::new(), needs_hash: false }
    }

    fn kind(&self) -> &str {
        text(&self.object, "/kind")
    }

    fn name(&self) -> &str {
        text(&self.object, "/metadata/name")
    }

    fn group(&self) -> &str {
        text(&self.object, "/apiVersion").split_once('/').map_or("", |(group, _)| group)
    }

    fn rename(&mut self, name: String) {
        if name != self.name() {
            self.former_names.push(self.name().to_owned());
            self.object["metadata"]["name"] = Value::String(name);
        }
    }

    fn was_called(&self, name: &str) -> bool {
        self.name() == name || self.former_names.iter().any(|former| former == name)
    }

    /// `Deployment.v1.apps/web.[noNs]`, as messages name objects.
    fn id(&self) -> String {
        let api_version = text(&self.object, "/apiVersion");
        let (group, version) = api_version.split_once('/').unwrap_or(("[noGrp]", api_version));
        let namespace = match text(&self.object, "/metadata/namespace") {
            "" => "[noNs]",
            namespace => namespace,
        };
        format!("{}.{version}.{group}/{}.{namespace}", self.kind(), self.name())
    }
}

/// What files a kustomization may read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadRestrictor {
    /// Only those in or below its directory.
    RootOnly,
    None,
}

/// The manifests as one YAML stream.
pub(crate) fn build(dir: &Path, restrictor: LoadRestrictor) -> Result<String, String> {
    let (mut resources, settings) = accumulate(dir, restrictor, Vec::new(), 0)?;
    for resource in resources.iter_mut().filter(|r| r.needs_hash) {
        let name = format!("{}-{}", resource.name(), crate::objects::content_hash(&resource.object, ""));
        resource.rename(name);
    }
    references::fix(&mut resources);
    order(&mut resources, &settings["sortOptions"]);
    let documents: Vec<String> = resources.iter().map(|r| crate::printers::yaml::to_string(&r.object)).collect();
    Ok(documents.join("---\n"))
}

/// Bases inside bases end somewhere.
const MAX_DEPTH: usize = 50;

const FILES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Fields that still work, and what took their place.
const DEPRECATED: [(&str, &str); 4] = [
    ("commonLabels", "labels"),
    ("bases", "resources"),
    ("patchesJson6902", "patches"),
    ("patchesStrategicMerge", "patches"),
];

/// Fields that name what is not built here, and what to say.
const REFUSED: [(&str, &str); 6] = [
    ("helmCharts", "trouble configuring builtin HelmChartInflationGenerator: must specify --enable-helm"),
    (
        "helmChartInflationGenerator",
        "trouble configuring builtin HelmChartInflationGenerator: must specify --enable-helm",
    ),
    ("vars", "vars are not supported; replacements do the same"),
    ("generators", "external plugins disabled; unable to load generators"),
    ("transformers", "external plugins disabled; unable to load transformers"),
    ("validators", "external plugins disabled; unable to load validators"),
];

/// The resources of one directory added to those given, and its settings.
fn accumulate(
    dir: &Path,
    restrictor: LoadRestrictor,
    mut resources: Vec<Resource>,
    depth: usize,
) -> Result<(Vec<Resource>, Value), String> {
    if depth > MAX_DEPTH {
        return Err(format!("{}: bases refer to each other", dir.display()));
    }
    if !dir.is_dir() {
        let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        return Err(format!(
            "must build at directory: not a valid directory: evalsymlink failure on '{}' : lstat {}: no such file or directory",
            dir.display(),
            absolute.display()
        ));
    }
    let root = Root { dir: dir.to_owned(), restrictor };
    let file = FILES.iter().map(|n| dir.join(n)).find(|p| p.exists()).ok_or_else(|| {
        let absolute = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        format!(
            "unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{}'",
            absolute.display()
        )
    })?;
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let settings = crate::files::yaml(&text)?;
    for (field, instead) in DEPRECATED {
        if !settings[field].is_null() {
            eprintln!(
                "# Warning: '{field}' is deprecated. Please use '{instead}' instead. Run 'kustomize edit fix' to update your Kustomization automatically."
            );
        }
    }
    for (field, why) in REFUSED {
        if settings[field].as_array().is_some_and(|list| !list.is_empty()) {
            return Err(why.to_owned());
        }
    }
    for entry in ["resources", "bases"].iter().flat_map(|list| strings(&settings[*list])) {
        let found = load(&root, entry, depth).map_err(|e| format!("accumulating resources: {e}"))?;
        for resource in found {
            if let Some(same) = resources.iter().find(|r| r.id() == resource.id()) {
                return Err(format!(
                    "accumulating resources: accumulation err='merging resources from '{entry}': may not add resource with an already registered id: {}'",
                    same.id()
                ));
            }
            resources.push(resource);
        }
    }
    for entry in strings(&settings["components"]) {
        resources = accumulate(&dir.join(entry), restrictor, resources, depth + 1)?.0;
    }
    generators::run(&root, &settings, &mut resources)?;
    patches::strategic(&root, &settings, &mut resources)?;
    patches::general(&root, &settings["patches"], &mut resources)?;
    transformers::names(&settings, &mut resources);
    transformers::labels(&settings, &mut resources);
    transformers::annotations(&settings, &mut resources);
    patches::general(&root, &settings["patchesJson6902"], &mut resources)?;
    transformers::replicas(&settings["replicas"], &mut resources)?;
    transformers::images(&settings["images"], &mut resources);
    replacements::run(&root, &settings["replacements"], &mut resources)?;
    Ok((resources, settings))
}

fn load(root: &Root, entry: &str, depth: usize) -> Result<Vec<Resource>, String> {
    if entry.contains("://") || entry.starts_with("git@") || entry.starts_with("github.com/") {
        return Err(format!("accumulating resources from '{entry}': remote bases are not supported; fetch them first"));
    }
    let path = root.dir.join(entry);
    if path.is_dir() {
        return Ok(accumulate(&path, root.restrictor, Vec::new(), depth + 1)?.0);
    }
    let text =
        root.read(entry).map_err(|e| format!("accumulation err='accumulating resources from '{entry}': {e}'"))?;
    let manifests = crate::files::parse(&text, entry).map_err(|e| e.inner())?;
    Ok(manifests.into_iter().map(|m| Resource::new(m.object)).collect())
}

/// A kustomization's directory: where its files are read from.
struct Root {
    dir: PathBuf,
    restrictor: LoadRestrictor,
}

impl Root {
    fn read(&self, entry: &str) -> Result<String, String> {
        Ok(String::from_utf8_lossy(&self.read_bytes(entry)?).into_owned())
    }

    fn read_bytes(&self, entry: &str) -> Result<Vec<u8>, String> {
        let path = self.dir.join(entry);
        let real =
            path.canonicalize().map_err(|e| crate::files::go_io_error("open", &path.display().to_string(), &e))?;
        let root = self.dir.canonicalize().map_err(|e| e.to_string())?;
        if self.restrictor == LoadRestrictor::RootOnly && !real.starts_with(&root) {
            return Err(format!("security; file '{}' is not in or below '{}'", real.display(), root.display()));
        }
        std::fs::read(&real).map_err(|e| crate::files::go_io_error("read", &real.display().to_string(), &e))
    }
}

fn strings(value: &Value) -> Vec<&str> {
    crate::describe::strings(value)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Runs `change` on every value a path leads to; lists are gone through element by element.
fn visit(value: &mut Value, path: &[&str], change: &mut dyn FnMut(&mut Value)) {
    if let Some(items) = value.as_array_mut() {
        return items.iter_mut().for_each(|item| visit(item, path, change));
    }
    match path {
        [] => change(value),
        [head, rest @ ..] => {
            if let Some(next) = value.get_mut(*head) {
                visit(next, rest, change);
            }
        }
    }
}

const FIRST: &[&str] = &[
    "Namespace",
    "ResourceQuota",
    "StorageClass",
    "CustomResourceDefinition",
    "ServiceAccount",
    "PodSecurityPolicy",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "ConfigMap",
    "Secret",
    "Endpoints",
    "Service",
    "LimitRange",
    "PriorityClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Deployment",
    "StatefulSet",
    "CronJob",
    "PodDisruptionBudget",
];
const LAST: &[&str] = &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// What others need comes first; webhooks, which could refuse the rest, last. `sortOptions` may say otherwise.
fn order(resources: &mut [Resource], options: &Value) {
    if options["order"] == "fifo" {
        return;
    }
    let legacy = &options["legacySortOptions"];
    let (mut first, mut last) = (strings(&legacy["orderFirst"]), strings(&legacy["orderLast"]));
    if legacy.is_null() {
        (first, last) = (FIRST.to_vec(), LAST.to_vec());
    }
    let rank = |kind: &str| -> i64 {
        if let Some(at) = first.iter().position(|k| *k == kind) {
            return at as i64 - first.len() as i64;
        }
        last.iter().position(|k| *k == kind).map_or(0, |at| at as i64 + 1)
    };
    let or = |text: &str, missing: &str| if text.is_empty() { missing.to_owned() } else { text.to_owned() };
    resources.sort_by_cached_key(|r| {
        let version = text(&r.object, "/apiVersion").rsplit('/').next().unwrap_or("").to_owned();
        let namespace = or(text(&r.object, "/metadata/namespace"), "~X");
        (rank(r.kind()), or(r.group(), "~G"), version, r.kind().to_owned(), namespace, r.name().to_owned())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `(path, text)` files and builds `dir` among them.
    pub(super) fn built(files: &[(&str, &str)], dir: &str) -> Result<String, String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        build(&root.path().join(dir), LoadRestrictor::RootOnly)
    }

    const WEB: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: 1\n  template:\n    spec:\n      containers:\n      - name: c\n        image: nginx:1\n        envFrom:\n        - configMapRef:\n            name: conf\n";

    #[test]
    fn overlays_build() {
        let text = built(
            &[
                ("base/web.yaml", WEB),
                ("base/kustomization.yaml", "resources: [web.yaml]\nconfigMapGenerator:\n- name: conf\n  literals: [a=b]\n"),
                ("over/kustomization.yaml", "resources: [../base]\nnamePrefix: dev-\nnamespace: n\ncommonLabels: {app: x}\nimages:\n- name: nginx\n  newTag: \"2\"\nreplicas:\n- name: web\n  count: 3\n"),
            ],
            "over",
        )
        .unwrap();
        let objects = crate::files::documents(&text).unwrap();
        let (map, web) = (&objects[0], &objects[1]);
        let pod = &web["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(web["metadata"]["name"], "dev-web");
        assert_eq!(web["metadata"]["namespace"], "n");
        assert_eq!(web["spec"]["replicas"], 3);
        assert_eq!(web["spec"]["selector"]["matchLabels"]["app"], "x");
        assert_eq!(pod["image"], "nginx:2");
        let name = crate::objects::text(map, "/metadata/name");
        assert!(name.starts_with("dev-conf-") && name.len() == "dev-conf-".len() + 10, "{name}");
        assert_eq!(pod["envFrom"][0]["configMapRef"]["name"], name);
    }

    #[test]
    fn components_work_on_what_is_there() {
        let text = built(
            &[
                ("web.yaml", WEB),
                ("kustomization.yaml", "resources: [web.yaml]\ncomponents: [part]\n"),
                ("part/kustomization.yaml", "kind: Component\nnameSuffix: -x\n"),
            ],
            ".",
        )
        .unwrap();
        assert!(text.contains("name: web-x"), "{text}");
    }

    #[test]
    fn mistakes_are_named() {
        for (files, expected) in [
            (vec![], "unable to find one of 'kustomization.yaml'"),
            (vec![("kustomization.yaml", "resources: [missing.yaml]")], "no such file or directory"),
            (
                vec![("kustomization.yaml", "resources: [web.yaml, web.yaml]"), ("web.yaml", WEB)],
                "already registered id: Deployment.v1.apps/web.[noNs]",
            ),
            (vec![("kustomization.yaml", "helmCharts: [{name: x}]")], "--enable-helm"),
            (vec![("kustomization.yaml", "configMapGenerator: [{name: c, files: [../../../etc/passwd]}]")], ""),
        ] {
            let error = built(&files, ".").unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
