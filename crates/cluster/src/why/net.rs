//! Whether a pod may connect to another pod, a service or an address, what decides that, and whether what goes between their
//! nodes is encrypted.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use api::cached::Pod as PodObject;
use client::{Client, Gvr, ListParams};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node as NodeObject};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use policy::cluster_policy::{ClusterNetworkPolicy, ClusterPolicy, GROUP, PLURAL, VERSION};
use policy::decision::{Decision, End as Peer, decide};
use policy::world::{Direction, Node, Pod, Policy, Protocol, World};

use super::{Cause, service};
use crate::wireguard_keys;

/// Whom a word of the command line means.
#[derive(Debug, PartialEq, Eq)]
enum End<'a> {
    /// `pod/NAME` or `pod/NAMESPACE/NAME`
    Pod(String),
    /// `service/NAME`, or a name that DNS knows: `NAME.NAMESPACE.svc`.
    Service(String),
    Address(IpAddr),
    /// A name of somebody outside.
    Elsewhere(&'a str),
}

/// A port by its number or name, such as `80`, `http` or `53/UDP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) protocol: Protocol,
}

impl Port {
    fn parse(text: &str) -> Option<Self> {
        let (name, protocol) = text.split_once('/').unwrap_or((text, "TCP"));
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        let port = Self { name: name.to_owned(), protocol: Protocol::parse(Some(&protocol.to_uppercase()))? };
        (!name.is_empty() && (!is_number || port.number().is_some())).then_some(port)
    }

    pub(super) fn number(&self) -> Option<u16> {
        self.name.parse().ok()
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.name, self.protocol.name().to_uppercase())
    }
}

/// Who connects, or whom one connects to, with the port of the latter.
#[derive(Debug, PartialEq, Eq)]
struct Words<'a> {
    end: End<'a>,
    port: Option<Port>,
    text: &'a str,
}

impl<'a> Words<'a> {
    fn parse(text: &'a str, namespace: &str) -> Result<Self> {
        let wrong = || format!("{text:?} is not pod/NAME, service/NAME, a name or an address, each with :PORT");
        let kinds = ["pod/", "service/", "svc/"];
        let (kind, rest) = kinds.iter().find_map(|kind| Some((*kind, text.strip_prefix(kind)?))).unwrap_or(("", text));
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').with_context(wrong)?)),
            None if rest.parse::<IpAddr>().is_ok() => (rest, None),
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let key = || if host.contains('/') { host.to_owned() } else { format!("{namespace}/{host}") };
        let end = match (kind, host.parse::<IpAddr>()) {
            _ if host.is_empty() => bail!(wrong()),
            ("pod/", _) => End::Pod(key()),
            ("", Ok(address)) => End::Address(address),
            ("", Err(_)) if host.contains('/') => bail!(wrong()),
            ("", Err(_)) => match host.trim_end_matches('.').split('.').collect::<Vec<_>>()[..] {
                [name] => End::Service(format!("{namespace}/{name}")),
                [name, namespace] | [name, namespace, "svc", ..] => End::Service(format!("{namespace}/{name}")),
                _ => End::Elsewhere(host),
            },
            _ => End::Service(key()),
        };
        let port = port.map(|port| Port::parse(port).with_context(wrong)).transpose()?;
        Ok(Self { end, port, text })
    }
}

/// `cox why net pod/a pod/b:80`.
pub(super) async fn explain(client: &Client, ends: &[String]) -> Result<(String, Cause)> {
    let [from, to] = ends else { bail!("who, and whom? Such as: cox why net pod/a pod/b:80") };
    let namespace = client.default_namespace();
    let (from, to) = (Words::parse(from, namespace)?, Words::parse(to, namespace)?);
    let End::Pod(source) = &from.end else { bail!("{} connects to nobody: who does is a pod, pod/NAME", from.text) };
    let Some(port) = &to.port else { bail!("which port of {}? Such as: {}:80", to.text, to.text) };
    let world = world(client).await?;
    let cause = match &to.end {
        End::Pod(target) => to_pod(client, &world, source, target, port).await?,
        End::Service(service) => {
            let facts = service::Facts::gather(client, world, source).await?;
            service::cause(&facts, source, service, service::Asked::ByName, port)?
        }
        End::Address(address) => {
            match world.pods.values().find(|pod| pod.has_network && pod.addresses.contains(address)) {
                Some(pod) => to_pod(client, &world, source, &pod.key(), port).await?,
                None => {
                    let facts = service::Facts::gather(client, world, source).await?;
                    match facts.service_at(*address) {
                        Some(service) => {
                            service::cause(&facts, source, &service, service::Asked::ByAddress(*address), port)?
                        }
                        None => outside(&facts.world, source, *address, port)?,
                    }
                }
            }
        }
        End::Elsewhere(name) => {
            let facts = service::Facts::gather(client, world, source).await?;
            service::elsewhere(&facts, source, name)?
        }
    };
    Ok((format!("{} to {}", from.text, to.text), cause))
}

/// What policies say of two pods, and what becomes of their packets between nodes.
async fn to_pod(client: &Client, world: &World, source: &str, target: &str, port: &Port) -> Result<Cause> {
    let cause = cause(world, source, target, port)?;
    let (Some(source), Some(target)) = (world.pods.get(source), world.pods.get(target)) else { return Ok(cause) };
    let nodes = client.all::<NodeObject>().list(&ListParams::default()).await?.items;
    let map = client.namespaced::<ConfigMap>(wireguard_keys::NAMESPACE).get_opt(wireguard_keys::NAME).await;
    let encrypts = match map {
        Ok(map) => Encrypts::from(map.is_some()),
        // Whoever asks may see less than the cluster has.
        Err(error) => Encrypts::Unknown(error.to_string()),
    };
    Ok(between_nodes(cause, source, target, &nodes, &encrypts))
}

/// Whether the cluster encrypts what pods send to pods of other nodes.
enum Encrypts {
    Yes,
    No,
    Unknown(String),
}

impl From<bool> for Encrypts {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// Adds the way between two nodes. Decides, never awaits.
fn between_nodes(mut cause: Cause, source: &Pod, target: &Pod, nodes: &[NodeObject], encrypts: &Encrypts) -> Cause {
    if source.node == target.node || source.node.is_empty() || target.node.is_empty() {
        return cause;
    }
    let hop = format!("from node {} to node {}", source.node, target.node);
    if let Some(host) = [source, target].into_iter().find(|pod| !pod.has_network) {
        return cause.because(format!("{hop}: not encrypted, {} has no address of its own", host.key()));
    }
    match encrypts {
        Encrypts::No => return cause.because(format!("{hop}: not encrypted ('cox up --encrypt')")),
        Encrypts::Unknown(why) => {
            return cause.because(format!("{hop}: whether it is encrypted cannot be seen: {why}"));
        }
        Encrypts::Yes => {}
    }
    let keys = |name: &str| {
        let node = nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name));
        node.and_then(wireguard_keys::announcement).map(|said| said.keys).unwrap_or_default()
    };
    let (ours, theirs) = (keys(&source.node), keys(&target.node));
    match ours.keys().rev().find(|generation| theirs.contains_key(*generation)) {
        Some(generation) => cause.because(format!("{hop}: encrypted with WireGuard, keys of generation {generation}")),
        None => {
            let silent = if ours.is_empty() { &source.node } else { &target.node };
            cause.summary = "the nodes have no WireGuard keys in common".to_owned();
            cause
                .because(format!("{hop}: closed, because nothing is sent that is not encrypted"))
                .then(format!("is the node up? cox why node/{silent}, and its log: cox logs"))
        }
    }
}

async fn world(client: &Client) -> Result<World> {
    let all = ListParams::default();
    let pods = client.all::<PodObject>().list(&all).await?.items;
    let namespaces = client.all::<Namespace>().list(&all).await?.items;
    let policies = client.all::<NetworkPolicy>().list(&all).await?.items;
    let nodes = client.all::<NodeObject>().list(&all).await?.items;
    let nodes = nodes.iter().map(|node| (client::object_key(node), Arc::new(Node::new(node))));
    let pods = pods.iter().map(Pod::new).map(|pod| (pod.key(), Arc::new(pod)));
    let policies = policies.iter().map(Policy::new).map(|policy| (policy.key(), Arc::new(policy)));
    let namespaces = namespaces
        .into_iter()
        .map(|namespace| (namespace.metadata.name.unwrap_or_default(), namespace.metadata.labels.unwrap_or_default()));
    let of_cluster = match client.view::<ClusterNetworkPolicy>(&Gvr::new(GROUP, VERSION, PLURAL), None).list(&all).await
    {
        Ok(list) => list.items,
        // The cluster has no such kind.
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let of_cluster = of_cluster.iter().map(ClusterPolicy::new).map(|policy| (policy.name.clone(), Arc::new(policy)));
    Ok(World {
        pods: pods.collect(),
        namespaces: namespaces.collect(),
        policies: policies.collect(),
        cluster_policies: of_cluster.collect(),
        nodes: nodes.collect(),
    })
}

pub(super) fn find<'w>(world: &'w World, key: &str) -> Result<&'w Arc<Pod>> {
    world.pods.get(key).with_context(|| format!("there is no pod {key}"))
}

/// Decides, never awaits.
fn cause(world: &World, from: &str, to: &str, port: &Port) -> Result<Cause> {
    let (source, target) = (find(world, from)?, find(world, to)?);
    let number = port.number().or_else(|| target.port(&port.name, port.protocol));
    let number = number.with_context(|| format!("pod {to} has no port with the name {}", port.name))?;
    let has_family = |address: &&IpAddr| source.addresses.iter().any(|own| own.is_ipv6() == address.is_ipv6());
    let address = target.addresses.iter().find(has_family).or(target.addresses.first());
    let address = *address.with_context(|| format!("pod {to} has no address yet"))?;
    Ok(judge(world, source, Peer { address, pod: Some(target) }, port.protocol, number)?.into_cause())
}

/// Somebody who is neither a pod nor a service.
fn outside(world: &World, from: &str, address: IpAddr, port: &Port) -> Result<Cause> {
    let number = port.number().with_context(|| format!("which port of {address}? {} is no number", port.name))?;
    let target = Peer { address, pod: None };
    Ok(judge(world, find(world, from)?, target, port.protocol, number)?.into_cause())
}

/// What policies say of a connection, at both of its ends.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) evidence: Vec<String>,
    pub(super) next: Vec<String>,
    pub(super) is_denied: bool,
}

impl Judged {
    fn into_cause(self) -> Cause {
        let summary = if self.is_denied { "network policies forbid it" } else { "no network policy is in the way" };
        Cause { summary: summary.to_owned(), evidence: self.evidence, next: self.next }
    }
}

pub(super) fn judge(world: &World, source: &Pod, target: Peer<'_>, protocol: Protocol, port: u16) -> Result<Judged> {
    let same = |own: &&IpAddr| own.is_ipv6() == target.address.is_ipv6();
    let own = source.addresses.iter().find(same).or(source.addresses.first()).copied();
    let own = own.with_context(|| format!("pod {} has no address yet", source.key()))?;
    let mut judged = Judged::default();
    let ends = [
        (Direction::Egress, "egress", Some(source), target),
        (Direction::Ingress, "ingress", target.pod, Peer { address: own, pod: Some(source) }),
    ];
    for (direction, word, subject, peer) in ends {
        let Some(subject) = subject else {
            judged.evidence.push(format!("{word} of {}: not judged, it is no pod", target.address));
            continue;
        };
        let key = subject.key();
        if !subject.has_network {
            let why = "not judged, it has the network of its node or has ended";
            judged.evidence.push(format!("{word} of {key}: {why}"));
            continue;
        }
        let decision = decide(world, direction, subject, peer, protocol, port);
        judged.is_denied |= !decision.is_allowed();
        let says = match decision {
            Decision::Open => "no policy selects it".to_owned(),
            Decision::Allowed(policy) => format!("allowed by {policy}"),
            Decision::Ruled { policy, rule, tier, is_accepted } => {
                if !is_accepted {
                    judged.next.push(format!("cox kubectl describe clusternetworkpolicy {policy}"));
                }
                let says = if is_accepted { "accepted" } else { "denied" };
                format!("{says} by rule {rule} of the cluster's policy {policy} (tier {})", tier.name())
            }
            Decision::Denied(policies) => {
                let (namespace, name) = client::split_key(&policies[0]);
                judged.next.push(format!("cox kubectl describe networkpolicy {name} -n {namespace}"));
                format!("none of the policies that select it allows this: {}", policies.join(", "))
            }
        };
        judged.evidence.push(format!("{word} of {key}: {says}"));
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ends_are_pods_services_names_and_addresses() {
        let pod = |key: &str| End::Pod(key.into());
        let service = |key: &str| End::Service(key.into());
        let address = |text: &str| End::Address(text.parse().unwrap());
        for (text, end, port) in [
            ("pod/a", pod("default/a"), ""),
            ("pod/other/a:80", pod("other/a"), "80/TCP"),
            ("pod/a:53/udp", pod("default/a"), "53/UDP"),
            ("pod/a:http", pod("default/a"), "http/TCP"),
            ("service/web:80", service("default/web"), "80/TCP"),
            ("svc/other/web:dns/UDP", service("other/web"), "dns/UDP"),
            ("web:80", service("default/web"), "80/TCP"),
            ("web.other:80", service("other/web"), "80/TCP"),
            ("web.other.svc:80", service("other/web"), "80/TCP"),
            ("web.other.svc.cluster.local.:80", service("other/web"), "80/TCP"),
            ("www.example.com:443", End::Elsewhere("www.example.com"), "443/TCP"),
            ("192.0.2.1:443", address("192.0.2.1"), "443/TCP"),
            ("192.0.2.1", address("192.0.2.1"), ""),
            ("fd43::9", address("fd43::9"), ""),
            ("[fd43::9]:53/UDP", address("fd43::9"), "53/UDP"),
        ] {
            let words = Words::parse(text, "default").unwrap();
            assert_eq!((words.end, words.port.map_or(String::new(), |port| port.to_string())), (end, port.into()));
        }
        for wrong in ["", "pod/", "a/b:80", "pod/a:", "pod/a:80/icmp", "pod/a:99999", "[fd43::9]80", ":80"] {
            assert!(Words::parse(wrong, "default").is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_way_between_nodes_is_encrypted_or_not() {
        let pod = |name: &str, node: &str, host: bool| -> Pod {
            let object = json!({"metadata": {"namespace": "default", "name": name},
                "spec": {"containers": [], "nodeName": node, "hostNetwork": host}, "status": {"podIP": "10.42.0.2"}});
            Pod::new(&api::codec::from_value(&object).unwrap())
        };
        let key = wireguard::PrivateKey::generate().unwrap().public();
        let node = |name: &str, generations: &[u64]| -> NodeObject {
            let keys = generations.iter().map(|generation| (*generation, key)).collect();
            let said = wireguard::Announcement { port: 1, keys }.to_text();
            serde_json::from_value(json!({"metadata": {"name": name, "annotations": {wireguard::ANNOTATION: said}}}))
                .unwrap()
        };
        let nodes = [node("one", &[3, 4]), node("two", &[3]), node("three", &[])];
        let (a, b, c, host) =
            (pod("a", "one", false), pod("b", "two", false), pod("c", "three", false), pod("d", "two", true));
        let said = |from: &Pod, to: &Pod, encrypts: Encrypts| {
            between_nodes(Cause::new("no network policy is in the way"), from, to, &nodes, &encrypts).render("it")
        };
        for (to, encrypts, expected) in [
            (&b, Encrypts::Yes, "encrypted with WireGuard, keys of generation 3"),
            (&b, Encrypts::No, "from node one to node two: not encrypted ('cox up --encrypt')"),
            (&b, Encrypts::Unknown("forbidden".into()), "cannot be seen: forbidden"),
            (&c, Encrypts::Yes, "the nodes have no WireGuard keys in common"),
            (&c, Encrypts::Yes, "cox why node/three"),
            (&host, Encrypts::Yes, "not encrypted, default/d has no address of its own"),
        ] {
            let said = said(&a, to, encrypts);
            assert!(said.contains(expected), "{said}");
        }
        assert!(!said(&a, &pod("e", "one", false), Encrypts::Yes).contains("from node"));
    }

    #[test]
    fn the_policy_that_decides_is_named() {
        let pod = |name: &str, address: &str| -> (String, Arc<Pod>) {
            let object = json!({"metadata": {"namespace": "default", "name": name, "labels": {"app": name}},
                "spec": {"containers": []}, "status": {"podIP": address}});
            let pod = Pod::new(&api::codec::from_value(&object).unwrap());
            (pod.key(), Arc::new(pod))
        };
        let policy = |name: &str, spec| -> (String, Arc<Policy>) {
            let object = json!({"metadata": {"namespace": "default", "name": name}, "spec": spec});
            let policy = Policy::new(&serde_json::from_value(object).unwrap());
            (policy.key(), Arc::new(policy))
        };
        let allow = json!({"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [
            {"from": [{"podSelector": {"matchLabels": {"app": "a"}}}], "ports": [{"port": 80}]}]});
        let mut world = World {
            pods: [pod("a", "10.42.0.2"), pod("b", "10.42.0.3"), pod("c", "10.42.0.4")].into(),
            namespaces: Default::default(),
            policies: [policy("allow", allow)].into(),
            cluster_policies: Default::default(),
            ..World::default()
        };
        let tcp = |port: u16| Port { name: port.to_string(), protocol: Protocol::Tcp };
        let said = |world: &World, from: &str, to: &str, port| {
            let cause = cause(world, &format!("default/{from}"), &format!("default/{to}"), &tcp(port));
            cause.unwrap().render("it")
        };
        assert!(said(&world, "a", "b", 80).contains("ingress of default/b: allowed by default/allow"));
        assert!(said(&world, "b", "c", 80).contains("no network policy is in the way"));
        for denied in [said(&world, "c", "b", 80), said(&world, "a", "b", 81)] {
            assert!(
                denied.contains("forbid it") && denied.contains("describe networkpolicy allow -n default"),
                "{denied}"
            );
        }
        assert!(cause(&world, "default/x", "default/a", &tcp(1)).is_err());
        let outside = |world: &World| outside(world, "default/b", "192.0.2.9".parse().unwrap(), &tcp(443)).unwrap();
        assert!(outside(&world).render("it").contains("ingress of 192.0.2.9: not judged, it is no pod"));

        let of_cluster = json!({"metadata": {"name": "quiet"}, "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "egress": [{"name": "nobody", "action": "Deny", "to": [{"networks": ["10.42.0.4/32"]}]}]}});
        let of_cluster = ClusterPolicy::new(&serde_json::from_value(of_cluster).unwrap());
        world.cluster_policies = [("quiet".to_owned(), Arc::new(of_cluster))].into();
        let denied = said(&world, "b", "c", 80);
        assert!(
            denied.contains("egress of default/b: denied by rule nobody of the cluster's policy quiet (tier Admin)")
                && denied.contains("describe clusternetworkpolicy quiet"),
            "{denied}"
        );
    }
}
