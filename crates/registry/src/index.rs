//! Finding rows: by URL, by kind, by where objects are stored.

use std::collections::HashMap;
use std::sync::Arc;

use api::sort::CompactSort as _;
use parking_lot::RwLock;

use super::resource::{Resource, Serving};
use super::{priority, table};

/// All that this server serves: what is built in, and the kinds that definitions describe. Built-in rows are found
/// without a lock.
pub struct Registry {
    fixed: Table,
    /// With custom rows at the end.
    all: RwLock<Arc<Table>>,
}

impl Registry {
    pub fn new(runtime_config: &RuntimeConfig) -> Self {
        let fixed = Table::new(runtime_config);
        let all = RwLock::new(Arc::new(Table::of(fixed.rows.clone())));
        Self { fixed, all }
    }

    /// The rows of this moment.
    pub fn table(&self) -> Arc<Table> {
        self.all.read().clone()
    }

    /// Replaces the custom rows; returns whether they are others than before.
    pub fn set_custom(&self, custom: Vec<Arc<Resource>>) -> bool {
        let before = self.table();
        let mut rows = self.fixed.rows.clone();
        rows.extend(custom);
        let is_same = |(a, b): (&Arc<Resource>, &Arc<Resource>)| Arc::ptr_eq(a, b);
        if before.rows.len() == rows.len() && before.rows.iter().zip(&rows).all(is_same) {
            return false;
        }
        *self.all.write() = Arc::new(Table::of(rows));
        true
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let fixed = self.fixed.find(group, version, plural).cloned();
        fixed.or_else(|| self.all.read().find(group, version, plural).cloned())
    }

    /// The row of a resource in any version, preferred version first.
    pub fn find_any(&self, group: &str, plural: &str) -> Option<Arc<Resource>> {
        let fixed = self.fixed.find_any(group, plural).cloned();
        fixed.or_else(|| self.all.read().find_any(group, plural).cloned())
    }

    /// Prefixes under which built-in objects are stored.
    pub fn prefixes(&self) -> Vec<&str> {
        self.fixed.prefixes()
    }
}

/// Rows in the order in which discovery lists them.
pub struct Table {
    rows: Vec<Arc<Resource>>,
    by_url: HashMap<String, HashMap<String, HashMap<String, Arc<Resource>>>>,
}

/// A part of `--runtime-config` that is neither on nor off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("runtime-config {key}: invalid value {value:?}, expected true or false")]
pub struct BadRuntimeConfig {
    key: String,
    value: String,
}

/// Which alpha and beta versions are on: `--runtime-config`.
#[derive(Clone, Debug, Default)]
pub struct RuntimeConfig(pub Vec<(String, bool)>);

impl RuntimeConfig {
    /// Parses `api/all=true,batch/v1=false`.
    pub fn parse(text: &str) -> Result<Self, BadRuntimeConfig> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(|entry| {
            let (key, value) = entry.split_once('=').unwrap_or((entry, "true"));
            match value {
                "true" | "" => Ok((key.to_owned(), true)),
                "false" => Ok((key.to_owned(), false)),
                other => Err(BadRuntimeConfig { key: key.to_owned(), value: other.to_owned() }),
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

impl Table {
    pub fn new(runtime_config: &RuntimeConfig) -> Self {
        let mut rows = table::resources();
        rows.retain(|row| runtime_config.serves(row));
        let initializers = rows.iter().any(|row| row.plural == "initializerconfigurations");
        rows.iter_mut().for_each(|row| row.initializers = initializers);
        Self::of(rows.into_iter().map(Arc::new).collect())
    }

    fn of(rows: Vec<Arc<Resource>>) -> Self {
        let mut by_url: HashMap<String, HashMap<String, HashMap<String, Arc<Resource>>>> = HashMap::new();
        for row in &rows {
            by_url
                .entry(row.group.to_string())
                .or_default()
                .entry(row.version.to_string())
                .or_default()
                .entry(row.plural.to_string())
                .or_insert_with(|| row.clone());
        }
        Self { rows, by_url }
    }

    pub fn rows(&self) -> &[Arc<Resource>] {
        &self.rows
    }

    fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_url.get(group)?.get(version)?.get(plural)
    }

    pub fn has_version(&self, group: &str, version: &str) -> bool {
        self.by_url.get(group).is_some_and(|versions| versions.contains_key(version))
    }

    fn find_any(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.rows.iter().find(|row| row.group == group && row.plural == plural)
    }

    fn prefixes(&self) -> Vec<&str> {
        let stored = self.rows.iter().filter(|row| row.serving == Serving::Stored);
        stored.map(|row| &*row.store_prefix).collect()
    }

    /// Groups in discovery order, each with its versions, the preferred one first.
    pub fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for row in &self.rows {
            match groups.iter_mut().find(|(group, _)| *group == row.group) {
                Some((_, versions)) if versions.contains(&&*row.version) => {}
                Some((_, versions)) => versions.push(&row.version),
                None => groups.push((&row.group, vec![&row.version])),
            }
        }
        for (group, versions) in &mut groups {
            versions.compact_sort_by_key(|version| {
                priority::version_rank(priority::local(group, version).version, version)
            });
        }
        groups
    }
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
            let table = Table::new(&RuntimeConfig::parse(config).unwrap());
            let (group, version, plural) = resource;
            assert_eq!(table.find(group, version, plural).is_some(), served, "{config} {resource:?}");
        }
    }

    #[test]
    fn preferred_versions_come_first() {
        let table = Table::new(&RuntimeConfig::default());
        let groups = table.groups();
        let autoscaling = groups.iter().find(|(group, _)| *group == "autoscaling").unwrap();
        assert_eq!(autoscaling.1, ["v2", "v1"]);
    }
}
