//! What several clients read and wrote at the same time, and whether one order of it explains everything.
//!
//! Each object is a register: every state of it has a version, larger than the one before, so the order of versions is the
//! only candidate. A history is linearizable if that order agrees with real time, if every write replaced the very state
//! that it expected or was refused because that was not there, and if nobody saw what was never written. What holds for
//! every register holds for all of them together.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// One request about one register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) register: usize,
    /// On a clock that all clients share.
    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The state that was found.
    Read(State),
    /// A value that nobody else writes, in place of the version that was expected.
    Write { value: u64, expected: u64, outcome: Outcome },
}

/// Version 0 is a register that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct State {
    pub(crate) version: u64,
    pub(crate) value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It got this version.
    Written(u64),
    /// Another version was there.
    Refused,
    /// No answer came: it may have been written, at any time since, or not at all.
    Open,
}

/// Everything that no order explains, in words; nothing: the history is linearizable.
pub(crate) fn violations(history: &[Operation]) -> Vec<String> {
    let mut by_register: BTreeMap<usize, Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        by_register.entry(operation.register).or_default().push(operation);
    }
    by_register.into_iter().flat_map(|(register, operations)| Register::of(register, operations).violations()).collect()
}

struct Register<'a> {
    number: usize,
    /// In the order in which they began.
    operations: Vec<&'a Operation>,
    /// Every state that was written or read.
    states: BTreeMap<u64, u64>,
    violations: Vec<String>,
}

impl<'a> Register<'a> {
    fn of(number: usize, mut operations: Vec<&'a Operation>) -> Self {
        operations.sort_by_key(|operation| operation.started);
        Self { number, operations, states: BTreeMap::new(), violations: Vec::new() }
    }

    fn violations(mut self) -> Vec<String> {
        self.collect_states();
        let versions = self.versions_by_value();
        self.check_values(&versions);
        self.check_replaced(&versions);
        self.check_refused(&versions);
        self.check_real_time(&versions);
        let number = self.number;
        self.violations.iter().map(|violation| format!("register {number}: {violation}")).collect()
    }

    fn collect_states(&mut self) {
        for operation in &self.operations {
            let State { version, value } = match operation.kind {
                Kind::Read(state) => state,
                Kind::Write { value, outcome: Outcome::Written(version), .. } => State { version, value },
                Kind::Write { .. } => continue,
            };
            if version == 0 {
                continue;
            }
            let known = *self.states.entry(version).or_insert(value);
            if known != value {
                self.violations.push(format!("version {version} is {known}, and {value}"));
            }
        }
    }

    /// The version of each value; also of those whose writer got no answer, if somebody has seen them.
    fn versions_by_value(&mut self) -> HashMap<u64, u64> {
        let mut versions = HashMap::new();
        for (version, value) in &self.states {
            if let Some(first) = versions.insert(*value, *version) {
                self.violations.push(format!("{value} was written at {first}, and again at {version}"));
            }
        }
        versions
    }

    /// What was seen was written by somebody who was not refused.
    fn check_values(&mut self, versions: &HashMap<u64, u64>) {
        let mut outcomes = HashMap::new();
        for operation in &self.operations {
            if let Kind::Write { value, outcome, .. } = operation.kind {
                outcomes.insert(value, outcome);
            }
        }
        for (value, version) in versions {
            match outcomes.get(value) {
                Some(Outcome::Written(_) | Outcome::Open) => {}
                Some(Outcome::Refused) => {
                    self.violations.push(format!("{value} was refused, and is there at {version}"))
                }
                None => self.violations.push(format!("{value} is there at {version}, and nobody wrote it")),
            }
        }
    }

    /// Nothing was written between the state that a write expected and the one that it made.
    fn check_replaced(&mut self, versions: &HashMap<u64, u64>) {
        for operation in &self.operations {
            let Kind::Write { value, expected, .. } = operation.kind else { continue };
            let Some(version) = versions.get(&value).copied() else { continue };
            if version <= expected {
                self.violations.push(format!("{value} replaced {expected}, and is at {version}"));
                continue;
            }
            let mut between = self.states.range((Bound::Excluded(expected), Bound::Excluded(version)));
            if let Some((lost, _)) = between.next() {
                self.violations.push(format!("{value}, at {version}, replaced {expected}, but {lost} was there"));
            }
        }
    }

    /// Who was refused had expected a state that somebody else may have replaced by then.
    fn check_refused(&mut self, versions: &HashMap<u64, u64>) {
        // When each write that may have been carried out began, and how far the register had come with those until then.
        let mut came: Vec<(u64, u64)> = Vec::new();
        for operation in &self.operations {
            let Kind::Write { value, expected, outcome: Outcome::Written(_) | Outcome::Open } = operation.kind else {
                continue;
            };
            let version = versions.get(&value).copied().unwrap_or(expected + 1);
            let before = came.last().map_or(0, |(_, furthest)| *furthest);
            came.push((operation.started, before.max(version)));
        }
        for operation in &self.operations {
            let Kind::Write { value, expected, outcome: Outcome::Refused } = operation.kind else { continue };
            let begun = came.partition_point(|(started, _)| *started < operation.ended);
            let furthest = came[..begun].last().map_or(0, |(_, furthest)| *furthest);
            if furthest <= expected {
                self.violations.push(format!("{value} was refused, though nobody had replaced {expected}"));
            }
        }
    }

    /// What began after something had ended comes after it.
    fn check_real_time(&mut self, versions: &HashMap<u64, u64>) {
        let version = |operation: &Operation| match operation.kind {
            Kind::Read(state) => Some(state.version),
            Kind::Write { value, .. } => versions.get(&value).copied(),
        };
        // A write without an answer has begun, but never ended.
        let has_ended = |operation: &Operation| !matches!(operation.kind, Kind::Write { outcome: Outcome::Open, .. });
        let ended = self.operations.iter().filter(|operation| has_ended(operation));
        let mut ends: Vec<(u64, u64)> =
            ended.filter_map(|operation| version(operation).map(|version| (operation.ended, version))).collect();
        ends.sort_unstable();
        let mut ends = ends.into_iter().peekable();
        let mut reached = 0;
        for operation in &self.operations {
            while let Some((_, version)) = ends.next_if(|(end, _)| *end < operation.started) {
                reached = reached.max(version);
            }
            let Some(version) = version(operation) else { continue };
            let is_in_order = match operation.kind {
                Kind::Read(_) => version >= reached,
                Kind::Write { .. } => version > reached,
            };
            if !is_in_order {
                let what = match operation.kind {
                    Kind::Read(_) => "was read",
                    Kind::Write { .. } => "was written",
                };
                self.violations.push(format!("{version} {what} after {reached} had been answered"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(started: u64, ended: u64, version: u64, value: u64) -> Operation {
        Operation { register: 0, started, ended, kind: Kind::Read(State { version, value }) }
    }

    fn write(started: u64, ended: u64, expected: u64, value: u64, outcome: Outcome) -> Operation {
        Operation { register: 0, started, ended, kind: Kind::Write { value, expected, outcome } }
    }

    #[test]
    fn only_what_one_order_explains_is_linearizable() {
        use Outcome::{Open, Refused, Written};
        let first = write(0, 1, 0, 100, Written(5));
        let cases: Vec<(&str, Vec<Operation>, &str)> = vec![
            ("one after the other", vec![first.clone(), read(2, 3, 5, 100), write(4, 5, 5, 101, Written(9))], ""),
            (
                "a read during a write sees either",
                vec![first.clone(), write(2, 9, 5, 101, Written(9)), read(3, 4, 5, 100)],
                "",
            ),
            ("nothing yet", vec![read(0, 3, 0, 0), write(1, 2, 0, 100, Written(5))], ""),
            ("refused and not there", vec![first.clone(), write(2, 3, 4, 101, Refused), read(4, 5, 5, 100)], ""),
            (
                "refused beside one without an answer",
                vec![first.clone(), write(2, 3, 5, 101, Open), write(4, 5, 5, 102, Refused)],
                "",
            ),
            ("refused for nothing", vec![first.clone(), write(2, 3, 5, 101, Refused)], "nobody had replaced 5"),
            (
                "refused before the other began",
                vec![first.clone(), write(2, 3, 5, 101, Refused), write(4, 5, 5, 102, Written(9))],
                "nobody had replaced 5",
            ),
            ("without an answer, never seen", vec![first.clone(), write(2, 3, 5, 101, Open), read(4, 5, 5, 100)], ""),
            (
                "without an answer, seen late",
                vec![first.clone(), write(2, 3, 5, 101, Open), read(4, 5, 5, 100), read(6, 7, 9, 101)],
                "",
            ),
            ("lost", vec![first.clone(), read(2, 3, 0, 0)], "0 was read after 5"),
            (
                "an older state",
                vec![first.clone(), write(2, 3, 5, 101, Written(9)), read(4, 5, 5, 100)],
                "5 was read after 9",
            ),
            (
                "back to before what another has read",
                vec![first.clone(), write(2, 3, 5, 101, Open), read(4, 5, 9, 101), read(6, 7, 5, 100)],
                "5 was read after 9",
            ),
            (
                "two replaced the same",
                vec![first.clone(), write(2, 8, 5, 101, Written(7)), write(3, 9, 5, 102, Written(9))],
                "replaced 5, but 7 was there",
            ),
            (
                "refused and there",
                vec![first.clone(), write(2, 3, 4, 101, Refused), read(4, 5, 9, 101)],
                "101 was refused",
            ),
            ("out of nowhere", vec![first.clone(), read(2, 3, 9, 777)], "nobody wrote it"),
            ("two values of a version", vec![first.clone(), read(2, 3, 5, 101)], "version 5 is 100, and 101"),
            (
                "written twice",
                vec![first.clone(), write(2, 3, 5, 101, Open), read(4, 5, 7, 101), read(6, 7, 9, 101)],
                "101 was written at 7, and again at 9",
            ),
            (
                "seen before it was written",
                vec![first.clone(), read(2, 3, 9, 101), write(4, 5, 5, 101, Written(9))],
                "after 9",
            ),
        ];
        for (name, history, expected) in cases {
            let found = violations(&history);
            match expected {
                "" => assert!(found.is_empty(), "{name}: {found:?}"),
                expected => assert!(found.iter().any(|violation| violation.contains(expected)), "{name}: {found:?}"),
            }
        }
    }

    #[test]
    fn registers_are_apart() {
        let mut other = read(2, 3, 0, 0);
        other.register = 1;
        assert!(violations(&[write(0, 1, 0, 100, Outcome::Written(5)), other]).is_empty());
    }
}
