//! What a namespace asks for: a level and a version of the standards for each of enforce, audit and warn.

use std::collections::BTreeMap;
use std::fmt;

use api::field::FieldErrors;

const PREFIX: &str = "pod-security.kubernetes.io/";

/// In order of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "privileged" => Ok(Level::Privileged),
            "baseline" => Ok(Level::Baseline),
            "restricted" => Ok(Level::Restricted),
            _ => Err("must be one of privileged, baseline, restricted"),
        }
    }
}

/// A minor version of the standards; `latest` is newer than any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    Minor(u32),
    Latest,
}

impl Version {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "must be \"latest\" or \"v1.x\"";
        if text == "latest" {
            return Ok(Version::Latest);
        }
        let digits = text.strip_prefix("v1.").ok_or(WRONG)?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
        digits.parse().ok().filter(|_| plain).map(Version::Minor).ok_or(WRONG)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelVersion {
    pub(super) level: Level,
    pub(super) version: Version,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
            Version::Latest => write!(f, "{level}:latest"),
        }
    }
}

impl LevelVersion {
    pub(super) const PRIVILEGED: Self = Self { level: Level::Privileged, version: Version::Latest };

    pub(super) fn is_privileged(self) -> bool {
        self.level == Level::Privileged
    }

    fn is_equivalent(self, other: Self) -> bool {
        self == other || (self.is_privileged() && other.is_privileged())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) enforce: LevelVersion,
    pub(super) audit: LevelVersion,
    pub(super) warn: LevelVersion,
}

impl Policy {
    pub(super) const PRIVILEGED: Self =
        Self { enforce: LevelVersion::PRIVILEGED, audit: LevelVersion::PRIVILEGED, warn: LevelVersion::PRIVILEGED };

    pub(super) fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].into_iter().all(LevelVersion::is_privileged)
    }

    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
        self.enforce.is_equivalent(other.enforce)
            && self.audit.is_equivalent(other.audit)
            && self.warn.is_equivalent(other.warn)
    }

    /// Reads the labels of a namespace. There is always a policy: where a label is wrong, enforce is strict and the
    /// two that only speak stay silent.
    pub(super) fn of(labels: Option<&BTreeMap<String, String>>, defaults: Policy) -> (Self, FieldErrors) {
        let mut policy = defaults;
        let mut errors = FieldErrors::default();
        let has_any = |labels: &&BTreeMap<String, String>| labels.keys().any(|key| key.starts_with(PREFIX));
        let Some(labels) = labels.filter(has_any) else { return (policy, errors) };
        let mut read = |mode: &str, target: &mut LevelVersion, wrong: Level| -> (Option<bool>, bool) {
            let (level_key, version_key) = (format!("{PREFIX}{mode}"), format!("{PREFIX}{mode}-version"));
            let mut valid = None;
            if let Some(text) = labels.get(&level_key) {
                let parsed = Level::parse(text);
                valid = Some(parsed.is_ok());
                target.level = parsed.unwrap_or_else(|problem| {
                    errors.invalid(format!("metadata.labels[{level_key}]"), text, problem);
                    wrong
                });
            }
            let version = labels.get(&version_key);
            if let Some(text) = version {
                target.version = Version::parse(text).unwrap_or_else(|problem| {
                    errors.invalid(format!("metadata.labels[{version_key}]"), text, problem);
                    Version::Latest
                });
            }
            (valid, version.is_some())
        };
        let (enforced, _) = read("enforce", &mut policy.enforce, Level::Restricted);
        read("audit", &mut policy.audit, Level::Privileged);
        let (warned, warn_version) = read("warn", &mut policy.warn, Level::Privileged);
        // Whoever enforces something also wants to hear about it for workloads, which enforce does not touch.
        if warned.is_none() && enforced == Some(true) && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if !warn_version {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, errors)
    }

    /// The modes that labels set to more than privileged: `enforce=baseline:latest, warn=restricted:v1.30`.
    pub(super) fn describe(&self, labels: Option<&BTreeMap<String, String>>) -> String {
        let is_set = |key: String| labels.is_some_and(|labels| labels.contains_key(&key));
        let modes = [("enforce", self.enforce), ("audit", self.audit), ("warn", self.warn)];
        let shown = modes.into_iter().filter(|(mode, chosen)| {
            !chosen.is_privileged() && (is_set(format!("{PREFIX}{mode}")) || is_set(format!("{PREFIX}{mode}-version")))
        });
        shown.map(|(mode, chosen)| format!("{mode}={chosen}")).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_policies() {
        for (labels, enforce, audit, warn, errors) in [
            (&[][..], "privileged:latest", "privileged:latest", "privileged:latest", 0),
            (&[("enforce", "baseline")][..], "baseline:latest", "privileged:latest", "baseline:latest", 0),
            (
                &[("enforce", "restricted"), ("enforce-version", "v1.28"), ("warn", "privileged")],
                "restricted:v1.28",
                "privileged:latest",
                "privileged:latest",
                0,
            ),
            (
                &[("enforce", "restricted"), ("enforce-version", "v1.28")],
                "restricted:v1.28",
                "privileged:latest",
                "restricted:v1.28",
                0,
            ),
            (
                &[("enforce", "strict"), ("audit", "x"), ("warn", "y")],
                "restricted:latest",
                "privileged:latest",
                "privileged:latest",
                3,
            ),
            (&[("audit-version", "1.2")], "privileged:latest", "privileged:latest", "privileged:latest", 1),
        ] {
            let labels: BTreeMap<String, String> =
                labels.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned())).collect();
            let (policy, problems) = Policy::of(Some(&labels), Policy::PRIVILEGED);
            let found = [policy.enforce, policy.audit, policy.warn].map(|chosen| chosen.to_string());
            assert_eq!(found, [enforce, audit, warn], "{labels:?}");
            assert_eq!(problems.len(), errors, "{labels:?}");
        }
        for wrong in ["1.30", "v2.0", "v1.", "v1.x", "v1.01", ""] {
            assert!(Version::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Version::Minor(99) < Version::Latest);
    }
}
