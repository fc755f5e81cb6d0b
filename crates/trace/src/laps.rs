//! The steps of a span, one after the other, a few bytes each.
//!
//! A request has dozens of them, most far shorter than reading a clock twice: each begins where the last one ended, and is
//! written as it will stay.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::reader::Reader;
use crate::{Name, Stage};

/// Those of a span beyond this many go unmentioned.
pub(crate) const MAX_LAPS: u32 = 250;
/// Room for the laps of most requests.
const USUAL: usize = 512;
/// A byte, and three numbers of at most ten.
const LONGEST: usize = 31;
/// Marks the first byte of a lap.
pub(crate) const LAP: u8 = 0x80;

/// A step of a span.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lap {
    pub stage: Stage,
    pub name: Name,
    pub start: u64,
    pub duration: u64,
    pub failed: bool,
}

/// How processes tell each other about laps.
#[derive(Serialize, Deserialize)]
struct LapText(Stage, String, u64, u64, bool);

impl Serialize for Lap {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        LapText(self.stage, self.name.text().into(), self.start, self.duration, self.failed).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Lap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let LapText(stage, name, start, duration, failed) = LapText::deserialize(deserializer)?;
        Ok(Lap { stage, name: Name::new(&name), start, duration, failed })
    }
}

pub(crate) struct Laps {
    clock: Clock,
    bytes: Vec<u8>,
    count: u32,
    /// From the start of the span: when the present step began, and where the last one that was noted ended.
    mark: u64,
    end: u64,
}

impl Laps {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, bytes: Vec::new(), count: 0, mark: clock.first(), end: 0 }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn mark(&mut self, at: Instant) {
        self.mark = self.clock.offset(at);
    }

    /// The present step ends, the next one begins.
    pub(crate) fn lap(&mut self, stage: Stage, name: Name, failed: bool, at: Instant) {
        let end = self.clock.offset(at);
        let start = std::mem::replace(&mut self.mark, end);
        self.push(stage, name, failed, start as i64, end.saturating_sub(start));
    }

    /// Steps that were timed elsewhere.
    pub(crate) fn extend(&mut self, laps: &[Lap]) {
        for lap in laps {
            self.push(lap.stage, lap.name, lap.failed, lap.start.wrapping_sub(self.clock.start()) as i64, lap.duration);
        }
    }

    fn push(&mut self, stage: Stage, name: Name, failed: bool, start: i64, duration: u64) {
        if self.count == MAX_LAPS {
            return;
        }
        if self.count == 0 {
            self.bytes.reserve(USUAL);
        }
        self.count += 1;
        let gap = start.wrapping_sub(self.end as i64);
        self.end = (start as u64).wrapping_add(duration);
        let (mut lap, mut length) = ([LAP | stage as u8; LONGEST], 1);
        for mut value in [u64::from(name.0) << 1 | u64::from(failed), (gap << 1 ^ gap >> 63) as u64, duration] {
            while value >= 0x80 {
                lap[length] = value as u8 | 0x80;
                length += 1;
                value >>= 7;
            }
            lap[length] = value as u8;
            length += 1;
        }
        self.bytes.extend_from_slice(&lap[..length]);
    }

    pub(crate) fn list(&self) -> Vec<Lap> {
        let (mut reader, mut end) = (Reader(&self.bytes), self.clock.start());
        let next = || reader.byte().and_then(|first| decode(first, &mut end, &mut reader));
        std::iter::from_fn(next).collect()
    }
}

/// Reads a lap; `end` is where the one before it ended.
pub(crate) fn decode(first: u8, end: &mut u64, reader: &mut Reader<'_>) -> Option<Lap> {
    let stage = Stage::from_byte(first.checked_sub(LAP)?)?;
    let (name, gap, duration) = (reader.number()?, reader.number()?, reader.number()?);
    let start = end.wrapping_add(gap >> 1 ^ (gap & 1).wrapping_neg());
    *end = start.wrapping_add(duration);
    Some(Lap { stage, name: Name((name >> 1) as u16), start, duration, failed: name & 1 == 1 })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lap_begins_where_the_last_one_ended() {
        let clock = Clock::at(1_000_000).since(400_000);
        let base = Instant::now();
        let offset = 400_000 + clock.offset(base);
        let at = |micros| base + Duration::from_micros(micros);
        let mut laps = Laps::new(clock);
        laps.mark(at(1));
        laps.lap(Stage::Mutate, Name::new("Priority"), false, at(3));
        laps.mark(at(10));
        laps.lap(Stage::Validate, Name::NONE, true, at(15));
        let seen: Vec<_> = laps.list().iter().map(|lap| (lap.stage, lap.start, lap.duration, lap.failed)).collect();
        let expected = [(Stage::Mutate, offset + 1000, 2000, false), (Stage::Validate, offset + 10_000, 5000, true)];
        assert_eq!(seen, expected);
        assert!(offset >= 1_000_000);
    }

    #[test]
    fn too_many_are_left_out() {
        let mut laps = Laps::new(Clock::begin());
        for _ in 0..1000 {
            laps.lap(Stage::Cni, Name::NONE, false, Instant::now());
        }
        assert_eq!(laps.list().len(), MAX_LAPS as usize);
    }
}
