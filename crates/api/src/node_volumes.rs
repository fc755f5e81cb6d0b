//! `NodeVolumes` of `local.cox/v1`: what the control plane asks of a node's own volumes, and what the node answers.
//!
//! There is one object per node, named after it. A controller writes `spec`, the node `status`, and the node may read and
//! write no more than that: it sees no claims and makes no volumes. A request that is not there any more asks for nothing;
//! in particular a folder is removed only when a request says so.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, Metadata, Resource};
use serde::{Deserialize, Serialize};

/// The driver, its provisioner, and the group of its API.
pub const DRIVER: &str = "local.cox";
/// The label that says which node a volume is on. Its value is the node's name.
pub const TOPOLOGY_KEY: &str = "local.cox/node";
pub const PLURAL: &str = "nodevolumes";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeVolumes {
    #[serde(deserialize_with = "crate::read::by_table")]
    pub metadata: ObjectMeta,
    pub spec: Requests,
    pub status: Answers,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requests {
    /// By id of the volume.
    pub volumes: BTreeMap<String, Request>,
    /// By id of the snapshot.
    pub snapshots: BTreeMap<String, Request>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Tells this request from all others; the answer repeats it.
    pub token: String,
    pub action: Action,
    /// At least so many bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub capacity: i64,
    /// What it begins as a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    Create,
    /// Volumes only.
    Expand,
    Delete,
    /// Snapshots only: is it there?
    Find,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    Volume(String),
    Snapshot(String),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answers {
    /// Bytes that can still be promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    pub volumes: BTreeMap<String, Answer>,
    pub snapshots: BTreeMap<String, Answer>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Answer {
    pub token: String,
    /// It was done, unless there is an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Of a snapshot: when it was taken, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,
    /// Of a snapshot: how large a volume made from it must be, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
}

/// Longer errors are cut.
pub const ERROR_LENGTH: usize = 1024;

crate::read_by_serde!(NodeVolumes);

impl Resource for NodeVolumes {
    const API_VERSION: &'static str = "local.cox/v1";
    const GROUP: &'static str = DRIVER;
    const KIND: &'static str = "NodeVolumes";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = PLURAL;
    type Scope = ClusterResourceScope;
}

impl Metadata for NodeVolumes {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Whether a volume or a snapshot can be called so: ids are names of folders, never paths, and those with a dot in front are
/// the driver's own.
pub fn is_id(id: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !id.is_empty() && id.len() <= 128 && !id.starts_with('.') && id.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_as_they_are_written() {
        let object: NodeVolumes = serde_json::from_value(serde_json::json!({
            "apiVersion": "local.cox/v1", "kind": "NodeVolumes", "metadata": { "name": "n" },
            "spec": {
                "volumes": { "pvc-1": { "token": "t", "action": "Create", "capacity": 5, "source": { "snapshot": "s" } } },
                "snapshots": { "s": { "token": "u", "action": "Find" } },
            },
        }))
        .unwrap();
        assert_eq!(object.spec.volumes["pvc-1"].source, Some(Source::Snapshot("s".into())));
        assert_eq!(object.spec.snapshots["s"].action, Action::Find);
        assert_eq!(object.status, Answers::default());
        let again: NodeVolumes = serde_json::from_str(&serde_json::to_string(&object).unwrap()).unwrap();
        assert_eq!(again, object);
    }

    #[test]
    fn security_ids_are_names_of_folders() {
        for (id, fine) in [
            ("pvc-1", true),
            ("a.b_c", true),
            ("", false),
            (".", false),
            ("..", false),
            (".pvc-1.new", false),
            ("a/b", false),
            ("../etc", false),
            ("a\0", false),
            (&"x".repeat(129), false),
        ] {
            assert_eq!(is_id(id), fine, "{id:?}");
        }
    }
}
