//! Bad input: one line that says what and where, and nothing changed.

use crate::peer::free_ports;
use crate::{child, child_argument, memory_dir, open};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::embedded::{self, GoOn, Options};
use store::*;

fn refusal(dir: &Path) -> String {
    let before = tree(dir);
    let error = EmbeddedStore::open(dir, Options::default()).err().expect("refused").to_string();
    assert!(!error.contains('\n'), "{error}");
    assert!(error.contains(dir.file_name().unwrap().to_str().unwrap()), "says where: {error}");
    assert_eq!(tree(dir), before, "nothing changed: {error}");
    error
}

fn tree(path: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(path) else {
        return vec![(String::new(), std::fs::read(path).unwrap_or_default())];
    };
    let mut all: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    // The lock is allowed to change: it names its last holder.
    all.retain(|path| !path.ends_with("LOCK"));
    all.iter().map(|path| (path.display().to_string(), std::fs::read(path).unwrap_or_default())).collect()
}

#[tokio::test]
async fn wrong_directories_are_refused() {
    let dir = memory_dir();
    let case = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };

    let file = dir.path().join("a-file");
    std::fs::write(&file, "text").unwrap();
    refusal(&file);

    let strange = case("with-notes");
    std::fs::write(strange.join("notes.txt"), "mine").unwrap();
    let error = refusal(&strange);
    assert!(error.ends_with("notes.txt is not a file of this store"), "{error}");
    assert!(!strange.join("LOCK").exists());

    let foreign = case("with-foreign-log");
    std::fs::write(foreign.join("log-0000000000000001"), "some other program's log, long enough for a header").unwrap();
    let error = refusal(&foreign);
    assert!(error.ends_with("log-0000000000000001 is not a file of this store"), "{error}");

    let newer = case("newer");
    drop(open(&newer));
    let log = newer.join("log-0000000000000001");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[8] = 2;
    let crc = crc32fast::hash(&bytes[..28]).to_le_bytes();
    bytes[28..32].copy_from_slice(&crc);
    std::fs::write(&log, bytes).unwrap();
    let error = refusal(&newer);
    assert!(error.ends_with("has format version 2; this program reads up to 1"), "{error}");

    let (one, two) = (case("one"), case("two"));
    drop(open(&one));
    let store: Arc<dyn Store> = Arc::new(open(&two));
    store.put("/a", "1").await.unwrap();
    drop(store);
    std::fs::copy(two.join("log-0000000000000001"), one.join("log-0000000000000002")).unwrap();
    let error = refusal(&one);
    assert!(error.contains("log-0000000000000002 is not a file of this store"), "{error}");

    for (error, expected) in [
        (embedded::check(&dir.path().join("nowhere")).unwrap_err(), "No such file"),
        (embedded::check(&case("empty")).unwrap_err(), "holds no store"),
        (
            embedded::restore(&dir.path().join("nowhere"), &dir.path().join("new"), GoOn::Later(0)).unwrap_err(),
            "No such file",
        ),
        (embedded::restore(&file, &dir.path().join("new"), GoOn::Later(0)).unwrap_err(), "not a file of this store"),
        (embedded::backup(&two, &file).unwrap_err(), "already exists"),
    ] {
        let text = error.to_string();
        assert!(text.contains(expected) && !text.contains('\n'), "{text}");
    }
    assert!(!dir.path().join("new").exists());
    let backup = dir.path().join("backup");
    embedded::backup(&two, &backup).unwrap();
    let error = embedded::restore(&backup, &one, GoOn::Later(0)).unwrap_err().to_string();
    assert!(error.ends_with("already holds a store"), "{error}");
}

#[test]
fn second_process_is_refused_with_the_pid_of_the_first() {
    let dir = memory_dir();
    let _first = open(dir.path());
    let done = child("bad_input::open_as_child", dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(text.contains(&format!("is in use by process {}", std::process::id())), "{text}");
    let error = EmbeddedStore::open(dir.path(), Options::default()).err().unwrap();
    assert!(matches!(error, StoreError::Locked { pid, .. } if pid == std::process::id()), "{error}");
}

#[test]
fn directory_without_permission_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
    let done = child("bad_input::open_as_child", &closed).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(text.contains("closed") && text.contains("Permission denied"), "{text}");
    assert_eq!(std::fs::read_dir(&closed).unwrap().count(), 0);
}

#[test]
fn open_as_child() {
    let Some(dir) = child_argument() else { return };
    if dir.ends_with("closed") && nix::unistd::geteuid().is_root() {
        // Root may do everything; nobody may not.
        nix::unistd::setresuid(65534.into(), 65534.into(), 65534.into()).unwrap();
    }
    match EmbeddedStore::open(&dir, Options::default()) {
        Ok(_) => println!("opened"),
        Err(error) => println!("{error}"),
    }
}

#[tokio::test]
async fn wrong_endpoints_are_refused() {
    let closed = format!("http://127.0.0.1:{}", free_ports(1)[0]);
    for (endpoints, expected) in [
        (vec![], "no etcd endpoint was given"),
        (vec!["localhost:2379"], "etcd endpoint \"localhost:2379\": must start with http:// or https://"),
        (vec!["http://127.0.0.1"], "etcd endpoint \"http://127.0.0.1\": "),
        (vec!["http://host:port"], "etcd endpoint \"http://host:port\": must be a host and a port"),
        (vec!["http://ho st:1"], "etcd endpoint \"http://ho st:1\": "),
        (vec![&*closed], "refused"),
        (vec![&*closed], &*closed),
    ] {
        let options = etcd::Options { timeout: Duration::from_secs(1), ..etcd::Options::new(endpoints.clone()) };
        let error = EtcdStore::connect(options).await.err().expect("refused").to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{endpoints:?}: {error}");
    }
}
