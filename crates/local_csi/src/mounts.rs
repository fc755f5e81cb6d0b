//! What is mounted where, by the kernel's own table.

use std::io;
use std::path::{Path, PathBuf};

pub(crate) fn is_mount_point(path: &Path) -> io::Result<bool> {
    let table = files::mount_table()?;
    let wanted = resolved(path)?;
    Ok(files::mounts(&table).any(|mount| mount.point == wanted))
}

/// A path as the kernel writes it: without links on the way. One that is not there is as it is.
pub(crate) fn resolved(path: &Path) -> io::Result<PathBuf> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(path.to_path_buf()) };
    match parent.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_path_buf()),
        // The last part is not looked at: it may be a mount that does not answer.
        parent => Ok(parent?.join(name)),
    }
}

/// Whether the files of a volume are what is mounted at a place.
pub(crate) fn is_shown_at(table: &[u8], place: &Path, id: &str) -> bool {
    let end = Path::new(id).join("data");
    files::mounts(table).any(|mount| mount.point == place && mount.root.ends_with(&end))
}

/// Whether the files of a volume are bound anywhere, or something is mounted among them. Mounts are told by their names alone:
/// those of others may not answer.
pub(crate) fn is_used(table: &[u8], data: &Path, id: &str) -> bool {
    let end = Path::new(id).join("data");
    files::mounts(table).any(|mount| mount.root.ends_with(&end) || mount.point.starts_with(data))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use nix::mount::{MsFlags, mount, umount};

    use super::*;

    #[test]
    fn security_a_volume_that_is_mounted_anywhere_is_used() {
        let data = Path::new("/var/my store/volumes/pvc-1/data");
        for (line, expected) in [
            ("1 2 8:1 / / rw shared:1 - ext4 /dev/sda rw", false),
            ("1 2 8:1 /var/my\\040store/volumes/pvc-1/data /pods/u/mount rw - ext4 /dev/sda rw", true),
            ("1 2 8:1 /volumes/pvc-1/data /pods/my\\040dir/mount rw - ext4 /dev/sdb rw", true),
            ("1 2 8:1 /volumes/pvc-11/data /pods/u/mount rw - ext4 /dev/sda rw", false),
            ("1 2 0:9 / /var/my\\040store/volumes/pvc-1/data/inner rw - tmpfs tmpfs rw", true),
            ("1 2 0:9 / /var/my\\040store/volumes/pvc-2/data/inner rw - tmpfs tmpfs rw", false),
        ] {
            assert_eq!(is_used(line.as_bytes(), data, "pvc-1"), expected, "{line}");
        }
    }

    #[test]
    fn mount_points_are_found_behind_links() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::create_dir_all(real.join("mount")).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let point = real.join("mount");
        mount(Some("tmpfs"), &point, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let found = (is_mount_point(&point), is_mount_point(&link.join("mount")));
        umount(&point).unwrap();
        assert!(found.0.unwrap() && found.1.unwrap());
        assert!(!is_mount_point(&link.join("mount")).unwrap() && !is_mount_point(&link.join("a/b")).unwrap());
    }
}
