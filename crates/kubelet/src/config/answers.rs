//! What upstream's kubelet can be told and this one has no use for, and the flags that stand for fields of the file.

use api::flags::{LOGGING, Row, Table, only, refused, same};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

const NO_CACHE: &str = "what the API server answered is kept for upstream's defaults";
const NO_NUMA: &str = "memory and devices are not aligned with processors";
const NO_CONTENTION: &str = "waits for locks are not recorded";

/// Fields of `KubeletConfiguration` that are not read.
pub(super) const FIELDS: &[Row] = &[
    only("authentication.webhook.cacheTTL", &["2m", "2m0s"], NO_CACHE),
    only("authorization.webhook.cacheAuthorizedTTL", &["5m", "5m0s"], NO_CACHE),
    only("authorization.webhook.cacheUnauthorizedTTL", &["30s"], NO_CACHE),
    only("configMapAndSecretChangeDetectionStrategy", &["Watch"], "objects in use are watched"),
    only("containerLogMaxWorkers", &["1"], "logs are rotated one after the other"),
    same("contentType", "requests say the same in any encoding"),
    only("cpuCFSQuota", &["true"], "limits of processor time are always enforced"),
    only("cpuCFSQuotaPeriod", &["100ms"], "the period is 100ms"),
    refused("cpuManagerPolicyOptions", "the static policy has no options"),
    only("enableContentionProfiling", &["false"], NO_CONTENTION),
    same("enableControllerAttachDetach", "a controller attaches volumes, never the kubelet"),
    only("enableDebugFlagsHandler", &["false", "true"], "there is no /debug/flags"),
    only("enableServer", &["true"], "the server always runs"),
    only("enableSystemLogQuery", &["false"], "logs are served as files, not searched"),
    same("fileCheckFrequency", "changes of files are noticed at once"),
    only(
        "hairpinMode",
        &["promiscuous-bridge", "hairpin-veth", "none"],
        "the network plug-in decides, as with every CRI runtime",
    ),
    only("imagePullCredentialsVerificationPolicy", &["NeverVerifyPreloadedImages"], "that policy is always on"),
    refused("imageServiceEndpoint", "images are the runtime's: containerRuntimeEndpoint"),
    same("iptablesDropBit", "it has no effect upstream either"),
    same("iptablesMasqueradeBit", "it has no effect upstream either"),
    only("kernelMemcgNotification", &["false"], "memory is looked at in intervals"),
    refused("kubeletCgroups", "the kubelet stays in the cgroup it was started in"),
    refused("kubeReservedCgroup", "processes of the system are left where they are"),
    only("localStorageCapacityIsolation", &["true"], "limits of local storage are always enforced"),
    only("logging.format", &["text"], "logs are text"),
    same("logging", "COX_LOG chooses what is logged, and every line is written at once"),
    only("makeIPTablesUtilChains", &["false", "true"], "the kubelet makes no chains"),
    only("memoryManagerPolicy", &["None", "none"], NO_NUMA),
    only("memoryReservationPolicy", &["None"], "memory is not reserved by cgroups"),
    only("memorySwap", &["NoSwap"], "containers get no swap"),
    same("memoryThrottlingFactor", "it belongs to the feature gate MemoryQoS, which is off"),
    refused("preloadedImagesVerificationAllowlist", "the policy is NeverVerifyPreloadedImages"),
    refused("qosReserved", "nothing is reserved for the Guaranteed class"),
    only("readOnlyPort", &["0"], "there is no port without authentication"),
    refused("reservedMemory", NO_NUMA),
    only("runOnce", &["false"], "the kubelet goes on"),
    only("runtimeRequestTimeout", &["2m", "2m0s", "120s"], "requests to the runtime have two minutes"),
    same("showHiddenMetricsForVersion", "no metric is hidden"),
    only("singleProcessOOMKill", &["true"], "the kernel ends single processes"),
    same("streamingConnectionIdleTimeout", "it has no effect upstream either"),
    same("syncFrequency", "pods are synced when something changes"),
    refused("systemCgroups", "processes of the system are left where they are"),
    refused("systemReservedCgroup", "processes of the system are left where they are"),
    refused("tlsCipherSuites", "the cipher suites are those of rustls: AEAD with forward secrecy"),
    refused("tlsCurvePreferences", "the key exchanges are those of rustls"),
    only("tlsMinVersion", &["VersionTLS12"], "TLS 1.2 and 1.3 are served"),
    only("topologyManagerPolicy", &["none"], NO_NUMA),
    refused("topologyManagerPolicyOptions", NO_NUMA),
    only("topologyManagerScope", &["container"], NO_NUMA),
    refused("userNamespaces", "pods in user namespaces are refused"),
    same("volumePluginDir", "no volume plug-ins are started: a pod with a flexVolume waits"),
    same("volumeStatsAggPeriod", "volumes of CSI drivers are measured every minute, others when somebody asks"),
];

/// Flags that are not fields of the file and not read.
#[derive(Clone, Copy, Debug)]
pub struct Unused;

const ONE_ENDED: &str = "one ended container is kept for each name";
const NO_CADVISOR: &str = "there is no cAdvisor: the kubelet measures by itself";

impl Table for Unused {
    const ROWS: &'static [&'static [Row]] = &[
        LOGGING,
        &[
            same("application-metrics-count-limit", NO_CADVISOR),
            same("boot-id-file", NO_CADVISOR),
            only("cloud-provider", &[""], "there is no cloud provider, and nodes need no initialization by one"),
            only("container-runtime", &["remote"], "the runtime is always reached over CRI"),
            same("container-hints", NO_CADVISOR),
            same("containerd", NO_CADVISOR),
            same("containerd-namespace", NO_CADVISOR),
            same("enable-load-reader", NO_CADVISOR),
            same("event-storage-age-limit", NO_CADVISOR),
            same("event-storage-event-limit", NO_CADVISOR),
            only("exit-on-lock-contention", &["false"], "there is no lock file"),
            only(
                "experimental-allocatable-ignore-eviction",
                &["false"],
                "eviction thresholds are kept from allocatable",
            ),
            only("experimental-mounter-path", &[""], "volumes are mounted by the kubelet itself"),
            same("global-housekeeping-interval", NO_CADVISOR),
            same("housekeeping-interval", NO_CADVISOR),
            refused("image-credential-provider-bin-dir", "credential providers are not started"),
            refused("image-credential-provider-config", "credential providers are not started"),
            refused("lock-file", "there is no lock file"),
            same("log-cadvisor-usage", NO_CADVISOR),
            same("machine-id-file", NO_CADVISOR),
            only("maximum-dead-containers", &["-1"], ONE_ENDED),
            only("maximum-dead-containers-per-container", &["1"], ONE_ENDED),
            only("minimum-container-ttl-duration", &["0", "0s"], ONE_ENDED),
            same("runtime-cgroups", "the runtime looks after its own cgroup"),
            same("pod-infra-container-image", "the runtime has its own, as with every CRI runtime"),
            same("storage-driver-buffer-duration", NO_CADVISOR),
            same("storage-driver-db", NO_CADVISOR),
            same("storage-driver-host", NO_CADVISOR),
            same("storage-driver-password", NO_CADVISOR),
            same("storage-driver-secure", NO_CADVISOR),
            same("storage-driver-table", NO_CADVISOR),
            same("storage-driver-user", NO_CADVISOR),
        ],
    ];
}

/// What a flag's text becomes in the file.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Bool,
    /// Separated by commas.
    List,
    /// `a=b,c=d`.
    Map,
    /// `a<b,c<d`: thresholds.
    Less,
}

/// Flags that are nothing but a field of the file, which they win over.
#[rustfmt::skip]
const FIELD_FLAGS: &[(&str, &str, Kind)] = &[
    ("authentication-token-webhook", "authentication.webhook.enabled", Kind::Bool),
    ("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", Kind::Text),
    ("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", Kind::Text),
    ("authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL", Kind::Text),
    ("container-log-max-files", "containerLogMaxFiles", Kind::Number),
    ("container-log-max-size", "containerLogMaxSize", Kind::Text),
    ("contention-profiling", "enableContentionProfiling", Kind::Bool),
    ("cpu-cfs-quota", "cpuCFSQuota", Kind::Bool),
    ("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Kind::Text),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions", Kind::Map),
    ("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", Kind::Text),
    ("enable-controller-attach-detach", "enableControllerAttachDetach", Kind::Bool),
    ("enable-debugging-handlers", "enableDebuggingHandlers", Kind::Bool),
    ("enable-server", "enableServer", Kind::Bool),
    ("enforce-node-allocatable", "enforceNodeAllocatable", Kind::List),
    ("event-burst", "eventBurst", Kind::Number),
    ("event-qps", "eventRecordQPS", Kind::Number),
    ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Kind::Number),
    ("eviction-minimum-reclaim", "evictionMinimumReclaim", Kind::Map),
    ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Kind::Text),
    ("eviction-soft", "evictionSoft", Kind::Less),
    ("eviction-soft-grace-period", "evictionSoftGracePeriod", Kind::Map),
    ("fail-cgroupv1", "failCgroupV1", Kind::Bool),
    ("fail-swap-on", "failSwapOn", Kind::Bool),
    ("file-check-frequency", "fileCheckFrequency", Kind::Text),
    ("hairpin-mode", "hairpinMode", Kind::Text),
    ("healthz-bind-address", "healthzBindAddress", Kind::Text),
    ("healthz-port", "healthzPort", Kind::Number),
    ("http-check-frequency", "httpCheckFrequency", Kind::Text),
    ("image-gc-high-threshold", "imageGCHighThresholdPercent", Kind::Number),
    ("image-gc-low-threshold", "imageGCLowThresholdPercent", Kind::Number),
    ("image-service-endpoint", "imageServiceEndpoint", Kind::Text),
    ("iptables-drop-bit", "iptablesDropBit", Kind::Number),
    ("iptables-masquerade-bit", "iptablesMasqueradeBit", Kind::Number),
    ("kernel-memcg-notification", "kernelMemcgNotification", Kind::Bool),
    ("kube-api-burst", "kubeAPIBurst", Kind::Number),
    ("kube-api-content-type", "contentType", Kind::Text),
    ("kube-api-qps", "kubeAPIQPS", Kind::Number),
    ("kube-reserved-cgroup", "kubeReservedCgroup", Kind::Text),
    ("kubelet-cgroups", "kubeletCgroups", Kind::Text),
    ("local-storage-capacity-isolation", "localStorageCapacityIsolation", Kind::Bool),
    ("make-iptables-util-chains", "makeIPTablesUtilChains", Kind::Bool),
    ("max-open-files", "maxOpenFiles", Kind::Number),
    ("memory-manager-policy", "memoryManagerPolicy", Kind::Text),
    ("minimum-image-ttl-duration", "imageMinimumGCAge", Kind::Text),
    ("node-status-max-images", "nodeStatusMaxImages", Kind::Number),
    ("node-status-update-frequency", "nodeStatusUpdateFrequency", Kind::Text),
    ("oom-score-adj", "oomScoreAdj", Kind::Number),
    ("pods-per-core", "podsPerCore", Kind::Number),
    ("protect-kernel-defaults", "protectKernelDefaults", Kind::Bool),
    ("provider-id", "providerID", Kind::Text),
    ("qos-reserved", "qosReserved", Kind::Map),
    ("read-only-port", "readOnlyPort", Kind::Number),
    ("registry-burst", "registryBurst", Kind::Number),
    ("registry-qps", "registryPullQPS", Kind::Number),
    ("reserved-memory", "reservedMemory", Kind::Text),
    ("runonce", "runOnce", Kind::Bool),
    ("runtime-request-timeout", "runtimeRequestTimeout", Kind::Text),
    ("serialize-image-pulls", "serializeImagePulls", Kind::Bool),
    ("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", Kind::Text),
    ("sync-frequency", "syncFrequency", Kind::Text),
    ("system-cgroups", "systemCgroups", Kind::Text),
    ("system-reserved-cgroup", "systemReservedCgroup", Kind::Text),
    ("tls-cipher-suites", "tlsCipherSuites", Kind::List),
    ("tls-min-version", "tlsMinVersion", Kind::Text),
    ("topology-manager-policy", "topologyManagerPolicy", Kind::Text),
    ("topology-manager-policy-options", "topologyManagerPolicyOptions", Kind::Map),
    ("topology-manager-scope", "topologyManagerScope", Kind::Text),
    ("volume-plugin-dir", "volumePluginDir", Kind::Text),
    ("volume-stats-agg-period", "volumeStatsAggPeriod", Kind::Text),
];

/// Fields that flags have set.
#[derive(Clone, Debug, Default)]
pub struct FieldFlags(Vec<(&'static str, Value)>);

impl FieldFlags {
    pub(super) fn apply(&self, config: &mut Value) {
        for (path, value) in &self.0 {
            let mut at = &mut *config;
            for part in path.split('.') {
                if !at.is_object() {
                    *at = Value::Object(Map::new());
                }
                at = &mut at[part];
            }
            *at = value.clone();
        }
    }
}

impl clap::Args for FieldFlags {
    fn augment_args(command: Command) -> Command {
        FIELD_FLAGS.iter().fold(command, |command, (flag, field, _)| {
            let arg = Arg::new(*flag)
                .long(*flag)
                .num_args(0..=1)
                .default_missing_value("true")
                .allow_negative_numbers(true)
                .action(ArgAction::Append)
                .value_name("VALUE")
                .help(format!("{field} of the configuration file"))
                .help_heading("As in the configuration file");
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for FieldFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut set = Vec::new();
        for (flag, field, kind) in FIELD_FLAGS {
            let Some(texts) = matches.get_many::<String>(flag) else { continue };
            let texts: Vec<&str> = texts.map(String::as_str).collect();
            let value = kind
                .value(&texts)
                .map_err(|why| clap::Error::raw(clap::error::ErrorKind::InvalidValue, format!("--{flag}: {why}\n")))?;
            set.push((*field, value));
        }
        Ok(FieldFlags(set))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Kind {
    /// Lists and maps grow with each use of a flag; of all else the last one counts.
    fn value(self, texts: &[&str]) -> Result<Value, String> {
        let last = texts.last().copied().unwrap_or_default();
        let items = || texts.iter().flat_map(|text| text.split(',')).filter(|item| !item.is_empty());
        let pairs = |separator: char| {
            let pair = |item: &str| {
                let (key, value) = item.split_once(separator).ok_or_else(|| format!("{item:?} has no {separator}"))?;
                Ok((key.to_owned(), json!(value)))
            };
            items().map(pair).collect::<Result<Map<_, _>, String>>().map(Value::Object)
        };
        match self {
            Kind::Text => Ok(json!(last)),
            Kind::Number => last.parse::<i64>().map(Value::from).map_err(|error| format!("{last:?}: {error}")),
            Kind::Bool => last.parse::<bool>().map(Value::from).map_err(|error| format!("{last:?}: {error}")),
            Kind::List => Ok(items().collect()),
            Kind::Map => pairs('='),
            Kind::Less => pairs('<'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::FileConfig;
    use super::super::{Args, Settings};
    use super::*;

    /// The fields of v1.36.
    const UPSTREAM_FIELDS: &str = "
        address allowedUnsafeSysctls authentication authorization cgroupDriver cgroupRoot cgroupsPerQOS clusterDNS
        clusterDomain configMapAndSecretChangeDetectionStrategy containerLogMaxFiles containerLogMaxSize
        containerLogMaxWorkers containerLogMonitorInterval containerRuntimeEndpoint contentType cpuCFSQuota
        cpuCFSQuotaPeriod cpuManagerPolicy cpuManagerPolicyOptions cpuManagerReconcilePeriod crashLoopBackOff
        enableContentionProfiling enableControllerAttachDetach enableDebugFlagsHandler
        enableDebuggingHandlers enableProfilingHandler enableServer enableSystemLogHandler enableSystemLogQuery
        enforceNodeAllocatable eventBurst eventRecordQPS evictionHard evictionMaxPodGracePeriod evictionMinimumReclaim
        evictionPressureTransitionPeriod evictionSoft evictionSoftGracePeriod failCgroupV1 failSwapOn featureGates
        fileCheckFrequency hairpinMode healthzBindAddress healthzPort httpCheckFrequency imageGCHighThresholdPercent
        imageGCLowThresholdPercent imageMaximumGCAge imageMinimumGCAge imagePullCredentialsVerificationPolicy
        imageServiceEndpoint iptablesDropBit iptablesMasqueradeBit kernelMemcgNotification kubeAPIBurst kubeAPIQPS
        kubeReserved kubeReservedCgroup kubeletCgroups localStorageCapacityIsolation logging makeIPTablesUtilChains
        maxOpenFiles maxParallelImagePulls maxPods memoryManagerPolicy memoryReservationPolicy memorySwap
        memoryThrottlingFactor mergeDefaultEvictionSettings nodeLeaseDurationSeconds nodeStatusMaxImages
        nodeStatusReportFrequency nodeStatusUpdateFrequency oomScoreAdj podCIDR podLogsDir podPidsLimit podsPerCore port
        preloadedImagesVerificationAllowlist protectKernelDefaults providerID qosReserved readOnlyPort registerNode
        registerWithTaints registryBurst registryPullQPS reservedMemory reservedSystemCPUs resolvConf
        rotateCertificates runOnce runtimeRequestTimeout seccompDefault serializeImagePulls serverTLSBootstrap
        showHiddenMetricsForVersion shutdownGracePeriod shutdownGracePeriodByPodPriority
        shutdownGracePeriodCriticalPods singleProcessOOMKill staticPodPath staticPodURL staticPodURLHeader
        streamingConnectionIdleTimeout syncFrequency systemCgroups systemReserved systemReservedCgroup tlsCertFile
        tlsCipherSuites tlsCurvePreferences tlsMinVersion tlsPrivateKeyFile topologyManagerPolicy
        topologyManagerPolicyOptions topologyManagerScope tracing userNamespaces volumePluginDir volumeStatsAggPeriod
    ";

    /// The flags of v1.36.
    const UPSTREAM_FLAGS: &str = "
        address allowed-unsafe-sysctls anonymous-auth application-metrics-count-limit
        authentication-token-webhook authentication-token-webhook-cache-ttl authorization-mode
        authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl boot-id-file
        bootstrap-kubeconfig cert-dir cgroup-driver cgroup-root cgroups-per-qos client-ca-file cloud-provider
        cluster-dns cluster-domain config config-dir container-hints container-log-max-files
        container-log-max-size container-runtime-endpoint containerd containerd-namespace contention-profiling
        cpu-cfs-quota cpu-cfs-quota-period cpu-manager-policy cpu-manager-policy-options
        cpu-manager-reconcile-period enable-controller-attach-detach enable-debugging-handlers
        enable-load-reader enable-server enforce-node-allocatable event-burst event-qps
        event-storage-age-limit event-storage-event-limit eviction-hard eviction-max-pod-grace-period
        eviction-minimum-reclaim eviction-pressure-transition-period eviction-soft eviction-soft-grace-period
        exit-on-lock-contention experimental-allocatable-ignore-eviction experimental-mounter-path
        fail-cgroupv1 fail-swap-on feature-gates file-check-frequency global-housekeeping-interval
        hairpin-mode healthz-bind-address healthz-port hostname-override housekeeping-interval
        http-check-frequency image-credential-provider-bin-dir image-credential-provider-config
        image-gc-high-threshold image-gc-low-threshold image-service-endpoint kernel-memcg-notification
        kube-api-burst kube-api-content-type kube-api-qps kube-reserved kube-reserved-cgroup kubeconfig
        kubelet-cgroups local-storage-capacity-isolation lock-file log-cadvisor-usage log-flush-frequency
        log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream
        logging-format machine-id-file make-iptables-util-chains manifest-url manifest-url-header
        max-open-files max-pods maximum-dead-containers maximum-dead-containers-per-container
        memory-manager-policy minimum-container-ttl-duration minimum-image-ttl-duration node-ip node-labels
        node-status-max-images node-status-update-frequency oom-score-adj pod-cidr pod-manifest-path
        pod-max-pids pods-per-core port protect-kernel-defaults provider-id qos-reserved read-only-port
        register-node register-with-taints registry-burst registry-qps reserved-cpus reserved-memory
        resolv-conf root-dir rotate-certificates rotate-server-certificates runonce runtime-cgroups
        runtime-request-timeout seccomp-default serialize-image-pulls storage-driver-buffer-duration
        storage-driver-db storage-driver-host storage-driver-password storage-driver-secure
        storage-driver-table storage-driver-user streaming-connection-idle-timeout sync-frequency
        system-cgroups system-reserved system-reserved-cgroup tls-cert-file tls-cipher-suites tls-min-version
        tls-private-key-file topology-manager-policy topology-manager-policy-options topology-manager-scope v
        vmodule volume-plugin-dir volume-stats-agg-period
    ";

    /// Those below fields.
    const UPSTREAM_NESTED: &str = "
        authentication.anonymous.enabled authentication.webhook.cacheTTL authentication.webhook.enabled
        authentication.x509.clientCAFile authorization.mode authorization.webhook.cacheAuthorizedTTL
        authorization.webhook.cacheUnauthorizedTTL crashLoopBackOff.maxContainerRestartPeriod logging.flushFrequency
        logging.format logging.options.json logging.options.text logging.verbosity logging.vmodule
        memorySwap.swapBehavior reservedMemory[].limits reservedMemory[].numaNode
        shutdownGracePeriodByPodPriority[].priority shutdownGracePeriodByPodPriority[].shutdownGracePeriodSeconds
        tracing.endpoint tracing.samplingRatePerMillion userNamespaces.idsPerPod
    ";

    /// Of versions before, which kubeadm and others have left in the files of machines.
    const EARLIER_FLAGS: &str = "container-runtime iptables-drop-bit iptables-masquerade-bit pod-infra-container-image";

    #[test]
    fn every_field_has_an_answer() {
        for field in UPSTREAM_FIELDS.split_whitespace() {
            let mut config = json!({field: {"x": 1}});
            let settled = api::flags::settle(&mut config, FIELDS);
            let is_row = settled.is_err() || config.get(field).is_none();
            let read = serde_json::from_value::<FileConfig>(json!({field: null}));
            let is_read = !read.is_err_and(|error| error.to_string().contains("unknown field"));
            assert!(is_row || is_read, "{field} has no answer");
        }
        for path in UPSTREAM_NESTED.split_whitespace() {
            let read = FileConfig::parse(api::flags::with_field(path));
            let error = read.map(drop).map_err(|error| format!("{error:#}")).err().unwrap_or_default();
            assert!(!api::flags::is_unknown(&error, path), "{path} has no answer: {error}");
        }
        for row in FIELDS {
            let first = row.name.split('.').next().unwrap_or_default();
            assert!(UPSTREAM_FIELDS.split_whitespace().any(|name| name == first), "{}", row.name);
        }
    }

    #[test]
    fn every_flag_has_an_answer() {
        assert_eq!(api::flags::missing::<Args>(UPSTREAM_FLAGS), Vec::<String>::new());
        let known = [UPSTREAM_FLAGS, EARLIER_FLAGS].join(" ");
        assert_eq!(api::flags::unheard::<Unused>(&known), Vec::<&str>::new());
        for (flag, field, _) in FIELD_FLAGS {
            assert!(known.split_whitespace().any(|name| name == *flag), "{flag}");
            let first = field.split('.').next().unwrap_or_default();
            assert!(UPSTREAM_FIELDS.split_whitespace().any(|name| name == first), "{field}");
        }
    }

    fn settings(words: &[&str]) -> anyhow::Result<Settings> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = <Line as clap::Parser>::try_parse_from([&["kubelet"], words].concat())?;
        line.args.settings()
    }

    #[test]
    fn command_lines_of_others_start_it() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            format!("--config={}", path.display())
        };
        // As kubeadm writes it, with zeros for what it leaves to the kubelet.
        let kubeadm = write(
            "kubeadm.yaml",
            "apiVersion: kubelet.config.k8s.io/v1beta1\nauthentication:\n  anonymous: {enabled: false}\n  webhook: {cacheTTL: 0s, enabled: true}\n  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}\n\
             authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}\ncgroupDriver: systemd\nclusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\n\
             containerRuntimeEndpoint: \"\"\ncpuManagerReconcilePeriod: 0s\ncrashLoopBackOff: {}\nevictionPressureTransitionPeriod: 0s\nfileCheckFrequency: 0s\nhealthzBindAddress: 127.0.0.1\nhealthzPort: 10248\n\
             httpCheckFrequency: 0s\nimageMaximumGCAge: 0s\nimageMinimumGCAge: 0s\nkind: KubeletConfiguration\nlogging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}, text: {infoBufferSize: \"0\"}}, verbosity: 0}\n\
             memorySwap: {}\nnodeStatusReportFrequency: 0s\nnodeStatusUpdateFrequency: 0s\nrotateCertificates: true\nruntimeRequestTimeout: 0s\nshutdownGracePeriod: 0s\nshutdownGracePeriodCriticalPods: 0s\n\
             staticPodPath: /etc/kubernetes/manifests\nstreamingConnectionIdleTimeout: 0s\nsyncFrequency: 0s\nvolumeStatsAggPeriod: 0s\n",
        );
        let hard_way = write(
            "hard-way.yaml",
            "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\naddress: \"0.0.0.0\"\nauthentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /var/lib/kubelet/ca.crt}}\n\
             authorization: {mode: Webhook}\ncgroupDriver: systemd\ncontainerRuntimeEndpoint: unix:///var/run/containerd/containerd.sock\nenableServer: true\nfailSwapOn: false\nmaxPods: 16\n\
             memorySwap: {}\nport: 10250\nresolvConf: /etc/resolv.conf\nregisterNode: true\nruntimeRequestTimeout: 0s\ntlsCertFile: /var/lib/kubelet/kubelet.crt\ntlsPrivateKeyFile: /var/lib/kubelet/kubelet.key\n",
        );
        let read = settings(&[
            &kubeadm,
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            "--bootstrap-kubeconfig=/b",
            "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
            "--pod-infra-container-image=registry.k8s.io/pause:3.10",
        ])
        .unwrap();
        assert_eq!(read.cri_endpoint, std::path::Path::new("/run/containerd/containerd.sock"));
        assert_eq!(read.healthz, Some(([127, 0, 0, 1], 10248).into()));
        assert!(!settings(&[&kubeadm]).unwrap().cri_endpoint.as_os_str().is_empty());
        let read = settings(&[&hard_way, "--kubeconfig=/k", "--v=2", "--register-node=true"]).unwrap();
        assert_eq!((read.max_pods, read.fail_swap_on), (16, false));
        assert!(settings(&["--fail-cgroupv1"]).unwrap().fail_cgroup_v1);
        assert!(settings(&["--eviction-hard=", "--maximum-dead-containers=-1"]).unwrap().eviction_hard.is_empty());
        for (flag, expected) in [("pods", true), ("none", false), ("", false)] {
            let read = settings(&[&format!("--enforce-node-allocatable={flag}")]).unwrap();
            assert_eq!(read.enforce_allocatable, expected, "{flag:?}");
        }
        // As k3s starts it.
        let read = settings(&[
            "--anonymous-auth=false",
            "--authentication-token-webhook=true",
            "--authorization-mode=Webhook",
            "--cgroup-driver=cgroupfs",
            "--client-ca-file=/ca",
            "--cloud-provider=",
            "--cluster-dns=10.43.0.10",
            "--cluster-domain=cluster.local",
            "--container-runtime-endpoint=unix:///run/k3s/containerd/containerd.sock",
            "--eviction-hard=imagefs.available<5%,nodefs.available<5%",
            "--eviction-minimum-reclaim=imagefs.available=10%,nodefs.available=10%",
            "--fail-swap-on=false",
            "--healthz-bind-address=127.0.0.1",
            "--hostname-override=n",
            "--kubeconfig=/k",
            "--node-ip=10.0.0.1",
            "--node-labels=",
            "--pod-manifest-path=/m",
            "--read-only-port=0",
            "--resolv-conf=/etc/resolv.conf",
            "--serialize-image-pulls=false",
            "--tls-cert-file=/c",
            "--tls-private-key-file=/p",
        ])
        .unwrap();
        assert_eq!(read.eviction_minimum_reclaim["imagefs.available"], "10%");
        assert!(!read.serialize_image_pulls && read.token_webhook);
    }

    #[test]
    fn what_is_not_done_is_refused() {
        for (words, refusal) in [
            (&["--read-only-port=10255"][..], "readOnlyPort: \"10255\" is not supported"),
            (&["--cloud-provider=external"], "--cloud-provider: \"external\" is not supported"),
            (&["--memory-manager-policy=Static"], "memoryManagerPolicy"),
            (&["--feature-gates=NodeSwap=true"], "cannot set feature gate NodeSwap"),
            (&["--image-credential-provider-config=/x"], "--image-credential-provider-config is not supported"),
            (&["--max-open-files=many"], "--max-open-files"),
            (&["--authorization-mode=RBAC"], "unknown authorization-mode RBAC"),
            (&["--maximum-dead-containers-per-container=5"], "\"5\" is not supported: one ended container is kept"),
            (&["--enforce-node-allocatable=pods,kube-reserved"], "enforceNodeAllocatable: \"kube-reserved\""),
            (&["--allow-metric-labels=a"], "--allow-metric-labels"),
        ] {
            let error = format!("{:#}", settings(words).unwrap_err());
            assert!(error.contains(refusal), "{words:?}: {error}");
        }
    }
}
