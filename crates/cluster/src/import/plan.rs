//! What of another cluster's objects comes over, and what stays behind: decided here, from the objects alone.
//!
//! What belonged to the old servers never comes. What Coxswain has itself (proxy, DNS, pod network, …) comes only if it is
//! asked for. Whatever is owned by nothing but that goes with it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use api::sort::CompactCollect as _;
use serde_json::{Map, Value};
use store::KeyValue;

pub(super) const ROOT: &str = "/registry/";

/// A part of the old cluster that is not simply its users'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Part {
    /// The old servers themselves, and what they wrote down about themselves.
    #[value(skip)]
    Servers,
    /// kube-proxy
    KubeProxy,
    /// CoreDNS and the kube-dns service
    Dns,
    /// The pod network: flannel, Calico, Cilium and others
    Network,
    /// Traefik as k3s installs it
    Traefik,
    /// The metrics server
    MetricsServer,
    /// k3s' provisioner of local volumes, and its storage class
    LocalStorage,
    /// k3s' load balancer
    ServiceLb,
}

impl Part {
    /// What has its place here.
    pub(super) fn instead(self) -> &'static str {
        match self {
            Part::Servers => "of the old servers: ours write their own",
            Part::KubeProxy => "kube-proxy: every node of ours has a proxy",
            Part::Dns => "CoreDNS: every node of ours answers names at the same address, by the same Corefile",
            Part::Network => "the pod network: nodes of ours have their own",
            Part::Traefik => {
                "Traefik: the gateway of ours serves Ingresses and Gateways; Traefik's own kinds stay and are not served"
            }
            Part::MetricsServer => "the metrics server: the API server of ours serves metrics.k8s.io",
            Part::LocalStorage => {
                "local volumes: the class local-path is served by local.cox; volumes that are there stay"
            }
            Part::ServiceLb => "k3s' load balancer: services of type LoadBalancer get the addresses of the nodes",
        }
    }
}

/// Keys below the root, with one `*` at most, which stands for anything.
const RULES: &[(Part, &[&str])] = &[
    (
        Part::Servers,
        &[
            "masterleases/*",
            "peerserverleases/*",
            "services/endpoints/default/kubernetes",
            "endpointslices/default/kubernetes",
            "leases/kube-system/kube-controller-manager",
            "leases/kube-system/kube-scheduler",
            "leases/kube-system/cloud-controller-manager",
            "leases/kube-system/apiserver-*",
            "leases/kube-system/k3s*",
            "configmaps/kube-public/cluster-info",
            "configmaps/kube-system/k3s",
            "configmaps/kube-system/k3s-etcd",
            "configmaps/kube-system/extension-apiserver-authentication",
            "secrets/kube-system/k3s-serving",
            "secrets/kube-system/*.node-password.k3s",
            "k3s.cattle.io/*",
            "cox/*",
        ],
    ),
    (
        Part::KubeProxy,
        &[
            "daemonsets/kube-system/kube-proxy",
            "configmaps/kube-system/kube-proxy",
            "serviceaccounts/kube-system/kube-proxy",
            "roles/kube-system/kube-proxy",
            "rolebindings/kube-system/kube-proxy",
            "clusterrolebindings/kubeadm:node-proxier",
        ],
    ),
    (
        Part::Dns,
        &[
            "deployments/kube-system/coredns",
            "services/specs/kube-system/kube-dns",
            "services/endpoints/kube-system/kube-dns",
            "endpointslices/kube-system/kube-dns-*",
        ],
    ),
    (
        Part::Network,
        &[
            "daemonsets/kube-system/kube-flannel-ds*",
            "daemonsets/kube-system/calico-node",
            "deployments/kube-system/calico-kube-controllers",
            "poddisruptionbudgets/kube-system/calico-kube-controllers",
            "daemonsets/kube-system/cilium*",
            "deployments/kube-system/cilium-operator",
            "daemonsets/kube-system/weave-net",
            "daemonsets/kube-system/kindnet",
            "daemonsets/kube-system/kube-router",
            "daemonsets/kube-system/antrea-agent",
            "deployments/kube-system/antrea-controller",
            // Without whoever answers them, namespaces could not be deleted any more.
            "apiregistration.k8s.io/apiservices/v3.projectcalico.org",
            "apiregistration.k8s.io/apiservices/*.antrea.io",
            "mutatingwebhookconfigurations/*.antrea.io",
            "validatingwebhookconfigurations/*.antrea.io",
            "namespaces/kube-flannel",
            "namespaces/calico-system",
            "namespaces/calico-apiserver",
            "namespaces/tigera-operator",
        ],
    ),
    (
        Part::Traefik,
        &[
            "deployments/kube-system/traefik",
            "services/specs/kube-system/traefik",
            "services/endpoints/kube-system/traefik",
            "endpointslices/kube-system/traefik-*",
            "helm.cattle.io/helmcharts/kube-system/traefik*",
            "jobs/kube-system/helm-install-traefik*",
        ],
    ),
    (
        Part::MetricsServer,
        &[
            "deployments/kube-system/metrics-server",
            "services/specs/kube-system/metrics-server",
            "services/endpoints/kube-system/metrics-server",
            "endpointslices/kube-system/metrics-server-*",
            "apiregistration.k8s.io/apiservices/v1beta1.metrics.k8s.io",
        ],
    ),
    (
        Part::LocalStorage,
        &[
            "deployments/kube-system/local-path-provisioner",
            "configmaps/kube-system/local-path-config",
            "storageclasses/local-path",
        ],
    ),
    (Part::ServiceLb, &["daemonsets/kube-system/svclb-*"]),
];
/// Of k3s alone: it names a file that only its pods have.
const K3S_COREFILE: &str = "configmaps/kube-system/coredns";
/// Finalizers that only k3s takes away.
const K3S_FINALIZERS: &str = "wrangler.cattle.io/";

/// Whose the objects are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Kubeadm,
    K3s,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub kept: Vec<KeyValue>,
    pub left: BTreeMap<Part, Vec<Arc<str>>>,
    /// Lost a finalizer that nobody would take away.
    pub changed: Vec<Arc<str>>,
    /// How many there are of each kind.
    pub kinds: BTreeMap<String, usize>,
    pub facts: Facts,
}

/// What objects say about their cluster.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// With their ranges of pod addresses.
    pub nodes: BTreeMap<String, Vec<String>>,
    /// Addresses of the services `kubernetes` and `kube-dns`.
    pub api_address: Option<IpAddr>,
    pub dns_address: Option<IpAddr>,
    pub service_cidrs: Vec<String>,
    /// The `ClusterConfiguration` of kubeadm.
    pub kubeadm: Option<Value>,
    /// Servers that said some seconds ago that they are alive.
    pub servers: Vec<String>,
}

/// An object, as far as it is looked at.
struct Seen<'k> {
    key: &'k str,
    object: Value,
}

impl Seen<'_> {
    fn meta(&self, field: &str) -> &Value {
        &self.object["metadata"][field]
    }

    fn uid(&self) -> Option<&str> {
        self.meta("uid").as_str().filter(|uid| !uid.is_empty())
    }

    fn owners(&self) -> impl Iterator<Item = &str> {
        self.meta("ownerReferences").as_array().into_iter().flatten().filter_map(|owner| owner["uid"].as_str())
    }

    /// The part that it belongs to by itself.
    fn part(&self, system: System) -> Option<Part> {
        let by_name = RULES.iter().find(|(_, rules)| rules.iter().any(|rule| fits(rule, self.key)));
        if let Some((part, _)) = by_name {
            return Some(*part);
        }
        if system == System::K3s && self.key == K3S_COREFILE {
            return Some(Part::Dns);
        }
        // Whatever is in a namespace that stays behind.
        let namespace = self.meta("namespace").as_str().unwrap_or_default();
        let of_namespace = format!("namespaces/{namespace}");
        let network = RULES.iter().find(|(part, _)| *part == Part::Network);
        if network.is_some_and(|(_, rules)| rules.contains(&of_namespace.as_str())) {
            return Some(Part::Network);
        }
        let label = |name: &str| self.object["metadata"]["labels"][name].as_str().unwrap_or_default();
        let is_mirror = self.meta("annotations").get("kubernetes.io/config.mirror").is_some();
        let is_server = is_mirror && label("tier") == "control-plane";
        let is_automatic = self.key.starts_with("apiregistration.k8s.io/")
            && !label("kube-aggregator.kubernetes.io/automanaged").is_empty();
        (is_server || is_automatic).then_some(Part::Servers)
    }

    /// The service that an address is for.
    fn holder(&self) -> Option<String> {
        let parent = &self.object["spec"]["parentRef"];
        let text = |field: &str| parent[field].as_str();
        let is_service = self.key.starts_with("ipaddresses/") && text("resource") == Some("services");
        is_service.then(|| {
            format!("services/specs/{}/{}", text("namespace").unwrap_or_default(), text("name").unwrap_or_default())
        })
    }
}

/// Whether a key is one that a rule means.
fn fits(rule: &str, key: &str) -> bool {
    match rule.split_once('*') {
        None => key == rule,
        Some((start, end)) => key.len() >= start.len() + end.len() && key.starts_with(start) && key.ends_with(end),
    }
}

/// Decides about objects whose values are as this program stores them, unsealed. `keep` are parts that come as well.
pub(super) fn plan(system: System, kvs: Vec<KeyValue>, keep: &[Part]) -> Plan {
    let seen: Vec<Seen<'_>> = kvs
        .iter()
        .map(|kv| {
            let object = serde_json::from_slice(&kv.value).unwrap_or(Value::Null);
            Seen { key: kv.key.strip_prefix(ROOT).unwrap_or(&kv.key), object }
        })
        .collect();
    let left = left_behind(system, &seen, keep);
    let facts = facts(&seen);
    let mut changes: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    for (index, object) in seen.iter().enumerate() {
        if left.contains_key(&index) {
            continue;
        }
        let kind = object.object["kind"].as_str().unwrap_or("other").to_owned();
        *kinds.entry(kind).or_default() += 1;
        // Elsewhere somebody else has them, such as Rancher, who goes on.
        if system == System::K3s
            && let Some(changed) = without_finalizers(&object.object)
        {
            changes.insert(index, changed);
        }
    }
    let mut plan = Plan { kinds, facts, ..Plan::default() };
    for (index, mut kv) in kvs.into_iter().enumerate() {
        if let Some(part) = left.get(&index) {
            plan.left.entry(*part).or_default().push(kv.key);
            continue;
        }
        if let Some(changed) = changes.remove(&index) {
            kv.value = changed.into();
            plan.changed.push(kv.key.clone());
        }
        plan.kept.push(kv);
    }
    plan
}

/// What does not come, by its place among the objects.
fn left_behind(system: System, seen: &[Seen<'_>], keep: &[Part]) -> BTreeMap<usize, Part> {
    let mut left = BTreeMap::new();
    for (index, object) in seen.iter().enumerate() {
        if let Some(part) = object.part(system).filter(|part| !keep.contains(part)) {
            left.insert(index, part);
        }
    }
    // What nobody else owns goes with its owners, however long the chain is.
    let mut gone: BTreeMap<&str, Part> =
        left.iter().filter_map(|(at, part)| Some((seen[*at].uid()?, *part))).compact_collect();
    loop {
        let mut found = Vec::new();
        for (index, object) in seen.iter().enumerate().filter(|(index, _)| !left.contains_key(index)) {
            let owners: Vec<Option<&Part>> = object.owners().map(|uid| gone.get(uid)).collect();
            if let Some(Some(part)) = owners.first()
                && owners.iter().all(Option::is_some)
            {
                found.push((index, **part));
            }
        }
        if found.is_empty() {
            break;
        }
        for (index, part) in found {
            left.insert(index, part);
            gone.extend(seen[index].uid().map(|uid| (uid, part)));
        }
    }
    // An address is free again when its service stays behind.
    let services: BTreeMap<&str, Part> = left.iter().map(|(at, part)| (seen[*at].key, *part)).compact_collect();
    let mut addresses = Vec::new();
    for (index, object) in seen.iter().enumerate() {
        if let Some(part) = object.holder().and_then(|service| services.get(service.as_str()).copied()) {
            addresses.push((index, part));
        }
    }
    left.extend(addresses);
    left
}

/// The object without finalizers that only k3s takes away; none where there are none.
fn without_finalizers(object: &Value) -> Option<Vec<u8>> {
    let is_foreign = |name: &Value| name.as_str().is_some_and(|name| name.starts_with(K3S_FINALIZERS));
    let finalizers = object["metadata"]["finalizers"].as_array()?;
    finalizers.iter().any(is_foreign).then_some(())?;
    let mut object = object.clone();
    let metadata = object["metadata"].as_object_mut()?;
    let left: Vec<Value> = finalizers.iter().filter(|name| !is_foreign(name)).cloned().collect();
    match left.is_empty() {
        true => metadata.remove("finalizers"),
        false => metadata.insert("finalizers".to_owned(), left.into()),
    };
    Some(in_order(object.as_object()?))
}

/// The fields that every stored object begins with come first.
fn in_order(object: &Map<String, Value>) -> Vec<u8> {
    const FIRST: [&str; 3] = ["kind", "apiVersion", "metadata"];
    let first = FIRST.iter().filter_map(|name| Some((*name, object.get(*name)?)));
    let rest =
        object.iter().filter(|(name, _)| !FIRST.contains(&name.as_str())).map(|(name, value)| (name.as_str(), value));
    let fields: Vec<String> = first.chain(rest).map(|(name, value)| format!("{}:{value}", Value::from(name))).collect();
    format!("{{{}}}", fields.join(",")).into_bytes()
}

fn facts(seen: &[Seen<'_>]) -> Facts {
    let mut facts = Facts::default();
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
    };
    for Seen { key, object } in seen {
        let address = || object["spec"]["clusterIP"].as_str().and_then(|text| text.parse().ok());
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match *key {
            "services/specs/default/kubernetes" => facts.api_address = address(),
            "services/specs/kube-system/kube-dns" => facts.dns_address = address(),
            "servicecidrs/kubernetes" => facts.service_cidrs = texts(&object["spec"]["cidrs"]),
            "configmaps/kube-system/kubeadm-config" => {
                let text = object["data"]["ClusterConfiguration"].as_str().unwrap_or_default();
                facts.kubeadm = api::codec::from_yaml(text.as_bytes()).ok().map(|decoded| decoded.value);
            }
            key if key.starts_with("minions/") => {
                let mut ranges: BTreeSet<String> = texts(&object["spec"]["podCIDRs"]).into_iter().compact_collect();
                ranges.extend(object["spec"]["podCIDR"].as_str().map(str::to_owned));
                facts.nodes.insert(name.to_owned(), ranges.into_iter().collect());
            }
            key => facts.servers.extend(key.strip_prefix("masterleases/").map(str::to_owned)),
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use store::Revision;

    fn kv(key: &str, mut object: Value) -> KeyValue {
        if let Some(all) = object.as_object_mut() {
            let name = key.rsplit('/').next().unwrap_or_default();
            all.entry("metadata").or_insert(json!({}))["name"] = json!(name);
        }
        KeyValue {
            key: format!("{ROOT}{key}").into(),
            value: object.to_string().into(),
            create_revision: Revision(1),
            mod_revision: Revision(2),
            version: 1,
            lease: None,
        }
    }

    fn of(uid: &str, owner: Option<&str>) -> Value {
        let owners: Vec<Value> = owner.iter().map(|uid| json!({"uid": uid, "kind": "X"})).collect();
        json!({"kind": "K", "apiVersion": "v1", "metadata": {"uid": uid, "ownerReferences": owners}})
    }

    fn decided(system: System, kvs: Vec<KeyValue>, keep: &[Part]) -> (Vec<String>, Vec<(Part, String)>) {
        let plan = plan(system, kvs, keep);
        let name = |key: &str| key.strip_prefix(ROOT).unwrap().to_owned();
        let left = plan.left.iter().flat_map(|(part, keys)| keys.iter().map(|key| (*part, name(key)))).collect();
        (plan.kept.iter().map(|kv| name(&kv.key)).collect(), left)
    }

    #[test]
    fn what_we_have_ourselves_stays_behind_with_all_that_it_owns() {
        let objects = || {
            vec![
                kv("configmaps/kube-system/coredns", of("a", None)),
                kv("controllerrevisions/kube-system/kube-proxy-1", of("b", Some("p"))),
                kv("daemonsets/kube-system/kube-proxy", of("p", None)),
                kv("daemonsets/kube-system/mine", of("m", None)),
                kv("deployments/kube-system/coredns", of("d", None)),
                kv("pods/kube-system/coredns-1-x", of("x", Some("r"))),
                kv("pods/kube-system/kube-proxy-z", of("z", Some("p"))),
                kv("pods/kube-system/mine-z", of("y", Some("m"))),
                kv("replicasets/kube-system/coredns-1", of("r", Some("d"))),
            ]
        };
        let (kept, left) = decided(System::Kubeadm, objects(), &[]);
        assert_eq!(kept, ["configmaps/kube-system/coredns", "daemonsets/kube-system/mine", "pods/kube-system/mine-z"]);
        let expected = [
            (Part::KubeProxy, "controllerrevisions/kube-system/kube-proxy-1"),
            (Part::KubeProxy, "daemonsets/kube-system/kube-proxy"),
            (Part::KubeProxy, "pods/kube-system/kube-proxy-z"),
            (Part::Dns, "deployments/kube-system/coredns"),
            (Part::Dns, "pods/kube-system/coredns-1-x"),
            (Part::Dns, "replicasets/kube-system/coredns-1"),
        ];
        assert_eq!(left, expected.map(|(part, key)| (part, key.to_owned())));
        let (kept, left) = decided(System::Kubeadm, objects(), &[Part::KubeProxy, Part::Dns]);
        assert_eq!((kept.len(), left.len()), (9, 0));
        // The Corefile of k3s names files of k3s.
        let (_, left) = decided(System::K3s, objects(), &[Part::KubeProxy]);
        assert_eq!(left[0], (Part::Dns, "configmaps/kube-system/coredns".to_owned()));
    }

    #[test]
    fn old_servers_never_come() {
        let mirror = |tier: &str| json!({"kind": "Pod", "metadata": {"annotations": {"kubernetes.io/config.mirror": "h"}, "labels": {"tier": tier}}});
        let service = |managed: bool| {
            let label = if managed { "true" } else { "" };
            json!({"metadata": {"labels": {"kube-aggregator.kubernetes.io/automanaged": label}}})
        };
        let rows = [
            ("pods/kube-system/kube-apiserver-a", mirror("control-plane"), true),
            ("pods/kube-system/static-b", mirror("node"), false),
            ("pods/default/web", of("w", None), false),
            ("leases/kube-system/kube-scheduler", of("l", None), true),
            ("leases/kube-system/apiserver-abc", of("l2", None), true),
            ("leases/kube-node-lease/a", of("l3", None), false),
            ("leases/kube-system/my-operator", of("l4", None), false),
            ("masterleases/192.0.2.1", json!({}), true),
            ("endpointslices/default/kubernetes", json!({}), true),
            ("endpointslices/default/kubernetes-x", json!({}), false),
            ("apiregistration.k8s.io/apiservices/v1.apps", service(true), true),
            ("apiregistration.k8s.io/apiservices/v1.mine.example", service(false), false),
            ("secrets/kube-system/w1.node-password.k3s", of("s", None), true),
            ("k3s.cattle.io/addons/kube-system/x", of("n", None), true),
            ("namespaces/kube-system", of("k", None), false),
            // Neither an object of ours nor of anybody: not JSON, and carried as it is.
            ("something/else", Value::Null, false),
        ];
        for (key, object, is_left) in rows {
            for keep in [&[][..], &[Part::KubeProxy, Part::Dns, Part::Network]] {
                let (kept, left) = decided(System::K3s, vec![kv(key, object.clone())], keep);
                assert_eq!((kept.len(), left.len()), if is_left { (0, 1) } else { (1, 0) }, "{key}");
            }
        }
    }

    #[test]
    fn a_shared_object_stays_and_a_network_goes_with_its_namespace() {
        let shared = json!({"metadata": {"uid": "s", "ownerReferences": [{"uid": "p"}, {"uid": "other"}]}});
        let inside = json!({"metadata": {"namespace": "kube-flannel"}});
        let objects = vec![
            kv("configmaps/kube-flannel/cfg", inside.clone()),
            kv("configmaps/kube-system/shared", shared),
            kv("daemonsets/kube-flannel/kube-flannel-ds", inside),
            kv("daemonsets/kube-system/kube-proxy", of("p", None)),
            kv("namespaces/kube-flannel", of("f", None)),
        ];
        let (kept, left) = decided(System::Kubeadm, objects.clone(), &[]);
        assert_eq!(kept, ["configmaps/kube-system/shared"]);
        assert_eq!(left.iter().filter(|(part, _)| *part == Part::Network).count(), 3);
        let (kept, _) = decided(System::Kubeadm, objects, &[Part::Network]);
        assert_eq!(kept.len(), 4);
    }

    #[test]
    fn nobody_asks_a_network_that_stays_behind() {
        for key in [
            "apiregistration.k8s.io/apiservices/v3.projectcalico.org",
            "apiregistration.k8s.io/apiservices/v1beta2.controlplane.antrea.io",
            "mutatingwebhookconfigurations/crdmutator.antrea.io",
            "validatingwebhookconfigurations/crdvalidator.antrea.io",
        ] {
            let objects = || vec![kv(key, of("a", None)), kv("mutatingwebhookconfigurations/mine", of("m", None))];
            assert_eq!(decided(System::Kubeadm, objects(), &[]).0, ["mutatingwebhookconfigurations/mine"], "{key}");
            assert_eq!(decided(System::Kubeadm, objects(), &[Part::Network]).0.len(), 2, "{key}");
        }
    }

    #[test]
    fn an_address_is_free_when_its_service_stays_behind() {
        let address = |service: &str| {
            let parent = json!({"resource": "services", "namespace": "kube-system", "name": service});
            json!({"kind": "IPAddress", "spec": {"parentRef": parent}})
        };
        let objects = vec![
            kv("ipaddresses/10.96.0.10", address("kube-dns")),
            kv("ipaddresses/10.96.0.11", address("other")),
            kv("services/specs/kube-system/kube-dns", of("d", None)),
        ];
        assert_eq!(decided(System::Kubeadm, objects.clone(), &[]).0, ["ipaddresses/10.96.0.11"]);
        assert_eq!(decided(System::Kubeadm, objects, &[Part::Dns]).0.len(), 3);
    }

    #[test]
    fn finalizers_that_nobody_takes_away_are_gone() {
        let node = |finalizers: Value| json!({"spec": {"x": 1}, "kind": "Node", "apiVersion": "v1", "metadata": {"uid": "u", "finalizers": finalizers}});
        let objects = vec![
            kv("minions/a", node(json!(["wrangler.cattle.io/node"]))),
            kv("minions/b", node(json!(["wrangler.cattle.io/node", "mine.example/x"]))),
            kv("minions/c", node(json!(["mine.example/x"]))),
        ];
        let before = objects[2].value.clone();
        let of_kubeadm = super::plan(System::Kubeadm, objects.clone(), &[]);
        assert!(of_kubeadm.changed.is_empty() && of_kubeadm.kept == objects, "they are not of k3s there");
        let plan = plan(System::K3s, objects, &[]);
        assert_eq!(plan.changed.len(), 2);
        let text = |index: usize| String::from_utf8(plan.kept[index].value.to_vec()).unwrap();
        assert!(text(0).starts_with(r#"{"kind":"Node","apiVersion":"v1","metadata":{"#), "{}", text(0));
        let value = |index: usize| serde_json::from_str::<Value>(&text(index)).unwrap();
        assert!(value(0)["metadata"].get("finalizers").is_none());
        assert_eq!((&value(0)["spec"]["x"], &value(0)["metadata"]["uid"]), (&json!(1), &json!("u")));
        assert_eq!(value(1)["metadata"]["finalizers"], json!(["mine.example/x"]));
        assert_eq!(plan.kept[2].value, before, "what needs no change is the same to the byte");
        assert!(plan.kept.iter().all(|kv| kv.mod_revision == Revision(2)));
    }

    #[test]
    fn objects_tell_about_their_cluster() {
        let configuration = "networking:\n  dnsDomain: example.org\n  podSubnet: 10.244.0.0/16\n";
        let objects = vec![
            kv("configmaps/kube-system/kubeadm-config", json!({"data": {"ClusterConfiguration": configuration}})),
            kv("masterleases/192.0.2.1", json!({})),
            kv("minions/a", json!({"spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]}})),
            kv("servicecidrs/kubernetes", json!({"spec": {"cidrs": ["10.96.0.0/12"]}})),
            kv("services/specs/default/kubernetes", json!({"spec": {"clusterIP": "10.96.0.1"}})),
        ];
        let facts = plan(System::Kubeadm, objects, &[]).facts;
        assert_eq!(facts.nodes, BTreeMap::from([("a".to_owned(), vec!["10.244.0.0/24".to_owned()])]));
        assert_eq!(facts.api_address, "10.96.0.1".parse().ok());
        assert_eq!(facts.service_cidrs, ["10.96.0.0/12"]);
        assert_eq!(facts.kubeadm.unwrap()["networking"]["dnsDomain"], "example.org");
        assert_eq!(facts.servers, ["192.0.2.1"]);
    }
}
