//! The process that runs a cluster: every component, in order, until it is told to stop.
//!
//! Each component starts as soon as what it needs is there; nothing sleeps.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use api::UserInfo;
use api::cidr::Cidr;
use client::serving::Serving;
use client::{Client, Durations, Election};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::balancer::follow_servers;
use crate::components::{Components, explained, interrupted};
use crate::kubeconfig::Access;
use crate::lock::Lock;
use crate::options::Options;
use crate::pki::{Pki, private_dir};
use crate::progress::Progress;
use crate::server_pki::{certified, own_url, prepare_keys, url};
use crate::settings::{ClusterSettings, Settings};
use crate::shape::{self, Encryption, Flags, Shape};
use crate::{
    authority, backups, certificates, dns_service, encryption, etcd, import, ingress, join, key_rotation,
    kubelet_access, local_volumes, manifests, members, metrics_reader, network_policy, node_address, node_network,
    node_roles, nodes, upgrade, usual_place, wireguard_keys,
};

/// Plug-ins beside those that every API server has: a node's credential is good for that node only, and nobody takes
/// addresses of others by naming them in a service.
const ADMISSION_PLUGINS: [&str; 2] = ["NodeRestriction", "DenyServiceExternalIPs"];

/// Controllers beside those that always run.
const CONTROLLERS: [&str; 3] =
    ["bootstrap-signer-controller", "token-cleaner-controller", "storage-version-migrator-controller"];
/// What is served beside what always is.
const APIS: [&str; 2] = ["metrics.k8s.io/v1beta1", "storagemigration.k8s.io/v1beta1"];

/// Where collectors look for them.
const CONTROLLER_MANAGER_PORT: u16 = 10257;
const SCHEDULER_PORT: u16 = 10259;

/// Runs the cluster until SIGTERM or SIGINT. Progress goes to standard output.
pub(crate) async fn run(options: Options, flags: Flags) -> Result<()> {
    private_dir(&options.data_dir)?;
    private_dir(&options.run_dir)?;
    // Before the lock tells anyone where to send it: unheard, it would end the process.
    let nudges = signal(SignalKind::user_defined1())?;
    match Lock::take(&options.lock_file())? {
        Ok(lock) => lock.keep(),
        Err(holder) => bail!("process {} runs this cluster already", holder.pid),
    }
    import::refuse_unfinished(&options)?;
    let flags = members::completed(flags.over(Flags::remembered(&options)?)?, &options)?.settled()?;
    flags.check_files()?;
    flags.remember(&options)?;
    let shape = flags.shape()?;
    let mut components = Components::new();
    let mut member = None;
    let ended = tokio::select! {
        ended = async {
            start(&options, &shape, nudges, &mut components, &mut member).await?;
            components.until_stopped().await
        } => ended,
        result = interrupted() => result,
    };
    // Teardown goes on whatever was first; its own errors matter only if nothing else went wrong.
    let finished = components.finish().await;
    // Last: all others stand on it.
    let stopped = match member {
        Some(member) => member.stop().await,
        None => Ok(()),
    };
    explained(ended).and(finished).and(stopped)
}

/// Starts everything and returns when the nodes are Ready and DNS answers.
async fn start(
    options: &Options,
    shape: &Shape,
    nudges: Signal,
    components: &mut Components,
    member: &mut Option<members::Member>,
) -> Result<()> {
    let mut progress = Progress::default();
    let (node_name, node_ip) = (shape.node_name.clone(), shape.node_ip()?);
    if let Some(address) = shape.own_address {
        node_address::ensure_own(address).with_context(|| format!("making the link {}", node_address::OWN_LINK))?;
        progress.done("address", &format!("{address}, known to this machine only: it has no default route"));
    }
    let api_address = shape.service_address(1)?;
    let dns_address = shape.service_address(10)?;
    let network = nodes::Network {
        range: shape.node_cidr.network(),
        second: shape.second_node_cidr.map(|range| range.network()),
        first_node: node_name.clone(),
    };
    network.save(options)?;
    network.ensure_count(options, shape.nodes)?;
    let pki = prepare_keys(options, shape, &network)?;
    progress.done("keys", &options.pki_dir().display().to_string());

    // Of several servers, one acts.
    let election = |name: &str| {
        shape.etcd.is_used().then(|| Election {
            namespace: "kube-system".to_owned(),
            name: name.to_owned(),
            // One process has this directory and this node, so whoever comes back has not lost its lead.
            identity: format!("{node_name}_{node_ip}"),
            durations: Durations::default(),
        })
    };
    if shape.ha.ha {
        let own = member.insert(members::Member::start(options, shape, &pki).await?);
        components.spawn("etcd", own.failed(components.stop.clone()));
        components.until(own.ready()).await?;
        let (options, shape) = (options.clone(), shape.clone());
        components.supervise("etcd members", move |stop| members::keep(options.clone(), shape.clone(), stop));
    }
    if shape.etcd.is_used() {
        let authority = read(&pki.certificate("ca"))?;
        let taking_over = etcd::while_unavailable(|| async {
            let store = shape.etcd.connect().await?;
            etcd::claim(&*store, &authority).await?;
            etcd::TRANSFER.taken_over(&*store).await.context("taking over what was carried into etcd")
        });
        components.until(taking_over).await?;
        progress.done("etcd", &shape.etcd.etcd_servers.join(", "));
    }
    let summaries = kubelet::SummarySlot::default();
    let open = || async {
        let mut config = apiserver_config(options, shape, &pki, node_ip).await?;
        config.local_kubelet = Some(apiserver::LocalKubelet { node: node_name.clone(), summaries: summaries.clone() });
        apiserver::Server::new(config).await
    };
    let server = match shape.etcd.is_used() {
        true => components.until(etcd::while_unavailable(open)).await?,
        false => open().await?,
    };
    let (handler, trace) = (server.handler(), server.trace());
    let encryption_in_force = server.encryption_in_force();
    components.spawn("apiserver", {
        let stop = components.stop.clone();
        async move { server.serve(stop).await }
    });
    let as_user = |name: &str, groups: &[&str]| {
        let actor = name.strip_prefix("system:").unwrap_or(name);
        // Nodes are told apart by the detail of their spans.
        let actor = if actor.starts_with("node:") { "kubelet" } else { actor };
        Client::in_process(handler.clone(), user(name, groups)).traced(trace.clone(), actor)
    };
    let admin = as_user("kubernetes-admin", &["system:masters", "system:authenticated"]);
    // As early as possible: a kubelet remembers for a while whom it has refused.
    components.until(if_possible(kubelet_access::ensure(&admin))).await?;
    let asking = admin.clone();
    components.supervise("kubelet access", move |stop| kubelet_access::keep(asking.clone(), stop));
    progress.done("api server", &url(node_ip, shape.secure_port));

    let (authority_changed, authority_changes) = tokio::sync::watch::channel(());
    let authority = authority::Server {
        options: options.clone(),
        shape: shape.clone(),
        admin: admin.clone(),
        url: url(node_ip, shape.secure_port),
        changed: authority_changed,
    };
    components.until(authority.catch_up()).await?;
    let manager = as_user("system:kube-controller-manager", &["system:authenticated"]);
    let mut controllers = controllers_config(options, shape, &pki, manager).await?;
    controllers.election = election("kube-controller-manager");
    let keys = pki.clone();
    components.supervise("controllers", move |stop| {
        run_controllers(controllers.clone(), keys.clone(), authority_changes.clone(), stop)
    });
    let mut scheduler = scheduler::Config::new(as_user("system:kube-scheduler", &["system:authenticated"]));
    scheduler.election = election("kube-scheduler");
    scheduler.serving = Some(own_port(shape, SCHEDULER_PORT));
    if let Some(configuration) = shape.components.scheduler()? {
        scheduler.configuration = configuration;
    }
    components.supervise("scheduler", move |stop| scheduler::run(scheduler.clone(), stop));
    progress.done("control loops", "controllers, scheduler");

    let settings = own_settings(options, shape, &network)?;
    let clients = nodes::Clients {
        kubelet: as_user(&format!("system:node:{node_name}"), &["system:nodes", "system:authenticated"]),
        proxy: as_user("system:kube-proxy", &["system:authenticated"]),
    };
    if !nodes::all(options)?.is_empty() {
        nodes::ensure_bridge(&network)?;
    }
    components.until(if_possible(network_policy::ensure_role(&admin))).await?;
    start_encryption(shape, &admin, components).await?;
    usual_place::ensure(options);
    let node = nodes::Node { options, settings: &settings, pki: &pki, clients, pulls: None, summaries };
    let gateway = node.start(components).await?;
    progress.done("node", &format!("{node_name}, pods in {}", shape.cluster_cidr));

    let (own, own_shape) = (options.clone(), shape.clone());
    components.supervise("certificates", move |stop| certificates::keep(own.clone(), own_shape.clone(), stop));
    components.until(local_volumes::ensure(&admin)).await?;
    components.until(metrics_reader::ensure(&admin)).await?;
    let server = url(node_ip, shape.secure_port);
    let (ca, _) = pki.authority_files()?;
    let published = join::publish(&admin, &server, &ca, &settings.cluster);
    components.until(published).await?;
    components.supervise("authority", move |stop| authority.clone().take_part(stop));
    if shape.etcd.is_used()
        && let Some(in_force) = encryption_in_force
    {
        let (options, node, admin) = (options.clone(), node_name.clone(), admin.clone());
        let keys = key_rotation::Server { options, node, admin, in_force };
        components.supervise("encryption keys", move |stop| keys.clone().follow(stop));
    }
    components.until(upgrade::ensure_role(&admin)).await?;
    let machine = upgrade::Machine::server(options, &node_name, &admin);
    components.supervise("upgrade", move |stop| machine.clone().follow(stop));
    let mut ranges = node_network::ranges(&format!("{},{},{}", shape.cluster_cidr, shape.service_cidr, network.range))?;
    ranges.extend(network.second);
    let (names, addresses) = certified(shape, &network)?;
    let reserved = join::Reserved { ranges, addresses, names };
    let approver = admin.clone();
    components.supervise("approval", move |stop| join::approve(approver.clone(), reserved.clone(), stop));
    components.until(dns_service::ensure_role(&admin)).await?;
    components.until(dns_service::ensure_corefile(&admin, &shape.cluster_domain)).await?;
    let service_account = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
    let mut dns = dns_service::config(&settings.cluster, as_user(dns_service::USER, &service_account), gateway);
    dns.upstreams = dns::resolvers(Path::new("/etc/resolv.conf"))?;
    dns.search = dns::search_domains(Path::new("/etc/resolv.conf"))?;
    if shape.has_gateway {
        let (admin, own) = (admin.clone(), as_user(ingress::USER, &["system:authenticated"]));
        let config = ingress::config(shape, own, gateway)?;
        let election = election("cox-gateway");
        components
            .supervise("gateway", move |stop| ingress::run(admin.clone(), config.clone(), election.clone(), stop));
    } else {
        ingress::remove_leftovers(Vec::new()).await?;
    }
    let dns_serving = dns.serving.clone();
    components.supervise("dns", move |stop| dns::run(dns.clone(), stop));
    components.until(dns_service::ensure(&admin, dns_address, (&node_name, gateway))).await?;
    let (follower, first, is_alone) = (admin.clone(), (node_name.clone(), gateway), !shape.etcd.is_used());
    components
        .supervise("dns endpoints", move |stop| dns_service::follow(follower.clone(), first.clone(), is_alone, stop));
    if shape.etcd.is_used() {
        let (follower, options, pki, own) = (admin.clone(), options.clone(), pki.clone(), own_url(shape));
        components.supervise("servers", move |stop| {
            keep_kubeconfig(follower.clone(), options.clone(), pki.clone(), own.clone(), stop)
        });
    }
    progress.done("network", &format!("proxy, DNS at {dns_address}"));

    if let Some(schedule) = shape.backups.clone() {
        let (own, etcd) = (options.clone(), shape.etcd.clone());
        components.supervise("backups", move |stop| backups::keep(own.clone(), etcd.clone(), schedule.clone(), stop));
    }
    let (kept, own, name) = (admin.clone(), options.clone(), node_name.clone());
    components.supervise("manifests", move |stop| manifests::keep(kept.clone(), own.clone(), name.clone(), stop));
    let (cluster, shape_of_nodes) = (options.clone(), shape.clone());
    let further: Vec<nodes::Record> = nodes::all(options)?;
    let supervisor = nodes::Supervisor {
        cluster,
        shape: shape_of_nodes,
        network,
        pki,
        admin: admin.clone(),
        first_node: shape.node_ips.clone(),
        dns: (gateway, dns_service::PORT).into(),
    };
    components.spawn("nodes", supervisor.run(nudges, components.stop.clone()));
    components.until(nodes::until_ready(&admin, &node_name)).await?;
    components.until(node_roles::mark_server(&admin, &node_name, &shape.taints)).await?;
    let wanted = further.iter().filter(|record| record.wanted == nodes::Wanted::Running);
    for record in wanted.clone() {
        components.until(nodes::until_ready(&admin, &record.name)).await?;
    }
    if !further.is_empty() {
        let names: Vec<&str> = wanted.map(|record| record.name.as_str()).collect();
        progress.done("further nodes", &names.join(", "));
    }
    components.until(dns_service::answers(gateway, &dns_serving, api_address, &shape.cluster_domain)).await?;
    if shape.etcd.is_used() {
        let (own, name) = (admin.clone(), node_name.clone());
        components
            .supervise("dns announcement", move |stop| dns_service::announce(own.clone(), name.clone(), gateway, stop));
    }
    progress.ready();
    Ok(())
}

/// The configuration of the controllers, but for their election.
async fn controllers_config(
    options: &Options,
    shape: &Shape,
    pki: &Pki,
    manager: Client,
) -> Result<controllers::Config> {
    let controllers = shape.components.controllers(manager).await?;
    let mut controllers = controllers.with_cluster_cidr(&shape.cluster_cidr)?.with_service_cidr(&shape.service_cidr)?;
    // The cluster file may say that it is less.
    controllers.signing_duration = controllers.signing_duration.min(shape.certificate_validity);
    controllers.service_account_key = Some(read(&pki.key("sa"))?);
    controllers.controllers.extend(CONTROLLERS.map(str::to_owned));
    controllers.serving = Some(own_port(shape, CONTROLLER_MANAGER_PORT));
    if shape.has_load_balancer {
        controllers.controllers.push("service-lb-controller".into());
    }
    controllers.load_balancing = controllers::LoadBalancing {
        reserved_ports: reserved_ports(shape),
        gateway_ports: shape.has_gateway.then_some(shape.gateway_ports),
        gateway_controller: gateway::GATEWAY_CONTROLLER,
    };
    // Volumes of earlier versions: every node was on this machine.
    controllers.local_path = controllers::LocalPath { root: options.data_dir.join("local-path"), removes: true };
    Ok(controllers)
}

/// Ports of the nodes' addresses at which nodes themselves answer: a service that got one would be sent what is meant for them.
fn reserved_ports(shape: &Shape) -> BTreeSet<u16> {
    let of_components = [shape.secure_port, shape.kubelet_port, CONTROLLER_MANAGER_PORT, SCHEDULER_PORT];
    let of_members = shape.ha.ha.then_some(members::PORTS);
    of_components
        .into_iter()
        .chain([nodes::PROXY_HEALTH_PORT, cni::routes::VxlanConfig::default().port])
        .chain(shape.encryption.into_iter().flat_map(Encryption::ports))
        .chain(of_members.into_iter().flatten())
        .collect()
}

/// The settings of this machine's node.
fn own_settings(options: &Options, shape: &Shape, network: &nodes::Network) -> Result<Settings> {
    Ok(Settings {
        name: shape.node_name.clone(),
        address: shape.node_ip()?,
        second_address: shape.node_ips.get(1).copied(),
        kubelet_port: shape.kubelet_port,
        cluster: ClusterSettings::new(shape)?,
        registries: shape.registries.clone(),
        images_dir: options.images_dir(),
        also_behind: [network.range].into_iter().chain(network.second).map(|range| range.to_string()).collect(),
        asks_for_certificate: false,
        resolvers: None,
        labels: shape.labels.clone(),
        taints: shape.taints.clone(),
    })
}

/// What is better done now and need not be: admission may need a pod that only the node can start, and a role from earlier is
/// as good.
async fn if_possible(writing: impl Future<Output = Result<()>>) -> Result<()> {
    if let Err(error) = writing.await {
        tracing::warn!("{error:#}");
    }
    Ok(())
}

/// Keys for the traffic between nodes, or an end of them.
async fn start_encryption(shape: &Shape, admin: &Client, components: &mut Components) -> Result<()> {
    match shape.encryption {
        Some(_) => {
            let (keeper, period) = (admin.clone(), shape.encryption_rotation);
            components.supervise("wireguard keys", move |stop| wireguard_keys::keep(keeper.clone(), period, stop));
        }
        None => components.until(if_possible(wireguard_keys::forget(admin))).await?,
    }
    Ok(())
}

/// Runs the controllers with the authority that signs; once more, when that is another.
async fn run_controllers(
    mut config: controllers::Config,
    pki: Pki,
    mut changes: tokio::sync::watch::Receiver<()>,
    stop: CancellationToken,
) -> Result<()> {
    loop {
        changes.mark_unchanged();
        let signer = pki.authority_files()?;
        config.root_ca = Some(signer.0.clone());
        config.signer = Some(signer);
        let own = stop.child_token();
        let mut running = controllers::run(config.clone(), own.clone());
        tokio::select! {
            ended = &mut running => return ended,
            // Whoever tells of changes may end first.
            Ok(()) = changes.changed() => {}
        }
        own.cancel();
        running.await?;
        if stop.is_cancelled() {
            return Ok(());
        }
        tracing::info!("the controllers go on with the authorities of now");
    }
}

/// Where a component shows its health and metrics: where upstream's does, unless another cluster on this machine was first.
/// Profiles are the whole process's, and the API server shows them.
fn own_port(shape: &Shape, port: u16) -> Serving {
    let bind = (shape::everywhere(shape.node_ips.iter().copied()), port).into();
    Serving { bind, tls: None, profiling: false, is_optional: true }
}

/// Keeps a way to every server in the administrator's kubeconfig, until `stop`.
async fn keep_kubeconfig(
    admin: Client,
    options: Options,
    pki: Pki,
    own: String,
    stop: CancellationToken,
) -> Result<()> {
    let keep = |servers: Vec<String>| -> Result<()> {
        let access = Access::admin(&options.name, &own, &pki)?;
        access.with_servers(servers).merge_into(&options.admin_kubeconfig())
    };
    follow_servers(&admin, stop, |servers| {
        if let Err(error) = keep(servers) {
            tracing::warn!("the kubeconfig does not name all servers: {error:#}");
        }
    })
    .await;
    Ok(())
}

async fn apiserver_config(options: &Options, shape: &Shape, pki: &Pki, node_ip: IpAddr) -> Result<apiserver::Config> {
    let storage = match shape.etcd.is_used() {
        true => {
            let mut options = shape.etcd.options();
            // Of others' members only they know where they are reached.
            options.follows_members = shape.ha.ha;
            apiserver::Storage::Etcd(options)
        }
        false => apiserver::Storage::Embedded(options.store_dir()),
    };
    let mut config = shape.components.apiserver()?;
    config.storage = storage;
    if let Some(prefix) = shape.etcd.prefix() {
        config.etcd_prefix = prefix.to_owned();
    }
    let encryption = encryption::ensure(options, &shape.etcd).await?;
    // Keys are exchanged while the cluster runs.
    config.encryption = Some(apiserver::EncryptionFile { path: encryption, automatic_reload: true });
    config.history_file = Some(options.history_file());
    config.programs_dir = Some(options.programs_dir());
    config.history_remote_write = shape.history_remote_write.clone();
    // What is wrong with a file was told before (`Flags::check_files`); what comes through a pipe is read here and only here.
    let traces = shape.tracing_config_file.as_deref().map(apiserver::TracingConfiguration::load);
    let loaded = traces.map(|loaded| loaded.inspect_err(|error| tracing::warn!(%error, "no traces are exported")));
    config.tracing = loaded.and_then(Result::ok);
    config.bind = (shape::everywhere(shape.node_ips.iter().copied()), shape.secure_port).into();
    config.advertise_address = Some(node_ip);
    config.tls_cert_file = Some(pki.certificate("apiserver"));
    config.tls_private_key_file = Some(pki.key("apiserver"));
    config.client_ca_file = Some(pki.certificate("ca"));
    config.requestheader_client_ca_file = Some(pki.certificate("front-proxy-ca"));
    config.requestheader_allowed_names = vec!["front-proxy-client".into()];
    config.proxy_client_cert_file = Some(pki.certificate("front-proxy-client"));
    config.proxy_client_key_file = Some(pki.key("front-proxy-client"));
    config.enable_bootstrap_token_auth = true;
    config.service_account_key_files = vec![pki.service_account_public_key()];
    config.service_account_signing_key_file = Some(pki.key("sa"));
    config.service_account_issuers = shape.issuers.clone();
    config.service_cluster_ip_ranges = node_network::list(&shape.service_cidr)
        .iter()
        .map(|range| range.parse().map(|range: Cidr| range.network()).map_err(|error| anyhow!("{range}: {error}")))
        .collect::<Result<_>>()?;
    if config.authorization_config_file.is_none() {
        config.authorizers = vec![apiserver::Authorizer::Node, apiserver::Authorizer::Rbac];
    }
    // Before what the cluster file says, which may turn it off.
    config.runtime_config.0.splice(0..0, APIS.map(|api| (api.to_owned(), true)));
    config.enable_admission_plugins.extend(ADMISSION_PLUGINS.map(str::to_owned));
    config.kubelet_client_certificate = Some(pki.certificate("apiserver-kubelet-client"));
    config.kubelet_client_key = Some(pki.key("apiserver-kubelet-client"));
    config.kubelet_certificate_authority = Some(pki.certificate("ca"));
    Ok(config)
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    UserInfo { name: name.to_owned(), groups, ..UserInfo::default() }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ha::Ha;

    #[test]
    fn security_services_get_no_port_at_which_nodes_answer() {
        for (ha, encrypt, more) in
            [(false, false, vec![]), (true, false, vec![2379, 2380]), (true, true, vec![2379, 2380, 51820, 51821])]
        {
            let flags = Flags { ha: Ha { ha, ..Ha::default() }, encrypt: Some(encrypt), ..Flags::default() };
            let reserved = reserved_ports(&flags.shape().unwrap());
            let expected = [6443, 8472, 10250, 10256, 10257, 10259].into_iter().chain(more).collect::<BTreeSet<u16>>();
            assert_eq!(reserved, expected, "{ha} {encrypt}");
        }
    }
}
