//! What to do with one occurrence: write it, count up what is there, combine it with similar ones, or keep silent.
//!
//! In upstream's order (`EventCorrelate`, v1.36): similar events are combined, then counted, then held against the budget of
//! their object. So an object that is silenced keeps counting, and its next event tells the true number.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Occurrence;

/// Objects remembered for counting and spam filtering (`maxLruCacheEntries`, v1.36).
const REMEMBERED: usize = 4096;
/// This many different messages, none longer than `SIMILAR_WINDOW` after the one before, become one combined event.
const SIMILAR_MAX: usize = 10;
const SIMILAR_WINDOW: Duration = Duration::from_secs(600);
/// The spam filter of one object: a burst, then one event per refill.
const BURST: f64 = 25.0;
const REFILL_PER_SECOND: f64 = 1.0 / 300.0;

/// One event to write.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) occurrence: Occurrence,
    pub(super) name: String,
    /// More than one: the event is there already.
    pub(super) count: i32,
    pub(super) first: Timestamp,
}

/// An event that was written.
#[derive(Clone)]
struct Written {
    name: String,
    count: i32,
    first: Timestamp,
}

/// Remembers what was written, to count instead of repeat.
#[derive(Default)]
pub(super) struct Correlator {
    written: Memory<Written>,
    similar: Memory<(Instant, HashSet<String>)>,
    budgets: Memory<(Instant, f64)>,
}

impl Correlator {
    pub(super) fn plan(&mut self, mut occurrence: Occurrence, now: Instant) -> Option<Plan> {
        let object = &occurrence.object;
        let about = [&object.kind, &object.namespace, &object.name, &object.uid, &object.api_version]
            .map(|part| part.as_deref().unwrap_or_default())
            .join("/");
        let field = object.field_path.as_deref().unwrap_or_default().to_owned();
        let family = format!("{about}/{}/{}", occurrence.kind, occurrence.reason);
        let key = if self.combines(&family, &occurrence.message, now) {
            occurrence.message = format!("(combined from similar events): {}", occurrence.message);
            family
        } else {
            format!("{family}/{field}/{}", occurrence.message)
        };
        let (name, at) = (occurrence.object.name.as_deref().unwrap_or_default(), occurrence.at);
        let known = self.written.entry(&key, || Written {
            name: format!("{name}.{:x}", at.as_nanosecond()),
            count: 0,
            first: at,
        });
        known.count += 1;
        let Written { name, count, first } = known.clone();
        self.allowed(&about, now).then_some(Plan { occurrence, name, count, first })
    }

    /// Whether so many different messages of this family came lately that they are written as one.
    fn combines(&mut self, family: &str, message: &str, now: Instant) -> bool {
        let (last, messages) = self.similar.entry(family, || (now, HashSet::new()));
        if now.duration_since(*last) > SIMILAR_WINDOW {
            messages.clear();
        }
        *last = now;
        messages.insert(message.to_owned());
        if messages.len() < SIMILAR_MAX {
            return false;
        }
        // Any one of them stands for all, so that memory stays bounded.
        if let Some(any) = messages.iter().next().cloned() {
            messages.remove(&any);
        }
        true
    }

    fn allowed(&mut self, about: &str, now: Instant) -> bool {
        let (last, tokens) = self.budgets.entry(about, || (now, BURST));
        *tokens = (*tokens + now.duration_since(*last).as_secs_f64() * REFILL_PER_SECOND).min(BURST);
        *last = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }
}

/// A bounded map that forgets first what was not used for longest.
struct Memory<V> {
    entries: HashMap<String, (u64, V)>,
    /// Uses in order; one that is not the latest of its key is stale and skipped.
    uses: VecDeque<(u64, String)>,
    clock: u64,
}

impl<V> Default for Memory<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), uses: VecDeque::new(), clock: 0 }
    }
}

impl<V> Memory<V> {
    fn entry(&mut self, key: &str, new: impl FnOnce() -> V) -> &mut V {
        self.clock += 1;
        self.uses.push_back((self.clock, key.to_owned()));
        let is_new = !self.entries.contains_key(key);
        while (is_new && self.entries.len() >= REMEMBERED) || self.uses.len() > 4 * REMEMBERED {
            let Some((used, oldest)) = self.uses.pop_front() else { break };
            if self.entries.get(&oldest).is_some_and(|(last, _)| *last == used) {
                self.entries.remove(&oldest);
            }
        }
        let (used, value) = self.entries.entry(key.to_owned()).or_insert_with(|| (0, new()));
        *used = self.clock;
        value
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    fn occurrence(name: &str, message: &str) -> Occurrence {
        let object = ObjectReference { name: Some(name.into()), ..ObjectReference::default() };
        let at = Timestamp::UNIX_EPOCH;
        Occurrence { object, kind: "Normal", reason: "Because".into(), message: message.into(), at }
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_event_is_counted_not_repeated() {
        let mut correlator = Correlator::default();
        for count in 1..5 {
            let plan = correlator.plan(occurrence("a", "m"), Instant::now()).unwrap();
            assert_eq!((plan.name.as_str(), plan.count), ("a.0", count));
        }
        assert_eq!(correlator.plan(occurrence("a", "other"), Instant::now()).unwrap().count, 1);
        assert_eq!(correlator.plan(occurrence("b", "m"), Instant::now()).unwrap().count, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn similar_events_are_combined_until_it_is_quiet() {
        let mut correlator = Correlator::default();
        let mut messages = Vec::new();
        for number in 0..12 {
            messages.push(correlator.plan(occurrence("a", &format!("m{number}")), Instant::now()).unwrap());
        }
        assert_eq!(messages[8].occurrence.message, "m8");
        assert_eq!(messages[9].occurrence.message, "(combined from similar events): m9");
        assert_eq!((messages[9].count, messages[11].count), (1, 3));
        tokio::time::advance(SIMILAR_WINDOW + Duration::from_secs(1)).await;
        assert_eq!(correlator.plan(occurrence("a", "m12"), Instant::now()).unwrap().occurrence.message, "m12");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_shouts_is_silenced_for_a_while() {
        let mut correlator = Correlator::default();
        let allowed = (0..100).filter(|_| correlator.plan(occurrence("a", "m"), Instant::now()).is_some()).count();
        assert_eq!(allowed, 25);
        tokio::time::advance(Duration::from_secs(301)).await;
        assert_eq!(
            correlator.plan(occurrence("a", "m"), Instant::now()).unwrap().count,
            101,
            "silence was counted too"
        );
        assert!(correlator.plan(occurrence("b", "m"), Instant::now()).is_some(), "others are not affected");
    }

    #[test]
    fn memory_forgets_what_is_not_used() {
        let mut memory = Memory::default();
        *memory.entry("kept", || 0) = 1;
        for number in 0..3 * REMEMBERED {
            memory.entry(&number.to_string(), || 0);
            memory.entry("kept", || 0);
        }
        assert_eq!(*memory.entry("kept", || 0), 1);
        assert!(memory.entries.len() <= REMEMBERED);
        assert_eq!(*memory.entry("0", || 7), 7);
    }
}
