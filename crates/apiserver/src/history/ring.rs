//! The ring: one value a minute of each series, for some hours, in bounded memory.
//!
//! All series share the axis of time: a minute has the same place in each of them. What was not measured is not a number.
//!
//! Invariant: where there is no room for all, components and nodes come first, then the networks of nodes, then the pods that
//! use most CPU; but a quarter is for pods. All series of one of them are kept or none, and how many are not is told.

use std::collections::{BTreeMap, BTreeSet};

use api::sort::CompactSort as _;

/// Seconds between two values.
pub(crate) const STEP: u64 = 60;
/// Six hours.
pub(crate) const POINTS: usize = 360;
/// Each takes 1.5 KB: under 4 MB in all.
const MAX_SERIES: usize = 2500;
/// Of these, what is for pods if they need it, however many nodes there are.
const OF_PODS: usize = MAX_SERIES / 4;
/// Minutes of which the mean says how busy something is.
const BUSY_MINUTES: u64 = 60;
/// How much busier a newcomer has to be than what makes room for it. Two that take turns would leave no history of either.
const BUSIER: f32 = 2.0;

/// Whose series it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Of {
    Component,
    Node,
    Pod,
}

impl Of {
    const ALL: [Self; 3] = [Self::Component, Self::Node, Self::Pod];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Component => "component",
            Self::Node => "node",
            Self::Pod => "pod",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|of| of.as_str() == text)
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// Cores.
    Cpu,
    /// Bytes.
    Memory,
    /// Bytes a second.
    Received,
    Sent,
    /// Bytes in use, and bytes that there are.
    Disk,
    DiskSize,
    /// Requests a second, those that failed through no fault of the client, and those turned away.
    Requests,
    Errors,
    Rejected,
    /// Seconds that 99 of 100 requests do not exceed.
    Latency,
}

impl What {
    const ALL: [(Self, &'static str, &'static str); 10] = [
        (Self::Cpu, "cpu_cores", "Cores in use."),
        (Self::Memory, "memory_bytes", "Memory in use, in bytes."),
        (Self::Received, "network_receive_bytes_per_second", "Bytes received per second."),
        (Self::Sent, "network_transmit_bytes_per_second", "Bytes sent per second."),
        (Self::Disk, "disk_used_bytes", "Bytes of the file system in use."),
        (Self::DiskSize, "disk_size_bytes", "Bytes of the file system."),
        (Self::Requests, "requests_per_second", "Requests per second."),
        (Self::Errors, "errors_per_second", "Requests per second that failed with 5xx."),
        (Self::Rejected, "rejections_per_second", "Requests per second that were turned away with 429."),
        (Self::Latency, "request_p99_seconds", "Seconds that 99 of 100 requests do not exceed."),
    ];

    pub(crate) fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    pub(crate) fn help(self) -> &'static str {
        Self::ALL[self as usize].2
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, name, _)| *name == text).map(|(what, ..)| what)
    }
}

/// The name of a series, in the order in which they are listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) what: What,
    pub(crate) of: Of,
    /// Empty but for pods.
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
}

/// What has room first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Component,
    /// But for its network.
    Node,
    NodeNetwork,
    Pod,
}

/// Whose series it is, by name.
type Owner = (Rank, Box<str>, Box<str>);

impl Key {
    fn owner(&self) -> Owner {
        let rank = match (self.of, self.what) {
            (Of::Component, _) => Rank::Component,
            (Of::Node, What::Received | What::Sent) => Rank::NodeNetwork,
            (Of::Node, _) => Rank::Node,
            (Of::Pod, _) => Rank::Pod,
        };
        (rank, self.namespace.clone(), self.name.clone())
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ring {
    /// The latest minute, since 1970.
    newest: u64,
    /// Values by the remainder of their minute.
    series: BTreeMap<Key, Box<[f32]>>,
    /// Series that there was no room for when nodes and pods were looked at last.
    left_out: usize,
}

impl Ring {
    /// The ring that holds these values; those that are not its own are left out.
    pub(super) fn restore(newest: u64, series: BTreeMap<Key, Box<[f32]>>) -> Self {
        let fits = |(_, values): &(Key, Box<[f32]>)| values.len() == POINTS;
        Self { newest, series: series.into_iter().filter(fits).take(MAX_SERIES).collect(), left_out: 0 }
    }

    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }

    pub(super) fn raw(&self) -> &BTreeMap<Key, Box<[f32]>> {
        &self.series
    }

    /// Takes the values of a minute. An older minute is not taken: clocks go back, but what was seen was seen. Returns how
    /// many series there was no room for.
    pub(crate) fn record(&mut self, minute: u64, values: impl IntoIterator<Item = (Key, f32)>) -> usize {
        if minute < self.newest {
            if self.newest - minute < POINTS as u64 {
                return 0;
            }
            // What was recorded lies in the future: the clock was wrong then.
            *self = Self::default();
        }
        let passed = usize::try_from(minute - self.newest).unwrap_or(POINTS).min(POINTS);
        if passed > 0 {
            let gone: Vec<usize> = (0..passed).map(|back| place(minute - back as u64)).collect();
            for values in self.series.values_mut() {
                gone.iter().for_each(|at| values[*at] = f32::NAN);
            }
            self.series.retain(|_, values| values.iter().any(|value| value.is_finite()));
        }
        self.newest = minute;
        let mut values: Vec<(Key, f32)> = values.into_iter().collect();
        let new = values.iter().filter(|(key, _)| !self.series.contains_key(key)).count();
        let (all, has_nodes) = (values.len(), values.iter().any(|(key, _)| key.of != Of::Component));
        if self.series.len() + new > MAX_SERIES {
            let kept = self.foremost(&values);
            self.series.retain(|key, _| kept.contains(&key.owner()));
            values.retain(|(key, _)| kept.contains(&key.owner()));
        }
        let left_out = all - values.len();
        if has_nodes {
            self.left_out = left_out;
        }
        for (key, value) in values {
            let values = self.series.entry(key).or_insert_with(|| vec![f32::NAN; POINTS].into_boxed_slice());
            values[place(minute)] = value;
        }
        left_out
    }

    /// Of all that there is with these values, as much as there is room for.
    fn foremost(&self, values: &[(Key, f32)]) -> BTreeSet<Owner> {
        // Number of series, and how busy.
        let mut owners: BTreeMap<Owner, (usize, f32)> = BTreeMap::new();
        for (key, values) in &self.series {
            let (series, busy) = owners.entry(key.owner()).or_default();
            *series += 1;
            if key.what == What::Cpu {
                *busy = self.mean(values) * BUSIER;
            }
        }
        for (key, value) in values.iter().filter(|(key, _)| !self.series.contains_key(key)) {
            let (series, busy) = owners.entry(key.owner()).or_default();
            *series += 1;
            if key.what == What::Cpu {
                *busy = *value;
            }
        }
        let mut ranked: Vec<(Owner, (usize, f32))> = owners.into_iter().collect();
        ranked
            .compact_sort_by(|(one, (_, busy)), (other, (_, busier))| one.0.cmp(&other.0).then(busier.total_cmp(busy)));
        fitting(ranked)
    }

    /// Of the values of late; of nothing, zero.
    fn mean(&self, values: &[f32]) -> f32 {
        let minutes = self.newest.saturating_sub(BUSY_MINUTES)..=self.newest;
        let known = minutes.map(|minute| values[place(minute)]).filter(|value| value.is_finite());
        let (sum, count) = known.fold((0.0, 0.0), |(sum, count): (f32, f32), value| (sum + value, count + 1.0));
        if count > 0.0 { sum / count } else { 0.0 }
    }

    /// The values of a minute.
    pub(super) fn at(&self, minute: u64) -> impl Iterator<Item = (&Key, f32)> {
        let is_held = minute <= self.newest && self.newest - minute < POINTS as u64;
        let all = self.series.iter().filter(move |_| is_held).map(move |(key, values)| (key, values[place(minute)]));
        all.filter(|(_, value)| value.is_finite())
    }

    /// The series that `wanted` picks, each with its values of the last minutes: seconds since 1970, and the value.
    pub(crate) fn recent(
        &self,
        minutes: usize,
        wanted: impl Fn(&Key) -> bool,
    ) -> impl Iterator<Item = (&Key, Vec<(u64, f32)>)> {
        let first = self.newest.saturating_sub(minutes.clamp(1, POINTS) as u64 - 1);
        let picked = self.series.iter().filter(move |(key, _)| wanted(key));
        picked.map(move |(key, values)| {
            let points = (first..=self.newest).map(|minute| (minute * STEP, values[place(minute)]));
            (key, points.filter(|(_, value)| value.is_finite()).collect())
        })
    }
}

/// Of these, with the numbers of their series and in this order, as much as there is room for.
fn fitting(mut ranked: Vec<(Owner, (usize, f32))>) -> BTreeSet<Owner> {
    let pods = ranked.split_off(ranked.partition_point(|((rank, ..), _)| *rank != Rank::Pod));
    let wanted: usize = pods.iter().map(|(_, (series, _))| series).sum();
    let of_pods = wanted.min(OF_PODS);
    let mut room = MAX_SERIES - of_pods;
    let mut kept = BTreeSet::new();
    for (group, more) in [(ranked, 0), (pods, of_pods)] {
        room += more;
        for (owner, (series, _)) in group {
            if series <= room {
                room -= series;
                kept.insert(owner);
            }
        }
    }
    kept
}

fn place(minute: u64) -> usize {
    (minute % POINTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn key(name: &str) -> Key {
        Key { what: What::Cpu, of: Of::Node, namespace: "".into(), name: name.into() }
    }

    fn points(ring: &Ring, name: &str, minutes: usize) -> Vec<(u64, f32)> {
        let wanted = key(name);
        ring.recent(minutes, move |key| *key == wanted).next().map(|(_, points)| points).unwrap_or_default()
    }

    #[test]
    fn names_are_those_of_their_place() {
        for (at, (what, name, _)) in What::ALL.into_iter().enumerate() {
            assert_eq!((what as usize, What::parse(name)), (at, Some(what)));
        }
    }

    #[test]
    fn minutes_pass_and_gaps_stay_gaps() {
        let mut ring = Ring::default();
        ring.record(1000, [(key("a"), 1.0)]);
        ring.record(1001, [(key("a"), 2.0), (key("b"), 7.0)]);
        ring.record(1004, [(key("a"), 3.0)]);
        assert_eq!(points(&ring, "a", 10), [(60_000, 1.0), (60_060, 2.0), (60_240, 3.0)]);
        assert_eq!(points(&ring, "a", 4), [(60_060, 2.0), (60_240, 3.0)]);
        assert_eq!(points(&ring, "b", 10), [(60_060, 7.0)]);
        // The same minute again, and one that is over.
        ring.record(1004, [(key("a"), 4.0)]);
        ring.record(900, [(key("a"), 9.0)]);
        assert_eq!(points(&ring, "a", 1), [(60_240, 4.0)]);
        // What has not been seen for so long is forgotten.
        ring.record(1001 + POINTS as u64, [(key("a"), 5.0)]);
        assert!(points(&ring, "b", POINTS).is_empty() && !ring.raw().contains_key(&key("b")));
        assert_eq!(points(&ring, "a", POINTS).len(), 2);
        ring.record(90_000, [(key("a"), 6.0)]);
        assert_eq!(points(&ring, "a", POINTS), [(90_000 * 60, 6.0)]);
        let at = |minute| ring.at(minute).map(|(_, value)| value).collect::<Vec<_>>();
        assert_eq!((at(90_000), at(89_999), at(90_001)), (vec![6.0], vec![], vec![]));
        assert_eq!(at(90_000 - POINTS as u64), Vec::<f32>::new(), "its place is another minute's by now");
    }

    #[test]
    fn security_the_ring_does_not_grow_beyond_its_bounds() {
        let mut ring = Ring::default();
        let many = |count: usize| (0..count).map(|at| (key(&format!("n{at}")), 1.0));
        assert_eq!(ring.record(1, many(MAX_SERIES + 7)), 7);
        assert_eq!(ring.raw().len(), MAX_SERIES);
        assert!(MAX_SERIES * POINTS * size_of::<f32>() < 4 << 20);
    }

    /// CPU and memory of a pod.
    fn pod(name: &str, cpu: f32) -> [(Key, f32); 2] {
        let key = |what| Key { what, of: Of::Pod, namespace: "d".into(), name: name.into() };
        [(key(What::Cpu), cpu), (key(What::Memory), 1.0)]
    }

    fn there(ring: &Ring, of: Of) -> BTreeSet<String> {
        ring.raw().keys().filter(|key| key.of == of).map(|key| key.name.to_string()).collect()
    }

    #[test]
    fn security_pods_leave_room_for_nodes_and_components() {
        let mut ring = Ring::default();
        let crowd = || (0..MAX_SERIES).flat_map(|at| pod(&format!("p{at}"), 1.0));
        assert_eq!(ring.record(1, crowd()), MAX_SERIES, "half of them have room");
        let component = Key { of: Of::Component, ..key("cox") };
        let nodes = [(key("n1"), 0.1), (component, 0.0)];
        assert_eq!(ring.record(2, crowd().chain(nodes)), MAX_SERIES + 2);
        assert_eq!((there(&ring, Of::Node).len(), there(&ring, Of::Component).len()), (1, 1));
        assert_eq!(ring.raw().len(), MAX_SERIES);
        assert_eq!(points(&ring, "n1", 10).len(), 1);
    }

    #[test]
    fn many_nodes_all_have_figures_and_leave_a_share_to_pods() {
        let node = |at: usize| {
            let all = [What::Cpu, What::Memory, What::Received, What::Sent, What::Disk, What::DiskSize];
            all.map(|what| (Key { what, ..key(&format!("n{at}")) }, 1.0))
        };
        let pods = (0..2000).flat_map(|at| pod(&format!("p{at}"), 1.0));
        let all: Vec<(Key, f32)> = (0..450).flat_map(node).chain(pods).collect();
        let mut ring = Ring::default();
        assert_eq!(ring.record(1, all), 2700 + 4000 - MAX_SERIES);
        let of_nodes = |what| ring.raw().keys().filter(|key| key.of == Of::Node && key.what == what).count();
        assert_eq!([What::Cpu, What::Memory, What::Disk, What::Sent].map(of_nodes), [450, 450, 450, 37]);
        assert_eq!((there(&ring, Of::Pod).len(), ring.left_out()), (313, 4200));
        // Between two looks at nodes nothing is known to have changed.
        ring.record(2, [(Key { of: Of::Component, ..key("cox") }, 1.0)]);
        assert_eq!(ring.left_out(), 4200);
        ring.record(3, [(key("n1"), 1.0)]);
        assert_eq!(ring.left_out(), 0);
    }

    #[test]
    fn the_busiest_pods_are_kept() {
        let mut ring = Ring::default();
        let crowd = |minute: u64, others: &[(&str, f32)]| {
            let idle = (0..MAX_SERIES / 2 - 1).flat_map(|at| pod(&format!("idle-{at}"), 0.5));
            let others = others.iter().flat_map(|(name, cpu)| pod(name, *cpu)).collect::<Vec<_>>();
            (minute, idle.chain(others).collect::<Vec<_>>())
        };
        let mut record = |(minute, values): (u64, Vec<_>)| {
            let left_out = ring.record(minute, values);
            let named = there(&ring, Of::Pod).into_iter().filter(|name| !name.starts_with("idle-"));
            (left_out, named.collect::<Vec<_>>())
        };
        assert_eq!(record(crowd(1, &[("old", 0.1)])), (0, vec!["old".to_owned()]));
        // Somewhat busier is not enough, and both series of a pod go.
        assert_eq!(record(crowd(2, &[("old", 0.1), ("new", 0.15)])), (2, vec!["old".to_owned()]));
        assert_eq!(record(crowd(3, &[("old", 0.1), ("new", 3.0)])), (2, vec!["new".to_owned()]));
        // What is gone makes room, however busy it was, once it is not seen any more.
        assert_eq!(record(crowd(4, &[("newer", 0.2)])), (2, vec!["new".to_owned()]));
        let later = 5 + BUSY_MINUTES;
        assert_eq!(record(crowd(later, &[("newer", 0.2)])), (0, vec!["newer".to_owned()]));
    }
}
