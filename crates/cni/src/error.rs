//! Errors of the protocol: what a plug-in prints, and what can go wrong in calling one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The well-known codes of the CNI specification; 100 and above are a plug-in's own.
pub mod code {
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    pub const UNSUPPORTED_FIELD: u32 = 2;
    pub const INVALID_ENVIRONMENT: u32 = 4;
    pub const IO_FAILURE: u32 = 5;
    pub const DECODING_FAILURE: u32 = 6;
    pub const INVALID_NETWORK_CONFIG: u32 = 7;
    pub const INVALID_NETNS: u32 = 8;
    pub const TRY_AGAIN_LATER: u32 = 11;
    pub const PLUGIN_NOT_AVAILABLE: u32 = 50;
    pub const INTERNAL: u32 = 999;
}

/// The error object a plug-in prints on stdout before it exits with 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{msg}{}", if .details.is_empty() { String::new() } else { format!("; {}", .details) })]
pub struct CniError {
    #[serde(default, rename = "cniVersion", skip_serializing_if = "Option::is_none")]
    pub cni_version: Option<String>,
    pub code: u32,
    pub msg: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl CniError {
    pub fn new(code: u32, msg: impl Into<String>, details: impl Into<String>) -> Self {
        Self { cni_version: None, code, msg: msg.into(), details: details.into() }
    }

    pub fn internal(msg: impl Into<String>) -> Self {
        Self::new(code::INTERNAL, msg, "")
    }

    pub fn invalid_config(msg: impl Into<String>) -> Self {
        Self::new(code::INVALID_NETWORK_CONFIG, msg, "")
    }

    /// `failed to <what>: <cause>`, the form in which kernel and file errors reach the caller.
    pub(crate) fn failed<E: std::fmt::Display>(what: impl std::fmt::Display) -> impl FnOnce(E) -> Self {
        move |cause| Self::internal(format!("failed to {what}: {cause}"))
    }
}

/// What calling plug-ins can end in.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no network config found in {}: cni plugin not initialized", .0.display())]
    NoConfig(PathBuf),
    #[error("error parsing configuration list {}: {cause}", .path.display())]
    InvalidConfig { path: PathBuf, cause: String },
    #[error("failed to find plugin {plugin:?} in path {dirs:?}")]
    PluginNotFound { plugin: String, dirs: Vec<PathBuf> },
    #[error("plugin type={plugin:?} failed ({command}): {error}")]
    Plugin { plugin: String, command: &'static str, error: CniError },
    #[error("plugin type={plugin:?} name={network:?} failed ({command}): {cause}")]
    Exec { plugin: String, network: String, command: &'static str, cause: String },
    #[error("configuration version {0:?} does not support {1} command")]
    Unsupported(String, &'static str),
    #[error("{0}")]
    InvalidArgument(String),
    #[error("cached result {}: {cause}", .path.display())]
    Cache { path: PathBuf, cause: String },
}

impl Error {
    /// Whether a plug-in was not asked because its program, or that of the IPAM plug-in which it asks, is not there.
    pub(crate) fn is_of_a_missing_program(&self) -> bool {
        match self {
            Self::PluginNotFound { .. } => true,
            // The words of the standard library of plug-ins, which has no code for this.
            Self::Plugin { error, .. } => error.msg.starts_with("failed to find plugin "),
            _ => false,
        }
    }
}
