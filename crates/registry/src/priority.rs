//! Which groups and versions clients find first. The numbers are upstream's: they stand in APIService objects and decide
//! the order of discovery, and with it what a short name means.

use std::cmp::Reverse;

/// How a version of a group ranks: the group among groups, the version within it. Higher comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    pub group: i32,
    pub version: i32,
}

/// What definitions describe ranks behind all that is built in, in the order of its version names.
pub const CUSTOM: Priority = Priority { group: 1000, version: 100 };

/// The group that says who serves the others comes first, and nobody registers it.
const REGISTRATION: (&str, Priority) = ("apiregistration.k8s.io", Priority { group: 20_000, version: 18 });

type Row = (&'static str, i32, &'static [(&'static str, i32)]);

const BUILT_IN: &[Row] = &[
    ("", 18_000, &[("v1", 1)]),
    ("apps", 17_800, &[("v1", 15)]),
    ("events.k8s.io", 17_750, &[("v1", 15), ("v1beta1", 5)]),
    ("authentication.k8s.io", 17_700, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("authorization.k8s.io", 17_600, &[("v1", 15)]),
    ("autoscaling", 17_500, &[("v2", 30), ("v1", 15)]),
    ("batch", 17_400, &[("v1", 15), ("v1beta1", 9), ("v2alpha1", 9)]),
    ("certificates.k8s.io", 17_300, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("networking.k8s.io", 17_200, &[("v1", 15), ("v1beta1", 9)]),
    ("policy", 17_100, &[("v1", 15), ("v1beta1", 9)]),
    ("rbac.authorization.k8s.io", 17_000, &[("v1", 15)]),
    ("storage.k8s.io", 16_800, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("admissionregistration.k8s.io", 16_700, &[("v1", 15), ("v1beta1", 12), ("v1alpha1", 9)]),
    ("apiextensions.k8s.io", 16_700, &[("v1", 15)]),
    ("scheduling.k8s.io", 16_600, &[("v1", 15), ("v1alpha2", 2)]),
    ("coordination.k8s.io", 16_500, &[("v1", 15), ("v1beta1", 13), ("v1alpha2", 12)]),
    ("node.k8s.io", 16_300, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("discovery.k8s.io", 16_200, &[("v1", 15), ("v1beta1", 12)]),
    ("resource.k8s.io", 16_200, &[("v1", 21), ("v1beta2", 15), ("v1beta1", 9), ("v1alpha3", 1)]),
    ("flowcontrol.apiserver.k8s.io", 16_100, &[("v1", 21), ("v1beta3", 18), ("v1beta2", 15)]),
    ("internal.apiserver.k8s.io", 16_000, &[("v1alpha1", 9)]),
    ("storagemigration.k8s.io", 15_800, &[("v1beta1", 9)]),
    // What metrics-server's own registration asks for.
    ("metrics.k8s.io", 100, &[("v1beta1", 100)]),
];

/// The priority of a built-in version; nothing for those that upstream does not register.
pub fn built_in(group: &str, version: &str) -> Option<Priority> {
    let (_, rank, versions) = BUILT_IN.iter().find(|(name, ..)| *name == group)?;
    let (_, version) = versions.iter().find(|(name, _)| *name == version)?;
    Some(Priority { group: *rank, version: *version })
}

/// The priority of whatever this server serves itself.
pub fn local(group: &str, version: &str) -> Priority {
    let registration = (group == REGISTRATION.0).then_some(REGISTRATION.1);
    registration.or_else(|| built_in(group, version)).unwrap_or(CUSTOM)
}

/// Sorts versions of one group: by priority, then v2 before v1 before v1beta2 before v1beta1 before v1alpha1, and all of
/// them before other names.
pub fn version_rank(priority: i32, version: &str) -> impl Ord + '_ {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let ranked = || {
        let body = version.strip_prefix('v')?;
        for (stability, word) in [(1, "beta"), (2, "alpha")] {
            if let Some((major, minor)) = body.split_once(word) {
                return Some((stability, Reverse(digits(major)?), Reverse(digits(minor)?), ""));
            }
        }
        Some((0, Reverse(digits(body)?), Reverse(0_u64), ""))
    };
    (Reverse(priority), ranked().unwrap_or((3, Reverse(0_u64), Reverse(0), version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_sorted_as_their_names_say() {
        let mut versions = ["foo10", "v1alpha1", "v10", "foo1", "v2", "v11beta2", "v3beta1", "v10beta3"];
        versions.sort_by(|a, b| version_rank(1, a).cmp(&version_rank(1, b)));
        assert_eq!(versions, ["v10", "v2", "v11beta2", "v10beta3", "v3beta1", "v1alpha1", "foo1", "foo10"]);
        assert!(version_rank(2, "v1alpha1") < version_rank(1, "v2"));
    }

    #[test]
    fn groups_rank_as_upstream_has_them() {
        assert_eq!(built_in("autoscaling", "v2"), Some(Priority { group: 17_500, version: 30 }));
        assert_eq!(built_in("apiregistration.k8s.io", "v1"), None);
        assert_eq!(local("example.com", "v1"), CUSTOM);
        assert!(local("apiregistration.k8s.io", "v1").group > local("", "v1").group);
    }
}
