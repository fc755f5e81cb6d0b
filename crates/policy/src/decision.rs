//! Whether one connection is allowed, and why: policy by policy, rule by rule. What the kernel holds must decide the same.

use std::net::IpAddr;

use crate::world::{Direction, Peer, Pod, Policy, Protocol, Rule, Which, World};

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
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        !matches!(self, Self::Denied(_))
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
    let mut isolating = Vec::new();
    for policy in world.policies_of(subject, direction) {
        let rules = policy.rules(direction).unwrap_or_default();
        let receiver = match direction {
            Direction::Ingress => Some(subject),
            Direction::Egress => peer.pod,
        };
        if rules.iter().any(|rule| allows(world, policy, rule, peer, receiver, protocol, port)) {
            return Decision::Allowed(policy.key());
        }
        isolating.push(policy.key());
    }
    if isolating.is_empty() { Decision::Open } else { Decision::Denied(isolating) }
}

fn allows(
    world: &World,
    policy: &Policy,
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
        pods => peer.pod.is_some_and(|pod| pod.has_network && world.is_peer(pod, pods, &policy.namespace)),
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
