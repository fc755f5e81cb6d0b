//! The drivers that have registered with this node.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csi::v1;
use parking_lot::Mutex;

/// A driver that answers on a socket.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub(crate) name: String,
    /// The socket it registered with.
    pub(crate) registration: PathBuf,
    pub(crate) clients: csi::Clients,
    pub(crate) version: (u32, u32, u32),
    pub(crate) abilities: v1::NodeGetCapabilitiesResponse,
    /// The kubelet's directory, and what the driver knows it as.
    pub(crate) roots: (PathBuf, PathBuf),
}

impl Driver {
    /// A path of ours as the driver sees it: one that registered below another directory has that mounted, not ours.
    pub(crate) fn path(&self, path: &Path) -> String {
        let (ours, theirs) = &self.roots;
        let seen = path.strip_prefix(ours).map_or_else(|_| path.to_path_buf(), |inner| theirs.join(inner));
        seen.to_string_lossy().into_owned()
    }
}

/// Nobody has registered under this name.
#[derive(Debug, thiserror::Error)]
#[error("driver name {0} not found in the list of registered CSI drivers")]
pub(crate) struct NoDriver(String);

/// Another driver has the name, and is not older.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "Another driver with the same name is already registered with a higher supported version: \"{}.{}.{}\"",
    .0.0, .0.1, .0.2
)]
pub(crate) struct Refused((u32, u32, u32));

#[derive(Default)]
pub(crate) struct Drivers(Mutex<BTreeMap<String, Arc<Driver>>>);

impl Drivers {
    pub(crate) fn get(&self, name: &str) -> Result<Arc<Driver>, NoDriver> {
        let found = self.0.lock().get(name).cloned();
        found.ok_or_else(|| NoDriver(name.to_owned()))
    }

    /// Why a driver of this name cannot come in addition: another one is there, and not older.
    pub(crate) fn refuses(&self, name: &str, registration: &Path, version: (u32, u32, u32)) -> Option<Refused> {
        let drivers = self.0.lock();
        let other = drivers.get(name).filter(|other| other.registration != registration)?;
        (other.version >= version).then_some(Refused(other.version))
    }

    pub(crate) fn insert(&self, driver: Driver) {
        self.0.lock().insert(driver.name.clone(), Arc::new(driver));
    }

    /// Whether the driver that registered there is gone now.
    pub(crate) fn remove(&self, name: &str, registration: &Path) -> bool {
        let mut drivers = self.0.lock();
        let is_it = drivers.get(name).is_some_and(|driver| driver.registration == registration);
        if is_it {
            drivers.remove(name);
        }
        is_it
    }
}

/// The highest version that both sides speak, of what a plug-in says it does.
pub(crate) fn highest_version(versions: &[String]) -> Option<(u32, u32, u32)> {
    versions
        .iter()
        .filter_map(|text| {
            let mut parts = text.trim_start_matches('v').splitn(3, '.').map(|part| part.parse::<u32>().ok());
            Some((parts.next()??, parts.next()??, parts.next()??))
        })
        .filter(|(major, _, _)| *major == 1)
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (given, expected) in [
            (&["1.0.0"][..], Some((1, 0, 0))),
            (&["1.0.0", "1.9.2", "v1.10.0"], Some((1, 10, 0))),
            (&["0.3.0"], None),
            (&["2.0.0", "1.1.0"], Some((1, 1, 0))),
            (&["", "x", "1", "1.0"], None),
            (&[], None),
        ] {
            let given: Vec<String> = given.iter().map(ToString::to_string).collect();
            assert_eq!(highest_version(&given), expected, "{given:?}");
        }
    }
}
