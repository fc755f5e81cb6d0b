//! `cox top`: what nodes, pods and the API use now, and the last hour of it as lines of bars.
//!
//! Flow: history (`GET /cox/history`) and, where it is served, `metrics.k8s.io` -> [`render`] (pure) -> the terminal.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use api::quantity::Quantity;
use api::sort::CompactSort as _;
use api::terminal::escaped_line;
use client::Client;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::connection::Target;
use crate::history::{History, bytes};

/// Nodes measure anew after so long.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);
const MINUTES: usize = 60;
/// How wide names are.
const NAME: usize = 40;
/// How many bars a line has.
const BARS: usize = 20;

/// Show resource usage of nodes, pods and the API, now and in the last hour
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  cox top\n  cox top --once\n  cox top --pods 50 --by memory")]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Print once and exit; also done if the output is not a terminal
    #[arg(long)]
    once: bool,
    /// How many pods to show
    #[arg(long, default_value_t = 20)]
    pods: usize,
    /// What the pods are sorted by
    #[arg(long, value_enum, default_value_t = By::Cpu)]
    by: By,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    Cpu,
    Memory,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(show(args))
}

async fn show(args: Args) -> Result<()> {
    let client = args.target.clone().connect()?;
    let mut out = std::io::stdout();
    if args.once || !out.is_terminal() {
        return Ok(out.write_all(look(&client, &args).await?.as_bytes())?);
    }
    let mut interrupt = signal(SignalKind::interrupt())?;
    let _screen = Screen::open()?;
    loop {
        let text = tokio::select! {
            text = look(&client, &args) => text?,
            _ = interrupt.recv() => return Ok(()),
        };
        // From the top, each line to its end, and nothing below.
        write!(out, "\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))?;
        out.flush()?;
        tokio::select! {
            () = tokio::time::sleep(REFRESH_INTERVAL) => {}
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

/// The other screen of the terminal, as long as this is kept.
struct Screen;

impl Screen {
    fn open() -> std::io::Result<Self> {
        std::io::stdout().write_all(b"\x1b[?1049h\x1b[?25l")?;
        Ok(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = std::io::stdout().write_all(b"\x1b[?25h\x1b[?1049l");
        let _ = std::io::stdout().flush();
    }
}

async fn look(client: &Client, args: &Args) -> Result<String> {
    let history = History::ask(client, MINUTES).await?;
    let now = Now::ask(client).await;
    Ok(render(&history, &now, args.pods, args.by, Timestamp::now()))
}

/// CPU in cores and memory in bytes, by namespace and name; nothing of what is not served.
#[derive(Debug, Default)]
struct Now {
    nodes: BTreeMap<(String, String), (f64, f64)>,
    pods: BTreeMap<(String, String), (f64, f64)>,
}

#[derive(Deserialize)]
struct Measured {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Named,
    usage: Option<Usage>,
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Deserialize)]
struct Container {
    usage: Usage,
}

#[derive(Deserialize)]
struct Usage {
    cpu: String,
    memory: String,
}

impl Usage {
    fn amounts(&self) -> (f64, f64) {
        let amount = |text: &str| Quantity::parse(text).map_or(0.0, |quantity| quantity.as_f64());
        (amount(&self.cpu), amount(&self.memory))
    }
}

impl Now {
    async fn ask(client: &Client) -> Self {
        let of = async |plural: &str| -> BTreeMap<(String, String), (f64, f64)> {
            let path = ["apis", "metrics.k8s.io", "v1beta1", plural];
            // The history has figures of the last minute, too.
            let Ok(measured) = client.get_at::<Measured>(&path, &[]).await else { return BTreeMap::new() };
            let amounts = measured.items.into_iter().map(|item| {
                let parts = item.usage.iter().chain(item.containers.iter().map(|container| &container.usage));
                let sum = parts.map(Usage::amounts).fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
                ((item.metadata.namespace, item.metadata.name), sum)
            });
            amounts.collect()
        };
        let (nodes, pods) = tokio::join!(of("nodes"), of("pods"));
        Self { nodes, pods }
    }
}

/// Decides, never awaits.
fn render(history: &History, now: &Now, most_pods: usize, by: By, time: Timestamp) -> String {
    let last = |what: &str, of: &str, namespace: &str, name: &str| {
        history.points(what, of, namespace, name).last().map(|(_, value)| *value)
    };
    let (nodes, pods) = (history.names("node"), history.names("pod"));
    let mut out = format!(
        "{}  {} nodes  {} pods  bars: the last {MINUTES} minutes\n\n",
        time.strftime("%H:%M:%S"),
        nodes.len().max(now.nodes.len()),
        pods.len().max(now.pods.len()),
    );
    let api = |what: &str| last(what, "component", "", "kube-apiserver");
    if let Some(requests) = api("requests_per_second") {
        out += &format!(
            "API   {requests:>7.1} req/s  {:>6.2} errors/s  {:>6.2} turned away/s  p99 {:>5} ms  {}\n",
            api("errors_per_second").unwrap_or_default(),
            api("rejections_per_second").unwrap_or_default(),
            api("request_p99_seconds").map_or("-".to_owned(), |seconds| format!("{:.0}", seconds * 1000.0)),
            bars(history.points("requests_per_second", "component", "", "kube-apiserver")),
        );
    }
    if let (Some(cpu), Some(memory)) =
        (last("cpu_cores", "component", "", "cox"), last("memory_bytes", "component", "", "cox"))
    {
        let line = bars(history.points("cpu_cores", "component", "", "cox"));
        out += &format!("cox   {cpu:>7.3} cores  {:>9}  {line}\n", bytes(memory));
    }
    out += &format!(
        "\n{:<NAME$} {:>8} {:<BARS$} {:>9} {:<BARS$} {:>11} {:>11} {:>5}\n",
        "NODE", "CPU", "", "MEMORY", "", "RECEIVED/S", "SENT/S", "DISK"
    );
    for (namespace, name) in nodes {
        let disk = match (last("disk_used_bytes", "node", "", name), last("disk_size_bytes", "node", "", name)) {
            (Some(used), Some(size)) if size > 0.0 => format!("{:.0}%", 100.0 * used / size),
            _ => "-".to_owned(),
        };
        let live = now.nodes.get(&(namespace.to_owned(), name.to_owned()));
        out += &line(history, "node", namespace, name, live);
        out += &format!(" {disk:>5}\n");
    }
    out += &format!(
        "\n{:<NAME$} {:>8} {:<BARS$} {:>9} {:<BARS$} {:>11} {:>11}\n",
        "POD", "CPU", "", "MEMORY", "", "RECEIVED/S", "SENT/S"
    );
    // Those that have ended have a history, but no figures of the last minutes.
    let newest = history.series.iter().filter_map(|series| Some(series.points.last()?.0)).max().unwrap_or_default();
    let weight = |(namespace, name): &(&str, &str)| {
        let live = now.pods.get(&((*namespace).to_owned(), (*name).to_owned())).copied();
        let what = if by == By::Cpu { "cpu_cores" } else { "memory_bytes" };
        let kept = history.points(what, "pod", namespace, name).last().filter(|(time, _)| *time + 120 >= newest);
        live.map(|(cpu, memory)| if by == By::Cpu { cpu } else { memory }).or(kept.map(|(_, value)| *value))
    };
    let mut weighed: Vec<_> = pods.iter().filter_map(|pod| Some((weight(pod)?, *pod))).collect();
    weighed.compact_sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (_, (namespace, name)) in weighed.iter().take(most_pods) {
        out += &line(history, "pod", namespace, name, now.pods.get(&((*namespace).to_owned(), (*name).to_owned())));
        out.push('\n');
    }
    if weighed.len() > most_pods {
        out += &format!("and {} more: see --pods\n", weighed.len() - most_pods);
    }
    out
}

/// Name, CPU, memory and network of one thing.
fn line(history: &History, of: &str, namespace: &str, name: &str, live: Option<&(f64, f64)>) -> String {
    let points = |what: &str| history.points(what, of, namespace, name);
    let last = |what: &str| points(what).last().map(|(_, value)| *value);
    let shown = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    let cpu = live.map(|(cpu, _)| *cpu).or(last("cpu_cores")).map_or("-".to_owned(), |cpu| format!("{cpu:.3}"));
    let memory = live.map(|(_, memory)| *memory).or(last("memory_bytes")).map_or("-".to_owned(), bytes);
    let rate = |what: &str| last(what).map_or("-".to_owned(), bytes);
    format!(
        "{:<NAME$} {cpu:>8} {:<BARS$} {memory:>9} {:<BARS$} {:>11} {:>11}",
        cut(&escaped_line(&shown), NAME),
        bars(points("cpu_cores")),
        bars(points("memory_bytes")),
        rate("network_receive_bytes_per_second"),
        rate("network_transmit_bytes_per_second"),
    )
}

/// The end of a long name says more than its beginning.
fn cut(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    std::iter::once('…').chain(name.chars().skip(length - most + 1)).collect()
}

/// Values as bars of eight heights, each the mean of its share of the time.
fn bars(points: &[(u64, f64)]) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let share = points.len().div_ceil(BARS).max(1);
    let means: Vec<f64> =
        points.chunks(share).map(|part| part.iter().map(|(_, value)| value).sum::<f64>() / part.len() as f64).collect();
    let most = means.iter().copied().fold(0.0, f64::max);
    let height = |mean: &f64| {
        let part = if most > 0.0 { (mean / most).clamp(0.0, 1.0) } else { 0.0 };
        HEIGHTS[((part * 7.0).round() as usize).min(7)]
    };
    means.iter().map(height).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bars_are_as_high_as_their_values() {
        assert_eq!(bars(&[]), "");
        assert_eq!(bars(&[(0, 0.0), (60, 0.0)]), "▁▁");
        assert_eq!(bars(&[(0, 0.0), (60, 5.0), (120, 10.0)]), "▁▅█");
        let many: Vec<(u64, f64)> = (0..100).map(|at| (at, at as f64)).collect();
        assert_eq!(bars(&many).chars().count(), BARS);
    }

    #[test]
    fn the_busiest_pods_come_first_and_the_gone_not_at_all() {
        let series = |what: &str, of: &str, namespace: &str, name: &str, points: &[(u64, f64)]| json!({"what": what, "of": of, "namespace": namespace, "name": name, "points": points});
        let history: History = serde_json::from_value(json!({"step": 60, "series": [
            series("requests_per_second", "component", "", "kube-apiserver", &[(600, 2.5)]),
            series("request_p99_seconds", "component", "", "kube-apiserver", &[(600, 0.012)]),
            series("cpu_cores", "node", "", "n1", &[(540, 0.5), (600, 1.0)]),
            series("disk_used_bytes", "node", "", "n1", &[(600, 40.0)]),
            series("disk_size_bytes", "node", "", "n1", &[(600, 100.0)]),
            series("cpu_cores", "pod", "default", "calm", &[(600, 0.1)]),
            series("cpu_cores", "pod", "default", "busy", &[(600, 0.9)]),
            series("memory_bytes", "pod", "default", "busy", &[(600, 1048576.0)]),
            series("cpu_cores", "pod", "default", "gone", &[(60, 5.0)]),
        ]}))
        .unwrap();
        let mut now = Now::default();
        now.nodes.insert((String::new(), "n1".into()), (1.75, 2e9));
        let text = render(&history, &now, 10, By::Cpu, Timestamp::UNIX_EPOCH);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} not in\n{text}"));
        assert!(at("default/busy") < at("default/calm") && !text.contains("gone"), "{text}");
        assert!(text.contains("2.5 req/s") && text.contains("p99    12 ms") && text.contains(" 40%"), "{text}");
        assert!(text.contains("1.750") && text.contains("1.9 GiB"), "what is measured now is shown:\n{text}");
        let short = render(&history, &now, 1, By::Memory, Timestamp::UNIX_EPOCH);
        assert!(short.contains("default/busy") && !short.contains("and 1 more"), "{short}");
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(cut("short", 28), "short");
        assert_eq!(cut("abcdefgh", 4), "…fgh");
    }
}
