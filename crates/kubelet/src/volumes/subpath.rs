//! `subPath`, opened so that nothing in the volume can lead outside of it.
//!
//! The kernel resolves the path beneath an open descriptor of the volume (`openat2` with
//! `RESOLVE_BENEATH`), and what it opened, not what the path may name a moment later, is bound to a
//! place only we write. A container that swaps a directory for a symbolic link meanwhile wins
//! nothing (CVE-2017-1002101, CVE-2021-25741).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MntFlags, MsFlags};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};

use super::kernel::{Kernel, Linux};
use super::on_own_thread;

/// As [`bind`], and whoever serves the volume may be silent.
pub(crate) async fn show(volume: PathBuf, sub_path: String, at: PathBuf) -> io::Result<PathBuf> {
    on_own_thread(move || bind(&Linux, &volume, &sub_path, &at)).await
}

/// Makes `volume/sub_path` available at `at` and returns `at`. Missing directories are made, with
/// the volume's own permissions.
fn bind(kernel: &impl Kernel, volume: &Path, sub_path: &str, at: &Path) -> io::Result<PathBuf> {
    let target = open(volume, sub_path)?;
    let is_dir = SFlag::from_bits_truncate(fstat(&target)?.st_mode).contains(SFlag::S_IFDIR);
    if super::mounts::is_mount_point(kernel, at)? {
        // Made by an earlier try: the file it shows may have been replaced since.
        kernel.unmount(at, MntFlags::MNT_DETACH)?;
    }
    if let Some(parent) = at.parent() {
        std::fs::create_dir_all(parent)?;
    }
    if is_dir {
        std::fs::create_dir_all(at)?;
    } else {
        if at.is_dir() {
            std::fs::remove_dir(at)?;
        }
        std::fs::OpenOptions::new().create(true).append(true).open(at)?;
    }
    let source = format!("/proc/self/fd/{}", target.as_raw_fd());
    kernel.mount(Some(Path::new(&source)), at, None, MsFlags::MS_BIND | MsFlags::MS_REC, None)?;
    Ok(at.to_path_buf())
}

/// A file with more than this is not read.
const MAX_FILE: u64 = 1 << 20;

/// What is in a file of the volume. Links lead to where they would if the volume were all there is.
pub(crate) fn read(volume: &Path, path: &str) -> io::Result<String> {
    let root = nix::fcntl::open(volume, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let found = openat2(root.as_fd(), Path::new(path), how)?;
    // Before it is opened: a container may make a pipe, which would be waited for, or a device that it may not open
    // itself. Opening some of them is enough to start something.
    if SFlag::from_bits_truncate(fstat(&found)?.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    let file = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let mut bytes = Vec::new();
    if file.take(MAX_FILE + 1).read_to_end(&mut bytes)? as u64 > MAX_FILE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens `sub_path` beneath `volume`, making what is missing.
fn open(volume: &Path, sub_path: &str) -> io::Result<OwnedFd> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_string());
    let mut parts = Vec::new();
    for part in Path::new(sub_path).components() {
        match part {
            Component::Normal(name) => parts.push(name.to_os_string()),
            Component::CurDir => {}
            Component::ParentDir => return Err(invalid("must not contain \"..\"")),
            Component::RootDir | Component::Prefix(_) => return Err(invalid("must not be an absolute path")),
        }
    }
    let root = nix::fcntl::open(volume, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let how = |flags| {
        OpenHow::new()
            .flags(flags | OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS)
    };
    let relative: PathBuf = parts.iter().collect();
    let relative = if parts.is_empty() { Path::new(".") } else { &relative };
    match openat2(root.as_fd(), relative, how(OFlag::empty())) {
        Err(nix::errno::Errno::ENOENT) => {}
        other => return Ok(other?),
    }
    let mode = Mode::from_bits_truncate(fstat(&root)?.st_mode & 0o777);
    let mut at = root;
    for part in &parts {
        let next = match openat2(at.as_fd(), Path::new(part), how(OFlag::O_DIRECTORY)) {
            Err(nix::errno::Errno::ENOENT) => {
                mkdirat(at.as_fd(), Path::new(part), mode)?;
                let made = openat2(at.as_fd(), Path::new(part), how(OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW))?;
                // The umask may have taken bits away.
                std::fs::set_permissions(
                    format!("/proc/self/fd/{}", made.as_raw_fd()),
                    std::os::unix::fs::PermissionsExt::from_mode(mode.bits()),
                )?;
                made
            }
            other => other?,
        };
        at = next;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::super::recorded::Recorded;
    use super::*;
    use std::os::unix::fs::symlink;

    /// What was opened is bound, wherever the path leads meanwhile; one bind takes the place of another.
    #[test]
    fn directories_and_files_are_bound_to_places_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (volume, place) = (root.join("volume"), root.join("places"));
        std::fs::create_dir_all(volume.join("real")).unwrap();
        std::fs::write(volume.join("real/file"), "x").unwrap();
        symlink("real/file", volume.join("link")).unwrap();
        let kernel = Recorded::default();
        let bound = |opened: &str, at: &Path| {
            format!("mount {} {} MS_BIND | MS_REC", volume.join(opened).display(), at.display())
        };
        for (sub_path, opened, at) in [("link", "real/file", "0"), ("real", "real", "1"), ("new/one", "new/one", "2")] {
            let at = place.join(at);
            assert_eq!(bind(&kernel, &volume, sub_path, &at).unwrap(), at);
            assert_eq!(kernel.calls(), [bound(opened, &at)]);
        }
        let first = place.join("0");
        bind(&kernel, &volume, "real/file", &first).unwrap();
        assert_eq!(kernel.calls(), [format!("unmount {}", first.display()), bound("real/file", &first)]);
        assert!(place.join("1").is_dir() && first.is_file());
        assert!(bind(&kernel, &volume, "../other", &place.join("3")).is_err());
        assert_eq!(kernel.calls(), [""; 0], "nothing is asked for what leads outside");
    }

    #[test]
    fn stays_inside() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        std::fs::create_dir_all(volume.join("real/deep")).unwrap();
        std::fs::write(volume.join("real/file"), "x").unwrap();
        std::fs::write(dir.path().join("secret"), "no").unwrap();
        symlink("/etc", volume.join("abs")).unwrap();
        symlink("../secret", volume.join("up")).unwrap();
        symlink("real/file", volume.join("inside")).unwrap();
        for (path, fine) in [
            ("real", true),
            ("real/file", true),
            ("inside", true),
            ("new/nested", true),
            (".", true),
            ("abs", false),
            ("abs/passwd", false),
            ("abs/new", false),
            ("up", false),
            ("../secret", false),
            ("/etc", false),
            ("real/../../secret", false),
        ] {
            assert_eq!(open(&volume, path).is_ok(), fine, "{path}");
        }
        assert!(volume.join("new/nested").is_dir());
        assert!(!Path::new("/etc/new").exists());
    }

    #[test]
    fn security_files_of_variables_are_the_volumes_own() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        std::fs::create_dir_all(volume.join("etc")).unwrap();
        std::fs::write(volume.join("etc/env"), "A='1'").unwrap();
        std::fs::write(dir.path().join("secret"), "no").unwrap();
        std::fs::File::create(volume.join("large")).unwrap().set_len(MAX_FILE + 1).unwrap();
        symlink("/etc/env", volume.join("inside")).unwrap();
        symlink("../secret", volume.join("up")).unwrap();
        nix::unistd::mkfifo(&volume.join("pipe"), Mode::S_IRWXU).unwrap();
        for path in ["etc/env", "/etc/env", "inside", "../etc/env"] {
            assert_eq!(read(&volume, path).unwrap(), "A='1'", "{path}");
        }
        for path in ["up", "../secret", "none", "etc", "pipe", "large"] {
            assert!(read(&volume, path).is_err(), "{path}");
        }
    }

    /// A container that swaps a directory for a link while it is opened: what is opened is always inside.
    #[test]
    fn a_race_is_not_won() {
        use std::os::unix::fs::MetadataExt;
        use std::sync::atomic::{AtomicBool, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        std::fs::create_dir_all(volume.join("swap/target")).unwrap();
        std::fs::create_dir_all(dir.path().join("outside/target")).unwrap();
        let outside = std::fs::metadata(dir.path().join("outside/target")).unwrap().ino();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (swap, aside) = (volume.join("swap"), volume.join("aside"));
                while !stop.load(Ordering::Relaxed) {
                    // Any of these fails when the directory was just made anew: then it is the next to go.
                    let _ = std::fs::rename(&swap, &aside);
                    let _ = symlink("../outside", &swap);
                    let _ = std::fs::remove_file(&swap);
                    let _ = std::fs::rename(&aside, &swap);
                    let _ = std::fs::remove_dir_all(&aside);
                }
            });
            for _ in 0..2000 {
                // Made anew between the renames, or refused: both are fine.
                if let Ok(opened) = open(&volume, "swap/target") {
                    assert_ne!(fstat(&opened).unwrap().st_ino, outside);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(std::fs::read_dir(dir.path().join("outside")).unwrap().count(), 1, "nothing was made outside");
    }

    /// A pod may bring the server of its volume, and that may be silent for ever. All that it holds up then is the pod: the threads
    /// that wait for files are few, and those of all pods, the node and the API server.
    #[test]
    fn security_a_silent_volume_takes_no_thread_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, at) = (dir.path().join("volume"), dir.path().join("at"));
        std::fs::create_dir(&volume).unwrap();
        let Some(silent) = testkit::silent::Silent::mount(&volume) else {
            eprintln!("skipped: there is no FUSE here");
            return;
        };
        let threads =
            tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build().unwrap();
        threads.block_on(async move {
            let mut shown = Box::pin(show(volume, "part".into(), at));
            let answered = tokio::time::timeout(std::time::Duration::from_millis(100), &mut shown).await;
            assert!(answered.is_err(), "nobody serves the volume");
            let other = tokio::time::timeout(std::time::Duration::from_secs(60), super::super::blocking(|| Ok(())));
            other.await.expect("others have no thread").unwrap();
            drop(silent);
            if let Ok(at) = shown.await {
                Linux.unmount(&at, MntFlags::MNT_DETACH).unwrap();
            }
        });
    }
}
