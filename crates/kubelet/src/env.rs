//! Environment of a container: variable expansion, service variables and the pod's own fields.
//!
//! Flow: spec + ConfigMaps and Secrets (fetched by the caller) -> here -> CRI container config. Pure.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::core::v1::{ConfigMap, Container, FileKeySelector, Pod, Secret, Service};

use crate::resources::{self, ResourceList, UnsupportedResource};
use crate::state;

/// Why a container's variable, or a field of its pod, has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvError {
    #[error("{kind} \"{name}\" not found")]
    NoObject { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey { kind: &'static str, namespace: String, name: String, key: String },
    #[error("container {0} not found")]
    NoContainer(String),
    #[error("missing value for {0}")]
    NoValue(String),
    #[error("invalid path {0:?}: does not support subscript")]
    NoSubscript(String),
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    #[error("couldn't parse env file")]
    NoFile,
    #[error("environment variable key {key:?} not found in file {path:?}")]
    NoKeyInFile { key: String, path: String },
    #[error("the environment is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error(transparent)]
    Resource(#[from] UnsupportedResource),
}

/// Replaces `$(NAME)` by its value. `$$` is a plain `$`, an unknown name stays as it is.
pub(crate) fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, EnvError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(escaped) = after.strip_prefix('$') {
            out.push('$');
            rest = escaped;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
        if out.len() > MAX_BYTES {
            return Err(EnvError::TooLarge);
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Values of variables by their names; of several with one name the last.
pub(crate) fn by_name(env: &[(String, String)]) -> HashMap<&str, &String> {
    env.iter().map(|(key, value)| (key.as_str(), value)).collect()
}

/// Words of a command, all of them together no larger than an environment.
pub(crate) fn expand_words(words: &[String], env: &[(String, String)]) -> Result<Vec<String>, EnvError> {
    let mut size = 0;
    let known = by_name(env);
    let expanded = words.iter().map(|word| {
        let word = expand(word, &|name| known.get(name).map(|value| (*value).clone()))?;
        size += word.len();
        if size > MAX_BYTES { Err(EnvError::TooLarge) } else { Ok(word) }
    });
    expanded.collect()
}

/// As in [`expand_words`], but every variable must be there and say something.
pub(crate) fn expand_strictly(text: &str, known: &HashMap<&str, &String>) -> Result<String, EnvError> {
    let missing = std::cell::RefCell::new(BTreeSet::new());
    let expanded = expand(text, &|name| {
        let value = known.get(name).map(|value| (*value).clone());
        if value.as_ref().is_none_or(String::is_empty) {
            missing.borrow_mut().insert(name.to_string());
        }
        value
    })?;
    let missing = missing.into_inner();
    if missing.is_empty() {
        return Ok(expanded);
    }
    Err(EnvError::NoValue(Vec::from_iter(missing).join(", ")))
}

/// Objects that environment variables refer to, by name; a missing entry does not exist.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) config_maps: HashMap<String, ConfigMap>,
    pub(crate) secrets: HashMap<String, Secret>,
    /// What is in files, by volume and path; one that cannot be read is missing.
    pub(crate) files: HashMap<(String, String), EnvFile>,
}

/// More than the kernel gives to any program: a pod may name one large value again and again.
pub(crate) const MAX_BYTES: usize = 8 << 20;

/// What else a variable may show of the pod and node.
pub(crate) struct Context<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) pod_ips: &'a [String],
    pub(crate) host_ips: &'a [String],
    pub(crate) allocatable: &'a ResourceList,
    pub(crate) services: &'a [(String, String)],
}

/// Variables in order, found by their names: a pod may have tens of thousands, and each may name others as often.
#[derive(Default)]
struct Variables {
    all: Vec<(String, String)>,
    places: HashMap<String, usize>,
    size: usize,
}

impl Variables {
    /// A later one takes the place of an earlier one of its name.
    fn set(&mut self, key: String, value: String) -> Result<(), EnvError> {
        self.size += key.len() + value.len();
        if self.size > MAX_BYTES {
            return Err(EnvError::TooLarge);
        }
        match self.places.get(&key) {
            Some(at) => self.all[*at].1 = value,
            None => self.add(key, value),
        }
        Ok(())
    }

    fn add(&mut self, key: String, value: String) {
        self.places.insert(key.clone(), self.all.len());
        self.all.push((key, value));
    }

    fn get(&self, name: &str) -> Option<&String> {
        self.places.get(name).map(|at| &self.all[*at].1)
    }
}

/// The variables of one container, in order.
pub(crate) fn environment(
    container: &Container,
    context: &Context<'_>,
    sources: &Sources,
) -> Result<Vec<(String, String)>, EnvError> {
    let no_object = |kind: &'static str, name: &str| EnvError::NoObject { kind, name: name.to_owned() };
    let no_key = |kind: &'static str, name: &str, key: &str| EnvError::NoKey {
        kind,
        namespace: state::namespace(context.pod).to_owned(),
        name: name.to_owned(),
        key: key.to_owned(),
    };
    let mut result = Variables::default();
    // Of several with one name the first.
    let services = context.services.iter().rev().map(|(key, value)| (key.as_str(), value));
    let services: HashMap<&str, &String> = services.collect();

    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &from.config_map_ref {
            let name = reference.name.as_str();
            match sources.config_maps.get(name) {
                Some(map) => {
                    for (key, value) in map.data.iter().flatten() {
                        result.set(format!("{prefix}{key}"), value.clone())?;
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(no_object("configmap", name)),
            }
        }
        if let Some(reference) = &from.secret_ref {
            let name = reference.name.as_str();
            match sources.secrets.get(name) {
                Some(secret) => {
                    for (key, value) in secret.data.iter().flatten() {
                        result.set(format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned())?;
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(no_object("secret", name)),
            }
        }
    }

    // Copies of all of the pod: one for all variables.
    let containers = LazyCell::new(|| state::all_containers(context.pod));
    let defaults = LazyCell::new(|| resources::default_limits(context.pod, context.allocatable));
    for variable in container.env.iter().flatten() {
        let mut value = None;
        if let Some(text) = variable.value.as_deref().filter(|text| !text.is_empty()) {
            value = Some(expand(text, &|name| result.get(name).or_else(|| services.get(name).copied()).cloned())?);
        } else if let Some(from) = &variable.value_from {
            if let Some(field) = &from.field_ref {
                value = Some(field_value(&field.field_path, context)?);
            } else if let Some(field) = &from.resource_field_ref {
                let owner = match field.container_name.as_deref() {
                    None | Some("") => container,
                    Some(name) => containers
                        .iter()
                        .find(|c| c.name == name)
                        .ok_or_else(|| EnvError::NoContainer(name.to_owned()))?,
                };
                value = Some(resources::field_value(owner, &field.resource, field.divisor.as_ref(), &defaults)?);
            } else if let Some(key) = &from.config_map_key_ref {
                let optional = key.optional == Some(true);
                value = match sources.config_maps.get(&key.name) {
                    None if optional => None,
                    None => return Err(no_object("configmap", &key.name)),
                    Some(map) => match map.data.as_ref().and_then(|data| data.get(&key.key)) {
                        Some(found) => Some(found.clone()),
                        None if optional => None,
                        None => return Err(no_key("ConfigMap", &key.name, &key.key)),
                    },
                };
                if value.is_none() {
                    continue;
                }
            } else if let Some(key) = &from.secret_key_ref {
                let optional = key.optional == Some(true);
                value = match sources.secrets.get(&key.name) {
                    None if optional => None,
                    None => return Err(no_object("secret", &key.name)),
                    Some(secret) => match secret.data.as_ref().and_then(|data| data.get(&key.key)) {
                        Some(found) => Some(String::from_utf8_lossy(&found.0).into_owned()),
                        None if optional => None,
                        None => return Err(no_key("Secret", &key.name, &key.key)),
                    },
                };
                if value.is_none() {
                    continue;
                }
            } else if let Some(file) = &from.file_key_ref {
                let found = sources.files.get(&place(file)).ok_or(EnvError::NoFile)?.value(&file.key)?;
                if found.is_empty() && file.optional == Some(true) {
                    continue;
                }
                if found.is_empty() {
                    return Err(EnvError::NoKeyInFile { key: file.key.clone(), path: file.path.clone() });
                }
                value = Some(found.to_owned());
            }
        }
        result.set(variable.name.clone(), value.unwrap_or_default())?;
    }

    for (key, value) in context.services {
        if result.get(key).is_none() {
            result.add(key.clone(), value.clone());
        }
    }
    Ok(result.all)
}

/// Names of the ConfigMaps and Secrets a container's environment needs, each once: whoever asks gets a copy of all of the object.
pub(crate) fn referenced(container: &Container) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
    for from in container.env_from.iter().flatten() {
        maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
        secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
    }
    for from in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
        maps.extend(from.config_map_key_ref.iter().map(|r| r.name.clone()));
        secrets.extend(from.secret_key_ref.iter().map(|r| r.name.clone()));
    }
    (maps, secrets)
}

/// The keys that a container's environment needs, by the volumes and paths of their files.
pub(crate) fn referenced_files(container: &Container) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut files: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    let sources = container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref());
    for file in sources.filter_map(|source| source.file_key_ref.as_ref()) {
        files.entry(place(file)).or_default().insert(file.key.clone());
    }
    files
}

fn place(file: &FileKeySelector) -> (String, String) {
    (file.volume_name.clone(), file.path.clone())
}

/// A file with lines of `NAME='value'` (`ParseEnv`, v1.36).
#[derive(Default)]
pub(crate) struct EnvFile {
    /// Those of the keys that are needed; of several with one key the first.
    values: BTreeMap<String, String>,
    /// It is read up to a line that means nothing: what else it has is not known.
    is_broken: bool,
}

impl EnvFile {
    pub(crate) fn parse(text: &str, keys: &BTreeSet<String>) -> Self {
        let (mut file, mut lines) = (EnvFile::default(), text.lines());
        loop {
            match next_variable(&mut lines) {
                Ok(Some((name, value))) => {
                    if keys.contains(name) {
                        file.values.entry(name.to_owned()).or_insert(value);
                    }
                }
                Ok(None) => return file,
                Err(_) => {
                    file.is_broken = true;
                    return file;
                }
            }
        }
    }

    /// How many bytes of values are kept.
    pub(crate) fn size(&self) -> usize {
        self.values.values().map(String::len).sum()
    }

    /// Empty if the file has none.
    fn value(&self, key: &str) -> Result<&str, EnvError> {
        match self.values.get(key) {
            None if self.is_broken => Err(EnvError::NoFile),
            found => Ok(found.map_or("", String::as_str)),
        }
    }
}

/// The name and the value that come next; none at the end.
fn next_variable<'a>(lines: &mut std::str::Lines<'a>) -> Result<Option<(&'a str, String)>, EnvError> {
    let is_blank = |c: char| c == ' ' || c == '\t';
    let line = loop {
        let Some(line) = lines.next() else { return Ok(None) };
        let line = line.trim_start_matches(is_blank);
        if !line.is_empty() && !line.starts_with('#') {
            break line;
        }
    };
    let (name, value) = line.split_once('=').ok_or(EnvError::NoFile)?;
    if name.is_empty() || name.ends_with(is_blank) {
        return Err(EnvError::NoFile);
    }
    if value.starts_with(is_blank) {
        // As a shell reads it: nothing is assigned.
        return Ok(Some((name, String::new())));
    }
    let mut rest = value.strip_prefix('\'').ok_or(EnvError::NoFile)?;
    let mut found = String::new();
    let after = loop {
        if let Some((inside, after)) = rest.split_once('\'') {
            found.push_str(inside);
            break after.trim_start_matches(is_blank);
        }
        found.push_str(rest);
        found.push('\n');
        rest = lines.next().ok_or(EnvError::NoFile)?;
    };
    if !after.is_empty() && !after.starts_with('#') {
        return Err(EnvError::NoFile);
    }
    Ok(Some((name, found)))
}

/// A `fieldRef` of the downward API.
pub(crate) fn field_value(path: &str, context: &Context<'_>) -> Result<String, EnvError> {
    let pod = context.pod;
    let spec = pod.spec.as_ref();
    if let Some((map, key)) = path.strip_suffix("']").and_then(|rest| rest.split_once("['")) {
        let entries = match map {
            "metadata.labels" => pod.metadata.labels.as_ref(),
            "metadata.annotations" => pod.metadata.annotations.as_ref(),
            _ => return Err(EnvError::NoSubscript(path.to_owned())),
        };
        return Ok(entries.and_then(|entries| entries.get(key)).cloned().unwrap_or_default());
    }
    let value = match path {
        "metadata.name" => state::name(pod).to_string(),
        "metadata.namespace" => state::namespace(pod).to_string(),
        "metadata.uid" => state::uid(pod).to_string(),
        "metadata.labels" => format_map(pod.metadata.labels.as_ref()),
        "metadata.annotations" => format_map(pod.metadata.annotations.as_ref()),
        "spec.nodeName" => spec.and_then(|s| s.node_name.clone()).unwrap_or_default(),
        "spec.serviceAccountName" => spec.and_then(|s| s.service_account_name.clone()).unwrap_or_default(),
        "status.hostIP" => context.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => context.host_ips.join(","),
        "status.podIP" => context.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => context.pod_ips.join(","),
        _ => return Err(EnvError::FieldPath(path.to_owned())),
    };
    Ok(value)
}

/// Lines of `key="value"`, sorted, values quoted as Go does.
pub(crate) fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", api::field::quote(value))).collect();
    lines.join("\n")
}

/// Docker-link style variables of the services a pod may see: those of its namespace, plus the
/// API server's own.
pub(crate) fn service_variables<'a>(
    pod: &Pod,
    services: impl IntoIterator<Item = &'a Service>,
) -> Vec<(String, String)> {
    let enabled = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        let (Some(name), Some(namespace)) = (service.metadata.name.as_deref(), service.metadata.namespace.as_deref())
        else {
            continue;
        };
        let is_api = namespace == "default" && name == "kubernetes";
        let is_local = namespace == state::namespace(pod) && enabled;
        if is_local || (is_api && !chosen.contains_key(name)) {
            chosen.insert(name, service);
        }
    }
    let mut result = Vec::new();
    for (name, service) in chosen {
        let Some(spec) = &service.spec else { continue };
        let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { continue };
        let ports = spec.ports.as_deref().unwrap_or_default();
        let Some(first) = ports.first() else { continue };
        let prefix = name.replace('-', "_").to_uppercase();
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_string() };
        let mut add = |key: String, value: String| result.push((key, value));
        add(format!("{prefix}_SERVICE_HOST"), ip.to_string());
        add(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
        for port in ports {
            if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                let port_name = port_name.replace('-', "_").to_uppercase();
                add(format!("{prefix}_SERVICE_PORT_{port_name}"), port.port.to_string());
            }
        }
        for (index, port) in ports.iter().enumerate() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let url = format!("{}://{host}:{}", protocol.to_lowercase(), port.port);
            if index == 0 {
                add(format!("{prefix}_PORT"), url.clone());
            }
            let port_prefix = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
            add(port_prefix.clone(), url);
            add(format!("{port_prefix}_PROTO"), protocol.to_lowercase());
            add(format!("{port_prefix}_PORT"), port.port.to_string());
            add(format!("{port_prefix}_ADDR"), ip.to_string());
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{
        ConfigMapEnvSource, EnvFromSource, EnvVar, EnvVarSource, ObjectFieldSelector, ServicePort, ServiceSpec,
    };
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn expansion() {
        let lookup = |name: &str| (name == "VAR").then(|| "value".to_string());
        for (text, expected) in [
            ("$(VAR)", "value"),
            ("a-$(VAR)-b", "a-value-b"),
            ("$$(VAR)", "$(VAR)"),
            ("$$$(VAR)", "$value"),
            ("$(MISSING)", "$(MISSING)"),
            ("$VAR", "$VAR"),
            ("$(VAR", "$(VAR"),
            ("cost: 5$", "cost: 5$"),
            ("$(VAR)$(VAR)", "valuevalue"),
        ] {
            assert_eq!(expand(text, &lookup).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn paths_need_their_variables() {
        let env = [("A", "x"), ("EMPTY", "")].map(|(key, value)| (key.to_string(), value.to_string()));
        for (text, expected) in
            [("$(A)/y", Ok("x/y")), ("$$(A)", Ok("$(A)")), ("$(B)$(EMPTY)$(A)", Err("missing value for B, EMPTY"))]
        {
            let got = expand_strictly(text, &by_name(&env));
            assert_eq!(got.as_deref().map_err(ToString::to_string), expected.map_err(str::to_owned), "{text}");
        }
    }

    fn meta(name: &str) -> ObjectMeta {
        ObjectMeta { name: Some(name.into()), namespace: Some("default".into()), ..Default::default() }
    }

    #[test]
    fn variables_see_earlier_ones_and_sources() {
        let pod = Pod { metadata: meta("web"), ..Default::default() };
        let container = Container {
            env_from: Some(vec![EnvFromSource {
                prefix: Some("p-".into()),
                config_map_ref: Some(ConfigMapEnvSource { name: "cm".into(), optional: None }),
                secret_ref: None,
            }]),
            env: Some(vec![
                EnvVar { name: "A".into(), value: Some("1".into()), ..Default::default() },
                EnvVar { name: "B".into(), value: Some("$(A)-$(p-key)-$(C)".into()), ..Default::default() },
                EnvVar {
                    name: "NAME".into(),
                    value_from: Some(EnvVarSource {
                        field_ref: Some(ObjectFieldSelector { field_path: "metadata.name".into(), api_version: None }),
                        ..Default::default()
                    }),
                    ..Default::default()
                },
            ]),
            ..Default::default()
        };
        let context = Context { pod: &pod, pod_ips: &[], host_ips: &[], allocatable: &BTreeMap::new(), services: &[] };
        let mut sources = Sources::default();
        let missing = environment(&container, &context, &sources).unwrap_err();
        assert_eq!(missing, EnvError::NoObject { kind: "configmap", name: "cm".into() });
        assert_eq!(missing.to_string(), "configmap \"cm\" not found");
        sources.config_maps.insert(
            "cm".into(),
            ConfigMap { data: Some(BTreeMap::from([("key".into(), "v".into())])), ..Default::default() },
        );
        let env = environment(&container, &context, &sources).unwrap();
        assert_eq!(
            env,
            [("p-key", "v"), ("A", "1"), ("B", "1-v-$(C)"), ("NAME", "web")]
                .map(|(k, v)| (k.to_string(), v.to_string()))
        );
    }

    #[test]
    fn variables_come_from_files() {
        let parse = |text: &str, key: &str| EnvFile::parse(text, &BTreeSet::from([key.to_owned()]));
        let text = "# made by the first\n\n  A='1' # one\nB='two\n lines'\nC= 'lost'\nD=''\n";
        for (key, expected) in [("A", "1"), ("B", "two\n lines"), ("C", ""), ("D", ""), ("E", "")] {
            assert_eq!(parse(text, key).value(key), Ok(expected), "{key}");
        }
        for bad in ["A", "='1'", "A ='1'", "A=1", "A=", "A='1' 2", "A='1\n"] {
            assert_eq!(parse(bad, "A").value("A"), Err(EnvError::NoFile), "{bad:?}");
        }
        assert_eq!(parse("A='1'\nA='2'\nB", "A").value("A"), Ok("1"), "what comes later does not count");
        let pod = Pod { metadata: meta("web"), ..Default::default() };
        let context = Context { pod: &pod, pod_ips: &[], host_ips: &[], allocatable: &BTreeMap::new(), services: &[] };
        let container = |key: &str, optional: bool| -> Container {
            let file = serde_json::json!({"volumeName": "v", "path": "env", "key": key, "optional": optional});
            let env = serde_json::json!([{"name": "X", "valueFrom": {"fileKeyRef": file}}]);
            serde_json::from_value(serde_json::json!({"name": "c", "env": env})).unwrap()
        };
        let mut sources = Sources::default();
        assert_eq!(environment(&container("A", true), &context, &sources), Err(EnvError::NoFile));
        let (place, key) = referenced_files(&container("A", true)).pop_first().unwrap();
        assert_eq!((&place, key), (&("v".to_owned(), "env".to_owned()), BTreeSet::from(["A".to_owned()])));
        sources.files.insert(place, parse(text, "A"));
        let a = environment(&container("A", false), &context, &sources).unwrap();
        assert_eq!(a, [("X".to_owned(), "1".to_owned())]);
        assert_eq!(environment(&container("E", true), &context, &sources), Ok(Vec::new()));
        let missing = environment(&container("E", false), &context, &sources).unwrap_err();
        assert_eq!(missing.to_string(), "environment variable key \"E\" not found in file \"env\"");
    }

    /// One large value, named by many variables, would fill the node's memory.
    #[test]
    fn security_an_environment_is_bounded_in_bytes() {
        let pod = Pod { metadata: meta("web"), ..Default::default() };
        let context = Context { pod: &pod, pod_ips: &[], host_ips: &[], allocatable: &BTreeMap::new(), services: &[] };
        let text = format!("A='{}'", "x".repeat(1 << 20));
        let file = EnvFile::parse(&text, &BTreeSet::from(["A".to_owned()]));
        assert_eq!(file.size(), 1 << 20);
        let sources = Sources { files: [(("v".to_owned(), "env".to_owned()), file)].into(), ..Sources::default() };
        let container = |count: usize| -> Container {
            let file = serde_json::json!({"volumeName": "v", "path": "env", "key": "A"});
            let variable = |at: usize| serde_json::json!({"name": format!("X{at}"), "valueFrom": {"fileKeyRef": file}});
            let env: Vec<serde_json::Value> = (0..count).map(variable).collect();
            serde_json::from_value(serde_json::json!({"name": "c", "env": env})).unwrap()
        };
        assert_eq!(environment(&container(7), &context, &sources).unwrap().len(), 7);
        assert_eq!(environment(&container(8), &context, &sources), Err(EnvError::TooLarge));
        let env = [("A".to_owned(), "a".repeat(1 << 20))];
        let words = |count: usize| expand_words(&["$(A)$(A)".to_owned(), "$(A)".repeat(count)], &env);
        assert!(words(6).is_ok() && words(7) == Err(EnvError::TooLarge));
        assert_eq!(expand_strictly(&"$(A)".repeat(9), &by_name(&env)), Err(EnvError::TooLarge));
    }

    #[test]
    fn security_many_variables_are_found_by_their_names() {
        let pod = Pod { metadata: meta("web"), ..Default::default() };
        let services: Vec<(String, String)> = (0..40_000).map(|at| (format!("S{at}"), "s".to_owned())).collect();
        let none = BTreeMap::new();
        let context = Context { pod: &pod, pod_ips: &[], host_ips: &[], allocatable: &none, services: &services };
        let names = "$(V39999)$(S39999)".repeat(20_000);
        let mut env: Vec<serde_json::Value> =
            (0..40_000).map(|at| serde_json::json!({"name": format!("V{at}"), "value": "v"})).collect();
        env.push(serde_json::json!({"name": "ALL", "value": names}));
        let container = serde_json::from_value(serde_json::json!({"name": "c", "env": env})).unwrap();
        let found = environment(&container, &context, &Sources::default()).unwrap();
        assert_eq!((found.len(), &found[40_000].1), (80_001, &"vs".repeat(20_000)));
        assert_eq!(expand_strictly(&names, &by_name(&found)).unwrap(), "vs".repeat(20_000));
        assert_eq!(expand_words(&[names], &found).unwrap(), ["vs".repeat(20_000)]);

        // Whatever they ask of containers of the pod, these are not copied for each.
        let field = serde_json::json!({"resourceFieldRef": {"containerName": "c", "resource": "requests.cpu"}});
        let env: Vec<serde_json::Value> =
            (0..20_000).map(|at| serde_json::json!({"name": format!("R{at}"), "valueFrom": field})).collect();
        let pod: Pod =
            serde_json::from_value(serde_json::json!({"spec": {"containers": [{"name": "c", "env": env}]}})).unwrap();
        let context = Context { pod: &pod, services: &[], ..context };
        let found = environment(&state::all_containers(&pod)[0], &context, &Sources::default()).unwrap();
        assert_eq!((found.len(), found[0].1.as_str()), (20_000, "0"));
    }

    #[test]
    fn objects_are_asked_for_once() {
        let map = |at: usize| {
            let reference = serde_json::json!({"configMapKeyRef": {"name": "m", "key": "k"}});
            serde_json::json!({"name": format!("A{at}"), "valueFrom": reference})
        };
        let env: Vec<serde_json::Value> = (0..3).map(map).collect();
        let from = serde_json::json!([{"configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}]);
        let container = serde_json::json!({"name": "c", "env": env, "envFrom": from});
        let (maps, secrets) = referenced(&serde_json::from_value(container).unwrap());
        assert_eq!((Vec::from_iter(maps), Vec::from_iter(secrets)), (vec!["m".to_owned()], vec!["s".to_owned()]));
    }

    #[test]
    fn service_links() {
        let service = Service {
            metadata: meta("foo-service"),
            spec: Some(ServiceSpec {
                cluster_ip: Some("10.43.0.7".into()),
                ports: Some(vec![ServicePort { port: 8765, ..Default::default() }]),
                ..Default::default()
            }),
            ..Default::default()
        };
        let pod = Pod { metadata: meta("web"), ..Default::default() };
        let env: BTreeMap<_, _> = service_variables(&pod, [&service]).into_iter().collect();
        for (key, value) in [
            ("FOO_SERVICE_SERVICE_HOST", "10.43.0.7"),
            ("FOO_SERVICE_SERVICE_PORT", "8765"),
            ("FOO_SERVICE_PORT", "tcp://10.43.0.7:8765"),
            ("FOO_SERVICE_PORT_8765_TCP", "tcp://10.43.0.7:8765"),
            ("FOO_SERVICE_PORT_8765_TCP_PROTO", "tcp"),
            ("FOO_SERVICE_PORT_8765_TCP_PORT", "8765"),
            ("FOO_SERVICE_PORT_8765_TCP_ADDR", "10.43.0.7"),
        ] {
            assert_eq!(env.get(key).map(String::as_str), Some(value), "{key}");
        }
    }

    #[test]
    fn maps_are_quoted() {
        let map = BTreeMap::from([("a".to_string(), "x\"y".to_string()), ("b".to_string(), "l1\nl2".to_string())]);
        assert_eq!(format_map(Some(&map)), "a=\"x\\\"y\"\nb=\"l1\\nl2\"");
    }
}
