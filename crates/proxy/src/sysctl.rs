//! Kernel settings the rules rely on.

use crate::settings::Settings;

/// Sets what is needed and returns what the rules must make up for.
pub(crate) fn prepare(settings: &mut Settings) {
    let set = |name: &str, value: &str| {
        let path = format!("/proc/sys/{name}");
        // Read first: in containers /proc/sys is often read-only yet already right.
        if std::fs::read_to_string(&path).is_ok_and(|current| current.trim() == value) {
            return Ok(());
        }
        std::fs::write(&path, value)
    };
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
