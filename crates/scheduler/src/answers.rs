//! What upstream's scheduler can be told and this one has no use for.

use api::flags::{CONTROL_PLANE, HIDDEN_METRICS, LOGGING, METRICS, REVIEWED_CALLERS, Row, SERVING, Table, refused};

/// Flags that are not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unused;

impl Table for Unused {
    const ROWS: &'static [&'static [Row]] = &[
        LOGGING,
        METRICS,
        HIDDEN_METRICS,
        SERVING,
        REVIEWED_CALLERS,
        CONTROL_PLANE,
        &[refused("write-config-to", "the configuration is not written")],
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;

    /// The flags of v1.36.
    const UPSTREAM: &str = "
        allow-metric-labels allow-metric-labels-manifest authentication-kubeconfig authentication-skip-lookup
        authentication-token-webhook-cache-ttl authentication-tolerate-lookup-failure
        authorization-always-allow-paths authorization-kubeconfig authorization-webhook-cache-authorized-ttl
        authorization-webhook-cache-unauthorized-ttl bind-address cert-dir client-ca-file config
        contention-profiling disable-http2-serving disabled-metrics emulated-version feature-gates
        http2-max-streams-per-connection kube-api-burst kube-api-content-type kube-api-qps kubeconfig
        leader-elect leader-elect-lease-duration leader-elect-renew-deadline leader-elect-resource-lock
        leader-elect-resource-name leader-elect-resource-namespace leader-elect-retry-period
        log-flush-frequency log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size
        log-text-split-stream logging-format master min-compatibility-version permit-address-sharing
        permit-port-sharing pod-max-in-unschedulable-pods-duration profiling requestheader-allowed-names
        requestheader-client-ca-file requestheader-extra-headers-prefix requestheader-group-headers
        requestheader-uid-headers requestheader-username-headers secure-port show-hidden-metrics-for-version
        tls-cert-file tls-cipher-suites tls-curve-preferences tls-min-version tls-private-key-file
        tls-sni-cert-key v vmodule write-config-to
    ";

    /// The fields of v1.36.
    const UPSTREAM_FIELDS: &str = "
        clientConnection delayCacheUntilActive enableContentionProfiling enableProfiling extenders leaderElection
        parallelism percentageOfNodesToScore podInitialBackoffSeconds podMaxBackoffSeconds profiles
    ";

    /// Those below fields.
    const UPSTREAM_NESTED: &str = "
        clientConnection.acceptContentTypes clientConnection.burst clientConnection.contentType
        clientConnection.kubeconfig clientConnection.qps extenders[].bindVerb extenders[].enableHTTPS
        extenders[].filterVerb extenders[].httpTimeout extenders[].ignorable
        extenders[].managedResources[].ignoredByScheduler extenders[].managedResources[].name
        extenders[].nodeCacheCapable extenders[].preemptVerb extenders[].prioritizeVerb
        extenders[].tlsConfig.caData extenders[].tlsConfig.caFile extenders[].tlsConfig.certData
        extenders[].tlsConfig.certFile extenders[].tlsConfig.insecure extenders[].tlsConfig.keyData
        extenders[].tlsConfig.keyFile extenders[].tlsConfig.serverName extenders[].urlPrefix extenders[].weight
        leaderElection.leaderElect leaderElection.leaseDuration leaderElection.renewDeadline
        leaderElection.resourceLock leaderElection.resourceName leaderElection.resourceNamespace
        leaderElection.retryPeriod profiles[].percentageOfNodesToScore profiles[].pluginConfig[].args
        profiles[].pluginConfig[].name profiles[].plugins.bind profiles[].plugins.filter.disabled[].name
        profiles[].plugins.filter.enabled[].weight profiles[].plugins.multiPoint profiles[].plugins.permit
        profiles[].plugins.placementGenerate profiles[].plugins.placementScore profiles[].plugins.postBind
        profiles[].plugins.postFilter profiles[].plugins.preBind profiles[].plugins.preEnqueue
        profiles[].plugins.preFilter profiles[].plugins.preScore profiles[].plugins.queueSort
        profiles[].plugins.reserve profiles[].plugins.score profiles[].schedulerName
    ";

    #[test]
    fn every_field_has_an_answer() {
        for field in UPSTREAM_FIELDS.split_whitespace() {
            let read = crate::config::Configuration::parse(&format!("{field}: {{noSuchField: 1}}"));
            let error = read.map_err(|error| error.to_string()).err().unwrap_or_default();
            assert!(!error.contains(&format!("unknown field `{field}`")), "{field} has no answer: {error}");
        }
        for path in UPSTREAM_NESTED.split_whitespace() {
            let read = crate::config::Configuration::parse(&api::flags::with_field(path).to_string());
            let error = read.map_err(|error| error.to_string()).err().unwrap_or_default();
            assert!(!api::flags::is_unknown(&error, path), "{path} has no answer: {error}");
        }
        assert!(crate::config::Configuration::parse("noSuchField: 1").is_err());
        let placed = "profiles: [{schedulerName: s, plugins: {placementScore: {enabled: [{name: x}]}}}]";
        let refused = crate::config::Configuration::parse(placed).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|error| error.contains("plugins.placementScore is not supported")));
        assert!(crate::config::Configuration::parse("enableContentionProfiling: true").is_err());
        for (text, burst) in [("{qps: 5}", 100), ("{qps: 5, burst: 7}", 7), ("{qps: 5, burst: 0}", 100)] {
            let read = crate::config::Configuration::parse(&format!("clientConnection: {text}")).unwrap();
            assert_eq!(read.client_connection.burst(), burst, "{text}");
        }
        assert!(crate::config::Configuration::parse("enableProfiling: false").is_ok_and(|read| !read.enable_profiling));
        assert!(
            crate::config::Configuration::parse("leaderElection: {leaderElect: true, resourceLock: leases}").is_ok()
        );
    }

    /// Of kubeadm, of a cluster made by hand, and of k3s.
    const UNDERSTOOD: &[&str] = &[
        "--authentication-kubeconfig=/s --authorization-kubeconfig=/s --bind-address=127.0.0.1 --kubeconfig=/s --leader-elect=true",
        "--config=/etc/kubernetes/config/kube-scheduler.yaml --v=2",
        "--authentication-kubeconfig=/s --authorization-kubeconfig=/s --cert-dir=/t --kubeconfig=/s --leader-elect=false --profiling=false --secure-port=10259",
    ];

    const REFUSED: &[&str] =
        &["--contention-profiling=true", "--write-config-to=/x", "--feature-gates=GangScheduling=true"];

    #[test]
    fn every_flag_has_an_answer() {
        let problems = api::flags::problems::<Args, Unused>(UPSTREAM, UNDERSTOOD, REFUSED);
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
