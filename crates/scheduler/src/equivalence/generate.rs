//! Random clusters and pods, from small vocabularies so that things meet.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cached::Pod;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

type Labels = BTreeMap<String, String>;

pub(super) struct Generator {
    pub(super) dice: StdRng,
    serial: usize,
}

const APPS: [&str; 3] = ["web", "db", "cache"];
const NAMESPACES: [&str; 3] = ["one", "two", "three"];
const ZONES: [&str; 3] = ["a", "b", "c"];
const KEYS: [&str; 3] = ["topology.kubernetes.io/zone", "kubernetes.io/hostname", "rack"];

/// Images with their sizes: the same on every node.
const IMAGES: [(&str, i64); 3] = [("img:latest", 90_000_000), ("img:v1", 700_000_000), ("big:v1", 2_500_000_000)];

pub(super) fn image_sizes() -> BTreeMap<String, i64> {
    IMAGES.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect()
}

impl Generator {
    pub(super) fn new(dice: StdRng) -> Generator {
        Generator { dice, serial: 0 }
    }

    fn of<T: Clone>(&mut self, values: &[T]) -> T {
        values.choose(&mut self.dice).unwrap().clone()
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.dice.random_ratio(percent, 100)
    }

    pub(super) fn namespaces(&mut self) -> Vec<(String, Labels)> {
        // The third has no Namespace object.
        let mut namespaces = Vec::new();
        for name in &NAMESPACES[..2] {
            let team = self.of(&["x", "y"]);
            namespaces.push(((*name).to_owned(), Labels::from([("team".to_owned(), team.to_owned())])));
        }
        namespaces
    }

    pub(super) fn node(&mut self) -> Node {
        let name = format!("n{}", self.dice.random_range(0..10));
        let mut labels = json!({});
        if self.chance(85) {
            labels["topology.kubernetes.io/zone"] = self.of(&ZONES).into();
        }
        if self.chance(90) {
            labels["kubernetes.io/hostname"] = name.as_str().into();
        }
        if self.chance(60) {
            labels["rack"] = self.of(&["1", "2", "3", "4"]).into();
        }
        let mut taints = Vec::new();
        while self.chance(25) {
            let effect = self.of(&["NoSchedule", "NoExecute", "PreferNoSchedule", "PreferNoSchedule"]);
            taints.push(json!({"key": self.of(&["k", "l"]), "value": self.of(&["", "v"]), "effect": effect}));
        }
        let images: Vec<Value> = (0..self.dice.random_range(0..3))
            .map(|_| {
                let image = self.of(&IMAGES);
                json!({"names": [image.0], "sizeBytes": image.1})
            })
            .collect();
        let mut allocatable = json!({
            "cpu": self.of(&["0", "1", "2", "4"]), "memory": self.of(&["512Mi", "1Gi", "4Gi"]),
            "pods": self.of(&["1", "3", "110", "110"]), "ephemeral-storage": self.of(&["0", "10Gi"]),
        });
        if self.chance(40) {
            allocatable["example.com/gpu"] = self.of(&["0", "1", "2"]).into();
        }
        let node = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"unschedulable": self.chance(8), "taints": taints},
            "status": {"allocatable": allocatable, "images": images},
        });
        serde_json::from_value(node).unwrap()
    }

    fn label_selector(&mut self) -> Value {
        match self.dice.random_range(0..8) {
            0 => json!({}),
            1 => json!(null),
            2 => {
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": [self.of(&APPS), self.of(&APPS)]}]})
            }
            3 => json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
            4 => json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [self.of(&APPS)]}]}),
            _ => json!({"matchLabels": {"app": self.of(&APPS)}}),
        }
    }

    fn term(&mut self) -> Value {
        let mut term = json!({"topologyKey": self.of(&KEYS), "labelSelector": self.label_selector()});
        if self.chance(20) {
            term["namespaces"] = json!([self.of(&NAMESPACES)]);
        }
        if self.chance(20) {
            term["namespaceSelector"] = match self.dice.random_range(0..3) {
                0 => json!({}),
                1 => json!({"matchLabels": {"team": self.of(&["x", "y"])}}),
                _ => json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}),
            };
        }
        term
    }

    fn weighted(&mut self) -> Value {
        json!({"weight": self.dice.random_range(1..100), "podAffinityTerm": self.term()})
    }

    fn some<T>(&mut self, chance: u32, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let mut made = Vec::new();
        while made.len() < 3 && self.chance(chance) {
            made.push(make(self));
        }
        made
    }

    fn node_term(&mut self) -> Value {
        match self.dice.random_range(0..7) {
            0 => json!({}),
            1 => json!({"matchFields": [{"key": "metadata.name", "operator": self.of(&["In", "NotIn"]),
                "values": [format!("n{}", self.dice.random_range(0..10))]}]}),
            2 => json!({"matchExpressions": [{"key": "rack", "operator": self.of(&["Gt", "Lt"]), "values": ["2"]}]}),
            3 => {
                json!({"matchExpressions": [{"key": self.of(&KEYS), "operator": self.of(&["Exists", "DoesNotExist"])}]})
            }
            _ => {
                json!({"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": self.of(&["In", "NotIn"]),
                "values": [self.of(&ZONES), self.of(&ZONES)]}]})
            }
        }
    }

    fn constraint(&mut self) -> Value {
        let hard = self.chance(50);
        let mut constraint = json!({
            "maxSkew": self.dice.random_range(1..3), "topologyKey": self.of(&KEYS),
            "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" },
            "labelSelector": self.label_selector(),
        });
        if hard && self.chance(20) {
            constraint["minDomains"] = self.dice.random_range(1..4).into();
        }
        if self.chance(20) {
            constraint["nodeAffinityPolicy"] = self.of(&["Honor", "Ignore"]).into();
        }
        if self.chance(20) {
            constraint["nodeTaintsPolicy"] = self.of(&["Honor", "Ignore"]).into();
        }
        if self.chance(15) {
            constraint["matchLabelKeys"] = json!([self.of(&["tier", "absent"])]);
        }
        constraint
    }

    fn container(&mut self, at: usize) -> Value {
        let mut requests = json!({});
        if self.chance(60) {
            requests["cpu"] = self.of(&["0", "100m", "500m", "1"]).into();
        }
        if self.chance(60) {
            requests["memory"] = self.of(&["0", "64Mi", "300Mi"]).into();
        }
        if self.chance(15) {
            requests["example.com/gpu"] = self.of(&["1", "2"]).into();
        }
        if self.chance(10) {
            requests["ephemeral-storage"] = "1Gi".into();
        }
        let mut container = json!({"name": format!("c{at}"), "image": self.of(&["img", "img:v1", "big:v1", "other"]),
            "resources": {"requests": requests}});
        if self.chance(20) {
            container["ports"] = json!([{"containerPort": 1, "hostPort": self.of(&[80, 443]),
                "hostIP": self.of(&["", "10.0.0.1", "10.0.0.2"]), "protocol": self.of(&["TCP", "UDP"])}]);
        }
        container
    }

    /// One of not too many kinds of pods, under a new name.
    pub(super) fn pod(&mut self) -> Pod {
        self.serial += 1;
        let name = format!("p{}", self.serial);
        let namespace = self.of(&NAMESPACES);
        let mut labels = json!({"app": self.of(&APPS)});
        if self.chance(30) {
            labels["tier"] = self.of(&["front", "back"]).into();
        }
        let containers: Vec<Value> = (0..self.dice.random_range(1..3)).map(|at| self.container(at)).collect();
        let mut init = self.some(15, |generator| generator.container(9));
        if self.chance(40) {
            init.iter_mut().for_each(|container| container["restartPolicy"] = "Always".into());
        }
        let mut spec =
            json!({"containers": containers, "initContainers": init, "priority": self.dice.random_range(0..3)});
        spec["tolerations"] = self
            .some(30, |generator| {
                json!({"key": generator.of(&["k", "l", ""]), "operator": "Exists",
                    "effect": generator.of(&["", "NoSchedule", "PreferNoSchedule"])})
            })
            .into();
        if self.chance(15) {
            spec["nodeSelector"] = json!({"topology.kubernetes.io/zone": self.of(&ZONES)});
        }
        let mut affinity = json!({});
        if self.chance(20) {
            let terms = self.some(80, Self::node_term);
            affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!({"nodeSelectorTerms": terms});
        }
        if self.chance(25) {
            let terms = self.some(70, |g| json!({"weight": g.dice.random_range(1..100), "preference": g.node_term()}));
            affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = terms.into();
        }
        for (kind, chance) in [("podAffinity", 15), ("podAntiAffinity", 20)] {
            let (required, preferred) = (self.some(chance, Self::term), self.some(chance, Self::weighted));
            if !required.is_empty() || !preferred.is_empty() {
                affinity[kind] = json!({"requiredDuringSchedulingIgnoredDuringExecution": required,
                    "preferredDuringSchedulingIgnoredDuringExecution": preferred});
            }
        }
        spec["affinity"] = affinity;
        spec["topologySpreadConstraints"] = self.some(25, Self::constraint).into();
        let mut volumes = Vec::new();
        if self.chance(12) {
            volumes.push(json!({"name": "v", "persistentVolumeClaim": {"claimName": self.of(&["bound", "late", "lost", "zonal", "once", "none"])}}));
        }
        if self.chance(8) {
            volumes.push(json!({"name": "d", "gcePersistentDisk": {"pdName": self.of(&["x", "y"]), "readOnly": self.chance(50)}}));
        }
        spec["volumes"] = volumes.into();
        let mut metadata = json!({"name": name, "uid": name, "namespace": namespace, "labels": labels});
        if self.chance(30) {
            metadata["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": self.of(&["r1", "r2"]),
                "uid": "u", "controller": true}]);
        }
        api::codec::from_value(&json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    pub(super) fn service(&mut self) -> (String, String, Labels) {
        let selector = Labels::from([("app".to_owned(), self.of(&APPS).to_owned())]);
        (self.of(&NAMESPACES).to_owned(), self.of(&["s1", "s2"]).to_owned(), selector)
    }

    pub(super) fn replica_set(&mut self) -> (String, String, LabelSelector) {
        let selector = serde_json::from_value(json!({"matchLabels": {"app": self.of(&APPS)}})).unwrap();
        (self.of(&NAMESPACES).to_owned(), self.of(&["r1", "r2"]).to_owned(), selector)
    }

    /// Claims in every state, in the first namespace.
    #[expect(clippy::type_complexity, reason = "three lists, taken apart at once")]
    pub(super) fn storage(
        &mut self,
    ) -> (Vec<Arc<PersistentVolumeClaim>>, Vec<Arc<PersistentVolume>>, Vec<Arc<StorageClass>>) {
        let claim = |name: &str, class: &str, volume: &str, modes: &[&str]| {
            json!({"metadata": {"name": name, "namespace": "one", "uid": name,
                "annotations": if volume.is_empty() { json!({}) } else { json!({"pv.kubernetes.io/bind-completed": "yes"}) }},
                "spec": {"storageClassName": class, "volumeName": volume, "accessModes": modes,
                    "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Pending"}})
        };
        let volume = |name: &str, size: &str, zone: Value, labels: Value| {
            json!({"metadata": {"name": name, "labels": labels}, "spec": {"storageClassName": "late", "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"], "nodeAffinity": zone}, "status": {"phase": "Available"}})
        };
        let in_zone = |zone: &str| {
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}]}]}})
        };
        let claims = [
            claim("bound", "", "pv-bound", &["ReadWriteOnce"]),
            claim("late", "late", "", &["ReadWriteOnce"]),
            claim("lost", "", "pv-gone", &["ReadWriteOnce"]),
            claim("zonal", "", "pv-zonal", &["ReadWriteOnce"]),
            claim("once", "", "pv-once", &["ReadWriteOncePod"]),
        ];
        let zone = self.of(&ZONES);
        let volumes = [
            volume("pv-bound", "1Gi", in_zone(zone), json!({})),
            volume("pv-zonal", "1Gi", json!(null), json!({"topology.kubernetes.io/zone": format!("{zone}__c")})),
            volume("pv-once", "1Gi", json!(null), json!({})),
            volume("pv-small", "512Mi", json!(null), json!({})),
            volume("pv-free", "2Gi", in_zone("b"), json!({})),
        ];
        let provisioner = self.of(&["kubernetes.io/no-provisioner", "example.com/disk"]);
        let topologies = if self.chance(50) {
            json!([{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["a"]}]}])
        } else {
            json!(null)
        };
        let class = json!({"metadata": {"name": "late"}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": topologies});
        (
            claims.into_iter().map(|claim| Arc::new(serde_json::from_value(claim).unwrap())).collect(),
            volumes.into_iter().map(|volume| Arc::new(serde_json::from_value(volume).unwrap())).collect(),
            vec![Arc::new(serde_json::from_value(class).unwrap())],
        )
    }
}
