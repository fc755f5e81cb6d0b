//! A span as bytes: what the ring holds, and what a span under way is written into.
//!
//! First what is of a fixed size and known last (outcome, duration), so that it can be filled in at the end; then items in
//! the order in which they became known, each led by a byte that says what it is. So a span grows in one buffer, texts
//! are written where they stay, and recording it is a copy.

use std::fmt::{Display, Write};

use crate::clock::Clock;
use crate::laps::{self, Laps};
use crate::reader::Reader;
use crate::span::MAX_CAUSES;
use crate::{Id, Outcome, Span, Stage};

/// Texts longer than this are cut.
const LONGEST: usize = 300;
/// Holds most spans without their laps.
const USUAL: usize = 256;

const OUTCOME: usize = 1;
const START: usize = 10;
const DURATION: usize = 18;
const ITEMS: usize = 26;

/// What an item is. A lap has its stage here, with the highest bit set.
const CAUSE: u8 = 0;
const ACTOR: u8 = 1;
const OBJECT: u8 = 2;
const DETAIL: u8 = 3;
const WORD: u8 = 4;
const TITLE: u8 = 5;
/// `name=text`.
const ATTRIBUTE: u8 = 6;

/// The bytes of a span, all but its laps.
pub(crate) struct Record(Vec<u8>);

impl Record {
    /// A span that has begun.
    pub(crate) fn new(
        stage: Stage,
        id: Id,
        start: u64,
        causes: impl Iterator<Item = Id>,
        actor: &str,
        object: impl Display,
    ) -> Self {
        let mut bytes = Vec::with_capacity(USUAL);
        bytes.extend_from_slice(&[stage as u8, Outcome::Running as u8]);
        bytes.extend_from_slice(&id.to_bits().to_le_bytes());
        bytes.extend_from_slice(&start.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        for cause in causes.take(MAX_CAUSES) {
            bytes.push(CAUSE);
            bytes.extend_from_slice(&cause.to_bits().to_le_bytes());
        }
        let mut record = Self(bytes);
        record.text(ACTOR, actor);
        record.object(object);
        record
    }

    /// As bytes, with the laps separately.
    pub(crate) fn of(span: &Span) -> (Self, Laps) {
        let causes = span.causes.iter().copied();
        let mut record = Self::new(span.stage, span.id, span.start, causes, &span.actor, &span.object);
        if !span.detail.is_empty() {
            record.detail(&span.detail);
        }
        record.finish(span.outcome, span.duration);
        let mut laps = Laps::new(Clock::at(span.start));
        laps.extend(&span.laps);
        (record, laps)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn set_start(&mut self, start: u64) {
        self.0[START..DURATION].copy_from_slice(&start.to_le_bytes());
    }

    pub(crate) fn finish(&mut self, outcome: Outcome, duration: u64) {
        self.0[OUTCOME] = outcome as u8;
        self.0[DURATION..ITEMS].copy_from_slice(&duration.to_le_bytes());
    }

    /// Takes the place of an earlier one.
    pub(crate) fn object(&mut self, object: impl Display) {
        self.text(OBJECT, object);
    }

    /// Takes the place of earlier ones.
    pub(crate) fn detail(&mut self, detail: impl Display) {
        self.text(DETAIL, detail);
    }

    /// Adds a word to the detail.
    pub(crate) fn word(&mut self, word: impl Display) {
        self.text(WORD, word);
    }

    pub(crate) fn title(&mut self, title: impl Display) {
        self.text(TITLE, title);
    }

    pub(crate) fn attribute(&mut self, name: &str, text: impl Display) {
        self.text(ATTRIBUTE, format_args!("{name}={text}"));
    }

    fn text(&mut self, item: u8, text: impl Display) {
        self.0.extend_from_slice(&[item, 0, 0]);
        let begin = self.0.len();
        // A display that fails leaves what it wrote so far.
        let _ = write!(Limited(self, begin + LONGEST), "{text}");
        let length = (self.0.len() - begin) as u16;
        self.0[begin - 2..begin].copy_from_slice(&length.to_le_bytes());
    }
}

/// Text that ends where the record may hold no more of it.
struct Limited<'a>(&'a mut Record, usize);

impl Write for Limited<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let bytes = &mut self.0.0;
        let mut end = text.len().min(self.1.saturating_sub(bytes.len()));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        bytes.extend_from_slice(&text.as_bytes()[..end]);
        if end == text.len() { Ok(()) } else { Err(std::fmt::Error) }
    }
}

/// What says where a span belongs.
pub(crate) struct Header {
    pub(crate) id: Id,
    pub(crate) cause: Option<Id>,
    pub(crate) outcome: Outcome,
}

pub(crate) fn header(bytes: &[u8]) -> Option<Header> {
    let mut reader = Reader(bytes);
    let (_, outcome) = (reader.byte()?, outcome(reader.byte()?));
    let (id, _, _) = (Id::from_bits(reader.word()?), reader.word()?, reader.word()?);
    // Causes come first.
    let cause = reader.byte().filter(|item| *item == CAUSE).and_then(|_| reader.word()).map(Id::from_bits);
    Some(Header { id, cause, outcome })
}

fn outcome(byte: u8) -> Outcome {
    match byte {
        0 => Outcome::Ok,
        1 => Outcome::Failed,
        2 => Outcome::Running,
        _ => Outcome::Dropped,
    }
}

/// Reads a record that its laps follow.
pub(crate) fn decode(bytes: &[u8]) -> Option<Span> {
    let mut reader = Reader(bytes);
    let stage = Stage::from_byte(reader.byte()?)?;
    let outcome = outcome(reader.byte()?);
    let (id, start, duration) = (Id::from_bits(reader.word()?), reader.word()?, reader.word()?);
    let mut span = Span { start, duration, outcome, ..Span::empty(stage, id) };
    let mut end = start;
    while let Some(item) = reader.byte() {
        match item {
            CAUSE => span.causes.push(Id::from_bits(reader.word()?)),
            ACTOR => span.actor = reader.text()?,
            OBJECT => span.object = reader.text()?,
            DETAIL => span.detail = reader.text()?,
            WORD => span.detail = format!("{} {}", span.detail, reader.text()?),
            TITLE => span.title = reader.text()?,
            ATTRIBUTE => {
                let text = reader.text()?;
                let (name, value) = text.split_once('=').unwrap_or((&text, ""));
                span.attributes.push((name.to_owned(), value.to_owned()));
            }
            lap => span.laps.push(laps::decode(lap, &mut end, &mut reader)?),
        }
    }
    Some(span)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lap, Name};

    #[test]
    fn what_goes_in_comes_out() {
        let lap = |stage, name, start, failed| Lap { stage, name: Name::new(name), start, duration: 7, failed };
        let span = Span {
            causes: vec![Id::commit(3), Id::fresh()],
            detail: "détail".into(),
            start: 1000,
            duration: 1 << 40,
            outcome: Outcome::Failed,
            laps: vec![
                lap(Stage::Mutate, "Priority", 1001, false),
                lap(Stage::Dns, "", 1300, true),
                // Somebody else's clock.
                lap(Stage::Cni, "bridge", 900, false),
            ],
            ..Span::new(Stage::Request, "apiserver", "pods/default/p")
        };
        let (record, laps) = Record::of(&span);
        assert_eq!(decode(&[record.bytes(), laps.bytes()].concat()), Some(span));
    }

    #[test]
    fn what_is_known_later_counts() {
        let mut record = Record::new(Stage::Request, Id::fresh(), 5, std::iter::empty(), "apiserver", "pods/default/");
        record.detail("update");
        record.object("pods/default/a");
        record.detail("create");
        record.word(201);
        record.set_start(4);
        record.finish(Outcome::Ok, 9);
        let span = decode(record.bytes()).unwrap();
        assert_eq!((span.object.as_str(), span.detail.as_str()), ("pods/default/a", "create 201"));
        assert_eq!((span.start, span.end(), span.outcome), (4, 13, Outcome::Ok));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let object = format!("a{}", "é".repeat(LONGEST));
        let mut record = Record::new(Stage::Sync, Id::fresh(), 0, std::iter::empty(), "", format_args!("{object}b"));
        record.detail("after");
        let span = decode(record.bytes()).unwrap();
        assert!(span.object.len() == LONGEST - 1 && object.starts_with(&span.object));
        assert_eq!(span.detail, "after");
    }
}
