//! The ring in a file: written seldom and whole, so that it outlives a restart. A file that cannot be read is not worth
//! failing for: the ring begins anew.
//!
//! Format: `coxhist1`, the newest minute (u64), the number of series (u32); of each its four names (length u16 and text)
//! and [`POINTS`] values (f32); at the end a checksum over all that (FNV-1a, u64). All numbers are little-endian.

use std::collections::BTreeMap;
use std::path::Path;

use super::ring::{Key, Of, POINTS, Ring, What};

const MAGIC: &[u8] = b"coxhist1";
/// More than the largest ring takes.
const MAX_BYTES: u64 = 16 << 20;

pub(super) fn save(ring: &Ring, path: &Path) -> std::io::Result<()> {
    files::replace(path, &encode(ring), 0o600)
}

/// Why a file gives no ring.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("{0} bytes are too many")]
    TooLarge(u64),
    #[error("it is damaged")]
    Damaged,
}

/// The ring of a file; nothing if there is none.
pub(super) fn load(path: &Path) -> Result<Option<Ring>, LoadError> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
        Ok(found) if found.len() > MAX_BYTES => return Err(LoadError::TooLarge(found.len())),
        Ok(_) => {}
    }
    decode(&std::fs::read(path)?).map(Some).ok_or(LoadError::Damaged)
}

fn encode(ring: &Ring) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(ring.newest().to_le_bytes());
    out.extend((ring.raw().len() as u32).to_le_bytes());
    for (key, values) in ring.raw() {
        for name in [key.what.as_str(), key.of.as_str(), &key.namespace, &key.name] {
            let name = &name.as_bytes()[..name.len().min(usize::from(u16::MAX))];
            out.extend((name.len() as u16).to_le_bytes());
            out.extend(name);
        }
        values.iter().for_each(|value| out.extend(value.to_le_bytes()));
    }
    let sum = checksum(&out);
    out.extend(sum.to_le_bytes());
    out
}

fn decode(bytes: &[u8]) -> Option<Ring> {
    let (content, sum) = bytes.split_last_chunk::<8>()?;
    if checksum(content) != u64::from_le_bytes(*sum) {
        return None;
    }
    let mut rest = content.strip_prefix(MAGIC)?;
    let newest = u64::from_le_bytes(take(&mut rest)?);
    let count = u32::from_le_bytes(take(&mut rest)?);
    let mut series = BTreeMap::new();
    for _ in 0..count {
        let mut word = || {
            let length = usize::from(u16::from_le_bytes(take(&mut rest)?));
            let (word, left) = rest.split_at_checked(length)?;
            rest = left;
            std::str::from_utf8(word).ok()
        };
        let (what, of, namespace, name) = (word()?, word()?, word()?, word()?);
        let values: Option<Vec<f32>> = (0..POINTS).map(|_| Some(f32::from_le_bytes(take(&mut rest)?))).collect();
        // What a later version measures, this one does not know.
        if let (Some(what), Some(of)) = (What::parse(what), Of::parse(of)) {
            let key = Key { what, of, namespace: namespace.into(), name: name.into() };
            series.insert(key, values?.into_boxed_slice());
        }
    }
    rest.is_empty().then(|| Ring::restore(newest, series))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk::<N>()?;
    *rest = left;
    Some(*taken)
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Ring {
        let key = |name: &str| Key { what: What::Memory, of: Of::Pod, namespace: "default".into(), name: name.into() };
        let mut ring = Ring::default();
        ring.record(7, [(key("web"), 1.5), (key("db"), 2e9)]);
        ring.record(9, [(key("web"), 2.5)]);
        ring
    }

    fn points(ring: &Ring) -> Vec<(String, Vec<(u64, f32)>)> {
        ring.recent(POINTS, |_| true).map(|(key, points)| (key.name.to_string(), points)).collect()
    }

    #[test]
    fn a_ring_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        assert!(load(&path).unwrap().is_none());
        save(&ring(), &path).unwrap();
        let loaded = load(&path).unwrap().unwrap();
        assert_eq!((loaded.newest(), points(&loaded)), (9, points(&ring())));
    }

    #[test]
    fn security_damaged_files_are_refused() {
        let good = encode(&ring());
        assert!(decode(&good).is_some());
        for at in [0, 8, 16, 20, 22, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(decode(&bad).is_none(), "{at}");
        }
        for length in [0, 7, 8, 19, good.len() - 9] {
            assert!(decode(&good[..length]).is_none(), "{length}");
        }
        // A count that promises more than there is, with the right sum.
        let mut bad = good[..good.len() - 8].to_vec();
        bad[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        let sum = checksum(&bad);
        bad.extend(sum.to_le_bytes());
        assert!(decode(&bad).is_none());
    }
}
