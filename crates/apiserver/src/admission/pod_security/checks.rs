//! The checks of the Pod Security Standards: one table with the versions in which each changed.

use super::policy::{Level, LevelVersion, Version};
use super::subject::Subject;
use super::{baseline, restricted};

/// What is wrong: in few words, and in full.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) reason: &'static str,
    pub(super) detail: String,
}

pub(super) type Check = fn(&Subject<'_>) -> Option<Violation>;

struct Row {
    level: Level,
    /// The name of the check, which also orders the messages.
    id: &'static str,
    /// From this minor version on the check is this one.
    versions: &'static [(u32, Check)],
    /// The weaker check of the baseline that this one replaces.
    overrides: Option<&'static str>,
}

const fn baseline(id: &'static str, versions: &'static [(u32, Check)]) -> Row {
    Row { level: Level::Baseline, id, versions, overrides: None }
}

const fn restricted(id: &'static str, versions: &'static [(u32, Check)], overrides: Option<&'static str>) -> Row {
    Row { level: Level::Restricted, id, versions, overrides }
}

/// Sorted by level, then by name: the order of the messages.
const CHECKS: &[Row] = &[
    baseline("appArmorProfile", &[(0, baseline::app_armor_profile)]),
    baseline("capabilities_baseline", &[(0, baseline::capabilities)]),
    baseline("hostNamespaces", &[(0, baseline::host_namespaces)]),
    baseline("hostPathVolumes", &[(0, baseline::host_path_volumes)]),
    baseline("hostPorts", &[(0, baseline::host_ports)]),
    baseline("hostProbesAndHostLifecycle", &[(34, baseline::host_probes)]),
    baseline("privileged", &[(0, baseline::privileged)]),
    baseline("procMount", &[(0, baseline::proc_mount)]),
    baseline("seLinuxOptions", &[(0, baseline::se_linux_1_0), (31, baseline::se_linux_1_31)]),
    baseline("seccompProfile_baseline", &[(0, baseline::seccomp_1_0), (19, baseline::seccomp_1_19)]),
    baseline(
        "sysctls",
        &[
            (0, baseline::sysctls_1_0),
            (27, baseline::sysctls_1_27),
            (29, baseline::sysctls_1_29),
            (32, baseline::sysctls_1_32),
        ],
    ),
    baseline("windowsHostProcess", &[(0, baseline::windows_host_process)]),
    restricted(
        "allowPrivilegeEscalation",
        &[(8, restricted::privilege_escalation), (25, restricted::privilege_escalation_1_25)],
        None,
    ),
    restricted(
        "capabilities_restricted",
        &[(22, restricted::capabilities), (25, restricted::capabilities_1_25)],
        Some("capabilities_baseline"),
    ),
    restricted("procMount_restricted", &[(35, baseline::proc_mount)], Some("procMount")),
    restricted("restrictedVolumes", &[(0, restricted::volumes)], Some("hostPathVolumes")),
    restricted("runAsNonRoot", &[(0, restricted::run_as_non_root)], None),
    restricted("runAsUser", &[(23, restricted::run_as_user)], None),
    restricted(
        "seccompProfile_restricted",
        &[(19, restricted::seccomp), (25, restricted::seccomp_1_25)],
        Some("seccompProfile_baseline"),
    ),
];

impl Row {
    fn at(&self, version: Version) -> Option<Check> {
        let in_force = self.versions.iter().rev().find(|(since, _)| Version::Minor(*since) <= version);
        in_force.map(|(_, check)| *check)
    }
}

/// All that a pod does against a level of the standards.
pub(super) fn violations(wanted: LevelVersion, subject: &Subject<'_>) -> Vec<Violation> {
    if wanted.is_privileged() {
        return Vec::new();
    }
    let in_force: Vec<(&Row, Check)> = CHECKS
        .iter()
        .filter(|row| row.level <= wanted.level)
        .filter_map(|row| Some((row, row.at(wanted.version)?)))
        .collect();
    let is_overridden = |id: &str| in_force.iter().any(|(row, _)| row.overrides == Some(id));
    in_force.iter().filter(|(row, _)| !is_overridden(row.id)).filter_map(|(_, check)| check(subject)).collect()
}

/// `host ports (8080, 9090), privileged`.
pub(super) fn detail(violations: &[Violation]) -> String {
    let shown = violations.iter().map(|violation| match violation.detail.as_str() {
        "" => violation.reason.to_owned(),
        detail => format!("{} ({detail})", violation.reason),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// `host ports, privileged`.
pub(super) fn reasons(violations: &[Violation]) -> String {
    violations.iter().map(|violation| violation.reason).collect::<Vec<_>>().join(", ")
}
