//! How a command reaches the cluster that it is about.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use client::Client;
use client::kubeconfig::{Kubeconfig, Overrides};

/// Flags of a command about objects of any cluster.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Target {
    /// Namespace of the object (default: the context's)
    #[arg(short, long)]
    namespace: Option<String>,
    /// The kubeconfig file to use
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long)]
    context: Option<String>,
}

impl Target {
    /// A client whose default namespace is the one that is meant.
    pub(crate) fn connect(self) -> Result<Client> {
        let config = Kubeconfig::load(self.kubeconfig.as_deref()).context("reading the kubeconfig")?;
        let overrides = Overrides { context: self.context, namespace: self.namespace, ..Overrides::default() };
        Ok(Client::from_kubeconfig(&config, &overrides)?)
    }
}

/// Connects as whom a kubeconfig of an administrator names.
pub(crate) fn connect(path: &Path) -> Result<Client> {
    let config = Kubeconfig::read(path).with_context(|| format!("{}: has 'cox up' run?", path.display()))?;
    Ok(Client::from_kubeconfig(&config, &Overrides::default())?)
}
