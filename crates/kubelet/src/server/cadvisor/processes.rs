//! What the processes of a cgroup hold: descriptors, sockets, threads by state.

use std::collections::BTreeMap;
use std::fs;

/// The states that cAdvisor tells of, by the kernel's letter.
const STATES: [(char, &str); 4] = [('S', "sleeping"), ('R', "running"), ('T', "stopped"), ('D', "uninterruptible")];

/// How many descriptors and threads of a cgroup are looked at one by one. A container may have millions of either, and
/// whoever asks for figures must not wait for it: the rest is counted as it is, by number alone.
const LOOKED_AT: usize = 20_000;

#[derive(Debug, Default)]
pub(super) struct Processes {
    pub(super) count: usize,
    pub(super) descriptors: usize,
    pub(super) sockets: usize,
    states: BTreeMap<char, usize>,
}

impl Processes {
    /// A process that ends meanwhile is not counted.
    pub(super) fn read(pids: &[u32]) -> Self {
        Self::read_some(pids, LOOKED_AT)
    }

    fn read_some(pids: &[u32], most: usize) -> Self {
        let mut all = Processes::default();
        let mut threads = 0;
        for pid in pids {
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            all.count += 1;
            for descriptor in descriptors.flatten() {
                all.descriptors += 1;
                if all.descriptors > most {
                    continue;
                }
                let target = fs::read_link(descriptor.path()).unwrap_or_default();
                all.sockets += usize::from(target.to_string_lossy().starts_with("socket:"));
            }
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for task in tasks.take(most - threads) {
                threads += 1;
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
        assert!(own.states().map(|(_, count)| count).sum::<usize>() >= 1, "{own:?}");
    }

    #[test]
    fn security_a_container_with_many_descriptors_holds_nobody_up() {
        let _sockets: Vec<_> = (0..8).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let own = [std::process::id(); 4];
        let some = Processes::read_some(&own, 2);
        assert!(some.count == 4 && some.descriptors > 8 * 4, "all are counted: {some:?}");
        assert!(some.sockets <= 2 && some.states.values().sum::<usize>() <= 2, "few are looked at: {some:?}");
    }
}
