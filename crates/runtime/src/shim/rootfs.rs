//! A container's root filesystem: overlay, mounts, devices, then pivot_root. Runs in the forked child, inside its new
//! mount namespace, so nothing here is ever seen on the node and everything vanishes with the container.
//!
//! Invariants: paths inside the image are resolved by the kernel below the new root (`openat2`, `RESOLVE_IN_ROOT`);
//! a symbolic link of the image never leads a mount or a device node out of it. What a user mounts is looked at only
//! through descriptors: devices are made before any of it is there, the node's /dev/null is taken before it too, a mount
//! gets its properties before it is attached, and nothing but a procfs or a few harmless files comes over /proc.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use cgroup::Hierarchies;

use super::error::{Error, Result, doing};
use super::kernel::{Kernel, check_device, exists_is_fine};
use crate::rooted::{Resolve, Rooted};
use crate::spec::{Device, Mount, MountSource, Propagation, Spec};
use crate::sys;

/// Builds the root of `spec` and makes it this process's root.
pub(super) fn enter(kernel: &dyn Kernel, spec: &Spec, cgroups: &Hierarchies) -> Result<()> {
    let shared = clone_shared_sources(kernel, &spec.mounts)?;
    mount_root(kernel, spec)?;
    let rootfs = &spec.rootfs;
    let root = Root::open(kernel, &rootfs.target).map_err(doing("opening the root filesystem"))?;
    let nulls = spec.masked_paths.iter().map(|_| null_device(kernel)).collect::<io::Result<Vec<_>>>();
    let nulls = nulls.map_err(doing("/dev/null"))?;
    for (mount, shared) in spec.mounts.iter().zip(shared) {
        root.mount(mount, shared, cgroups, spec)
            .map_err(|source| Error::Mount { target: mount.target.clone(), source })?;
        if is_our_dev(mount) {
            root.devices(spec).map_err(doing("making devices"))?;
        }
    }
    change_root(kernel, &rootfs.target)?;
    let root = kernel.root().map_err(doing("opening the new root"))?;
    for path in &spec.readonly_paths {
        make_readonly(kernel, &root, path).map_err(doing(format!("read-only path {path}")))?;
    }
    for (path, null) in spec.masked_paths.iter().zip(nulls) {
        mask(kernel, &root, path, &null).map_err(doing(format!("masked path {path}")))?;
    }
    if rootfs.readonly {
        kernel.set_readonly(root.fd(), false).map_err(doing("read-only root"))?;
    }
    Ok(())
}

fn change_root(kernel: &dyn Kernel, target: &Path) -> Result<()> {
    let old = kernel.root().map_err(doing("opening the node's root"))?;
    kernel.enter(target).map_err(doing("entering the root filesystem"))?;
    kernel.pivot_root().map_err(doing("pivot_root"))?;
    // The old root now lies over the new one: cut its propagation (and only its) before it goes, then take it away.
    kernel.enter_at(old.fd()).map_err(doing("entering the node's root"))?;
    let here = Path::new(".");
    kernel.mount("", here, "", MS_SLAVE_ALL, "").map_err(doing("detaching the node's root"))?;
    kernel.unmount(here).map_err(doing("unmounting the node's root"))?;
    kernel.enter(Path::new("/")).map_err(doing("chdir"))
}

/// In a mount namespace of our own: mounts the container's root at its place, out of the node's sight.
pub(super) fn mount_root(kernel: &dyn Kernel, spec: &Spec) -> Result<()> {
    // Mounts of the node keep arriving in ours (for HostToContainer), ours never reach the node.
    kernel.mount("", Path::new("/"), "", MS_SLAVE_ALL, "").map_err(doing("making mounts slaves"))?;
    let rootfs = &spec.rootfs;
    mount_overlay(kernel, &rootfs.layers, &rootfs.lower, Some((&rootfs.upper, &rootfs.work)), &rootfs.target)
        .map_err(doing("mounting the root filesystem"))
}

/// Mounts the content of an image at `stage`; where the path inside it is.
pub(super) fn stage_image(
    kernel: &dyn Kernel,
    layers: &Path,
    lower: &[String],
    sub_path: &str,
    stage: &Path,
) -> io::Result<PathBuf> {
    std::fs::create_dir_all(stage)?;
    mount_overlay(kernel, layers, lower, None, stage)?;
    let content = Rooted::open(stage)?.lookup(sub_path, Resolve::IN_ROOT)?;
    std::fs::read_link(sys::fd_path(&content))
}

const MS_SLAVE_ALL: u64 = libc::MS_SLAVE | libc::MS_REC;

/// A detached mount of the node's /dev/null, which masks files. The container's own may be whatever its user put there
/// (CVE-2025-31133). Read-only: the node's mode and owner are not the container's to change.
fn null_device(kernel: &dyn Kernel) -> io::Result<OwnedFd> {
    let null = kernel.clone_mount(Path::new("/dev/null"))?;
    kernel.set_propagation(null.as_fd(), libc::MS_PRIVATE)?;
    kernel.set_readonly(null.as_fd(), false)?;
    check_device(&null, libc::S_IFCHR, libc::makedev(1, 3))?;
    Ok(null)
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
fn clone_shared_sources(kernel: &dyn Kernel, mounts: &[Mount]) -> Result<Vec<Option<OwnedFd>>> {
    let cloned = mounts.iter().map(|mount| match (&mount.source, mount.propagation) {
        (MountSource::Bind(source), Propagation::Bidirectional) => {
            kernel.clone_mount(source).map(Some).map_err(doing(format!("mount source {}", source.display())))
        }
        _ => Ok(None),
    });
    cloned.collect()
}

/// Layers (topmost first, relative to `layers`) under a writable directory, or read-only without one.
fn mount_overlay(
    kernel: &dyn Kernel,
    layers: &Path,
    lower: &[String],
    writable: Option<(&PathBuf, &PathBuf)>,
    target: &Path,
) -> io::Result<()> {
    // Relative names keep the options of many layers below the kernel's one page.
    kernel.enter(layers)?;
    if let (None, [only]) = (writable, lower) {
        kernel.mount(only, target, "", libc::MS_BIND, "")?;
        return kernel.set_readonly(Rooted::open(target)?.fd(), false);
    }
    let mut options = format!("lowerdir={}", lower.join(":"));
    if let Some((upper, work)) = writable {
        options.push_str(&format!(",upperdir={},workdir={}", upper.display(), work.display()));
    }
    kernel.mount("overlay", target, "overlay", 0, &options)
}

/// The new root, before it is entered.
struct Root<'k> {
    kernel: &'k dyn Kernel,
    directory: Rooted,
    /// Where the kernel says it is.
    path: PathBuf,
}

impl<'k> Root<'k> {
    fn open(kernel: &'k dyn Kernel, path: &Path) -> io::Result<Self> {
        let directory = Rooted::open(path)?;
        let path = std::fs::read_link(sys::fd_path(&directory.fd()))?;
        Ok(Self { kernel, directory, path })
    }

    fn lookup(&self, path: &str, resolve: Resolve) -> io::Result<OwnedFd> {
        self.directory.lookup(path, resolve)
    }

    /// Opens a mount point, making it and its parents where they are missing.
    fn target(&self, path: &str, directory: bool, resolve: Resolve) -> io::Result<OwnedFd> {
        self.directory.ensure(path, directory, resolve)
    }

    fn mount(&self, mount: &Mount, shared: Option<OwnedFd>, cgroups: &Hierarchies, spec: &Spec) -> io::Result<()> {
        match &mount.source {
            MountSource::Bind(source) => {
                let content = match shared {
                    Some(content) => content,
                    None => (self.kernel.clone_mount(source))
                        .map_err(|e| io::Error::new(e.kind(), format!("source {}: {e}", source.display())))?,
                };
                let propagation = match mount.propagation {
                    Propagation::Private => libc::MS_PRIVATE,
                    Propagation::HostToContainer => libc::MS_SLAVE,
                    Propagation::Bidirectional => libc::MS_SHARED,
                };
                self.kernel.set_propagation(content.as_fd(), propagation)?;
                if mount.readonly {
                    self.kernel.set_readonly(content.as_fd(), mount.recursive_readonly)?;
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
                self.kernel.mount(kind, &place(&target), kind, flags | readonly, data)
            }
            MountSource::Image { layers, lower, sub_path } => {
                let stage = spec.rootfs.target.with_file_name("image-volume");
                std::fs::create_dir_all(&stage)?;
                mount_overlay(self.kernel, layers, lower, None, &stage)?;
                let inside = Rooted::open(&stage)?.lookup(sub_path, Resolve::IN_ROOT)?;
                let content = self.kernel.clone_mount_at(inside.as_fd())?;
                self.kernel.set_readonly(content.as_fd(), true)?;
                self.attach(&content, &mount.target)?;
                drop((content, inside));
                self.kernel.unmount(&stage)
            }
            MountSource::Cgroup => self.mount_cgroups(mount, cgroups),
        }
    }

    /// Attaches a detached mount at its place in the container.
    fn attach(&self, content: &OwnedFd, path: &str) -> io::Result<()> {
        let metadata = std::fs::File::from(content.try_clone()?).metadata()?;
        let target = self.target(path, metadata.is_dir(), Resolve::IN_ROOT)?;
        // Links of the image or of another volume may have led elsewhere than the path says.
        let place = std::fs::read_link(place(&target))?;
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
        self.kernel.move_mount(content.as_fd(), target.as_fd())
    }

    /// The container's own cgroups: it is in a cgroup namespace, so the root of each mount is its own group.
    fn mount_cgroups(&self, mount: &Mount, cgroups: &Hierarchies) -> io::Result<()> {
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let readonly = if mount.readonly { libc::MS_RDONLY } else { 0 };
        let target = self.target(&mount.target, true, Resolve::IN_ROOT)?;
        match cgroups {
            Hierarchies::V2(_) => self.kernel.mount("cgroup", &place(&target), "cgroup2", flags | readonly, ""),
            Hierarchies::V1(trees) => {
                self.kernel.mount("tmpfs", &place(&target), "tmpfs", flags, "mode=755")?;
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
                    self.kernel.mount("cgroup", &place(&directory), "cgroup", flags | readonly, &options)?;
                    for controller in tree.controllers.iter().filter(|c| Path::new(c) != Path::new(name)) {
                        if !controller.contains('=') {
                            sys::symlink_at(&c_name, top.as_fd(), &sys::c_path(controller)?)?;
                        }
                    }
                }
                if mount.readonly {
                    self.kernel.set_readonly(top.as_fd(), false)?;
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
            let number = libc::makedev(major, minor);
            let node = self.kernel.make_device(dev.as_fd(), name, libc::S_IFCHR | 0o666, number)?;
            self.kernel.set_mode(&node, 0o666)?;
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
        let node = self.kernel.make_device(parent.as_fd(), &name, metadata.mode(), metadata.rdev())?;
        self.kernel.set_owner(node.as_fd(), metadata.uid(), metadata.gid())?;
        self.kernel.set_mode(&node, metadata.mode() & 0o7777)
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

/// What is open, as a path for calls that take no descriptor.
pub(super) fn place(fd: &impl AsFd) -> PathBuf {
    sys::fd_path(fd).into()
}

/// Missing paths are skipped by both: what is not there needs no protection.
fn make_readonly(kernel: &dyn Kernel, root: &Rooted, path: &str) -> io::Result<()> {
    let Some(place) = find(root, path)? else { return Ok(()) };
    let copy = kernel.clone_mount_at(place.as_fd())?;
    kernel.set_readonly(copy.as_fd(), true)?;
    kernel.move_mount(copy.as_fd(), place.as_fd())
}

fn mask(kernel: &dyn Kernel, root: &Rooted, path: &str, null: &OwnedFd) -> io::Result<()> {
    let Some(found) = find(root, path)? else { return Ok(()) };
    let found = std::fs::File::from(found);
    match found.metadata()?.is_dir() {
        true => kernel.mount("tmpfs", &place(&found), "tmpfs", libc::MS_RDONLY, "size=0k"),
        false => kernel.move_mount(null.as_fd(), found.as_fd()),
    }
}

fn find(root: &Rooted, path: &str) -> io::Result<Option<OwnedFd>> {
    match root.lookup(path, Resolve::IN_ROOT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// The terminal as /dev/console, where programs look for one. A link there is not followed (CVE-2025-52565).
pub(super) fn mount_console(kernel: &dyn Kernel, slave: &OwnedFd) -> io::Result<()> {
    let dev = kernel.root()?.lookup("/dev", Resolve::NO_SYMLINKS)?;
    let make = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_WRONLY;
    exists_is_fine(sys::open_at(dev.as_fd(), c"console", make, 0o600).map(drop))?;
    let place = sys::open_at(dev.as_fd(), c"console", libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    if std::fs::File::from(place.try_clone()?).metadata()?.is_symlink() {
        return Err(io::Error::other("/dev/console is a symbolic link"));
    }
    kernel.move_mount(kernel.clone_mount_at(slave.as_fd())?.as_fd(), place.as_fd())
}

#[cfg(test)]
#[path = "rootfs_tests.rs"]
mod tests;
