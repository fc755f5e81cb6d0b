//! Whether one pod may connect to a port of another, which policy says so, and whether what goes between their nodes is encrypted.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use client::{Client, Gvr, ListParams};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node as NodeObject, Pod as PodObject};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use policy::cluster_policy::{ClusterNetworkPolicy, ClusterPolicy, GROUP, PLURAL, VERSION};
use policy::decision::{Decision, End, decide};
use policy::world::{Direction, Node, Pod, Policy, Protocol, World};

use super::Cause;
use crate::wireguard_keys;

/// `pod/NAME` or `pod/NAMESPACE/NAME`; whoever receives has a port, and perhaps a protocol: `pod/web:53/UDP`.
#[derive(Debug, PartialEq, Eq)]
struct Words<'a> {
    pod: String,
    port: Option<(u16, Protocol)>,
    text: &'a str,
}

impl<'a> Words<'a> {
    fn parse(text: &'a str, namespace: &str) -> Result<Self> {
        let wrong = || format!("{text:?} is not pod/NAME or pod/NAME:PORT");
        let (pod, port) = match text.split_once(':') {
            Some((pod, port)) => (pod, Some(port)),
            None => (text, None),
        };
        let pod = pod.strip_prefix("pod/").with_context(wrong)?;
        let pod = if pod.contains('/') { pod.to_owned() } else { format!("{namespace}/{pod}") };
        let port = match port.map(|port| port.split_once('/').unwrap_or((port, "TCP"))) {
            Some((port, protocol)) => {
                let protocol = Protocol::parse(Some(&protocol.to_uppercase())).with_context(wrong)?;
                Some((port.parse().with_context(wrong)?, protocol))
            }
            None => None,
        };
        Ok(Self { pod, port, text })
    }
}

/// `cox why net pod/a pod/b:80`.
pub(super) async fn explain(client: &Client, ends: &[String]) -> Result<(String, Cause)> {
    let [from, to] = ends else { bail!("who, and whom? Such as: cox why net pod/a pod/b:80") };
    let namespace = client.default_namespace();
    let (from, to) = (Words::parse(from, namespace)?, Words::parse(to, namespace)?);
    let Some((port, protocol)) = to.port else { bail!("which port of {}? Such as: {}:80", to.text, to.text) };
    let world = world(client).await?;
    let mut cause = cause(&world, &from.pod, &to.pod, protocol, port)?;
    if let (Some(source), Some(target)) = (world.pods.get(&from.pod), world.pods.get(&to.pod)) {
        let nodes = client.all::<NodeObject>().list(&ListParams::default()).await?.items;
        let map = client.namespaced::<ConfigMap>(wireguard_keys::NAMESPACE).get_opt(wireguard_keys::NAME).await;
        let encrypts = match map {
            Ok(map) => Encrypts::from(map.is_some()),
            // Whoever asks may see less than the cluster has.
            Err(error) => Encrypts::Unknown(error.to_string()),
        };
        cause = between_nodes(cause, source, target, &nodes, &encrypts);
    }
    Ok((format!("{} to {}", from.text, to.text), cause))
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

/// Decides, never awaits.
fn cause(world: &World, from: &str, to: &str, protocol: Protocol, port: u16) -> Result<Cause> {
    let find = |key: &str| world.pods.get(key).with_context(|| format!("there is no pod {key}"));
    let (source, target) = (find(from)?, find(to)?);
    let end = |pod: &'_ Arc<Pod>| -> Result<std::net::IpAddr> {
        pod.addresses.first().copied().with_context(|| format!("pod {} has no address yet", pod.key()))
    };
    let mut cause = Cause::new("no network policy is in the way");
    let mut is_denied = false;
    for (direction, word, subject, peer) in
        [(Direction::Egress, "egress", source, target), (Direction::Ingress, "ingress", target, source)]
    {
        let key = subject.key();
        if !subject.has_network {
            cause = cause.because(format!("{word} of {key}: not judged, it has the network of its node or has ended"));
            continue;
        }
        let peer = End { address: end(peer)?, pod: Some(peer) };
        match decide(world, direction, subject, peer, protocol, port) {
            Decision::Open => cause = cause.because(format!("{word} of {key}: no policy selects it")),
            Decision::Allowed(policy) => cause = cause.because(format!("{word} of {key}: allowed by {policy}")),
            Decision::Ruled { policy, rule, tier, is_accepted } => {
                is_denied |= !is_accepted;
                let says = if is_accepted { "accepted" } else { "denied" };
                let tier = tier.name();
                cause = cause.because(format!(
                    "{word} of {key}: {says} by rule {rule} of the cluster's policy {policy} (tier {tier})"
                ));
                if !is_accepted {
                    cause = cause.then(format!("cox kubectl describe clusternetworkpolicy {policy}"));
                }
            }
            Decision::Denied(policies) => {
                is_denied = true;
                let all = policies.join(", ");
                cause =
                    cause.because(format!("{word} of {key}: none of the policies that select it allows this: {all}"));
                let (namespace, name) = client::split_key(&policies[0]);
                cause = cause.then(format!("cox kubectl describe networkpolicy {name} -n {namespace}"));
            }
        }
    }
    if is_denied {
        cause.summary = "network policies forbid it".to_owned();
    }
    Ok(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ends_are_pods_and_a_port() {
        let parse = |text| Words::parse(text, "default").ok().map(|words| (words.pod, words.port));
        assert_eq!(parse("pod/a"), Some(("default/a".into(), None)));
        assert_eq!(parse("pod/other/a:80"), Some(("other/a".into(), Some((80, Protocol::Tcp)))));
        assert_eq!(parse("pod/a:53/udp"), Some(("default/a".into(), Some((53, Protocol::Udp)))));
        for wrong in ["a:80", "pod/a:x", "pod/a:80/icmp", "pod/a:99999"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_way_between_nodes_is_encrypted_or_not() {
        let pod = |name: &str, node: &str, host: bool| -> Pod {
            let object = json!({"metadata": {"namespace": "default", "name": name},
                "spec": {"containers": [], "nodeName": node, "hostNetwork": host}, "status": {"podIP": "10.42.0.2"}});
            Pod::new(&serde_json::from_value(object).unwrap())
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
            let pod = Pod::new(&serde_json::from_value(object).unwrap());
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
        let said = |world: &World, from: &str, to: &str, port| {
            let cause = cause(world, &format!("default/{from}"), &format!("default/{to}"), Protocol::Tcp, port);
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
        assert!(cause(&world, "default/x", "default/a", Protocol::Tcp, 1).is_err());

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
