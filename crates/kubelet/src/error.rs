//! Why a pass over a pod could not be finished, by the stage that failed: what it says is upstream's text, and a stage that
//! tells of its failure has one event reason for it.
//! Not here: why a container is not started (`status::Waiting`), and volumes (`volumes::VolumeError`).

use std::io;
use std::path::PathBuf;

use crate::containers::{NotRecursive, RunsAsRoot};
use crate::dns::ResolverError;
use crate::env::EnvError;
use crate::objects::NotSynced;
use crate::pod_fields::NotDone;
use crate::runtime::CallError;
use crate::volumes::{TearDownError, VolumeError};

/// A pass that could not be finished; the next one starts over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SyncError {
    #[error(transparent)]
    Name(#[from] crate::names::Refused),
    #[error(transparent)]
    Runtime(#[from] CallError),
    #[error("error making pod data directories: {0}")]
    Directories(io::Error),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CgroupError {
    #[error("unable to ensure pod container exists: {0}")]
    Ensure(io::Error),
    #[error("limits of the resized pod: {0}")]
    Resize(io::Error),
}

impl CgroupError {
    /// The reason of the event that tells of it.
    pub(crate) const REASON: &str = "FailedCreatePodContainer";
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    /// There is no such class.
    #[error(transparent)]
    NoRuntimeClass(client::Error),
    #[error("failed to lookup RuntimeClass {name}: {source}")]
    RuntimeClass { name: String, source: client::Error },
    #[error(transparent)]
    Resolver(#[from] ResolverError),
    #[error(transparent)]
    Runtime(#[from] CallError),
}

impl SandboxError {
    /// The reason of the event that tells of it.
    pub(crate) const REASON: &str = "FailedCreatePodSandBox";

    /// What that event says.
    pub(crate) fn message(&self) -> String {
        format!("Failed to create pod sandbox: {self}")
    }
}

/// Why there is no configuration to make a container from; it waits with [`ConfigError::REASON`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error(transparent)]
    Image(CallError),
    #[error(transparent)]
    Resolver(#[from] ResolverError),
    #[error("seccomp profile {0}")]
    Profile(crate::names::Refused),
    #[error(transparent)]
    RunsAsRoot(#[from] RunsAsRoot),
    /// Something that the pod asks for cannot be had here.
    #[error(transparent)]
    Refused(#[from] NotDone),
    /// ConfigMaps or Secrets could not be read.
    #[error(transparent)]
    Objects(#[from] NotSynced),
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("unable to find target container {0}")]
    NoTarget(String),
}

impl ConfigError {
    /// Why the container waits.
    pub(crate) const REASON: &str = "CreateContainerConfigError";
}

/// Why a container cannot have a volume or a file of the kubelet's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    #[error("cannot find volume \"{volume}\" to mount into container \"{container}\"")]
    NoVolume { volume: String, container: String },
    #[error("cannot find volume \"{volume}\" to pass into container \"{container}\"")]
    NoDevice { volume: String, container: String },
    #[error("volume {0} has volumeMode Block, but is specified in volumeMounts")]
    IsDevice(String),
    #[error(transparent)]
    Expression(#[from] EnvError),
    #[error("error SubPath `{0}` must not be an absolute path")]
    AbsoluteSubPath(String),
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    SubPathLeaves(String),
    /// The cause would tell the pod's owner about the node's file system.
    #[error("failed to prepare subPath for volumeMount \"{volume}\" of container \"{container}\"")]
    SubPath { volume: String, container: String },
    /// The message that the container waits with.
    #[error("{0}")]
    Image(String),
    #[error(transparent)]
    ReadOnly(#[from] NotRecursive),
    /// The hosts file could not be made from this one.
    #[error("{}: {source}", path.display())]
    Hosts { path: PathBuf, source: io::Error },
    /// There is no file for the termination message.
    #[error(transparent)]
    TerminationMessage(io::Error),
}

/// What a pod that has ended still holds.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReleaseError {
    #[error(transparent)]
    Volumes(#[from] TearDownError),
    #[error(transparent)]
    Cgroup(io::Error),
}

/// Why a pod has not ended yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndError {
    #[error(transparent)]
    Runtime(#[from] CallError),
    #[error(transparent)]
    Release(#[from] ReleaseError),
}

/// Why the containers of a pod were not resized.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResizeError {
    #[error("cannot decrease memory limits: {0}")]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Runtime(#[from] CallError),
}

/// Why limits of memory are not lowered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error(transparent)]
    Stats(#[from] CallError),
    /// Of the pod and its containers, at least one.
    #[error("{}", listed(.0))]
    InUse(Vec<MemoryInUse>),
}

/// Less memory than is in use would end a container.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryInUse {
    #[error("missing pod memory usage")]
    PodUnknown,
    #[error("attempting to set pod memory limit ({limit}) below current usage ({usage})")]
    Pod { limit: i64, usage: u64 },
    #[error("missing container {0:?} memory usage")]
    ContainerUnknown(String),
    #[error("attempting to set container {name:?} memory limit ({limit}) below current usage ({usage})")]
    Container { name: String, limit: i64, usage: u64 },
}

/// One, or several in brackets, as Go joins them.
fn listed(errors: &[MemoryInUse]) -> String {
    match errors {
        [one] => one.to_string(),
        several => format!("[{}]", several.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_say_what_upstream_says() {
        let call = || CallError::from(cri::tonic::Status::unknown("no network"));
        let resolver = || ResolverError {
            path: "/etc/resolv.conf".into(),
            source: std::io::Error::from(std::io::ErrorKind::NotFound),
        };
        let missing = "open /etc/resolv.conf: no such file or directory";
        for (error, message) in [
            (SandboxError::from(call()), r#"rpc error: code = Unknown desc = no network"#),
            (resolver().into(), missing),
        ] {
            assert_eq!(error.message(), format!("Failed to create pod sandbox: {message}"));
            assert_eq!(SyncError::from(error).to_string(), message);
        }
        let missing = EnvError::NoObject { kind: "secret", name: "s".into() };
        let config = ConfigError::from(MountError::from(missing.clone()));
        assert_eq!(
            (config.to_string(), ConfigError::from(missing).to_string()),
            ("secret \"s\" not found".to_string(), "secret \"s\" not found".to_string())
        );
        let ensure = SyncError::from(CgroupError::Ensure(io::Error::other("full")));
        assert_eq!(ensure.to_string(), "unable to ensure pod container exists: full");
        let (pod, web) = (MemoryInUse::PodUnknown, MemoryInUse::Container { name: "web".into(), limit: 1, usage: 2 });
        let one = "attempting to set container \"web\" memory limit (1) below current usage (2)";
        let resize = |errors| ResizeError::from(MemoryError::InUse(errors)).to_string();
        assert_eq!(resize(vec![pod, web]), format!("cannot decrease memory limits: [missing pod memory usage, {one}]"));
        let web = MemoryInUse::Container { name: "web".into(), limit: 1, usage: 2 };
        assert_eq!(resize(vec![web]), format!("cannot decrease memory limits: {one}"));
    }
}
