//! What upstream's controller manager can be told and this one has no use for.

use api::flags::{
    CONTROL_PLANE, HIDDEN_METRICS, LOGGING, METRICS, REVIEWED_CALLERS, Row, SERVING, Table, only, refused, same,
};

/// Flags that are not read.
#[derive(Clone, Copy, Debug)]
pub struct Unused;

impl Table for Unused {
    const ROWS: &'static [&'static [Row]] = &[
        LOGGING,
        METRICS,
        HIDDEN_METRICS,
        SERVING,
        REVIEWED_CALLERS,
        CONTROL_PLANE,
        &[
            only("allow-untagged-cloud", &["false"], "there is no cloud provider"),
            same("attach-detach-reconcile-sync-period", "what is attached is read from VolumeAttachments"),
            only("cidr-allocator-type", &["RangeAllocator"], "nodes get ranges from --cluster-cidr"),
            only("cloud-config", &[""], "there is no cloud provider"),
            only("cloud-provider", &[""], "there is no cloud provider"),
            refused(
                "cluster-signing-kube-apiserver-client-cert-file",
                "one authority signs for all: --cluster-signing-cert-file",
            ),
            refused(
                "cluster-signing-kube-apiserver-client-key-file",
                "one authority signs for all: --cluster-signing-cert-file",
            ),
            refused(
                "cluster-signing-kubelet-client-cert-file",
                "one authority signs for all: --cluster-signing-cert-file",
            ),
            refused(
                "cluster-signing-kubelet-client-key-file",
                "one authority signs for all: --cluster-signing-cert-file",
            ),
            refused(
                "cluster-signing-kubelet-serving-cert-file",
                "one authority signs for all: --cluster-signing-cert-file",
            ),
            refused(
                "cluster-signing-kubelet-serving-key-file",
                "one authority signs for all: --cluster-signing-cert-file",
            ),
            refused(
                "cluster-signing-legacy-unknown-cert-file",
                "one authority signs for all: --cluster-signing-cert-file",
            ),
            refused(
                "cluster-signing-legacy-unknown-key-file",
                "one authority signs for all: --cluster-signing-cert-file",
            ),
            same("concurrent-cron-job-syncs", "controllers have as many workers as they need"),
            same("concurrent-daemonset-syncs", "controllers have as many workers as they need"),
            same("concurrent-deployment-syncs", "controllers have as many workers as they need"),
            same("concurrent-device-taint-eviction-syncs", "controllers have as many workers as they need"),
            same("concurrent-endpoint-syncs", "controllers have as many workers as they need"),
            same("concurrent-ephemeralvolume-syncs", "controllers have as many workers as they need"),
            same("concurrent-gc-syncs", "controllers have as many workers as they need"),
            same("concurrent-horizontal-pod-autoscaler-syncs", "controllers have as many workers as they need"),
            same("concurrent-job-syncs", "controllers have as many workers as they need"),
            same("concurrent-namespace-syncs", "controllers have as many workers as they need"),
            same("concurrent-rc-syncs", "controllers have as many workers as they need"),
            same("concurrent-replicaset-syncs", "controllers have as many workers as they need"),
            same("concurrent-resource-quota-syncs", "controllers have as many workers as they need"),
            same("concurrent-resourceclaim-syncs", "controllers have as many workers as they need"),
            same("concurrent-service-endpoint-syncs", "controllers have as many workers as they need"),
            same("concurrent-service-syncs", "controllers have as many workers as they need"),
            same("concurrent-serviceaccount-token-syncs", "controllers have as many workers as they need"),
            same("concurrent-statefulset-syncs", "controllers have as many workers as they need"),
            same("concurrent-ttl-after-finished-syncs", "controllers have as many workers as they need"),
            same(
                "concurrent-validating-admission-policy-status-syncs",
                "controllers have as many workers as they need",
            ),
            only("configure-cloud-routes", &["false"], "there is no cloud provider"),
            same("controller-shutdown-timeout", "controllers stop at once"),
            same("controller-start-interval", "controllers start side by side"),
            same("disable-attach-detach-reconcile-sync", "what is attached is read from VolumeAttachments"),
            only("enable-dynamic-provisioning", &["true"], "claims are provisioned by their class"),
            only("enable-garbage-collector", &["true"], "use --controllers=-garbage-collector-controller"),
            only("enable-hostpath-provisioner", &["false"], "there is the local-path class"),
            only("enable-leader-migration", &["false"], "there is nothing to migrate"),
            only("endpoint-updates-batch-period", &["0s", "0"], "changes are gathered by the queue"),
            only("endpointslice-updates-batch-period", &["0s", "0"], "changes are gathered by the queue"),
            only("external-cloud-volume-plugin", &[""], "there is no cloud provider"),
            same("flex-volume-plugin-dir", "no volume plug-ins are started"),
            only("large-cluster-size-threshold", &["50"], "the rates of eviction are fixed"),
            only("leader-elect-resource-lock", &["leases"], "leaders hold leases"),
            refused("leader-migration-config", "there is nothing to migrate"),
            only("max-endpoints-per-slice", &["100"], "slices have at most 100 endpoints"),
            same("min-resync-period", "controllers act when something changes or is due"),
            same("mirroring-concurrent-service-endpoint-syncs", "controllers have as many workers as they need"),
            only("mirroring-endpointslice-updates-batch-period", &["0s", "0"], "changes are gathered by the queue"),
            only("mirroring-max-endpoints-per-subset", &["1000"], "subsets have at most 1000 endpoints"),
            same("namespace-sync-period", "controllers act when something changes or is due"),
            only("node-eviction-rate", &["0.1"], "the rates of eviction are fixed"),
            same("node-monitor-period", "controllers act when something changes or is due"),
            only(
                "node-startup-grace-period",
                &["1m0s", "1m", "60s"],
                "a node that was never ready has no longer than others: --node-monitor-grace-period",
            ),
            same("node-sync-period", "it has no effect upstream either"),
            refused("pv-recycler-increment-timeout-nfs", "volumes are not recycled"),
            refused("pv-recycler-minimum-timeout-hostpath", "volumes are not recycled"),
            refused("pv-recycler-minimum-timeout-nfs", "volumes are not recycled"),
            refused("pv-recycler-pod-template-filepath-hostpath", "volumes are not recycled"),
            refused("pv-recycler-pod-template-filepath-nfs", "volumes are not recycled"),
            refused("pv-recycler-timeout-increment-hostpath", "volumes are not recycled"),
            same("pvclaimbinder-sync-period", "controllers act when something changes or is due"),
            same("resource-quota-sync-period", "controllers act when something changes or is due"),
            same("route-reconciliation-period", "there is no cloud provider"),
            only("secondary-node-eviction-rate", &["0.01"], "the rates of eviction are fixed"),
            only("unhealthy-zone-threshold", &["0.55"], "the rates of eviction are fixed"),
        ],
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;

    /// The flags of v1.36.
    const UPSTREAM: &str = "
        allocate-node-cidrs allow-metric-labels allow-metric-labels-manifest allow-untagged-cloud
        attach-detach-reconcile-sync-period authentication-kubeconfig authentication-skip-lookup
        authentication-token-webhook-cache-ttl authentication-tolerate-lookup-failure
        authorization-always-allow-paths authorization-kubeconfig authorization-webhook-cache-authorized-ttl
        authorization-webhook-cache-unauthorized-ttl bind-address cert-dir cidr-allocator-type client-ca-file
        cloud-config cloud-provider cluster-cidr cluster-name cluster-signing-cert-file
        cluster-signing-duration cluster-signing-key-file cluster-signing-kube-apiserver-client-cert-file
        cluster-signing-kube-apiserver-client-key-file cluster-signing-kubelet-client-cert-file
        cluster-signing-kubelet-client-key-file cluster-signing-kubelet-serving-cert-file
        cluster-signing-kubelet-serving-key-file cluster-signing-legacy-unknown-cert-file
        cluster-signing-legacy-unknown-key-file concurrent-cron-job-syncs concurrent-daemonset-syncs
        concurrent-deployment-syncs concurrent-device-taint-eviction-syncs concurrent-endpoint-syncs
        concurrent-ephemeralvolume-syncs concurrent-gc-syncs concurrent-horizontal-pod-autoscaler-syncs
        concurrent-job-syncs concurrent-namespace-syncs concurrent-rc-syncs concurrent-replicaset-syncs
        concurrent-resource-quota-syncs concurrent-resourceclaim-syncs concurrent-service-endpoint-syncs
        concurrent-service-syncs concurrent-serviceaccount-token-syncs concurrent-statefulset-syncs
        concurrent-ttl-after-finished-syncs concurrent-validating-admission-policy-status-syncs
        configure-cloud-routes contention-profiling controller-shutdown-timeout controller-start-interval
        controllers disable-attach-detach-reconcile-sync disable-force-detach-on-timeout disable-http2-serving
        disabled-metrics emulated-version enable-dynamic-provisioning enable-garbage-collector
        enable-hostpath-provisioner enable-leader-migration endpoint-updates-batch-period
        endpointslice-updates-batch-period external-cloud-volume-plugin feature-gates flex-volume-plugin-dir
        horizontal-pod-autoscaler-cpu-initialization-period horizontal-pod-autoscaler-downscale-stabilization
        horizontal-pod-autoscaler-initial-readiness-delay horizontal-pod-autoscaler-sync-period
        horizontal-pod-autoscaler-tolerance http2-max-streams-per-connection kube-api-burst
        kube-api-content-type kube-api-qps kubeconfig large-cluster-size-threshold leader-elect
        leader-elect-lease-duration leader-elect-renew-deadline leader-elect-resource-lock
        leader-elect-resource-name leader-elect-resource-namespace leader-elect-retry-period
        leader-migration-config legacy-service-account-token-clean-up-period log-flush-frequency
        log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream
        logging-format master max-endpoints-per-slice min-compatibility-version min-resync-period
        mirroring-concurrent-service-endpoint-syncs mirroring-endpointslice-updates-batch-period
        mirroring-max-endpoints-per-subset namespace-sync-period node-cidr-mask-size node-cidr-mask-size-ipv4
        node-cidr-mask-size-ipv6 node-eviction-rate node-monitor-grace-period node-monitor-period
        node-startup-grace-period node-sync-period permit-address-sharing permit-port-sharing profiling
        pv-recycler-increment-timeout-nfs pv-recycler-minimum-timeout-hostpath pv-recycler-minimum-timeout-nfs
        pv-recycler-pod-template-filepath-hostpath pv-recycler-pod-template-filepath-nfs
        pv-recycler-timeout-increment-hostpath pvclaimbinder-sync-period requestheader-allowed-names
        requestheader-client-ca-file requestheader-extra-headers-prefix requestheader-group-headers
        requestheader-uid-headers requestheader-username-headers resource-quota-sync-period root-ca-file
        route-reconciliation-period secondary-node-eviction-rate secure-port service-account-private-key-file
        service-cluster-ip-range show-hidden-metrics-for-version terminated-pod-gc-threshold tls-cert-file
        tls-cipher-suites tls-curve-preferences tls-min-version tls-private-key-file tls-sni-cert-key
        unhealthy-zone-threshold use-service-account-credentials v vmodule
    ";

    /// Of kubeadm, of a cluster made by hand, and of k3s.
    const UNDERSTOOD: &[&str] = &[
        "--allocate-node-cidrs=true --authentication-kubeconfig=/c --authorization-kubeconfig=/c --bind-address=127.0.0.1 --client-ca-file=/ca.crt --cluster-cidr=10.244.0.0/16 --cluster-name=kubernetes --cluster-signing-cert-file=/ca.crt --cluster-signing-key-file=/ca.key --controllers=*,bootstrapsigner,tokencleaner --kubeconfig=/c --leader-elect=true --requestheader-client-ca-file=/f.crt --root-ca-file=/ca.crt --service-account-private-key-file=/sa.key --service-cluster-ip-range=10.96.0.0/12 --use-service-account-credentials=true",
        "--bind-address=0.0.0.0 --cluster-cidr=10.200.0.0/16 --cluster-name=kubernetes --cluster-signing-cert-file=/ca.crt --cluster-signing-key-file=/ca.key --kubeconfig=/c --root-ca-file=/ca.crt --service-account-private-key-file=/sa.key --service-cluster-ip-range=10.32.0.0/24 --use-service-account-credentials=true --v=2",
        "--allocate-node-cidrs=true --cert-dir=/t --cluster-cidr=10.42.0.0/16 --configure-cloud-routes=false --controllers=*,tokencleaner,-service,-route,-cloud-node-lifecycle --kubeconfig=/c --leader-elect=false --profiling=false --secure-port=10257 --terminated-pod-gc-threshold=1000 --use-service-account-credentials=true",
    ];

    const REFUSED: &[&str] = &[
        "--cloud-provider=aws",
        "--contention-profiling",
        "--node-eviction-rate=1",
        "--node-startup-grace-period=10m",
        "--feature-gates=Unheard=true",
    ];

    #[test]
    fn every_flag_has_an_answer() {
        let problems = api::flags::problems::<Args, Unused>(UPSTREAM, UNDERSTOOD, REFUSED);
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
