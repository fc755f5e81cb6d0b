//! Files of others: what Python's SQLite writes as k3s does, and snapshots of a real etcd.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use store::foreign::{kine_holder, read_etcd_snapshot, read_kine};
use store::transfer::Transfer;
use store::*;

use crate::peer::Cluster;

/// kine's table and its indexes; then lines of standard input are statements, each answered when it is committed.
const SERVER: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA page_size=" + sys.argv[2])
db.execute("PRAGMA journal_mode=" + sys.argv[3])
db.execute("PRAGMA wal_autocheckpoint=0")
db.execute("""CREATE TABLE IF NOT EXISTS kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER,
    deleted INTEGER, create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)""")
db.execute("CREATE INDEX IF NOT EXISTS kine_name_index ON kine (name)")
print("ready", flush=True)
for line in sys.stdin:
    if line.startswith("fill "):
        db.execute("BEGIN")
        for n in range(int(line.split()[1])):
            value = (b"v%d-" % n) * (1 + (n * 37) % 4000 if n % 50 == 0 else 1 + n % 90)
            db.execute("INSERT INTO kine VALUES (NULL,?,1,0,0,0,0,?,NULL)", ("/registry/pods/a/p%05d" % n, value))
        db.execute("COMMIT")
    else:
        db.execute(line)
    print("done", flush=True)
"#;

struct Sqlite(Child);

impl Sqlite {
    fn open(path: &Path, page_size: &str, mode: &str) -> Sqlite {
        let mut command = Command::new("python3");
        command.args(["-c", SERVER]).arg(path).args([page_size, mode]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = Sqlite(command.spawn().expect("apt-get install python3"));
        server.wait("ready");
        server
    }

    fn wait(&mut self, expected: &str) {
        let mut line = String::new();
        // A line at a time: nothing else is waiting in the pipe.
        BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), expected);
    }

    fn run(&mut self, statement: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{statement}").unwrap();
        self.wait("done");
    }

    fn put(&mut self, name: &str, created: i64, create_revision: i64, value: &str) {
        self.run(&format!(
            "INSERT INTO kine VALUES (NULL,'{name}',{created},0,{create_revision},0,0,CAST('{value}' AS BLOB),NULL)"
        ));
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn value(n: usize) -> Vec<u8> {
    let times = if n.is_multiple_of(50) { 1 + (n * 37) % 4000 } else { 1 + n % 90 };
    format!("v{n}-").repeat(times).into_bytes()
}

fn find<'c>(contents: &'c Contents, key: &str) -> Option<&'c KeyValue> {
    contents.kvs.iter().find(|kv| &*kv.key == key)
}

#[test]
fn databases_of_k3s_are_read() {
    const ROWS: usize = 3000;
    for (page_size, mode) in [("4096", "WAL"), ("512", "WAL"), ("65536", "WAL"), ("4096", "DELETE")] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let mut server = Sqlite::open(&path, page_size, mode);
        server.run(&format!("fill {ROWS}"));
        // What is in the database already, and what only the log has.
        if mode == "WAL" {
            server.run("PRAGMA wal_checkpoint(FULL)");
        }
        server.put("compact_rev_key", 1, 0, "");
        server.put("/bootstrap/x", 1, 0, "no object");
        server.put("/registry/pods/a/p00001", 0, 2, "changed");
        server.run("INSERT INTO kine VALUES (NULL,'/registry/pods/a/p00002',0,1,3,3,0,NULL,NULL)");
        server.run("INSERT INTO kine VALUES (NULL,'/registry/events/a/e',1,0,0,0,3600,X'65',NULL)");
        let last = Revision(ROWS as u64 + 5);

        let check = || {
            let found = read_kine(&path, "/registry/").unwrap();
            assert_eq!((found.kvs.len(), found.revision), (ROWS, last), "{page_size} {mode}");
            for n in [0, 3, 50, 100, 2950, 2999] {
                let kv = find(&found, &format!("/registry/pods/a/p{n:05}")).unwrap();
                assert_eq!(kv.value, value(n), "{n}");
                assert_eq!(
                    (kv.create_revision, kv.mod_revision, kv.version),
                    (Revision(n as u64 + 1), Revision(n as u64 + 1), 1)
                );
            }
            let changed = find(&found, "/registry/pods/a/p00001").unwrap();
            assert_eq!(changed.value, "changed");
            assert_eq!(
                (changed.create_revision, changed.mod_revision, changed.version),
                (Revision(2), Revision(3003), 2)
            );
            assert_eq!(find(&found, "/registry/pods/a/p00002"), None, "it was deleted");
            assert!(find(&found, "/registry/events/a/e").unwrap().lease.is_some());
        };
        // While the server has it open, after it was killed, and after it ended in good order.
        check();
        if mode == "WAL" {
            assert_eq!(kine_holder(&path).unwrap(), Some(server.0.id() as i32));
        }
        drop(server);
        assert_eq!(kine_holder(&path).unwrap(), None);
        check();
        let mut again = Sqlite::open(&path, page_size, mode);
        if mode == "WAL" {
            again.run("PRAGMA wal_checkpoint(TRUNCATE)");
        }
        drop(again);
        check();
    }
}

#[test]
fn security_damaged_databases_are_refused_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let mut server = Sqlite::open(&path, "512", "DELETE");
    server.run("fill 60");
    drop(server);
    let sound = std::fs::read(&path).unwrap();
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        read_kine(&path, "/registry/")
    };
    assert_eq!(read(&sound).unwrap().kvs.len(), 60);
    assert!(read(&sound[..sound.len() / 2]).is_err(), "half of it is gone");
    assert!(read(b"not a database").unwrap_err().to_string().contains("ends before"));
    assert!(read(&[7; 4096]).unwrap_err().to_string().contains("no database of SQLite"));
    // Every byte of the pages' own fields, one at a time: an answer or an error, and an end.
    for at in (0..sound.len()).filter(|at| at % 512 < 40) {
        for byte in [0x00, 0x05, 0xff] {
            let mut bytes = sound.clone();
            bytes[at] = byte;
            let _ = read(&bytes);
        }
    }
    std::fs::write(&path, &sound).unwrap();
    let journal = dir.path().join("state.db-journal");
    std::fs::write(&journal, "begun").unwrap();
    assert!(read_kine(&path, "/registry/").unwrap_err().to_string().contains("broken off"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_of_etcd_are_read() {
    let cluster = Cluster::start(1);
    let etcd: Arc<dyn Store> = Arc::new(cluster.connect().await);
    let dir = tempfile::tempdir().unwrap();
    let save = |name: &str| {
        let path = dir.path().join(name);
        let mut save = Command::new("etcdctl");
        save.env("ETCDCTL_API", "3").args(["snapshot", "save"]).arg(&path);
        save.arg("--endpoints").arg(&cluster.endpoints()[0]);
        assert!(save.output().unwrap().status.success());
        path
    };
    // One of something else does not become an empty store.
    etcd.put("/other/y", "y").await.unwrap();
    let restore =
        store::cli::Command::Restore { file: save("other.db"), dir: dir.path().join("other"), bump_revision: 0 };
    let error = store::cli::main(restore).await.unwrap_err();
    assert!(error.to_string().contains("no objects below /registry/"), "{error}");

    for n in 0..700 {
        etcd.put(&format!("/registry/a/{:03}", n % 500), format!("{n}-").repeat(1 + n * 3)).await.unwrap();
    }
    let gone = etcd.get("/registry/a/004").await.unwrap().unwrap();
    etcd.delete("/registry/a/004", gone.mod_revision).await.unwrap();
    let lease = etcd.grant_lease(std::time::Duration::from_secs(600)).await.unwrap();
    let event = Op::Put { key: "/registry/events/e".into(), value: "e".into(), lease: Some(lease) };
    etcd.txn(Txn::new().then(event)).await.unwrap();
    etcd.put("/other/x", "x").await.unwrap();
    let again = etcd.put("/registry/z", "z").await.unwrap();
    let last = etcd.delete("/registry/z", again).await.unwrap();
    // The latest change is a deletion, and compacted: no key has its revision.
    etcd.compact(last).await.unwrap();

    let path = save("snapshot.db");
    let transfer = Transfer { root: "/registry/", mark: "/registry/mark", without: &[] };
    let expected = transfer.read(&*etcd).await.unwrap();
    let found = read_etcd_snapshot(&path, "/registry/").unwrap();
    assert_eq!(found.kvs.len(), 500);
    assert_eq!(found.revision, last);
    assert_eq!(found, expected);

    // A store is made of it by the command that makes one of a backup.
    let restored = dir.path().join("store");
    let restore = store::cli::Command::Restore { file: path.clone(), dir: restored.clone(), bump_revision: 0 };
    store::cli::main(restore).await.unwrap();
    assert_eq!(store::embedded::contents(&restored).unwrap(), expected);

    // The same without its digest, with another, and cut.
    let sound = std::fs::read(&path).unwrap();
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        read_etcd_snapshot(&path, "/registry/").unwrap_err().to_string()
    };
    assert!(read(&sound[..sound.len() - 32]).contains("is no snapshot"));
    assert!(read(&sound[..sound.len() - 7]).contains("is no snapshot"));
    let mut other = sound.clone();
    other[5000] ^= 1;
    assert!(read(&other).contains("digest"));
    assert!(read(b"").contains("is no snapshot"));
}
