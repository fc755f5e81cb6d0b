//! Profiles: the default one, and those of files.

use serde::Deserialize;

use super::bpf::{Action, Compare, Condition, Profile, Rule};
use super::syscalls::{TABLE, number};
use crate::capabilities;

/// Calls that a container has no business with unless it holds the capability beside them; `""` is never.
/// Everything else that this kernel generation knows is allowed. The effect is that of the default profile of docker and
/// containerd, written the other way round.
const DENIED: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "_sysctl",
            "add_key",
            "afs_syscall",
            "epoll_ctl_old",
            "epoll_wait_old",
            "getpmsg",
            "io_uring_enter",
            "io_uring_register",
            "io_uring_setup",
            "kexec_file_load",
            "kexec_load",
            "keyctl",
            "migrate_pages",
            "nfsservctl",
            "pivot_root",
            "putpmsg",
            "request_key",
            "security",
            "swapoff",
            "swapon",
            "sysfs",
            "tuxcall",
            "uselib",
            "userfaultfd",
            "ustat",
            "vserver",
        ],
    ),
    ("CAP_DAC_READ_SEARCH", &["open_by_handle_at"]),
    (
        "CAP_SYS_ADMIN",
        &[
            "fanotify_init",
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "lookup_dcookie",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "quotactl",
            "quotactl_fd",
            "setdomainname",
            "sethostname",
            "setns",
            "umount2",
            "unshare",
        ],
    ),
    ("CAP_SYS_BOOT", &["reboot"]),
    ("CAP_SYS_CHROOT", &["chroot"]),
    ("CAP_SYS_MODULE", &["delete_module", "finit_module", "init_module"]),
    ("CAP_SYS_NICE", &["get_mempolicy", "mbind", "move_pages", "set_mempolicy", "set_mempolicy_home_node"]),
    ("CAP_SYS_PACCT", &["acct"]),
    ("CAP_SYS_PTRACE", &["kcmp", "pidfd_getfd", "process_madvise"]),
    ("CAP_SYS_RAWIO", &["ioperm", "iopl"]),
    ("CAP_SYS_TIME", &["clock_settime", "settimeofday"]),
    ("CAP_SYS_TTY_CONFIG", &["vhangup"]),
    ("CAP_BPF", &["bpf"]),
    ("CAP_PERFMON", &["perf_event_open"]),
    ("CAP_SYSLOG", &["syslog"]),
];

/// New namespaces by `clone`: mount, cgroup, uts, ipc, user, pid, net.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;
/// Families of addresses that sockets may have, as masks and values: all that there are but the kernel's cryptography (38,
/// CVE-2026-31431) and virtual machines (40). The kernel reads 32 bits of the number, so the others must not count: whoever compares
/// all of them takes a family with a bit above for another one.
const FAMILIES: [(u64, u64); 7] = [
    (0xffff_ffe0, 0),
    (0xffff_fffc, 32),
    (0xffff_fffe, 36),
    (0xffff_ffff, 39),
    (0xffff_ffff, 41),
    (0xffff_fffe, 42),
    (0xffff_fffc, 44),
];
const EPERM: u16 = 1;
const ENOSYS: u16 = 38;

fn holds(set: u64, name: &str) -> bool {
    capabilities::bit(name).is_ok_and(|bit| set & bit != 0)
}

pub(crate) fn runtime_default(capabilities: u64) -> Profile {
    let admin = holds(capabilities, "CAP_SYS_ADMIN");
    let denied: Vec<&str> = DENIED
        .iter()
        // The old all-in-one capability still stands for the newer ones split from it.
        .filter(|(capability, _)| {
            let split = ["CAP_BPF", "CAP_PERFMON", "CAP_SYSLOG"].contains(capability);
            !(holds(capabilities, capability) || split && admin)
        })
        .flat_map(|(_, names)| names.iter().copied())
        .collect();
    let mut rules = Vec::new();
    for (name, number) in TABLE.iter().filter(|(name, _)| !denied.contains(name)) {
        let mut allow = |conditions: Vec<Condition>| {
            rules.push(Rule { syscall: *number, conditions, action: Action::ALLOW });
        };
        let when = |compare, value| vec![Condition { argument: 0, compare, value }];
        match *name {
            "clone" if !admin => allow(when(Compare::MaskedEqual(CLONE_NAMESPACES), 0)),
            // Its flags are in memory, where a filter cannot look: programs fall back to `clone`.
            "clone3" if !admin => {
                rules.push(Rule { syscall: *number, conditions: Vec::new(), action: Action::errno(ENOSYS) });
            }
            "personality" => {
                for value in [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff] {
                    allow(when(Compare::Equal, value));
                }
            }
            "socket" => FAMILIES.iter().for_each(|(mask, value)| allow(when(Compare::MaskedEqual(*mask), *value))),
            _ => allow(Vec::new()),
        }
    }
    Profile { default: Action::errno(EPERM), unknown: Action::errno(ENOSYS), rules }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    default_action: String,
    default_errno_ret: Option<u16>,
    #[serde(default)]
    syscalls: Vec<FileRule>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FileRule {
    names: Vec<String>,
    /// The older form, one name each.
    name: String,
    action: String,
    errno_ret: Option<u16>,
    args: Option<Vec<FileArgument>>,
    includes: Option<Selection>,
    excludes: Option<Selection>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FileArgument {
    index: u32,
    value: u64,
    value_two: u64,
    op: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Selection {
    caps: Vec<String>,
    arches: Vec<String>,
}

impl Selection {
    fn caps_held(&self, set: u64) -> bool {
        self.caps.iter().all(|c| holds(set, c))
    }

    fn is_our_architecture(&self) -> bool {
        let ours = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        self.arches.iter().any(|a| a == ours)
    }
}

/// A file that is no profile.
#[derive(Debug, thiserror::Error)]
pub enum BadProfile {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("unknown action {0:?}")]
    Action(String),
    #[error("unknown comparison {0:?}")]
    Comparison(String),
}

/// Reads a profile file. Names that this machine does not have are skipped, as everywhere.
pub(crate) fn parse(text: &str, capabilities: u64) -> Result<Profile, BadProfile> {
    let file: File = serde_json::from_str(text)?;
    let default = action(&file.default_action, file.default_errno_ret)?;
    let mut rules = Vec::new();
    for rule in &file.syscalls {
        let included = rule
            .includes
            .as_ref()
            .is_none_or(|s| s.caps_held(capabilities) && (s.arches.is_empty() || s.is_our_architecture()));
        let excluded = rule
            .excludes
            .as_ref()
            .is_some_and(|s| s.is_our_architecture() || !s.caps.is_empty() && s.caps_held(capabilities));
        if !included || excluded {
            continue;
        }
        let action = action(&rule.action, rule.errno_ret)?;
        let conditions = rule.args.iter().flatten().map(condition).collect::<Result<Vec<_>, _>>()?;
        let single = (!rule.name.is_empty()).then_some(&rule.name);
        for syscall in rule.names.iter().chain(single).filter_map(|name| number(name)) {
            rules.push(Rule { syscall, conditions: conditions.clone(), action });
        }
    }
    Ok(Profile { default, unknown: default, rules })
}

fn action(name: &str, errno: Option<u16>) -> Result<Action, BadProfile> {
    Ok(match name {
        "SCMP_ACT_ALLOW" => Action::ALLOW,
        "SCMP_ACT_ERRNO" => Action::errno(errno.unwrap_or(EPERM)),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Action::KILL_THREAD,
        "SCMP_ACT_KILL_PROCESS" => Action::KILL_PROCESS,
        "SCMP_ACT_TRAP" => Action::TRAP,
        "SCMP_ACT_TRACE" => Action::trace(errno.unwrap_or(EPERM)),
        "SCMP_ACT_LOG" => Action::LOG,
        other => return Err(BadProfile::Action(other.to_owned())),
    })
}

fn condition(argument: &FileArgument) -> Result<Condition, BadProfile> {
    let (compare, value) = match argument.op.as_str() {
        "SCMP_CMP_NE" => (Compare::NotEqual, argument.value),
        "SCMP_CMP_LT" => (Compare::Less, argument.value),
        "SCMP_CMP_LE" => (Compare::LessOrEqual, argument.value),
        "SCMP_CMP_EQ" => (Compare::Equal, argument.value),
        "SCMP_CMP_GE" => (Compare::GreaterOrEqual, argument.value),
        "SCMP_CMP_GT" => (Compare::Greater, argument.value),
        "SCMP_CMP_MASKED_EQ" => (Compare::MaskedEqual(argument.value), argument.value_two),
        other => return Err(BadProfile::Comparison(other.to_owned())),
    };
    Ok(Condition { argument: argument.index, compare, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(profile: &Profile, name: &str) -> bool {
        let number = number(name).unwrap();
        profile.rules.iter().any(|r| r.syscall == number && r.action == Action::ALLOW)
    }

    #[test]
    fn the_default_profile_follows_capabilities() {
        let plain = runtime_default(0);
        let admin = runtime_default(capabilities::bit("SYS_ADMIN").unwrap());
        for (name, without, with) in [
            ("read", true, true),
            ("execve", true, true),
            ("mount", false, true),
            ("bpf", false, true),
            ("unshare", false, true),
            ("keyctl", false, false),
            ("io_uring_setup", false, false),
            ("clone3", false, true),
            ("reboot", false, false),
        ] {
            assert_eq!((allows(&plain, name), allows(&admin, name)), (without, with), "{name}");
        }
    }

    #[test]
    fn security_no_socket_leads_to_the_kernels_cryptography() {
        let profile = runtime_default(0);
        let allows = |family: u64| {
            let holds = |condition: &Condition| match condition.compare {
                Compare::MaskedEqual(mask) => condition.argument == 0 && family & mask == condition.value,
                _ => panic!("another comparison"),
            };
            let rules = profile.rules.iter().filter(|rule| rule.syscall == number("socket").unwrap());
            rules.into_iter().any(|rule| rule.action == Action::ALLOW && rule.conditions.iter().all(holds))
        };
        for family in 0..48 {
            let expected = family != 38 && family != 40;
            for bits in [0, 1 << 32, u64::from(u32::MAX) << 32] {
                assert_eq!(allows(family | bits), expected, "{family} {bits:x}");
            }
        }
        assert!(!allows(48) && !allows(u64::MAX));
    }

    #[test]
    fn files_are_understood() {
        let text = r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,"architectures":["SCMP_ARCH_X86_64"],"syscalls":[
            {"names":["read","no_such_call"],"action":"SCMP_ACT_ALLOW"},
            {"names":["socket"],"action":"SCMP_ACT_ERRNO","errnoRet":22,"args":[{"index":0,"value":40,"op":"SCMP_CMP_EQ"}]},
            {"names":["mount"],"action":"SCMP_ACT_ALLOW","includes":{"caps":["CAP_SYS_ADMIN"]}},
            {"names":["clone"],"action":"SCMP_ACT_ALLOW","excludes":{"caps":["CAP_SYS_ADMIN"]}}]}"#;
        let profile = parse(text, 0).unwrap();
        assert_eq!(profile.default, Action::errno(38));
        assert_eq!(profile.rules.len(), 3);
        assert!(allows(&profile, "clone") && !allows(&profile, "mount"));
        let admin = parse(text, capabilities::bit("SYS_ADMIN").unwrap()).unwrap();
        assert!(!allows(&admin, "clone") && allows(&admin, "mount"));
        assert!(parse(r#"{"defaultAction":"NOPE"}"#, 0).is_err());
    }
}
