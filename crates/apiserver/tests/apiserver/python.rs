//! PyPI's `kubernetes` client: another library, generated from upstream's own description of the API.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::Cluster;

/// The interpreter that `scripts/deps` sets up beside the build.
fn python() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().find(|dir| dir.join("python/bin/python").exists());
    target.expect("no Python with the kubernetes client: run scripts/deps").join("python/bin/python")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_every_group_live_and_die() {
    let cluster = Cluster::unprotected().await;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apiserver");
    let mut command = Command::new(python());
    command.arg(sources.join("client.py")).arg(cluster.kubeconfig()).arg(sources.join("every_group.yaml"));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.ends_with("ok typed\n"), "{out}");
}
