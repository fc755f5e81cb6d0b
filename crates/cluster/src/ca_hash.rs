//! Which authority is meant, in a form that people copy.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result};

/// The hash of an authority's public key, as `sha256:<hex>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CaHash([u8; 32]);

impl CaHash {
    /// Of every certificate in a PEM file.
    pub(crate) fn of_all(pem: &str) -> Result<Vec<CaHash>> {
        let mut hashes = Vec::new();
        for block in x509_parser::pem::Pem::iter_from_buffer(pem.as_bytes()) {
            let block = block.context("the cluster's authority")?;
            let certificate = block.parse_x509().context("the cluster's authority")?;
            let key = ring::digest::digest(&ring::digest::SHA256, certificate.public_key().raw);
            hashes.push(CaHash(key.as_ref().try_into().context("a SHA-256 has 32 bytes")?));
        }
        Ok(hashes)
    }
}

impl fmt::Display for CaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is no hash of an authority's key.
#[derive(Debug, thiserror::Error)]
#[error("a hash has the form sha256:<64 hexadecimal digits>")]
pub(crate) struct BadHash;

impl FromStr for CaHash {
    type Err = BadHash;

    fn from_str(text: &str) -> Result<CaHash, BadHash> {
        let parse = || {
            let hex = text.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.is_ascii())?;
            let mut bytes = [0; 32];
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
            }
            Some(CaHash(bytes))
        };
        parse().ok_or(BadHash)
    }
}
