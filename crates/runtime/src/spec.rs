//! What a shim needs to know to run a container: the agreement between the runtime and its shims.
//!
//! Flow: `container::create` translates a CRI request and an image into a [`Spec`], writes it beside the container,
//! and the pod's shim reads it when told to start. Plain data: everything is decided before it is written.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cgroup::Limits;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Spec {
    pub(crate) process: Process,
    pub(crate) rootfs: Rootfs,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) devices: Vec<Device>,
    /// Every device of the host, as privileged containers get.
    pub(crate) all_devices: bool,
    pub(crate) masked_paths: Vec<String>,
    pub(crate) readonly_paths: Vec<String>,
    pub(crate) namespaces: Namespaces,
    /// Below the root of every cgroup hierarchy.
    pub(crate) cgroup: String,
    pub(crate) resources: Resources,
    pub(crate) log_path: Option<PathBuf>,
    pub(crate) stdin: bool,
    pub(crate) stdin_once: bool,
    /// The program that runs the container instead of the shim itself.
    pub(crate) oci_runtime: Option<PathBuf>,
    /// For that program: the system calls allowed, in its own words.
    pub(crate) seccomp_profile: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Process {
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<String>,
    pub(crate) cwd: String,
    pub(crate) user: User,
    pub(crate) tty: bool,
    pub(crate) capabilities: Capabilities,
    pub(crate) no_new_privs: bool,
    /// Compiled filters in base64, in the order they are installed.
    pub(crate) seccomp: Vec<String>,
    pub(crate) apparmor: Option<String>,
    pub(crate) oom_score_adj: i64,
}

/// Who the process is. Names and memberships are looked up in the container's own /etc/passwd and /etc/group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct User {
    /// `uid`, `name`, `uid:gid` or `name:group`; empty is root.
    pub(crate) name: String,
    pub(crate) group: Option<u32>,
    pub(crate) supplemental: Vec<u32>,
    /// Groups of the image's /etc/group do not count.
    pub(crate) strict_groups: bool,
}

/// Capability sets as bit masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Capabilities {
    pub(crate) bounding: u64,
    pub(crate) permitted: u64,
    pub(crate) effective: u64,
    pub(crate) inheritable: u64,
    pub(crate) ambient: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rootfs {
    /// Where layers live; `lower` is relative to it, so that many layers fit into one mount call.
    pub(crate) layers: PathBuf,
    /// Topmost first, as overlayfs wants them.
    pub(crate) lower: Vec<String>,
    pub(crate) upper: PathBuf,
    pub(crate) work: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) readonly: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Mount {
    pub(crate) target: String,
    pub(crate) source: MountSource,
    pub(crate) readonly: bool,
    pub(crate) recursive_readonly: bool,
    pub(crate) propagation: Propagation,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum MountSource {
    Bind(PathBuf),
    /// A filesystem of its own: type, flags, data.
    Filesystem {
        kind: String,
        flags: u64,
        data: String,
    },
    /// The content of an image, read-only: layers as in [`Rootfs`], and a path inside.
    Image {
        layers: PathBuf,
        lower: Vec<String>,
        sub_path: String,
    },
    /// The container's own cgroups.
    Cgroup,
}

impl Default for MountSource {
    fn default() -> Self {
        Self::Bind(PathBuf::new())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Device {
    pub(crate) host_path: PathBuf,
    pub(crate) container_path: String,
    /// Of `rwm`.
    pub(crate) permissions: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) enum Namespace {
    /// That of the pod's pause process.
    #[default]
    Pod,
    /// A new one.
    Own,
    /// The node's.
    Host,
    /// That of another process.
    Process(i32),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Namespaces {
    pub(crate) network: Namespace,
    pub(crate) ipc: Namespace,
    pub(crate) uts: Namespace,
    pub(crate) pid: Namespace,
}

/// What a container may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Resources {
    #[serde(flatten)]
    pub(crate) limits: Limits,
    /// Whether every device may be used, or only the usual ones and those of the spec.
    pub(crate) all_devices: bool,
}

/// What a shim needs to know to hold a pod together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PodSpec {
    pub(crate) hostname: String,
    /// `Own` or `Host` each; never `Pod`.
    pub(crate) namespaces: Namespaces,
    pub(crate) sysctls: BTreeMap<String, String>,
    pub(crate) cgroup: String,
    pub(crate) resources: Resources,
    pub(crate) oom_score_adj: i64,
}
