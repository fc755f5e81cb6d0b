//! Records beside volumes: what a later kubelet must know to take down what an earlier one has set up.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What an unfinished record is called.
pub(super) const UNFINISHED: &str = "json.new";

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    serde_json::from_slice(&std::fs::read(path)?).map_err(io::Error::other)
}

/// Written in one step, so that it is there as a whole or not at all.
pub(super) fn write<T: Serialize>(record: &T, path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let new = path.with_extension(UNFINISHED);
    let mut file = std::fs::File::create(&new)?;
    file.write_all(&serde_json::to_vec(record).map_err(io::Error::other)?)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}
