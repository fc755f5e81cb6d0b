//! `/var/lib/kubelet` on a machine that has none: a link to the directory of this machine's kubelet, for drivers, tools and people
//! who look there. Pods need no link (`kubelet` gives them its own directory under that name), and further nodes of a machine
//! have none.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::options::Options;

/// Makes the link, unless something else is there: that is somebody else's, and no reason not to start.
pub(crate) fn ensure(options: &Options) {
    let target = target(options);
    // A link that leads nowhere is anybody's to take.
    let made =
        fs::create_dir_all(&target).map_err(Into::into).and_then(|()| link(Path::new(kubelet::USUAL_ROOT), &target));
    if let Err(error) = made {
        tracing::warn!("{} is not the directory of this kubelet: {error:#}", kubelet::USUAL_ROOT);
    }
}

/// Takes the link away if it is this cluster's.
pub(crate) fn remove(options: &Options) -> Result<()> {
    unlink(Path::new(kubelet::USUAL_ROOT), &target(options))
}

fn target(options: &Options) -> PathBuf {
    let dir = options.data_dir.join("kubelet");
    std::path::absolute(&dir).unwrap_or(dir)
}

fn link(place: &Path, target: &Path) -> Result<()> {
    match fs::read_link(place) {
        Ok(there) if there == target => return Ok(()),
        // Left by a cluster whose directory is gone.
        Ok(there) if matches!(fs::metadata(place), Err(error) if error.kind() == ErrorKind::NotFound) => {
            fs::remove_file(place).with_context(|| format!("removing the link to {}", there.display()))?;
        }
        Ok(there) => {
            tracing::info!("{} leads to {}", place.display(), there.display());
            return Ok(());
        }
        Err(_) => {
            // Earlier versions made this one there, and nothing else; only what is empty goes.
            for empty in [&place.join("plugins_registry"), place] {
                let _ = fs::remove_dir(empty);
            }
        }
    }
    match symlink(target, place) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            tracing::info!("{} is another's", place.display());
            Ok(())
        }
        made => made.with_context(|| format!("making a link to {}", target.display())),
    }
}

fn unlink(place: &Path, target: &Path) -> Result<()> {
    match fs::read_link(place) {
        Ok(there) if there == target => fs::remove_file(place).with_context(|| place.display().to_string()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_made_only_where_nothing_is_and_removed_by_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let (place, own, other) = (dir.path().join("place"), dir.path().join("own"), dir.path().join("other"));
        fs::create_dir(&own).unwrap();
        let leads_to = |expected: &Path| assert_eq!(fs::read_link(&place).unwrap(), expected);
        // What an earlier version left.
        fs::create_dir_all(place.join("plugins_registry")).unwrap();
        link(&place, &own).unwrap();
        leads_to(&own);
        link(&place, &own).unwrap();
        link(&place, &other).unwrap();
        leads_to(&own);
        unlink(&place, &other).unwrap();
        leads_to(&own);
        // Its cluster is gone without a word.
        fs::remove_dir(&own).unwrap();
        link(&place, &other).unwrap();
        leads_to(&other);
        unlink(&place, &other).unwrap();
        assert!(place.symlink_metadata().is_err());
        unlink(&place, &other).unwrap();
        // Another kubelet's.
        fs::create_dir_all(place.join("pods")).unwrap();
        link(&place, &own).unwrap();
        unlink(&place, &own).unwrap();
        assert!(place.join("pods").is_dir());
    }
}
