//! Kernel settings the rules rely on.

use std::io;
use std::time::Duration;

use crate::settings::Settings;

/// Limits of the table of tracked connections; the kernel's own where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// Entries per processor, and at least this many.
    pub max_per_core: Option<u32>,
    pub min: u32,
    pub tcp_established_timeout: Option<Duration>,
    pub tcp_close_wait_timeout: Option<Duration>,
    pub tcp_be_liberal: bool,
    pub udp_timeout: Option<Duration>,
    pub udp_stream_timeout: Option<Duration>,
}

impl Conntrack {
    /// What kube-proxy sets where nobody says anything. The kernel forgets a connection that one side has closed after a
    /// minute, and packets of the other side then go out untranslated.
    pub fn standard() -> Self {
        Conntrack {
            max_per_core: Some(32 * 1024),
            min: 128 * 1024,
            tcp_established_timeout: Some(Duration::from_secs(24 * 3600)),
            tcp_close_wait_timeout: Some(Duration::from_secs(3600)),
            ..Conntrack::default()
        }
    }

    /// As the kernel calls them.
    fn sysctls(&self, processors: u32) -> Vec<(&'static str, u64)> {
        let seconds = |timeout: Option<Duration>| timeout.map(|timeout| timeout.as_secs());
        let max = self.max_per_core.map(|each| u64::from(each.saturating_mul(processors).max(self.min)));
        let wanted = [
            ("nf_conntrack_max", max),
            ("nf_conntrack_tcp_timeout_established", seconds(self.tcp_established_timeout)),
            ("nf_conntrack_tcp_timeout_close_wait", seconds(self.tcp_close_wait_timeout)),
            ("nf_conntrack_tcp_be_liberal", self.tcp_be_liberal.then_some(1)),
            ("nf_conntrack_udp_timeout", seconds(self.udp_timeout)),
            ("nf_conntrack_udp_timeout_stream", seconds(self.udp_stream_timeout)),
        ];
        // Zero leaves a thing as it is.
        wanted.into_iter().filter_map(|(name, value)| Some((name, value.filter(|value| *value > 0)?))).collect()
    }

    /// What the kernel refuses, in a namespace without the right, stays as it is.
    pub(crate) fn apply(&self) {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        for (name, value) in self.sysctls(processors) {
            if let Err(error) = set(&format!("net/netfilter/{name}"), &value.to_string()) {
                tracing::warn!(name, value, %error, "cannot set");
            }
        }
    }
}

fn set(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/{name}");
    // Read first: in containers /proc/sys is often read-only yet already right.
    if std::fs::read_to_string(&path).is_ok_and(|current| current.trim() == value) {
        return Ok(());
    }
    std::fs::write(&path, value)
}

/// Sets what is needed and returns what the rules must make up for.
pub(crate) fn prepare(settings: &mut Settings) {
    if let Err(error) = set("net/ipv4/ip_forward", "1") {
        tracing::warn!(%error, "cannot enable IPv4 forwarding");
    }
    let has_v6 = |cidrs: &[String]| cidrs.iter().any(|cidr| cidr.contains(':'));
    let needs_v6 = has_v6(&settings.cluster_cidrs) || has_v6(&settings.service_cidrs);
    if needs_v6 && let Err(error) = set("net/ipv6/conf/all/forwarding", "1") {
        tracing::warn!(%error, "cannot enable IPv6 forwarding");
    }
    if settings.localhost_node_ports
        && let Err(error) = set("net/ipv4/conf/all/route_localnet", "1")
    {
        tracing::warn!(%error, "node ports will not answer on localhost");
        settings.localhost_node_ports = false;
    }
    // Two pods on one bridge answer each other directly: without this the answer to a translated packet keeps the wrong
    // source. Masquerading leads it through the host instead.
    let filter_bridges = || set("net/bridge/bridge-nf-call-iptables", "1");
    if filter_bridges().is_err() {
        let loaded = std::process::Command::new("modprobe").arg("br_netfilter").output();
        if loaded.is_err() || filter_bridges().is_err() {
            tracing::warn!("br_netfilter is not available: all traffic to cluster IPs will be masqueraded");
            settings.masquerade_all = true;
        }
    }
    // Fails where IPv6 is off, which is fine.
    let _ = set("net/bridge/bridge-nf-call-ip6tables", "1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_the_kernels_names() {
        assert_eq!(Conntrack::default().sysctls(4), []);
        let some = Conntrack {
            max_per_core: Some(32768),
            min: 131_072,
            tcp_established_timeout: Some(Duration::from_secs(86400)),
            udp_timeout: Some(Duration::ZERO),
            tcp_be_liberal: true,
            ..Conntrack::default()
        };
        let rest = [("nf_conntrack_tcp_timeout_established", 86400), ("nf_conntrack_tcp_be_liberal", 1)];
        for (processors, max) in [(1, 131_072), (8, 262_144)] {
            assert_eq!(some.sysctls(processors), [&[("nf_conntrack_max", max)][..], &rest].concat());
        }
    }

    #[test]
    fn connections_are_remembered_as_long_as_kube_proxy_has_it() {
        let client = client::Client::in_process(
            std::sync::Arc::new(|_| Box::pin(async { unreachable!("nobody asks") })),
            api::UserInfo::default(),
        );
        let timeouts = [("nf_conntrack_tcp_timeout_established", 86400), ("nf_conntrack_tcp_timeout_close_wait", 3600)];
        assert_eq!(crate::Config::new(client, "a").conntrack.sysctls(4), timeouts);
        assert_eq!(Conntrack::standard().sysctls(4), [&[("nf_conntrack_max", 131_072)][..], &timeouts].concat());
    }
}
