//! The patch of client-side `apply`: from what was applied last (original), what is wanted now (modified) and what is
//! there (current).
//!
//! Additions and changes come from current -> modified, deletions from original -> modified, so what others set and we
//! never mentioned stays. Built-in types give a strategic merge patch, whose lists merge by key (`api::schema` knows
//! the keys); everything else gives a JSON merge patch.

use api::schema::{Merge, Struct, StructRef, Type};
use serde_json::{Map, Value, json};

/// Groups whose types upstream's client knows, and whose servers take strategic merge patches.
pub(crate) fn is_built_in(group: &str) -> bool {
    group.is_empty() || !group.contains('.') || group.ends_with(".k8s.io") && !group.starts_with("metrics.")
}

/// The schema of a built-in kind; `None` falls back to a merge patch.
pub(crate) fn schema(group: &str, kind: &str) -> Option<StructRef> {
    use k8s_openapi::api::{apps, autoscaling, batch, core, networking, policy, rbac, scheduling, storage};
    macro_rules! kinds {
        ($($group:literal $kind:literal => $type:ty),* $(,)?) => {
            match (group, kind) { $(($group, $kind) => Some(api::schema::of::<$type>()),)* _ => None }
        };
    }
    kinds! {
        "" "Pod" => core::v1::Pod,
        "" "Service" => core::v1::Service,
        "" "ConfigMap" => core::v1::ConfigMap,
        "" "Secret" => core::v1::Secret,
        "" "Namespace" => core::v1::Namespace,
        "" "Node" => core::v1::Node,
        "" "ServiceAccount" => core::v1::ServiceAccount,
        "" "ReplicationController" => core::v1::ReplicationController,
        "" "PersistentVolume" => core::v1::PersistentVolume,
        "" "PersistentVolumeClaim" => core::v1::PersistentVolumeClaim,
        "" "ResourceQuota" => core::v1::ResourceQuota,
        "" "LimitRange" => core::v1::LimitRange,
        "" "Endpoints" => core::v1::Endpoints,
        "" "PodTemplate" => core::v1::PodTemplate,
        "apps" "Deployment" => apps::v1::Deployment,
        "apps" "ReplicaSet" => apps::v1::ReplicaSet,
        "apps" "StatefulSet" => apps::v1::StatefulSet,
        "apps" "DaemonSet" => apps::v1::DaemonSet,
        "batch" "Job" => batch::v1::Job,
        "batch" "CronJob" => batch::v1::CronJob,
        "autoscaling" "HorizontalPodAutoscaler" => autoscaling::v2::HorizontalPodAutoscaler,
        "networking.k8s.io" "Ingress" => networking::v1::Ingress,
        "networking.k8s.io" "NetworkPolicy" => networking::v1::NetworkPolicy,
        "policy" "PodDisruptionBudget" => policy::v1::PodDisruptionBudget,
        "rbac.authorization.k8s.io" "Role" => rbac::v1::Role,
        "rbac.authorization.k8s.io" "ClusterRole" => rbac::v1::ClusterRole,
        "rbac.authorization.k8s.io" "RoleBinding" => rbac::v1::RoleBinding,
        "rbac.authorization.k8s.io" "ClusterRoleBinding" => rbac::v1::ClusterRoleBinding,
        "scheduling.k8s.io" "PriorityClass" => scheduling::v1::PriorityClass,
        "storage.k8s.io" "StorageClass" => storage::v1::StorageClass,
    }
}

/// A strategic merge patch; `{}` when nothing is to be done.
pub(crate) fn strategic(original: Option<&Value>, modified: &Value, current: &Value, schema: &Struct) -> Value {
    let empty = Map::new();
    let object = |v: Option<&Value>| v.and_then(Value::as_object).cloned().unwrap_or_default();
    let patch = maps(
        original.and_then(Value::as_object).unwrap_or(&empty),
        &object(Some(modified)),
        &object(Some(current)),
        Some(schema),
    );
    Value::Object(patch)
}

/// A JSON merge patch; lists are replaced as a whole.
pub(crate) fn merge(original: Option<&Value>, modified: &Value, current: &Value) -> Value {
    let object = |v: Option<&Value>| v.and_then(Value::as_object).cloned().unwrap_or_default();
    Value::Object(maps(&object(original), &object(Some(modified)), &object(Some(current)), None))
}

type Object = Map<String, Value>;

fn maps(original: &Object, modified: &Object, current: &Object, schema: Option<&Struct>) -> Object {
    let mut patch = Object::new();
    for (key, wanted) in modified {
        let field = schema.and_then(|s| s.field(key));
        let rule = field.and_then(|f| f.merge);
        let atomic = rule.is_some_and(|r| r.atomic);
        let inner = field.and_then(|f| f.ty.as_struct());
        let (before, now) = (original.get(key), current.get(key));
        match (wanted, now) {
            (Value::Null, _) => {}
            (Value::Object(m), Some(Value::Object(c))) if !atomic => {
                let none = Object::new();
                let o = before.and_then(Value::as_object).unwrap_or(&none);
                let mut sub = maps(o, m, c, inner);
                if !sub.is_empty() {
                    if schema.is_some() && rule.is_some_and(|r| r.retain_keys) {
                        sub.insert("$retainKeys".to_owned(), sorted_keys(m));
                    }
                    patch.insert(key.clone(), Value::Object(sub));
                }
            }
            (Value::Array(m), _) if schema.is_some() && rule.is_some_and(|r| r.patch_key.is_some()) => {
                let none = Vec::new();
                let o = before.and_then(Value::as_array).unwrap_or(&none);
                let c = now.and_then(Value::as_array).unwrap_or(&none);
                if let Some(rule) = rule {
                    lists(key, o, m, c, rule, element(field.map(|f| &f.ty)), now.is_none(), &mut patch);
                }
            }
            (_, Some(now)) if now == wanted => {}
            _ => {
                patch.insert(key.clone(), wanted.clone());
            }
        }
    }
    for key in original.keys() {
        if modified.get(key).is_none_or(Value::is_null) && !original[key].is_null() {
            patch.insert(key.clone(), Value::Null);
        }
    }
    patch
}

fn element(ty: Option<&Type>) -> Option<&Struct> {
    match ty {
        Some(Type::List(inner)) => inner.as_struct(),
        _ => None,
    }
}

fn sorted_keys(map: &Object) -> Value {
    json!(map.keys().collect::<Vec<_>>())
}

#[expect(clippy::too_many_arguments, reason = "the three versions, the rule and where the result goes")]
fn lists(
    key: &str,
    original: &[Value],
    modified: &[Value],
    current: &[Value],
    rule: Merge,
    schema: Option<&Struct>,
    absent: bool,
    patch: &mut Object,
) {
    let Some(merge_key) = rule.patch_key else { return };
    if merge_key.is_empty() {
        let added: Vec<&Value> = modified.iter().filter(|v| !current.contains(v)).collect();
        let removed: Vec<&Value> = original.iter().filter(|v| !modified.contains(v)).collect();
        if !added.is_empty() {
            patch.insert(key.to_owned(), json!(added));
        }
        if !removed.is_empty() {
            patch.insert(format!("$deleteFromPrimitiveList/{key}"), json!(removed));
        }
        if !added.is_empty() || !removed.is_empty() {
            patch.insert(format!("$setElementOrder/{key}"), json!(modified));
        }
        return;
    }
    if absent {
        patch.insert(key.to_owned(), json!(modified));
        return;
    }
    let find = |list: &[Value], id: &Value| list.iter().find(|v| v[merge_key] == *id).cloned();
    let mut changes = Vec::new();
    for item in modified {
        let id = &item[merge_key];
        match find(current, id) {
            None => changes.push(item.clone()),
            Some(now) => {
                let before = find(original, id).unwrap_or(Value::Null);
                let empty = Object::new();
                let mut sub = maps(
                    before.as_object().unwrap_or(&empty),
                    item.as_object().unwrap_or(&empty),
                    now.as_object().unwrap_or(&empty),
                    schema,
                );
                if !sub.is_empty() {
                    if rule.retain_keys {
                        sub.insert("$retainKeys".to_owned(), sorted_keys(item.as_object().unwrap_or(&empty)));
                    }
                    sub.insert(merge_key.to_owned(), id.clone());
                    changes.push(Value::Object(sub));
                }
            }
        }
    }
    for item in original {
        if find(modified, &item[merge_key]).is_none() {
            changes.push(json!({"$patch": "delete", merge_key: item[merge_key]}));
        }
    }
    // The order matters to people and to some fields: say it whenever it would come out differently.
    let order = |list: &[Value]| -> Vec<Value> {
        list.iter().map(|v| v[merge_key].clone()).filter(|id| find(modified, id).is_some()).collect()
    };
    let wanted: Vec<Value> = modified.iter().map(|v| v[merge_key].clone()).collect();
    if !changes.is_empty() || order(current) != wanted {
        if !changes.is_empty() {
            patch.insert(key.to_owned(), json!(changes));
        }
        let ids: Vec<Value> = wanted.iter().map(|id| json!({merge_key: id})).collect();
        patch.insert(format!("$setElementOrder/{key}"), json!(ids));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(containers: Value) -> Value {
        json!({"spec": {"replicas": 1, "template": {"spec": {"containers": containers}}}})
    }

    #[test]
    fn strategic_patches() {
        let schema = schema("apps", "Deployment").unwrap();
        let current = json!({"metadata": {"labels": {"a": "1", "other": "x"}}, "spec": {"replicas": 5, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
            "template": {"spec": {"containers": [
                {"name": "web", "image": "nginx:1", "env": [{"name": "A", "value": "1"}], "terminationMessagePath": "/dev/termination-log"},
                {"name": "old", "image": "old"}]}}}});
        for (original, modified, expected) in [
            // Nothing mentioned differs.
            (json!({}), json!({"spec": {"replicas": 5}}), json!({})),
            // A change, and a field dropped since last time.
            (
                json!({"metadata": {"labels": {"a": "1", "gone": "y"}}, "spec": {"replicas": 3}}),
                json!({"metadata": {"labels": {"a": "2"}}, "spec": {"replicas": 3}}),
                json!({"metadata": {"labels": {"a": "2", "gone": null}}, "spec": {"replicas": 3}}),
            ),
            // Lists merge by key; a container of last time that is gone is deleted; others' fields stay.
            (
                deployment(json!([{"name": "web", "image": "nginx:1"}, {"name": "old", "image": "old"}])),
                deployment(json!([{"name": "web", "image": "nginx:2"}])),
                json!({"spec": {"replicas": 1, "template": {"spec": {
                    "$setElementOrder/containers": [{"name": "web"}],
                    "containers": [{"name": "web", "image": "nginx:2"}, {"$patch": "delete", "name": "old"}]}}}}),
            ),
            // Strategies keep only the named keys.
            (
                json!({}),
                json!({"spec": {"strategy": {"type": "Recreate"}}}),
                json!({"spec": {"strategy": {"type": "Recreate", "$retainKeys": ["type"]}}}),
            ),
        ] {
            assert_eq!(strategic(Some(&original), &modified, &current, &schema), expected);
        }
    }

    /// Applying the patch gives the wanted value for everything mentioned, keeps what nobody mentioned, and a second
    /// apply has nothing to do.
    #[test]
    fn patches_converge() {
        use proptest::prelude::*;
        let leaf = prop_oneof![Just(json!("a")), Just(json!("b")), Just(json!(1))];
        let map = proptest::collection::btree_map("[a-d]", leaf, 0..4);
        let nested = proptest::collection::btree_map("[a-c]", map, 0..3);
        proptest!(|(original in nested.clone(), modified in nested.clone(), current in nested)| {
            let (o, m, c) = (json!(original), json!(modified), json!(current));
            let patch = merge(Some(&o), &m, &c);
            let mut result = c.clone();
            api::patch::merge::apply(&mut result, &patch).unwrap();
            for (k, inner) in &modified {
                for (k2, v) in inner {
                    prop_assert_eq!(&result[k][k2], v);
                }
            }
            for (k, inner) in &original {
                for k2 in inner.keys() {
                    if modified.get(k).is_none_or(|i| !i.contains_key(k2)) {
                        prop_assert!(result[k].get(k2).is_none());
                    }
                }
            }
            prop_assert_eq!(merge(Some(&m), &m, &result), json!({}));
        });
    }
}
