//! The plug-in's settings: defaults for namespaces without labels, and who is left alone.

use k8s_openapi::api::core::v1::PodSpec;
use serde::Deserialize;

use super::super::Attributes;
use super::super::config::{Setting, parse};
use super::policy::{Level, LevelVersion, Policy, Version};

pub(super) struct Settings {
    pub(super) defaults: Policy,
    exemptions: Exemptions,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Exemptions {
    usernames: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Defaults {
    enforce: Option<String>,
    enforce_version: Option<String>,
    audit: Option<String>,
    audit_version: Option<String>,
    warn: Option<String>,
    warn_version: Option<String>,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    exemptions: Exemptions,
}

const VERSIONS: &[&str] = &[
    "pod-security.admission.config.k8s.io/v1",
    "pod-security.admission.config.k8s.io/v1beta1",
    "pod-security.admission.config.k8s.io/v1alpha1",
];

impl Settings {
    pub(super) fn new(setting: Setting) -> anyhow::Result<Self> {
        let Some(setting) = setting else {
            return Ok(Self { defaults: Policy::PRIVILEGED, exemptions: Exemptions::default() });
        };
        let file: File = parse(setting, VERSIONS, "PodSecurityConfiguration")?;
        let mode = |name: &str, level: Option<String>, version: Option<String>| -> anyhow::Result<LevelVersion> {
            let level = level.unwrap_or_else(|| "privileged".to_owned());
            let version = version.unwrap_or_else(|| "latest".to_owned());
            Ok(LevelVersion {
                level: Level::parse(&level)
                    .map_err(|problem| anyhow::anyhow!("defaults.{name}: Invalid value: {level:?}: {problem}"))?,
                version: Version::parse(&version).map_err(|problem| {
                    anyhow::anyhow!("defaults.{name}-version: Invalid value: {version:?}: {problem}")
                })?,
            })
        };
        let defaults = Policy {
            enforce: mode("enforce", file.defaults.enforce, file.defaults.enforce_version)?,
            audit: mode("audit", file.defaults.audit, file.defaults.audit_version)?,
            warn: mode("warn", file.defaults.warn, file.defaults.warn_version)?,
        };
        Ok(Self { defaults, exemptions: file.exemptions })
    }

    pub(super) fn exempts_namespace(&self, namespace: &str) -> bool {
        !namespace.is_empty() && self.exemptions.namespaces.iter().any(|exempt| exempt == namespace)
    }

    /// By namespace or user; says so in the audit event.
    pub(super) fn exempts(&self, attributes: &Attributes<'_>) -> bool {
        let user = &attributes.user().name;
        let why = if self.exempts_namespace(attributes.namespace) {
            "namespace"
        } else if !user.is_empty() && self.exemptions.usernames.contains(user) {
            "user"
        } else {
            return false;
        };
        super::note(attributes, "exempt", why.to_owned());
        true
    }

    pub(super) fn is_exempt_class(&self, spec: &PodSpec) -> bool {
        let class = spec.runtime_class_name.as_ref().filter(|class| !class.is_empty());
        class.is_some_and(|class| self.exemptions.runtime_classes.contains(class))
    }

    pub(super) fn exempts_runtime_class(&self, attributes: &Attributes<'_>, spec: &PodSpec) -> bool {
        let exempt = self.is_exempt_class(spec);
        if exempt {
            super::note(attributes, "exempt", "runtimeClass".to_owned());
        }
        exempt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_are_checked() {
        let with = |defaults: serde_json::Value| {
            Settings::new(Some(json!({"apiVersion": VERSIONS[0], "kind": "PodSecurityConfiguration",
                "defaults": defaults, "exemptions": {"runtimeClasses": ["sandboxed"]}})))
        };
        let settings = with(json!({"enforce": "baseline", "enforce-version": "v1.30"})).unwrap();
        assert_eq!(settings.defaults.enforce.to_string(), "baseline:v1.30");
        assert!(
            settings.is_exempt_class(&PodSpec { runtime_class_name: Some("sandboxed".into()), ..Default::default() })
        );
        let wrong = with(json!({"warn": "high"})).err().unwrap().to_string();
        assert_eq!(wrong, "defaults.warn: Invalid value: \"high\": must be one of privileged, baseline, restricted");
        assert!(Settings::new(Some(json!({"kind": "Pod"}))).is_err());
    }
}
