//! What `cox upgrade --all` tells a machine, and what the machine says about it.
//!
//! An order is a ConfigMap of kube-system. It names one machine and a program by its digest, never a place to get it from: whoever
//! may write ConfigMaps there chooses among the programs that an administrator has laid out on a server, and no others. It counts
//! only while somebody waits for its end and says so by counting up: one that was left behind by a command that was killed is
//! obeyed by nobody who sees it later.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use serde::{Deserialize, Serialize};

pub(super) const NAMESPACE: &str = "kube-system";
pub(super) const NAME: &str = "cox-upgrade";
pub(super) const FIELD: &str = "order";
/// The annotation of a node in which its machine says how far it is.
pub(super) const SAID: &str = "cox.dev/upgrade";
/// What a machine says at the most.
const MAX_WORDS: usize = 1000;
/// Whoever waits counts up every few seconds. A machine that was cut off for longer cannot tell who counted.
const MAX_PAUSE: Duration = Duration::from_secs(60);
const DIGEST_DIGITS: usize = 64;
const MAX_ID_DIGITS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Order {
    /// Of this attempt alone.
    pub(super) id: String,
    pub(super) node: String,
    /// SHA-256 in hexadecimal digits.
    pub(super) program: String,
    pub(super) size: u64,
    pub(super) timeout_seconds: u64,
    pub(super) observe_seconds: u64,
    pub(super) force: bool,
    /// Counted up while somebody waits.
    pub(super) beat: u64,
}

impl Order {
    /// None where there is no order, or none that this version understands.
    pub(super) fn read(map: &ConfigMap) -> Option<Order> {
        serde_json::from_str(map.data.as_ref()?.get(FIELD)?).ok().filter(Order::is_sound)
    }

    /// Its words become part of a path and of a command line.
    fn is_sound(&self) -> bool {
        let is_hexadecimal = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        self.program.len() == DIGEST_DIGITS
            && (1..=MAX_ID_DIGITS).contains(&self.id.len())
            && is_hexadecimal(&self.program)
            && is_hexadecimal(&self.id)
    }
}

/// How an attempt of a machine ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    Done,
    Failed(String),
}

/// What a machine says about orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// It would obey one.
    Ready,
    UnderWay {
        id: String,
    },
    Ended {
        id: String,
        outcome: Outcome,
    },
}

impl Said {
    pub(super) fn text(&self) -> String {
        match self {
            Said::Ready => "ready".to_owned(),
            Said::UnderWay { id } => format!("{id} under way"),
            Said::Ended { id, outcome: Outcome::Done } => format!("{id} done"),
            Said::Ended { id, outcome: Outcome::Failed(why) } => {
                format!("{id} failed: {}", why.chars().take(MAX_WORDS).collect::<String>())
            }
        }
    }

    /// None of a machine that obeys no orders.
    pub(super) fn by(node: &Node) -> Option<Said> {
        let text = node.metadata.annotations.as_ref()?.get(SAID)?;
        let Some((id, rest)) = text.split_once(' ') else { return Some(Said::Ready) };
        let id = id.to_owned();
        Some(match rest.strip_prefix("failed: ") {
            Some(why) => Said::Ended { id, outcome: Outcome::Failed(why.to_owned()) },
            None if rest == "done" => Said::Ended { id, outcome: Outcome::Done },
            None => Said::UnderWay { id },
        })
    }
}

/// What a machine has seen of the order that there is: its id and count, and when.
#[derive(Debug, Default)]
pub(super) struct Seen(Option<(String, u64, Instant)>);

impl Seen {
    /// Whether to obey now: an order for this machine that is not the one it obeyed `last`, and that somebody has counted up
    /// since it was seen, not long before.
    pub(super) fn is_due(&mut self, order: Option<&Order>, node: &str, last: Option<&str>, now: Instant) -> bool {
        let Some(order) = order.filter(|order| order.node == node && last != Some(order.id.as_str())) else {
            self.0 = None;
            return false;
        };
        match &self.0 {
            Some((id, beat, _)) if *id == order.id && *beat == order.beat => false,
            Some((id, _, at)) if *id == order.id && now.saturating_duration_since(*at) < MAX_PAUSE => true,
            _ => {
                self.0 = Some((order.id.clone(), order.beat, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(id: &str, node: &str, beat: u64) -> Order {
        Order {
            id: id.into(),
            node: node.into(),
            program: "00".repeat(32),
            size: 1,
            timeout_seconds: 1,
            observe_seconds: 1,
            force: false,
            beat,
        }
    }

    #[test]
    fn security_an_order_counts_only_while_somebody_waits_for_its_end() {
        let mut seen = Seen::default();
        let now = Instant::now();
        assert!(!seen.is_due(None, "a", None, now));
        // One that was left behind says the same for ever.
        for _ in 0..3 {
            assert!(!seen.is_due(Some(&order("1", "a", 7)), "a", None, now));
        }
        assert!(seen.is_due(Some(&order("1", "a", 8)), "a", None, now));
        assert!(!seen.is_due(Some(&order("1", "a", 9)), "a", Some("1"), now), "it was obeyed");
        // Another one, and one for another machine.
        assert!(!seen.is_due(Some(&order("2", "a", 0)), "a", Some("1"), now));
        assert!(!seen.is_due(Some(&order("2", "b", 1)), "a", Some("1"), now));
        assert!(!seen.is_due(Some(&order("2", "a", 2)), "a", Some("1"), now), "seen anew");
        assert!(seen.is_due(Some(&order("2", "a", 3)), "a", Some("1"), now));
        // A machine that was cut off after the first count sees the last one, and nobody counts any more.
        let later = now + MAX_PAUSE;
        assert!(!seen.is_due(Some(&order("3", "a", 0)), "a", Some("1"), now));
        for _ in 0..3 {
            assert!(!seen.is_due(Some(&order("3", "a", 9)), "a", Some("1"), later));
        }
        assert!(seen.is_due(Some(&order("3", "a", 10)), "a", Some("1"), later), "somebody does");
    }

    #[test]
    fn security_an_order_that_names_no_program_is_none() {
        for (id, program, is_read) in [
            ("1f", "00".repeat(32), true),
            ("", "00".repeat(32), false),
            ("--force", "00".repeat(32), false),
            ("1f", "00".repeat(31), false),
            ("1f", "../".repeat(21) + "x", false),
        ] {
            let order = Order { program, ..order(id, "a", 0) };
            let text = serde_json::to_string(&order).unwrap();
            let map = ConfigMap { data: Some([(FIELD.to_owned(), text)].into()), ..ConfigMap::default() };
            assert_eq!(Order::read(&map).is_some(), is_read, "{order:?}");
        }
    }

    #[test]
    fn what_a_machine_says_is_read_back() {
        let long = "x".repeat(5000);
        let ended = |outcome| Said::Ended { id: "1f".into(), outcome };
        let mut node = Node::default();
        assert_eq!(Said::by(&node), None);
        for said in [
            Said::Ready,
            Said::UnderWay { id: "1f".into() },
            ended(Outcome::Done),
            ended(Outcome::Failed("it said: done".into())),
        ] {
            node.metadata.annotations = Some([(SAID.to_owned(), said.text())].into());
            assert_eq!(Said::by(&node), Some(said));
        }
        assert!(ended(Outcome::Failed(long)).text().len() < 1100);
        let mut map = ConfigMap::default();
        assert_eq!(Order::read(&map), None);
        let text = serde_json::to_string(&order("1", "a", 7)).unwrap();
        map.data = Some([(FIELD.to_owned(), text)].into());
        assert_eq!(Order::read(&map), Some(order("1", "a", 7)));
    }
}
