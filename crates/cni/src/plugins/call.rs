//! One call of a plug-in: the environment and the configuration on stdin, checked.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::is_valid_name;
use crate::error::{CniError, code};
use crate::result::{AddResult, VERSIONS, drop_nulls};
use netlink::is_valid_ifname;

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) container_id: String,
    /// Empty when the namespace is already gone (DEL).
    pub(super) netns: String,
    pub(super) ifname: String,
    pub(super) args: Vec<(String, String)>,
    pub(super) path: Vec<PathBuf>,
    pub(super) config: Value,
    pub(super) network: String,
    pub(super) version: String,
    pub(super) previous: Option<AddResult>,
}

impl Call {
    pub(super) fn from_process(command: &str, stdin: &[u8]) -> Result<Self, CniError> {
        Self::read(command, |name| std::env::var(name).unwrap_or_default(), stdin)
    }

    pub(super) fn read(command: &str, env: impl Fn(&str) -> String, stdin: &[u8]) -> Result<Self, CniError> {
        let (container_id, netns, ifname) = (env("CNI_CONTAINERID"), env("CNI_NETNS"), env("CNI_IFNAME"));
        let about_attachment = matches!(command, "ADD" | "CHECK" | "DEL");
        let required = [
            ("CNI_CONTAINERID", about_attachment, &container_id),
            ("CNI_NETNS", matches!(command, "ADD" | "CHECK"), &netns),
            ("CNI_IFNAME", about_attachment, &ifname),
        ];
        let missing: Vec<&str> = required.iter().filter(|(_, need, v)| *need && v.is_empty()).map(|r| r.0).collect();
        if !missing.is_empty() {
            let missing = missing.join(",");
            return Err(CniError::new(
                code::INVALID_ENVIRONMENT,
                format!("required env variables [{missing}] missing"),
                "",
            ));
        }
        if about_attachment && !is_valid_name(&container_id) {
            return Err(CniError::new(code::INVALID_ENVIRONMENT, "invalid characters in containerID", container_id));
        }
        if about_attachment && !is_valid_ifname(&ifname) {
            return Err(CniError::new(code::INVALID_ENVIRONMENT, "invalid interface name", ifname));
        }
        let mut config: Value = serde_json::from_slice(stdin).map_err(|error| {
            CniError::new(code::DECODING_FAILURE, "error unmarshall network config", error.to_string())
        })?;
        drop_nulls(&mut config);
        let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let network = text("name");
        if network.is_empty() {
            return Err(CniError::invalid_config("missing network name"));
        }
        if !is_valid_name(&network) {
            return Err(CniError::new(
                code::INVALID_NETWORK_CONFIG,
                "invalid characters found in network name",
                network,
            ));
        }
        let version = match text("cniVersion") {
            version if version.is_empty() => "0.1.0".to_owned(),
            version => version,
        };
        if !VERSIONS.contains(&version.as_str()) {
            return Err(CniError::new(
                code::INCOMPATIBLE_VERSION,
                "incompatible CNI versions",
                format!("config is {version:?}, plugin supports {VERSIONS:?}"),
            ));
        }
        let previous = config.get("prevResult").map(AddResult::parse).transpose()?;
        let path = env("CNI_PATH");
        Ok(Self {
            container_id,
            netns,
            ifname,
            args: parse_args(&env("CNI_ARGS"))?,
            path: std::env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect(),
            config,
            network,
            version,
            previous,
        })
    }

    /// The plug-in's own view of its configuration.
    pub(super) fn config<T: DeserializeOwned>(&self) -> Result<T, CniError> {
        T::deserialize(&self.config)
            .map_err(|error| CniError::new(code::DECODING_FAILURE, "failed to load netconf", error.to_string()))
    }

    pub(super) fn arg(&self, name: &str) -> Option<&str> {
        self.args.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// For plug-ins that only make sense after another one.
    pub(super) fn require_previous(&self) -> Result<&AddResult, CniError> {
        self.previous.as_ref().ok_or_else(|| CniError::invalid_config("must be called as chained plugin"))
    }

    /// The attachments that GC must leave alone.
    pub(super) fn valid_attachments(&self) -> Vec<(String, String)> {
        let list = self.config.get("cni.dev/valid-attachments").and_then(Value::as_array);
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        list.into_iter().flatten().map(|value| (text(value, "containerID"), text(value, "ifname"))).collect()
    }
}

fn parse_args(text: &str) -> Result<Vec<(String, String)>, CniError> {
    text.split(';')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
            None => Err(CniError::new(code::INVALID_ENVIRONMENT, format!("ARGS: invalid pair {pair:?}"), "")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(command: &str, env: &[(&str, &str)], stdin: &str) -> Result<Call, CniError> {
        let get = |name: &str| env.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned()).unwrap_or_default();
        Call::read(command, get, stdin.as_bytes())
    }

    #[test]
    fn calls_are_checked() {
        const FULL: &[(&str, &str)] = &[
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/ns"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "IgnoreUnknown=1;IP=10.0.0.9"),
            ("CNI_PATH", "/a:/b"),
        ];
        let config = r#"{"cniVersion": "0.3.1", "name": "n", "type": "bridge"}"#;
        let call = read("ADD", FULL, config).unwrap();
        assert_eq!(call.arg("ip"), Some("10.0.0.9"));
        assert_eq!(call.path.len(), 2);
        for (command, env, stdin, expected) in [
            ("ADD", &FULL[..1], config, code::INVALID_ENVIRONMENT),
            ("ADD", &[("CNI_CONTAINERID", "../x"), FULL[1], FULL[2]][..], config, code::INVALID_ENVIRONMENT),
            ("ADD", FULL, "{", code::DECODING_FAILURE),
            ("ADD", FULL, r#"{"cniVersion": "0.3.1"}"#, code::INVALID_NETWORK_CONFIG),
            ("ADD", FULL, r#"{"cniVersion": "9.0.0", "name": "n"}"#, code::INCOMPATIBLE_VERSION),
            (
                "DEL",
                &[("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0"), ("CNI_ARGS", "x")][..],
                config,
                code::INVALID_ENVIRONMENT,
            ),
        ] {
            assert_eq!(read(command, env, stdin).unwrap_err().code, expected, "{command} {stdin}");
        }
        // A namespace that is gone cannot be named.
        assert!(read("DEL", &[FULL[0], FULL[2]], config).is_ok());
    }
}
