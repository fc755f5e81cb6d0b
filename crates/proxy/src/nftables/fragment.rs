//! What one Service contributes to the tables. Pure.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use api::cidr::Cidr;

use super::base::{FAMILIES, Family, from_pods, mark};
use crate::services::{Protocol, ServicePort, Target};
use crate::settings::Settings;

/// Endpoints for a Local policy and for the whole cluster share a map: the latter's indexes start here.
const CLUSTER_OFFSET: usize = 32768;
/// What the names of sets begin with that say which clients an endpoint has.
pub(super) const CLIENTS: &str = "clients-";
/// As many clients as one endpoint remembers.
const AFFINITY_SIZE: usize = 65536;

/// Of one Service, by family (IPv4, IPv6).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fragment {
    pub(super) families: [Part; 2],
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Part {
    /// (map or set, key) -> value, empty in a set.
    pub(super) elements: BTreeMap<(&'static str, String), String>,
    /// Name -> rules. A name stands for one content only, whoever asks for it.
    pub(super) chains: BTreeMap<String, Vec<String>>,
    /// Name -> declaration.
    pub(super) sets: BTreeMap<String, String>,
}

pub(super) fn fragment(ports: &[ServicePort], settings: &Settings) -> Fragment {
    let mut fragment = Fragment::default();
    for port in ports {
        let family = FAMILIES[usize::from(port.is_v6)];
        let part = &mut fragment.families[usize::from(port.is_v6)];
        Builder { port, family, settings, part }.build();
    }
    fragment
}

/// Where a packet for a frontend may go: an endpoint out of a list.
#[derive(Clone)]
enum Pick {
    /// From the shared map, with this many entries.
    Map { count: usize, offset: usize },
    /// In a chain of the service's own, which remembers.
    Chain(String),
}

impl Pick {
    fn label(&self) -> String {
        match self {
            Self::Map { count, .. } => count.to_string(),
            Self::Chain(name) => name.clone(),
        }
    }
}

/// The two ways packets name a service: by its address, or by a port of the node.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Address(IpAddr),
    NodePort(u16),
}

struct Builder<'a> {
    port: &'a ServicePort,
    family: Family,
    settings: &'a Settings,
    part: &'a mut Part,
}

impl Builder<'_> {
    fn build(&mut self) {
        let port = self.port;
        for addr in &port.here {
            self.element("hairpin", format!("{addr} . {addr}"), String::new());
        }
        for addr in &port.cluster_ips {
            self.internal(By::Address(*addr));
        }
        for addr in &port.external_ips {
            self.external(By::Address(*addr), false);
        }
        for addr in &port.load_balancer_ips {
            self.external(By::Address(*addr), port.is_limited);
        }
        if let Some(number) = port.node_port {
            self.external(By::NodePort(number), false);
        }
    }

    /// The cluster IP.
    fn internal(&mut self, by: By) {
        let port = self.port;
        let (targets, offset) = match port.internal_local {
            true => (&port.local, 0),
            false => (&port.cluster, CLUSTER_OFFSET),
        };
        if targets.is_empty() {
            // Elsewhere there are endpoints, but the policy forbids them: no answer, rather than a refusal.
            return self.unserved(by, !port.cluster.is_empty());
        }
        let pick = self.pick(by, targets, offset);
        let mut rules = Vec::new();
        match (self.settings.masquerade_all, from_pods(self.settings, "!= ", self.family)) {
            (true, _) => rules.push(mark(self.settings)),
            (false, Some(strangers)) => rules.push(format!("{strangers} {}", mark(self.settings))),
            (false, None) => {}
        }
        rules.push(self.pick_rule(by, &pick));
        let kind = if port.internal_local { "cluster-local" } else { "cluster" };
        self.frontend(by, format!("{kind}-{}", pick.label()), rules);
    }

    /// Node ports, external addresses, load balancers.
    fn external(&mut self, by: By, is_limited: bool) {
        let port = self.port;
        if port.cluster.is_empty() && (port.local.is_empty() || !port.external_local) {
            return self.unserved(by, false);
        }
        let mut rules = Vec::new();
        let mut name = String::new();
        if is_limited {
            let sources = self.sources_chain();
            rules.push(format!("jump {sources}"));
            write!(name, "limited-{sources}-").unwrap_or_default();
        }
        if matches!(by, By::NodePort(_)) {
            name.push_str("node-");
        }
        let cluster = (!port.cluster.is_empty()).then(|| self.pick(by, &port.cluster, CLUSTER_OFFSET));
        match (port.external_local, cluster) {
            (false, Some(cluster)) => {
                rules.push(mark(self.settings));
                rules.push(self.pick_rule(by, &cluster));
                write!(name, "external-{}", cluster.label()).unwrap_or_default();
            }
            (_, cluster) => {
                // Who is inside the cluster already is not bound by the policy: its address is lost to nobody.
                if let Some(cluster) = &cluster {
                    let pick = self.pick_rule(by, cluster);
                    if let Some(pods) = from_pods(self.settings, "", self.family) {
                        rules.push(format!("{pods} {pick}"));
                    }
                    rules.push(format!("fib saddr type local {} {pick}", mark(self.settings)));
                }
                let local = (!port.local.is_empty()).then(|| self.pick(by, &port.local, 0));
                match &local {
                    Some(local) => rules.push(self.pick_rule(by, local)),
                    None => rules.push("drop".into()),
                }
                let label = |pick: &Option<Pick>| pick.as_ref().map_or("0".to_owned(), Pick::label);
                write!(name, "local-{}-{}", label(&local), label(&cluster)).unwrap_or_default();
            }
        }
        self.frontend(by, name, rules);
    }

    /// A chain that only packets from the source ranges leave. It belongs to this service alone: whoever has the same address and port
    /// may have ranges that overlap with these, which no set of the kernel takes.
    fn sources_chain(&mut self) -> String {
        let ranges = &self.port.source_ranges;
        let name = format!("from-{}", self.hash(ranges));
        let is_everything = |range: &String| range.parse::<Cidr>().is_ok_and(|range| range.prefix == 0);
        let rules = match ranges.is_empty() {
            true => vec!["drop".to_owned()],
            false if ranges.iter().any(is_everything) => Vec::new(),
            false => vec![format!("{} saddr != {{ {} }} drop", self.family.name, ranges.join(", "))],
        };
        self.part.chains.insert(name.clone(), rules);
        name
    }

    /// Puts the endpoints where the packet will look for them.
    fn pick(&mut self, by: By, targets: &[Target], offset: usize) -> Pick {
        if let Some(seconds) = self.port.affinity {
            return Pick::Chain(self.affinity_chain(targets, seconds));
        }
        for (i, target) in targets.iter().enumerate() {
            let key = match by {
                By::Address(addr) => format!("{addr} . {}", self.port.port),
                By::NodePort(number) => number.to_string(),
            };
            let value = format!("{} . {}", target.addr, target.port);
            self.element(self.endpoints(by), format!("{key} . {}", offset + i), value);
        }
        Pick::Map { count: targets.len(), offset }
    }

    fn pick_rule(&self, by: By, pick: &Pick) -> String {
        let ip = match by {
            By::Address(_) => format!("{} daddr . ", self.family.name),
            By::NodePort(_) => String::new(),
        };
        match pick {
            Pick::Map { count, offset } => {
                let offset = if *offset > 0 { format!(" offset {offset}") } else { String::new() };
                let (protocol, map) = (self.port.protocol.name(), self.endpoints(by));
                format!("dnat to {ip}{protocol} dport . numgen random mod {count}{offset} map @{map}")
            }
            Pick::Chain(name) => format!("goto {name}"),
        }
    }

    /// The map that leads to endpoints.
    fn endpoints(&self, by: By) -> &'static str {
        match (by, self.port.protocol) {
            (By::Address(_), Protocol::Tcp) => "endpoints-tcp",
            (By::Address(_), Protocol::Udp) => "endpoints-udp",
            (By::Address(_), Protocol::Sctp) => "endpoints-sctp",
            (By::NodePort(_), Protocol::Tcp) => "node-endpoints-tcp",
            (By::NodePort(_), Protocol::Udp) => "node-endpoints-udp",
            (By::NodePort(_), Protocol::Sctp) => "node-endpoints-sctp",
        }
    }

    /// A chain that sends a known client back to its endpoint and a new one to any. Each endpoint has a chain, and a set of
    /// the clients it keeps.
    fn affinity_chain(&mut self, targets: &[Target], seconds: u32) -> String {
        let ip = self.family.name;
        let name = format!("sticky-{}", self.hash(&targets));
        let mut rules = Vec::new();
        let mut verdicts = Vec::new();
        for (i, target) in targets.iter().enumerate() {
            let hash = self.hash(target);
            let (endpoint, clients) = (format!("endpoint-{hash}"), format!("{CLIENTS}{hash}"));
            let at = if target.addr.is_ipv6() {
                format!("[{}]:{}", target.addr, target.port)
            } else {
                format!("{}:{}", target.addr, target.port)
            };
            let addr_type = if self.family.is_v6 { "ipv6_addr" } else { "ipv4_addr" };
            self.part.sets.insert(
                clients.clone(),
                format!("{{ type {addr_type} ; flags dynamic,timeout ; size {AFFINITY_SIZE} ; timeout {seconds}s ; }}"),
            );
            self.part.chains.insert(
                endpoint.clone(),
                vec![
                    format!("update @{clients} {{ {ip} saddr timeout {seconds}s }}"),
                    format!("meta l4proto {} dnat to {at}", self.port.protocol.name()),
                ],
            );
            rules.push(format!("{ip} saddr @{clients} goto {endpoint}"));
            verdicts.push(format!("{i} : goto {endpoint}"));
        }
        rules.push(format!("numgen random mod {} vmap {{ {} }}", targets.len(), verdicts.join(", ")));
        self.part.chains.insert(name.clone(), rules);
        name
    }

    fn hash(&self, what: &impl Hash) -> String {
        // Fixed keys: the same service has the same names after a restart.
        let mut hasher = DefaultHasher::new();
        (&self.port.name, self.port.protocol, self.port.affinity, what).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    fn frontend(&mut self, by: By, chain: String, rules: Vec<String>) {
        let chain = format!("{}-{chain}", self.port.protocol.name());
        let verdict = format!("goto {chain}");
        self.part.chains.insert(chain, rules);
        let map = if matches!(by, By::Address(_)) { "services" } else { "node-ports" };
        self.element(map, self.key(by), verdict);
    }

    fn unserved(&mut self, by: By, silently: bool) {
        let map = if matches!(by, By::Address(_)) { "unserved" } else { "unserved-ports" };
        let verdict = if silently { "drop" } else { "goto refuse" };
        self.element(map, self.key(by), verdict.to_owned());
    }

    fn key(&self, by: By) -> String {
        let protocol = self.port.protocol.name();
        match by {
            By::Address(addr) => format!("{addr} . {protocol} . {}", self.port.port),
            By::NodePort(number) => format!("{protocol} . {number}"),
        }
    }

    fn element(&mut self, map: &'static str, key: String, value: String) {
        self.part.elements.insert((map, key), value);
    }
}
