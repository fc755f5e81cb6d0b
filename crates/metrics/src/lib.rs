//! Metrics of a component, in the Prometheus text format, under upstream's names.
//!
//! A component makes one `Metrics`, hands clones to its queues and clients, and renders it at `/metrics`. Several
//! components in one process keep theirs apart.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod panics;
pub mod rest_client;
mod restart;
pub mod slis;
pub mod upstream;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
pub use restart::outlive_panics;

/// All metrics of one component. Clones share them.
#[derive(Clone, Default)]
pub struct Metrics {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    families: Mutex<BTreeMap<&'static str, Family>>,
    /// Set values that nobody updates on the way.
    collectors: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
}

struct Family {
    help: &'static str,
    kind: &'static str,
    /// By their labels as text.
    series: BTreeMap<String, Series>,
}

#[derive(Clone)]
enum Series {
    Number(Arc<Number>),
    Histogram(Arc<Buckets>),
}

/// A float that many may change.
#[derive(Default)]
struct Number(AtomicU64);

impl Number {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    fn add(&self, delta: f64) {
        let add = |bits| Some((f64::from_bits(bits) + delta).to_bits());
        // The closure always answers, so this cannot fail.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

struct Buckets {
    bounds: &'static [f64],
    /// One per bound, and one for all above.
    counts: Vec<AtomicU64>,
    sum: Number,
}

/// Bounds of a histogram, each so many times the one before.
pub const fn exponential<const N: usize>(first: f64, factor: f64) -> [f64; N] {
    let mut bounds = [first; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * factor;
        at += 1;
    }
    bounds
}

/// Something that only grows.
#[derive(Clone)]
pub struct Counter(Arc<Number>);

impl Counter {
    pub fn inc(&self) {
        self.0.add(1.0);
    }

    pub fn add(&self, count: usize) {
        self.0.add(count as f64);
    }

    pub fn get(&self) -> f64 {
        self.0.get()
    }
}

/// Something that goes up and down.
#[derive(Clone)]
pub struct Gauge(Arc<Number>);

impl Gauge {
    pub fn set(&self, value: f64) {
        self.0.set(value);
    }

    pub fn add(&self, delta: f64) {
        self.0.add(delta);
    }
}

/// How often values fell below each bound.
#[derive(Clone)]
pub struct Histogram(Arc<Buckets>);

impl Histogram {
    pub fn observe(&self, value: f64) {
        let at = self.0.bounds.partition_point(|bound| *bound < value);
        self.0.counts[at].fetch_add(1, Ordering::Relaxed);
        self.0.sum.add(value);
    }

    pub fn observe_duration(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }

    /// Each bound and how many values fell between it and the one before; the last is infinite.
    pub fn counts(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.0.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.0.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

/// Seconds of CPU that this process has used, and bytes of memory that it has.
pub fn process_usage() -> (f64, f64) {
    // What the kernel does not say is nothing.
    let stat = Stat::of(&std::fs::read_to_string("/proc/self/stat").unwrap_or_default(), "");
    (stat.cpu_seconds, stat.resident)
}

type Labels<'a> = [(&'a str, &'a str)];

/// What the numbers of a family do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// The rows of a family that are known all at once.
pub struct Rows {
    series: BTreeMap<String, Series>,
}

impl Rows {
    pub fn add(&mut self, labels: &Labels<'_>, value: f64) {
        let number = Number::default();
        number.set(value);
        self.series.insert(label_text(labels), Series::Number(Arc::new(number)));
    }
}

/// For collectors, which live inside the metrics they set.
pub struct WeakMetrics(Weak<Shared>);

impl WeakMetrics {
    pub fn upgrade(&self) -> Option<Metrics> {
        self.0.upgrade().map(|shared| Metrics { shared })
    }
}

impl Metrics {
    pub fn new() -> Self {
        Self::default()
    }

    /// The counter of this name and these labels; made when first asked for.
    pub fn counter(&self, name: &'static str, help: &'static str, labels: &Labels<'_>) -> Counter {
        Counter(self.number(name, help, "counter", labels))
    }

    pub fn gauge(&self, name: &'static str, help: &'static str, labels: &Labels<'_>) -> Gauge {
        Gauge(self.number(name, help, "gauge", labels))
    }

    /// Makes these rows all there is of a family of gauges: series that are not among them end. Each row has the values of
    /// `labels`. For collectors, which know all at once.
    pub fn set_gauges<const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [&str; N],
        rows: impl IntoIterator<Item = ([String; N], f64)>,
    ) {
        self.set_rows(Kind::Gauge, name, help, |all| {
            for (values, value) in rows {
                let pairs: Vec<_> = labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
                all.add(&pairs, value);
            }
        });
    }

    /// Makes the rows that `fill` adds all there is of a family.
    pub fn set_rows(&self, kind: Kind, name: &'static str, help: &'static str, fill: impl FnOnce(&mut Rows)) {
        let mut rows = Rows { series: BTreeMap::new() };
        fill(&mut rows);
        let mut families = self.shared.families.lock();
        let family =
            families.entry(name).or_insert_with(|| Family { help, kind: kind.text(), series: BTreeMap::new() });
        family.series = rows.series;
    }

    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        bounds: &'static [f64],
        labels: &Labels<'_>,
    ) -> Histogram {
        let make = || {
            let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
            Series::Histogram(Arc::new(Buckets { bounds, counts, sum: Number::default() }))
        };
        match self.series(name, help, "histogram", labels, make) {
            Series::Histogram(buckets) => Histogram(buckets),
            // A name used for two kinds is a mistake of ours; this one is then not shown.
            Series::Number(_) => {
                Histogram(Arc::new(Buckets { bounds: &[], counts: vec![AtomicU64::new(0)], sum: Number::default() }))
            }
        }
    }

    fn number(&self, name: &'static str, help: &'static str, kind: &'static str, labels: &Labels<'_>) -> Arc<Number> {
        match self.series(name, help, kind, labels, || Series::Number(Arc::default())) {
            Series::Number(number) => number,
            Series::Histogram(_) => Arc::default(),
        }
    }

    fn series(
        &self,
        name: &'static str,
        help: &'static str,
        kind: &'static str,
        labels: &Labels<'_>,
        make: impl FnOnce() -> Series,
    ) -> Series {
        let mut families = self.shared.families.lock();
        let family = families.entry(name).or_insert_with(|| Family { help, kind, series: BTreeMap::new() });
        family.series.entry(label_text(labels)).or_insert_with(make).clone()
    }

    /// Ends the series of a family that have all these labels.
    pub fn forget(&self, name: &str, labels: &Labels<'_>) {
        let wanted: Vec<String> = labels.iter().map(|label| label_text(&[*label])).collect();
        if let Some(family) = self.shared.families.lock().get_mut(name) {
            let has = |text: &str, pair: &str| {
                text.strip_prefix(pair).is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
                    || text.contains(&format!(",{pair},"))
                    || text.ends_with(&format!(",{pair}"))
            };
            family.series.retain(|text, _| !wanted.iter().all(|pair| has(text, pair)));
        }
    }

    pub fn downgrade(&self) -> WeakMetrics {
        WeakMetrics(Arc::downgrade(&self.shared))
    }

    /// Calls `collect` before each rendering, to set what is known only then.
    pub fn on_render(&self, collect: impl Fn() + Send + Sync + 'static) {
        self.shared.collectors.lock().push(Box::new(collect));
    }

    /// Adds how often work of this process ended in a panic.
    pub fn with_panics(self) -> Self {
        let this = self.downgrade();
        self.on_render(move || {
            let Some(metrics) = this.upgrade() else { return };
            for (worker, count) in panics::counts() {
                let help = "Pieces of work that ended in a panic, by who worked on them";
                metrics.counter("cox_panics_total", help, &[("worker", worker)]).0.set(count as f64);
            }
        });
        self
    }

    /// Adds the features of a component, and whether each is on. None can be switched, as upstream's settled ones, which
    /// have no stage.
    pub fn with_features(self, features: impl IntoIterator<Item = (&'static str, bool)>) -> Self {
        let help = "Whether a feature is on, by name and stage.";
        self.set_rows(Kind::Gauge, "kubernetes_feature_enabled", help, |rows| {
            for (name, is_on) in features {
                rows.add(&[("name", name), ("stage", "")], f64::from(u8::from(is_on)));
            }
        });
        self
    }

    /// Adds how many families there are, by level. None can be switched off here.
    fn with_registered(self) -> Self {
        self.counter("disabled_metrics_total", "Families that were switched off.", &[]);
        self.counter("hidden_metrics_total", "Families that are deprecated and not shown.", &[]);
        let this = self.downgrade();
        self.on_render(move || {
            let Some(metrics) = this.upgrade() else { return };
            let mut levels: BTreeMap<&str, f64> = BTreeMap::new();
            for name in metrics.shared.families.lock().keys() {
                *levels.entry(upstream::level(name).unwrap_or("ALPHA")).or_default() += 1.0;
            }
            let help = "Families that this component has, by level.";
            metrics.set_rows(Kind::Counter, "registered_metrics_total", help, |rows| {
                for (level, count) in levels {
                    rows.add(&[("deprecated_version", ""), ("stability_level", level)], count);
                }
            });
        });
        self
    }

    /// Notes that a family exists that is deprecated and not shown.
    pub fn hide(&self) {
        self.counter("hidden_metrics_total", "Families that are deprecated and not shown.", &[]).inc();
    }

    /// Adds what the kernel knows about this process, its version and its panics.
    pub fn with_process(self, version: &str) -> Self {
        let this = self.with_panics().with_registered();
        let (major, minor) = version.trim_start_matches('v').split_once('.').unwrap_or((version, ""));
        let labels = [
            ("build_date", ""),
            ("compiler", "rustc"),
            ("git_commit", ""),
            ("git_tree_state", "clean"),
            ("git_version", version),
            ("go_version", ""),
            ("major", major),
            ("minor", minor.split('.').next().unwrap_or_default()),
            ("platform", "linux/amd64"),
        ];
        let help = "[ALPHA] A metric with a constant '1' value labeled by the version that is running.";
        this.gauge("kubernetes_build_info", help, &labels).set(1.0);
        this.with_process_usage()
    }

    /// Adds what the kernel knows about this process: all that components have which are no part of Kubernetes.
    pub fn with_process_usage(self) -> Self {
        let cpu = self.counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", &[]);
        let memory = self.gauge("process_resident_memory_bytes", "Resident memory size in bytes.", &[]);
        let mapped = self.gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", &[]);
        let files = self.gauge("process_open_fds", "Number of open file descriptors.", &[]);
        let most = self.gauge("process_max_fds", "Maximum number of open file descriptors.", &[]);
        let start =
            self.gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", &[]);
        self.on_render(move || {
            let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
            let fields = Stat::of(&read("/proc/self/stat"), &read("/proc/stat"));
            cpu.0.set(fields.cpu_seconds);
            memory.set(fields.resident);
            mapped.set(fields.mapped);
            start.set(fields.started);
            files.set(std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as f64);
            let limits = read("/proc/self/limits");
            let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
            let limit = limit.and_then(|line| line.split_whitespace().next()?.parse().ok());
            most.set(limit.unwrap_or_default());
        });
        self
    }

    /// The text that Prometheus reads.
    pub fn render(&self) -> String {
        for collect in self.shared.collectors.lock().iter() {
            collect();
        }
        let mut out = String::new();
        // A family without series is not told of.
        for (name, family) in self.shared.families.lock().iter().filter(|(_, family)| !family.series.is_empty()) {
            // Writing to a String cannot fail.
            let _ = match upstream::level(name).filter(|_| !family.help.starts_with('[')) {
                None => writeln!(out, "# HELP {name} {}", family.help),
                Some(level) => writeln!(out, "# HELP {name} [{level}] {}", family.help),
            };
            let _ = writeln!(out, "# TYPE {name} {}", family.kind);
            for (labels, series) in &family.series {
                match series {
                    Series::Number(number) => {
                        let _ = writeln!(out, "{name}{} {}", braced(labels, ""), number.get());
                    }
                    Series::Histogram(buckets) => render_histogram(&mut out, name, labels, buckets),
                }
            }
        }
        out
    }
}

/// What the kernel counts of a process.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    resident: f64,
    mapped: f64,
    started: f64,
}

impl Stat {
    /// From the text of `/proc/PID/stat`, and of `/proc/stat`, which knows when the machine started.
    fn of(process: &str, machine: &str) -> Self {
        // After the name, which may contain anything but is the last thing in parentheses.
        let fields: Vec<&str> = process.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
        let boot = machine.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        // Clock ticks are hundredths of a second, pages have 4 KiB, on every Linux we build for.
        Stat {
            cpu_seconds: (number(11) + number(12)) / 100.0,
            resident: number(21) * 4096.0,
            mapped: number(20),
            started: boot.unwrap_or_default() + number(19) / 100.0,
        }
    }
}

fn render_histogram(out: &mut String, name: &str, labels: &str, buckets: &Buckets) {
    let mut total = 0;
    let bounds = buckets.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    for (bound, count) in bounds.zip(&buckets.counts) {
        total += count.load(Ordering::Relaxed);
        let _ = writeln!(out, "{name}_bucket{} {total}", braced(labels, &format!("le=\"{bound}\"")));
    }
    let _ = writeln!(out, "{name}_sum{0} {1}\n{name}_count{0} {total}", braced(labels, ""), buckets.sum.get());
}

fn braced(labels: &str, more: &str) -> String {
    match (labels, more) {
        ("", "") => String::new(),
        ("", one) | (one, "") => format!("{{{one}}}"),
        (labels, more) => format!("{{{labels},{more}}}"),
    }
}

/// Looked up whenever something is counted: one allocation, where the labels are in order.
fn label_text(labels: &Labels<'_>) -> String {
    let mut sorted;
    let mut labels = labels;
    if !labels.is_sorted() {
        sorted = labels.to_vec();
        sorted.sort_unstable();
        labels = &sorted;
    }
    let mut text = String::with_capacity(labels.iter().map(|(name, value)| name.len() + value.len() + 4).sum());
    for (at, (name, value)) in labels.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { "," });
        text.push_str(name);
        text.push_str("=\"");
        for character in value.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                plain => text.push(plain),
            }
        }
        text.push('"');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_panics_end_one_piece_of_work_and_are_counted() {
        let metrics = Metrics::new().with_panics();
        assert!(!metrics.render().contains("worker=\"tested\""));
        assert_eq!(panics::catch("tested", || 1), Some(1));
        assert_eq!(panics::catch("tested", || panic!("on purpose")), None::<()>);
        let mut work = std::pin::pin!(panics::catch_future("tested", async { panic!("on purpose") }));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(matches!(work.as_mut().poll(&mut context), std::task::Poll::Ready(None::<()>)));
        let text = metrics.render();
        assert!(text.contains("cox_panics_total{worker=\"tested\"} 2\n"), "{text}");
    }

    #[test]
    fn security_hostile_label_values_stay_inside_their_quotes() {
        for value in
            ["\"} 1\nevil_total 7", "\\", "\\\"", "a\\\nevil 1", "\n\n# TYPE evil counter\nevil 1", "{}=,\u{2028}"]
        {
            let metrics = Metrics::new();
            metrics.counter("b_total", "Things.", &[("a", value), ("z", "1")]).inc();
            let text = metrics.render();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), 3, "{text}");
            // As the format says: inside quotes a backslash takes the next character along.
            let quoted = lines[2].strip_prefix("b_total{a=\"").unwrap();
            let (mut read, mut rest) = (String::new(), quoted.chars());
            loop {
                match rest.next().unwrap() {
                    '"' => break,
                    '\\' => read.push(match rest.next().unwrap() {
                        'n' => '\n',
                        other => other,
                    }),
                    other => read.push(other),
                }
            }
            assert_eq!((read.as_str(), rest.as_str()), (value, ",z=\"1\"} 1"));
        }
    }

    #[test]
    fn the_text_format() {
        let metrics = Metrics::new();
        let again = metrics.clone();
        metrics.counter("b_total", "Things.", &[("z", "1"), ("a", "q\"")]).inc();
        again.counter("b_total", "Things.", &[("a", "q\""), ("z", "1")]).add(2);
        let gauge = metrics.gauge("a", "Depth.", &[]);
        metrics.on_render(move || gauge.set(2.5));
        let histogram = metrics.histogram("c", "Times.", &[0.1, 1.0], &[("n", "x")]);
        for value in [0.05, 0.1, 0.5, 7.0] {
            histogram.observe(value);
        }
        let expected = "\
# HELP a Depth.
# TYPE a gauge
a 2.5
# HELP b_total Things.
# TYPE b_total counter
b_total{a=\"q\\\"\",z=\"1\"} 3
# HELP c Times.
# TYPE c histogram
c_bucket{n=\"x\",le=\"0.1\"} 2
c_bucket{n=\"x\",le=\"1\"} 3
c_bucket{n=\"x\",le=\"+Inf\"} 4
c_sum{n=\"x\"} 7.65
c_count{n=\"x\"} 4
";
        assert_eq!(metrics.render(), expected);
    }

    #[test]
    fn figures_of_a_process() {
        let stat = "7 (a) b)) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 3 0 2500 8192 2 18446744073709551615";
        let expected = Stat { cpu_seconds: 2.0, resident: 8192.0, mapped: 8192.0, started: 1025.0 };
        assert_eq!(Stat::of(stat, "cpu 1 2\nbtime 1000\n"), expected);
        let text = Metrics::new().with_process("v1.36.0+x").render();
        assert!(text.contains("git_version=\"v1.36.0+x\"") && text.contains("minor=\"36\""), "{text}");
        assert!(!text.contains("process_start_time_seconds 0\n") && !text.contains("process_max_fds 0\n"), "{text}");
    }

    #[test]
    fn rows_that_are_gone_are_not_shown() {
        let metrics = Metrics::new();
        for rows in [vec![("x", 1.0), ("y", 2.0)], vec![("y", 3.0)]] {
            metrics.set_gauges("g", "Things.", ["n"], rows.into_iter().map(|(name, value)| ([name.to_owned()], value)));
        }
        assert_eq!(metrics.render(), "# HELP g Things.\n# TYPE g gauge\ng{n=\"y\"} 3\n");
    }
}
