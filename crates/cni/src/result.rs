//! What ADD answers, in one form for all versions of the specification; [`AddResult::to_version`] and
//! [`AddResult::parse`] translate at the edge.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{CniError, code};
use api::cidr::Cidr;

/// Oldest first. The last is what our plug-ins implement.
pub const VERSIONS: &[&str] = &["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// What a plug-in may answer, and what it may say besides: no result is nearly as long.
pub(crate) const MAX_OUTPUT: u64 = 4 << 20;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AddResult {
    #[serde(default, rename = "cniVersion")]
    pub cni_version: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpConfig>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    #[serde(default)]
    pub dns: Dns,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The namespace it lives in; empty for the host's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    #[serde(default, rename = "socketPath", skip_serializing_if = "Option::is_none")]
    pub socket_path: Option<String>,
    #[serde(default, rename = "pciID", skip_serializing_if = "Option::is_none")]
    pub pci_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IpConfig {
    /// Index into `interfaces`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    pub address: Cidr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    pub dst: Cidr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dns {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl AddResult {
    /// Reads a result of any version; an absent version is 0.1.0, as the specification says.
    pub fn parse(value: &Value) -> Result<Self, CniError> {
        let version = value.get("cniVersion").and_then(Value::as_str).filter(|v| !v.is_empty()).unwrap_or("0.1.0");
        let undecodable = |error: serde_json::Error| {
            CniError::new(code::DECODING_FAILURE, "failed to decode result", error.to_string())
        };
        if !value.is_object() {
            return Err(CniError::new(code::DECODING_FAILURE, "failed to decode result", "not an object"));
        }
        let mut plain = value.clone();
        drop_nulls(&mut plain);
        match version {
            "0.1.0" | "0.2.0" => Legacy::deserialize(plain).map_err(undecodable).map(|legacy| legacy.modern(version)),
            known if VERSIONS.contains(&known) => Self::deserialize(plain).map_err(undecodable),
            other => Err(CniError::new(
                code::INCOMPATIBLE_VERSION,
                format!("unsupported CNI result version {other:?}"),
                format!("supported versions are {VERSIONS:?}"),
            )),
        }
    }

    /// The JSON a caller of `version` expects.
    pub fn to_version(&self, version: &str) -> Value {
        let version = if version.is_empty() { "0.1.0" } else { version };
        match version {
            "0.1.0" | "0.2.0" => Legacy::from_modern(self, version),
            _ => {
                let mut value = json!(AddResult { cni_version: version.to_owned(), ..self.clone() });
                if let "0.3.0" | "0.3.1" | "0.4.0" = version {
                    for ip in value.get_mut("ips").and_then(Value::as_array_mut).into_iter().flatten() {
                        let family = if ip["address"].as_str().is_some_and(|a| a.contains(':')) { "6" } else { "4" };
                        ip["version"] = json!(family);
                    }
                }
                value
            }
        }
    }

    /// Addresses of the interfaces inside a sandbox: those of the pod.
    pub fn pod_addresses(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.ips
            .iter()
            .filter(|ip| match ip.interface {
                Some(index) => self.interfaces.get(index).is_none_or(|i| !i.sandbox.is_empty()),
                None => true,
            })
            .map(|ip| ip.address)
    }
}

/// Versions 0.1 and 0.2: at most one address per family, no interfaces.
#[derive(Serialize, Deserialize)]
struct Legacy {
    #[serde(default, rename = "cniVersion")]
    cni_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ip4: Option<LegacyIp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ip6: Option<LegacyIp>,
    #[serde(default)]
    dns: Dns,
}

#[derive(Serialize, Deserialize)]
struct LegacyIp {
    ip: Cidr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

impl Legacy {
    fn modern(self, version: &str) -> AddResult {
        let mut result = AddResult { cni_version: version.to_owned(), dns: self.dns, ..AddResult::default() };
        for ip in [self.ip4, self.ip6].into_iter().flatten() {
            result.ips.push(IpConfig { interface: None, address: ip.ip, gateway: ip.gateway });
            result.routes.extend(ip.routes);
        }
        result
    }

    fn from_modern(result: &AddResult, version: &str) -> Value {
        let family = |v6: bool| {
            let ip = result.ips.iter().find(|ip| ip.address.is_v6() == v6)?;
            let routes = result.routes.iter().filter(|route| route.dst.is_v6() == v6).cloned().collect();
            Some(LegacyIp { ip: ip.address, gateway: ip.gateway, routes })
        };
        json!(Legacy {
            cni_version: version.to_owned(),
            ip4: family(false),
            ip6: family(true),
            dns: result.dns.clone(),
        })
    }
}

/// A member that is null is one that is not there: the standard's own decoder takes them so, and programs write them.
pub(crate) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(elements) => elements.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Compares dotted versions by number; an unreadable part counts as zero.
pub fn version_at_least(version: &str, floor: &str) -> bool {
    let parts = |text: &str| -> [u32; 3] {
        let mut numbers = text.split('.').map(|part| part.parse().unwrap_or(0));
        std::array::from_fn(|_| numbers.next().unwrap_or(0))
    };
    parts(version) >= parts(floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_between_versions() {
        let modern = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "br0"}, {"name": "eth0", "mac": "00:11:22:33:44:55", "sandbox": "/ns"}],
            "ips": [
                {"interface": 1, "address": "10.0.0.2/24", "gateway": "10.0.0.1"},
                {"interface": 1, "address": "fd00::2/64"},
            ],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00::1"}],
            "dns": {"nameservers": ["1.1.1.1"]},
        });
        let result = AddResult::parse(&modern).unwrap();
        assert_eq!(result.to_version("1.0.0"), modern);
        let old = result.to_version("0.3.1");
        assert_eq!(old["ips"][0]["version"], "4");
        assert_eq!(old["ips"][1]["version"], "6");
        assert_eq!(
            result.to_version("0.2.0"),
            json!({
                "cniVersion": "0.2.0",
                "ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0"}]},
                "ip6": {"ip": "fd00::2/64", "routes": [{"dst": "::/0", "gw": "fd00::1"}]},
                "dns": {"nameservers": ["1.1.1.1"]},
            })
        );
        let back = AddResult::parse(&result.to_version("0.2.0")).unwrap();
        assert_eq!(back.ips.len(), 2);
        assert_eq!(back.routes.len(), 2);
    }

    #[test]
    fn unknown_versions_and_shapes_are_refused() {
        for value in
            [json!({"cniVersion": "9.0.0"}), json!({"cniVersion": "1.0.0", "ips": [{"address": "x"}]}), json!([])]
        {
            assert!(AddResult::parse(&value).is_err(), "{value}");
        }
    }

    #[test]
    fn what_is_not_there_may_be_null() {
        for version in VERSIONS {
            let empty = AddResult { cni_version: (*version).into(), ..AddResult::default() };
            assert_eq!(empty.to_version(version), json!({"cniVersion": version, "dns": {}}));
            let nulls =
                json!({"cniVersion": version, "ips": null, "ip4": null, "routes": null, "dns": {"search": null}});
            assert_eq!(AddResult::parse(&nulls).unwrap(), empty);
        }
    }

    #[test]
    fn versions_compare_by_number() {
        for (version, floor, expected) in
            [("0.3.1", "0.4.0", false), ("0.4.0", "0.4.0", true), ("1.1.0", "0.4.0", true), ("", "0.1.0", false)]
        {
            assert_eq!(version_at_least(version, floor), expected, "{version} >= {floor}");
        }
    }
}
