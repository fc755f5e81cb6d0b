//! A full disk: a small tmpfs in a mount namespace of the test's own.

use crate::{child, child_argument};
use nix::mount::{MsFlags, mount};
use std::process::Command;
use std::sync::Arc;
use store::embedded::Options;
use store::*;

#[test]
fn full_disk_refuses_writes_and_nothing_else() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: mounting needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let inside = child("disk_full::inside", dir.path());
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(inside.get_program()).args(inside.get_args());
    let done = command.env(crate::CHILD, dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && text.contains("all written again"), "{text}");
}

#[test]
fn inside() {
    let Some(dir) = child_argument() else { return };
    mount(Some("tmpfs"), &dir, Some("tmpfs"), MsFlags::empty(), Some("size=3m")).unwrap();
    let filler = dir.join("filler");
    std::fs::write(&filler, vec![1; 1 << 20]).unwrap();
    let home = dir.join("store");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let options = Options { snapshot_after: 400_000 };
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(&home, options).unwrap());
        // Several at once: a batch is decided while the one before it is refused.
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..4 {
            let store = store.clone();
            writers.spawn(async move {
                let mut written = Vec::new();
                loop {
                    let key = format!("/{writer}/{}", written.len());
                    match store.put(&key, vec![b'x'; 30_000]).await {
                        Ok(_) => written.push(key),
                        Err(error) => return (written, error),
                    }
                    assert!(written.len() < 200, "it must fill up");
                }
            });
        }
        let mut written = Vec::new();
        for (keys, error) in writers.join_all().await {
            written.extend(keys);
            assert!(matches!(error, StoreError::Full { .. }), "{error}");
            let text = error.to_string();
            assert!(text.starts_with("no space left for the store at ") && !text.contains('\n'), "{text}");
        }
        let at = store.current_revision().await.unwrap();
        assert_eq!(at.0, written.len() as u64 + 1, "a refused write takes no revision");
        for key in &written {
            assert_eq!(store.get(key).await.unwrap().unwrap().value.len(), 30_000, "reads go on");
        }
        let mut watch = store.watch(Watch::prefix("/").from(Revision(2))).await.unwrap();
        crate::suite::next(&mut watch).await;
        // Refused too, unless a snapshot that also found no room has just given its own back.
        let refused = written.len();
        if store.put("/more", vec![b'x'; 100_000]).await.is_ok() {
            written.push("/more".into());
        }

        std::fs::remove_file(&filler).unwrap();
        store.put("/again", vec![b'x'; 100_000]).await.unwrap();
        written.push("/again".into());
        drop(watch);
        drop(store);
        let store: Arc<dyn Store> = Arc::new(crate::open(&home));
        assert_eq!(store.current_revision().await.unwrap().0, at.0 + (written.len() - refused) as u64);
        for key in &written {
            assert!(store.get(key).await.unwrap().is_some(), "{key}");
        }
        println!("all written again");
    });
}
