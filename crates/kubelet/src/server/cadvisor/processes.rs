//! What the processes of a cgroup hold: descriptors, sockets, threads by state.

use std::collections::BTreeMap;
use std::fs;

/// The states that cAdvisor tells of, by the kernel's letter.
const STATES: [(char, &str); 4] = [('S', "sleeping"), ('R', "running"), ('T', "stopped"), ('D', "uninterruptible")];

/// Descriptors and threads of a container that are looked at one by one. A container may hold millions, and whoever
/// scrapes waits for all of them: of what is beyond only the number is told.
const LOOKED_AT: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Processes {
    pub(super) count: usize,
    pub(super) descriptors: usize,
    pub(super) sockets: usize,
    /// How many descriptors the first process may have; -1 without a limit.
    pub(super) max_open_files: Option<f64>,
    states: BTreeMap<char, usize>,
}

impl Processes {
    /// A process that ends meanwhile is not counted.
    pub(super) fn read(pids: &[u32]) -> Self {
        Self::read_some(pids, LOOKED_AT)
    }

    fn read_some(pids: &[u32], most: usize) -> Self {
        let limits = pids.first().and_then(|pid| fs::read_to_string(format!("/proc/{pid}/limits")).ok());
        let max_open_files = limits.as_deref().and_then(max_open_files);
        let mut all = Processes { max_open_files, ..Processes::default() };
        let (mut links, mut tasks) = (most, most);
        for pid in pids {
            if links == 0 && tasks == 0 {
                // It was there a moment ago.
                all.count += 1;
                all.descriptors += counted_by_kernel(*pid);
                continue;
            }
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            all.count += 1;
            let mut seen = 0;
            for descriptor in descriptors.flatten().take(links) {
                seen += 1;
                let target = fs::read_link(descriptor.path()).unwrap_or_default();
                all.sockets += usize::from(target.to_string_lossy().starts_with("socket:"));
            }
            all.descriptors += if seen == links { counted_by_kernel(*pid).max(seen) } else { seen };
            links -= seen;
            let listed = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for task in listed.take(tasks) {
                tasks -= 1;
                let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                if let Some(state) = state(&stat) {
                    *all.states.entry(state).or_default() += 1;
                }
            }
        }
        all
    }

    pub(super) fn states(&self) -> impl Iterator<Item = (&'static str, usize)> {
        STATES.map(|(letter, name)| (name, self.states.get(&letter).copied().unwrap_or_default())).into_iter()
    }
}

/// How many descriptors a process has, as Linux tells since 6.2; nothing where it does not.
fn counted_by_kernel(pid: u32) -> usize {
    fs::metadata(format!("/proc/{pid}/fd")).map_or(0, |found| usize::try_from(found.len()).unwrap_or(usize::MAX))
}

/// From the text of `/proc/PID/limits`.
fn max_open_files(limits: &str) -> Option<f64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next())?;
    if soft == "unlimited" { Some(-1.0) } else { soft.parse().ok() }
}

/// The letter after the name, which may hold anything but is the last thing in parentheses.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_threads_and_descriptors() {
        assert_eq!(state("7 (a) R (b)) S 1 2"), Some('S'));
        let _socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = Processes::read(&[std::process::id(), u32::MAX]);
        assert!(own.count == 1 && own.descriptors > 2 && own.sockets >= 1, "{own:?}");
        assert!(own.max_open_files.is_some_and(|most| most != 0.0), "{own:?}");
        let limits = |soft: &str| format!("Limit   Soft Limit\nMax open files     {soft}      4096      files\n");
        assert_eq!(max_open_files(&limits("1024")), Some(1024.0));
        assert_eq!(max_open_files(&limits("unlimited")), Some(-1.0));
        assert_eq!(max_open_files("Max processes 1 1"), None);
        assert!(own.states().map(|(_, count)| count).sum::<usize>() >= 1, "{own:?}");
    }

    #[test]
    fn security_a_container_with_many_descriptors_holds_nobody_up() {
        let own = std::process::id();
        let some = Processes::read_some(&[own, own, own], 2);
        let looked_at = some.states().map(|(_, count)| count).sum::<usize>();
        assert!(some.count == 3 && some.sockets <= 2 && looked_at <= 2, "{some:?}");
        // All are counted where the kernel does it, and none is made up where it does not.
        assert!(some.descriptors >= 2, "{some:?}");
    }
}
