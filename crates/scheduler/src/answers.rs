//! What upstream's scheduler can be told and this one has no use for.

use api::flags::{HIDDEN_METRICS, LOGGING, METRICS, Row, SERVING, Table, only, refused, same};

/// Flags that are not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unused;

impl Table for Unused {
    const ROWS: &'static [&'static [Row]] = &[
        LOGGING,
        METRICS,
        HIDDEN_METRICS,
        SERVING,
        &[
            only(
                "authentication-skip-lookup",
                &["false"],
                "callers are reviewed by the API server, with fixed times to live",
            ),
            refused(
                "authentication-token-webhook-cache-ttl",
                "callers are reviewed by the API server, with fixed times to live",
            ),
            same("authentication-tolerate-lookup-failure", "nothing is looked up"),
            refused("authorization-always-allow-paths", "/healthz, /livez and /readyz are open, all else is reviewed"),
            refused(
                "authorization-webhook-cache-authorized-ttl",
                "callers are reviewed by the API server, with fixed times to live",
            ),
            refused(
                "authorization-webhook-cache-unauthorized-ttl",
                "callers are reviewed by the API server, with fixed times to live",
            ),
            same("cert-dir", "a certificate that is made here is not written"),
            same("client-ca-file", "callers show tokens: a certificate or a header gives nobody access"),
            only("contention-profiling", &["false"], "waits for locks are not recorded"),
            only("disable-http2-serving", &["false"], "HTTP/2 is always served"),
            only("emulated-version", &["1.36", "kube=1.36"], "this is v1.36"),
            refused("http2-max-streams-per-connection", "the limit of streams is fixed"),
            same("kube-api-content-type", "requests say the same in any encoding"),
            only("min-compatibility-version", &["1.36", "kube=1.36"], "this is v1.36"),
            only("permit-address-sharing", &["false"], "the address belongs to one process"),
            only("permit-port-sharing", &["false"], "the port belongs to one process"),
            same("requestheader-allowed-names", "callers show tokens: a certificate or a header gives nobody access"),
            same("requestheader-client-ca-file", "callers show tokens: a certificate or a header gives nobody access"),
            same(
                "requestheader-extra-headers-prefix",
                "callers show tokens: a certificate or a header gives nobody access",
            ),
            same("requestheader-group-headers", "callers show tokens: a certificate or a header gives nobody access"),
            same("requestheader-uid-headers", "callers show tokens: a certificate or a header gives nobody access"),
            same(
                "requestheader-username-headers",
                "callers show tokens: a certificate or a header gives nobody access",
            ),
            refused("write-config-to", "the configuration is not written"),
        ],
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
        leader-elect-resource-name leader-elect-resource-namespace leader-elect-retry-period log-flush-frequency
        log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream
        logging-format master min-compatibility-version permit-address-sharing permit-port-sharing
        pod-max-in-unschedulable-pods-duration profiling requestheader-allowed-names
        requestheader-client-ca-file requestheader-extra-headers-prefix requestheader-group-headers
        requestheader-uid-headers requestheader-username-headers secure-port show-hidden-metrics-for-version
        tls-cert-file tls-cipher-suites tls-curve-preferences tls-min-version tls-private-key-file v vmodule
        write-config-to
    ";

    /// The fields of v1.36.
    const UPSTREAM_FIELDS: &str = "
        clientConnection delayCacheUntilActive enableContentionProfiling enableProfiling extenders leaderElection
        parallelism percentageOfNodesToScore podInitialBackoffSeconds podMaxBackoffSeconds profiles
    ";

    #[test]
    fn every_field_has_an_answer() {
        for field in UPSTREAM_FIELDS.split_whitespace() {
            let read = crate::config::Configuration::parse(&format!("{field}: {{noSuchField: 1}}"));
            let error = read.map_err(|error| error.to_string()).err().unwrap_or_default();
            assert!(!error.contains(&format!("unknown field `{field}`")), "{field} has no answer: {error}");
        }
        assert!(crate::config::Configuration::parse("noSuchField: 1").is_err());
        assert!(crate::config::Configuration::parse("enableContentionProfiling: true").is_err());
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
