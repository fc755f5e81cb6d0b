//! Finding rows: by URL, by kind, by where objects are stored.

use std::collections::HashMap;
use std::sync::Arc;

use super::resource::{Resource, Serving};
use super::table;

/// The rows this server serves, in table order.
pub(crate) struct Registry {
    rows: Vec<Arc<Resource>>,
    by_url: HashMap<String, HashMap<String, HashMap<String, Arc<Resource>>>>,
}

/// Which alpha and beta versions are on: `--runtime-config`.
#[derive(Clone, Debug, Default)]
pub struct RuntimeConfig(pub Vec<(String, bool)>);

impl RuntimeConfig {
    /// Parses `api/all=true,batch/v1=false`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(|entry| {
            let (key, value) = entry.split_once('=').unwrap_or((entry, "true"));
            match value {
                "true" | "" => Ok((key.to_owned(), true)),
                "false" => Ok((key.to_owned(), false)),
                other => Err(format!("runtime-config {key}: invalid value {other:?}, expected true or false")),
            }
        });
        entries.collect::<Result<_, _>>().map(Self)
    }

    fn serves(&self, row: &Resource) -> bool {
        let mut served = row.is_default();
        let exact = row.api_version();
        let setting = |key: &str| self.0.iter().rev().find(|(name, _)| name == key).map(|(_, on)| *on);
        let beta = row.version.contains("beta");
        let alpha = row.version.contains("alpha");
        for key in [
            "api/all",
            if beta {
                "api/beta"
            } else if alpha {
                "api/alpha"
            } else {
                "api/ga"
            },
        ] {
            if let Some(on) = setting(key) {
                served = on;
            }
        }
        for key in [exact.clone(), format!("{exact}/{}", row.plural)] {
            if let Some(on) = setting(&key) {
                served = on;
            }
        }
        served
    }
}

impl Registry {
    pub(crate) fn new(runtime_config: &RuntimeConfig) -> Self {
        let mut rows = table::resources();
        rows.retain(|row| runtime_config.serves(row));
        let initializers = rows.iter().any(|row| row.plural == "initializerconfigurations");
        rows.iter_mut().for_each(|row| row.initializers = initializers);
        let rows: Vec<Arc<Resource>> = rows.into_iter().map(Arc::new).collect();
        let mut by_url: HashMap<String, HashMap<String, HashMap<String, Arc<Resource>>>> = HashMap::new();
        for row in &rows {
            by_url
                .entry(row.group.to_string())
                .or_default()
                .entry(row.version.to_string())
                .or_default()
                .insert(row.plural.to_string(), row.clone());
        }
        Self { rows, by_url }
    }

    pub(crate) fn rows(&self) -> &[Arc<Resource>] {
        &self.rows
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_url.get(group)?.get(version)?.get(plural)
    }

    pub(crate) fn has_version(&self, group: &str, version: &str) -> bool {
        self.by_url.get(group).is_some_and(|versions| versions.contains_key(version))
    }

    /// The row of a resource in any version, preferred version first.
    pub(crate) fn find_any(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.rows.iter().find(|row| row.group == group && row.plural == plural)
    }

    /// Prefixes under which objects are stored.
    pub(crate) fn prefixes(&self) -> Vec<&str> {
        let stored = self.rows.iter().filter(|row| row.serving == Serving::Stored);
        stored.map(|row| &*row.store_prefix).collect()
    }

    /// Groups in discovery order, each with its versions, the preferred one first.
    pub(crate) fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for row in &self.rows {
            match groups.iter_mut().find(|(group, _)| *group == row.group) {
                Some((_, versions)) if versions.contains(&&*row.version) => {}
                Some((_, versions)) => versions.push(&row.version),
                None => groups.push((&row.group, vec![&row.version])),
            }
        }
        for (_, versions) in &mut groups {
            versions.sort_by_key(|version| version_rank(version));
        }
        groups
    }
}

/// Sorts v2 before v1 before v1beta2 before v1beta1 before v1alpha1.
fn version_rank(version: &str) -> (u8, std::cmp::Reverse<u32>, std::cmp::Reverse<u32>) {
    let body = version.trim_start_matches('v');
    let digits = |text: &str| text.parse().unwrap_or(0);
    let (stability, major, minor) = if let Some((major, minor)) = body.split_once("beta") {
        (1, digits(major), digits(minor))
    } else if let Some((major, minor)) = body.split_once("alpha") {
        (2, digits(major), digits(minor))
    } else {
        (0, digits(body), 0)
    };
    (stability, std::cmp::Reverse(major), std::cmp::Reverse(minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_config_turns_versions_on_and_off() {
        for (config, resource, served) in [
            ("", ("", "v1", "pods"), true),
            ("", ("resource.k8s.io", "v1alpha3", "devicetaintrules"), false),
            ("api/all=true", ("resource.k8s.io", "v1alpha3", "devicetaintrules"), true),
            ("resource.k8s.io/v1alpha3=true", ("resource.k8s.io", "v1alpha3", "devicetaintrules"), true),
            ("batch/v1=false", ("batch", "v1", "jobs"), false),
        ] {
            let registry = Registry::new(&RuntimeConfig::parse(config).unwrap());
            let (group, version, plural) = resource;
            assert_eq!(registry.find(group, version, plural).is_some(), served, "{config} {resource:?}");
        }
    }

    #[test]
    fn preferred_versions_come_first() {
        let registry = Registry::new(&RuntimeConfig::default());
        let groups = registry.groups();
        let autoscaling = groups.iter().find(|(group, _)| *group == "autoscaling").unwrap();
        assert_eq!(autoscaling.1, ["v2", "v1"]);
    }
}
