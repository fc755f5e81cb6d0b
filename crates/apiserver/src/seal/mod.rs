//! Encryption at rest: what lies between everything here and the bytes in the store.
//!
//! Flow: `verbs` and `watch_cache` -> [`Sealed`] (a store that seals what is put and opens what is read) -> the embedded
//! store or etcd. Which resources are sealed, and with what, says an EncryptionConfiguration ([`config`]): the first
//! provider of a resource writes, all of them read. The bytes are those of upstream, prefix and authenticated data
//! included, so either server reads what the other wrote.
//! Invariant: what cannot be opened is an unreadable object, never an absent one, and never one in plain text where
//! the configuration does not allow plain text.

mod cipher;
mod config;
mod foreign;
mod kms;
mod messages;
mod providers;
mod rewrite;
mod rules;
mod store;

pub use config::{EncryptionConfiguration, Key, Keys, KmsConfiguration, ProviderConfiguration, ResourceConfiguration};
pub(crate) use foreign::{Foreign, ForeignError};
pub use rewrite::{Unreadable, first_sealed, open_others, rewrite_store, seal_values};
pub(crate) use rules::{Seals, UnhealthyKeyServices};
pub(crate) use store::{Sealed, run};

/// What every sealed value begins with.
const SEALED: &[u8] = b"k8s:enc:";

/// Why a value could not be sealed or opened.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum SealError {
    #[error("the stored data was shorter than the required size")]
    Short,
    #[error("the stored data is not a multiple of the block size")]
    Uneven,
    #[error("invalid padding on input")]
    Padding,
    #[error("cipher: message authentication failed")]
    Forged,
    #[error("identity transformer tried to read encrypted data")]
    Encrypted,
    #[error("no matching prefix found")]
    NoKey,
    #[error("no random bytes: the system has none")]
    Random,
    #[error("{0}")]
    Envelope(String),
    #[error(transparent)]
    Foreign(ForeignError),
    #[error("KMS provider {name}: {reason}")]
    Kms { name: String, reason: String, is_silent: bool },
}
