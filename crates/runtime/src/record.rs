//! What the runtime and its shims keep on disk, and how it is written: whole files, replaced atomically.
//!
//! A sandbox is a directory `sandboxes/<id>` with `sandbox.json` (ours) and `shim.json` (its shim's); a container is a
//! directory `containers/<id>` with `container.json` and `spec.json` (ours) and `status.json` (the shim's). Each file
//! has one writer, so nothing is locked, and after a restart of either side the files say what is. `spec.json` is a link: what
//! a container is started with has values of Secrets in it, and is kept in memory, among the files of this boot.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use cri::v1;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A directory that only root enters, whoever made it: what images bring, set-id files among it, is for containers.
pub(crate) fn private_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

/// `sandbox.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SandboxRecord {
    pub(crate) id: String,
    pub(crate) config: v1::PodSandboxConfig,
    pub(crate) runtime_handler: String,
    /// Nanoseconds since 1970, as all times here.
    pub(crate) created_at: i64,
    /// Set up completely: before that, a record is what a crash left of RunPodSandbox.
    pub(crate) complete: bool,
    pub(crate) stopped: bool,
    pub(crate) ips: Vec<String>,
    /// Boot of the machine in which its processes run.
    pub(crate) boot_id: String,
}

/// `shim.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ShimRecord {
    pub(crate) pid: i32,
    pub(crate) pause_pid: i32,
}

/// `container.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerRecord {
    pub(crate) id: String,
    pub(crate) sandbox: String,
    pub(crate) config: v1::ContainerConfig,
    /// Id of the image (digest of its configuration).
    pub(crate) image_id: String,
    /// What the kubelet shows as imageID: a repository digest where there is one.
    pub(crate) image_ref: String,
    pub(crate) created_at: i64,
    pub(crate) log_path: String,
    pub(crate) cgroup: String,
    pub(crate) stop_signal: i32,
    /// Resources as last updated.
    pub(crate) resources: Option<v1::LinuxContainerResources>,
    /// Images whose content is mounted as volumes.
    pub(crate) volume_images: Vec<String>,
}

/// `status.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StatusRecord {
    pub(crate) pid: i32,
    pub(crate) started_at: i64,
    pub(crate) finished_at: i64,
    pub(crate) exit_code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

/// Replaces `path` with the JSON of `value`: readers see the old file or the new one, also after a crash.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let bytes = serde_json::to_vec(value)?;
    write_bytes(path, &bytes)
}

pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    std::fs::rename(&temporary, path)
}

/// Writes what a container is started with to `file`, which is in memory, and has `spec.json` lead there.
pub(crate) fn write_spec(directory: &Path, file: &Path, spec: &crate::spec::Spec) -> io::Result<()> {
    let file = std::path::absolute(file)?;
    write(&file, spec)?;
    std::os::unix::fs::symlink(&file, directory.join("spec.json"))
}

/// Removes what [`write_spec`] has written; it may be gone, with its boot.
pub(crate) fn remove_spec(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let bytes = std::fs::read(path)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())))
}

/// Whether a record that cannot be read is what a crash left, rather than one that this process cannot read now.
pub(crate) fn is_half_written(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
}

/// The record of a sandbox's shim; empty when the shim never came to write it.
pub(crate) fn shim(sandbox: &Path) -> io::Result<ShimRecord> {
    match read(&sandbox.join("shim.json")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ShimRecord::default()),
        other => other,
    }
}

/// The layers that the containers of these directories stand on. All or nothing: what is not in the answer is garbage.
pub(crate) fn used_layers<'a>(containers: impl Iterator<Item = &'a Path>) -> io::Result<HashSet<String>> {
    let mut layers = HashSet::new();
    for directory in containers {
        match read::<crate::spec::Spec>(&directory.join("spec.json")) {
            Ok(spec) => {
                layers.extend(spec.rootfs.lower);
                for mount in spec.mounts {
                    if let crate::spec::MountSource::Image { lower, .. } = mount.source {
                        layers.extend(lower);
                    }
                }
            }
            // Being made, removed meanwhile, or of an earlier boot: it stands on nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(layers)
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}

/// Changes at every boot: processes recorded under another value are gone, whoever has their pids now.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_string())
}

/// A fresh id of 64 hexadecimal digits, like those of every other runtime.
pub(crate) fn new_id() -> io::Result<String> {
    use std::io::Read;
    let mut bytes = [0u8; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
