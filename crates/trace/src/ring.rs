//! The last spans, in a fixed number of bytes.
//!
//! A span is some numbers and a few short texts, written one after the other; the oldest make room for the newest.
//! One buffer instead of many objects: its bound is exact, and recording allocates nothing once it is full.

use std::collections::VecDeque;

use crate::{Id, Lap, Name, Outcome, Span, Stage, span::MAX_CAUSES};

/// Texts longer than this are cut.
const LONGEST: usize = 300;
const MAX_LAPS: usize = 250;

pub(crate) struct Ring {
    /// Records, each led by its length in four bytes.
    bytes: VecDeque<u8>,
    limit: usize,
    /// The number of the oldest record, and of the one to come.
    first: u64,
    next: u64,
    scratch: Vec<u8>,
}

impl Ring {
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit, first: 0, next: 0, scratch: Vec::new() }
    }

    pub(crate) fn push(&mut self, span: &Span) {
        let mut record = std::mem::take(&mut self.scratch);
        record.clear();
        record.extend_from_slice(&[0; 4]);
        encode(span, &mut record);
        let length = record.len();
        if length <= self.limit {
            record[..4].copy_from_slice(&((length - 4) as u32).to_le_bytes());
            while self.bytes.len() + length > self.limit {
                self.pop();
            }
            self.bytes.extend(&record);
            self.next += 1;
        }
        self.scratch = record;
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
            spans.extend(decode(&after[..length]));
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

fn encode(span: &Span, out: &mut Vec<u8>) {
    out.extend_from_slice(&[span.stage as u8, span.outcome as u8]);
    out.extend_from_slice(&span.id.to_bits().to_le_bytes());
    out.extend_from_slice(&span.start.to_le_bytes());
    number(span.duration, out);
    let causes = &span.causes[..span.causes.len().min(MAX_CAUSES)];
    out.push(causes.len() as u8);
    for cause in causes {
        out.extend_from_slice(&cause.to_bits().to_le_bytes());
    }
    for text in [&span.actor, &span.object, &span.detail] {
        let mut end = text.len().min(LONGEST);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        number(end as u64, out);
        out.extend_from_slice(&text.as_bytes()[..end]);
    }
    for lap in span.laps.iter().take(MAX_LAPS) {
        out.push(lap.stage as u8);
        number(u64::from(lap.name.0) << 1 | u64::from(lap.failed), out);
        number(lap.start.saturating_sub(span.start), out);
        number(lap.duration, out);
    }
}

/// Seven bits a byte, the last one without the eighth.
fn number(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn decode(bytes: &[u8]) -> Option<Span> {
    let mut reader = Reader(bytes);
    let stage = Stage::from_byte(reader.byte()?)?;
    let outcome = match reader.byte()? {
        0 => Outcome::Ok,
        1 => Outcome::Failed,
        2 => Outcome::Running,
        _ => Outcome::Dropped,
    };
    let (id, start, duration) = (Id::from_bits(reader.word()?), reader.word()?, reader.number()?);
    let count = reader.byte()?;
    let causes = (0..count).map(|_| reader.word().map(Id::from_bits)).collect::<Option<Vec<_>>>()?;
    let (actor, object, detail) = (reader.text()?, reader.text()?, reader.text()?);
    let mut laps = Vec::new();
    while !reader.0.is_empty() {
        let (stage, name) = (Stage::from_byte(reader.byte()?)?, reader.number()?);
        let (offset, duration) = (reader.number()?, reader.number()?);
        let (name, failed) = (Name((name >> 1) as u16), name & 1 == 1);
        laps.push(Lap { stage, name, start: start + offset, duration, failed });
    }
    Some(Span { id, causes, stage, actor, object, detail, start, duration, outcome, laps })
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn text(&mut self) -> Option<String> {
        let length = self.number()? as usize;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(number: u64) -> Span {
        let lap = |stage, name, start, failed| Lap { stage, name: Name::new(name), start, duration: 7, failed };
        Span {
            causes: vec![Id::commit(number), Id::fresh()],
            detail: "détail".into(),
            start: 1000,
            duration: 1 << 40,
            outcome: Outcome::Failed,
            laps: vec![lap(Stage::Mutate, "Priority", 1001, false), lap(Stage::Validation, "", 1300, true)],
            ..Span::new(Stage::Request, "apiserver", format!("pods/default/p{number}"))
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        let mut ring = Ring::new(10_000);
        let spans: Vec<Span> = (0..5).map(span).collect();
        spans.iter().for_each(|span| ring.push(span));
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
            ring.push(&span(number));
            assert!(ring.size() <= 1000);
        }
        let (spans, next) = ring.since(0);
        assert_eq!(next, 1000);
        assert!(spans.len() > 5, "{}", spans.len());
        assert_eq!(spans.last().unwrap().object, "pods/default/p999");
        let last = ring.since(999).0;
        assert_eq!(last.len(), 1);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let mut ring = Ring::new(10_000);
        ring.push(&Span::new(Stage::Sync, "é".repeat(LONGEST), ""));
        let actor = &ring.since(0).0[0].actor;
        assert!(actor.len() <= LONGEST && actor.chars().all(|c| c == 'é'));
    }
}
