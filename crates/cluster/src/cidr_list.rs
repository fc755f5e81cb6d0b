//! Ranges of addresses, as flags list them.

use anyhow::{Result, anyhow};
use api::cidr::Cidr;

/// The parts of a list that is separated by commas.
pub(crate) fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

pub(crate) fn ranges(text: &str) -> Result<Vec<Cidr>> {
    list(text).iter().map(|range| range.parse().map_err(|error| anyhow!("{range:?}: {error}"))).collect()
}
