//! What the configuration of a sandbox says, where it leaves something out.

use std::fs;

use cri::v1;

use crate::error::{Error, Result};

/// Files of `/etc` that all containers of a pod see and may write to.
pub(crate) const SHARED_FILES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

pub(crate) fn namespace_options(config: &v1::PodSandboxConfig) -> v1::NamespaceOption {
    config
        .linux
        .as_ref()
        .and_then(|l| l.security_context.as_ref())
        .and_then(|s| s.namespace_options.clone())
        .unwrap_or_default()
}

/// Root in a user namespace is nobody outside: who asks for one must not get the node's root.
pub(crate) fn check_users(options: &v1::NamespaceOption) -> Result<()> {
    let users = options.userns_options.as_ref();
    match users.is_some_and(|users| users.mode() != v1::NamespaceMode::Node) {
        true => Err(Error::Invalid("this runtime has no user namespaces".into())),
        false => Ok(()),
    }
}

pub(crate) fn hostname(config: &v1::PodSandboxConfig) -> String {
    if !config.hostname.is_empty() {
        return config.hostname.clone();
    }
    fs::read_to_string("/proc/sys/kernel/hostname").map(|h| h.trim().to_string()).unwrap_or_default()
}

pub(crate) fn cgroup_parent(config: &v1::PodSandboxConfig) -> String {
    config.linux.as_ref().map(|l| l.cgroup_parent.clone()).unwrap_or_default()
}
