//! A container's root filesystem: overlay, mounts, devices, then pivot_root. Runs in the forked child, inside its new
//! mount namespace, so nothing here is ever seen on the node and everything vanishes with the container.
//!
//! Invariants: paths inside the image are resolved by the kernel below the new root (`openat2`, `RESOLVE_IN_ROOT`);
//! a symbolic link of the image never leads a mount or a device node out of it. What a user mounts is looked at only
//! through descriptors: devices are made before any of it is there, the node's /dev/null is taken before it too, a mount
//! gets its properties before it is attached, and nothing but a procfs or a few harmless files comes over /proc.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cgroup::Hierarchies;

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
    let nulls = spec.masked_paths.iter().map(|_| null_device()).collect::<io::Result<Vec<_>>>();
    let nulls = nulls.map_err(say("/dev/null"))?;
    for (mount, shared) in spec.mounts.iter().zip(shared) {
        root.mount(mount, shared, cgroups, spec)
            .map_err(|error| format!("mounting {} in the container: {error}", mount.target))?;
        if is_our_dev(mount) {
            root.devices(spec).map_err(say("making devices"))?;
        }
    }
    let old = Rooted::open(Path::new("/")).map_err(say("opening the node's root"))?;
    std::env::set_current_dir(&rootfs.target).map_err(say("entering the root filesystem"))?;
    sys::pivot_root(c".", c".").map_err(say("pivot_root"))?;
    // The old root now lies over the new one: cut its propagation (and only its) before it goes, then take it away.
    sys::change_directory(old.fd()).map_err(say("entering the node's root"))?;
    sys::mount("", ".", "", MS_SLAVE_ALL, "").map_err(say("detaching the node's root"))?;
    sys::unmount(".", libc::MNT_DETACH).map_err(say("unmounting the node's root"))?;
    std::env::set_current_dir("/").map_err(say("chdir"))?;
    let root = Rooted::open(Path::new("/")).map_err(say("opening the new root"))?;
    for path in &spec.readonly_paths {
        make_readonly(&root, path).map_err(|error| format!("read-only path {path}: {error}"))?;
    }
    for (path, null) in spec.masked_paths.iter().zip(nulls) {
        mask(&root, path, &null).map_err(|error| format!("masked path {path}: {error}"))?;
    }
    if rootfs.readonly {
        sys::set_mount_readonly(root.fd(), false).map_err(say("read-only root"))?;
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

/// A detached mount of the node's /dev/null, which masks files. The container's own may be whatever its user put there
/// (CVE-2025-31133).
fn null_device() -> io::Result<OwnedFd> {
    let null = sys::clone_mount(c"/dev/null")?;
    sys::set_mount_propagation(null.as_fd(), libc::MS_PRIVATE)?;
    check_device(&null, libc::S_IFCHR, libc::makedev(1, 3))?;
    Ok(null)
}

/// Fails unless this is a device node of the given kind and number.
fn check_device(fd: &OwnedFd, kind: u32, number: u64) -> io::Result<()> {
    let metadata = std::fs::File::from(fd.try_clone()?).metadata()?;
    match metadata.mode() & libc::S_IFMT == kind && metadata.rdev() == number {
        true => Ok(()),
        false => Err(io::Error::other("another file is in the place of the device")),
    }
}

/// The fresh tmpfs that devices are made in; where a user mounts a /dev of their own there is none, and nothing is made.
fn is_our_dev(mount: &Mount) -> bool {
    mount.target == "/dev" && matches!(mount.source, MountSource::Filesystem { .. })
}

/// The inode number of every procfs's root.
const PROC_ROOT: u64 = 1;

/// Files of /proc that mounts may lie over: they only tell about the machine (runc's `checkProcMount`).
const PROC_FILES: [&str; 10] = [
    "proc/cpuinfo",
    "proc/diskstats",
    "proc/meminfo",
    "proc/stat",
    "proc/swaps",
    "proc/uptime",
    "proc/loadavg",
    "proc/slabinfo",
    "proc/sys/kernel/ns_last_pid",
    "proc/sys/crypto/fips_enabled",
];

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
    /// Where the kernel says it is.
    path: PathBuf,
}

impl Root {
    fn open(path: &Path) -> io::Result<Self> {
        let directory = Rooted::open(path)?;
        let path = std::fs::read_link(sys::fd_path(&directory.fd()))?;
        Ok(Self { directory, path })
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
                let content = match shared {
                    Some(content) => content,
                    None => sys::clone_mount(&sys::c_path(source)?)
                        .map_err(|e| io::Error::new(e.kind(), format!("source {}: {e}", source.display())))?,
                };
                let propagation = match mount.propagation {
                    Propagation::Private => libc::MS_PRIVATE,
                    Propagation::HostToContainer => libc::MS_SLAVE,
                    Propagation::Bidirectional => libc::MS_SHARED,
                };
                sys::set_mount_propagation(content.as_fd(), propagation)?;
                if mount.readonly {
                    sys::set_mount_readonly(content.as_fd(), mount.recursive_readonly)?;
                }
                self.attach(&content, &mount.target)
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
                let inside = Rooted::open(&stage)?.lookup(sub_path, Resolve::IN_ROOT)?;
                let content = sys::clone_mount_at(inside.as_fd())?;
                sys::set_mount_readonly(content.as_fd(), true)?;
                self.attach(&content, &mount.target)?;
                drop((content, inside));
                sys::unmount(&stage, libc::MNT_DETACH)
            }
            MountSource::Cgroup => self.mount_cgroups(mount, cgroups),
        }
    }

    /// Attaches a detached mount at its place in the container.
    fn attach(&self, content: &OwnedFd, path: &str) -> io::Result<()> {
        let metadata = std::fs::File::from(content.try_clone()?).metadata()?;
        let target = self.target(path, metadata.is_dir(), Resolve::IN_ROOT)?;
        // Links of the image or of another volume may have led elsewhere than the path says.
        let place = std::fs::read_link(sys::fd_path(&target))?;
        let place = place.strip_prefix(&self.path).map_err(io::Error::other)?;
        let is_allowed = match place.strip_prefix("proc") {
            Err(_) => true,
            Ok(below) if below.as_os_str().is_empty() => {
                sys::is_procfs(content.as_fd())? && metadata.ino() == PROC_ROOT
            }
            Ok(_) => PROC_FILES.iter().any(|file| Path::new(file) == place),
        };
        if !is_allowed {
            let place = Path::new("/").join(place);
            return Err(io::Error::other(format!("{place:?} cannot be mounted because it is inside /proc")));
        }
        sys::move_mount(content.as_fd(), target.as_fd())
    }

    /// The container's own cgroups: it is in a cgroup namespace, so the root of each mount is its own group.
    fn mount_cgroups(&self, mount: &Mount, cgroups: &Cgroups) -> io::Result<()> {
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let readonly = if mount.readonly { libc::MS_RDONLY } else { 0 };
        let target = self.target(&mount.target, true, Resolve::IN_ROOT)?;
        match &**cgroups {
            Hierarchies::V2(_) => sys::mount("cgroup", sys::fd_path(&target), "cgroup2", flags | readonly, ""),
            Hierarchies::V1(trees) => {
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
            let node = make_device(&dev, name, libc::S_IFCHR | 0o666, libc::makedev(major, minor))?;
            set_mode(&node, 0o666)?;
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
        let node = make_device(&parent, &name, metadata.mode(), metadata.rdev())?;
        sys::chown_at(node.as_fd(), c"", metadata.uid(), metadata.gid())?;
        set_mode(&node, metadata.mode() & 0o7777)
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

/// Makes a device node, or takes the one that is there: what is then opened is that device and nothing else.
fn make_device(directory: &OwnedFd, name: &CStr, mode: u32, number: u64) -> io::Result<OwnedFd> {
    exists_is_fine(sys::mknod_at(directory.as_fd(), name, mode, number))?;
    let node = sys::open_at(directory.as_fd(), name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    check_device(&node, mode & libc::S_IFMT, number)?;
    Ok(node)
}

/// The mode of what is open, whatever its path leads to by now. Only before the root changes: /proc is the node's.
fn set_mode(fd: &OwnedFd, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(sys::fd_path(fd), std::fs::Permissions::from_mode(mode))
}

/// Missing paths are skipped by both: what is not there needs no protection.
fn make_readonly(root: &Rooted, path: &str) -> io::Result<()> {
    let Some(place) = find(root, path)? else { return Ok(()) };
    let copy = sys::clone_mount_at(place.as_fd())?;
    sys::set_mount_readonly(copy.as_fd(), true)?;
    sys::move_mount(copy.as_fd(), place.as_fd())
}

fn mask(root: &Rooted, path: &str, null: &OwnedFd) -> io::Result<()> {
    let Some(place) = find(root, path)? else { return Ok(()) };
    let place = std::fs::File::from(place);
    match place.metadata()?.is_dir() {
        true => sys::mount("tmpfs", sys::fd_path(&place), "tmpfs", libc::MS_RDONLY, "size=0k"),
        false => sys::move_mount(null.as_fd(), place.as_fd()),
    }
}

fn find(root: &Rooted, path: &str) -> io::Result<Option<OwnedFd>> {
    match root.lookup(path, Resolve::IN_ROOT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// The terminal as /dev/console, where programs look for one. A link there is not followed (CVE-2025-52565).
pub(super) fn mount_console(slave: &OwnedFd) -> io::Result<()> {
    let dev = Rooted::open(Path::new("/"))?.lookup("/dev", Resolve::NO_SYMLINKS)?;
    let make = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_WRONLY;
    exists_is_fine(sys::open_at(dev.as_fd(), c"console", make, 0o600).map(drop))?;
    let place = sys::open_at(dev.as_fd(), c"console", libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    if std::fs::File::from(place.try_clone()?).metadata()?.is_symlink() {
        return Err(io::Error::other("/dev/console is a symbolic link"));
    }
    sys::move_mount(sys::clone_mount_at(slave.as_fd())?.as_fd(), place.as_fd())
}
