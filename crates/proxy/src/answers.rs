//! What upstream's proxy can be told and this one has no use for.

use api::flags::{LOGGING, Row, Table, only, refused, same};

/// Flags that are not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unused;

impl Table for Unused {
    const ROWS: &'static [&'static [Row]] = &[
        LOGGING,
        &[
            only("bind-address", &["0.0.0.0", "::"], "the health and metrics addresses have flags of their own"),
            only("bind-address-hard-fail", &["false"], "the proxy goes on where a port is taken"),
            same("boot-id-file", "there is no cAdvisor"),
            same("config-sync-period", "changes are watched"),
            refused("healthz-port", "use --healthz-bind-address"),
            refused("init-only", "the proxy needs no privileged start"),
            same("ipvs-exclude-cidrs", "there is no ipvs mode"),
            same("ipvs-min-sync-period", "there is no ipvs mode"),
            same("ipvs-scheduler", "there is no ipvs mode"),
            same("ipvs-strict-arp", "there is no ipvs mode"),
            same("ipvs-sync-period", "there is no ipvs mode"),
            same("ipvs-tcp-timeout", "there is no ipvs mode"),
            same("ipvs-tcpfin-timeout", "there is no ipvs mode"),
            same("ipvs-udp-timeout", "there is no ipvs mode"),
            same("kube-api-content-type", "requests say the same in any encoding"),
            same("machine-id-file", "there is no cAdvisor"),
            refused("metrics-port", "use --metrics-bind-address"),
            only("profiling", &["false"], "there are no profiling endpoints"),
            same("show-hidden-metrics-for-version", "no metric is hidden"),
            refused("write-config-to", "the configuration is not written"),
        ],
    ];
}

/// Fields of `KubeProxyConfiguration` that are not read.
pub(crate) const FIELDS: &[Row] = &[
    only("bindAddress", &["0.0.0.0", "::"], "the health and metrics addresses have fields of their own"),
    only("bindAddressHardFail", &["false"], "the proxy goes on where a port is taken"),
    same("clientConnection.acceptContentTypes", "requests say the same in any encoding"),
    same("clientConnection.contentType", "requests say the same in any encoding"),
    same("configSyncPeriod", "changes are watched"),
    only("enableProfiling", &["false"], "there are no profiling endpoints"),
    same("ipvs", "there is no ipvs mode"),
    only("logging.format", &["text"], "logs are text"),
    same("logging", "COX_LOG chooses what is logged, and every line is written at once"),
    same("portRange", "the proxy takes no ports"),
    same("showHiddenMetricsForVersion", "no metric is hidden"),
    same("windowsRunAsService", "this is not Windows"),
    same("winkernel", "this is not Windows"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;

    /// The flags of v1.36.
    const UPSTREAM: &str = "
        bind-address bind-address-hard-fail boot-id-file cleanup cluster-cidr config config-sync-period
        conntrack-max-per-core conntrack-min conntrack-tcp-be-liberal conntrack-tcp-timeout-close-wait
        conntrack-tcp-timeout-established conntrack-udp-timeout conntrack-udp-timeout-stream detect-local-mode
        feature-gates healthz-bind-address healthz-port hostname-override init-only
        iptables-localhost-nodeports iptables-masquerade-bit iptables-min-sync-period iptables-sync-period
        ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler ipvs-strict-arp ipvs-sync-period
        ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout kube-api-burst kube-api-content-type
        kube-api-qps kubeconfig log-flush-frequency log-json-info-buffer-size log-json-split-stream
        log-text-info-buffer-size log-text-split-stream logging-format machine-id-file masquerade-all master
        metrics-bind-address metrics-port nodeport-addresses oom-score-adj pod-bridge-interface
        pod-interface-name-prefix profiling proxy-mode show-hidden-metrics-for-version v vmodule
        write-config-to
    ";

    /// The fields of v1.36.
    const UPSTREAM_FIELDS: &str = "
        bindAddress bindAddressHardFail clientConnection clusterCIDR configSyncPeriod conntrack detectLocal
        detectLocalMode enableProfiling featureGates healthzBindAddress hostnameOverride iptables ipvs logging
        metricsBindAddress mode nftables nodePortAddresses oomScoreAdj portRange showHiddenMetricsForVersion
        windowsRunAsService winkernel
    ";

    /// Those below fields.
    const UPSTREAM_NESTED: &str = "
        clientConnection.acceptContentTypes clientConnection.burst clientConnection.contentType
        clientConnection.kubeconfig clientConnection.qps conntrack.maxPerCore conntrack.min conntrack.tcpBeLiberal
        conntrack.tcpCloseWaitTimeout conntrack.tcpEstablishedTimeout conntrack.udpStreamTimeout conntrack.udpTimeout
        detectLocal.bridgeInterface detectLocal.interfaceNamePrefix iptables.localhostNodePorts iptables.masqueradeAll
        iptables.masqueradeBit iptables.minSyncPeriod iptables.syncPeriod ipvs.excludeCIDRs ipvs.minSyncPeriod
        ipvs.scheduler ipvs.strictARP ipvs.syncPeriod ipvs.tcpFinTimeout ipvs.tcpTimeout ipvs.udpTimeout
        logging.flushFrequency logging.format logging.options.json logging.options.text logging.verbosity
        logging.vmodule nftables.masqueradeAll nftables.masqueradeBit nftables.minSyncPeriod nftables.syncPeriod
        winkernel.enableDSR winkernel.forwardHealthCheckVip winkernel.networkName winkernel.rootHnsEndpointName
        winkernel.sourceVip
    ";

    #[test]
    fn every_field_has_an_answer() {
        for field in UPSTREAM_FIELDS.split_whitespace() {
            let read = crate::args::parse_file(&format!("{field}: {{noSuchField: 1}}"));
            let error = read.map_err(|error| format!("{error:#}")).err().unwrap_or_default();
            assert!(!error.contains(&format!("unknown field `{field}`")), "{field} has no answer: {error}");
        }
        for path in UPSTREAM_NESTED.split_whitespace() {
            let read = crate::args::parse_file(&api::flags::with_field(path).to_string());
            let error = read.map(drop).map_err(|error| format!("{error:#}")).err().unwrap_or_default();
            assert!(!api::flags::is_unknown(&error, path), "{path} has no answer: {error}");
        }
        assert!(crate::args::parse_file("noSuchField: 1").is_err());
    }

    /// Of kubeadm, of a cluster made by hand, and of k3s.
    const UNDERSTOOD: &[&str] = &[
        "--config=/var/lib/kube-proxy/config.conf --hostname-override=node-1",
        "--config=/var/lib/kube-proxy/kube-proxy-config.yaml",
        "--cluster-cidr=10.42.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-close-wait=0s --conntrack-tcp-timeout-established=0s --healthz-bind-address=127.0.0.1 --hostname-override=n --kubeconfig=/k --proxy-mode=iptables --masquerade-all=true",
    ];

    const REFUSED: &[&str] =
        &["--init-only", "--profiling", "--bind-address=10.0.0.1", "--feature-gates=NFTablesProxyMode=false"];

    #[test]
    fn every_flag_has_an_answer() {
        let problems = api::flags::problems::<Args, Unused>(UPSTREAM, UNDERSTOOD, REFUSED);
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
