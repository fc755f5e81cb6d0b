//! `cox check`: what this host lacks to be a node, and how to get it.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Result, bail};
use futures_util::future::BoxFuture;

/// One requirement and, when it is not met, what to do about it.
struct Check {
    what: &'static str,
    met: fn() -> bool,
    remedy: &'static str,
}

/// The first is the condition for all others.
const CHECKS: &[Check] = &[
    Check {
        what: "running as root",
        met: || nix::unistd::geteuid().is_root(),
        remedy: "a node makes namespaces, mounts and firewall rules: run it with sudo",
    },
    Check {
        what: "cgroups",
        met: || cgroup::Hierarchies::detect().is_ok_and(|trees| trees.has("memory")),
        remedy: "mount cgroup2 on /sys/fs/cgroup, or the v1 controllers below it; if they have no memory controller, as on a \
                 Raspberry Pi, start the kernel with cgroup_enable=memory",
    },
    Check {
        what: "overlayfs",
        met: || file_has("/proc/filesystems", "overlay"),
        remedy: "load it with: modprobe overlay",
    },
    Check {
        what: "network namespaces",
        met: || Path::new("/proc/self/ns/net").exists(),
        remedy: "the kernel needs CONFIG_NET_NS",
    },
    Check {
        what: "nftables",
        met: || netlink::nft::tables().is_ok(),
        remedy: "the kernel needs CONFIG_NF_TABLES; load it with: modprobe nf_tables",
    },
];

/// What a node works without, with what is missing then.
const ADVICE: &[Check] = &[Check {
    what: "nftables for bridges",
    met: netlink::nft::has_bridges,
    remedy: "without CONFIG_NF_TABLES_BRIDGE pods on this node can use each other's addresses",
}];

/// Show what this host is missing to be a node
#[derive(Debug, Clone, clap::Args)]
pub struct Args {}

/// Prints every requirement; fails when one is not met.
pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(_: Args) -> Result<()> {
    let checks = answerable(CHECKS);
    let advice = if checks.len() == CHECKS.len() { ADVICE } else { &[] };
    let all = checks.iter().map(|check| ("✗", check)).chain(advice.iter().map(|check| ("!", check)));
    for (sign, check) in all {
        if (check.met)() {
            println!(" ✓ {}", check.what);
        } else {
            println!(" {sign} {}: {}", check.what, check.remedy);
        }
    }
    demand()
}

/// Fails with everything that is missing, and warns of what it would be better to have.
pub fn require() -> Result<()> {
    demand()?;
    for check in ADVICE.iter().filter(|check| !(check.met)()) {
        eprintln!("warning: {}: {}", check.what, check.remedy);
    }
    Ok(())
}

/// Those that can be judged: to who is not root, the kernel does not say what it has.
fn answerable(checks: &[Check]) -> &[Check] {
    match checks.split_first() {
        Some((first, _)) if !(first.met)() => std::slice::from_ref(first),
        _ => checks,
    }
}

/// What helps against an error of the system that says nothing of it.
pub fn remedy(error: &anyhow::Error) -> Option<&'static str> {
    remedy_for(error, nix::unistd::geteuid().is_root())
}

fn remedy_for(error: &anyhow::Error, is_root: bool) -> Option<&'static str> {
    match error.chain().find_map(|cause| Some(cause.downcast_ref::<std::io::Error>()?.kind()))? {
        ErrorKind::PermissionDenied if !is_root => Some("this user may not do that: with sudo it may work"),
        ErrorKind::ReadOnlyFilesystem => Some("--data-dir and --run-dir of 'cox up' choose other directories"),
        ErrorKind::StorageFull => Some("'df -h' shows which disk is full"),
        _ => None,
    }
}

fn demand() -> Result<()> {
    let missing: Vec<String> = answerable(CHECKS)
        .iter()
        .filter(|check| !(check.met)())
        .map(|check| format!("\n  {}: {}", check.what, check.remedy))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("this host cannot be a node yet:{}", missing.concat());
}

fn file_has(path: &str, word: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.split_whitespace().any(|found| found == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_have_a_remedy() {
        for (kind, is_root, expected) in [
            (ErrorKind::PermissionDenied, false, Some("sudo")),
            (ErrorKind::PermissionDenied, true, None),
            (ErrorKind::ReadOnlyFilesystem, true, Some("--data-dir")),
            (ErrorKind::StorageFull, true, Some("df -h")),
            (ErrorKind::NotFound, false, None),
        ] {
            let error = anyhow::Error::new(std::io::Error::from(kind)).context("/var/lib/cox/lock");
            let remedy = remedy_for(&error, is_root).unwrap_or_default();
            assert!(remedy.contains(expected.unwrap_or_default()), "{kind}: {remedy}");
            assert_eq!(remedy.is_empty(), expected.is_none(), "{kind}: {remedy}");
        }
    }

    #[test]
    fn who_is_not_root_is_not_told_of_faults_of_the_kernel() {
        let check = |what, met: fn() -> bool| Check { what, met, remedy: "" };
        let judged = |first: fn() -> bool| {
            let checks = [check("root", first), check("nftables", || false), check("overlayfs", || true)];
            answerable(&checks).iter().map(|check| check.what).collect::<Vec<_>>()
        };
        assert_eq!(judged(|| false), ["root"]);
        assert_eq!(judged(|| true), ["root", "nftables", "overlayfs"]);
    }
}
