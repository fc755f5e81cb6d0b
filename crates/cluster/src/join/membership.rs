//! What is known on a machine that has joined a cluster while nothing of it runs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::nodes::Settings;
use crate::options::Options;
use crate::pki::write_private;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Membership {
    /// The cluster's API server.
    pub(crate) server: String,
    pub(crate) settings: Settings,
}

impl Membership {
    /// None on a machine that has not joined a cluster.
    pub(crate) fn load(options: &Options) -> Result<Option<Membership>> {
        let path = file(options);
        match fs::read(&path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text).with_context(|| path.display().to_string())?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    pub(super) fn save(&self, options: &Options) -> Result<()> {
        write_private(&file(options), &serde_json::to_vec_pretty(self)?)
    }
}

fn file(options: &Options) -> PathBuf {
    options.data_dir.join("membership.json")
}

/// The credentials with which the machine introduces itself; gone once it has others.
pub(super) fn bootstrap_kubeconfig(options: &Options) -> PathBuf {
    options.data_dir.join("bootstrap.kubeconfig")
}

/// The credentials of the machine's node.
pub(super) fn node_kubeconfig(options: &Options) -> PathBuf {
    options.data_dir.join("kubelet.kubeconfig")
}
