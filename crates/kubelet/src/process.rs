//! What a kubelet that is a process of its own does to itself and to its machine before it starts.

use std::net::SocketAddr;

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
}
