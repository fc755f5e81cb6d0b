//! What is recorded about one piece of work.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::clock::now;
use crate::laps::{Lap, MAX_LAPS};
use crate::{Id, Stage};

/// A span keeps this many causes; of a change that followed from more, the rest go unmentioned.
pub(crate) const MAX_CAUSES: usize = 16;

/// All spans by id.
pub(crate) type Spans = HashMap<Id, Span>;

/// How far before and after our own time the clock of another process is believed.
const OLDEST: u64 = 86_400_000_000_000;
const EARLY: u64 = 600_000_000_000;

/// One piece of work: who did what to which object, when, for how long, why, and how it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    pub id: Id,
    /// What made this happen, the first one first. Empty: nobody we know.
    #[serde(default)]
    pub causes: Vec<Id>,
    pub stage: Stage,
    pub actor: String,
    /// `pods/default/web-0`, `nodes/n1`.
    pub object: String,
    /// What else there is to say: `POST 201`, an image.
    #[serde(default)]
    pub detail: String,
    /// Nanoseconds since 1970.
    pub start: u64,
    /// In nanoseconds; so far, while it runs.
    pub duration: u64,
    #[serde(default)]
    pub outcome: Outcome,
    /// Steps inside, one after the other.
    #[serde(default)]
    pub laps: Vec<Lap>,
    /// What a collector is to call it, if not by its stage, and what else it is told. Other processes are not.
    #[serde(skip)]
    pub title: String,
    #[serde(skip)]
    pub attributes: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    #[default]
    Ok,
    Failed,
    /// Not finished.
    Running,
    /// Given up by whoever asked for it.
    Dropped,
}

impl Outcome {
    pub fn text(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed => "failed",
            Outcome::Running => "running",
            Outcome::Dropped => "dropped",
        }
    }
}

impl Span {
    /// A span without causes that begins now and has not ended.
    pub fn new(stage: Stage, actor: impl Into<String>, object: impl Into<String>) -> Self {
        let (actor, object, start) = (actor.into(), object.into(), now());
        Self { actor, object, start, ..Self::empty(stage, Id::fresh()) }
    }

    pub(crate) fn empty(stage: Stage, id: Id) -> Self {
        Self {
            id,
            causes: Vec::new(),
            stage,
            actor: String::new(),
            object: String::new(),
            detail: String::new(),
            start: 0,
            duration: 0,
            outcome: Outcome::Running,
            laps: Vec::new(),
            title: String::new(),
            attributes: Vec::new(),
        }
    }

    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }

    /// A span that another process told us of, at `now`: its times are near to ours, so that they can be added and
    /// compared, and its parts are no more than a span of ours has.
    pub fn received(mut self, now: u64) -> Self {
        let (earliest, latest) = (now.saturating_sub(OLDEST), now.saturating_add(EARLY));
        let bound = |start: &mut u64, duration: &mut u64| {
            *start = (*start).clamp(earliest, latest);
            *duration = (*duration).min(latest - *start);
        };
        bound(&mut self.start, &mut self.duration);
        self.causes.truncate(MAX_CAUSES);
        self.laps.truncate(MAX_LAPS as usize);
        self.laps.iter_mut().for_each(|lap| bound(&mut lap.start, &mut lap.duration));
        self
    }

    /// Ends the span now.
    pub fn finish(&mut self, outcome: Outcome) {
        self.duration = now().saturating_sub(self.start);
        self.outcome = outcome;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Name;

    #[test]
    fn security_spans_of_others_have_times_and_sizes_like_ours() {
        let now = now();
        let lap = Lap { stage: Stage::Request, name: Name::NONE, start: u64::MAX, duration: u64::MAX, failed: false };
        for start in [0, now, u64::MAX] {
            let mut span = Span::new(Stage::Request, "a", "b");
            span.start = start;
            span.duration = u64::MAX;
            span.causes = vec![span.id; 1000];
            span.laps = vec![lap; 1000];
            let received = span.received(now);
            assert!(received.start + received.duration <= now + EARLY && received.start >= now - OLDEST);
            assert!(received.laps.iter().all(|lap| lap.start + lap.duration <= now + EARLY));
            assert_eq!((received.causes.len(), received.laps.len()), (MAX_CAUSES, MAX_LAPS as usize));
        }
    }
}
