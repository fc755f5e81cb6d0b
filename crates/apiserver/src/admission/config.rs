//! `--admission-control-config-file`: settings of single plug-ins, inline or in files of their own.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The settings of each plug-in that the file names.
#[derive(Default)]
pub(super) struct Settings(BTreeMap<String, Value>);

/// The settings of one plug-in; `None` when the file does not name it.
pub(super) type Setting = Option<Value>;

impl Settings {
    pub(super) fn load(path: &Path) -> anyhow::Result<Self> {
        let file = read_yaml(path)?;
        let (version, kind) = (file["apiVersion"].as_str(), file["kind"].as_str());
        let known = matches!(version, Some("apiserver.config.k8s.io/v1" | "apiserver.k8s.io/v1alpha1"));
        anyhow::ensure!(
            known && kind == Some("AdmissionConfiguration"),
            "{}: no kind {:?} is registered for version {:?}",
            path.display(),
            kind.unwrap_or_default(),
            version.unwrap_or_default()
        );
        let mut settings = BTreeMap::new();
        for plugin in file["plugins"].as_array().into_iter().flatten() {
            let name = plugin["name"].as_str().unwrap_or_default();
            let inline = Some(&plugin["configuration"]).filter(|value| !value.is_null());
            let setting = match (inline, plugin["path"].as_str().filter(|path| !path.is_empty())) {
                (Some(inline), _) => inline.clone(),
                // Relative to the file that names it.
                (None, Some(other)) => read_yaml(&path.parent().unwrap_or(Path::new("")).join(other))?,
                (None, None) => continue,
            };
            settings.insert(name.to_owned(), setting);
        }
        Ok(Self(settings))
    }

    pub(super) fn take(&mut self, plugin: &str) -> Setting {
        self.0.remove(plugin)
    }
}

/// Reads one YAML (or JSON) document.
pub(super) fn read_yaml(path: &Path) -> anyhow::Result<Value> {
    let bytes = std::fs::read(path).with_context(|| format!("unable to read {}", path.display()))?;
    let decoded = api::codec::from_yaml(&bytes).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    Ok(decoded.value)
}

/// A setting as the plug-in's own type, after checking that it is of the expected kind.
pub(super) fn parse<T: DeserializeOwned>(setting: Value, versions: &[&str], kind: &str) -> anyhow::Result<T> {
    let found = (setting["apiVersion"].as_str().unwrap_or_default(), setting["kind"].as_str().unwrap_or_default());
    anyhow::ensure!(
        versions.contains(&found.0) && found.1 == kind,
        "no kind {:?} is registered for version {:?}",
        found.1,
        found.0
    );
    serde_json::from_value(setting).with_context(|| format!("{kind} does not have the expected form"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_stand_inline_or_in_a_file_beside() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("admission.yaml");
        std::fs::write(dir.path().join("limits.yaml"), "kind: Limits\nvalue: 2\n").unwrap();
        let text = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n\
                    - name: A\n  configuration:\n    value: 1\n- name: B\n  path: limits.yaml\n- name: C\n";
        std::fs::write(&file, text).unwrap();
        let mut settings = Settings::load(&file).unwrap();
        assert_eq!(settings.take("A").unwrap()["value"], 1);
        assert_eq!(settings.take("B").unwrap()["value"], 2);
        assert!(settings.take("C").is_none());
        std::fs::write(&file, "apiVersion: v1\nkind: Pod\n").unwrap();
        assert!(Settings::load(&file).is_err());
    }
}
