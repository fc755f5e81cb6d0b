//! Limits, and the files of either version that say them. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Version;

/// Limits, in CRI's units: zero (or none) means "leave as it is", less means "no limit".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    pub cpu_period: i64,
    pub cpu_quota: i64,
    pub cpu_shares: i64,
    pub memory_limit: i64,
    pub memory_swap_limit: i64,
    pub cpuset_cpus: String,
    pub cpuset_mems: String,
    pub pids_limit: i64,
    pub hugepages: Vec<(String, u64)>,
    /// Files of version 2 by name.
    pub unified: BTreeMap<String, String>,
}

/// One file and what to write into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// In whose tree the file is, on version 1.
    pub controller: &'static str,
    pub file: String,
    pub value: String,
}

/// Used where a limit has no period of its own.
pub(crate) const PERIOD: i64 = 100_000;

impl Limits {
    /// What to write, in order.
    pub fn settings(&self, version: Version) -> Vec<Setting> {
        match version {
            Version::V1 => self.v1(),
            Version::V2 => self.v2(),
        }
    }

    fn v1(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for (controller, file, value) in [
            ("cpu", "cpu.shares", self.cpu_shares),
            ("cpu", "cpu.cfs_period_us", self.cpu_period),
            ("cpu", "cpu.cfs_quota_us", self.cpu_quota),
            ("memory", "memory.limit_in_bytes", self.memory_limit),
            ("memory", "memory.memsw.limit_in_bytes", self.memory_swap_limit),
        ] {
            if value != 0 {
                settings.push(setting(controller, file, value.to_string()));
            }
        }
        if self.pids_limit != 0 {
            settings.push(setting("pids", "pids.max", or_max(self.pids_limit)));
        }
        settings.extend(self.cpusets());
        settings.extend(self.huge_pages("limit_in_bytes"));
        settings
    }

    fn v2(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        if self.cpu_shares != 0 {
            settings.push(setting("cpu", "cpu.weight", shares_to_weight(self.cpu_shares).to_string()));
        }
        if self.cpu_quota != 0 {
            let period = if self.cpu_period == 0 { PERIOD } else { self.cpu_period };
            settings.push(setting("cpu", "cpu.max", format!("{} {period}", or_max(self.cpu_quota))));
        }
        if self.memory_limit != 0 {
            settings.push(setting("memory", "memory.max", or_max(self.memory_limit)));
        }
        if self.memory_swap_limit != 0 {
            // Here the two are counted apart; without a limit of memory, CRI's sum says nothing of swap alone.
            let swap = match (self.memory_swap_limit, self.memory_limit) {
                (sum, _) if sum < 0 => -1,
                (sum, memory) => (sum - memory.max(0)).max(0),
            };
            settings.push(setting("memory", "memory.swap.max", or_max(swap)));
        }
        if self.pids_limit != 0 {
            settings.push(setting("pids", "pids.max", or_max(self.pids_limit)));
        }
        settings.extend(self.cpusets());
        settings.extend(self.huge_pages("max"));
        settings.extend(self.unified.iter().map(|(file, value)| setting("", file.as_str(), value.clone())));
        settings
    }

    /// Pages in use, and those reserved by mapping files: whoever asks for too many is told so, and not killed at the first touch.
    fn huge_pages(&self, file: &'static str) -> impl Iterator<Item = Setting> {
        let of_kind = move |size: &str, limit: u64, kind: &str| {
            setting("hugetlb", format!("hugetlb.{size}.{kind}{file}"), limit.to_string())
        };
        let of_size = move |(size, limit): &(String, u64)| ["", "rsvd."].map(|kind| of_kind(size, *limit, kind));
        self.hugepages.iter().flat_map(of_size)
    }

    fn cpusets(&self) -> impl Iterator<Item = Setting> {
        let files = [("cpuset.cpus", &self.cpuset_cpus), ("cpuset.mems", &self.cpuset_mems)];
        files
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(file, value)| setting("cpuset", file, value.clone()))
    }
}

impl Setting {
    /// Whether upstream's runtimes go on without it, too: what the kernel was built without, or swap that is not counted.
    pub(crate) fn is_optional(&self) -> bool {
        let file = self.file.as_str();
        file.contains("memsw") || file.contains("swap") || file.starts_with("hugetlb") || file.contains("oom.group")
    }
}

fn setting(controller: &'static str, file: impl Into<String>, value: String) -> Setting {
    Setting { controller, file: file.into(), value }
}

fn or_max(value: i64) -> String {
    if value < 0 { "max".into() } else { value.to_string() }
}

/// 2..=262144 shares of version 1 onto 1..=10000 weight of version 2, as every runtime maps them.
pub fn shares_to_weight(shares: i64) -> i64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_say_the_same_limits() {
        let set = Limits { cpu_shares: 1024, cpu_quota: 50_000, memory_limit: 1 << 20, ..Default::default() };
        let lifted = Limits {
            cpu_shares: 2,
            cpu_period: 200_000,
            cpu_quota: -1,
            memory_limit: -1,
            memory_swap_limit: -1,
            pids_limit: -1,
            ..Default::default()
        };
        let swap = Limits { memory_limit: 100, memory_swap_limit: 130, ..Default::default() };
        let others = Limits {
            cpuset_cpus: "0-1".into(),
            pids_limit: 7,
            hugepages: vec![("2MB".into(), 0)],
            unified: [("memory.high".into(), "5".into())].into(),
            ..Default::default()
        };
        for (limits, v1, v2) in [
            (Limits::default(), "", ""),
            (
                set,
                "cpu/cpu.shares=1024 cpu/cpu.cfs_quota_us=50000 memory/memory.limit_in_bytes=1048576",
                "cpu/cpu.weight=39 cpu/cpu.max=50000_100000 memory/memory.max=1048576",
            ),
            (
                lifted,
                "cpu/cpu.shares=2 cpu/cpu.cfs_period_us=200000 cpu/cpu.cfs_quota_us=-1 memory/memory.limit_in_bytes=-1 memory/memory.memsw.limit_in_bytes=-1 pids/pids.max=max",
                "cpu/cpu.weight=1 cpu/cpu.max=max_200000 memory/memory.max=max memory/memory.swap.max=max pids/pids.max=max",
            ),
            (
                swap,
                "memory/memory.limit_in_bytes=100 memory/memory.memsw.limit_in_bytes=130",
                "memory/memory.max=100 memory/memory.swap.max=30",
            ),
            (
                others,
                "pids/pids.max=7 cpuset/cpuset.cpus=0-1 hugetlb/hugetlb.2MB.limit_in_bytes=0 hugetlb/hugetlb.2MB.rsvd.limit_in_bytes=0",
                "pids/pids.max=7 cpuset/cpuset.cpus=0-1 hugetlb/hugetlb.2MB.max=0 hugetlb/hugetlb.2MB.rsvd.max=0 /memory.high=5",
            ),
        ] {
            let told = |version| -> Vec<String> {
                let settings = limits.settings(version).into_iter();
                settings.map(|s| format!("{}/{}={}", s.controller, s.file, s.value.replace(' ', "_"))).collect()
            };
            assert_eq!(told(Version::V1).join(" "), v1);
            assert_eq!(told(Version::V2).join(" "), v2);
        }
    }

    #[test]
    fn weights() {
        for (shares, weight) in [(2, 1), (102, 4), (1024, 39), (262_144, 10_000), (0, 1), (i64::MAX, 10_000)] {
            assert_eq!(shares_to_weight(shares), weight);
        }
    }
}
