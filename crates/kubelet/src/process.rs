//! What a kubelet that is a process of its own does to itself and to its machine before it starts, and how it notifies
//! systemd.

use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net as unix;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;

use crate::config::Settings;

/// Kernel settings that upstream's kubelet relies on.
const KERNEL: &[(&str, i64)] = &[
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

pub(crate) fn prepare(settings: &Settings) -> anyhow::Result<()> {
    if settings.fail_swap_on {
        refuse_swap(&std::fs::read_to_string("/proc/swaps").context("/proc/swaps")?)?;
    }
    if settings.fail_cgroup_v1 {
        refuse_v1(cgroup::Hierarchies::detect().context("control groups")?.version())?;
    }
    if settings.protect_kernel_defaults {
        check_kernel(|name| std::fs::read_to_string(format!("/proc/sys/{name}")))?;
    }
    if let Some(score) = settings.oom_score_adj
        && let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string())
    {
        tracing::warn!(score, %error, "cannot set oom_score_adj");
    }
    if let Some(files) = settings.max_open_files {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, files, hard.max(files)).with_context(|| format!("maxOpenFiles {files}"))?;
    }
    Ok(())
}

fn refuse_v1(version: cgroup::Version) -> anyhow::Result<()> {
    if version == cgroup::Version::V1 {
        bail!("kubelet is configured to not run on a host using cgroup v1");
    }
    Ok(())
}

/// The first line is a heading.
fn refuse_swap(swaps: &str) -> anyhow::Result<()> {
    if swaps.lines().skip(1).any(|line| !line.trim().is_empty()) {
        bail!("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false");
    }
    Ok(())
}

fn check_kernel(read: impl Fn(&str) -> std::io::Result<String>) -> anyhow::Result<()> {
    for (name, expected) in KERNEL {
        let found: i64 =
            read(name).with_context(|| name.to_string())?.trim().parse().with_context(|| name.to_string())?;
        if found != *expected {
            bail!("invalid kernel flag: {name}, expected value: {expected}, actual value: {found}");
        }
    }
    Ok(())
}

/// How this process notifies systemd (`sd_notify`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Systemd {
    socket: String,
    /// How often the watchdog is notified: twice in the time of `WatchdogSec=`.
    interval: Option<Duration>,
}

impl Systemd {
    /// From the environment that systemd sets; none if it did not start this process.
    pub(crate) fn from_env(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<Self>> {
        let variable = |name: &str| variable(name).filter(|text| !text.is_empty());
        let Some(socket) = variable("NOTIFY_SOCKET") else { return Ok(None) };
        let is_other = variable("WATCHDOG_PID").is_some_and(|pid| pid != std::process::id().to_string());
        let Some(timeout) = variable("WATCHDOG_USEC").filter(|_| !is_other) else {
            return Ok(Some(Self { socket, interval: None }));
        };
        let micros = timeout.parse::<u64>().with_context(|| format!("WATCHDOG_USEC {timeout:?}"))?;
        let timeout = Duration::from_micros(micros);
        if timeout <= Duration::from_secs(1) {
            bail!("configure watchdog timeout too small: {timeout:?}");
        }
        Ok(Some(Self { socket, interval: Some(timeout / 2) }))
    }

    /// Notifies systemd that the kubelet has started, then its watchdog for as long as the kubelet is healthy. A watchdog
    /// that is not notified in time restarts it.
    pub(crate) async fn run(self, is_healthy: impl Fn() -> bool + Send, stop: CancellationToken) {
        self.notify("READY=1");
        let Some(interval) = self.interval else { return };
        let mut ticks = tokio::time::interval(interval);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if is_healthy() {
                self.notify("WATCHDOG=1");
            } else {
                tracing::error!("the kubelet is not healthy: systemd's watchdog is not notified");
            }
        }
    }

    fn notify(&self, what: &str) {
        if let Err(error) = self.send(what) {
            tracing::warn!(what, %error, "systemd could not be notified");
        }
    }

    fn send(&self, what: &str) -> std::io::Result<()> {
        let to = match self.socket.strip_prefix('@') {
            Some(name) => unix::SocketAddr::from_abstract_name(name)?,
            None => unix::SocketAddr::from_pathname(&self.socket)?,
        };
        let socket = unix::UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(what.as_bytes(), &to).map(drop)
    }
}

/// `/healthz` for whoever is on the machine.
pub(crate) async fn serve_health(address: SocketAddr, stop: CancellationToken) {
    let listener = match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%address, %error, "cannot serve health");
            return;
        }
    };
    let answer = |path: &str| match path {
        "/healthz" | "/healthz/ping" => (200, "ok".to_owned()),
        _ => (404, "404 page not found\n".to_owned()),
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = client::plain_http::serve(listener, answer) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_may_be_refused() {
        let heading = "Filename Type Size Used Priority\n";
        assert!(refuse_v1(cgroup::Version::V2).is_ok() && refuse_v1(cgroup::Version::V1).is_err());
        assert!(refuse_swap(heading).is_ok());
        assert!(refuse_swap(&format!("{heading}/swapfile file 1 0 -2\n")).is_err());
        let as_expected = |name: &str| Ok(KERNEL.iter().find(|row| row.0 == name).unwrap().1.to_string());
        assert!(check_kernel(as_expected).is_ok());
        let error = check_kernel(|name| if name == "vm/panic_on_oom" { Ok("1\n".into()) } else { as_expected(name) });
        let text = "invalid kernel flag: vm/panic_on_oom, expected value: 0, actual value: 1";
        assert_eq!(error.unwrap_err().to_string(), text);
    }

    #[test]
    fn the_watchdog_is_notified_as_often_as_it_asks() {
        let own = std::process::id().to_string();
        let read = |usec: &str, pid: &str| {
            let found = Systemd::from_env(|name| match name {
                "NOTIFY_SOCKET" => Some("/run/notify".to_owned()),
                "WATCHDOG_USEC" => Some(usec.to_owned()),
                "WATCHDOG_PID" => Some(pid.to_owned()),
                _ => None,
            });
            found.map(|systemd| systemd.and_then(|systemd| systemd.interval)).map_err(|error| error.to_string())
        };
        assert_eq!(read("30000000", &own), Ok(Some(Duration::from_secs(15))));
        assert_eq!(read("30000000", ""), Ok(Some(Duration::from_secs(15))));
        assert_eq!(read("30000000", "1000000000"), Ok(None), "it is another's");
        assert_eq!(read("", &own), Ok(None));
        assert_eq!(read("1000000", &own), Err("configure watchdog timeout too small: 1s".to_owned()));
        assert!(read("soon", &own).is_err());
        assert_eq!(Systemd::from_env(|_| None).unwrap(), None);
    }

    #[test]
    fn notifications_reach_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = unix::UnixDatagram::bind(&path).unwrap();
        let systemd = Systemd { socket: path.to_str().unwrap().to_owned(), interval: None };
        systemd.send("READY=1").unwrap();
        let mut heard = [0; 16];
        let length = listener.recv(&mut heard).unwrap();
        assert_eq!(&heard[..length], b"READY=1");
    }
}
