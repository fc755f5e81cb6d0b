//! What the kubelet and all pods together use, for the system containers of `/stats/summary`.
//!
//! Not here: the runtime. No cgroup is known to be its own: it may be this process, or look after one itself.

use super::{Pressures, Row, Subject, node, row};
use crate::cgroups::Cgroups;
use crate::node::machine::own_cgroup;

/// What one cgroup uses, in nanoseconds and bytes. What the kernel does not count is none.
#[derive(Debug, Default, PartialEq)]
pub(in crate::server) struct SystemContainer {
    /// The word of upstream's API.
    pub(in crate::server) name: &'static str,
    pub(in crate::server) path: String,
    /// When the cgroup was made, in seconds since 1970.
    pub(in crate::server) made: Option<i64>,
    pub(in crate::server) cpu: Option<u64>,
    pub(in crate::server) usage: Option<u64>,
    pub(in crate::server) working_set: Option<u64>,
    pub(in crate::server) rss: Option<u64>,
    /// Of what it is limited to; none without a limit.
    pub(in crate::server) available: Option<u64>,
    pub(in crate::server) page_faults: Option<u64>,
    pub(in crate::server) major_page_faults: Option<u64>,
    pub(in crate::server) swap: Option<u64>,
    pub(in crate::server) pressure: Pressures,
}

/// Those that are found. That of the kubelet is the one it was started in, with whatever else is in there.
pub(in crate::server) fn system_containers(cgroups: &Cgroups) -> Vec<SystemContainer> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let kubelet = own_cgroup(&own, cgroups.is_v2()).map(|path| ("kubelet", path.to_owned()));
    let pods = cgroups.level_paths().into_iter().next().map(|path| ("pods", path));
    let machine = node::Machine::read();
    let found = |(name, id): (&'static str, String)| {
        let mut row = row(cgroups, Subject { id, ..Subject::default() })?;
        if row.subject.id == "/" {
            node::complete(&mut row.sample, &machine);
        }
        node::complete_swap(&mut row.sample, &machine);
        Some(system_container(name, row))
    };
    kubelet.into_iter().chain(pods).filter_map(found).collect()
}

fn system_container(name: &'static str, Row { subject, started, sample, .. }: Row) -> SystemContainer {
    let limit = sample.memory_limit.filter(|limit| *limit > 0);
    SystemContainer {
        name,
        path: subject.id,
        made: started.map(|seconds| seconds as i64),
        cpu: sample.cpu_seconds.map(|seconds| (seconds * 1e9) as u64),
        usage: sample.usage,
        working_set: sample.working_set,
        rss: sample.rss,
        available: limit.zip(sample.working_set).map(|(limit, used)| limit.saturating_sub(used)),
        page_faults: sample.page_faults,
        major_page_faults: sample.major_page_faults,
        swap: sample.swap,
        pressure: sample.pressure,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;

    #[test]
    fn what_is_available_is_left_of_a_limit() {
        let row = |memory_limit, working_set| Row {
            subject: Subject { id: "/kubepods".to_owned(), ..Subject::default() },
            started: Some(7.0),
            sample: Sample { memory_limit, working_set, cpu_seconds: Some(1.5), ..Sample::default() },
            processes: None,
            interfaces: Vec::new(),
        };
        for (limit, used, expected) in [
            (Some(10), Some(4), Some(6)),
            (Some(10), Some(11), Some(0)),
            (Some(0), Some(4), None),
            (None, Some(4), None),
            (Some(10), None, None),
        ] {
            let found = system_container("pods", row(limit, used));
            assert_eq!(found.available, expected, "{limit:?} {used:?}");
            assert_eq!((found.path.as_str(), found.made, found.cpu), ("/kubepods", Some(7), Some(1_500_000_000)));
        }
    }
}
