//! Version 1 of the format, written here from its description (docs/store-format.md) and not by the store: whatever becomes of
//! the store, it opens what older versions of it have written.

use crate::open;
use std::sync::Arc;
use store::embedded::GoOn;
use store::*;

const STORE: u64 = 0x0123_4567_89ab_cdef;
const LEASE: u64 = 7;

fn file(magic: &[u8; 8], sequence: u64) -> Vec<u8> {
    let mut bytes = [&magic[..], &1u32.to_le_bytes(), &STORE.to_le_bytes(), &sequence.to_le_bytes()].concat();
    let sum = crc32fast::hash(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn add_frame(file: &mut Vec<u8>, number: u64, records: &[Vec<u8>]) {
    let payload = records.concat();
    let body = [&payload[..], &[0x5a]].concat();
    let (length, sum) = (payload.len() as u32, crc32fast::hash(&body));
    let mut header = [&b"CXFR"[..], &length.to_le_bytes(), &number.to_le_bytes(), &sum.to_le_bytes()].concat();
    let placed = [&STORE.to_le_bytes()[..], &(file.len() as u64).to_le_bytes(), &header].concat();
    header.extend(crc32fast::hash(&placed).to_le_bytes());
    file.extend(header);
    file.extend(body);
}

fn numbers(kind: u8, numbers: &[u64]) -> Vec<u8> {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    [kind].into_iter().chain(bytes).collect()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn key(name: &str, value: &str, create: u64, revision: u64, version: u64) -> Vec<u8> {
    let of = [create, revision, version, 0].map(u64::to_le_bytes).concat();
    [&[17u8][..], &text(name), &text(value), &of].concat()
}

fn put(name: &str, value: &str, lease: u64) -> Vec<u8> {
    [&[1u8][..], &text(name), &text(value), &lease.to_le_bytes()].concat()
}

fn delete(name: &str) -> Vec<u8> {
    [&[2u8][..], &text(name)].concat()
}

fn transaction(revision: u64, changes: &[Vec<u8>]) -> Vec<u8> {
    [numbers(1, &[revision]), (changes.len() as u32).to_le_bytes().to_vec(), changes.concat()].concat()
}

#[tokio::test]
async fn what_version_1_has_written_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let mut snapshot = file(b"COXSTSNP", 2);
    add_frame(&mut snapshot, 0, &[numbers(16, &[2, 3]), numbers(3, &[LEASE, 3_600_000]), key("/a", "1", 2, 2, 1)]);
    add_frame(&mut snapshot, 1, &[transaction(3, &[put("/b", "2", LEASE)]), numbers(18, &[1, 3])]);
    let mut log = file(b"COXSTLOG", 2);
    add_frame(&mut log, 2, &[transaction(4, &[put("/a", "3", 0), put("/c", "4", 0)])]);
    add_frame(&mut log, 3, &[transaction(5, &[delete("/c")]), numbers(3, &[9, 1000]), numbers(4, &[9])]);
    let old = dir.path().join("old");
    std::fs::create_dir(&old).unwrap();
    std::fs::write(old.join("snapshot-0000000000000002"), &snapshot).unwrap();
    std::fs::write(old.join("log-0000000000000002"), &log).unwrap();

    for _ in 0..2 {
        let store: Arc<dyn Store> = Arc::new(open(&old));
        let a = store.get("/a").await.unwrap().unwrap();
        assert_eq!(
            (&a.value[..], a.create_revision, a.mod_revision, a.version),
            (&b"3"[..], Revision(2), Revision(4), 2)
        );
        let b = store.get("/b").await.unwrap().unwrap();
        assert_eq!((&b.value[..], b.mod_revision, b.lease), (&b"2"[..], Revision(3), LeaseId::new(LEASE as i64)));
        assert!(store.get("/c").await.unwrap().is_none());
        assert_eq!(store.current_revision().await.unwrap(), Revision(5));
        let before = store.range(Range::key("/a").at(Revision(3))).await.unwrap();
        assert_eq!(&before.kvs[0].value[..], b"1");
        let compacted = store.range(Range::key("/a").at(Revision(1))).await.unwrap_err();
        assert!(matches!(compacted, StoreError::Compacted { .. }), "{compacted}");
    }

    // A backup is such a snapshot.
    let (backup, new) = (dir.path().join("backup"), dir.path().join("new"));
    std::fs::write(&backup, &snapshot).unwrap();
    embedded::restore(&backup, &new, GoOn::Later(0)).unwrap();
    let store: Arc<dyn Store> = Arc::new(open(&new));
    assert_eq!(&store.get("/a").await.unwrap().unwrap().value[..], b"1");
}
