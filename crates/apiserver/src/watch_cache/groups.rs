//! Neighbours in lists, compressed together and kept: the next list with the same neighbours in the same state has them
//! for a copy.
//!
//! Objects of a kind are alike, so a handful together takes a fraction of what each takes alone. Where a group ends is said
//! by the names of objects: one that comes, goes or changes touches its own group, and every other stays as it is.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::deflate::Piece;
use super::entry::Entry;

/// Of so many names, one ends a group.
const USUAL: u64 = 16;
const MOST: usize = 64;
/// More would not fit into the window of the compressor, and take long to make again.
const LARGE: usize = 128 * 1024;
/// Compressed bytes that are kept, at most.
const KEPT: usize = 16 << 20;

/// How many of these objects, which must be some, are the first group.
pub(crate) fn first_group(entries: &[Arc<Entry>]) -> usize {
    let mut size = 0;
    let ends = entries.iter().take(MOST).position(|entry| {
        size += entry.size();
        size >= LARGE || ends_group(&entry.key)
    });
    ends.map_or(entries.len().min(MOST), |last| last + 1)
}

/// Names are often numbered: what differs is at their end.
fn ends_group(key: &str) -> bool {
    let tail = &key.as_bytes()[key.len().saturating_sub(8)..];
    let tail = tail.iter().fold(0, |tail, byte| tail << 8 | u64::from(*byte));
    // The golden ratio spreads neighbours far apart.
    tail.wrapping_mul(0x9e37_79b9_7f4a_7c15) < u64::MAX / USUAL
}

/// What was compressed lately.
#[derive(Default)]
pub(crate) struct Groups(Mutex<Generations>);

/// Two generations: what is not asked for while the young one fills up is forgotten.
#[derive(Default)]
struct Generations {
    young: HashMap<u64, Arc<Group>>,
    old: HashMap<u64, Arc<Group>>,
    /// Of the young one.
    size: usize,
}

/// A piece, and the very objects that it shows. They may be gone, but no other can take their place in memory as long as
/// this remembers it.
struct Group {
    of: Box<[Weak<Entry>]>,
    piece: Arc<Piece>,
}

impl Group {
    fn shows(&self, entries: &[Arc<Entry>]) -> bool {
        self.of.len() == entries.len()
            && self.of.iter().zip(entries).all(|(of, entry)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(entry)))
    }
}

impl Groups {
    pub(crate) fn find(&self, entries: &[Arc<Entry>]) -> Option<Arc<Piece>> {
        let sign = sign(entries);
        let mut generations = self.0.lock();
        if let Some(group) = generations.young.get(&sign).filter(|group| group.shows(entries)) {
            return Some(group.piece.clone());
        }
        let group = generations.old.remove(&sign).filter(|group| group.shows(entries))?;
        let piece = group.piece.clone();
        generations.keep(sign, group);
        Some(piece)
    }

    /// Keeps a piece, unless nobody else has its objects: then no list will find them again.
    pub(crate) fn keep(&self, entries: &[Arc<Entry>], piece: &Arc<Piece>) {
        if entries.iter().all(|entry| Arc::strong_count(entry) > 1) {
            let of = entries.iter().map(Arc::downgrade).collect();
            self.0.lock().keep(sign(entries), Arc::new(Group { of, piece: piece.clone() }));
        }
    }
}

impl Generations {
    fn keep(&mut self, sign: u64, group: Arc<Group>) {
        let size = |group: &Group| group.piece.size() + std::mem::size_of_val(&*group.of);
        self.size += size(&group);
        if let Some(before) = self.young.insert(sign, group) {
            self.size -= size(&before);
        }
        if self.size > KEPT / 2 {
            self.old = std::mem::take(&mut self.young);
            self.size = 0;
        }
    }
}

/// Where to look for a group; whether it is the one is told by its objects.
fn sign(entries: &[Arc<Entry>]) -> u64 {
    entries.iter().fold(0, |sign: u64, entry| {
        (sign.rotate_left(5) ^ Arc::as_ptr(entry) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn entry(name: &str, size: usize) -> Arc<Entry> {
        let stored = format!(r#"{{"metadata":{{"name":"{name}"}},"data":"{}"}}"#, "x".repeat(size));
        Arc::new(Entry::new(&crate::watch_cache::Prefix::new("pods"), name.into(), &Bytes::from(stored), 1))
    }

    #[test]
    fn a_group_ends_where_it_ended_before() {
        let entries: Vec<_> = (0..1000).map(|n| entry(&format!("pod-{n:05}"), 10)).collect();
        let ends = |mut entries: &[Arc<Entry>]| {
            let mut ends = Vec::new();
            while !entries.is_empty() {
                let (group, rest) = entries.split_at(first_group(entries));
                ends.push(group.last().unwrap().name().to_owned());
                entries = rest;
            }
            ends
        };
        let before = ends(&entries);
        assert!((30..130).contains(&before.len()), "{}", before.len());
        let without_one: Vec<_> = entries.iter().filter(|entry| entry.name() != "pod-00500").cloned().collect();
        let after = ends(&without_one);
        let moved = after.iter().filter(|end| !before.contains(end)).count();
        assert!(moved <= 2, "{moved}");
        let large: Vec<_> = (0..9).map(|n| entry(&n.to_string(), LARGE)).collect();
        assert_eq!(ends(&large).len(), 9);
    }

    #[test]
    fn only_the_very_same_objects_are_found() {
        let groups = Groups::default();
        let entries: Vec<_> = (0..5).map(|n| entry(&format!("pod-{n}"), 10)).collect();
        let piece = Arc::new(Piece::new(b"text"));
        groups.keep(&entries, &piece);
        assert!(groups.find(&entries).is_none(), "nobody else has them");
        let cache = entries.clone();
        groups.keep(&entries, &piece);
        assert!(Arc::ptr_eq(&groups.find(&entries).unwrap(), &piece));
        assert!(groups.find(&cache[..4]).is_none());
        let mut changed = entries.clone();
        changed[2] = entry("pod-2", 10);
        assert!(groups.find(&changed).is_none());
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_is_forgotten() {
        let groups = Groups::default();
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(KEPT / 16)
        .collect();
        let mut kept = Vec::new();
        for n in 0..40 {
            let group = vec![entry(&n.to_string(), 1)];
            kept.push(group.clone());
            groups.keep(&group, &Arc::new(Piece::new(&noise)));
            assert!(groups.find(&kept[0]).is_some(), "asked for all the time: {n}");
        }
        let found = kept.iter().filter(|group| groups.find(group).is_some()).count();
        assert!((5..30).contains(&found), "{found}");
    }
}
