//! Which disk of which iSCSI target is meant, and where it is below the kubelet's directory, in upstream's layout.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ISCSIPersistentVolumeSource, ISCSIVolumeSource, SecretReference};
use serde::{Deserialize, Serialize};

use crate::volumes::error::Cause;

const PORT: u16 = 3260;
const DEFAULT_IFACE: &str = "default";
/// What names of targets begin with.
const NAME_TYPES: [&str; 3] = ["iqn.", "eui.", "naa."];
/// The longest name of a file.
const MAX_PART: usize = 255;

/// A disk, with what must be known to log out of its target: upstream's fields of `iscsi.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Disk {
    /// Of the PersistentVolume, or of the volume in its pod.
    pub(super) vol_name: String,
    /// The ways to the target, without repetition; the first one is the target portal.
    pub(super) portals: Vec<String>,
    pub(super) iqn: String,
    pub(super) lun: String,
    /// The interface that is configured on the node.
    pub(super) init_iface: String,
    /// The interface that is used: that one, or a copy of it with another name of the initiator.
    pub(super) iface: String,
    pub(super) initiator_name: String,
}

/// How a target knows who asks.
#[derive(Clone, Default)]
pub(crate) struct Chap {
    pub(super) in_discovery: bool,
    pub(super) in_session: bool,
    /// Settings of iscsiadm's, by their names.
    pub(super) secret: BTreeMap<String, String>,
}

impl Disk {
    pub(super) fn new(vol_name: &str, source: &ISCSIPersistentVolumeSource) -> Disk {
        let further = source.portals.iter().flatten();
        let mut portals: Vec<String> = Vec::new();
        for portal in std::iter::once(&source.target_portal).chain(further).map(|text| with_port(text)) {
            if !portals.contains(&portal) {
                portals.push(portal);
            }
        }
        let init_iface = source.iscsi_interface.clone().filter(|name| !name.is_empty());
        let init_iface = init_iface.unwrap_or_else(|| DEFAULT_IFACE.to_owned());
        let initiator_name = source.initiator_name.clone().unwrap_or_default();
        let iface = match initiator_name.is_empty() {
            true => init_iface.clone(),
            false => format!("{}:{vol_name}", portals.first().map(String::as_str).unwrap_or_default()),
        };
        let (iqn, lun) = (source.iqn.clone(), source.lun.to_string());
        Disk { vol_name: vol_name.to_owned(), portals, iqn, lun, init_iface, iface, initiator_name }
    }

    /// The directory of the disk, below the plug-in's for its mode. It also tells disks apart.
    pub(super) fn place(&self) -> PathBuf {
        let portal = self.portals.first().map(String::as_str).unwrap_or_default();
        PathBuf::from(format!("iface-{}", self.iface)).join(format!("{portal}-{}-lun-{}", self.iqn, self.lun))
    }

    /// What the name of a disk's directory says, for one without a readable record.
    pub(super) fn of_place(iface_dir: &str, name: &str) -> Option<Disk> {
        let iface = iface_dir.strip_prefix("iface-")?;
        let at = NAME_TYPES.iter().filter_map(|kind| name.find(&format!("-{kind}"))).min()?;
        let (portal, rest) = (name.get(..at)?, name.get(at + 1..)?);
        let (iqn, lun) = rest.rsplit_once("-lun-")?;
        lun.parse::<u32>().ok()?;
        Some(Disk {
            portals: vec![portal.to_owned()],
            iqn: iqn.to_owned(),
            lun: lun.to_owned(),
            init_iface: iface.to_owned(),
            iface: iface.to_owned(),
            ..Disk::default()
        })
    }

    /// Whether the interface was made for this disk alone.
    pub(super) fn has_own_iface(&self) -> bool {
        !self.initiator_name.is_empty() && self.iface != self.init_iface
    }

    pub(super) fn is_same_unit(&self, other: &Disk) -> bool {
        (&self.iqn, &self.lun) == (&other.iqn, &other.lun)
    }

    /// All of it becomes parts of paths and arguments of a program.
    pub(super) fn check(&self) -> Result<(), Cause> {
        let portals = self.portals.iter().map(|portal| ("portal", portal));
        let names = [("iqn", &self.iqn), ("interface", &self.init_iface), ("interface", &self.iface)];
        for (what, name) in portals.chain(names) {
            let is_plain = !name.is_empty()
                && name.len() <= MAX_PART
                && !name.starts_with(['-', '.'])
                && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
            if !is_plain {
                let why = "must consist of visible characters other than '/' and not begin with '-' or '.'".to_owned();
                return Err(Cause::Name { what, name: name.clone(), why });
            }
        }
        match NAME_TYPES.iter().any(|kind| self.iqn.starts_with(kind)) {
            true => Ok(()),
            false => {
                let why = "must be valid format starting with iqn, eui, or naa".to_owned();
                Err(Cause::Name { what: "iqn", name: self.iqn.clone(), why })
            }
        }
    }
}

fn with_port(portal: &str) -> String {
    match portal.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{PORT}"),
        Err(_) if portal.contains("]:") || (portal.contains(':') && !portal.ends_with(']')) => portal.to_owned(),
        Err(_) => format!("{portal}:{PORT}"),
    }
}

/// The source of a volume in a pod, as a PersistentVolume's: its secret is of the pod's namespace.
pub(in crate::volumes) fn persistent(source: &ISCSIVolumeSource, namespace: &str) -> ISCSIPersistentVolumeSource {
    let source = source.clone();
    ISCSIPersistentVolumeSource {
        chap_auth_discovery: source.chap_auth_discovery,
        chap_auth_session: source.chap_auth_session,
        fs_type: source.fs_type,
        initiator_name: source.initiator_name,
        iqn: source.iqn,
        iscsi_interface: source.iscsi_interface,
        lun: source.lun,
        portals: source.portals,
        read_only: source.read_only,
        secret_ref: source
            .secret_ref
            .map(|secret| SecretReference { name: Some(secret.name), namespace: Some(namespace.to_owned()) }),
        target_portal: source.target_portal,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn disk(source: serde_json::Value) -> Disk {
        Disk::new("pv", &serde_json::from_value(source).unwrap())
    }

    #[test]
    fn portals_have_ports_and_are_there_once() {
        for (portal, expected) in [
            ("10.0.0.1", "10.0.0.1:3260"),
            ("10.0.0.1:860", "10.0.0.1:860"),
            ("fd00::1", "[fd00::1]:3260"),
            ("[fd00::1]", "[fd00::1]:3260"),
            ("[fd00::1]:860", "[fd00::1]:860"),
            ("storage-1", "storage-1:3260"),
        ] {
            assert_eq!(with_port(portal), expected);
        }
        let disk = disk(
            json!({"targetPortal": "10.0.0.1", "iqn": "iqn.x", "lun": 1, "portals": ["10.0.0.2", "10.0.0.1:3260"]}),
        );
        assert_eq!(disk.portals, ["10.0.0.1:3260", "10.0.0.2:3260"]);
    }

    #[test]
    fn a_place_says_which_disk_it_is_of() {
        for (portal, iqn) in
            [("10.0.0.1:3260", "iqn.2003-01.org.x:a-lun-b"), ("storage-1:3260", "eui.02004567a425678d")]
        {
            let disk = disk(json!({"targetPortal": portal, "iqn": iqn, "lun": 7}));
            let place = disk.place();
            assert_eq!(place.to_str().unwrap(), format!("iface-default/{portal}-{iqn}-lun-7"));
            let (dir, name) = place.to_str().unwrap().split_once('/').unwrap();
            assert_eq!(Disk::of_place(dir, name), Some(Disk { vol_name: String::new(), ..disk }));
        }
        for (dir, name) in [("iface-x", "nothing"), ("iface-x", "p-iqn.a-lun-b"), ("x", "p-iqn.a-lun-1")] {
            assert_eq!(Disk::of_place(dir, name), None, "{dir} {name}");
        }
    }

    #[test]
    fn records_are_upstreams() {
        let own = disk(json!({"targetPortal": "h", "iqn": "iqn.x", "lun": 0, "initiatorName": "iqn.me"}));
        let expected = json!({
            "VolName": "pv", "Portals": ["h:3260"], "Iqn": "iqn.x", "Lun": "0", "InitIface": "default",
            "Iface": "h:3260:pv", "InitiatorName": "iqn.me",
        });
        assert_eq!(serde_json::to_value(&own).unwrap(), expected);
        let mut theirs = expected;
        theirs["MetricsProvider"] = json!(null);
        assert_eq!(serde_json::from_value::<Disk>(theirs).unwrap(), own);
        assert!(own.has_own_iface());
    }

    #[test]
    fn security_names_stay_in_their_places() {
        let good = json!({"targetPortal": "10.0.0.1", "iqn": "iqn.2003-01.org.x:a", "lun": 0});
        assert!(disk(good.clone()).check().is_ok());
        for (field, bad) in [
            ("targetPortal", "../../x"),
            ("targetPortal", "-o"),
            ("iqn", "iqn.a/../b"),
            ("iqn", "iqn.a b"),
            ("iqn", "x"),
            ("iscsiInterface", ".."),
            ("iscsiInterface", "a\nb"),
        ] {
            let mut source = good.clone();
            source[field] = json!(bad);
            assert!(disk(source).check().is_err(), "{field} {bad:?}");
        }
    }
}
