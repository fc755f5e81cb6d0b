//! What a cluster file says about single components, in the words of each: flags, or the configuration that upstream's reads
//! from a file.
//!
//! What `cox up` decides itself cannot be said again here: it would be accepted and not done.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Command};
use client::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ComponentConfigs {
    /// Flags of `cox apiserver`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub apiserver: Map<String, Value>,
    /// Flags of `cox controller-manager`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub controller_manager: Map<String, Value>,
    /// A `KubeSchedulerConfiguration`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub scheduler: Map<String, Value>,
    /// Flags of `cox gateway`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub gateway: Map<String, Value>,
    #[serde(flatten)]
    pub nodes: NodeConfigs,
}

/// What concerns all nodes; those that join are told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeConfigs {
    /// A `KubeletConfiguration`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub kubelet: Map<String, Value>,
    /// A `KubeProxyConfiguration`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub proxy: Map<String, Value>,
}

/// The names of all of them, as a cluster file has them.
pub(crate) const NAMES: [&str; 6] = ["apiserver", "controllerManager", "scheduler", "gateway", "kubelet", "proxy"];

/// Flags and fields that `cox up` sets itself.
const OWN_OF_APISERVER: &[&str] = &[
    "advertise-address",
    "authorization-mode",
    "bind-address",
    "client-ca-file",
    "data-dir",
    "enable-bootstrap-token-auth",
    "encryption-provider-config",
    "encryption-provider-config-automatic-reload",
    "etcd-cafile",
    "etcd-certfile",
    "etcd-keyfile",
    "etcd-prefix",
    "etcd-servers",
    "history-file",
    "kubelet-certificate-authority",
    "kubelet-client-certificate",
    "kubelet-client-key",
    "proxy-client-cert-file",
    "proxy-client-key-file",
    "requestheader-allowed-names",
    "requestheader-client-ca-file",
    "secure-port",
    "service-account-issuer",
    "service-account-key-file",
    "service-account-signing-key-file",
    "service-cluster-ip-range",
    "tls-cert-file",
    "tls-private-key-file",
];
const OWN_OF_CONTROLLERS: &[&str] = &[
    "allocate-node-cidrs",
    "bind-address",
    "cluster-cidr",
    "cluster-signing-cert-file",
    "cluster-signing-key-file",
    "kube-api-burst",
    "kube-api-qps",
    "kubeconfig",
    "leader-elect",
    "leader-elect-lease-duration",
    "leader-elect-renew-deadline",
    "leader-elect-resource-name",
    "leader-elect-resource-namespace",
    "leader-elect-retry-period",
    "master",
    "root-ca-file",
    "secure-port",
    "service-account-private-key-file",
    "service-cluster-ip-range",
    "tls-cert-file",
    "tls-private-key-file",
    "use-service-account-credentials",
];
const OWN_OF_SCHEDULER: &[&str] = &["clientConnection", "leaderElection"];
const OWN_OF_GATEWAY: &[&str] = &[
    "address-pool",
    "http-port",
    "https-port",
    "kubeconfig",
    "listen",
    "master",
    "metrics-bind-address",
    "node-name",
    "publish-address",
];
const OWN_OF_KUBELET: &[&str] = &[
    "authentication",
    "cgroupRoot",
    "clusterDNS",
    "clusterDomain",
    "containerRuntimeEndpoint",
    "podLogsDir",
    "port",
    "serverTLSBootstrap",
    "tlsCertFile",
    "tlsPrivateKeyFile",
];
const OWN_OF_PROXY: &[&str] = &["clientConnection", "clusterCIDR", "healthzBindAddress", "hostnameOverride"];

/// Where proxies show their metrics unless their configuration says otherwise: upstream's address and port. Everybody who
/// reaches it may read them.
const PROXY_METRICS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 10249);

impl ComponentConfigs {
    /// Fails with what is wrong in one of them, and its name.
    pub(crate) fn check(&self) -> Result<()> {
        let of = |name: &'static str| move || format!("the configuration of {name}");
        self.apiserver().map(drop).with_context(of("apiserver"))?;
        self.controller_flags().map(drop).with_context(of("controllerManager"))?;
        self.scheduler().map(drop).with_context(of("scheduler"))?;
        self.gateway(nobody()).map(drop).with_context(of("gateway"))?;
        self.nodes.kubelet("n").map(drop).with_context(of("kubelet"))?;
        self.nodes.check_proxy().with_context(of("proxy"))
    }

    /// What the flags say; all else as usual.
    pub(crate) fn apiserver(&self) -> Result<apiserver::Config> {
        parse::<apiserver::Args>(&self.apiserver, OWN_OF_APISERVER)?.try_into()
    }

    fn controller_flags(&self) -> Result<controllers::Args> {
        let flags: controllers::Args = parse(&self.controller_manager, OWN_OF_CONTROLLERS)?;
        controllers::check_selection(&flags.controllers)?;
        Ok(flags)
    }

    pub(crate) async fn controllers(&self, client: Client) -> Result<controllers::Config> {
        let usual = controllers::Config::new(client.clone());
        if self.controller_manager.is_empty() {
            return Ok(usual);
        }
        let mut config = self.controller_flags()?.config_with(client).await?;
        // Of the process, not of the controllers.
        (config.election, config.serving, config.metrics) = (usual.election, usual.serving, usual.metrics);
        Ok(config)
    }

    pub(crate) fn scheduler(&self) -> Result<Option<scheduler::Configuration>> {
        if self.scheduler.is_empty() {
            return Ok(None);
        }
        refuse_own(&self.scheduler, OWN_OF_SCHEDULER)?;
        let mut configuration = self.scheduler.clone();
        for (name, usual) in [("apiVersion", "kubescheduler.config.k8s.io/v1"), ("kind", "KubeSchedulerConfiguration")]
        {
            configuration.entry(name).or_insert_with(|| usual.into());
        }
        Ok(Some(scheduler::Configuration::parse(&Value::Object(configuration).to_string())?))
    }

    /// What the flags say; where it listens, and for whom, is for others to add.
    pub(crate) fn gateway(&self, client: Client) -> Result<gateway::Config> {
        Ok(parse::<gateway::Args>(&self.gateway, OWN_OF_GATEWAY)?.config_with(client))
    }
}

impl NodeConfigs {
    pub(crate) fn kubelet(&self, node: &str) -> Result<kubelet::Settings> {
        refuse_own(&self.kubelet, OWN_OF_KUBELET)?;
        match self.kubelet.is_empty() {
            true => Ok(kubelet::Settings::new(node)),
            false => kubelet::Settings::configured(node, Value::Object(self.kubelet.clone())),
        }
    }

    pub(crate) fn proxy(&self, client: Client, node: &str) -> Result<proxy::Config> {
        refuse_own(&self.proxy, OWN_OF_PROXY)?;
        let mut config = match self.proxy.is_empty() {
            true => proxy::Config::new(client, node),
            false => proxy::Config::configured(client, node, &Value::Object(self.proxy.clone()).to_string())?,
        };
        config.metrics_bind_address.get_or_insert(PROXY_METRICS.into());
        Ok(config)
    }

    fn check_proxy(&self) -> Result<()> {
        self.proxy(nobody(), "n").map(drop)
    }
}

/// A client that is never answered, for configurations that are only looked at.
fn nobody() -> Client {
    let handler: client::Handler = std::sync::Arc::new(|_| Box::pin(std::future::pending()));
    Client::in_process(handler, api::UserInfo::default())
}

fn refuse_own(config: &Map<String, Value>, own: &[&str]) -> Result<()> {
    match config.keys().find(|name| own.contains(&name.as_str())) {
        Some(name) => bail!("{name} is for 'cox up' to decide"),
        None => Ok(()),
    }
}

/// Flags as a component's own command line has them.
fn parse<A: Args>(flags: &Map<String, Value>, own: &[&str]) -> Result<A> {
    refuse_own(flags, own)?;
    let mut words = vec!["flags".to_owned()];
    for (name, value) in flags {
        words.push(format!("--{name}={}", text(value).with_context(|| format!("{name} is no text, number or list"))?));
    }
    let found = A::augment_args(Command::new("flags").no_binary_name(false)).try_get_matches_from(words);
    let found = found.and_then(|matches| A::from_arg_matches(&matches));
    found.map_err(|error| anyhow!("{}", reason(&error)))
}

/// A value as a word of a command line; lists with commas.
pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Array(items) if !items.iter().any(Value::is_array) => {
            items.iter().map(text).collect::<Option<Vec<_>>>().map(|items| items.join(","))
        }
        _ => None,
    }
}

/// Of a parser's explanation, what it is about.
pub(crate) fn reason(error: &clap::Error) -> String {
    let all = error.to_string();
    let first = all.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn configs(value: Value) -> ComponentConfigs {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn components_take_their_own_words_and_no_others() {
        configs(json!({})).check().unwrap();
        let all = configs(json!({
            "apiserver": {"audit-log-path": "/a.log", "max-requests-inflight": 7, "enable-admission-plugins": ["AlwaysPullImages"]},
            "controllerManager": {"node-monitor-grace-period": "20s", "controllers": ["*", "-cronjob-controller"]},
            "scheduler": {"parallelism": 4},
            "gateway": {"access-log": "/g.log", "max-body-size": 1_048_576},
            "kubelet": {"maxPods": 7, "evictionHard": {"memory.available": "50Mi"}},
            "proxy": {"mode": "iptables"},
        }));
        all.check().unwrap();
        let server = all.apiserver().unwrap();
        assert_eq!((server.max_requests_inflight, server.enable_admission_plugins.len()), (7, 1));
        let gateway = all.gateway(nobody()).unwrap();
        assert_eq!(gateway.access_log.as_deref(), Some(std::path::Path::new("/g.log")));
        assert_eq!(gateway.limits.max_body, Some(1 << 20));
        assert_eq!(all.nodes.kubelet("n").unwrap().max_pods, 7);
        for (wrong, why) in [
            (json!({"apiserver": {"secure-port": 1}}), "secure-port is for 'cox up' to decide"),
            (json!({"apiserver": {"no-such-flag": 1}}), "unexpected argument '--no-such-flag'"),
            (json!({"apiserver": {"event-ttl": {}}}), "event-ttl is no text"),
            (json!({"controllerManager": {"kubeconfig": "/k"}}), "kubeconfig is for 'cox up' to decide"),
            (json!({"scheduler": {"parallelism": 0}}), "parallelism"),
            (json!({"scheduler": {"leaderElection": {}}}), "leaderElection is for"),
            (json!({"gateway": {"listen": "0.0.0.0"}}), "listen is for 'cox up' to decide"),
            (json!({"gateway": {"max-body-size": "much"}}), "invalid value 'much'"),
            (json!({"kubelet": {"maxPodz": 7}}), "maxPodz"),
            (json!({"kubelet": {"clusterDNS": ["10.0.0.1"]}}), "clusterDNS is for"),
            (json!({"proxy": {"mode": "ipvs"}}), "unsupported proxy mode"),
            (json!({"proxy": {"clusterCIDR": "10.0.0.0/8"}}), "clusterCIDR is for"),
        ] {
            let error = format!("{:#}", configs(wrong.clone()).check().unwrap_err());
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn metrics_of_proxies_are_local_unless_a_cluster_file_says_otherwise() {
        let nobody: client::Handler = std::sync::Arc::new(|_| Box::pin(std::future::pending()));
        let client = Client::in_process(nobody, api::UserInfo::default());
        for (proxy, expected) in [
            (json!({}), "127.0.0.1:10249"),
            (json!({"mode": "iptables"}), "127.0.0.1:10249"),
            (json!({"metricsBindAddress": "0.0.0.0"}), "0.0.0.0:10249"),
            (json!({"metricsBindAddress": "[::]:9"}), "[::]:9"),
        ] {
            let all = configs(json!({"proxy": proxy}));
            let address = all.nodes.proxy(client.clone(), "n").unwrap().metrics_bind_address;
            assert_eq!(address.map(|address| address.to_string()).as_deref(), Some(expected));
        }
    }

    #[test]
    fn what_cox_up_decides_exists() {
        let flags =
            |command: Command| command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect();
        let server: Vec<String> = flags(apiserver::Args::augment_args(Command::new("c")));
        assert_eq!(OWN_OF_APISERVER.iter().find(|own| !server.contains(&own.to_string())), None);
        let controllers: Vec<String> = flags(controllers::Args::augment_args(Command::new("c")));
        assert_eq!(OWN_OF_CONTROLLERS.iter().find(|own| !controllers.contains(&own.to_string())), None);
        let gateway: Vec<String> = flags(gateway::Args::augment_args(Command::new("c")));
        assert_eq!(OWN_OF_GATEWAY.iter().find(|own| !gateway.contains(&own.to_string())), None);
    }
}
