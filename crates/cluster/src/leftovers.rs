//! What processes that have ended leave on a machine.

use std::path::Path;

use anyhow::{Context, Result};

pub(crate) fn remove_dir(dir: &Path) -> Result<()> {
    // Never through a mount that could not be undone: what it shows is not the cluster's.
    files::remove_tree(dir).with_context(|| dir.display().to_string())
}

/// Removes the cluster's cgroup from every hierarchy; its processes have ended.
pub(crate) fn remove_cgroups(cgroup: &str) -> Result<()> {
    Ok(cgroup::Hierarchies::detect()?.remove_empty(cgroup)?)
}

/// Unmounts, innermost first, what is mounted below a directory.
pub(crate) fn unmount_below(dir: &Path) -> Result<()> {
    let table = files::mount_table()?;
    let mut inside: Vec<_> =
        files::mounts(&table).map(|mount| mount.point).filter(|point| point.starts_with(dir)).collect();
    inside.reverse();
    for point in inside {
        nix::mount::umount2(&point, nix::mount::MntFlags::MNT_DETACH).with_context(|| point.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::mount::{MsFlags, mount};

    use super::*;

    /// The kernel's table has other names for such places.
    #[test]
    fn mounts_in_places_with_spaces_go_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let outer = dir.path().canonicalize().unwrap().join("my cluster");
        let inner = outer.join("a volume");
        for place in [&outer, &inner] {
            fs::create_dir(place).unwrap();
            mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        }
        unmount_below(&outer).unwrap();
        remove_dir(&outer).unwrap();
        assert!(!outer.exists());
    }
}
