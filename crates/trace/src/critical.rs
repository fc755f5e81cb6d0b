//! The critical path: what the end of the walk waited for.
//!
//! From the last effect back to the beginning, over the cause that came last each time: whatever came earlier was ready
//! by then. Of a cause's own time, the steps count that were done before the effect and took a fair part of it.

use std::collections::{HashMap, HashSet};

use crate::span::Spans;
use crate::{Id, Span, Stage};

/// A step counts if it took this part of the time between its span's beginning and the effect.
const FAIR_PART: u64 = 10;

/// Spans (lap 0) and laps (from 1) on the path.
pub(crate) fn critical(spans: &Spans, effects: &HashMap<Id, Vec<Id>>) -> HashSet<(Id, usize)> {
    let mut path = HashSet::new();
    let Some(mut at) = goal(spans) else { return path };
    // The last effect is on the path with all of its time.
    let mut until = at.end();
    loop {
        if !path.insert((at.id, 0)) {
            break;
        }
        mark_steps(at, until, spans, effects, &mut path);
        until = at.start;
        let causes = at.causes.iter().filter_map(|cause| spans.get(cause));
        match causes.max_by_key(|cause| (cause.start, cause.id)) {
            Some(cause) => at = cause,
            None => break,
        }
    }
    path
}

/// What a walk is for: packets that arrive. Without services, whatever ended last.
fn goal(spans: &Spans) -> Option<&Span> {
    let last = |stages: &[Stage]| {
        spans.values().filter(|span| stages.contains(&span.stage)).max_by_key(|span| (span.end(), span.id))
    };
    last(&[Stage::Rules, Stage::Dns])
        .or_else(|| last(&[Stage::Status, Stage::Ready]))
        .or_else(|| spans.values().max_by_key(|span| (span.end(), span.id)))
}

fn mark_steps(span: &Span, until: u64, spans: &Spans, effects: &HashMap<Id, Vec<Id>>, path: &mut HashSet<(Id, usize)>) {
    let window = until.min(span.end()).saturating_sub(span.start);
    let counts = |start: u64, end: u64| end <= until && (end - start) * FAIR_PART >= window && window > 0;
    for (index, lap) in span.laps.iter().enumerate() {
        if counts(lap.start, lap.start + lap.duration) {
            path.insert((span.id, index + 1));
        }
    }
    for part in effects.get(&span.id).into_iter().flatten().filter_map(|id| spans.get(id)) {
        // Inside its cause's time it is a part of it.
        if part.end() <= span.end() && counts(part.start, part.end()) && path.insert((part.id, 0)) {
            mark_steps(part, part.end(), spans, effects, path);
        }
    }
}
