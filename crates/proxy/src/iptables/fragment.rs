//! What one Service contributes to the tables of one family. Pure.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use super::base::{LIMITS, NODE_PORTS, SERVICES, Shared, UNSERVED, UNSERVED_OUTSIDE};
use crate::services::{Protocol, ServicePort, Target};
use crate::settings::{Pods, Settings};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fragment {
    pub(super) families: [Part; 2],
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Part {
    /// Rules for chains that all services share.
    pub(super) shared: BTreeMap<Shared, Vec<String>>,
    /// Chains of this service alone, all in `nat`.
    pub(super) chains: BTreeMap<String, Vec<String>>,
}

pub(super) fn fragment(ports: &[ServicePort], settings: &Settings) -> Fragment {
    let mut fragment = Fragment::default();
    for port in ports {
        let part = &mut fragment.families[usize::from(port.is_v6)];
        Builder { port, settings, part }.build();
    }
    fragment
}

struct Builder<'a> {
    port: &'a ServicePort,
    settings: &'a Settings,
    part: &'a mut Part,
}

impl Builder<'_> {
    fn build(&mut self) {
        let port = self.port;
        let (everywhere, here) = (self.chain("SVC"), self.chain("SVL"));
        if !port.cluster.is_empty() {
            let mut rules = self.masquerade_strangers();
            rules.extend(self.pick(&port.cluster));
            self.part.chains.insert(everywhere.clone(), rules);
        }
        if !port.local.is_empty() && (port.internal_local || port.external_local) {
            let mut rules = if port.internal_local { self.masquerade_strangers() } else { Vec::new() };
            rules.extend(self.pick(&port.local));
            self.part.chains.insert(here.clone(), rules);
        }
        let (targets, internal) = match port.internal_local {
            true => (&port.local, &here),
            false => (&port.cluster, &everywhere),
        };
        for addr in &port.cluster_ips {
            let matching = self.to_address(*addr);
            match targets.is_empty() {
                false => self.rule(SERVICES, format!("{matching} -j {internal}")),
                // Elsewhere there are endpoints, but the policy forbids them: no answer, rather than a refusal.
                true if !port.cluster.is_empty() => self.rule(UNSERVED, format!("{matching} -j DROP")),
                true => self.rule(UNSERVED, format!("{matching} -j {}", self.refusal())),
            }
        }
        let addresses = port.external_ips.iter().chain(&port.load_balancer_ips);
        let outside: Vec<String> = addresses.map(|addr| self.to_address(*addr)).collect();
        let name = port.protocol.name();
        let node_port = port.node_port.map(|number| format!("-p {name} -m {name} --dport {number}"));
        if port.cluster.is_empty() && (port.local.is_empty() || !port.external_local) {
            for matching in outside {
                self.rule(UNSERVED_OUTSIDE, format!("{matching} -j {}", self.refusal()));
            }
            if let Some(matching) = node_port {
                let refusal = self.refusal();
                self.rule(UNSERVED_OUTSIDE, format!("-m addrtype --dst-type LOCAL {matching} -j {refusal}"));
            }
            return;
        }
        if outside.is_empty() && node_port.is_none() {
            return;
        }
        self.external(&everywhere, &here, outside, node_port);
    }

    /// Node ports, external addresses, load balancers: all lead to one chain that knows the policy.
    fn external(&mut self, everywhere: &str, here: &str, outside: Vec<String>, node_port: Option<String>) {
        let port = self.port;
        let entry = self.chain("EXT");
        let mut rules = Vec::new();
        if port.external_local {
            // Who is inside the cluster already is not bound by the policy: its address is lost to nobody.
            if !port.cluster.is_empty() {
                rules.extend(self.pod_matches().iter().map(|pods| format!("{pods} -j {everywhere}")));
                rules.push("-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ".into());
                rules.push(format!("-m addrtype --src-type LOCAL -j {everywhere}"));
            }
            if !port.local.is_empty() {
                rules.push(format!("-j {here}"));
            }
        } else {
            rules.push("-j KUBE-MARK-MASQ".into());
            rules.push(format!("-j {everywhere}"));
        }
        self.part.chains.insert(entry.clone(), rules);

        let is_silent = port.external_local && port.local.is_empty();
        let limit = port.is_limited.then(|| self.limit(&entry));
        for (i, matching) in outside.into_iter().enumerate() {
            let is_limited = i >= port.external_ips.len();
            match limit.as_ref().filter(|_| is_limited) {
                Some(limit) => {
                    self.rule(SERVICES, format!("{matching} -j {limit}"));
                    // Whoever was let through has another destination by now.
                    self.rule(LIMITS, format!("{matching} -j DROP"));
                }
                None => self.rule(SERVICES, format!("{matching} -j {entry}")),
            }
            if is_silent {
                self.rule(UNSERVED_OUTSIDE, format!("{matching} -j DROP"));
            }
        }
        if let Some(matching) = node_port {
            self.rule(NODE_PORTS, format!("{matching} -j {entry}"));
            if is_silent {
                self.rule(UNSERVED_OUTSIDE, format!("-m addrtype --dst-type LOCAL {matching} -j DROP"));
            }
        }
    }

    /// A chain that only the allowed sources leave through `entry`.
    fn limit(&mut self, entry: &str) -> String {
        let name = self.chain("FW");
        let rules = self.port.source_ranges.iter().map(|range| format!("-s {range} -j {entry}")).collect();
        self.part.chains.insert(name.clone(), rules);
        name
    }

    /// Each matches packets of some pods.
    fn pod_matches(&self) -> Vec<String> {
        match &self.settings.pods {
            Pods::Ranges(ranges) => {
                self.settings.of_family(ranges, self.port.is_v6).map(|range| format!("-s {range}")).collect()
            }
            Pods::Interface(name) => vec![format!("-i {name}")],
            Pods::Interfaces(prefix) => vec![format!("-i {prefix}+")],
        }
    }

    /// Clients of the cluster IP that are no pods must be answered through this node.
    fn masquerade_strangers(&self) -> Vec<String> {
        let strangers = match (self.settings.masquerade_all, self.pod_matches().as_slice()) {
            (true, _) => String::new(),
            (false, [pods]) => format!("! {pods} "),
            // None, or several that one rule cannot exclude.
            (false, _) => return Vec::new(),
        };
        let addresses = self.port.cluster_ips.iter();
        addresses.map(|addr| format!("{strangers}{} -j KUBE-MARK-MASQ", self.to_address(*addr))).collect()
    }

    /// Rules that send a packet to one of the endpoints: back to the one it had, or to any with equal probability.
    fn pick(&mut self, targets: &[Target]) -> Vec<String> {
        let chains: Vec<String> = targets.iter().map(|target| self.endpoint(*target)).collect();
        let mut rules = Vec::new();
        if let Some(seconds) = self.port.affinity {
            let back =
                |chain: &String| format!("-m recent --name {chain} --rcheck --seconds {seconds} --reap -j {chain}");
            rules.extend(chains.iter().map(back));
        }
        for (i, chain) in chains.iter().enumerate() {
            match chains.len() - i {
                1 => rules.push(format!("-j {chain}")),
                left => {
                    let probability = 1.0 / left as f64;
                    rules.push(format!("-m statistic --mode random --probability {probability:.10} -j {chain}"));
                }
            }
        }
        rules
    }

    fn endpoint(&mut self, target: Target) -> String {
        let protocol = self.port.protocol.name();
        let name = format!("KUBE-SEP-{}", self.hash(&target));
        let to = match target.addr {
            IpAddr::V4(addr) => format!("{addr}:{}", target.port),
            IpAddr::V6(addr) => format!("[{addr}]:{}", target.port),
        };
        let remember = match self.port.affinity {
            Some(_) => format!("-m recent --name {name} --set "),
            None => String::new(),
        };
        let rules = vec![
            // A pod that reaches itself must not see its own address as the source.
            format!("-s {} -j KUBE-MARK-MASQ", target.addr),
            format!("-p {protocol} {remember}-m {protocol} -j DNAT --to-destination {to}"),
        ];
        self.part.chains.insert(name.clone(), rules);
        name
    }

    /// A reset reaches local clients too, while they still hold their socket; for the rest the kernel sends ICMP.
    fn refusal(&self) -> &'static str {
        match self.port.protocol {
            Protocol::Tcp => "REJECT --reject-with tcp-reset",
            Protocol::Udp | Protocol::Sctp => "REJECT",
        }
    }

    fn to_address(&self, addr: IpAddr) -> String {
        let protocol = self.port.protocol.name();
        format!("-d {addr} -p {protocol} -m {protocol} --dport {}", self.port.port)
    }

    fn rule(&mut self, chain: Shared, rule: String) {
        let commented = format!("-m comment --comment \"{}\" {rule}", self.port.name);
        self.part.shared.entry(chain).or_default().push(commented);
    }

    fn chain(&self, kind: &str) -> String {
        format!("KUBE-{kind}-{}", self.hash(&()))
    }

    /// Sixteen letters: chain names may have 28.
    fn hash(&self, what: &impl Hash) -> String {
        // Fixed keys: the same service has the same names after a restart.
        let mut hasher = DefaultHasher::new();
        (&self.port.name, self.port.protocol, what).hash(&mut hasher);
        format!("{:016X}", hasher.finish())
    }
}
