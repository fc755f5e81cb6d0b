//! What the cgroup of a pod is called, with either driver. Pure.

use std::path::{Path, PathBuf};

use crate::config::CgroupDriver;

/// Names below the cgroup that all pods are in.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) driver: CgroupDriver,
    /// From the root down to `kubepods`.
    base: Vec<String>,
}

impl Names {
    pub(super) fn new(driver: CgroupDriver, root: &str) -> Self {
        let parts = root.split('/').filter(|part| !part.is_empty()).chain(["kubepods"]);
        Names { driver, base: parts.map(String::from).collect() }
    }

    /// The path of a cgroup below `kubepods`, relative to the root of the hierarchy.
    pub(super) fn path(&self, below: &[&str]) -> PathBuf {
        let parts = self.base.iter().map(String::as_str).chain(below.iter().copied().filter(|part| !part.is_empty()));
        match self.driver {
            CgroupDriver::Cgroupfs => parts.collect(),
            CgroupDriver::Systemd => {
                // A dash is a level to systemd.
                let slice = parts.map(|part| part.replace('-', "_")).collect::<Vec<_>>().join("-");
                PathBuf::from(dbus::systemd::slice_path(&slice).trim_start_matches('/'))
            }
        }
    }

    pub(super) fn pod(&self, level: &str, uid: &str) -> PathBuf {
        self.path(&[level, &format!("pod{uid}")])
    }

    /// The uid of the pod whose cgroup below a level has this name.
    pub(super) fn uid(&self, name: &str) -> Option<String> {
        match self.driver {
            CgroupDriver::Cgroupfs => name.strip_prefix("pod").map(String::from),
            CgroupDriver::Systemd => {
                let last = name.strip_suffix(".slice")?.rsplit('-').next()?;
                last.strip_prefix("pod").map(|uid| uid.replace('_', "-"))
            }
        }
    }

    /// systemd's name for a cgroup.
    pub(super) fn unit(path: &Path) -> String {
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_drivers_name_pods() {
        let uid = "3f2a-11";
        for (driver, root, level, expected) in [
            (CgroupDriver::Cgroupfs, "/", "besteffort", "kubepods/besteffort/pod3f2a-11"),
            (CgroupDriver::Cgroupfs, "/cox", "", "cox/kubepods/pod3f2a-11"),
            (
                CgroupDriver::Systemd,
                "/",
                "besteffort",
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod3f2a_11.slice",
            ),
            (CgroupDriver::Systemd, "/", "", "kubepods.slice/kubepods-pod3f2a_11.slice"),
            (CgroupDriver::Systemd, "/a-b", "", "a_b.slice/a_b-kubepods.slice/a_b-kubepods-pod3f2a_11.slice"),
        ] {
            let names = Names::new(driver, root);
            let path = names.pod(level, uid);
            assert_eq!(path.to_str(), Some(expected));
            assert_eq!(names.uid(&Names::unit(&path)).as_deref(), Some(uid), "{expected}");
        }
        let names = Names::new(CgroupDriver::Systemd, "/");
        for name in ["kubepods-besteffort.slice", "kubepods.slice", "cox-1.scope"] {
            assert_eq!(names.uid(name), None, "{name}");
        }
    }
}
