//! `-k` and `kubectl kustomize`: builds the manifests of a kustomization directory.
//!
//! Flow: [`accumulate`] reads resources and bases (each built the same way), adds what `generators` make, lets components
//! work on them and runs `patches` and `transformers` in upstream's order; at the top, generated names get their hash,
//! `references` lets every mention of a renamed object follow it, `vars` get their values, and the objects are put in order.
//! Not here: plug-ins, Helm charts, schemas of custom resources and remote bases; each is refused by name.

mod configurations;
mod error;
mod generators;
mod patches;
mod references;
mod replacements;
mod transformers;
mod vars;

use std::path::{Path, PathBuf};

use api::documents::DocumentError;
use api::sort::CompactSort as _;
use serde_json::Value;

use crate::objects::text;
use error::KustomizeError;

/// An object, and the names it has had: references may use any of them.
#[derive(Clone, Debug)]
struct Resource {
    object: Value,
    former_names: Vec<String>,
    /// Generated: the name gets a hash of the content at the end.
    needs_hash: bool,
    /// The variables that stand for fields of it.
    vars: Vec<String>,
}

impl Resource {
    fn new(object: Value) -> Resource {
        Resource { object, former_names: Vec::new(), needs_hash: false, vars: Vec::new() }
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
pub(crate) fn build(dir: &Path, restrictor: LoadRestrictor) -> Result<String, KustomizeError> {
    let Built { mut resources, settings, vars, places } = accumulate(dir, restrictor, Built::default(), 0)?;
    for resource in resources.iter_mut().filter(|r| r.needs_hash) {
        let name = format!("{}-{}", resource.name(), crate::objects::content_hash(&resource.object, ""));
        resource.rename(name);
    }
    references::fix(&mut resources, &places.names);
    vars::resolve(&mut resources, &vars, &places.vars)?;
    resources.retain(|r| r.object["metadata"]["annotations"]["config.kubernetes.io/local-config"] != "true");
    if strings(&settings["buildMetadata"]).contains(&"managedByLabel") {
        for resource in &mut resources {
            resource.object["metadata"]["labels"]["app.kubernetes.io/managed-by"] = Value::from(MANAGED_BY);
        }
    }
    order(&mut resources, &settings["sortOptions"]);
    let documents: Vec<String> = resources.iter().map(|r| api::yaml::to_string(&r.object)).collect();
    Ok(documents.join("---\n"))
}

/// What a directory and its bases come to.
#[derive(Default)]
struct Built {
    resources: Vec<Resource>,
    /// The directory's own kustomization.
    settings: Value,
    vars: Vec<vars::Var>,
    places: configurations::Places,
}

/// The kustomize that upstream's kubectl has inside.
const MANAGED_BY: &str = "kustomize-v5.8.1";

/// Bases inside bases end somewhere.
const MAX_DEPTH: usize = 50;

const FILES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Fields that still work, what took their place, and how sure upstream is of its tool that moves them.
const DEPRECATED: [(&str, &str, &str); 6] = [
    ("bases", "resources", ""),
    ("commonLabels", "labels", ""),
    ("imageTags", "images", ""),
    ("patchesJson6902", "patches", ""),
    ("patchesStrategicMerge", "patches", ""),
    ("vars", "replacements", "[EXPERIMENTAL] "),
];

/// The other fields there are.
const FIELDS: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "namePrefix",
    "nameSuffix",
    "namespace",
    "labels",
    "commonAnnotations",
    "patches",
    "images",
    "replacements",
    "replicas",
    "sortOptions",
    "resources",
    "components",
    "configMapGenerator",
    "secretGenerator",
    "generatorOptions",
    "configurations",
    "helmGlobals",
    "buildMetadata",
];

/// Fields that name what is not built here, and what to say.
const REFUSED: [(&str, &str); 7] = [
    ("helmCharts", "trouble configuring builtin HelmChartInflationGenerator: must specify --enable-helm"),
    (
        "helmChartInflationGenerator",
        "trouble configuring builtin HelmChartInflationGenerator: must specify --enable-helm",
    ),
    ("crds", "crds are not supported; name the fields that hold names of objects in a file of configurations"),
    ("openapi", "schemas of custom resources are not supported; use JSON patches for lists in them"),
    ("generators", "external plugins disabled; unable to load generators"),
    ("transformers", "external plugins disabled; unable to load transformers"),
    ("validators", "external plugins disabled; unable to load validators"),
];

/// The resources of one directory added to those given, and its settings.
fn accumulate(dir: &Path, restrictor: LoadRestrictor, mut built: Built, depth: usize) -> Result<Built, KustomizeError> {
    if depth > MAX_DEPTH {
        return Err(KustomizeError::Circle(dir.to_owned()));
    }
    if !dir.is_dir() {
        let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        return Err(KustomizeError::NoDirectory { dir: dir.to_owned(), absolute });
    }
    let root = Root { dir: dir.to_owned(), restrictor };
    let settings = read_settings(dir)?;
    let mut resources = std::mem::take(&mut built.resources);
    for entry in ["resources", "bases"].iter().flat_map(|list| strings(&settings[*list])) {
        let found = load(&root, entry, depth).map_err(|e| KustomizeError::Accumulating(Box::new(e)))?;
        built.vars.extend(found.vars);
        built.places.vars.extend(found.places.vars);
        built.places.names.extend(found.places.names);
        for resource in found.resources {
            if let Some(same) = resources.iter().find(|r| r.id() == resource.id()) {
                let source = Box::new(KustomizeError::Twice(same.id()));
                let merging = KustomizeError::Merging { entry: entry.to_owned(), source };
                return Err(KustomizeError::Accumulating(Box::new(merging)));
            }
            resources.push(resource);
        }
    }
    configurations::read(&root, &settings["configurations"], &mut built.places)?;
    generators::run(&root, &settings, &mut resources)?;
    built.resources = resources;
    for entry in strings(&settings["components"]) {
        built = accumulate(&dir.join(entry), restrictor, built, depth + 1)?;
    }
    let mut resources = std::mem::take(&mut built.resources);
    patches::strategic(&root, &settings, &mut resources)?;
    patches::general(&root, &settings["patches"], &mut resources)?;
    transformers::names(&settings, &mut resources);
    transformers::labels(&settings, &mut resources);
    transformers::annotations(&settings, &mut resources);
    patches::general(&root, &settings["patchesJson6902"], &mut resources)?;
    transformers::replicas(&settings["replicas"], &mut resources)?;
    for field in ["images", "imageTags"] {
        transformers::images(&settings[field], &mut resources);
    }
    replacements::run(&root, &settings["replacements"], &mut resources)?;
    vars::collect(&settings["vars"], &mut resources, &mut built.vars)?;
    Ok(Built { resources, settings, ..built })
}

/// A directory's kustomization, of which every field is known and none is beyond us.
fn read_settings(dir: &Path) -> Result<Value, KustomizeError> {
    let absolute = || dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).display().to_string();
    let files: Vec<PathBuf> = FILES.iter().map(|n| dir.join(n)).filter(|p| p.exists()).collect();
    let file = match files.as_slice() {
        [file] => file,
        [] => return Err(KustomizeError::NoFile(absolute())),
        _ => return Err(KustomizeError::SeveralFiles(absolute())),
    };
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|source| KustomizeError::Unreadable { path: file.clone(), source })?;
    let mut settings = yaml(&text)?;
    in_known_case(&mut settings);
    let fields = settings.as_object().into_iter().flatten().map(|(field, _)| field.as_str());
    for field in fields.clone() {
        let deprecated = DEPRECATED.iter().any(|(known, ..)| *known == field);
        if !deprecated && !FIELDS.contains(&field) && REFUSED.iter().all(|(known, _)| *known != field) {
            return Err(KustomizeError::UnknownField(field.to_owned()));
        }
    }
    for (field, instead, sure) in DEPRECATED {
        if !settings[field].is_null() {
            eprintln!(
                "# Warning: '{field}' is deprecated. Please use '{instead}' instead. {sure}Run 'kustomize edit fix' to update your Kustomization automatically."
            );
        }
    }
    if fields.filter(|field| !["apiVersion", "kind"].contains(field)).all(|field| settings[field].is_null()) {
        return Err(KustomizeError::Empty);
    }
    if !["", "Kustomization", "Component"].contains(&crate::objects::text(&settings, "/kind")) {
        return Err(KustomizeError::Kind(absolute()));
    }
    for (field, why) in REFUSED {
        let empty = match &settings[field] {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        if !empty {
            return Err(KustomizeError::Refused(why));
        }
    }
    if let Some(other) = strings(&settings["buildMetadata"]).into_iter().find(|option| *option != "managedByLabel") {
        return Err(KustomizeError::BuildMetadata(other.to_owned()));
    }
    Ok(settings)
}

fn load(root: &Root, entry: &str, depth: usize) -> Result<Built, KustomizeError> {
    if entry.contains("://") || entry.starts_with("git@") || entry.starts_with("github.com/") {
        return Err(KustomizeError::Remote(entry.to_owned()));
    }
    let path = root.dir.join(entry);
    if path.is_dir() {
        return accumulate(&path, root.restrictor, Built::default(), depth + 1);
    }
    let text = root
        .read(entry)
        .map_err(|source| KustomizeError::Resource { entry: entry.to_owned(), source: Box::new(source) })?;
    let manifests = crate::manifests::parse(&text, entry).map_err(|e| KustomizeError::Manifest(e.inner()))?;
    Ok(Built { resources: manifests.into_iter().map(|m| Resource::new(m.object)).collect(), ..Built::default() })
}

/// A kustomization's directory: where its files are read from.
struct Root {
    dir: PathBuf,
    restrictor: LoadRestrictor,
}

impl Root {
    fn read(&self, entry: &str) -> Result<String, KustomizeError> {
        Ok(String::from_utf8_lossy(&self.read_bytes(entry)?).into_owned())
    }

    fn read_bytes(&self, entry: &str) -> Result<Vec<u8>, KustomizeError> {
        let path = self.dir.join(entry);
        let failed = |operation: &str, path: &Path, error: &std::io::Error| {
            KustomizeError::Io(crate::go_errors::go_io_error(operation, &path.display().to_string(), error))
        };
        let real = path.canonicalize().map_err(|e| failed("open", &path, &e))?;
        let root = self.dir.canonicalize().map_err(|e| KustomizeError::Io(e.to_string()))?;
        if self.restrictor == LoadRestrictor::RootOnly && !real.starts_with(&root) {
            return Err(KustomizeError::Outside { file: real, root });
        }
        std::fs::read(&real).map_err(|e| failed("read", &real, &e))
    }
}

fn yaml(text: &str) -> Result<Value, KustomizeError> {
    Ok(api::documents::read_one(text, api::yaml::Rules::Kustomize).map_err(DocumentError::from)?)
}

fn documents(text: &str) -> Result<Vec<Value>, KustomizeError> {
    Ok(crate::manifests::documents(text)?)
}

fn strings(value: &Value) -> Vec<&str> {
    crate::objects::strings(value)
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
    resources.compact_sort_by_cached_key(|r| {
        let version = text(&r.object, "/apiVersion").rsplit('/').next().unwrap_or("").to_owned();
        let namespace = or(text(&r.object, "/metadata/namespace"), "~X");
        (rank(r.kind()), or(r.group(), "~G"), version, r.kind().to_owned(), namespace, r.name().to_owned())
    });
}

/// Fields are known in any case, as Go's decoder has it (`nameprefix`).
fn in_known_case(settings: &mut Value) {
    let Some(fields) = settings.as_object_mut() else { return };
    let known = DEPRECATED.iter().map(|(name, ..)| *name).chain(REFUSED.iter().map(|(name, _)| *name));
    for name in known.chain(FIELDS.iter().copied()) {
        if fields.contains_key(name) {
            continue;
        }
        let Some(given) = fields.keys().find(|given| given.eq_ignore_ascii_case(name)).cloned() else { continue };
        if let Some(value) = fields.remove(&given) {
            fields.insert(name.to_owned(), value);
        }
    }
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
        build(&root.path().join(dir), LoadRestrictor::RootOnly).map_err(|error| error.to_string())
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
        let objects = crate::manifests::documents(&text).unwrap();
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
    fn fields_are_known_in_any_case() {
        let text = built(&[("kustomization.yaml", "nameprefix: a-\nRESOURCES: [web.yaml]"), ("web.yaml", WEB)], ".");
        assert!(text.as_ref().is_ok_and(|text| text.contains("name: a-web")), "{text:?}");
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
            (
                vec![("kustomization.yaml", "nmaePrefix: x")],
                "invalid Kustomization: json: unknown field \"nmaePrefix\"",
            ),
            (vec![("kustomization.yaml", "kind: Kustomization")], "kustomization.yaml is empty"),
            (vec![("kustomization.yaml", ""), ("Kustomization", "")], "Found multiple kustomization files under: "),
            (vec![("kustomization.yaml", "kind: Foo\nnamePrefix: x")], "kind should be Kustomization or Component"),
            (vec![("kustomization.yaml", "configMapGenerator: [{name: c, files: [../../../etc/passwd]}]")], ""),
        ] {
            let error = built(&files, ".").unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
