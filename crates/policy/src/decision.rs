//! Whether one connection is allowed, and why: policy by policy, rule by rule. What the kernel holds must decide the same.

use std::net::IpAddr;

use crate::cluster_policy::{Action, Tier};
use crate::world::{Direction, Peer, Pod, Protocol, Rule, Which, World};

/// Somebody who sends or receives: a pod, or just an address.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    pub address: IpAddr,
    pub pod: Option<&'a Pod>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No policy isolates the pod in this direction.
    Open,
    /// By the named policy.
    Allowed(String),
    /// Policies isolate the pod, and none of them allows this.
    Denied(Vec<String>),
    /// A rule of a ClusterNetworkPolicy says so.
    Ruled { policy: String, rule: String, tier: Tier, is_accepted: bool },
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        !matches!(self, Self::Denied(_) | Self::Ruled { is_accepted: false, .. })
    }
}

/// What the policies of `subject` say of a connection with `peer`, to this port of whoever receives.
pub fn decide(
    world: &World,
    direction: Direction,
    subject: &Pod,
    peer: End<'_>,
    protocol: Protocol,
    port: u16,
) -> Decision {
    if peer.pod.is_some_and(|peer| peer.key() == subject.key()) {
        return Decision::Open; // nobody is kept from itself
    }
    let receiver = match direction {
        Direction::Ingress => Some(subject),
        // In the network of a node, ports are the node's, and have no names.
        Direction::Egress => peer.pod.filter(|pod| pod.has_network),
    };
    let means = |rule: &Rule, namespace: &str| means(world, namespace, rule, peer, receiver, protocol, port);
    let of_tier = |tier: Tier| {
        let mut rules = world.cluster_rules(subject, tier, direction).into_iter();
        let (policy, rule) = rules.find(|(_, rule)| means(&rule.rule, ""))?;
        let is_accepted = match rule.action {
            Action::Accept => true,
            Action::Deny => false,
            Action::Pass => return None,
        };
        Some(Decision::Ruled { policy: policy.name.clone(), rule: rule.name.clone(), tier, is_accepted })
    };
    if let Some(ruled) = of_tier(Tier::Admin) {
        return ruled;
    }
    let mut isolating = Vec::new();
    for policy in world.policies_of(subject, direction) {
        let rules = policy.rules(direction).unwrap_or_default();
        if rules.iter().any(|rule| means(rule, &policy.namespace)) {
            return Decision::Allowed(policy.key());
        }
        isolating.push(policy.key());
    }
    if !isolating.is_empty() {
        return Decision::Denied(isolating);
    }
    of_tier(Tier::Baseline).unwrap_or(Decision::Open)
}

/// Whether a rule of a policy in `namespace` speaks of a connection.
fn means(
    world: &World,
    namespace: &str,
    rule: &Rule,
    peer: End<'_>,
    receiver: Option<&Pod>,
    protocol: Protocol,
    port: u16,
) -> bool {
    let is_meant = |meant: &Peer| match meant {
        Peer::Block { range, except } => {
            range.contains(peer.address) && !except.iter().any(|except| except.contains(peer.address))
        }
        Peer::Nodes(nodes) => world.is_node(peer.address, nodes),
        pods => peer.pod.is_some_and(|pod| pod.has_network && world.is_peer(pod, pods, namespace)),
    };
    let is_open = |open: &crate::world::Port| {
        let matches = match &open.which {
            Which::Numbers(first, last) => (*first..=*last).contains(&port),
            Which::Named(name) => receiver.and_then(|pod| pod.port(name, protocol)) == Some(port),
        };
        open.protocol == protocol && matches
    };
    rule.peers.as_ref().is_none_or(|peers| peers.iter().any(is_meant))
        && rule.ports.as_ref().is_none_or(|ports| ports.iter().any(is_open))
}
