//! What every node runs: runtime, kubelet, driver of local volumes, pod network, proxy, network policies and routes, whichever process it is in.
//!
//! Order: the kubelet registers the node -> the controller manager gives it a pod range -> bridge and CNI configuration,
//! which is what makes the runtime report its network ready -> the kubelet makes the node Ready.

use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use client::Client;
use client::metrics::Metrics;

use super::reasons::saying_why;
use super::{encrypted, routes, service_ranges};
use crate::components::Components;
use crate::options::Options;
use crate::pki::Pki;
use crate::settings::Settings;
use crate::{dns_service, local_volumes, network_policy, node_network};

/// Where the proxy of each node says that it works: upstream's port, at which load balancers look.
pub(crate) const PROXY_HEALTH_PORT: u16 = 10256;

/// Who a node's parts are to the API server.
#[derive(Clone)]
pub(crate) struct Clients {
    pub kubelet: Client,
    pub proxy: Client,
}

pub(crate) struct Node<'a> {
    pub options: &'a Options,
    pub settings: &'a Settings,
    pub pki: &'a Pki,
    pub clients: Clients,
    /// Where images are pulled, if not here.
    pub pulls: Option<tokio::runtime::Handle>,
    /// Where the kubelet leaves its summaries for an API server in the same process.
    pub summaries: kubelet::SummarySlot,
}

impl Node<'_> {
    /// Starts the node's parts; returns the address of its pods' gateway once pods can be made.
    pub(crate) async fn start(self, components: &mut Components) -> Result<IpAddr> {
        let (options, settings) = (self.options, self.settings);
        // Before anything uses them: addresses of the cluster end on this node.
        let (own_options, own) = (options.clone(), settings.clone());
        // It may wait for duplicate address detection.
        tokio::task::spawn_blocking(move || node_network::seal(&own_options, &own)).await??;
        // Before any route leads to another node.
        let devices = encrypted::prepare(settings)?;
        node_network::install_plugins(options)?;
        let mut runtime = runtime_config(options, Some(&settings.registries));
        runtime.images_dir = Some(settings.images_dir.clone());
        runtime.pulls = self.pulls;
        let listening = runtime.listening.clone();
        components.supervise("runtime", move |stop| runtime::run(runtime.clone(), stop));
        // A kubelet that finds no runtime waits for a while before it looks again.
        let is_listening = async {
            listening.notified().await;
            Ok(())
        };
        components.until(is_listening).await?;
        let mut kubelet = kubelet_config(options, settings, self.pki, self.clients.kubelet.clone())?;
        kubelet.summaries = self.summaries;
        components.supervise("kubelet", move |stop| kubelet::run(kubelet.clone(), stop));
        let volumes = local_volumes::config(options, &settings.name, self.clients.kubelet.clone());
        components.supervise("local-volumes", move |stop| local_csi::run(volumes.clone(), stop));

        let (client, name) = (&self.clients.kubelet, &settings.name);
        let ranges = components.until(saying_why(client, name, node_network::pod_ranges(client, name))).await?;
        let gateway = node_network::ensure_bridge(&ranges)?;
        node_network::masquerade(settings, &ranges)?;
        node_network::write_config(options, settings, &ranges)?;
        let mut proxy = settings.cluster.components.proxy(self.clients.proxy.clone(), &settings.name)?;
        proxy.cluster_cidrs = node_network::list(&settings.cluster.cluster_cidr);
        proxy.service_cidrs = node_network::list(&settings.cluster.service_cidr);
        proxy.healthz_bind_address = Some((settings.everywhere(), PROXY_HEALTH_PORT).into());
        let metrics = Metrics::new();
        proxy.more_metrics = devices.is_some().then(|| metrics.clone());
        components.supervise("proxy", move |stop| proxy::run(proxy.clone(), stop));
        let policy = policy::Config {
            client: self.clients.proxy.clone(),
            node_name: settings.name.clone(),
            bridge: node_network::BRIDGE.to_owned(),
            socket: network_policy::socket(options),
        };
        components.supervise("policy", move |stop| policy::run(policy.clone(), stop));
        let (client, own_options, own) = (self.clients.proxy.clone(), options.clone(), settings.clone());
        let follow = move |stop| service_ranges::run(own_options.clone(), own.clone(), client.clone(), stop);
        components.supervise("service ranges", follow);
        match devices {
            Some(devices) => {
                let config = encrypted::Config {
                    clients: self.clients,
                    node: settings.name.clone(),
                    keys_dir: encrypted::keys_dir(options),
                    devices: wireguard::Settings { addresses: encrypted::addresses(&ranges), ..devices },
                    metrics,
                };
                components.supervise("encryption", move |stop| encrypted::run(config.clone(), stop));
            }
            None => {
                let (client, name, backend) = (self.clients.proxy, settings.name.clone(), settings.cluster.routes);
                components.supervise("routes", move |stop| routes::run(client.clone(), name.clone(), backend, stop));
            }
        }
        Ok(gateway)
    }
}

/// Starts the DNS server of a further node, for its own pods first.
pub(crate) fn start_dns(
    settings: &Settings,
    clients: Clients,
    gateway: IpAddr,
    components: &mut Components,
) -> Result<()> {
    let mut config = dns_service::config(&settings.cluster, clients.proxy, gateway);
    config.upstreams = match &settings.resolvers {
        Some(resolvers) => resolvers.clone(),
        None => dns::resolvers(Path::new("/etc/resolv.conf"))?,
    };
    config.search = dns::search_domains(Path::new("/etc/resolv.conf"))?;
    let (node, name) = (clients.kubelet, settings.name.clone());
    components.supervise("dns", move |stop| dns_service::run_on_node(config.clone(), node.clone(), name.clone(), stop));
    Ok(())
}

/// The runtime's part of a node; also started alone, to take pods away.
pub(crate) fn runtime_config(options: &Options, registries: Option<&Path>) -> runtime::Config {
    let (root, state) = (options.data_dir.join("runtime"), options.run_dir.join("runtime"));
    let mut config = runtime::Config::new(root, state, options.cri_socket());
    config.cni_conf_dir = options.cni_conf_dir();
    config.cni_bin_dirs = vec![options.cni_bin_dir()];
    config.cni_cache_dir = Some(options.data_dir.join("cni/cache"));
    config.registries = registries.filter(|path| path.exists()).map(Path::to_owned);
    config
}

fn kubelet_config(options: &Options, node: &Settings, pki: &Pki, client: Client) -> Result<kubelet::Config> {
    let configured = &node.cluster.components.kubelet;
    let mut settings = node.cluster.components.kubelet(&node.name)?;
    settings.register(&node.labels, &node.taints)?;
    settings.node_ips = [node.address].into_iter().chain(node.second_address).collect();
    settings.address = node.everywhere();
    settings.cri_endpoint = options.cri_socket();
    settings.root_dir = options.data_dir.join("kubelet");
    settings.cert_dir = options.pki_dir();
    settings.pod_logs_dir = options.data_dir.join("logs/pods");
    settings.cgroup_root = options.cgroup();
    // A machine that is also used for other things is often rather full: keep pods off it only when it really is.
    if !configured.contains_key("evictionHard") {
        for signal in ["nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"] {
            settings.eviction_hard.insert(signal.into(), "1%".into());
        }
    }
    if !configured.contains_key("imageGCHighThresholdPercent") && !configured.contains_key("imageGCLowThresholdPercent")
    {
        (settings.image_gc_high, settings.image_gc_low) = (99, 98);
    }
    settings.cluster_dns = vec![node.cluster.dns.to_string()];
    settings.cluster_domain = node.cluster.cluster_domain.clone();
    settings.port = node.kubelet_port;
    settings.client_ca_file = Some(pki.certificate("ca"));
    if node.asks_for_certificate {
        settings.server_tls_bootstrap = true;
    } else {
        settings.tls_cert_file = Some(pki.certificate("kubelet"));
        settings.tls_private_key_file = Some(pki.key("kubelet"));
    }
    Ok(kubelet::Config { client, settings, summaries: Default::default() })
}
