//! What was applied from which file, and what is wrong with it: for the next start, and for `cox status`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::objects::Identity;
use crate::options::Options;
use crate::pki::write_private;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// What is wrong with the directory itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub files: BTreeMap<String, File>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct File {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// All that is or may be applied.
    pub objects: Vec<Identity>,
}

impl Record {
    /// Nothing was applied only if there is no file.
    pub(crate) fn load(options: &Options) -> Result<Record> {
        let path = options.manifests_record();
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| path.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Record::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    pub(super) fn save(&self, options: &Options) -> Result<()> {
        write_private(&options.manifests_record(), &serde_json::to_vec_pretty(self)?)
    }

    /// For people: what there is, and a line for everything that is wrong.
    pub(crate) fn lines(&self) -> Vec<String> {
        let objects: usize = self.files.values().map(|file| file.objects.len()).sum();
        let first = format!("{} files, {objects} objects", self.files.len());
        let wrong = self.files.iter().filter_map(|(name, file)| Some(format!("{name}: {}", file.error.as_ref()?)));
        [first].into_iter().chain(self.error.clone()).chain(wrong).collect()
    }
}
