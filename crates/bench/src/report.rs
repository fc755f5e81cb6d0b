//! Lines of results, and the arithmetic behind them.

use std::fmt::Display;
use std::time::Duration;

/// Which direction is better.
#[derive(Clone, Copy)]
pub(crate) enum Better {
    More,
    Less,
}

/// One line: `<case> <parameters> ours=… peer=… ratio=…`, without the last two if there is no peer.
pub(crate) fn line(
    case: &str,
    parameters: impl Display,
    unit: &str,
    ours: f64,
    peer: impl Into<Option<f64>>,
    better: Better,
) {
    let Some(peer) = peer.into() else {
        return println!("{case} {parameters} ours={}{unit}", short(ours));
    };
    let ratio = match better {
        Better::More => ours / peer,
        Better::Less => peer / ours,
    };
    println!("{case} {parameters} ours={}{unit} peer={}{unit} ratio={ratio:.2}", short(ours), short(peer));
}

/// One line without a peer: `<case> <parameters> ours=…`.
pub(crate) fn line_alone(case: &str, parameters: impl Display, unit: &str, ours: f64) {
    println!("{case} {parameters} ours={}{unit}", short(ours));
}

fn short(number: f64) -> String {
    if number >= 100.0 { format!("{number:.0}") } else { format!("{number:.2}") }
}

/// Times of single operations.
#[derive(Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(crate) fn join(&mut self, other: Times) {
        self.0.extend(other.0);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// In milliseconds.
    pub(crate) fn percentile(&mut self, percent: usize) -> f64 {
        self.0.sort();
        let at = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
        self.0.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }
}

/// Resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> anyhow::Result<u64> {
    memory(pid, "VmRSS")
}

/// The most memory this process had resident since `forget_peak`, in bytes.
pub(crate) fn peak() -> anyhow::Result<u64> {
    memory(std::process::id(), "VmHWM")
}

/// Makes `peak` begin anew. Where the kernel does not let us, it goes on counting.
pub(crate) fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").ok();
}

fn memory(pid: u32, field: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kilobytes.ok_or_else(|| anyhow::anyhow!("process {pid} has no {field}"))? * 1024)
}

/// CPU time this process has used so far.
pub(crate) fn cpu_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name, in parentheses, may contain spaces; clock ticks are hundredths of a second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    ticks(11)
        .zip(ticks(12))
        .map(|(user, system)| (user + system) / 100.0)
        .ok_or_else(|| anyhow::anyhow!("unreadable /proc/self/stat"))
}

/// The one in the middle of some measurements.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
