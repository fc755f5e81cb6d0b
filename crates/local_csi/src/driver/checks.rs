//! What requests must say, and what it means. Pure.

use std::path::Path;

use csi::tonic::Status;
use csi::v1::{self, AccessType};
use nix::mount::MsFlags;

pub(super) fn check_id(what: &str, id: &str) -> Result<(), Status> {
    match api::node_volumes::is_id(id) {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!("invalid {what} name {id:?}"))),
    }
}

/// The code that CSI has for it; whoever asked asks again.
pub(super) fn pending(folder: &Path) -> Status {
    let id = folder.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    Status::aborted(format!("an operation with {id} is under way"))
}

pub(super) fn check_target(path: &Path) -> Result<(), Status> {
    match path.is_absolute() && !path.components().any(|part| part == std::path::Component::ParentDir) {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!("invalid path {:?}", path.display()))),
    }
}

pub(super) fn check_range(range: &v1::CapacityRange) -> Result<(), Status> {
    let is_fine = range.required_bytes >= 0
        && range.limit_bytes >= 0
        && (range.limit_bytes == 0 || range.limit_bytes >= range.required_bytes);
    if is_fine { Ok(()) } else { Err(Status::invalid_argument(format!("invalid capacity range {range:?}"))) }
}

/// How folders are used.
pub(crate) fn capabilities() -> Vec<v1::VolumeCapability> {
    vec![v1::VolumeCapability::mount(v1::MountVolume::default(), v1::AccessMode::SingleNodeWriter)]
}

pub(super) fn check_capabilities(wanted: &[v1::VolumeCapability]) -> Result<(), Status> {
    if wanted.is_empty() {
        return Err(Status::invalid_argument("it is not said how the volume is used"));
    }
    let is_block = |one: &v1::VolumeCapability| matches!(one.access_type, Some(AccessType::Block(_)));
    if wanted.iter().any(is_block) {
        return Err(Status::invalid_argument("volumes are folders and cannot be used as block devices"));
    }
    Ok(())
}

/// What the volume's mount options come to: its folder is mounted as a folder.
pub(super) fn mount_flags(wanted: Option<&v1::VolumeCapability>) -> Result<MsFlags, Status> {
    let Some(AccessType::Mount(mount)) = wanted.and_then(|wanted| wanted.access_type.as_ref()) else {
        return Ok(MsFlags::empty());
    };
    files::bind_flags(&mount.mount_flags).map_err(|error| Status::invalid_argument(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_targets_are_plain_paths() {
        for (path, fine) in [("/a/b", true), ("a", false), ("/a/../b", false), ("", false)] {
            assert_eq!(check_target(Path::new(path)).is_ok(), fine, "{path:?}");
        }
    }
}
