//! Words of a caller that become parts of paths, file names or arguments of plug-ins: looked at before any of that.
//!
//! The kubelet sends DNS names; other callers of CRI are freer, so the rule here is what every such place can take.

use std::path::{Component, Path};

use cri::v1;

use crate::error::{Error, Result};

pub(crate) fn check_sandbox(config: &v1::PodSandboxConfig) -> Result<()> {
    let Some(metadata) = &config.metadata else {
        return Err(Error::Invalid("sandbox config must include metadata".into()));
    };
    check_name("pod name", &metadata.name)?;
    for (what, name) in [("pod namespace", &metadata.namespace), ("pod uid", &metadata.uid)] {
        if !name.is_empty() {
            check_name(what, name)?;
        }
    }
    check_inner_path("cgroup parent", config.linux.as_ref().map_or("", |linux| &linux.cgroup_parent))?;
    check_inner_path("log directory", &config.log_directory)
}

pub(crate) fn check_container(config: &v1::ContainerConfig) -> Result<()> {
    let Some(metadata) = &config.metadata else {
        return Err(Error::Invalid("container config must include metadata".into()));
    };
    check_name("container name", &metadata.name)?;
    if config.log_path.starts_with('/') {
        return Err(Error::Invalid(format!("log path {:?} is not relative", config.log_path)));
    }
    check_inner_path("log path", &config.log_path)
}

/// One part of a path, without anything that a shell, a file format or a plug-in could read as more than a name.
fn check_name(what: &str, name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match starts_plain && name.len() <= 253 && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(Error::Invalid(format!("invalid {what} {name:?}"))),
    }
}

/// A path that never goes up.
fn check_inner_path(what: &str, path: &str) -> Result<()> {
    let goes_up = Path::new(path).components().any(|part| part == Component::ParentDir);
    match goes_up || path.contains('\0') {
        true => Err(Error::Invalid(format!("{what} {path:?} leaves its directory"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_names_are_one_part_of_a_path() {
        for (name, fine) in [
            ("web-0", true),
            ("PodSandbox-for-test_1.2", true),
            ("", false),
            (".", false),
            ("..", false),
            ("/etc/cron.d", false),
            ("a/b", false),
            ("a\0", false),
            ("a\nb", false),
            ("a;K8S_POD_NAME=b", false),
        ] {
            assert_eq!(check_name("name", name).is_ok(), fine, "{name:?}");
            let metadata = Some(v1::PodSandboxMetadata { name: name.into(), ..Default::default() });
            let pod = v1::PodSandboxConfig { metadata, ..Default::default() };
            assert_eq!(check_sandbox(&pod).is_ok(), fine, "{name:?}");
            let metadata = Some(v1::ContainerMetadata { name: name.into(), ..Default::default() });
            let container = v1::ContainerConfig { metadata, ..Default::default() };
            assert_eq!(check_container(&container).is_ok(), fine, "{name:?}");
        }
    }

    #[test]
    fn security_logs_and_cgroups_stay_below_their_parent() {
        let metadata = v1::PodSandboxMetadata { name: "p".into(), namespace: "n".into(), uid: "u".into(), attempt: 0 };
        for (parent, logs, fine) in [
            ("/kubepods/podu", "/var/log/pods/x", true),
            ("", "", true),
            ("/kubepods/../..", "", false),
            ("", "/var/log/pods/../../../etc", false),
        ] {
            let linux = v1::LinuxPodSandboxConfig { cgroup_parent: parent.into(), ..Default::default() };
            let config = v1::PodSandboxConfig {
                metadata: Some(metadata.clone()),
                log_directory: logs.into(),
                linux: Some(linux),
                ..Default::default()
            };
            assert_eq!(check_sandbox(&config).is_ok(), fine, "{parent} {logs}");
        }
        for (path, fine) in [("", true), ("c/0.log", true), ("/etc/cron.d/x", false), ("../x.log", false)] {
            let config = v1::ContainerConfig {
                metadata: Some(v1::ContainerMetadata { name: "c".into(), attempt: 0 }),
                log_path: path.into(),
                ..Default::default()
            };
            assert_eq!(check_container(&config).is_ok(), fine, "{path}");
        }
    }
}
