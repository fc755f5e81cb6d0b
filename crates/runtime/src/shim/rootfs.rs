//! A container's root filesystem: overlay, mounts, devices, then pivot_root. Runs in the forked child, inside its new
//! mount namespace, so nothing here is ever seen on the node and everything vanishes with the container.
//!
//! Invariant: paths inside the image are resolved by the kernel below the new root (`openat2`, `RESOLVE_IN_ROOT`);
//! a symbolic link of the image never leads a mount or a device node out of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::cgroup::Cgroups;
use crate::rooted::{Resolve, Rooted};
use crate::spec::{Device, Mount, MountSource, Propagation, Spec};
use crate::sys;

/// Builds the root of `spec` and makes it this process's root.
pub(super) fn enter(spec: &Spec, cgroups: &Cgroups) -> Result<(), String> {
    let say = |what: &str| {
        let what = what.to_string();
        move |error: io::Error| format!("{what}: {error}")
    };
    let shared = clone_shared_sources(&spec.mounts)?;
    mount_root(spec)?;
    let rootfs = &spec.rootfs;
    let root = Root::open(&rootfs.target).map_err(say("opening the root filesystem"))?;
    for (mount, shared) in spec.mounts.iter().zip(shared) {
        root.mount(mount, shared, cgroups, spec)
            .map_err(|error| format!("mounting {} in the container: {error}", mount.target))?;
    }
    root.devices(spec).map_err(say("making devices"))?;
    std::env::set_current_dir(&rootfs.target).map_err(say("entering the root filesystem"))?;
    sys::pivot_root(c".", c".").map_err(say("pivot_root"))?;
    // The old root now lies over the new one: cut its propagation before it goes, then take it away.
    sys::mount("", ".", "", MS_SLAVE_ALL, "").map_err(say("detaching the node's root"))?;
    sys::unmount(".", libc::MNT_DETACH).map_err(say("unmounting the node's root"))?;
    std::env::set_current_dir("/").map_err(say("chdir"))?;
    for path in &spec.readonly_paths {
        make_readonly(path).map_err(|error| format!("read-only path {path}: {error}"))?;
    }
    for path in &spec.masked_paths {
        mask(path).map_err(|error| format!("masked path {path}: {error}"))?;
    }
    if rootfs.readonly {
        let fd = std::fs::File::open("/").map_err(say("read-only root"))?;
        sys::set_mount_readonly(fd.as_fd(), false).map_err(say("read-only root"))?;
    }
    Ok(())
}

/// In a mount namespace of our own: mounts the container's root at its place, out of the node's sight.
pub(super) fn mount_root(spec: &Spec) -> Result<(), String> {
    // Mounts of the node keep arriving in ours (for HostToContainer), ours never reach the node.
    sys::mount("", "/", "", MS_SLAVE_ALL, "").map_err(|error| format!("making mounts slaves: {error}"))?;
    let rootfs = &spec.rootfs;
    mount_overlay(&rootfs.layers, &rootfs.lower, Some((&rootfs.upper, &rootfs.work)), &rootfs.target)
        .map_err(|error| format!("mounting the root filesystem: {error}"))
}

/// Mounts the content of an image at `stage`; where the path inside it is.
pub(super) fn stage_image(layers: &Path, lower: &[String], sub_path: &str, stage: &Path) -> io::Result<PathBuf> {
    std::fs::create_dir_all(stage)?;
    mount_overlay(layers, lower, None, stage)?;
    let content = Rooted::open(stage)?.lookup(sub_path, Resolve::IN_ROOT)?;
    std::fs::read_link(sys::fd_path(&content))
}

const MS_SLAVE_ALL: u64 = libc::MS_SLAVE | libc::MS_REC;
const BIND: u64 = libc::MS_BIND | libc::MS_REC;

/// Bidirectional mounts must stay peers of the node's: copied before everything else becomes a slave.
fn clone_shared_sources(mounts: &[Mount]) -> Result<Vec<Option<OwnedFd>>, String> {
    mounts
        .iter()
        .map(|mount| match (&mount.source, mount.propagation) {
            (MountSource::Bind(source), Propagation::Bidirectional) => sys::c_path(source)
                .and_then(|path| sys::clone_mount(&path))
                .map(Some)
                .map_err(|error| format!("mount source {}: {error}", source.display())),
            _ => Ok(None),
        })
        .collect()
}

/// Layers (topmost first, relative to `layers`) under a writable directory, or read-only without one.
fn mount_overlay(
    layers: &Path,
    lower: &[String],
    writable: Option<(&PathBuf, &PathBuf)>,
    target: &Path,
) -> io::Result<()> {
    // Relative names keep the options of many layers below the kernel's one page.
    std::env::set_current_dir(layers)?;
    if let (None, [only]) = (writable, lower) {
        sys::mount(only, target, "", libc::MS_BIND, "")?;
        return sys::set_mount_readonly(Rooted::open(target)?.fd(), false);
    }
    let mut options = format!("lowerdir={}", lower.join(":"));
    if let Some((upper, work)) = writable {
        options.push_str(&format!(",upperdir={},workdir={}", upper.display(), work.display()));
    }
    sys::mount("overlay", target, "overlay", 0, &options)
}

/// The new root, before it is entered.
struct Root {
    directory: Rooted,
}

impl Root {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { directory: Rooted::open(path)? })
    }

    fn lookup(&self, path: &str, resolve: Resolve) -> io::Result<OwnedFd> {
        self.directory.lookup(path, resolve)
    }

    /// Opens a mount point, making it and its parents where they are missing.
    fn target(&self, path: &str, directory: bool, resolve: Resolve) -> io::Result<OwnedFd> {
        self.directory.ensure(path, directory, resolve)
    }

    fn mount(&self, mount: &Mount, shared: Option<OwnedFd>, cgroups: &Cgroups, spec: &Spec) -> io::Result<()> {
        match &mount.source {
            MountSource::Bind(source) => {
                let is_directory = std::fs::metadata(source)
                    .map_err(|e| io::Error::new(e.kind(), format!("source {}: {e}", source.display())))?
                    .is_dir();
                let target = self.target(&mount.target, is_directory, Resolve::IN_ROOT)?;
                match shared {
                    Some(source) => sys::move_mount(source.as_fd(), target.as_fd())?,
                    None => sys::mount(&source.to_string_lossy(), sys::fd_path(&target), "", BIND, "")?,
                }
                let mounted = self.lookup(&mount.target, Resolve::IN_ROOT)?;
                let propagation = match mount.propagation {
                    Propagation::Private => libc::MS_PRIVATE,
                    Propagation::HostToContainer => libc::MS_SLAVE,
                    Propagation::Bidirectional => libc::MS_SHARED,
                };
                sys::mount("", sys::fd_path(&mounted), "", propagation | libc::MS_REC, "")?;
                if mount.readonly {
                    sys::set_mount_readonly(mounted.as_fd(), mount.recursive_readonly)?;
                }
                Ok(())
            }
            MountSource::Filesystem { kind, flags, data } => {
                // /proc and /sys decide what else is safe: a link of the image in their place is refused.
                let resolve = match kind.as_str() {
                    "proc" | "sysfs" => Resolve::NO_SYMLINKS,
                    _ => Resolve::IN_ROOT,
                };
                let target = self.target(&mount.target, true, resolve)?;
                let readonly = if mount.readonly { libc::MS_RDONLY } else { 0 };
                sys::mount(kind, sys::fd_path(&target), kind, flags | readonly, data)
            }
            MountSource::Image { layers, lower, sub_path } => {
                let stage = spec.rootfs.target.with_file_name("image-volume");
                std::fs::create_dir_all(&stage)?;
                mount_overlay(layers, lower, None, &stage)?;
                let image = Root::open(&stage)?;
                let content = image.lookup(sub_path, Resolve::IN_ROOT)?;
                let is_directory = std::fs::metadata(sys::fd_path(&content))?.is_dir();
                let target = self.target(&mount.target, is_directory, Resolve::IN_ROOT)?;
                sys::mount(&sys::fd_path(&content), sys::fd_path(&target), "", BIND, "")?;
                let mounted = self.lookup(&mount.target, Resolve::IN_ROOT)?;
                sys::set_mount_readonly(mounted.as_fd(), true)?;
                drop((content, image));
                sys::unmount(&stage, libc::MNT_DETACH)
            }
            MountSource::Cgroup => self.mount_cgroups(mount, cgroups),
        }
    }

    /// The container's own cgroups: it is in a cgroup namespace, so the root of each mount is its own group.
    fn mount_cgroups(&self, mount: &Mount, cgroups: &Cgroups) -> io::Result<()> {
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let readonly = if mount.readonly { libc::MS_RDONLY } else { 0 };
        let target = self.target(&mount.target, true, Resolve::IN_ROOT)?;
        match cgroups {
            Cgroups::V2(_) => sys::mount("cgroup", sys::fd_path(&target), "cgroup2", flags | readonly, ""),
            Cgroups::V1(trees) => {
                sys::mount("tmpfs", sys::fd_path(&target), "tmpfs", flags, "mode=755")?;
                let top = self.lookup(&mount.target, Resolve::IN_ROOT)?;
                for tree in trees {
                    let Some(name) = tree.mount.file_name() else { continue };
                    let c_name = sys::c_path(name)?;
                    sys::mkdir_at(top.as_fd(), &c_name, 0o755)?;
                    let directory = sys::open_at(top.as_fd(), &c_name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
                    let mut options = tree.controllers.join(",");
                    if options.starts_with("name=") {
                        options.insert_str(0, "none,");
                    }
                    sys::mount("cgroup", sys::fd_path(&directory), "cgroup", flags | readonly, &options)?;
                    for controller in tree.controllers.iter().filter(|c| Path::new(c) != Path::new(name)) {
                        if !controller.contains('=') {
                            sys::symlink_at(&c_name, top.as_fd(), &sys::c_path(controller)?)?;
                        }
                    }
                }
                if mount.readonly {
                    sys::set_mount_readonly(top.as_fd(), false)?;
                }
                Ok(())
            }
        }
    }

    /// /dev: the usual nodes and links, and what the spec asks for.
    fn devices(&self, spec: &Spec) -> io::Result<()> {
        let dev = self.lookup("/dev", Resolve::NO_SYMLINKS)?;
        for (name, minor, major) in
            [(c"null", 3, 1), (c"zero", 5, 1), (c"full", 7, 1), (c"random", 8, 1), (c"urandom", 9, 1), (c"tty", 0, 5)]
        {
            exists_is_fine(sys::mknod_at(dev.as_fd(), name, libc::S_IFCHR | 0o666, libc::makedev(major, minor)))?;
            sys::chmod_at(dev.as_fd(), name, 0o666)?;
        }
        for (target, name) in [
            (c"/proc/self/fd", c"fd"),
            (c"/proc/self/fd/0", c"stdin"),
            (c"/proc/self/fd/1", c"stdout"),
            (c"/proc/self/fd/2", c"stderr"),
            (c"/proc/kcore", c"core"),
            (c"pts/ptmx", c"ptmx"),
        ] {
            exists_is_fine(sys::symlink_at(target, dev.as_fd(), name))?;
        }
        if spec.all_devices {
            self.copy_devices(Path::new("/dev"))?;
        }
        for device in &spec.devices {
            self.device(device)
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", device.host_path.display())))?;
        }
        Ok(())
    }

    fn device(&self, device: &Device) -> io::Result<()> {
        let metadata = std::fs::metadata(&device.host_path)?;
        let path = Path::new(&device.container_path);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let parent = self.target(&parent.to_string_lossy(), true, Resolve::IN_ROOT)?;
        let name = sys::c_path(name)?;
        exists_is_fine(sys::mknod_at(parent.as_fd(), &name, metadata.mode(), metadata.rdev()))?;
        sys::chmod_at(parent.as_fd(), &name, metadata.mode() & 0o7777)?;
        sys::chown_at(parent.as_fd(), &name, metadata.uid(), metadata.gid())
    }

    /// Every device node of the node's /dev, at the same place.
    fn copy_devices(&self, directory: &Path) -> io::Result<()> {
        const OWN: [&str; 6] = ["pts", "shm", "fd", "mqueue", "console", "ptmx"];
        for entry in std::fs::read_dir(directory)?.flatten() {
            if directory == Path::new("/dev") && entry.file_name().to_str().is_some_and(|n| OWN.contains(&n)) {
                continue;
            }
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                self.copy_devices(&entry.path())?;
            } else if kind.is_char_device() || kind.is_block_device() {
                let path = entry.path();
                self.device(&Device {
                    container_path: path.to_string_lossy().into_owned(),
                    host_path: path,
                    permissions: String::new(),
                })?;
            }
        }
        Ok(())
    }
}

fn exists_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// Missing paths are skipped by both: what is not there needs no protection.
fn make_readonly(path: &str) -> io::Result<()> {
    match sys::mount(path, path, "", BIND, "") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result?,
    }
    let mounted = Rooted::open(Path::new("/"))?.lookup(path, Resolve::IN_ROOT)?;
    sys::set_mount_readonly(mounted.as_fd(), true)
}

fn mask(path: &str) -> io::Result<()> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => sys::mount("tmpfs", path, "tmpfs", libc::MS_RDONLY, "size=0k"),
        Ok(_) => sys::mount("/dev/null", path, "", libc::MS_BIND, ""),
    }
}

/// The terminal as /dev/console, where programs look for one.
pub(super) fn mount_console(slave: &str) -> io::Result<()> {
    let console = std::fs::OpenOptions::new().create(true).write(true).truncate(false).open("/dev/console");
    drop(console);
    sys::mount(slave, "/dev/console", "", libc::MS_BIND, "")
}
