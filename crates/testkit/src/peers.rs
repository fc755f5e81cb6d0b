//! Programs that nobody here wrote, to compare with.

use std::path::{Path, PathBuf};

/// The kubectl that `KUBECTL_PEER` names, else Debian's as `scripts/deps` unpacked it, else the one that is installed.
pub fn kubectl() -> PathBuf {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers/kubectl/usr/bin/kubectl");
    match std::env::var_os("KUBECTL_PEER") {
        Some(path) => path.into(),
        None if unpacked.exists() => unpacked,
        None => "kubectl".into(),
    }
}
