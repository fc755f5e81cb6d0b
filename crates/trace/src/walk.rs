//! What followed from what: the walk of one object, put together from recorded spans. Pure.
//!
//! An object that a client wrote itself is shown with everything its command led to. One that somebody wrote on the way
//! (a pod of a deployment) is shown with the chain that led to it and all that followed from it.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::critical::critical;
use crate::span::Spans;
use crate::{Id, Outcome, Span, Stage};

/// The walk as it is sent and shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Walk {
    /// What was asked for.
    pub object: String,
    /// Causes before effects, in the order of time.
    pub spans: Vec<Step>,
}

/// A span or a lap of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Step {
    pub id: String,
    /// What made this happen; the first of all walks has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What else did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// The number of the walk's stage.
    pub stage: String,
    pub name: String,
    pub actor: String,
    pub object: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    pub start: String,
    /// Seconds since the walk began.
    pub offset: f64,
    /// Seconds.
    pub duration: f64,
    pub outcome: String,
    /// A step inside its cause rather than an effect of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inner: bool,
    /// Somebody looked, and there was nothing to do.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,
    /// Whether the walk would have been over sooner without it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub critical: bool,
}

impl Walk {
    /// The walk of `object` (`deployments/default/web`); `None` if no commit of it is remembered.
    pub fn of(object: &str, recorded: Vec<Span>) -> Option<Walk> {
        let mut spans = gather(recorded);
        align(&mut spans);
        let effects = effects(&spans);
        let members = members(object, &spans, &effects)?;
        spans.retain(|id, _| members.contains(id));
        trim(&mut spans);
        let critical = critical(&spans, &effects);
        let idle = idle(&spans, &effects);
        Some(Walk { object: object.into(), spans: steps(spans, &critical, &idle) })
    }

    /// Seconds from its beginning to its end.
    pub fn duration(&self) -> f64 {
        self.spans.iter().map(|step| step.offset + step.duration).fold(0.0, f64::max)
    }
}

/// One span for each id: announced ones give way to finished ones, and a command that was told about by several requests lasts
/// until the last of them.
fn gather(recorded: Vec<Span>) -> Spans {
    let mut spans = Spans::with_capacity(recorded.len());
    for span in recorded {
        match spans.entry(span.id) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(span);
            }
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                let known = entry.get();
                if known.outcome == Outcome::Running || (span.outcome != Outcome::Running && span.end() >= known.end())
                {
                    entry.insert(span);
                }
            }
        }
    }
    spans
}

/// A delivery begins where its commit ended: the receiver only knows when it was there.
fn align(spans: &mut Spans) {
    let commits: HashMap<Id, u64> =
        spans.values().filter(|span| span.stage == Stage::Commit).map(|span| (span.id, span.end())).collect();
    for span in spans.values_mut().filter(|span| span.stage == Stage::Delivery) {
        if let Some(committed) = span.causes.first().and_then(|cause| commits.get(cause)) {
            let end = span.end();
            span.start = span.start.min(*committed);
            span.duration = end - span.start;
        }
    }
}

/// A wait that somebody else's change began is this walk's from where its own change joined it.
fn trim(spans: &mut Spans) {
    let starts: HashMap<Id, u64> = spans.values().map(|span| (span.id, span.start)).collect();
    for span in spans.values_mut() {
        if let Some(joined) =
            span.causes.iter().find_map(|cause| starts.get(cause)).filter(|joined| **joined > span.start)
        {
            let end = span.end().max(*joined);
            span.start = *joined;
            span.duration = end - span.start;
        }
    }
}

/// From each span to those that name it as a cause.
fn effects(spans: &Spans) -> HashMap<Id, Vec<Id>> {
    let mut effects: HashMap<Id, Vec<Id>> = HashMap::new();
    for span in spans.values() {
        for cause in &span.causes {
            effects.entry(*cause).or_default().push(span.id);
        }
    }
    effects
}

fn members(object: &str, spans: &Spans, effects: &HashMap<Id, Vec<Id>>) -> Option<HashSet<Id>> {
    let mut commits: Vec<&Span> =
        spans.values().filter(|span| span.stage == Stage::Commit && span.object == object).collect();
    commits.sort_by_key(|span| (span.start, span.id));
    let chains: Vec<Vec<Id>> = commits.iter().map(|commit| chain(commit.id, spans)).collect();
    // A client's own write is a commit, its request, and the command if we were told about it. Components write of their own
    // accord too, on what a timer or the runtime told them; but they do not create what they then work on.
    let is_direct = |chain: &&Vec<Id>| {
        chain.iter().skip(1).all(|id| matches!(spans[id].stage, Stage::Request | Stage::Command))
            && chain.last().is_some_and(|id| spans[id].causes.is_empty())
    };
    let is_command = |chain: &&Vec<Id>| chain.last().is_some_and(|id| spans[id].stage == Stage::Command);
    let is_creation = |chain: &&Vec<Id>| spans[&chain[0]].detail.starts_with("create");
    let direct = || chains.iter().rev().filter(is_direct);
    let own = direct().find(is_command).or_else(|| direct().find(is_creation));
    if let Some(root) = own.and_then(|chain| chain.last()) {
        return Some(reachable([*root], effects, spans));
    }
    let first = chains.first()?;
    let mut members = reachable([first[0]], effects, spans);
    members.extend(first);
    Some(members)
}

/// From a span over its first causes to the beginning.
fn chain(id: Id, spans: &Spans) -> Vec<Id> {
    let mut chain = vec![id];
    let mut next = spans.get(&id).and_then(|span| span.causes.first());
    while let Some(cause) = next.filter(|cause| !chain.contains(cause)).and_then(|cause| spans.get(cause)) {
        chain.push(cause.id);
        next = cause.causes.first();
    }
    chain
}

fn reachable(from: impl IntoIterator<Item = Id>, effects: &HashMap<Id, Vec<Id>>, spans: &Spans) -> HashSet<Id> {
    let mut found = HashSet::new();
    let mut open: Vec<Id> = from.into_iter().collect();
    while let Some(id) = open.pop() {
        if spans.contains_key(&id) && found.insert(id) {
            open.extend(effects.get(&id).into_iter().flatten());
        }
    }
    found
}

/// Causes before effects, in the order of time.
fn in_order(spans: &Spans) -> Vec<&Span> {
    let mut order: Vec<&Span> = spans.values().collect();
    order.sort_by_cached_key(|span| (span.start, rank(span, spans), span.id));
    order
}

/// Loops that were told of a change and had nothing to do about it.
fn idle(spans: &Spans, effects: &HashMap<Id, Vec<Id>>) -> HashSet<Id> {
    let mut idle: HashSet<Id> = HashSet::new();
    for span in in_order(spans).into_iter().rev() {
        let looks = matches!(
            span.stage,
            Stage::Delivery
                | Stage::Wait
                | Stage::Deployment
                | Stage::ReplicaSet
                | Stage::Garbage
                | Stage::Reconcile
                | Stage::Endpoints
        );
        let mut followed = effects.get(&span.id).into_iter().flatten().filter(|effect| spans.contains_key(effect));
        if looks && span.outcome == Outcome::Ok && followed.all(|effect| idle.contains(effect)) {
            idle.insert(span.id);
        }
    }
    idle
}

fn steps(spans: Spans, critical: &HashSet<(Id, usize)>, idle: &HashSet<Id>) -> Vec<Step> {
    let begin = spans.values().map(|span| span.start).min().unwrap_or_default();
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let mut steps = Vec::new();
    for span in in_order(&spans) {
        // Only what is in the walk is a cause in the walk; the rest happened to others.
        let mut causes = span.causes.iter().filter(|cause| spans.contains_key(cause)).map(Id::to_string);
        let step = Step {
            id: span.id.to_string(),
            cause: causes.next(),
            also: causes.collect(),
            stage: span.stage.number().into(),
            name: span.stage.title().into(),
            actor: span.actor.clone(),
            object: span.object.clone(),
            detail: span.detail.clone(),
            start: time(span.start),
            offset: seconds(span.start - begin),
            duration: seconds(span.duration),
            outcome: span.outcome.text().into(),
            inner: false,
            idle: idle.contains(&span.id),
            critical: critical.contains(&(span.id, 0)),
        };
        let laps = span.laps.iter().enumerate().map(|(index, lap)| {
            let start = lap.start.max(span.start);
            Step {
                id: format!("{}.{}", span.id, index + 1),
                cause: Some(span.id.to_string()),
                also: Vec::new(),
                stage: lap.stage.number().into(),
                name: lap.stage.title().into(),
                actor: span.actor.clone(),
                object: span.object.clone(),
                detail: lap.name.text().into(),
                start: time(start),
                offset: seconds(start - begin),
                duration: seconds(lap.duration),
                outcome: if lap.failed { Outcome::Failed } else { Outcome::Ok }.text().into(),
                inner: true,
                idle: false,
                critical: critical.contains(&(span.id, index + 1)),
            }
        });
        steps.push(step);
        steps.extend(laps);
    }
    steps
}

/// How many causes are before a span: tells those apart that began in the same instant.
fn rank(span: &Span, spans: &Spans) -> usize {
    chain(span.id, spans).len()
}

fn time(nanos: u64) -> String {
    jiff::Timestamp::from_nanosecond(nanos.into()).map(|time| format!("{time:.9}")).unwrap_or_default()
}

/// What is wrong with a walk's causality: causes that are not in it, effects before their causes, more than one beginning.
pub fn problems(walk: &Walk) -> BTreeSet<String> {
    /// What a nanosecond clock loses in a float of seconds.
    const ROUNDING: f64 = 1e-6;
    let by_id: HashMap<&str, &Step> = walk.spans.iter().map(|step| (step.id.as_str(), step)).collect();
    let mut problems = BTreeSet::new();
    let name = |step: &Step| format!("{} {} {} {}", step.stage, step.name, step.actor, step.object);
    for step in &walk.spans {
        // What waits began with its first cause; others joined it while it did.
        let first = step.cause.iter().map(|cause| (cause, step.offset));
        let joined = step.also.iter().map(|cause| (cause, step.offset + step.duration));
        for (cause, by) in first.chain(joined) {
            match by_id.get(cause.as_str()) {
                None => drop(problems.insert(format!("{}: its cause {cause} is missing", name(step)))),
                Some(cause) if by + ROUNDING < cause.offset => {
                    problems.insert(format!("{} begins before its cause {}", name(step), name(cause)));
                }
                Some(_) => {}
            }
        }
    }
    let roots: Vec<String> = walk.spans.iter().filter(|step| step.cause.is_none()).map(name).collect();
    if roots.len() != 1 {
        problems.insert(format!("{} beginnings: {}", roots.len(), roots.join("; ")));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lap, Name};

    /// A span at `start`, for ten.
    fn span(id: Id, causes: &[Id], stage: Stage, object: &str, start: u64) -> Span {
        Span {
            id,
            causes: causes.to_vec(),
            start,
            duration: 10,
            outcome: Outcome::Ok,
            ..Span::new(stage, "actor", object)
        }
    }

    fn story() -> Vec<Span> {
        let id = |number| Id::from_bits(number);
        let lap = Lap { stage: Stage::Mutate, name: Name::new("Priority"), start: 101, duration: 3, failed: false };
        let request = Span { laps: vec![lap], ..span(id(2), &[id(1)], Stage::Request, "deployments/d/web", 100) };
        vec![
            span(id(1), &[], Stage::Command, "", 90),
            span(Id::commit(5), &[id(2)], Stage::Commit, "deployments/d/web", 105),
            request,
            span(id(3), &[Id::commit(5)], Stage::Delivery, "deployments/d/web", 130),
            span(id(4), &[id(3)], Stage::Deployment, "d/web", 150),
            span(id(6), &[id(4)], Stage::Request, "pods/d/web-1", 152),
            span(Id::commit(6), &[id(6)], Stage::Commit, "pods/d/web-1", 153),
            span(id(7), &[Id::commit(6)], Stage::Rules, "services/d/web", 170),
            // Somebody looked, and somebody had a reason to.
            span(id(9), &[id(3)], Stage::Wait, "d/web", 141),
            span(id(10), &[id(9)], Stage::Reconcile, "d/web", 155),
            // Somebody else's.
            span(id(8), &[], Stage::Request, "pods/d/other", 100),
            span(Id::commit(4), &[id(8)], Stage::Commit, "pods/d/other", 101),
        ]
    }

    fn shown(walk: &Walk) -> Vec<String> {
        walk.spans.iter().map(|step| format!("{} {}", step.id.trim_start_matches('0'), step.name)).collect()
    }

    #[test]
    fn a_clients_own_object_is_shown_with_its_whole_command() {
        let walk = Walk::of("deployments/d/web", story()).unwrap();
        assert_eq!(
            shown(&walk),
            [
                "1 command",
                "2 request",
                "2.1 admission".replace("2.1", "0000000000000002.1").trim_start_matches('0'),
                "rv5 commit",
                "3 watch delivery",
                "9 queue wait",
                "4 reconcile",
                "6 request",
                "rv6 commit",
                "a reconcile",
                "7 rules programmed"
            ]
        );
        let idle: Vec<&str> = walk.spans.iter().filter(|step| step.idle).map(|step| step.name.as_str()).collect();
        assert_eq!(idle, ["queue wait", "reconcile"], "only those that led to nothing");
        assert_eq!(problems(&walk), BTreeSet::new());
        let delivery = walk.spans.iter().find(|step| step.name == "watch delivery").unwrap();
        assert!((delivery.offset - 25e-9).abs() < 1e-12, "it begins where the commit ended: {}", delivery.offset);
        assert_eq!(walk.spans[2].cause.as_deref(), Some("0000000000000002"));
    }

    #[test]
    fn an_object_on_the_way_is_shown_with_what_led_to_it() {
        let walk = Walk::of("pods/d/web-1", story()).unwrap();
        assert_eq!(walk.spans.iter().filter(|step| !step.inner).count(), 8, "without those who only looked elsewhere");
        let mut other = story();
        other.push(span(Id::commit(9), &[Id::from_bits(4)], Stage::Commit, "pods/d/web-2", 160));
        let walk = Walk::of("pods/d/web-1", other).unwrap();
        assert!(walk.spans.iter().all(|step| step.object != "pods/d/web-2"), "another pod's walk is another");
        assert!(Walk::of("pods/d/none", story()).is_none());
    }

    #[test]
    fn gaps_and_wrong_order_are_found() {
        let mut walk = Walk::of("deployments/d/web", story()).unwrap();
        walk.spans.retain(|step| step.name != "watch delivery");
        walk.spans[1].offset = -1.0;
        let found: Vec<String> = problems(&walk).into_iter().collect();
        let count = |words: &str| found.iter().filter(|problem| problem.contains(words)).count();
        assert_eq!((count("begins before"), count("is missing"), found.len()), (1, 2, 3), "{found:?}");
    }

    #[test]
    fn a_wait_is_shown_from_where_the_walk_joined_it() {
        let mut spans = story();
        let others = Id::from_bits(8);
        let waited =
            Span { duration: 60, ..span(Id::from_bits(20), &[others, Id::commit(6)], Stage::Wait, "d/web", 110) };
        spans.push(waited);
        let walk = Walk::of("pods/d/web-1", spans).unwrap();
        assert_eq!(problems(&walk), BTreeSet::new());
        let wait = walk.spans.iter().find(|step| step.name == "queue wait").unwrap();
        assert!((wait.offset - 63e-9).abs() < 1e-12 && (wait.duration - 17e-9).abs() < 1e-12, "{wait:?}");
    }

    #[test]
    fn what_a_component_writes_of_its_own_accord_is_no_beginning() {
        let mut spans = story();
        let id = Id::from_bits(30);
        spans.push(span(id, &[], Stage::Request, "deployments/d/web", 300));
        spans.push(span(Id::commit(30), &[id], Stage::Commit, "deployments/d/web", 301));
        let walk = Walk::of("deployments/d/web", spans).unwrap();
        assert_eq!(walk.spans[0].name, "command");
    }

    #[test]
    fn the_last_word_on_a_span_counts() {
        let mut spans = story();
        let mut announced = spans[4].clone();
        announced.outcome = Outcome::Running;
        announced.duration = 0;
        spans.push(announced);
        let walk = Walk::of("deployments/d/web", spans).unwrap();
        assert_eq!(walk.spans.iter().find(|step| step.name == "reconcile").unwrap().outcome, "ok");
    }
}
