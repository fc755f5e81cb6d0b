//! The kubectl to compare with, and how old it is.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

pub(crate) struct Peer {
    pub(crate) program: PathBuf,
    /// The 20 of v1.20.2: what is listed as different depends on it.
    pub(crate) minor: u32,
    version: String,
}

impl Peer {
    pub(crate) fn find() -> Peer {
        let program = testkit::peers::kubectl();
        let output = Command::new(&program)
            .args(["version", "--client", "-o", "json"])
            .output()
            .unwrap_or_else(|e| panic!("{}: {e}; scripts/deps installs one", program.display()));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let version = answer["clientVersion"]["gitVersion"].as_str().unwrap().to_owned();
        // One built without a version is somebody's newest.
        let minor = match version.strip_prefix("v1.") {
            Some(rest) => rest.split('.').next().unwrap().parse().unwrap(),
            None => u32::MAX,
        };
        Peer { program, minor, version }
    }

    pub(crate) fn describe(&self) -> String {
        format!("kubectl {}", self.version)
    }
}
