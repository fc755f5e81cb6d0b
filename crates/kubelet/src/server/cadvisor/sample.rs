//! What the kernel counts of one cgroup, read from its files: the same figures from v1 and v2.
//!
//! Pure but for the `read` it is given. A file that is not there (a controller that is off, an older kernel) leaves its
//! figures out; it never reads as zero.

use std::collections::BTreeMap;

/// A limit above this is none: v1 writes the largest multiple of a page.
const NO_LIMIT: u64 = 1 << 62;
/// What the kernel counts ticks in, on every Linux we build for.
pub(super) const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Default, PartialEq)]
pub(super) struct Sample {
    pub(super) cpu_seconds: Option<f64>,
    pub(super) user_seconds: Option<f64>,
    pub(super) system_seconds: Option<f64>,
    pub(super) periods: Option<u64>,
    pub(super) throttled_periods: Option<u64>,
    pub(super) throttled_seconds: Option<f64>,
    pub(super) burst_periods: Option<u64>,
    pub(super) burst_seconds: Option<f64>,
    pub(super) shares: Option<u64>,
    /// None without a limit.
    pub(super) quota: Option<u64>,
    pub(super) period: Option<u64>,

    pub(super) usage: Option<u64>,
    pub(super) working_set: Option<u64>,
    pub(super) max_usage: Option<u64>,
    pub(super) limit_hits: Option<u64>,
    pub(super) cache: Option<u64>,
    pub(super) rss: Option<u64>,
    pub(super) swap: Option<u64>,
    pub(super) kernel: Option<u64>,
    pub(super) mapped_file: Option<u64>,
    pub(super) active_file: Option<u64>,
    pub(super) inactive_file: Option<u64>,
    pub(super) page_faults: Option<u64>,
    pub(super) major_page_faults: Option<u64>,
    pub(super) ooms: Option<u64>,
    /// Zero without a limit, as cAdvisor has it.
    pub(super) memory_limit: Option<u64>,
    pub(super) reservation: Option<u64>,
    pub(super) swap_limit: Option<u64>,

    pub(super) threads: Option<u64>,
    pub(super) threads_max: Option<u64>,
    pub(super) pids: Vec<u32>,
    /// By device, `major:minor`.
    pub(super) io: BTreeMap<String, Io>,
    pub(super) pressure: Pressures,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Io {
    pub(super) read_bytes: u64,
    pub(super) write_bytes: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    /// Only where the kernel shares out the device by the cost of requests.
    pub(super) cost: Option<IoCost>,
}

/// In millionths of a second.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct IoCost {
    pub(super) usage: u64,
    pub(super) wait: u64,
    pub(super) indebt: u64,
    pub(super) indelay: u64,
}

/// By resource: `cpu`, `io`, `memory`. Empty where the kernel does not measure it.
pub(in crate::server) type Pressures = BTreeMap<&'static str, Pressure>;

/// How long some of the tasks, or all of them, waited for a resource.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(in crate::server) struct Pressure {
    pub(in crate::server) some: Stall,
    pub(in crate::server) full: Stall,
}

/// In millionths of a second since the beginning, and in percent of the last 10, 60 and 300 seconds.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(in crate::server) struct Stall {
    pub(in crate::server) total: u64,
    pub(in crate::server) avg10: f64,
    pub(in crate::server) avg60: f64,
    pub(in crate::server) avg300: f64,
}

impl Stall {
    pub(super) fn seconds(&self) -> f64 {
        self.total as f64 / 1e6
    }
}

/// Reads a file of the cgroup in the tree of a controller, which v2 ignores.
type Read<'a> = dyn Fn(&str, &str) -> Option<String> + 'a;

impl Sample {
    pub(super) fn read(is_v2: bool, read: &Read<'_>) -> Self {
        let mut sample = if is_v2 { v2(read) } else { v1(read) };
        sample.working_set = sample.usage.zip(sample.inactive_file).map(|(usage, file)| usage.saturating_sub(file));
        sample.pids = read("memory", "cgroup.procs")
            .into_iter()
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect();
        sample
    }
}

fn v1(read: &Read<'_>) -> Sample {
    let times = Fields::of(read("cpuacct", "cpuacct.stat"));
    let cpu = Fields::of(read("cpu", "cpu.stat"));
    let memory = Fields::of(read("memory", "memory.stat"));
    let value = |controller, file| number(read(controller, file)?);
    let ticks = |name| times.get(name).map(|ticks| ticks as f64 / TICKS_PER_SECOND);
    let mut io = BTreeMap::<String, Io>::new();
    for (file, is_bytes) in [("blkio.throttle.io_service_bytes", true), ("blkio.throttle.io_serviced", false)] {
        for line in read("blkio", file).unwrap_or_default().lines() {
            let mut words = line.split_whitespace();
            let (Some(device), Some(operation), Some(count)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Ok(count) = count.parse() else { continue };
            let of = io.entry(device.to_owned()).or_default();
            match (operation, is_bytes) {
                ("Read", true) => of.read_bytes = count,
                ("Write", true) => of.write_bytes = count,
                ("Read", false) => of.reads = count,
                ("Write", false) => of.writes = count,
                _ => {}
            }
        }
    }
    Sample {
        cpu_seconds: value("cpuacct", "cpuacct.usage").map(|nanos| nanos as f64 / 1e9),
        user_seconds: ticks("user"),
        system_seconds: ticks("system"),
        periods: cpu.get("nr_periods"),
        throttled_periods: cpu.get("nr_throttled"),
        throttled_seconds: cpu.get("throttled_time").map(|nanos| nanos as f64 / 1e9),
        burst_periods: cpu.get("nr_bursts"),
        burst_seconds: cpu.get("burst_time").map(|nanos| nanos as f64 / 1e9),
        shares: value("cpu", "cpu.shares"),
        // Minus one, which is no number here, without a limit.
        quota: value("cpu", "cpu.cfs_quota_us"),
        period: value("cpu", "cpu.cfs_period_us"),
        usage: value("memory", "memory.usage_in_bytes"),
        max_usage: value("memory", "memory.max_usage_in_bytes"),
        limit_hits: value("memory", "memory.failcnt"),
        cache: memory.get("total_cache"),
        rss: memory.get("total_rss"),
        swap: memory.get("total_swap"),
        kernel: value("memory", "memory.kmem.usage_in_bytes"),
        mapped_file: memory.get("total_mapped_file"),
        active_file: memory.get("total_active_file"),
        inactive_file: memory.get("total_inactive_file"),
        page_faults: memory.get("total_pgfault"),
        major_page_faults: memory.get("total_pgmajfault"),
        ooms: Fields::of(read("memory", "memory.oom_control")).get("oom_kill"),
        memory_limit: value("memory", "memory.limit_in_bytes").map(limit),
        reservation: value("memory", "memory.soft_limit_in_bytes").map(limit),
        swap_limit: value("memory", "memory.memsw.limit_in_bytes").map(limit),
        threads: value("pids", "pids.current"),
        threads_max: read("pids", "pids.max").map(|text| number(text).unwrap_or(0)),
        io,
        ..Sample::default()
    }
}

fn v2(read: &Read<'_>) -> Sample {
    let cpu = Fields::of(read("cpu", "cpu.stat"));
    let memory = Fields::of(read("memory", "memory.stat"));
    let events = Fields::of(read("memory", "memory.events"));
    let value = |file: &str| number(read("", file)?);
    // `max` is no limit.
    let limited = |file: &str| read("", file).map(|text| number(text).map_or(0, limit));
    let seconds = |name| cpu.get(name).map(|micros| micros as f64 / 1e6);
    let quota = read("cpu", "cpu.max").unwrap_or_default();
    let mut quota = quota.split_whitespace().map(|word| word.parse::<u64>().ok());
    let mut io = BTreeMap::<String, Io>::new();
    for line in read("io", "io.stat").unwrap_or_default().lines() {
        let mut words = line.split_whitespace();
        let Some(device) = words.next() else { continue };
        let of = io.entry(device.to_owned()).or_default();
        for (name, count) in words.filter_map(|word| word.split_once('=')) {
            let Ok(count) = count.parse() else { continue };
            match name {
                "rbytes" => of.read_bytes = count,
                "wbytes" => of.write_bytes = count,
                "rios" => of.reads = count,
                "wios" => of.writes = count,
                "cost.usage" => of.cost.get_or_insert_default().usage = count,
                "cost.wait" => of.cost.get_or_insert_default().wait = count,
                "cost.indebt" => of.cost.get_or_insert_default().indebt = count,
                "cost.indelay" => of.cost.get_or_insert_default().indelay = count,
                _ => {}
            }
        }
    }
    Sample {
        cpu_seconds: seconds("usage_usec"),
        user_seconds: seconds("user_usec"),
        system_seconds: seconds("system_usec"),
        periods: cpu.get("nr_periods"),
        throttled_periods: cpu.get("nr_throttled"),
        throttled_seconds: seconds("throttled_usec"),
        burst_periods: cpu.get("nr_bursts"),
        burst_seconds: seconds("burst_usec"),
        shares: value("cpu.weight").map(shares),
        quota: quota.next().flatten(),
        period: quota.next().flatten(),
        usage: value("memory.current"),
        max_usage: value("memory.peak"),
        limit_hits: events.get("max"),
        cache: memory.get("file"),
        rss: memory.get("anon"),
        swap: value("memory.swap.current"),
        kernel: memory.get("kernel"),
        mapped_file: memory.get("file_mapped"),
        active_file: memory.get("active_file"),
        inactive_file: memory.get("inactive_file"),
        page_faults: memory.get("pgfault"),
        major_page_faults: memory.get("pgmajfault"),
        ooms: events.get("oom_kill"),
        memory_limit: limited("memory.max"),
        reservation: limited("memory.low"),
        swap_limit: limited("memory.swap.max"),
        threads: value("pids.current"),
        threads_max: limited("pids.max"),
        io,
        pressure: pressures(read, &["cpu", "io", "memory"]),
        ..Sample::default()
    }
}

/// Lines of a name and a number.
struct Fields(BTreeMap<String, u64>);

impl Fields {
    fn of(text: Option<String>) -> Self {
        let text = text.unwrap_or_default();
        let field = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        };
        Fields(text.lines().filter_map(field).collect())
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }
}

fn number(text: String) -> Option<u64> {
    text.trim().parse().ok()
}

fn limit(bytes: u64) -> u64 {
    if bytes >= NO_LIMIT { 0 } else { bytes }
}

/// CPU shares that weigh as much: v1 knows 2 to 262144, v2 1 to 10000.
fn shares(weight: u64) -> u64 {
    2 + (weight.clamp(1, 10_000) - 1) * 262_142 / 9_999
}

/// How long the tasks of a cgroup of version 2 wait for these resources.
pub(super) fn pressures(read: &Read<'_>, resources: &[&'static str]) -> Pressures {
    let of = |resource: &'static str| Some((resource, pressure(&read(resource, &format!("{resource}.pressure"))?)));
    resources.iter().copied().filter_map(of).collect()
}

fn pressure(text: &str) -> Pressure {
    let stall = |kind: &str| {
        let mut stall = Stall::default();
        let words = text.lines().find_map(|line| line.strip_prefix(kind)).unwrap_or_default().split_whitespace();
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            match name {
                "total" => stall.total = value.parse().unwrap_or_default(),
                "avg10" => stall.avg10 = value.parse().unwrap_or_default(),
                "avg60" => stall.avg60 = value.parse().unwrap_or_default(),
                "avg300" => stall.avg300 = value.parse().unwrap_or_default(),
                _ => {}
            }
        }
        stall
    };
    Pressure { some: stall("some "), full: stall("full ") }
}

/// What the kernel counts of a block device: sectors, requests that were merged, and milliseconds.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Disk {
    pub(super) reads_merged: u64,
    pub(super) sectors_read: u64,
    pub(super) read_time: u64,
    pub(super) writes_merged: u64,
    pub(super) sectors_written: u64,
    pub(super) write_time: u64,
    pub(super) in_progress: u64,
    pub(super) busy_time: u64,
    pub(super) weighted_time: u64,
}

/// The device `major:minor` in the text of `/proc/diskstats`.
pub(super) fn disk(text: &str, number: &str) -> Option<Disk> {
    let (major, minor) = number.split_once(':')?;
    let counts = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_it = words.next() == Some(major) && words.next() == Some(minor);
        is_it.then(|| words.skip(1).filter_map(|word| word.parse::<u64>().ok()).collect::<Vec<_>>())
    })?;
    let count = |at: usize| counts.get(at).copied();
    Some(Disk {
        reads_merged: count(1)?,
        sectors_read: count(2)?,
        read_time: count(3)?,
        writes_merged: count(5)?,
        sectors_written: count(6)?,
        write_time: count(7)?,
        in_progress: count(8)?,
        busy_time: count(9)?,
        weighted_time: count(10)?,
    })
}

/// One interface's counters.
#[derive(Debug, Default, PartialEq)]
pub(in crate::server) struct Interface {
    pub(in crate::server) name: String,
    pub(in crate::server) received: Traffic,
    pub(in crate::server) sent: Traffic,
}

#[derive(Debug, Default, PartialEq)]
pub(in crate::server) struct Traffic {
    pub(in crate::server) bytes: u64,
    pub(in crate::server) packets: u64,
    pub(in crate::server) errors: u64,
    pub(in crate::server) dropped: u64,
}

/// How the names of interfaces begin that are no way out of here: loopback, and ends of links to containers. What goes through
/// them is counted where the containers are (`ignoredDevicePrefixes` of cAdvisor).
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

impl Interface {
    pub(in crate::server) fn is_ignored(&self) -> bool {
        let name = self.name.to_ascii_lowercase();
        IGNORED.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// The interfaces in the text of `/proc/PID/net/dev`.
pub(in crate::server) fn all_interfaces(text: &str) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<u64> = counts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        let traffic = |at: usize| {
            let count = |offset: usize| counts.get(at + offset).copied();
            Some(Traffic { bytes: count(0)?, packets: count(1)?, errors: count(2)?, dropped: count(3)? })
        };
        Some(Interface { received: traffic(0)?, sent: traffic(8)?, name: name.trim().to_owned() })
    };
    text.lines().filter_map(interface).collect()
}

/// Those that are not ignored.
pub(super) fn interfaces(text: &str) -> Vec<Interface> {
    all_interfaces(text).into_iter().filter(|interface| !interface.is_ignored()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files<'a>(table: &'a [(&'a str, &'a str, &'a str)]) -> impl Fn(&str, &str) -> Option<String> + 'a {
        move |controller, file| {
            let of = |row: &&(&str, &str, &str)| (row.0.is_empty() || row.0 == controller) && row.1 == file;
            table.iter().find(of).map(|row| row.2.to_owned())
        }
    }

    #[test]
    fn figures_of_a_v1_cgroup() {
        let table = [
            ("cpuacct", "cpuacct.usage", "1500000000\n"),
            ("cpuacct", "cpuacct.stat", "user 100\nsystem 50\n"),
            (
                "cpu",
                "cpu.stat",
                "nr_periods 10\nnr_throttled 4\nthrottled_time 2500000000\nnr_bursts 2\nburst_time 500000000\n",
            ),
            ("cpu", "cpu.shares", "512\n"),
            ("cpu", "cpu.cfs_quota_us", "-1\n"),
            ("cpu", "cpu.cfs_period_us", "100000\n"),
            ("memory", "memory.usage_in_bytes", "1000\n"),
            ("memory", "memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory", "memory.stat", "cache 1\ntotal_cache 400\ntotal_rss 500\ntotal_inactive_file 300\n"),
            ("memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            ("memory", "cgroup.procs", "7\n8\n"),
            ("pids", "pids.current", "3\n"),
            ("pids", "pids.max", "max\n"),
            (
                "blkio",
                "blkio.throttle.io_service_bytes",
                "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 1\nTotal 12288\n",
            ),
            ("blkio", "blkio.throttle.io_serviced", "254:0 Read 1\n254:0 Write 2\n"),
        ];
        let sample = Sample::read(false, &files(&table));
        assert_eq!((sample.cpu_seconds, sample.user_seconds, sample.system_seconds), (Some(1.5), Some(1.0), Some(0.5)));
        assert_eq!(
            (sample.periods, sample.throttled_periods, sample.throttled_seconds),
            (Some(10), Some(4), Some(2.5))
        );
        assert_eq!((sample.burst_periods, sample.burst_seconds), (Some(2), Some(0.5)));
        assert_eq!((sample.shares, sample.quota, sample.period), (Some(512), None, Some(100_000)));
        assert_eq!((sample.usage, sample.working_set, sample.cache), (Some(1000), Some(700), Some(400)));
        assert_eq!((sample.memory_limit, sample.swap_limit, sample.ooms), (Some(0), None, Some(2)));
        assert_eq!((sample.threads, sample.threads_max, sample.pids), (Some(3), Some(0), vec![7, 8]));
        let io = Io { read_bytes: 4096, write_bytes: 8192, reads: 1, writes: 2, cost: None };
        assert_eq!(sample.io, BTreeMap::from([("254:0".to_owned(), io)]));
        assert!(sample.pressure.is_empty());
    }

    #[test]
    fn figures_of_a_v2_cgroup() {
        let table = [
            (
                "",
                "cpu.stat",
                "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2500000\nnr_bursts 2\nburst_usec 500000\n",
            ),
            ("", "cpu.weight", "20\n"),
            ("", "cpu.max", "50000 100000\n"),
            ("", "memory.current", "1000\n"),
            ("", "memory.max", "2000\n"),
            ("", "memory.stat", "anon 500\nfile 400\ninactive_file 300\npgfault 9\n"),
            ("", "memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n"),
            ("", "memory.swap.max", "max\n"),
            (
                "",
                "io.stat",
                "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n\
                 254:1 rbytes=1 cost.vrate=100.00 cost.usage=7 cost.wait=6 cost.indebt=5 cost.indelay=4\n",
            ),
            ("", "cpu.pressure", "some avg10=1.50 avg60=0.25 avg300=0.05 total=1500000\nfull avg10=0 total=500000\n"),
        ];
        let sample = Sample::read(true, &files(&table));
        assert_eq!((sample.cpu_seconds, sample.throttled_seconds), (Some(1.5), Some(2.5)));
        assert_eq!((sample.burst_periods, sample.burst_seconds), (Some(2), Some(0.5)));
        assert_eq!((sample.shares, sample.quota, sample.period), (Some(500), Some(50_000), Some(100_000)));
        assert_eq!((sample.usage, sample.working_set, sample.rss), (Some(1000), Some(700), Some(500)));
        assert_eq!((sample.limit_hits, sample.ooms, sample.page_faults), (Some(3), Some(1), Some(9)));
        assert_eq!((sample.memory_limit, sample.swap_limit, sample.max_usage), (Some(2000), Some(0), None));
        assert_eq!(sample.io["254:0"], Io { read_bytes: 4096, write_bytes: 8192, reads: 1, writes: 2, cost: None });
        let cost = IoCost { usage: 7, wait: 6, indebt: 5, indelay: 4 };
        assert_eq!(sample.io["254:1"], Io { read_bytes: 1, cost: Some(cost), ..Io::default() });
        let some = Stall { total: 1_500_000, avg10: 1.5, avg60: 0.25, avg300: 0.05 };
        let full = Stall { total: 500_000, ..Stall::default() };
        assert_eq!(sample.pressure, BTreeMap::from([("cpu", Pressure { some, full })]));
    }

    #[test]
    fn missing_files_leave_figures_out() {
        for is_v2 in [false, true] {
            assert_eq!(Sample::read(is_v2, &|_, _| None), Sample::default());
            Sample::read(is_v2, &|_, _| Some("nonsense 254:0 = \n\u{0}".to_owned()));
        }
    }

    #[test]
    fn a_disk_is_found_by_its_number() {
        let text = " 254       0 vda 1 2 3 4 5 6 7 8 9 10 11 0 0 0 0\n 254       1 vda1 1 1 1\n";
        let vda = Disk {
            reads_merged: 2,
            sectors_read: 3,
            read_time: 4,
            writes_merged: 6,
            sectors_written: 7,
            write_time: 8,
            in_progress: 9,
            busy_time: 10,
            weighted_time: 11,
        };
        assert_eq!(disk(text, "254:0"), Some(vda));
        for other in ["254:1", "254:2", "25:0", "254", ""] {
            assert_eq!(disk(text, other), None, "{other}");
        }
    }

    #[test]
    fn interfaces_without_loopback_and_links_to_containers() {
        let text = "Inter-|   Receive    |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes\n    \
            lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 2 3 4 0 0 0 0 50 6 7 8 0 0 0 0\n broken: 1 2\n\
            veth1a: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\ndocker0: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n";
        let traffic = |bytes, packets, errors, dropped| Traffic { bytes, packets, errors, dropped };
        let eth0 = Interface { name: "eth0".into(), received: traffic(10, 2, 3, 4), sent: traffic(50, 6, 7, 8) };
        assert_eq!(interfaces(text), [eth0]);
    }
}
