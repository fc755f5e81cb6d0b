//! Memory that the node has and uses, as cAdvisor counts it: eviction goes by it (`memory.available`), and `/stats/summary` shows
//! it. The figures are those of the root cgroup; where version 2 has no file for the root, they are put together from what
//! the kernel counts elsewhere.

use std::fs;

use super::machine::meminfo_bytes;
use crate::cgroups::Cgroups;

/// What the root cgroup says of itself. What the kernel does not count is none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RootMemory {
    pub(crate) usage: Option<u64>,
    pub(crate) rss: Option<u64>,
    pub(crate) cache: Option<u64>,
    pub(crate) inactive_file: Option<u64>,
    pub(crate) page_faults: Option<u64>,
    pub(crate) major_page_faults: Option<u64>,
    /// It is the root for us alone, in a container: the machine has more.
    pub(crate) is_part: bool,
}

/// In bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NodeMemory {
    pub(crate) capacity: u64,
    pub(crate) usage: u64,
    pub(crate) working_set: u64,
    /// What is not in the working set.
    pub(crate) available: u64,
    pub(crate) rss: Option<u64>,
    pub(crate) page_faults: Option<u64>,
    pub(crate) major_page_faults: Option<u64>,
}

impl RootMemory {
    fn read(is_v2: bool, read: &dyn Fn(&str) -> Option<String>) -> Self {
        let number = |file: &str| read(file)?.trim().parse().ok();
        let stat = read("memory.stat").unwrap_or_default();
        let total = |key: &str| cgroup::keyed(&stat, &if is_v2 { key.to_owned() } else { format!("total_{key}") });
        let usage = number(if is_v2 { "memory.current" } else { "memory.usage_in_bytes" });
        Self {
            usage,
            rss: total(if is_v2 { "anon" } else { "rss" }),
            cache: total(if is_v2 { "file" } else { "cache" }),
            inactive_file: total("inactive_file"),
            page_faults: total("pgfault"),
            major_page_faults: total("pgmajfault"),
            // Of version 2 the one root of the machine has no usage, of version 1 it alone has this file.
            is_part: if is_v2 { usage.is_some() } else { read("release_agent").is_none() },
        }
    }

    /// As version 1 counts what is in use (`rootStatsFromMeminfo` of libcontainer); else what the machine says.
    pub(crate) fn usage(&self, meminfo: &str) -> Option<u64> {
        let in_use = || Some(self.rss?.saturating_add(self.cache?));
        let taken = || Some(bytes(meminfo, "MemTotal")?.saturating_sub(bytes(meminfo, "MemAvailable")?));
        self.usage.or_else(in_use).or_else(taken)
    }

    pub(crate) fn working_set(&self, meminfo: &str) -> Option<u64> {
        Some(self.usage(meminfo)?.saturating_sub(self.inactive_file.unwrap_or_default()))
    }

    fn of_node(&self, meminfo: &str) -> Option<NodeMemory> {
        let (capacity, working_set) = (bytes(meminfo, "MemTotal")?, self.working_set(meminfo)?);
        let left = capacity.saturating_sub(working_set);
        // What others of the machine have is gone as well.
        let of_machine = bytes(meminfo, "MemAvailable").filter(|_| self.is_part);
        Some(NodeMemory {
            capacity,
            usage: self.usage(meminfo)?,
            working_set,
            available: of_machine.map_or(left, |available| available.min(left)),
            rss: self.rss,
            page_faults: self.page_faults,
            major_page_faults: self.major_page_faults,
        })
    }
}

/// None if the kernel does not say what the node has or uses. Nodes that share a machine see all of it, and so the same.
pub(crate) fn read(cgroups: Option<&Cgroups>) -> Option<NodeMemory> {
    let root = cgroups.map(|cgroups| {
        let file = |file: &str| fs::read_to_string(cgroups.directory("memory", "/")?.join(file)).ok();
        RootMemory::read(cgroups.is_v2(), &file)
    });
    root.unwrap_or_default().of_node(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// None if the kernel does not say.
fn bytes(meminfo: &str, name: &str) -> Option<u64> {
    Some(meminfo_bytes(meminfo, name)).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 60 kB\n";

    /// Capacity, usage, working set and what is available, of files of the root.
    fn found(is_v2: bool, files: &[(&str, &str)], meminfo: &str) -> Option<[u64; 4]> {
        let read = |wanted: &str| {
            let found = files.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, text)| (*text).to_owned())
        };
        let memory = RootMemory::read(is_v2, &read).of_node(meminfo)?;
        Some([memory.capacity, memory.usage, memory.working_set, memory.available])
    }

    #[test]
    fn what_is_available_is_not_in_the_working_set_of_the_root() {
        const V1: (&str, &str) =
            ("memory.stat", "rss 1\ntotal_rss 30000\ntotal_cache 20000\ninactive_file 5\ntotal_inactive_file 1000\n");
        const V2: (&str, &str) = ("memory.stat", "anon 20480\nfile 40960\ninactive_file 10240\npgfault 7\n");
        const KIB: u64 = 1024;
        let is_root = ("release_agent", "\n");
        let v1_usage = ("memory.usage_in_bytes", "50000\n");
        for (is_v2, files, meminfo, expected) in [
            (false, &[V1, is_root, v1_usage][..], MEMINFO, Some([100 * KIB, 50_000, 49_000, 53_400])),
            (true, &[V2], MEMINFO, Some([100 * KIB, 60 * KIB, 50 * KIB, 50 * KIB])),
            // Nothing is made up.
            (true, &[], MEMINFO, Some([100 * KIB, 40 * KIB, 40 * KIB, 60 * KIB])),
            (true, &[V2], "MemTotal: 100 kB\n", Some([100 * KIB, 60 * KIB, 50 * KIB, 50 * KIB])),
            (true, &[], "MemTotal: 100 kB\n", None),
            (true, &[V2], "MemAvailable: 60 kB\n", None),
            // More is in use than there is.
            (true, &[V2], "MemTotal: 10 kB\nMemAvailable: 1 kB\n", Some([10 * KIB, 60 * KIB, 50 * KIB, 0])),
            // In a container.
            (true, &[V2, ("memory.current", "20480\n")], MEMINFO, Some([100 * KIB, 20 * KIB, 10 * KIB, 60 * KIB])),
            (
                false,
                &[V1, v1_usage],
                "MemTotal: 100 kB\nMemAvailable: 9 kB\n",
                Some([100 * KIB, 50_000, 49_000, 9 * KIB]),
            ),
        ] {
            assert_eq!(found(is_v2, files, meminfo), expected, "{is_v2} {files:?} {meminfo}");
        }
    }
}
