//! What the kernel is asked for a root filesystem, and in which order: recorded, so that no privilege is needed.

use super::*;
use crate::shim::recorded::Recorded;
use crate::spec::Rootfs;

fn filesystem(target: &str, kind: &str) -> Mount {
    let source = MountSource::Filesystem { kind: kind.into(), flags: libc::MS_NOSUID, data: String::new() };
    Mount { target: target.into(), source, ..Mount::default() }
}

fn bind(source: &Path, target: &str) -> Mount {
    Mount { target: target.into(), source: MountSource::Bind(source.into()), ..Mount::default() }
}

/// A spec whose root is a directory.
fn spec(root: &Path, mounts: Vec<Mount>) -> Spec {
    let rootfs = Rootfs {
        layers: "/layers".into(),
        lower: vec!["b".into(), "a".into()],
        upper: "/upper".into(),
        work: "/work".into(),
        target: root.into(),
        readonly: false,
    };
    Spec { rootfs, mounts, ..Spec::default() }
}

fn v2() -> Hierarchies {
    Hierarchies::V2("/sys/fs/cgroup".into())
}

/// The whole way of an ordinary container: what protects it is in place before anything of its user is, and what is
/// mounted over is the node's.
#[test]
fn devices_and_masks_are_there_before_what_users_mount() {
    let (root, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir_all(root.path().join("proc/acpi")).unwrap();
    std::fs::write(root.path().join("proc/kcore"), "").unwrap();
    std::fs::create_dir(root.path().join("proc/sys")).unwrap();
    let mounts = vec![filesystem("/proc", "proc"), filesystem("/dev", "tmpfs"), bind(volume.path(), "/data/here")];
    let mut spec = spec(root.path(), mounts);
    spec.devices = vec![Device {
        host_path: "/dev/zero".into(),
        container_path: "/dev/own/zero".into(),
        permissions: "rw".into(),
    }];
    spec.masked_paths = ["/proc/acpi", "/proc/kcore", "/proc/absent"].map(Into::into).into();
    spec.readonly_paths = ["/proc/sys", "/proc/absent"].map(Into::into).into();
    spec.rootfs.readonly = true;
    let kernel = Recorded::new(root.path());
    enter(&kernel, &spec, &v2()).unwrap();
    let calls = kernel.calls();
    let volume = volume.path().display();
    let null = ["clone /dev/null", "private /dev/null", "read-only /dev/null"].map(str::to_owned);
    let device =
        |number: &str, name: &str| [format!("device {number} </dev/{name}>"), format!("mode 666 </dev/{name}>")];
    let mut expected = vec![
        "mount / slave,rec".to_owned(),
        "enter /layers".into(),
        "mount overlay </> overlay lowerdir=b:a,upperdir=/upper,workdir=/work".into(),
    ];
    expected.extend([null.clone(), null.clone(), null].concat());
    expected.push("mount proc </proc> proc nosuid".into());
    expected.push("mount tmpfs </dev> tmpfs nosuid".into());
    for (number, name) in
        [("1:3", "null"), ("1:5", "zero"), ("1:7", "full"), ("1:8", "random"), ("1:9", "urandom"), ("5:0", "tty")]
    {
        expected.extend(device(number, name));
    }
    let zero = std::fs::metadata("/dev/zero").unwrap();
    expected.extend([
        "device 1:5 </dev/own/zero>".to_owned(),
        format!("owner {}:{} </dev/own/zero>", zero.uid(), zero.gid()),
        format!("mode {:o} </dev/own/zero>", zero.mode() & 0o7777),
        format!("clone {volume}"),
        format!("private {volume}"),
        format!("attach {volume} to </data/here>"),
        "enter </>".into(),
        "pivot".into(),
        "enter /".into(),
        "mount . slave,rec".into(),
        "unmount .".into(),
        "enter /".into(),
        "clone </proc/sys>".into(),
        "read-only all below </proc/sys>".into(),
        "attach </proc/sys> to </proc/sys>".into(),
        "mount tmpfs </proc/acpi> tmpfs ro size=0k".into(),
        "attach /dev/null to </proc/kcore>".into(),
        "read-only </>".into(),
    ]);
    assert_eq!(calls, expected);
    let link = |name: &str| std::fs::read_link(root.path().join("dev").join(name)).unwrap();
    assert_eq!(link("ptmx"), Path::new("pts/ptmx"));
    assert_eq!(link("stdout"), Path::new("/proc/self/fd/1"));
}

/// A mount gets its properties while nobody can see it yet; a shared one is taken before our mounts stop being shared.
#[test]
fn propagation_and_access_are_set_before_a_mount_is_attached() {
    let (root, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (propagation, readonly, recursive, expected) in [
        (Propagation::Private, false, false, vec!["private"]),
        (Propagation::HostToContainer, true, false, vec!["slave", "read-only"]),
        (Propagation::Bidirectional, true, true, vec!["shared", "read-only all below"]),
    ] {
        let mount = Mount { propagation, readonly, recursive_readonly: recursive, ..bind(volume.path(), "/v") };
        let kernel = Recorded::new(root.path());
        enter(&kernel, &spec(root.path(), vec![mount]), &v2()).unwrap();
        let calls = kernel.calls();
        let at = |call: &str| calls.iter().position(|known| known.starts_with(call)).unwrap();
        let volume = volume.path().display().to_string();
        let attached = at(&format!("attach {volume}"));
        let set: Vec<String> = expected.iter().map(|call| format!("{call} {volume}")).collect();
        assert_eq!(calls[attached - set.len()..attached], set, "{calls:#?}");
        let is_first = at(&format!("clone {volume}")) < at("mount / slave,rec");
        assert_eq!(is_first, propagation == Propagation::Bidirectional, "{calls:#?}");
    }
}

#[test]
fn security_what_fails_to_mount_is_named_and_the_root_is_not_entered() {
    let (root, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let kernel = Recorded { failing: "attach", ..Recorded::new(root.path()) };
    let error = enter(&kernel, &spec(root.path(), vec![bind(volume.path(), "/v")]), &v2()).unwrap_err();
    assert!(matches!(&error, Error::Mount { target, .. } if target == "/v"), "{error:?}");
    assert!(!kernel.calls().contains(&"pivot".to_owned()));
}

/// Nothing but a procfs comes over /proc, and nothing below it, however the image's links lead there.
#[test]
fn security_nothing_is_attached_inside_proc() {
    let (root, volume) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(root.path().join("proc")).unwrap();
    std::os::unix::fs::symlink("/proc", root.path().join("alias")).unwrap();
    for target in ["/proc", "/proc/sys", "/alias", "/alias/sys/kernel"] {
        let kernel = Recorded::new(root.path());
        let error = enter(&kernel, &spec(root.path(), vec![bind(volume.path(), target)]), &v2()).unwrap_err();
        assert!(error.to_string().contains("cannot be mounted because it is inside /proc"), "{target}: {error}");
        let attached: Vec<_> = kernel.calls().into_iter().filter(|call| call.starts_with("attach")).collect();
        assert!(attached.is_empty(), "{target}: {attached:?}");
    }
    // The node's own procfs may be shown.
    let kernel = Recorded::new(root.path());
    enter(&kernel, &spec(root.path(), vec![bind(Path::new("/proc"), "/proc")]), &v2()).unwrap();
    assert!(kernel.calls().contains(&"attach /proc to </proc>".to_owned()));
}

/// An image whose /proc is a link does not decide where the procfs goes.
#[test]
fn security_a_link_in_the_place_of_proc_is_refused() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", root.path().join("proc")).unwrap();
    let kernel = Recorded::new(root.path());
    let error = enter(&kernel, &spec(root.path(), vec![filesystem("/proc", "proc")]), &v2()).unwrap_err();
    assert!(matches!(&error, Error::Mount { target, .. } if target == "/proc"), "{error:?}");
    assert!(!kernel.calls().iter().any(|call| call.starts_with("mount proc")));
}

/// Nor does one whose /dev is a link decide where devices are made (CVE-2026-41579).
#[test]
fn security_a_link_in_the_place_of_dev_is_refused() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", root.path().join("dev")).unwrap();
    let kernel = Recorded::new(root.path());
    enter(&kernel, &spec(root.path(), vec![filesystem("/dev", "tmpfs")]), &v2()).unwrap_err();
    let calls = kernel.calls();
    assert!(!calls.iter().any(|call| call.starts_with("device") || call == "pivot"), "{calls:?}");
    assert_eq!(std::fs::read_dir(root.path().join("elsewhere")).unwrap().count(), 0);
}

#[test]
fn cgroups_are_mounted_by_version() {
    let root = tempfile::tempdir().unwrap();
    let mount =
        Mount { target: "/sys/fs/cgroup".into(), source: MountSource::Cgroup, readonly: true, ..Mount::default() };
    let tree = |controllers: &[&str], at: &str| cgroup::Hierarchy {
        controllers: controllers.iter().map(ToString::to_string).collect(),
        mount: at.into(),
    };
    let v1 = Hierarchies::V1(vec![
        tree(&["cpu", "cpuacct"], "/sys/fs/cgroup/cpu,cpuacct"),
        tree(&["name=systemd"], "/sys/fs/cgroup/systemd"),
    ]);
    let v1_calls = [
        "mount tmpfs </sys/fs/cgroup> tmpfs nosuid,nodev,noexec mode=755",
        "mount cgroup </sys/fs/cgroup/cpu,cpuacct> cgroup ro,nosuid,nodev,noexec cpu,cpuacct",
        "mount cgroup </sys/fs/cgroup/systemd> cgroup ro,nosuid,nodev,noexec none,name=systemd",
        "read-only </sys/fs/cgroup>",
    ];
    let v2_calls = ["mount cgroup </sys/fs/cgroup> cgroup2 ro,nosuid,nodev,noexec"];
    for (cgroups, expected) in [(v2(), &v2_calls[..]), (v1, &v1_calls[..])] {
        let kernel = Recorded::new(root.path());
        enter(&kernel, &spec(root.path(), vec![mount.clone()]), &cgroups).unwrap();
        let calls = kernel.calls();
        let start = calls.iter().position(|call| call == expected[0]).unwrap_or_else(|| panic!("{calls:#?}"));
        assert_eq!(calls[start..start + expected.len()], *expected);
    }
    let link = std::fs::read_link(root.path().join("sys/fs/cgroup/cpuacct")).unwrap();
    assert_eq!(link, Path::new("cpu,cpuacct"));
}
