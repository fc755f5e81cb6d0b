//! Processors: sets of them in the kernel's notation, and which share a core and a socket. Pure, except for reading /sys.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use api::sort::CompactSort as _;

/// A set of processors, written `0-2,7`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuSet(pub(crate) BTreeSet<u32>);

impl CpuSet {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().collect())
    }

    pub(crate) fn with(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        CpuSet(cpus.into_iter().collect())
    }
}

/// A text that is no list of processors.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no list of processors")]
pub(crate) struct NotCpus(String);

/// Why it is not known which processors there are.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopologyError {
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Online(#[from] NotCpus),
}

impl FromStr for CpuSet {
    type Err = NotCpus;

    fn from_str(text: &str) -> Result<Self, NotCpus> {
        let number = |part: &str| part.trim().parse::<u32>().map_err(|_| NotCpus(text.to_owned()));
        let mut set = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            match part.split_once('-') {
                Some((first, last)) => set.extend(number(first)?..=number(last)?),
                None => drop(set.insert(number(part)?)),
            }
        }
        Ok(CpuSet(set))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            match last == first {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Which processors there are, each with its socket and core.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Topology(pub(crate) BTreeMap<u32, (u32, u32)>);

impl Topology {
    pub(crate) fn read() -> Result<Self, TopologyError> {
        let root = Path::new("/sys/devices/system/cpu");
        let path = root.join("online");
        let online = std::fs::read_to_string(&path).map_err(|source| TopologyError::Unreadable { path, source })?;
        let online: CpuSet = online.parse()?;
        let id = |cpu: u32, file: &str| {
            let found = std::fs::read_to_string(root.join(format!("cpu{cpu}/topology/{file}")));
            found.ok().and_then(|text| text.trim().parse().ok())
        };
        let place = |cpu| (id(cpu, "physical_package_id").unwrap_or(0), id(cpu, "core_id").unwrap_or(cpu));
        Ok(Topology(online.0.into_iter().map(|cpu| (cpu, place(cpu))).collect()))
    }

    pub(crate) fn all(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    /// Takes `count` of the free processors: whole sockets first, then whole cores, then single ones, always where
    /// least else is free, so that large pieces stay whole.
    pub(crate) fn take(&self, free: &CpuSet, count: usize) -> Option<CpuSet> {
        if free.len() < count {
            return None;
        }
        let mut taken = CpuSet::default();
        for whole in [Piece::Socket, Piece::Core] {
            for (_, members) in self.pieces(&free.without(&taken), whole) {
                let is_whole = members.len() == self.members(whole, &members);
                if is_whole && taken.len() + members.len() <= count {
                    taken = taken.with(&members);
                }
            }
        }
        let left: Vec<u32> =
            self.pieces(&free.without(&taken), Piece::Core).into_iter().flat_map(|(_, set)| set.0).collect();
        let missing = count - taken.len();
        Some(taken.with(&left.into_iter().take(missing).collect()))
    }

    /// Free processors by socket or core, those with the fewest free ones around them first.
    fn pieces(&self, free: &CpuSet, piece: Piece) -> Vec<((usize, usize, u32), CpuSet)> {
        let free_in = |test: &dyn Fn((u32, u32)) -> bool| {
            free.0.iter().filter(|cpu| self.0.get(*cpu).is_some_and(|place| test(*place))).count()
        };
        let mut pieces: BTreeMap<(u32, u32), CpuSet> = BTreeMap::new();
        for cpu in &free.0 {
            let Some((socket, core)) = self.0.get(cpu) else { continue };
            let key = if piece == Piece::Socket { (*socket, 0) } else { (*socket, *core) };
            pieces.entry(key).or_default().0.insert(*cpu);
        }
        let mut sorted: Vec<_> = pieces
            .into_iter()
            .map(|((socket, core), set)| {
                let around = free_in(&|place| place.0 == socket);
                ((around, set.len(), core), set)
            })
            .collect();
        sorted.compact_sort_by_key(|(order, set)| (*order, set.0.first().copied()));
        sorted
    }

    /// How many processors, free or not, the socket or core of these has.
    fn members(&self, piece: Piece, of: &CpuSet) -> usize {
        let Some((socket, core)) = of.0.first().and_then(|cpu| self.0.get(cpu)) else { return 0 };
        self.0.values().filter(|place| place.0 == *socket && (piece == Piece::Socket || place.1 == *core)).count()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Piece {
    Socket,
    Core,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        for (text, expected) in [("0-2,7", "0-2,7"), ("3,1,2", "1-3"), ("", ""), ("5", "5"), ("0,2,4", "0,2,4")] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), expected);
        }
        assert!("a-b".parse::<CpuSet>().is_err());
    }

    /// Two sockets of two cores of two processors each: siblings are four apart.
    fn topology() -> Topology {
        Topology((0..8).map(|cpu| (cpu, ((cpu % 4) / 2, cpu % 4))).collect())
    }

    #[test]
    fn takes_what_leaves_most_whole() {
        for (free, count, expected) in [
            ("0-7", 4, Some("0-1,4-5")),
            ("0-7", 2, Some("0,4")),
            ("0-7", 1, Some("0")),
            ("1-7", 2, Some("1,5")),
            ("1-7", 1, Some("4")),
            ("1-7", 4, Some("2-3,6-7")),
            ("0-7", 5, Some("0-2,4-5")),
            ("1,3", 3, None),
        ] {
            let taken = topology().take(&free.parse().unwrap(), count);
            assert_eq!(taken.map(|set| set.to_string()).as_deref(), expected, "{count} of {free}");
        }
    }
}
