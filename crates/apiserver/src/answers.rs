//! What upstream's API server can be told and this one has no use for.

use api::flags::{LOGGING, METRICS, Row, SERVING, Table, only, refused, same};

/// Flags that are not read.
#[derive(Clone, Copy, Debug)]
pub struct Unused;

impl Table for Unused {
    const ROWS: &'static [&'static [Row]] = &[
        LOGGING,
        METRICS,
        SERVING,
        &[
            refused("admission-control", "use --enable-admission-plugins and --disable-admission-plugins"),
            only("allow-privileged", &["true"], "privileged containers are for admission (Pod Security) to refuse"),
            same("apiserver-count", "it has no effect upstream either"),
            only("audit-log-compress", &["false"], "old log files are not compressed"),
            only("audit-log-format", &["json"], "events are written as JSON"),
            only("audit-log-version", &["audit.k8s.io/v1"], "events are audit.k8s.io/v1"),
            refused("audit-webhook-batch-initial-backoff", "batches are retried with the usual backoff"),
            refused("audit-webhook-initial-backoff", "batches are retried with the usual backoff"),
            only("audit-webhook-version", &["audit.k8s.io/v1"], "events are audit.k8s.io/v1"),
            only("contention-profiling", &["false"], "waits for locks are not recorded"),
            refused("coordinated-leadership-lease-duration", "leaders elect themselves"),
            refused("coordinated-leadership-renew-deadline", "leaders elect themselves"),
            refused("coordinated-leadership-retry-period", "leaders elect themselves"),
            refused("debug-socket-path", "profiles are served on the port, to those who may read them"),
            same("default-watch-cache-size", "caches take as much memory as what they hold"),
            same("delete-collection-workers", "collections are deleted as fast as the store writes"),
            only("disable-http2-serving", &["false"], "HTTP/2 is always served"),
            refused("egress-selector-config-file", "connections are made directly"),
            only("emulated-version", &["1.36", "kube=1.36"], "this is v1.36"),
            only("emulation-forward-compatible", &["false"], "this is v1.36"),
            only("enable-garbage-collector", &["true"], "the garbage collector relies on it"),
            only("enable-logs-handler", &["false"], "the host's logs are not served"),
            only("endpoint-reconciler-type", &["lease"], "servers keep a lease each"),
            same("etcd-count-metric-poll-period", "objects are counted when somebody reads the metrics"),
            same("etcd-db-metric-poll-interval", "objects are counted when somebody reads the metrics"),
            refused("etcd-healthcheck-timeout", "the timeouts of the store are fixed"),
            refused("etcd-readycheck-timeout", "the timeouts of the store are fixed"),
            refused("etcd-servers-overrides", "all objects are in one store"),
            only("goaway-chance", &["0"], "connections are never closed by chance"),
            refused("http2-max-streams-per-connection", "the limit of streams is fixed"),
            same("kubelet-port", "the node says on which port its kubelet is"),
            same("kubelet-read-only-port", "the node says on which port its kubelet is"),
            refused("kubelet-timeout", "requests to kubelets have the deadline of their request"),
            only("kubernetes-service-node-port", &["0"], "the kubernetes service has a cluster IP"),
            only("lease-reuse-duration-seconds", &["60"], "a lease is given to events for a minute"),
            only("livez-grace-period", &["0s", "0"], "the server is live once it serves"),
            only("max-connection-bytes-per-sec", &["0"], "connections are not throttled"),
            only("min-compatibility-version", &["1.36", "kube=1.36"], "this is v1.36"),
            refused("min-request-timeout", "a watch lasts as long as it asks for"),
            refused("peer-advertise-ip", "servers do not pass requests on to each other"),
            refused("peer-advertise-port", "servers do not pass requests on to each other"),
            refused("peer-ca-file", "servers do not pass requests on to each other"),
            only("permit-address-sharing", &["false"], "the address belongs to one process"),
            only("permit-port-sharing", &["false"], "the port belongs to one process"),
            only("runtime-config-emulation-forward-compatible", &["false"], "this is v1.36"),
            only("service-account-lookup", &["true"], "tokens of deleted accounts are always refused"),
            only("shutdown-delay-duration", &["0s", "0"], "the server stops at once"),
            only("shutdown-send-retry-after", &["false"], "the server stops at once"),
            only("shutdown-watch-termination-grace-period", &["0s", "0"], "watches end with the server"),
            only("storage-backend", &["etcd3", ""], "the store is etcd v3 or embedded"),
            same("storage-initialization-timeout", "the server listens once its caches are filled"),
            only("storage-media-type", &["application/json", ""], "objects are stored as JSON"),
            refused("strict-transport-security-directives", "no such header is sent"),
            refused("tls-sni-cert-key", "there is one certificate"),
            only("watch-cache", &["true"], "reads come from the watch cache"),
            same("watch-cache-sizes", "caches take as much memory as what they hold"),
        ],
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;

    /// The flags of v1.36.
    const UPSTREAM: &str = "
        admission-control admission-control-config-file advertise-address
        aggregator-reject-forwarding-redirect allow-metric-labels allow-metric-labels-manifest
        allow-privileged anonymous-auth api-audiences apiserver-count audit-log-batch-buffer-size
        audit-log-batch-max-size audit-log-batch-max-wait audit-log-batch-throttle-burst
        audit-log-batch-throttle-enable audit-log-batch-throttle-qps audit-log-compress audit-log-format
        audit-log-maxage audit-log-maxbackup audit-log-maxsize audit-log-mode audit-log-path
        audit-log-truncate-enabled audit-log-truncate-max-batch-size audit-log-truncate-max-event-size
        audit-log-version audit-policy-file audit-webhook-batch-buffer-size
        audit-webhook-batch-initial-backoff audit-webhook-batch-max-size audit-webhook-batch-max-wait
        audit-webhook-batch-throttle-burst audit-webhook-batch-throttle-enable
        audit-webhook-batch-throttle-qps audit-webhook-config-file audit-webhook-initial-backoff
        audit-webhook-mode audit-webhook-truncate-enabled audit-webhook-truncate-max-batch-size
        audit-webhook-truncate-max-event-size audit-webhook-version authentication-config
        authentication-token-webhook-cache-ttl authentication-token-webhook-config-file
        authentication-token-webhook-version authorization-config authorization-mode authorization-policy-file
        authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl
        authorization-webhook-config-file authorization-webhook-version bind-address cert-dir client-ca-file
        contention-profiling coordinated-leadership-lease-duration coordinated-leadership-renew-deadline
        coordinated-leadership-retry-period cors-allowed-origins debug-socket-path
        default-not-ready-toleration-seconds default-unreachable-toleration-seconds default-watch-cache-size
        delete-collection-workers disable-admission-plugins disable-http2-serving disabled-metrics
        egress-selector-config-file emulated-version emulation-forward-compatible enable-admission-plugins
        enable-aggregator-routing enable-bootstrap-token-auth enable-garbage-collector enable-logs-handler
        enable-priority-and-fairness encryption-provider-config encryption-provider-config-automatic-reload
        endpoint-reconciler-type etcd-cafile etcd-certfile etcd-compaction-interval
        etcd-count-metric-poll-period etcd-db-metric-poll-interval etcd-healthcheck-timeout etcd-keyfile
        etcd-prefix etcd-readycheck-timeout etcd-servers etcd-servers-overrides event-ttl external-hostname
        feature-gates goaway-chance http2-max-streams-per-connection kubelet-certificate-authority
        kubelet-client-certificate kubelet-client-key kubelet-port kubelet-preferred-address-types
        kubelet-read-only-port kubelet-timeout kubernetes-service-node-port lease-reuse-duration-seconds
        livez-grace-period log-flush-frequency log-json-info-buffer-size log-json-split-stream
        log-text-info-buffer-size log-text-split-stream logging-format max-connection-bytes-per-sec
        max-mutating-requests-inflight max-requests-inflight min-compatibility-version min-request-timeout
        oidc-ca-file oidc-client-id oidc-groups-claim oidc-groups-prefix oidc-issuer-url oidc-required-claim
        oidc-signing-algs oidc-username-claim oidc-username-prefix peer-advertise-ip peer-advertise-port
        peer-ca-file permit-address-sharing permit-port-sharing profiling proxy-client-cert-file
        proxy-client-key-file request-timeout requestheader-allowed-names requestheader-client-ca-file
        requestheader-extra-headers-prefix requestheader-group-headers requestheader-uid-headers
        requestheader-username-headers runtime-config runtime-config-emulation-forward-compatible secure-port
        service-account-extend-token-expiration service-account-issuer service-account-jwks-uri
        service-account-key-file service-account-lookup service-account-max-token-expiration
        service-account-signing-endpoint service-account-signing-key-file service-cluster-ip-range
        service-node-port-range show-hidden-metrics-for-version shutdown-delay-duration
        shutdown-send-retry-after shutdown-watch-termination-grace-period storage-backend
        storage-initialization-timeout storage-media-type strict-transport-security-directives tls-cert-file
        tls-cipher-suites tls-curve-preferences tls-min-version tls-private-key-file tls-sni-cert-key
        token-auth-file tracing-config-file v vmodule watch-cache watch-cache-sizes
    ";

    /// Of kubeadm, of a cluster made by hand, and of k3s.
    const UNDERSTOOD: &[&str] = &[
        "--advertise-address=10.0.0.1 --allow-privileged=true --authorization-mode=Node,RBAC --client-ca-file=/ca.crt --enable-admission-plugins=NodeRestriction --enable-bootstrap-token-auth=true --etcd-cafile=/e/ca.crt --etcd-certfile=/e.crt --etcd-keyfile=/e.key --etcd-servers=https://127.0.0.1:2379 --kubelet-client-certificate=/k.crt --kubelet-client-key=/k.key --kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname --proxy-client-cert-file=/p.crt --proxy-client-key-file=/p.key --requestheader-allowed-names=front-proxy-client --requestheader-client-ca-file=/f.crt --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group --requestheader-username-headers=X-Remote-User --secure-port=6443 --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-account-key-file=/sa.pub --service-account-signing-key-file=/sa.key --service-cluster-ip-range=10.96.0.0/12 --tls-cert-file=/a.crt --tls-private-key-file=/a.key",
        "--allow-privileged=true --audit-log-maxage=30 --audit-log-maxbackup=3 --audit-log-maxsize=100 --audit-log-path=/var/log/audit.log --authorization-mode=Node,RBAC --bind-address=0.0.0.0 --client-ca-file=/ca.crt --enable-admission-plugins=NamespaceLifecycle,NodeRestriction,LimitRanger,ServiceAccount,DefaultStorageClass,ResourceQuota --etcd-servers=http://127.0.0.1:2379 --event-ttl=1h --kubelet-certificate-authority=/ca.crt --kubelet-client-certificate=/k.crt --kubelet-client-key=/k.key --runtime-config=api/all=true --service-account-key-file=/sa.crt --service-account-signing-key-file=/sa.key --service-account-issuer=https://server.kubernetes.local:6443 --service-node-port-range=30000-32767 --tls-cert-file=/a.crt --tls-private-key-file=/a.key --v=2",
        "--allow-privileged=true --anonymous-auth=false --api-audiences=https://kubernetes.default.svc.cluster.local,k3s --authorization-mode=Node,RBAC --bind-address=127.0.0.1 --cert-dir=/var/lib/rancher/k3s/server/tls/temporary-certs --client-ca-file=/ca.crt --enable-admission-plugins=NodeRestriction --enable-aggregator-routing=true --enable-bootstrap-token-auth=true --profiling=false --secure-port=6444 --service-account-lookup=true --storage-backend=etcd3 --etcd-prefix=/other --feature-gates=AllAlpha=false",
    ];

    const REFUSED: &[&str] = &[
        "--egress-selector-config-file=/x",
        "--allow-privileged=false",
        "--contention-profiling",
        "--feature-gates=UserNamespacesSupport=true",
        "--cloud-provider=",
        "--no-such-flag=1",
    ];

    #[test]
    fn every_flag_has_an_answer() {
        let problems = api::flags::problems::<Args, Unused>(UPSTREAM, UNDERSTOOD, REFUSED);
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
