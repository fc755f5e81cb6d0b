//! What the whole node uses: the figures of the root cgroup, as cAdvisor has them. Where version 2 has no file for the root, they
//! are put together from what the kernel counts elsewhere. Those of memory are [`crate::node::memory`]'s.

use super::sample::{Sample, TICKS_PER_SECOND};
use super::{boot_time, read_file};
use crate::cgroups::Cgroups;
use crate::kubelet::Kubelet;
use crate::node::machine::meminfo_bytes;
use crate::node::memory::{self, NodeMemory, RootMemory};
use crate::volumes::blocking;

/// For `/stats/summary` and `/metrics/resource`. What the kernel does not count is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::server) struct NodeFigures {
    /// Time of all processors, in nanoseconds.
    pub(in crate::server) cpu: u64,
    pub(in crate::server) memory: NodeMemory,
    /// Bytes that are swapped out.
    pub(in crate::server) swap: Option<u64>,
    /// Bytes that can still be swapped out.
    pub(in crate::server) swap_free: Option<u64>,
    /// When the machine started, in seconds since 1970.
    pub(in crate::server) booted: Option<i64>,
}

/// The texts of `/proc/stat` and `/proc/meminfo`.
pub(super) struct Machine {
    pub(super) stat: String,
    pub(super) meminfo: String,
}

impl Machine {
    pub(super) fn read() -> Self {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self { stat: text("/proc/stat"), meminfo: text("/proc/meminfo") }
    }

    /// Bytes; none if the kernel does not say.
    fn bytes(&self, name: &str) -> Option<u64> {
        Some(meminfo_bytes(&self.meminfo, name)).filter(|bytes| *bytes > 0)
    }

    /// Bytes that are swapped out; none if the kernel does not say.
    fn swap(&self) -> Option<u64> {
        self.bytes("MemTotal")?;
        let of = |name| meminfo_bytes(&self.meminfo, name);
        Some(of("SwapTotal").saturating_sub(of("SwapFree")))
    }

    fn swap_free(&self) -> Option<u64> {
        self.bytes("MemTotal").map(|_| meminfo_bytes(&self.meminfo, "SwapFree"))
    }

    /// Seconds that all processors spent for programs, for the kernel, and in all. Idle time and waiting for disks are no use;
    /// guests count as programs already.
    fn cpu_seconds(&self) -> Option<[f64; 3]> {
        let line = self.stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks[..] else { return None };
        let (user, system) = (user + nice, system + irq + softirq);
        Some([user, system, user + system + steal].map(|ticks| ticks as f64 / TICKS_PER_SECOND))
    }
}

/// Fills in what the root cgroup does not say of itself.
pub(super) fn complete(root: &mut Sample, machine: &Machine) {
    if let Some([user, system, all]) = machine.cpu_seconds() {
        root.user_seconds.get_or_insert(user);
        root.system_seconds.get_or_insert(system);
        root.cpu_seconds.get_or_insert(all);
    }
    let (total, swap) = (machine.bytes("MemTotal"), meminfo_bytes(&machine.meminfo, "SwapTotal"));
    let Sample { usage, rss, cache, inactive_file, .. } = *root;
    let memory = RootMemory { usage, rss, cache, inactive_file, ..RootMemory::default() };
    root.usage = memory.usage(&machine.meminfo);
    root.working_set = memory.working_set(&machine.meminfo);
    root.swap = root.swap.or_else(|| machine.swap());
    root.memory_limit = total.or(root.memory_limit);
    root.swap_limit = Some(swap);
    if !root.pids.is_empty() {
        root.threads.get_or_insert(root.pids.len() as u64);
        root.threads_max.get_or_insert(0);
    }
}

/// Kernels may not count the swap of cgroups. Where the machine has none, they use none.
pub(super) fn complete_swap(of: &mut Sample, machine: &Machine) {
    let has_none = machine.bytes("MemTotal").is_some() && machine.bytes("SwapTotal").is_none();
    if has_none && of.usage.is_some() {
        of.swap.get_or_insert(0);
    }
}

/// None if the kernel does not say what the node has or uses.
pub(in crate::server) async fn figures(kubelet: &Kubelet) -> Option<NodeFigures> {
    let cgroups = kubelet.cgroups.clone();
    blocking(move || Ok(read(cgroups.as_ref()))).await.ok().flatten()
}

pub(in crate::server) fn read(cgroups: Option<&Cgroups>) -> Option<NodeFigures> {
    // Everything else would be read for nothing: this is asked again and again.
    const FILES: [&str; 2] = ["cpu.stat", "cpuacct.usage"];
    let root = cgroups.map(|cgroups| {
        let read = |controller: &str, file: &str| {
            FILES.contains(&file).then(|| read_file(cgroups, "/", controller, file)).flatten()
        };
        Sample::read(cgroups.is_v2(), &read)
    });
    let machine = Machine::read();
    let cpu = cpu(root.unwrap_or_default(), &machine)?;
    let booted = boot_time(&machine.stat).map(|seconds| seconds as i64);
    let (swap, swap_free) = (machine.swap(), machine.swap_free());
    Some(NodeFigures { cpu, memory: memory::read(cgroups)?, swap, swap_free, booted })
}

fn cpu(mut root: Sample, machine: &Machine) -> Option<u64> {
    complete(&mut root, machine);
    Some((root.cpu_seconds? * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            stat: "cpu  100 50 30 9000 700 5 15 20 3 4\ncpu0 1 1 1 1 1 1 1 1 1 1\n".to_owned(),
            meminfo: "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 60 kB\nSwapTotal: 8 kB\nSwapFree: 3 kB\n"
                .to_owned(),
        }
    }

    /// `cpu.stat` and `memory.stat` are all that the root of version 2 has.
    #[test]
    fn the_root_of_version_2_is_completed() {
        let read = |_: &str, file: &str| match file {
            "cpu.stat" => Some("usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n".to_owned()),
            "memory.stat" => Some("anon 20480\nfile 40960\ninactive_file 10240\npgfault 7\npgmajfault 2\n".to_owned()),
            "cgroup.procs" => Some("1\n2\n".to_owned()),
            _ => None,
        };
        let mut root = Sample::read(true, &read);
        assert_eq!((root.usage, root.working_set), (None, None));
        complete(&mut root, &machine());
        assert_eq!((root.usage, root.working_set, root.swap), (Some(61_440), Some(51_200), Some(5 * 1024)));
        assert_eq!((root.memory_limit, root.swap_limit), (Some(100 * 1024), Some(8 * 1024)));
        assert_eq!((root.cpu_seconds, root.user_seconds, root.system_seconds), (Some(3.0), Some(2.0), Some(1.0)));
        assert_eq!((root.threads, root.threads_max), (Some(2), Some(0)));
        assert_eq!((machine().swap(), machine().swap_free()), (Some(5 * 1024), Some(3 * 1024)));
        assert_eq!(cpu(Sample::read(true, &read), &machine()), Some(3_000_000_000));
    }

    #[test]
    fn swap_that_is_not_counted_is_none_where_there_is_none() {
        let without = Machine { meminfo: "MemTotal: 100 kB\nSwapTotal: 0 kB\n".to_owned(), stat: String::new() };
        let unreadable = Machine { meminfo: String::new(), stat: String::new() };
        for (machine, usage, swap, expected) in [
            (&without, Some(7), None, Some(0)),
            (&without, Some(7), Some(3), Some(3)),
            (&without, None, None, None),
            (&machine(), Some(7), None, None),
            (&unreadable, Some(7), None, None),
        ] {
            let mut of = Sample { usage, swap, ..Sample::default() };
            complete_swap(&mut of, machine);
            assert_eq!(of.swap, expected);
        }
    }

    #[test]
    fn the_root_of_version_1_says_most_itself() {
        let read = |_: &str, file: &str| match file {
            "cpuacct.usage" => Some("4000000000\n".to_owned()),
            "memory.usage_in_bytes" => Some("50000\n".to_owned()),
            "memory.stat" => Some("total_rss 30000\ntotal_cache 20000\ntotal_inactive_file 1000\n".to_owned()),
            _ => None,
        };
        let mut root = Sample::read(false, &read);
        complete(&mut root, &machine());
        assert_eq!((root.usage, root.working_set), (Some(50_000), Some(49_000)));
        assert_eq!(cpu(root, &machine()), Some(4_000_000_000));
    }

    #[test]
    fn without_cgroups_the_machine_says_it_and_nothing_is_made_up() {
        let mut root = Sample::default();
        complete(&mut root, &machine());
        assert_eq!((root.usage, root.working_set, root.rss), (Some(40 * 1024), Some(40 * 1024), None));
        assert_eq!(cpu(root, &machine()), Some(2_200_000_000));
        for stat in ["", "cpu x"] {
            let machine = Machine { stat: stat.to_owned(), meminfo: String::new() };
            assert_eq!((cpu(Sample::default(), &machine), machine.swap()), (None, None), "{stat:?}");
        }
    }
}
