//! One line of JSON per request, off unless asked for.
//!
//! Lines go through a bounded queue to one thread; when it cannot keep up they are dropped and counted, as requests do not
//! wait for a disk. What clients say is cut short and has no letters but visible ASCII.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};

use anyhow::Context;
use client::metrics::{Counter, Metrics};
use serde_json::json;

/// Lines that wait to be written. When full, further ones are dropped.
const BUFFER: usize = 4096;
/// Of what a client says, so much is kept.
const MAX_TEXT: usize = 1024;

pub(crate) struct AccessLog {
    lines: Option<SyncSender<String>>,
    dropped: Counter,
}

/// What is said about a request.
pub(crate) struct Entry<'a> {
    pub(crate) client: std::net::SocketAddr,
    pub(crate) method: &'a http::Method,
    pub(crate) host: &'a str,
    pub(crate) path: &'a str,
    pub(crate) agent: &'a [u8],
    pub(crate) route: &'a str,
    pub(crate) code: u16,
    pub(crate) seconds: f64,
}

impl AccessLog {
    /// Appends to a file; `-` is standard output.
    pub(crate) fn open(path: Option<&Path>, metrics: &Metrics) -> anyhow::Result<Self> {
        let help = "Lines of the access log that were not written.";
        let dropped = metrics.counter("cox_gateway_access_log_dropped_total", help, &[]);
        let Some(path) = path else { return Ok(Self { lines: None, dropped }) };
        let mut file = opened(path)?;
        let (lines, written) = sync_channel::<String>(BUFFER);
        // It ends with the sender.
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            while let Ok(line) = written.recv() {
                if let Err(error) = file.write_all(line.as_bytes()) {
                    tracing::warn!(%error, "access log");
                }
            }
        })?;
        Ok(Self { lines: Some(lines), dropped })
    }

    pub(crate) fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    pub(crate) fn write(&self, entry: &Entry<'_>) {
        let Some(lines) = &self.lines else { return };
        if lines.try_send(line(entry, now())).is_err() {
            self.dropped.inc();
        }
    }
}

/// The time as people and other programs are told it.
pub(super) fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Fails where [`AccessLog::open`] would.
pub fn check(path: &Path) -> anyhow::Result<()> {
    opened(path).map(drop)
}

fn opened(path: &Path) -> anyhow::Result<Box<dyn Write + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdout()));
    }
    let open = std::fs::OpenOptions::new().create(true).append(true).open(path);
    Ok(Box::new(open.with_context(|| format!("access log {}", path.display()))?))
}

fn line(entry: &Entry<'_>, at: jiff::Timestamp) -> String {
    let value = json!({
        "time": format!("{at:.3}"),
        "client": entry.client.to_string(),
        "method": plain(entry.method.as_str().as_bytes()),
        "host": plain(entry.host.as_bytes()),
        "path": plain(entry.path.as_bytes()),
        "agent": plain(entry.agent),
        "route": entry.route,
        "code": entry.code,
        "seconds": (entry.seconds * 1e6).round() / 1e6,
    });
    format!("{value}\n")
}

fn plain(text: &[u8]) -> String {
    let visible = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' };
    text.iter().take(MAX_TEXT).map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_cannot_be_written_is_told_beforehand() {
        for (path, is_good) in [("-", true), ("/dev/null", true), ("/dev/null/access.log", false)] {
            assert_eq!(check(Path::new(path)).is_ok(), is_good, "{path}");
        }
    }

    #[test]
    fn security_a_line_is_one_line_whatever_clients_say() {
        let path = format!("/\"x\n{}", "y".repeat(5000));
        let entry = Entry {
            client: "192.0.2.1:7".parse().unwrap(),
            method: &http::Method::GET,
            host: "a\r\nb",
            path: &path,
            agent: b"\x1b[31m\xff",
            route: "ingress default/web",
            code: 200,
            seconds: 0.0012345678,
        };
        let line = line(&entry, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.is_ascii() && line.len() < 1500, "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["host"], &value["agent"]), (&json!("a??b"), &json!("?[31m?")));
        assert_eq!(value["seconds"], json!(0.001235));
    }
}
