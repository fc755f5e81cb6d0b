//! Worlds that look random, with few names and addresses, so that things meet.

use super::*;

/// Nodes with their addresses. What the kernel's tests send from outside comes from the second, and the third receives.
pub(super) const NODES: [(&str, [&str; 2]); 3] =
    [(NODE, ["10.99.0.1", "fd99::1"]), ("b", ["10.99.0.2", "fd99::2"]), ("c", ["10.99.1.2", "fd99:0:0:1::2"])];

/// Numbers that look random and are the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    pub(super) fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    pub(super) fn some<T>(&mut self, limit: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(limit + 1)).map(|_| make(self)).collect()
    }
}

/// Pods, nodes, a pod in the network of each of them, and policies.
pub(super) fn random_world(random: &mut Random) -> World {
    let mut pods = Vec::new();
    for i in 0..12 {
        let labels = json!({"app": random.one(&["web", "db"]), "tier": random.one(&["front", "back"])});
        let number = random.one(&[80, 81]);
        let ports = json!([{"name": "http", "containerPort": number}]);
        let addresses = [format!("10.42.0.{}", i + 2), format!("fd42::{:x}", i + 2)];
        let addresses = [addresses[0].as_str(), addresses[1].as_str()];
        let (namespace, node) = (random.one(&["default", "other"]), random.one(&[NODE, NODE, "b"]));
        pods.push(pod(namespace, &format!("p{i}"), node, labels, &addresses, ports));
    }
    let mut nodes = BTreeMap::new();
    for (name, addresses) in NODES {
        let labels = [("kind".to_owned(), random.one(&["gate", "plain"]).to_owned())].into();
        nodes.insert(name.to_owned(), Arc::new(Node { labels, addresses: addresses.map(ip).into() }));
        // Its labels and its ports are those of others, and nothing to policies.
        let labels = json!({"app": random.one(&["web", "db"]), "tier": random.one(&["front", "back"])});
        let ports = json!([{"name": "http", "containerPort": random.one(&[80, 81])}]);
        let namespace = random.one(&["default", "other"]);
        let mut host = pod(namespace, &format!("host-{name}"), name, labels, &addresses, ports);
        host.has_network = false;
        pods.push(host);
    }
    let policies = (0..random.below(5)).map(|i| {
        let direction = |random: &mut Random, peers: &str| {
            random.some(3, |random| {
                let ports = random.some(2, random_port);
                json!({peers: random.some(3, random_peer), "ports": ports})
            })
        };
        let types = random.one(&[json!(["Ingress"]), json!(["Egress"]), json!(["Ingress", "Egress"])]);
        let spec = json!({"podSelector": random_selector(random), "policyTypes": types,
            "ingress": direction(random, "from"), "egress": direction(random, "to")});
        policy(random.one(&["default", "other"]), &format!("n{i}"), spec)
    });
    let policies = policies.collect();
    let of_cluster = random.below(4);
    let of_cluster = (0..of_cluster).map(|i| {
        let subject = match random.below(3) {
            0 => json!({"namespaces": random_selector(random)}),
            1 => json!({"namespaces": {"matchLabels": {"team": "red"}}}),
            _ => json!({"pods": {"namespaceSelector": {}, "podSelector": random_selector(random)}}),
        };
        let mut rules = |peers: &str, networks: bool| {
            random.some(3, |random| {
                let action = random.one(&["Accept", "Deny", "Pass"]);
                let mut to = vec![random_cluster_peer(random, networks)];
                to.extend(random.some(2, |random| random_cluster_peer(random, networks)));
                let mut rule = json!({"action": action, peers: to});
                if random.below(3) > 0 {
                    rule["protocols"] = json!([random_protocol(random), random_protocol(random)]);
                }
                rule
            })
        };
        let (ingress, egress) = (rules("from", false), rules("to", true));
        let tier = random.one(&["Admin", "Baseline"]);
        let spec = json!({"subject": subject, "ingress": ingress, "egress": egress});
        cluster_policy(&format!("c{i}"), tier, random.below(3), spec)
    });
    let of_cluster = of_cluster.collect();
    World { nodes, ..world(pods, policies).with_cluster_policies(of_cluster) }
}

fn random_cluster_peer(random: &mut Random, networks: bool) -> Value {
    match random.below(if networks { 5 } else { 3 }) {
        0 => json!({"namespaces": random.one(&[json!({}), json!({"matchLabels": {"team": "red"}})])}),
        1 => json!({"pods": {"namespaceSelector": {}, "podSelector": random_selector(random)}}),
        2 => {
            json!({"pods": {"namespaceSelector": {"matchLabels": {"team": "blue"}}, "podSelector": random_selector(random)}})
        }
        3 => json!({"nodes": random.one(&[json!({}), json!({"matchLabels": {"kind": "gate"}})])}),
        _ => {
            let (pods, nodes) = (json!(["10.42.0.4/30", "fd42::/125"]), json!(["10.99.1.0/30", "fd99::/63"]));
            json!({"networks": random.one(&[pods, nodes, json!(["0.0.0.0/0"]), json!(["::/0"])])})
        }
    }
}

fn random_protocol(random: &mut Random) -> Value {
    let protocol = random.one(&["tcp", "udp", "sctp"]);
    random.one(&[
        json!({protocol: {}}),
        json!({protocol: {"destinationPort": {"number": 80}}}),
        json!({protocol: {"destinationPort": {"range": {"start": 79, "end": 90}}}}),
        json!({"destinationNamedPort": "http"}),
    ])
}

fn random_selector(random: &mut Random) -> Value {
    random.one(&[
        json!({}),
        json!({"matchLabels": {"app": "web"}}),
        json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["back"]}]}),
    ])
}

fn random_peer(random: &mut Random) -> Value {
    match random.below(5) {
        0 => json!({"podSelector": random_selector(random)}),
        1 => json!({"namespaceSelector": {"matchLabels": {"team": "red"}}, "podSelector": random_selector(random)}),
        2 => json!({"namespaceSelector": {}}),
        3 => random_block(
            random,
            &[
                ("10.42.0.0/29", &["10.42.0.3/32"]),
                ("10.42.0.4/30", &[]),
                ("0.0.0.0/0", &["10.42.0.8/29"]),
                ("0.0.0.0/0", &["10.42.0.0/30", "10.42.0.6/31", "10.99.0.2/32"]),
                ("10.99.0.0/23", &["10.99.0.0/31"]),
                ("10.99.1.2/32", &[]),
            ],
        ),
        _ => random_block(
            random,
            &[
                ("fd42::/125", &["fd42::4/127"]),
                ("::/0", &[]),
                ("::/0", &["fd42::2/127", "fd42::8/125", "fd99::/64"]),
                ("fd42::/64", &["fd42::5/128", "fd42::c/126"]),
                ("fd99::/63", &["fd99::2/128"]),
                ("fd99:0:0:1::/64", &[]),
            ],
        ),
    }
}

/// One of these ranges without its exceptions.
fn random_block(random: &mut Random, of: &[(&str, &[&str])]) -> Value {
    let (range, except) = random.one(of);
    json!({"ipBlock": {"cidr": range, "except": except}})
}

fn random_port(random: &mut Random) -> Value {
    let protocol = random.one(&["TCP", "UDP", "SCTP"]);
    random.one(&[
        json!({"protocol": protocol}),
        json!({"protocol": protocol, "port": 80}),
        json!({"protocol": protocol, "port": 81, "endPort": 90}),
        json!({"protocol": protocol, "port": 79, "endPort": 81}),
        json!({"port": "http"}),
    ])
}
