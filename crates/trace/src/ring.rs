//! The last spans, in a fixed number of bytes.
//!
//! Spans lie one after the other as they were written; the oldest make room for the newest. One buffer instead of many
//! objects: its bound is exact, and recording allocates nothing once it is full.

use std::collections::VecDeque;

use crate::{Span, record};

pub(crate) struct Ring {
    /// Records, each led by its length in four bytes.
    bytes: VecDeque<u8>,
    limit: usize,
    /// The number of the oldest record, and of the one to come.
    first: u64,
    next: u64,
}

impl Ring {
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit, first: 0, next: 0 }
    }

    /// Adds a record and its laps.
    pub(crate) fn push(&mut self, record: &[u8], laps: &[u8]) {
        let length = record.len() + laps.len();
        if 4 + length > self.limit {
            return;
        }
        while self.bytes.len() + 4 + length > self.limit {
            self.pop();
        }
        self.bytes.extend(&(length as u32).to_le_bytes());
        self.bytes.extend(record);
        self.bytes.extend(laps);
        self.next += 1;
    }

    fn pop(&mut self) {
        let length = self.length_at(0);
        self.bytes.drain(..4 + length);
        self.first += 1;
    }

    fn length_at(&self, at: usize) -> usize {
        let byte = |offset| self.bytes.get(at + offset).copied().unwrap_or_default();
        u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]) as usize
    }

    /// The spans numbered `since` and later that are still here, and the number of the next one.
    pub(crate) fn since(&mut self, since: u64) -> (Vec<Span>, u64) {
        let (mut at, mut number) = (0, self.first);
        while number < since.min(self.next) {
            at += 4 + self.length_at(at);
            number += 1;
        }
        let mut spans = Vec::with_capacity((self.next - number) as usize);
        let bytes = self.bytes.make_contiguous();
        let mut rest = &bytes[at..];
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            spans.extend(record::decode(&after[..length]));
            rest = &after[length..];
        }
        (spans, self.next)
    }

    /// Takes all spans out.
    pub(crate) fn drain(&mut self) -> Vec<Span> {
        let (spans, next) = self.since(0);
        self.bytes.clear();
        self.first = next;
        spans
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::{Id, Lap, Name, Stage};

    fn span(number: u64) -> Span {
        let lap = Lap { stage: Stage::Mutate, name: Name::new("Priority"), start: 1001, duration: 7, failed: false };
        Span {
            causes: vec![Id::commit(number)],
            start: 1000,
            laps: vec![lap],
            ..Span::new(Stage::Request, "apiserver", format!("pods/default/p{number}"))
        }
    }

    fn push(ring: &mut Ring, span: &Span) {
        let (record, laps) = Record::of(span);
        ring.push(record.bytes(), laps.bytes());
    }

    #[test]
    fn what_goes_in_comes_out() {
        let mut ring = Ring::new(10_000);
        let spans: Vec<Span> = (0..5).map(span).collect();
        spans.iter().for_each(|span| push(&mut ring, span));
        assert_eq!(ring.since(0), (spans.clone(), 5));
        assert_eq!(ring.since(3), (spans[3..].to_vec(), 5));
        assert_eq!(ring.since(9), (Vec::new(), 5));
        assert_eq!(ring.drain(), spans);
        assert_eq!((ring.size(), ring.since(0)), (0, (Vec::new(), 5)));
    }

    #[test]
    fn the_oldest_make_room_and_the_bound_holds() {
        let mut ring = Ring::new(1000);
        for number in 0..1000 {
            push(&mut ring, &span(number));
            assert!(ring.size() <= 1000);
        }
        let (spans, next) = ring.since(0);
        assert_eq!(next, 1000);
        assert!(spans.len() > 5, "{}", spans.len());
        assert_eq!(spans.last().unwrap().object, "pods/default/p999");
        let last = ring.since(999).0;
        assert_eq!(last.len(), 1);
    }
}
