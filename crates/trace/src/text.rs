//! The walk as a tree for people.
//!
//! ```text
//!      AT       TOOK    STAGE
//!       0ms   31.20ms ● 1    command           kubectl run
//!       4ms    2.31ms ●  2    request           POST deployments/default/nginx  201
//! ```
//! An only effect stands below its cause, not to the right of it: most of the walk is a chain, and would leave the page.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use api::terminal::escaped_line;

use crate::walk::{Step, Walk};

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Spans; their steps summed up in a word.
    Spans,
    /// Every filter and plug-in as well.
    Steps,
}

/// The whole walk.
pub fn render(walk: &Walk, detail: Detail) -> String {
    let mut out = String::from("       AT       TOOK   STAGE\n");
    let tree = Tree::new(walk, detail);
    for root in &tree.roots {
        tree.render(root, 0, &mut out);
    }
    let critical = walk.spans.iter().filter(|step| step.critical).count();
    let idle = walk.spans.iter().filter(|step| step.idle && step.name == "reconcile").count();
    if idle > 0 && detail == Detail::Spans {
        let _ = writeln!(
            out,
            "\n{idle} times a control loop looked and had nothing to do; --all shows them and every step."
        );
    }
    let stages: HashSet<&str> = walk.spans.iter().map(|step| step.stage.as_str()).collect();
    let _ = writeln!(
        out,
        "\n{} spans of {} stages in {}; ● is the critical path ({critical} spans).",
        walk.spans.len(),
        stages.len(),
        time(walk.duration()),
    );
    out
}

/// One line, for a walk that is followed live.
pub fn line(step: &Step) -> String {
    let mut out = String::new();
    write_line(step, 0, None, &mut out);
    out
}

struct Tree<'a> {
    roots: Vec<&'a Step>,
    effects: HashMap<&'a str, Vec<&'a Step>>,
    inner: HashMap<&'a str, Vec<&'a Step>>,
    detail: Detail,
}

impl<'a> Tree<'a> {
    fn new(walk: &'a Walk, detail: Detail) -> Self {
        let mut tree = Tree { roots: Vec::new(), effects: HashMap::new(), inner: HashMap::new(), detail };
        for step in &walk.spans {
            match &step.cause {
                None => tree.roots.push(step),
                Some(_) if step.idle && detail == Detail::Spans => {}
                Some(cause) if step.inner => tree.inner.entry(cause).or_default().push(step),
                Some(cause) => tree.effects.entry(cause).or_default().push(step),
            }
        }
        tree
    }

    fn render(&self, step: &Step, depth: usize, out: &mut String) {
        // A loop instead of recursion along chains: they are as long as the walk.
        let (mut step, mut depth) = (step, depth);
        loop {
            let inner = self.inner.get(step.id.as_str()).map_or(&[][..], Vec::as_slice);
            let effects = self.effects.get(step.id.as_str()).map_or(&[][..], Vec::as_slice);
            match self.detail {
                Detail::Spans => write_line(step, depth, summary(inner), out),
                Detail::Steps => {
                    write_line(step, depth, None, out);
                    inner.iter().for_each(|lap| write_line(lap, depth + 2, None, out));
                }
            }
            match effects {
                [] => return,
                [only] => step = only,
                [rest @ .., last] => {
                    depth += 1;
                    rest.iter().for_each(|effect| self.render(effect, depth, out));
                    step = last;
                }
            }
        }
    }
}

/// `authentication 12µs, admission 240µs`: steps of one kind together.
fn summary(inner: &[&Step]) -> Option<String> {
    let mut sums: Vec<(&str, f64, usize)> = Vec::new();
    for step in inner {
        match sums.iter_mut().find(|(name, ..)| *name == step.name) {
            Some((_, sum, count)) => {
                *sum += step.duration;
                *count += 1;
            }
            None => sums.push((&step.name, step.duration, 1)),
        }
    }
    let text: Vec<String> = sums
        .iter()
        .map(|(name, sum, count)| match count {
            1 => format!("{} {}", escaped_line(name), time(*sum)),
            _ => format!("{} ×{count} {}", escaped_line(name), time(*sum)),
        })
        .collect();
    (!text.is_empty()).then(|| text.join(", "))
}

fn write_line(step: &Step, depth: usize, summary: Option<String>, out: &mut String) {
    let mark = if step.critical { '●' } else { ' ' };
    let took = if step.outcome == "running" { "…".to_owned() } else { time(step.duration) };
    let _ = write!(out, "{:>9} {took:>10} {mark} ", time(step.offset));
    // Beyond this depth indentation helps nobody.
    (0..depth.min(24)).for_each(|_| out.push_str("│ "));
    let _ = write!(out, "{:<4} {}", escaped_line(&step.stage), escaped_line(&step.name));
    let parts = if step.inner { [&step.detail, "", ""] } else { [&step.actor, step.object.as_str(), &step.detail] };
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        let _ = write!(out, "  {}", escaped_line(part));
    }
    if !matches!(step.outcome.as_str(), "ok" | "running") {
        let _ = write!(out, "  [{}]", escaped_line(&step.outcome));
    }
    if let Some(summary) = summary {
        let _ = write!(out, "  ({summary})");
    }
    out.push('\n');
}

/// Three digits and a unit.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0}µs", s * 1e6),
        s if s < 1e-2 => format!("{:.2}ms", s * 1e3),
        s if s < 1.0 => format!("{:.1}ms", s * 1e3),
        s => format!("{s:.2}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(id: &str, cause: Option<&str>, name: &str, inner: bool) -> Step {
        let (id, cause) = (id.to_owned(), cause.map(str::to_owned));
        let (stage, name, outcome) = ("2".to_owned(), name.to_owned(), "ok".to_owned());
        Step { id, cause, stage, name, outcome, inner, duration: 0.0012, ..Step::default() }
    }

    #[test]
    fn security_terminals_are_shown_no_commands() {
        let evil = "a\u{1b}]0;owned\u{7}\r\nb\u{202e}c\u{9b}2J";
        let all = Step {
            actor: evil.into(),
            object: evil.into(),
            detail: evil.into(),
            outcome: evil.into(),
            ..step(evil, None, evil, false)
        };
        let walk = Walk { object: "x".into(), spans: vec![all.clone(), step("i", Some(evil), evil, true)] };
        for text in [render(&walk, Detail::Spans), render(&walk, Detail::Steps), line(&all)] {
            let is_safe = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
            assert!(text.chars().all(is_safe), "{text:?}");
            assert!(text.contains("a^[]0;owned\\u{7}"), "{text:?}");
        }
    }

    #[test]
    fn chains_go_down_and_branches_go_right() {
        let spans = vec![
            step("a", None, "command", false),
            step("b", Some("a"), "request", false),
            step("b.1", Some("b"), "admission", true),
            step("b.2", Some("b"), "admission", true),
            step("c", Some("b"), "commit", false),
            step("d", Some("c"), "left", false),
            step("e", Some("c"), "right", false),
            step("f", Some("e"), "end", false),
        ];
        let walk = Walk { object: "x".into(), spans };
        let names = |detail| -> Vec<String> {
            let text = render(&walk, detail);
            let lines = text.lines().skip(1).take_while(|line| !line.is_empty());
            lines.map(|line| line.chars().skip(23).collect::<String>().trim_end().to_owned()).collect()
        };
        assert_eq!(
            names(Detail::Spans),
            [
                "2    command",
                "2    request  (admission ×2 2.40ms)",
                "2    commit",
                "│ 2    left",
                "│ 2    right",
                "│ 2    end"
            ]
        );
        assert_eq!(names(Detail::Steps)[2], "│ │ 2    admission");
    }

    #[test]
    fn times_have_three_digits() {
        for (seconds, expected) in
            [(0.0, "0µs"), (0.000_012, "12µs"), (0.001_234, "1.23ms"), (0.123_45, "123.5ms"), (12.345, "12.35s")]
        {
            assert_eq!(time(seconds), expected);
        }
    }
}
