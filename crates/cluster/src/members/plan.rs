//! Decisions about members, from what is seen of them. Pure.

use std::collections::BTreeMap;

use api::sort::CompactSort as _;
use store::etcd::{Member, Status};

/// How well a release of etcd is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Support {
    Full,
    /// It works in tests, and its makers no longer mend it.
    Old,
}

/// Why a release of etcd will not do.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsupported {
    #[error("it does not say its version")]
    Silent,
    #[error("it is version {0}, and 3.5 or 3.6 is needed")]
    Version(String),
}

/// What `etcd --version` says, and whether that will do.
pub(super) fn support(said: &str) -> Result<(String, Support), Unsupported> {
    let version = said.lines().find_map(|line| line.strip_prefix("etcd Version: ")).map(str::trim);
    let version = version.ok_or(Unsupported::Silent)?;
    let mut numbers = version.split('.').map(|number| number.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(3)), Some(Ok(5 | 6))) => Ok((version.to_owned(), Support::Full)),
        (Some(Ok(3)), Some(Ok(4))) => Ok((version.to_owned(), Support::Old)),
        _ => Err(Unsupported::Version(version.to_owned())),
    }
}

/// How a member begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Start {
    /// Its data are there and say everything.
    Resume,
    /// As the first of a new cluster.
    Found,
    /// Beside others.
    Join,
}

/// An empty cluster in the place of one that was lost would have controllers delete what still runs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data of the only etcd member are gone: put them back, or restore a snapshot (docs/servers.md)")]
pub(super) struct DataGone;

/// What a server's member does at first. `has_data`: its directory was filled. `has_served`: it has been a member.
pub(super) fn start(has_data: bool, has_served: bool, others: &[String]) -> Result<Start, DataGone> {
    match (has_data, has_served, others.is_empty()) {
        (true, _, _) => Ok(Start::Resume),
        (false, _, false) => Ok(Start::Join),
        (false, false, true) => Ok(Start::Found),
        (false, true, true) => Err(DataGone),
    }
}

/// What is to be done before a new member can start beside others.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Joining {
    Add,
    /// It was added before and has not started since.
    Added,
    /// What it knew is lost: its place is given up first.
    Replace(u64),
}

/// Another server has the name of one that is to join.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a server named {name} is a member at {}: choose another name, or 'cox server rm {name}' first", peer_urls.join(",")
)]
pub(super) struct NameTaken {
    name: String,
    peer_urls: Vec<String>,
}

pub(super) fn joining(name: &str, peer_url: &str, members: &[Member]) -> Result<Joining, NameTaken> {
    let own = |member: &&Member| member.peer_urls.iter().any(|url| url == peer_url);
    match members.iter().find(own) {
        Some(member) if member.name.is_empty() => Ok(Joining::Added),
        Some(member) => Ok(Joining::Replace(member.id)),
        None => match members.iter().find(|member| member.name == name) {
            Some(other) => Err(NameTaken { name: name.to_owned(), peer_urls: other.peer_urls.clone() }),
            None => Ok(Joining::Add),
        },
    }
}

/// `--initial-cluster` for a member that starts beside others.
pub(super) fn initial_cluster(name: &str, peer_url: &str, members: &[Member]) -> String {
    let mut urls: BTreeMap<&str, String> = BTreeMap::new();
    for member in members {
        // One that has not started has no name yet, and any will do.
        let called = if member.name.is_empty() { format!("member-{:x}", member.id) } else { member.name.clone() };
        urls.extend(member.peer_urls.iter().map(|url| (url.as_str(), called.clone())));
    }
    urls.insert(peer_url, name.to_owned());
    let entries: Vec<String> = urls.into_iter().map(|(url, name)| format!("{name}={url}")).collect();
    entries.join(",")
}

/// Why a member said nothing of itself.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoAnswer(pub String);

/// A member as it was seen.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub member: Member,
    /// What it said of itself, or why it said nothing.
    pub status: Result<Status, NoAnswer>,
    /// It takes part: what it answers is agreed with the others.
    pub is_healthy: bool,
}

impl State {
    /// Where it is, as people are shown it.
    pub(super) fn address(&self) -> &str {
        let url = self.member.client_urls.first().or(self.member.peer_urls.first());
        url.map(|url| url.split("://").last().unwrap_or_default()).unwrap_or_default()
    }

    /// What people call it: one that has never started has only an address.
    pub(super) fn name(&self) -> &str {
        if self.member.name.is_empty() { self.address() } else { &self.member.name }
    }

    pub(super) fn is_leader(&self) -> bool {
        self.status.as_ref().is_ok_and(|status| status.leader == self.member.id)
    }

    pub(super) fn role(&self) -> &'static str {
        match (&self.status, self.member.is_learner) {
            (_, true) => "learner",
            (Ok(_), false) if self.is_leader() => "leader",
            (Ok(_), false) => "follower",
            (Err(_), false) => "member",
        }
    }
}

/// A member to take out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Removal {
    pub id: u64,
    /// Who is to lead first, where the one that goes does.
    pub hand_over_to: Option<u64>,
}

/// Why a member stays.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Needed {
    #[error("no server named {name}: there are {}", there.join(", "))]
    Unknown { name: String, there: Vec<String> },
    #[error("{0} is the last server: 'cox delete' there removes the cluster")]
    Last(String),
    #[error(
        "without {name} the servers would have no quorum, since {} is not healthy: mend or remove that first",
        sick.join(", ")
    )]
    Quorum { name: String, sick: Vec<String> },
}

/// Whether a member can go without the others losing their quorum.
pub(super) fn removal(states: &[State], name: &str) -> Result<Removal, Needed> {
    let goes = states.iter().find(|state| state.name() == name).ok_or_else(|| {
        let there = states.iter().map(|state| state.name().to_owned()).collect();
        Needed::Unknown { name: name.to_owned(), there }
    })?;
    let id = goes.member.id;
    let stay: Vec<&State> = states.iter().filter(|state| state.member.id != id && !state.member.is_learner).collect();
    if stay.is_empty() {
        return Err(Needed::Last(name.to_owned()));
    }
    let healthy: Vec<&&State> = stay.iter().filter(|state| state.is_healthy).collect();
    if healthy.len() * 2 <= stay.len() {
        let sick = stay.iter().filter(|state| !state.is_healthy).map(|state| state.name().to_owned()).collect();
        return Err(Needed::Quorum { name: name.to_owned(), sick });
    }
    let hand_over_to = healthy.first().filter(|_| goes.is_leader()).map(|state| state.member.id);
    Ok(Removal { id, hand_over_to })
}

/// Which databases are rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    All,
    /// Those that are large and mostly empty.
    Wasteful,
}

/// Less is not worth a pause.
const WASTE: u64 = 128 << 20;

/// A member that does not take part: no other may pause meanwhile.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not healthy: no other member may pause now")]
pub(super) struct Unhealthy(String);

/// In which order members are defragmented, each of which answers nobody meanwhile: the one that leads at last. None unless
/// all take part.
pub(super) fn defragmentation(states: &[State], which: Which) -> Result<Vec<u64>, Unhealthy> {
    if let Some(sick) = states.iter().find(|state| !state.is_healthy) {
        return Err(Unhealthy(sick.name().to_owned()));
    }
    let wastes = |state: &&State| match (&state.status, which) {
        (_, Which::All) => true,
        (Ok(status), Which::Wasteful) => {
            let waste = status.db_size.saturating_sub(status.db_size_in_use);
            waste >= WASTE && waste * 2 >= status.db_size
        }
        (Err(_), Which::Wasteful) => false,
    };
    let mut chosen: Vec<&State> = states.iter().filter(wastes).collect();
    chosen.compact_sort_by_key(|state| (state.is_leader(), &state.member.name));
    Ok(chosen.into_iter().map(|state| state.member.id).collect())
}

/// The newest snapshot that is not after `latest`. Names begin with their time.
pub(super) fn newest<'n>(names: &'n [String], latest: &str) -> Option<&'n String> {
    names.iter().filter(|name| name.as_str() <= latest).max()
}

/// The snapshots that are too many, oldest first. Those after `latest` were made while the clock was wrong, and go before others.
pub(super) fn superfluous(mut names: Vec<String>, keep: usize, latest: &str) -> Vec<String> {
    names.compact_sort_by(|one, other| (one.as_str() <= latest, one).cmp(&(other.as_str() <= latest, other)));
    names.truncate(names.len().saturating_sub(keep));
    names
}

#[cfg(test)]
mod tests {
    use store::Revision;

    use super::*;

    #[test]
    fn releases_are_known_old_or_refused() {
        for (said, expected) in [
            ("etcd Version: 3.5.21\nGit SHA: a\n", Some(Support::Full)),
            ("etcd Version: 3.6.0\n", Some(Support::Full)),
            ("etcd Version: 3.4.23\n", Some(Support::Old)),
            ("etcd Version: 3.3.25\n", None),
            ("etcd Version: 4.0.0\n", None),
            ("something else\n", None),
        ] {
            assert_eq!(support(said).ok().map(|(_, support)| support), expected, "{said}");
        }
    }

    #[test]
    fn a_member_that_lost_everything_founds_no_second_cluster() {
        let others = vec!["https://192.0.2.1:2379".to_owned()];
        assert_eq!(start(true, true, &others), Ok(Start::Resume));
        assert_eq!(start(true, false, &[]), Ok(Start::Resume));
        assert_eq!(start(false, false, &[]), Ok(Start::Found));
        assert_eq!(start(false, false, &others), Ok(Start::Join));
        assert_eq!(start(false, true, &others), Ok(Start::Join));
        assert_eq!(start(false, true, &[]), Err(DataGone));
    }

    fn member(id: u64, name: &str) -> Member {
        let url = |port: u16| vec![format!("https://192.0.2.{id}:{port}")];
        Member { id, name: name.into(), peer_urls: url(2380), client_urls: url(2379), is_learner: false }
    }

    #[test]
    fn a_new_member_is_added_once() {
        let (a, b, nameless) = (member(1, "a"), member(2, "b"), member(3, ""));
        let own = "https://192.0.2.3:2380";
        assert_eq!(joining("c", own, &[a.clone(), b.clone()]), Ok(Joining::Add));
        assert_eq!(joining("c", own, &[a.clone(), nameless.clone()]), Ok(Joining::Added));
        assert_eq!(joining("c", own, &[a.clone(), member(3, "c")]), Ok(Joining::Replace(3)));
        // A machine that takes the place of another at its address.
        assert_eq!(joining("c", own, &[member(3, "old")]), Ok(Joining::Replace(3)));
        assert!(joining("a", own, std::slice::from_ref(&a)).unwrap_err().to_string().contains("192.0.2.1"));
        assert_eq!(
            initial_cluster("c", own, &[a.clone(), nameless]),
            "a=https://192.0.2.1:2380,c=https://192.0.2.3:2380"
        );
        assert_eq!(
            initial_cluster("c", own, &[member(2, ""), member(3, "")]),
            "member-2=https://192.0.2.2:2380,c=https://192.0.2.3:2380"
        );
    }

    fn state(id: u64, name: &str, leader: u64, is_healthy: bool) -> State {
        let status = Status {
            id,
            version: "3.5.0".into(),
            db_size: 1 << 30,
            db_size_in_use: 1 << 30,
            revision: Revision(9),
            leader,
            is_learner: false,
            errors: Vec::new(),
        };
        let status = if is_healthy { Ok(status) } else { Err(NoAnswer("no answer".into())) };
        State { member: member(id, name), status, is_healthy }
    }

    #[test]
    fn a_server_goes_only_if_the_others_have_a_quorum() {
        let all = |sick: &[u64]| {
            [(1, "a"), (2, "b"), (3, "c")].map(|(id, name)| state(id, name, 1, !sick.contains(&id))).to_vec()
        };
        // The dead one goes; the leader hands over first.
        assert_eq!(removal(&all(&[2]), "b"), Ok(Removal { id: 2, hand_over_to: None }));
        assert_eq!(removal(&all(&[]), "a"), Ok(Removal { id: 1, hand_over_to: Some(2) }));
        // A live one does not while another is dead.
        assert!(removal(&all(&[2]), "c").unwrap_err().to_string().contains("since b is not healthy"));
        assert!(removal(&all(&[]), "x").unwrap_err().to_string().contains("a, b, c"));
        assert!(removal(&[state(1, "a", 1, true)], "a").unwrap_err().to_string().contains("the last server"));
        // Of two, either may go while both live, and the dead one cannot: nobody could agree on it.
        let two = |sick: bool| [state(1, "a", 1, true), state(2, "b", 1, !sick)];
        assert!(removal(&two(false), "b").is_ok());
        assert!(removal(&two(true), "a").is_err());
        // One without a vote counts for nothing.
        let mut learner = state(3, "c", 1, true);
        learner.member.is_learner = true;
        assert!(
            removal(&[state(1, "a", 1, true), learner.clone()], "a")
                .unwrap_err()
                .to_string()
                .contains("the last server")
        );
        assert_eq!((learner.role(), state(1, "a", 1, true).role()), ("learner", "leader"));
    }

    #[test]
    fn a_member_that_never_started_goes_by_its_address() {
        let mut nameless = state(3, "", 1, false);
        (nameless.member.is_learner, nameless.member.client_urls) = (true, Vec::new());
        let states = [state(1, "a", 1, true), state(2, "b", 1, true), nameless];
        assert_eq!(removal(&states, "192.0.2.3:2380"), Ok(Removal { id: 3, hand_over_to: None }));
        assert!(removal(&states, "").is_err());
        assert!(removal(&states, "192.0.2.1:2380").unwrap_err().to_string().contains("a, b, 192.0.2.3:2380"));
        assert!(
            defragmentation(&states, Which::All).unwrap_err().to_string().contains("192.0.2.3:2380 is not healthy")
        );
    }

    #[test]
    fn the_leader_is_defragmented_last_and_nobody_while_one_is_away() {
        let mut states = vec![state(1, "a", 1, true), state(3, "c", 1, true), state(2, "b", 1, true)];
        assert_eq!(defragmentation(&states, Which::All), Ok(vec![2, 3, 1]));
        assert_eq!(defragmentation(&states, Which::Wasteful), Ok(Vec::new()));
        for (state, in_use) in states.iter_mut().zip([10, 1 << 29, (1 << 29) + 1]) {
            state.status.as_mut().unwrap().db_size_in_use = in_use;
        }
        assert_eq!(defragmentation(&states, Which::Wasteful), Ok(vec![3, 1]));
        states[1] = state(3, "c", 1, false);
        assert!(defragmentation(&states, Which::All).unwrap_err().to_string().contains("c is not healthy"));
    }

    #[test]
    fn the_newest_snapshots_stay() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(superfluous(names(&["3.db", "1.db", "2.db"]), 2, "4"), ["1.db"]);
        assert!(superfluous(names(&["1.db"]), 2, "4").is_empty());
        // What a clock that was ahead has named goes first, and is not the newest.
        assert_eq!(superfluous(names(&["8.db", "1.db", "9.db", "2.db"]), 2, "4"), ["8.db", "9.db"]);
        assert_eq!(newest(&names(&["8.db", "1.db", "2.db"]), "4").unwrap(), "2.db");
        assert_eq!(newest(&names(&["8.db"]), "4"), None);
    }
}
