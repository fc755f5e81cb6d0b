//! Which members can answer: those that cannot are left long before a request's time is up, and those that stay behind
//! too.
//!
//! Every member is asked for its status twice a second, and more often while one of them cannot answer.
//! [`Health::judge`] decides from the answers of all of them, without waiting for anything; `Connection::look` asks,
//! and acts on the verdicts.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::Connection;
use crate::Revision;

const INTERVAL: Duration = Duration::from_millis(500);
const TROUBLED_INTERVAL: Duration = Duration::from_millis(100);
/// Members notice as soon as this that their leader is gone.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for one that was silent the last time.
pub(super) const LOST_TIMEOUT: Duration = Duration::from_millis(250);
/// For so long others may still follow a leader that has gone silent. After that they know more than we do: they can reach
/// it.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(4);
/// For so long one may take to hear of a leader that others follow.
const NEWS_TIMEOUT: Duration = Duration::from_secs(1);
/// For so long one may take to apply what another has applied. A follower whose disk stands still answers as if all were
/// well, and its watches are silent.
const LAG_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for one that was left because of it, so that it does not come and go.
const RETURN_LAG: Duration = Duration::from_secs(1);

/// Keeps the verdicts about the members of a connection up to date.
pub(super) async fn watch_over(connection: Arc<Connection>) {
    let mut health = Health::default();
    loop {
        let interval = if connection.all_serve() { INTERVAL } else { TROUBLED_INTERVAL };
        tokio::time::sleep(interval).await;
        connection.look(&mut health).await;
    }
}

/// What a member answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Silent,
    /// It is there, and does not tell us who leads.
    Answers,
    /// Leader 0 is none.
    Says {
        id: u64,
        leader: u64,
        term: u64,
        /// Of the latest change that it has applied.
        revision: Revision,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Serves,
    /// It waits for a leader: what it is asked now may get lost.
    Waits,
    /// Nobody should wait for its answers.
    Lost,
}

/// What is remembered of members, by the names of their endpoints.
#[derive(Default)]
pub(super) struct Health {
    ids: HashMap<String, u64>,
    /// Since when those have been silent that are.
    silent: HashMap<String, Instant>,
    /// Since when those have known no leader, or an older one than others.
    behind: HashMap<String, Instant>,
    /// The latest revision that a member which serves had, and when: for [`LAG_TIMEOUT`].
    newest: VecDeque<(Instant, Revision)>,
    /// Those that were left because of what they lacked.
    laggards: HashSet<String>,
}

impl Health {
    /// One round: what to think of each member. None if nobody answers: it may be us who cannot hear, and there is nobody
    /// to turn to.
    pub(super) fn judge(&mut self, round: &[(&str, Seen)], now: Instant) -> Option<Vec<Verdict>> {
        for (name, seen) in round {
            match seen {
                Seen::Silent => {
                    self.silent.entry((*name).to_owned()).or_insert(now);
                }
                Seen::Answers | Seen::Says { .. } => {
                    self.silent.remove(*name);
                }
            }
            if let Seen::Says { id, .. } = seen {
                self.ids.insert((*name).to_owned(), *id);
            }
        }
        let is_named = |name: &String| round.iter().any(|(known, _)| known == name);
        self.silent.retain(|name, _| is_named(name));
        self.ids.retain(|name, _| is_named(name));
        if round.iter().all(|(_, seen)| *seen == Seen::Silent) {
            return None;
        }
        let has_just_gone = |leader: u64| {
            let names = self.ids.iter().filter(|(_, id)| **id == leader);
            names.filter_map(|(name, _)| self.silent.get(name)).any(|since| now - *since < ELECTION_TIMEOUT)
        };
        // The term of the leader that a member follows.
        let followed = |seen: Seen| match seen {
            Seen::Says { leader, term, .. } if leader != 0 && !has_just_gone(leader) => Some(term),
            _ => None,
        };
        let newest = round.iter().filter_map(|(_, seen)| followed(*seen)).max();
        let mut behind = HashMap::new();
        let verdicts = round.iter().map(|(name, seen)| match *seen {
            Seen::Silent => Verdict::Lost,
            Seen::Answers => Verdict::Serves,
            seen @ Seen::Says { .. } if newest.is_some() && followed(seen) == newest => Verdict::Serves,
            // Cut off from the others, which go on, or its disk stands still; or it will hear of their leader any moment.
            Seen::Says { leader, term, .. } if newest.is_some_and(|newest| leader == 0 || term < newest) => {
                let since = self.behind.get(*name).copied().unwrap_or(now);
                behind.insert((*name).to_owned(), since);
                if now - since < NEWS_TIMEOUT { Verdict::Waits } else { Verdict::Lost }
            }
            Seen::Says { .. } => Verdict::Waits,
        });
        let mut verdicts: Vec<Verdict> = verdicts.collect();
        self.behind = behind;
        self.leave_laggards(round, &mut verdicts, now);
        Some(verdicts)
    }

    /// Leaves those that have not applied what another had applied [`LAG_TIMEOUT`] ago, but never the one that is furthest.
    fn leave_laggards(&mut self, round: &[(&str, Seen)], verdicts: &mut [Verdict], now: Instant) {
        let applied = |seen: Seen, verdict: Verdict| match seen {
            Seen::Says { revision, .. } if verdict == Verdict::Serves => Some(revision),
            _ => None,
        };
        let all = round.iter().zip(&*verdicts);
        let Some(newest) = all.filter_map(|((_, seen), verdict)| applied(*seen, *verdict)).max() else { return };
        self.newest.push_back((now, newest));
        while self.newest.get(1).is_some_and(|(at, _)| now - *at >= LAG_TIMEOUT) {
            self.newest.pop_front();
        }
        // What every member should have that may be so far behind.
        let due = |lag: Duration| {
            let known = self.newest.iter().rev().find(|(at, _)| now - *at >= lag);
            known.map_or(Revision::ZERO, |(_, revision)| (*revision).min(newest))
        };
        let (to_stay, to_return) = (due(LAG_TIMEOUT), due(RETURN_LAG));
        let mut laggards = HashSet::new();
        for ((name, seen), verdict) in round.iter().zip(verdicts) {
            let due = if self.laggards.contains(*name) { to_return } else { to_stay };
            if applied(*seen, *verdict).is_some_and(|revision| revision < due) {
                *verdict = Verdict::Lost;
                laggards.insert((*name).to_owned());
            }
        }
        self.laggards = laggards;
    }
}

#[cfg(test)]
mod tests {
    use super::Seen::{Answers, Says, Silent};
    use super::Verdict::{Lost, Serves, Waits};
    use super::*;

    fn says(id: u64, leader: u64) -> Seen {
        Says { id, leader, term: 1, revision: Revision(7) }
    }

    /// After another election.
    fn then(id: u64, leader: u64) -> Seen {
        Says { id, leader, term: 2, revision: Revision(7) }
    }

    /// All follow the same leader, and have applied this much.
    fn applied(revisions: [u64; 3]) -> [Seen; 3] {
        let mut id = 0;
        revisions.map(|revision| {
            id += 1;
            Says { id, leader: 2, term: 1, revision: Revision(revision) }
        })
    }

    /// What is thought of members `a`, `b` and `c` after these rounds, `apart` from each other.
    fn judged(rounds: &[[Seen; 3]], apart: Duration) -> Option<Vec<Verdict>> {
        let (mut health, mut now) = (Health::default(), Instant::now());
        let mut found = None;
        for round in rounds {
            let round: Vec<(&str, Seen)> = ["a", "b", "c"].into_iter().zip(*round).collect();
            found = health.judge(&round, now);
            now += apart;
        }
        found
    }

    #[test]
    fn members_serve_while_they_follow_a_leader_that_answers() {
        let well = [says(1, 1), says(2, 1), says(3, 1)];
        let after = [then(1, 3), then(2, 3), then(3, 3)];
        let cut_off = [says(1, 0), then(2, 3), then(3, 3)];
        let frozen = [says(1, 1), then(2, 3), then(3, 3)];
        for (name, rounds, expected) in [
            ("all is well", &[well][..], Some([Serves, Serves, Serves])),
            ("a follower is silent", &[well, [says(1, 1), Silent, says(3, 1)]], Some([Serves, Lost, Serves])),
            ("the leader is silent", &[well, [Silent, says(2, 1), says(3, 1)]], Some([Lost, Waits, Waits])),
            ("another is chosen", &[well, [Silent, then(2, 3), then(3, 3)]], Some([Lost, Serves, Serves])),
            ("one has heard of it", &[well, [Silent, says(2, 1), then(3, 3)]], Some([Lost, Waits, Serves])),
            ("one was cut off just now", &[well, cut_off], Some([Waits, Serves, Serves])),
            ("one is cut off", &[well, cut_off, cut_off, cut_off], Some([Lost, Serves, Serves])),
            ("one was away for a moment", &[well, cut_off, after, cut_off], Some([Waits, Serves, Serves])),
            ("a leader whose disk stands still", &[well, frozen, frozen, frozen], Some([Lost, Serves, Serves])),
            ("nobody leads", &[well, [says(1, 0), says(2, 0), says(3, 0)]], Some([Waits, Waits, Waits])),
            ("no quorum", &[well, [Silent, Silent, says(3, 0)]], Some([Lost, Lost, Waits])),
            ("nobody says who leads", &[[Answers, Silent, Answers]], Some([Serves, Lost, Serves])),
            ("nobody answers", &[well, [Silent, Silent, Silent]], None),
            ("all are back", &[[Silent, Silent, Silent], well], Some([Serves, Serves, Serves])),
        ] {
            assert_eq!(judged(rounds, INTERVAL), expected.map(Vec::from), "{name}");
        }
    }

    #[test]
    fn a_leader_that_only_others_reach_is_believed_in() {
        let well = [says(1, 1), says(2, 1), says(3, 1)];
        let silent = [Silent, says(2, 1), says(3, 1)];
        let rounds = [well, silent, silent];
        assert_eq!(judged(&rounds, ELECTION_TIMEOUT / 2), Some(vec![Lost, Waits, Waits]));
        assert_eq!(judged(&rounds, ELECTION_TIMEOUT), Some(vec![Lost, Serves, Serves]));
    }

    #[test]
    fn a_member_that_stays_behind_is_left() {
        let (level, ahead) = (applied([5, 5, 5]), applied([5, 9, 9]));
        let without_first = |[_, b, c]: [Seen; 3]| [Silent, b, c];
        let all_serve = [Serves, Serves, Serves];
        let first_is_lost = [Lost, Serves, Serves];
        for (name, rounds, expected) in [
            ("nobody writes", &[level, level, level][..], all_serve),
            ("a write is on its way", &[level, ahead], all_serve),
            ("one keeps up", &[level, ahead, applied([9, 12, 12])], all_serve),
            ("one stands still", &[level, ahead, ahead], first_is_lost),
            ("one is late", &[level, ahead, applied([8, 12, 12])], first_is_lost),
            ("one was late", &[ahead, ahead, applied([9, 9, 9])], all_serve),
            ("one comes back", &[level, without_first(ahead), ahead], first_is_lost),
            ("the one that was ahead is gone", &[applied([9, 5, 5]), without_first(level)], first_is_lost),
        ] {
            assert_eq!(judged(rounds, LAG_TIMEOUT), Some(Vec::from(expected)), "{name}");
        }
        // It comes back when it lacks hardly anything, and not as soon as it lacks a little less.
        let rounds = [level, ahead, ahead, applied([5, 12, 12]), applied([9, 12, 12]), applied([12, 15, 15])];
        for (count, expected) in [(3, all_serve), (4, first_is_lost), (5, first_is_lost), (6, all_serve)] {
            assert_eq!(judged(&rounds[..count], LAG_TIMEOUT / 2), Some(Vec::from(expected)), "{count} rounds");
        }
    }
}
