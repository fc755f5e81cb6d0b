//! ClusterNetworkPolicies (`policy.networking.k8s.io/v1alpha2`), as far as a decision depends on them: rules of the cluster's
//! administrators, before those of namespaces (tier Admin) and after them (tier Baseline).

use api::cidr::Cidr;
use api::meta::Meta as _;
use api::selector::Selector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::objects::{Direction, Labels, Peer, Pod, Port, Protocol, Rule, Which};

pub const GROUP: &str = "policy.networking.k8s.io";
pub const VERSION: &str = "v1alpha2";
pub const PLURAL: &str = "clusternetworkpolicies";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    Admin,
    Baseline,
}

impl Tier {
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "Admin",
            Self::Baseline => "Baseline",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Accept,
    Deny,
    /// To the next tier.
    Pass,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ClusterPolicy {
    pub name: String,
    pub tier: Tier,
    /// The lowest comes first.
    pub priority: i32,
    pub namespaces: Selector,
    pub pods: Selector,
    pub ingress: Vec<ClusterRule>,
    pub egress: Vec<ClusterRule>,
    /// What is closed because it is not understood or not supported, in words.
    pub not_understood: Vec<String>,
}

/// What becomes of connections that the rule means; the first rule that does decides.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterRule {
    /// As it is called, or by its place: `#1`.
    pub name: String,
    pub action: Action,
    pub rule: Rule,
}

impl ClusterPolicy {
    pub fn new(object: &ClusterNetworkPolicy) -> Self {
        let spec = &object.spec;
        let tier = match spec.tier.as_str() {
            "Admin" => Some(Tier::Admin),
            "Baseline" => Some(Tier::Baseline),
            _ => None,
        };
        let subject = match (&spec.subject.namespaces, &spec.subject.pods) {
            (Some(namespaces), None) => selector(namespaces).map(|namespaces| (namespaces, Selector::everything())),
            (None, Some(pods)) => selector(&pods.namespace_selector).zip(selector(&pods.pod_selector)),
            _ => None,
        };
        let is_understood = tier.is_some() && subject.is_some();
        let mut not_understood = Vec::new();
        if !is_understood {
            not_understood
                .push("the tier or the subject is not understood: what is denied is denied to all".to_owned());
        }
        let mut rules = |all: &[RuleSpec], direction: Direction| -> Vec<ClusterRule> {
            let rules = all.iter().enumerate().map(|(place, rule)| {
                let (rule, problem) = ClusterRule::new(place, rule, direction);
                not_understood.extend(problem);
                rule
            });
            // Of one that is not understood, what it forbids is forbidden to everyone, before all else.
            rules.filter(|rule| is_understood || rule.action == Action::Deny).collect()
        };
        let (ingress, egress) = (rules(&spec.ingress, Direction::Ingress), rules(&spec.egress, Direction::Egress));
        let (namespaces, pods) = subject.unwrap_or_else(|| (Selector::everything(), Selector::everything()));
        Self {
            name: object.metadata.name().to_owned(),
            tier: tier.unwrap_or(Tier::Admin),
            priority: spec.priority,
            namespaces,
            pods,
            ingress,
            egress,
            not_understood,
        }
    }

    /// Whether a pod in a namespace with these labels is meant. Pods in the host's network never are.
    pub fn selects(&self, pod: &Pod, namespace: &Labels) -> bool {
        self.namespaces.matches(Some(namespace)) && self.pods.matches(Some(&*pod.labels))
    }

    pub fn rules(&self, direction: Direction) -> &[ClusterRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

impl ClusterRule {
    /// The rule, and what of it is not understood.
    fn new(place: usize, spec: &RuleSpec, direction: Direction) -> (Self, Option<String>) {
        let name = match spec.name.is_empty() {
            true => format!("#{}", place + 1),
            false => spec.name.clone(),
        };
        let action = match spec.action.as_str() {
            "Accept" => Some(Action::Accept),
            "Deny" => Some(Action::Deny),
            "Pass" => Some(Action::Pass),
            _ => None,
        };
        let (word, meant, others) = match direction {
            Direction::Ingress => ("ingress", &spec.from, &spec.to),
            Direction::Egress => ("egress", &spec.to, &spec.from),
        };
        let peers: Option<Vec<Vec<Peer>>> = meant.iter().map(|spec| peers(spec, direction)).collect();
        let peers = peers.filter(|peers| !peers.is_empty() && others.is_empty());
        let ports: Option<Vec<Vec<Port>>> = spec.protocols.iter().map(ports).collect();
        let why = match meant.iter().any(|peer| peer.domain_names.is_some()) {
            true => "domainNames are not supported",
            false => "it is not understood",
        };
        let problem = |what: &str| Some(format!("{word} rule {name}: {why}: it {what}"));
        match (action, peers, ports) {
            (Some(action), Some(peers), Some(ports)) => {
                let ports = (!ports.is_empty()).then(|| ports.concat());
                (Self { name, action, rule: Rule { peers: Some(peers.concat()), ports } }, None)
            }
            // Closed where something is not understood: what would be accepted is not meant, all else is forbidden.
            (Some(Action::Accept), ..) => {
                let problem = problem("accepts nothing");
                let rule = Rule { peers: Some(Vec::new()), ports: None };
                (Self { name, action: Action::Accept, rule }, problem)
            }
            _ => {
                let problem = problem("denies everything");
                (Self { name, action: Action::Deny, rule: Rule { peers: None, ports: None } }, problem)
            }
        }
    }
}

/// None: not understood, or not supported.
fn peers(spec: &PeerSpec, direction: Direction) -> Option<Vec<Peer>> {
    if !spec.others.is_empty() || spec.domain_names.is_some() {
        return None;
    }
    match (&spec.namespaces, &spec.pods, &spec.networks, &spec.nodes) {
        (Some(namespaces), None, None, None) => {
            Some(vec![Peer::Pods { namespaces: Some(selector(namespaces)?), pods: Selector::everything() }])
        }
        (None, Some(pods), None, None) => {
            let namespaces = Some(selector(&pods.namespace_selector)?);
            Some(vec![Peer::Pods { namespaces, pods: selector(&pods.pod_selector)? }])
        }
        (None, None, Some(networks), None) => {
            let block = |text: &String| Some(Peer::Block { range: text.parse::<Cidr>().ok()?, except: Vec::new() });
            networks.iter().map(block).collect()
        }
        (None, None, None, Some(nodes)) if direction == Direction::Egress => Some(vec![Peer::Nodes(selector(nodes)?)]),
        _ => None,
    }
}

/// None: not understood.
fn ports(spec: &ProtocolSpec) -> Option<Vec<Port>> {
    if !spec.others.is_empty() {
        return None;
    }
    let all = [(Protocol::Tcp, &spec.tcp), (Protocol::Udp, &spec.udp), (Protocol::Sctp, &spec.sctp)];
    let mut said = all.into_iter().filter_map(|(protocol, spec)| Some((protocol, spec.as_ref()?)));
    match (said.next(), said.next(), spec.destination_named_port.as_str()) {
        (Some((protocol, spec)), None, "") => {
            let number = |number: i32| u16::try_from(number).ok();
            let which = match &spec.destination_port {
                None => Which::Numbers(0, u16::MAX),
                Some(PortSpec { number: 0, range: Some(range) }) => {
                    let (first, last) = (number(range.start)?, number(range.end)?);
                    (first <= last).then_some(Which::Numbers(first, last))?
                }
                Some(PortSpec { number: one, range: None }) if *one > 0 => Which::Numbers(number(*one)?, number(*one)?),
                Some(_) => return None,
            };
            Some(vec![Port { protocol, which }])
        }
        (None, None, name) if !name.is_empty() => {
            let port = |protocol| Port { protocol, which: Which::Named(name.to_owned()) };
            Some([Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(port).into())
        }
        _ => None,
    }
}

fn selector(selector: &LabelSelector) -> Option<Selector> {
    Selector::from_label_selector(Some(selector)).ok()
}

/// The object, as the cluster keeps it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterNetworkPolicy {
    #[serde(deserialize_with = "api::read::by_table")]
    pub metadata: ObjectMeta,
    pub spec: Spec,
    pub status: Status,
}

api::read_by_serde!(ClusterNetworkPolicy);

impl client::Object for ClusterNetworkPolicy {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn kind() -> &'static str {
        "ClusterNetworkPolicy"
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    pub tier: String,
    pub priority: i32,
    pub subject: Subject,
    pub ingress: Vec<RuleSpec>,
    pub egress: Vec<RuleSpec>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Subject {
    pub namespaces: Option<LabelSelector>,
    pub pods: Option<NamespacedPods>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NamespacedPods {
    pub namespace_selector: LabelSelector,
    pub pod_selector: LabelSelector,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleSpec {
    pub name: String,
    pub action: String,
    pub from: Vec<PeerSpec>,
    pub to: Vec<PeerSpec>,
    pub protocols: Vec<ProtocolSpec>,
}

/// Fields that are not understood are kept, so that they are not overlooked.
type Others = serde_json::Map<String, serde_json::Value>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PeerSpec {
    pub namespaces: Option<LabelSelector>,
    pub pods: Option<NamespacedPods>,
    pub networks: Option<Vec<String>>,
    pub nodes: Option<LabelSelector>,
    pub domain_names: Option<Vec<String>>,
    #[serde(flatten)]
    pub others: Others,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProtocolSpec {
    pub tcp: Option<OfProtocol>,
    pub udp: Option<OfProtocol>,
    pub sctp: Option<OfProtocol>,
    pub destination_named_port: String,
    #[serde(flatten)]
    pub others: Others,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OfProtocol {
    pub destination_port: Option<PortSpec>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortSpec {
    pub number: i32,
    pub range: Option<PortRange>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortRange {
    pub start: i32,
    pub end: i32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rule(spec: Value) -> ClusterRule {
        let object = json!({"metadata": {"name": "p"}, "spec": {"tier": "Admin", "priority": 1,
            "subject": {"namespaces": {}}, "egress": [spec]}});
        ClusterPolicy::new(&serde_json::from_value(object).unwrap()).egress.remove(0)
    }

    #[test]
    fn security_rules_that_are_not_understood_are_closed() {
        let everyone = json!([{"namespaces": {}}]);
        let understood = rule(json!({"action": "Pass", "to": everyone, "protocols": [
            {"tcp": {"destinationPort": {"number": 80}}},
            {"udp": {"destinationPort": {"range": {"start": 1, "end": 9}}}},
            {"destinationNamedPort": "http"},
        ]}));
        assert_eq!((understood.action, understood.name.as_str()), (Action::Pass, "#1"));
        assert_eq!(understood.rule.ports.map(|ports| ports.len()), Some(5));
        let unknown = [
            json!({"to": [{"nodes": {}, "namespaces": {}}]}),
            json!({"to": [{"clouds": {}}]}),
            json!({"to": [{"namespaces": {}}, {"domainNames": ["example.org"]}]}),
            json!({"to": [{}]}),
            json!({"to": []}),
            json!({"to": everyone, "from": everyone}),
            json!({"to": [{"networks": ["10.0.0.0/99"]}]}),
            json!({"to": [{"namespaces": {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}}]}),
            json!({"to": everyone, "protocols": [{}]}),
            json!({"to": everyone, "protocols": [{"icmp": {"type": 8}}]}),
            json!({"to": everyone, "protocols": [{"tcp": {"destinationPort": {"number": 70000}}}]}),
            json!({"to": everyone, "protocols": [{"tcp": {"destinationPort": {"range": {"start": 9, "end": 1}}}}]}),
        ];
        for spec in unknown {
            let with = |action: &str| {
                let mut spec = spec.clone();
                spec["action"] = json!(action);
                rule(spec)
            };
            // What is not understood is not accepted, and nothing passes it.
            assert_eq!(with("Accept").rule.peers, Some(Vec::new()), "{spec}");
            for action in ["Deny", "Pass", "Later"] {
                let rule = with(action);
                assert_eq!((rule.action, rule.rule), (Action::Deny, Rule { peers: None, ports: None }), "{spec}");
            }
        }
    }

    #[test]
    fn security_a_subject_that_is_not_understood_is_everyone() {
        let rule = |action: &str| json!({"name": action, "action": action, "from": [{"namespaces": {}}]});
        for (tier, subject) in [("Later", json!({"namespaces": {}})), ("Baseline", json!({"somebody": {}}))] {
            let ingress = [rule("Accept"), rule("Pass"), rule("Deny")];
            let object = json!({"spec": {"tier": tier, "subject": subject, "ingress": ingress}});
            let policy = ClusterPolicy::new(&serde_json::from_value(object).unwrap());
            assert!(policy.selects(&Pod::default(), &Labels::new()));
            // It forbids, and opens nothing.
            assert_eq!(policy.ingress.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(), ["Deny"]);
        }
    }
}
