use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::patch::json::tests::any_json;
use crate::schema::of;

const NOW: &str = "2026-01-01T00:00:00Z";

fn writer(manager: &str) -> Writer<'_> {
    Writer { manager, api_version: "apps/v1", versions: None, subresource: "", now: NOW.parse().unwrap() }
}

fn deployment(replicas: u32, containers: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": containers}}}
    })
}

fn applied(live: Option<&Value>, config: &Value, manager: &str, force: bool) -> Result<Value, ApplyError> {
    apply(live, config, &of::<Deployment>(), &writer(manager), force, &["status"])
}

/// A plain write of whole objects, managed fields included.
fn updated(live: Option<&Value>, new: &mut Value, schema: &Struct, writer: &Writer<'_>) {
    let entries = |object: &Value| object["metadata"].get("managedFields").map(Value::to_string);
    let (recorded, given) = (live.and_then(entries), entries(new));
    let text = |object: &Value| serde_json::to_vec(object).unwrap();
    let (old, text) = (live.map(text), text(new));
    let write = Write { live: old.as_deref(), new: &text, ignored: &[] };
    let kept = update(write, recorded.as_deref(), given.as_deref(), schema, writer);
    if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        if let Some(kept) = kept {
            metadata.insert("managedFields".to_owned(), serde_json::from_str(&kept).unwrap());
        }
    }
}

fn owned(object: &Value, manager: &str) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    entries.iter().find(|entry| entry["manager"] == manager).map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

/// Searched element by element, these would keep a thread busy for hours.
#[test]
fn security_long_lists_are_compared_and_merged_in_one_walk() {
    let containers = |from: usize, image: &str| -> Value {
        (from..from + 20_000).map(|number| json!({"name": format!("c{number}"), "image": image})).collect()
    };
    let live = applied(None, &deployment(1, containers(0, "a")), "me", false).unwrap();
    let both = applied(Some(&live), &deployment(1, containers(10_000, "b")), "you", true).unwrap();
    assert_eq!(both["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 30_000);
    let mut reversed = live.clone();
    reversed["metadata"]["finalizers"] = (0..100_000).map(|number| format!("a.b/{number}")).collect();
    let mut turned = reversed.clone();
    turned["metadata"]["finalizers"].as_array_mut().unwrap().reverse();
    updated(Some(&reversed), &mut turned, &of::<Deployment>(), &writer("me"));
}

#[test]
fn creating_by_apply_records_exactly_what_was_said() {
    let object = applied(None, &deployment(3, json!([{"name": "a", "image": "x"}])), "me", false).unwrap();
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{
            "manager": "me", "operation": "Apply", "apiVersion": "apps/v1", "time": NOW, "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {"f:app": {}}},
                "f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {
                    "k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:image": {}}}}}}
            }
        }])
    );
}

#[test]
fn conflicts_name_the_owner_and_force_takes_over() {
    let live = applied(None, &deployment(3, json!([{"name": "a", "image": "x"}])), "one", false).unwrap();
    let wanted = deployment(5, json!([{"name": "a", "image": "x"}]));
    let error = applied(Some(&live), &wanted, "two", false).unwrap_err();
    assert_eq!(error.to_string(), "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
    let status = Status::from(error);
    assert_eq!((status.code(), &*status.reason), (409, "Conflict"));
    let cause = &status.details.unwrap().causes[0];
    assert_eq!(
        (&*cause.reason, cause.message.as_str(), cause.field.as_str()),
        ("FieldManagerConflict", "conflict with \"one\"", ".spec.replicas")
    );
    let forced = applied(Some(&live), &wanted, "two", true).unwrap();
    assert_eq!(forced["spec"]["replicas"], 5);
    assert!(owned(&forced, "one")["f:spec"].get("f:replicas").is_none());
    assert!(owned(&forced, "two")["f:spec"].get("f:replicas").is_some());
    // The image is now shared: the same value is no conflict.
    let image = |manager: &str| {
        owned(&forced, manager)["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"a\"}"]["f:image"]
            .clone()
    };
    assert!(image("one").is_object() && image("two").is_object());
}

/// Each of five thousand conflicts would be named by hundreds of thousands of letters.
#[test]
fn security_conflicts_below_a_long_key_are_told_within_a_limit() {
    let (schema, key) = (Struct::new("", Vec::new()).open(true), "k".repeat(200_000));
    let config = |value: u32| {
        let fields: Map<String, Value> = (0..5_000).map(|number| (format!("f{number}"), value.into())).collect();
        json!({"apiVersion": "apps/v1", "spec": {key.as_str(): fields}})
    };
    let live = apply(None, &config(1), &schema, &writer("a"), false, &[]).unwrap();
    let refused = apply(Some(&live), &config(2), &schema, &writer("b"), false, &[]);
    let Err(ApplyError::Conflicts(conflicts)) = refused else { panic!("no conflict") };
    assert!((1..10).contains(&conflicts.len()), "{}", conflicts.len());
    assert!(conflicts.iter().all(|conflict| conflict.manager.contains("\"a\"")));
}

#[test]
fn what_is_no_longer_applied_goes_unless_shared() {
    let both = json!([{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]);
    let live = applied(None, &deployment(3, both), "one", false).unwrap();
    let fewer = applied(Some(&live), &deployment(3, json!([{"name": "a", "image": "x"}])), "one", false).unwrap();
    assert_eq!(fewer["spec"]["template"]["spec"]["containers"], json!([{"name": "a", "image": "x"}]));
    // Another owner keeps the replicas alive when the first stops naming them.
    let shared = applied(
        Some(&live),
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 3}}),
        "two",
        false,
    )
    .unwrap();
    let mut without = deployment(3, json!([{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]));
    without["spec"].as_object_mut().unwrap().remove("replicas");
    let kept = applied(Some(&shared), &without, "one", false).unwrap();
    assert_eq!(kept["spec"]["replicas"], 3);
    let gone = applied(Some(&live), &without, "one", false).unwrap();
    assert!(gone["spec"].get("replicas").is_none());
}

#[test]
fn fields_of_nobody_stay_when_their_structure_stays() {
    let mut live = applied(None, &deployment(3, json!([{"name": "a", "image": "x"}])), "one", false).unwrap();
    // A default that nobody owns.
    live["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
    let again = applied(Some(&live), &deployment(4, json!([{"name": "a", "image": "z"}])), "one", false).unwrap();
    assert_eq!(
        again["spec"]["template"]["spec"]["containers"],
        json!([{"name": "a", "image": "z", "imagePullPolicy": "Always"}])
    );
}

/// A structure applied as `{}` keeps what defaults put into it: they are nobody's, and the structure is still applied.
#[test]
fn an_empty_structure_applied_again_keeps_its_defaults() {
    let mut config = deployment(1, json!([{"name": "a", "image": "x"}]));
    config["spec"]["strategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {}});
    let mut live = applied(None, &config, "me", false).unwrap();
    live["spec"]["strategy"]["rollingUpdate"] = json!({"maxSurge": 1});
    for _ in 0..2 {
        let again = applied(Some(&live), &config, "me", false).unwrap();
        assert_eq!(again, live);
    }
    // Without it in the configuration it goes, defaults and all.
    config["spec"]["strategy"].as_object_mut().unwrap().remove("rollingUpdate");
    let without = applied(Some(&live), &config, "me", false).unwrap();
    assert_eq!(without["spec"]["strategy"], json!({"type": "RollingUpdate"}));
}

#[test]
fn updates_move_ownership() {
    let live = applied(None, &deployment(3, json!([{"name": "a", "image": "x"}])), "one", false).unwrap();
    let mut scaled = live.clone();
    scaled["spec"]["replicas"] = json!(9);
    updated(Some(&live), &mut scaled, &of::<Deployment>(), &writer("scaler"));
    assert!(owned(&scaled, "one")["f:spec"].get("f:replicas").is_none());
    assert_eq!(owned(&scaled, "scaler"), json!({"f:spec": {"f:replicas": {}}}));
    let error = applied(Some(&scaled), &deployment(3, json!([{"name": "a", "image": "x"}])), "one", false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"scaler\" using apps/v1: .spec.replicas"
    );
    // Nothing changed: nothing is recorded.
    let mut same = scaled.clone();
    updated(Some(&scaled), &mut same, &of::<Deployment>(), &writer("idle"));
    assert_eq!(same, scaled);
}

#[test]
fn creation_by_update_owns_everything_that_was_set() {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}], "resources": {}}],
            "securityContext": {}}
    });
    updated(None, &mut pod, &of::<Pod>(), &Writer { api_version: "v1", ..writer("kubectl-run") });
    assert_eq!(
        owned(&pod, "kubectl-run"),
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:containers": {"k:{\"name\":\"c\"}": {
                    ".": {}, "f:name": {}, "f:image": {}, "f:resources": {},
                    "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}
                }},
                "f:securityContext": {}
            }
        })
    );
}

/// Structures that Go has by value are there from the start and nobody's; others belong to who makes them.
#[test]
fn what_a_new_object_has_from_the_start_is_a_matter_of_its_kind() {
    use crate::schema::{Field, Struct, StructRef, Type, Zero};
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ReplicationController};
    let sorted = BY_VALUE.is_sorted_by_key(|(name, _)| name);
    assert!(sorted, "rows are searched");
    let field = |name: &str, ty: Type| Field {
        name: name.into(),
        ty,
        merge: None,
        key_default: None,
        granular: false,
        required: false,
        zero: Zero::Kept,
    };
    let inner = Struct::new("", vec![field("replicas", Type::Any)]);
    let metadata = of::<ConfigMap>().field("metadata").unwrap().ty.clone();
    let fields = vec![field("metadata", metadata), field("spec", Type::Struct(inner.into()))];
    let custom: StructRef = Struct::new("example.com/v1.Widget", fields).into();
    let template = json!({"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}});
    let labels = json!({"f:labels": {".": {}, "f:a": {}}});
    for (schema, object, expected) in [
        (of::<ReplicaSet>(), template.clone(), json!({"f:spec": {"f:template": {"f:metadata": labels}}})),
        (
            of::<ReplicationController>(),
            template,
            json!({"f:spec": {"f:template": {".": {}, "f:metadata": {".": {}, "f:labels": {".": {}, "f:a": {}}}}}}),
        ),
        (
            of::<PersistentVolumeClaim>(),
            json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}),
            json!({"f:spec": {"f:resources": {"f:requests": {".": {}, "f:storage": {}}}}}),
        ),
        (
            of::<Pod>(),
            json!({"spec": {"resources": {"requests": {"cpu": "1"}}}}),
            json!({"f:spec": {"f:resources": {".": {}, "f:requests": {".": {}, "f:cpu": {}}}}}),
        ),
        (custom, json!({"spec": {"replicas": 1}}), json!({"f:spec": {".": {}, "f:replicas": {}}})),
    ] {
        let mut made = object.clone();
        made["metadata"] = json!({"name": "a"});
        updated(None, &mut made, &schema, &writer("maker"));
        assert_eq!(owned(&made, "maker"), expected, "{} {object}", schema.name);
        let text = created::fields(made.to_string().as_bytes(), &schema, &[]).map(|text| {
            let mut fields: Value = serde_json::from_str(&text).unwrap();
            fields.as_object_mut().unwrap().retain(|name, _| name != "f:metadata");
            fields
        });
        assert!(text.is_none_or(|text| text == expected), "{object}");
    }
}

#[test]
fn status_writers_have_entries_of_their_own() {
    let live = applied(None, &deployment(3, json!([])), "one", false).unwrap();
    let mut new = live.clone();
    new["status"] = json!({"replicas": 1, "conditions": [{"type": "Available", "status": "True"}]});
    updated(Some(&live), &mut new, &of::<Deployment>(), &Writer { subresource: "status", ..writer("controller") });
    let entry =
        new["metadata"]["managedFields"].as_array().unwrap().iter().find(|e| e["manager"] == "controller").unwrap();
    assert_eq!(entry["subresource"], "status");
    assert!(entry["fieldsV1"]["f:status"]["f:conditions"]["k:{\"type\":\"Available\"}"]["f:status"].is_object());
}

#[test]
fn untracked_objects_get_a_first_owner_and_resets_forget() {
    let live = deployment(3, json!([{"name": "a", "image": "x"}]));
    let error = applied(Some(&live), &deployment(5, json!([])), "me", false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas"
    );
    let mut untracked = live.clone();
    untracked["spec"]["replicas"] = json!(4);
    updated(Some(&live), &mut untracked, &of::<Deployment>(), &writer("x"));
    assert!(untracked["metadata"].get("managedFields").is_none());
    let tracked = applied(None, &live, "me", false).unwrap();
    let mut reset = tracked.clone();
    reset["metadata"]["managedFields"] = json!([{}]);
    updated(Some(&tracked), &mut reset, &of::<Deployment>(), &writer("x"));
    assert!(reset["metadata"].get("managedFields").is_none());
}

/// Merged one by one, these were sorted and read again twenty thousand times.
#[test]
fn security_thousands_of_managers_are_merged_in_one_walk() {
    let entry = |number: usize| {
        json!({"manager": format!("m{number:05}"), "operation": "Update", "apiVersion": "apps/v1", "time": NOW,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {format!("f:x{number}"): {}}}})
    };
    let live = deployment(1, json!([]));
    let mut new = deployment(2, json!([]));
    new["metadata"]["managedFields"] = (0..20_000).map(entry).collect();
    updated(Some(&live), &mut new, &of::<Deployment>(), &writer("me"));
    assert_eq!(new["metadata"]["managedFields"].as_array().unwrap().len(), 10);
    // Those of all but eight, and of the one who wrote last.
    assert_eq!(owned(&new, "ancient-changes")["f:spec"].as_object().unwrap().len(), 19_992);
    assert_eq!(owned(&new, "me"), json!({"f:spec": {"f:replicas": {}}}));
}

/// kubectl goes from client-side apply to server-side apply without conflicts with itself, and back.
#[test]
fn what_kubectl_applied_without_a_manager_is_its_own() {
    const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let config = |replicas: u32, label: &str| {
        let mut config = deployment(replicas, json!([{"name": "a", "image": "x"}]));
        config["metadata"]["labels"]["app"] = json!(label);
        config
    };
    let with_last = |mut object: Value, last: &Value| {
        object["metadata"]["annotations"] = json!({LAST: last.to_string()});
        object
    };
    let mut live = with_last(config(3, "web"), &config(3, "web"));
    updated(None, &mut live, &of::<Deployment>(), &writer("kubectl-client-side-apply"));
    let wanted = config(5, "next");
    // Others have no part in it.
    assert!(matches!(applied(Some(&live), &wanted, "other", false), Err(ApplyError::Conflicts(all)) if all.len() == 2));
    let done = applied(Some(&live), &wanted, "kubectl", false).unwrap();
    assert_eq!((&done["spec"]["replicas"], &done["metadata"]["labels"]["app"]), (&json!(5), &json!("next")));
    let last: Value = serde_json::from_str(done["metadata"]["annotations"][LAST].as_str().unwrap()).unwrap();
    assert_eq!(last, wanted);
    assert!(owned(&done, "kubectl")["f:metadata"].get("f:annotations").is_none());
    // What somebody else changed since is a conflict all the same.
    let mut scaled = live.clone();
    scaled["spec"]["replicas"] = json!(4);
    updated(Some(&live), &mut scaled, &of::<Deployment>(), &writer("scaler"));
    let error = applied(Some(&scaled), &wanted, "kubectl", false).unwrap_err();
    let expected = "Apply failed with 1 conflict: conflict with \"scaler\" using apps/v1: .spec.replicas";
    assert_eq!(error.to_string(), expected);
    // An annotation that is not there is not made.
    let done = applied(None, &wanted, "kubectl", false).unwrap();
    assert!(done["metadata"].get("annotations").is_none());
}

#[test]
fn malformed_configurations_are_refused() {
    let twice = deployment(1, json!([{"name": "a"}, {"name": "a"}]));
    assert!(matches!(applied(None, &twice, "me", false), Err(ApplyError::Untyped(_))));
    let keyless = deployment(1, json!([{"image": "a"}]));
    assert!(matches!(applied(None, &keyless, "me", false), Err(ApplyError::Untyped(_))));
    let mut managed = deployment(1, json!([]));
    managed["metadata"]["managedFields"] = json!([]);
    assert_eq!(applied(None, &managed, "me", false).unwrap_err().to_string(), "metadata.managedFields must be nil");
}

#[test]
fn merged_lists_keep_both_orders() {
    let live =
        applied(None, &deployment(1, json!([{"name": "a"}, {"name": "b"}, {"name": "c"}])), "one", false).unwrap();
    let wanted = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"template": {"spec": {"containers": [{"name": "c"}, {"name": "n"}, {"name": "a"}]}}}});
    let merged = applied(Some(&live), &wanted, "two", false).unwrap();
    let names: Vec<&str> = merged["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["b", "c", "n", "a"]);
}

#[test]
fn maps_are_owned_entry_by_entry() {
    let config =
        |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    let run = |live: Option<&Value>, data: Value, manager: &str| {
        apply(live, &config(data), &of::<ConfigMap>(), &writer(manager), false, &[]).unwrap()
    };
    let live = run(None, json!({"a": "1"}), "one");
    let live = run(Some(&live), json!({"b": "2"}), "two");
    assert_eq!(live["data"], json!({"a": "1", "b": "2"}));
    let live = run(Some(&live), json!({"c": "3"}), "one");
    assert_eq!(live["data"], json!({"b": "2", "c": "3"}));
}

fn same_changes(before: &Map<String, Value>, after: &Map<String, Value>, schema: &Struct) {
    let (old, new) = (serde_json::to_vec(before).unwrap(), serde_json::to_vec(after).unwrap());
    for (raw, values) in [
        (raw::compare(Some(&old), &new, schema, &[]).unwrap(), walk::compare(before, after, schema)),
        (raw::compare(None, &new, schema, &[]).unwrap(), walk::compare(&skeleton(after, Some(schema)), after, schema)),
    ] {
        assert_eq!((raw.added, raw.modified, raw.removed), (values.added, values.modified, values.removed));
    }
    if let Some(fields) = created::fields(&new, schema, &["status"]) {
        let (mut changed, _) = raw::compare(None, &new, schema, &["status"]).unwrap().split();
        changed.strip_metadata();
        assert_eq!(fields, changed.to_text(), "{}", String::from_utf8_lossy(&new));
    }
}

#[test]
fn a_new_object_is_its_makers_in_every_field() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"app": "x"}, "finalizers": ["b", "a"]},
        "spec": {"containers": [
            {"name": "a-b", "ports": [{"containerPort": 80, "protocol": "UDP"}, {"containerPort": 80}]},
            {"name": "a", "resources": {}}]}});
    let text = serde_json::to_vec(&pod).unwrap();
    let fields = created::fields(&text, &of::<Pod>(), &["status"]).unwrap();
    let containers = r#""f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:resources":{}},"k:{\"name\":\"a-b\"}":{".":{},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}},"k:{\"containerPort\":80,\"protocol\":\"UDP\"}":{".":{},"f:containerPort":{},"f:protocol":{}}}}}"#;
    let metadata = r#"{"f:finalizers":{".":{},"v:\"a\"":{},"v:\"b\"":{}},"f:labels":{".":{},"f:app":{}}}"#;
    assert_eq!(fields, format!(r#"{{"f:metadata":{metadata},"f:spec":{{{containers}}}}}"#));
    same_changes(&Map::new(), pod.as_object().unwrap(), &of::<Pod>());
    for other in
        [r#"{"spec":{"a":1,"a":2}}"#, r#"{"spec":{"b":1,"a":2}}"#, r#"{"sp\u0065c":{}}"#, r#"{"spec":{"#, "[]", ""]
    {
        assert_eq!(created::fields(other.as_bytes(), &of::<Pod>(), &[]), None, "{other}");
    }
}

#[test]
fn texts_of_real_objects_differ_as_their_values_do() {
    let pod = |spec: Value, status: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"app": "x"}}, "spec": spec, "status": status});
    let ports = json!([{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]);
    let objects = [
        pod(json!({"containers": [{"name": "c", "image": "i", "ports": ports, "resources": {}}]}), json!({})),
        pod(
            json!({"containers": [{"name": "d"}, {"name": "c", "image": "j", "ports": []}], "nodeName": "n"}),
            json!({"phase": "Pending"}),
        ),
        pod(
            json!({"containers": [], "tolerations": [{"key": "k"}], "securityContext": {}, "nodeSelector": {}}),
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIPs": [{"ip": "10.0.0.1"}]}),
        ),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "annotations": {}, "finalizers": ["x", "y"]}, "spec": null}),
    ];
    for before in &objects {
        for after in &objects {
            same_changes(before.as_object().unwrap(), after.as_object().unwrap(), &of::<Pod>());
        }
    }
}

proptest! {
    #[test]
    fn random_applies_never_panic_and_are_idempotent(live in any_json(), config in any_json()) {
        let run = |live: Option<&Value>| apply(live, &config, &of::<Pod>(), &writer("me"), true, &[]);
        if let Ok(once) = run(Some(&live)) {
            let twice = run(Some(&once)).unwrap();
            prop_assert_eq!(once["spec"].clone(), twice["spec"].clone());
        }
        let mut new = config.clone();
        updated(Some(&live), &mut new, &of::<Pod>(), &writer("me"));
    }

    #[test]
    fn texts_differ_as_values_do(old in any_json(), new in any_json()) {
        if let (Value::Object(before), Value::Object(after)) = (&old, &new) {
            same_changes(before, after, &of::<Pod>());
        }
    }

    #[test]
    fn sets_written_as_json_are_added_and_taken_away(one in any_json(), two in any_json()) {
        if let (Value::Object(one), Value::Object(two)) = (&one, &two) {
            let (one, two) = (walk::field_set(one, &of::<Pod>()), walk::field_set(two, &of::<Pod>()));
            let mut written = Map::new();
            one.add_to(&mut written);
            two.add_to(&mut written);
            let mut both = one.clone();
            both.merge(two.clone());
            prop_assert_eq!(&FieldSet::from_json(Value::Object(written.clone())), &both);
            two.take_from(&mut written);
            prop_assert_eq!(FieldSet::from_json(Value::Object(written)), both.difference(&two));
            let text = two.to_text();
            prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), two.clone().into_json());
            prop_assert_eq!(one.meets(&text), !one.intersection(&two).is_empty());
            prop_assert_eq!(one.is_within(&text), one.intersection(&two) == one);
            prop_assert!(two.is_within(&text));
        }
    }

    #[test]
    fn field_sets_survive_their_json(object in any_json()) {
        if let Value::Object(object) = &object {
            let set = walk::field_set(object, &of::<Pod>());
            prop_assert_eq!(FieldSet::from_json(set.clone().into_json()), set);
        }
    }
}
