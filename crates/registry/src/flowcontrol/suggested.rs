//! The FlowSchemas and PriorityLevelConfigurations that every cluster has.

use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use serde_json::{Value, json};

use crate::parts::Parts;

pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
pub const SCHEMAS: &str = "flowschemas";
pub const LEVELS: &str = "prioritylevelconfigurations";
/// `true` lets the server bring the object up to date; somebody who wants it otherwise says `false`.
pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// An object that the server makes.
pub struct Suggestion {
    pub plural: &'static str,
    pub object: Value,
    /// Its specification is never anybody else's.
    pub is_mandatory: bool,
}

/// Queues of a level, and how many of them a flow is dealt.
type Queues = (u32, u32);

fn level(name: &str, shares: i32, lendable: i32, queues: Option<Queues>) -> Suggestion {
    let response = match queues {
        Some((queues, hand)) => {
            json!({"type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50}})
        }
        None => json!({"type": "Reject"}),
    };
    let limited = json!({"nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response});
    suggestion(LEVELS, name, json!({"type": "Limited", "limited": limited}))
}

pub fn levels() -> Vec<Suggestion> {
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    vec![
        Suggestion { is_mandatory: true, ..suggestion(LEVELS, "exempt", exempt) },
        Suggestion { is_mandatory: true, ..level("catch-all", 5, 0, None) },
        level("system", 30, 33, Some((64, 6))),
        level("node-high", 40, 25, Some((64, 6))),
        level("leader-election", 10, 0, Some((16, 4))),
        level("workload-high", 40, 50, Some((128, 6))),
        level("workload-low", 100, 90, Some((128, 6))),
        level("global-default", 20, 50, Some((128, 6))),
    ]
}

fn suggestion(plural: &'static str, name: &str, spec: Value) -> Suggestion {
    let kind = if plural == LEVELS { "PriorityLevelConfiguration" } else { "FlowSchema" };
    let object = json!({"kind": kind, "apiVersion": format!("{GROUP}/v1"),
        "metadata": {"name": name, "annotations": {AUTO_UPDATE: "true"}}, "spec": spec});
    Suggestion { plural, object, is_mandatory: false }
}

/// A schema: its level, its precedence, what tells its flows apart, and whom and what it is about.
fn schema(name: &str, level: &str, precedence: i32, by: &str, rule: Value) -> Suggestion {
    let mut spec = json!({"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence,
        "rules": [rule]});
    if !by.is_empty() {
        spec["distinguisherMethod"] = json!({"type": by});
    }
    suggestion(SCHEMAS, name, spec)
}

fn resources(verbs: &[&str], group: &str, resources: &[&str], cluster_scope: bool) -> Value {
    let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"]});
    if cluster_scope {
        rule["clusterScope"] = true.into();
    }
    rule
}

/// All requests of the subjects.
fn everything(subjects: Value) -> Value {
    json!({"subjects": subjects, "resourceRules": [resources(&["*"], "*", &["*"], true)],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]})
}

pub fn schemas() -> Vec<Suggestion> {
    let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
    let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
    let accounts = json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}});
    let everyone = json!([group("system:unauthenticated"), group("system:authenticated")]);
    let nodes = json!([group("system:nodes")]);
    let (manager, scheduler) = (user("system:kube-controller-manager"), user("system:kube-scheduler"));
    let (by_user, by_namespace) = ("ByUser", "ByNamespace");
    let probes = json!({"subjects": everyone,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]});
    let elections = json!({"subjects": [manager, scheduler, accounts],
        "resourceRules": [resources(&["get", "create", "update"], "coordination.k8s.io", &["leases"], false)]});
    let node_health = json!({"subjects": nodes,
        "resourceRules": [resources(&["*"], "", &["nodes", "nodes/status"], true),
            resources(&["*"], "coordination.k8s.io", &["leases"], false)]});
    let mandatory = |suggestion| Suggestion { is_mandatory: true, ..suggestion };
    vec![
        mandatory(schema("exempt", "exempt", 1, "", everything(json!([group("system:masters")])))),
        mandatory(schema("catch-all", "catch-all", 10_000, by_user, everything(everyone.clone()))),
        schema("probes", "exempt", 2, "", probes),
        schema("system-leader-election", "leader-election", 100, by_user, elections),
        schema("system-node-high", "node-high", 400, by_user, node_health),
        schema("system-nodes", "system", 500, by_user, everything(nodes)),
        schema("kube-controller-manager", "workload-high", 800, by_namespace, everything(json!([manager]))),
        schema("kube-scheduler", "workload-high", 800, by_namespace, everything(json!([scheduler]))),
        schema("kube-system-service-accounts", "workload-high", 900, by_namespace, everything(json!([accounts]))),
        schema("service-accounts", "workload-low", 9000, by_user, everything(json!([group("system:serviceaccounts")]))),
        schema("global-default", "global-default", 9900, by_user, everything(everyone)),
    ]
}

/// What a cluster begins with, for the time before anything is written.
pub fn suggested() -> (Vec<FlowSchema>, Vec<PriorityLevelConfiguration>) {
    fn typed<T: Parts>(suggestions: Vec<Suggestion>) -> Vec<T> {
        suggestions.into_iter().filter_map(|suggestion| api::codec::from_value(&suggestion.object).ok()).collect()
    }
    (typed(schemas()), typed(levels()))
}

/// The specification that the level of this name must have, if it is one that nobody may change.
pub(super) fn mandatory_level(name: &str) -> Option<Value> {
    fixed(levels, name)
}

/// The same for a schema.
pub(super) fn mandatory_schema(name: &str) -> Option<Value> {
    fixed(schemas, name)
}

fn fixed(all: fn() -> Vec<Suggestion>, name: &str) -> Option<Value> {
    let is_fixed = |suggestion: &Suggestion| suggestion.is_mandatory && suggestion.object["metadata"]["name"] == name;
    let mut found = matches!(name, "exempt" | "catch-all").then(all)?.into_iter();
    found.find(is_fixed).map(|mut found| found.object["spec"].take())
}
