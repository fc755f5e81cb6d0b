//! Linux capabilities: names, sets, and what a container gets by default.

use crate::spec::Capabilities;

/// In the kernel's order: the index is the number.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What containers get unless they ask for more or less; the set that every runtime agrees on.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// All capabilities that this kernel knows.
pub(crate) fn all() -> u64 {
    let last = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap")
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok())
        .unwrap_or(40);
    (1u64 << (last + 1).min(63)) - 1
}

/// `CAP_…` for each bit of a set.
pub(crate) fn names(set: u64) -> Vec<String> {
    NAMES
        .iter()
        .enumerate()
        .filter(|(index, _)| set & (1 << index) != 0)
        .map(|(_, name)| format!("CAP_{name}"))
        .collect()
}

#[derive(Debug, thiserror::Error)]
#[error("unknown capability {0:?}")]
pub(crate) struct Unknown(String);

/// The bit of a capability, with or without `CAP_`, in any case.
pub(crate) fn bit(name: &str) -> Result<u64, Unknown> {
    let upper = name.to_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES.iter().position(|known| *known == short).map(|index| 1u64 << index).ok_or_else(|| Unknown(name.to_owned()))
}

/// The sets of a container: defaults, plus `add`, minus `drop`; `ALL` stands for everything, and a single name wins
/// over it. `ambient` reach programs started by users other than root.
pub(crate) fn of_container(
    privileged: bool,
    add: &[String],
    drop: &[String],
    ambient: &[String],
) -> Result<Capabilities, Unknown> {
    let is_all = |name: &String| name.eq_ignore_ascii_case("ALL");
    let mut set = if privileged { all() } else { 0 };
    if !privileged {
        for name in DEFAULT {
            set |= bit(name)?;
        }
        if add.iter().any(is_all) {
            set = all();
        }
        if drop.iter().any(is_all) {
            set = 0;
        }
        for name in add.iter().filter(|n| !is_all(n)) {
            set |= bit(name)?;
        }
        for name in drop.iter().filter(|n| !is_all(n)) {
            set &= !bit(name)?;
        }
    }
    let mut ambient_set = 0;
    for name in ambient {
        if is_all(name) {
            ambient_set = set;
        } else {
            ambient_set |= bit(name)?;
        }
    }
    let set = set | ambient_set;
    Ok(Capabilities { bounding: set, permitted: set, effective: set, inheritable: ambient_set, ambient: ambient_set })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(add: &[&str], drop: &[&str]) -> u64 {
        let own = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        of_container(false, &own(add), &own(drop), &[]).unwrap().effective
    }

    #[test]
    fn adding_and_dropping_capabilities() {
        let default = sets(&[], &[]);
        assert_eq!(default, 0xa804_25fb);
        for (add, drop, expected) in [
            (vec!["NET_ADMIN"], vec![], default | 1 << 12),
            (vec!["cap_net_admin"], vec![], default | 1 << 12),
            (vec![], vec!["ALL"], 0),
            (vec!["CHOWN"], vec!["ALL"], 1),
            (vec!["ALL"], vec![], all()),
            (vec!["ALL"], vec!["CHOWN"], all() & !1),
            (vec![], vec!["CHOWN"], default & !1),
        ] {
            assert_eq!(sets(&add, &drop), expected, "add {add:?} drop {drop:?}");
        }
        assert!(of_container(false, &["NO_SUCH".into()], &[], &[]).is_err());
    }
}
