//! What the processes of a cgroup hold: descriptors, sockets, threads by state.

use std::collections::BTreeMap;
use std::fs;

/// The states that cAdvisor tells of, by the kernel's letter.
const STATES: [(char, &str); 4] = [('S', "sleeping"), ('R', "running"), ('T', "stopped"), ('D', "uninterruptible")];

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
        let mut all = Processes::default();
        for pid in pids {
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            all.count += 1;
            for descriptor in descriptors.flatten() {
                all.descriptors += 1;
                let target = fs::read_link(descriptor.path()).unwrap_or_default();
                all.sockets += usize::from(target.to_string_lossy().starts_with("socket:"));
            }
            for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
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
}
