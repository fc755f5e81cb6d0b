//! Network configuration on disk: a `.conflist` is a list of plug-ins, a `.conf` or `.json` a list of one.

use std::path::Path;

use api::sort::CompactSort as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::Error;

/// A list of plug-ins to run in order, under one network name.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    pub name: String,
    pub cni_version: String,
    pub disable_check: bool,
    pub disable_gc: bool,
    /// Each the plug-in's own object, untouched.
    pub plugins: Vec<Map<String, Value>>,
    /// The file's text, kept with cached results.
    pub source: String,
}

impl NetworkConfig {
    /// The first usable configuration in `dir`, by file name. Unusable files are skipped with a warning, as upstream's
    /// runtimes do: one broken file must not take the node down while a good one exists. `NoConfig` means that there is none, and
    /// nothing else: what is there and cannot be read is an error of its own.
    pub fn first_in(dir: &Path) -> Result<Self, Error> {
        let unreadable = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::NoConfig(dir.to_owned()),
            _ => Error::InvalidConfig { path: dir.to_owned(), cause: error.to_string() },
        };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|e| e == "conf" || e == "conflist" || e == "json") && !path.is_dir() {
                files.push(path);
            }
        }
        files.compact_sort();
        let mut first_error = None;
        for path in files {
            match Self::from_file(&path) {
                Ok(config) => return Ok(config),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "skipping network configuration");
                    first_error.get_or_insert(error);
                }
            }
        }
        Err(first_error.unwrap_or_else(|| Error::NoConfig(dir.to_owned())))
    }

    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let invalid = |cause: String| Error::InvalidConfig { path: path.to_owned(), cause };
        let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
        Self::parse(&text, path.extension().is_some_and(|e| e == "conflist")).map_err(invalid)
    }

    pub fn parse(text: &str, is_list: bool) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let Value::Object(object) = value else {
            return Err("not an object".into());
        };
        let string = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        // A list is also recognised by content: `.conf` files with `plugins` exist in the wild.
        let plugins: Vec<Map<String, Value>> = match (object.get("plugins"), is_list) {
            (Some(Value::Array(plugins)), _) => plugins
                .iter()
                .map(|plugin| plugin.as_object().cloned().ok_or("plugin is not an object".to_owned()))
                .collect::<Result<_, _>>()?,
            (_, true) => return Err("error parsing configuration list: no 'plugins' key".into()),
            (_, false) => vec![object.clone()],
        };
        if plugins.is_empty() {
            return Err("error parsing configuration list: no plugins in list".into());
        }
        for plugin in &plugins {
            let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
            // The type becomes a file name: a path would let a configuration run anything.
            if kind.is_empty() || kind.contains('/') {
                return Err("error parsing configuration: missing or invalid 'type'".into());
            }
        }
        let name = string("name");
        if !is_valid_name(&name) {
            return Err(if name.is_empty() {
                "error parsing configuration list: no name".to_owned()
            } else {
                format!("invalid characters found in network name {name:?}")
            });
        }
        let truthy = |key: &str| match object.get(key) {
            Some(Value::Bool(value)) => *value,
            Some(Value::String(value)) => value.eq_ignore_ascii_case("true"),
            _ => false,
        };
        Ok(Self {
            name,
            cni_version: best_version(&object),
            disable_check: truthy("disableCheck"),
            disable_gc: truthy("disableGC"),
            plugins,
            source: text.to_owned(),
        })
    }
}

/// `cniVersions` (1.1) lists alternatives: the highest we know wins.
fn best_version(object: &Map<String, Value>) -> String {
    let single = object.get("cniVersion").and_then(Value::as_str).unwrap_or_default();
    let listed = object.get("cniVersions").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let known = |version: &&str| crate::result::VERSIONS.iter().position(|v| v == version);
    let best = listed.chain([single]).filter(|v| known(v).is_some()).max_by_key(known).unwrap_or(single);
    best.to_owned()
}

/// The configuration of a node of ours: pods on a bridge, addresses from the node's pod ranges, host ports.
///
/// `masquerade` is for a single host. Between hosts leave it off and masquerade only what
/// leaves the cluster, so that pods see each other's addresses.
pub fn default_conflist(
    bridge: &str,
    pod_cidrs: &[api::cidr::Cidr],
    data_dir: &Path,
    mtu: Option<u32>,
    masquerade: bool,
) -> Value {
    let ranges: Vec<Value> = pod_cidrs.iter().map(|cidr| json!([{"subnet": cidr.network()}])).collect();
    let mut families: Vec<bool> = pod_cidrs.iter().map(api::cidr::Cidr::is_v6).collect();
    families.dedup();
    let routes: Vec<Value> = families.iter().map(|v6| json!({"dst": api::cidr::Cidr::default_route(*v6)})).collect();
    let mut main = json!({
        "type": "bridge",
        "bridge": bridge,
        "isGateway": true,
        "isDefaultGateway": true,
        "forceAddress": true,
        "hairpinMode": true,
        "ipMasq": masquerade,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": routes, "dataDir": data_dir},
    });
    if let Some(mtu) = mtu {
        main["mtu"] = json!(mtu);
    }
    json!({
        "cniVersion": "1.0.0",
        "name": "cox",
        "plugins": [main, {"type": "portmap", "capabilities": {"portMappings": true}}],
    })
}

/// Letters, digits, `_`, `.` and `-`, starting with a letter or digit: names become file names and chain names.
pub(crate) fn is_valid_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphanumeric())
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// A host port of a pod, in the shape of the `portMappings` capability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    #[serde(default, rename = "hostIP", skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_conf_and_conflist() {
        let seed = r#"{"cniVersion": "0.3.1", "name": "bridge", "type": "bridge", "bridge": "cnio0",
            "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.42.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}"#;
        let config = NetworkConfig::parse(seed, false).unwrap();
        assert_eq!((config.name.as_str(), config.cni_version.as_str(), config.plugins.len()), ("bridge", "0.3.1", 1));
        let list = r#"{"cniVersion": "0.4.0", "cniVersions": ["0.4.0", "1.0.0", "7.0.0"], "name": "n",
            "disableCheck": "true", "plugins": [{"type": "a"}, {"type": "b"}]}"#;
        let config = NetworkConfig::parse(list, true).unwrap();
        assert_eq!((config.cni_version.as_str(), config.plugins.len(), config.disable_check), ("1.0.0", 2, true));
    }

    #[test]
    fn refuses_broken_configurations() {
        for (text, is_list) in [
            ("", false),
            ("[]", false),
            (r#"{"name": "n"}"#, false),
            (r#"{"name": "n", "type": "../../bin/sh"}"#, false),
            (r#"{"name": "n/../x", "type": "bridge"}"#, false),
            (r#"{"type": "bridge"}"#, false),
            (r#"{"name": "n", "plugins": []}"#, true),
            (r#"{"name": "n", "type": "bridge"}"#, true),
            (r#"{"name": "n", "plugins": ["bridge"]}"#, true),
        ] {
            assert!(NetworkConfig::parse(text, is_list).is_err(), "{text}");
        }
    }

    #[test]
    fn the_first_usable_file_wins() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        for empty in [dir.path(), missing.as_path()] {
            assert!(matches!(NetworkConfig::first_in(empty), Err(Error::NoConfig(_))), "{}", empty.display());
        }
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("00-broken.conflist", "{");
        // Something is configured there: it cannot be read, and that is not the same as nothing.
        assert!(matches!(NetworkConfig::first_in(dir.path()), Err(Error::InvalidConfig { .. })));
        let file = dir.path().join("00-broken.conflist");
        assert!(matches!(NetworkConfig::first_in(&file), Err(Error::InvalidConfig { .. })));
        write("05-notes.txt", r#"{"name": "txt", "type": "bridge"}"#);
        write("20-late.conf", r#"{"name": "late", "type": "bridge"}"#);
        write("10-early.conflist", r#"{"name": "early", "plugins": [{"type": "bridge"}]}"#);
        assert_eq!(NetworkConfig::first_in(dir.path()).unwrap().name, "early");
    }
}
