//! Integers at their ends, in every field that has one: an answer each, no panic, and nothing that cannot be removed.

use api::schema::{Struct, Type};
use bytes::Bytes;
use http_body_util::BodyExt;
use registry::{Resource, Serving};
use serde_json::{Map, Value, json};

use crate::harness::Cluster;

const EXTREMES: [i64; 2] = [i64::MIN, i64::MAX];

/// The number where an integer belongs; none where a type has no place for one.
fn extreme(ty: &Type, number: i64) -> Option<Value> {
    match ty {
        Type::Int32 => Some(json!(number.clamp(i32::MIN.into(), i32::MAX.into()))),
        Type::Int64 | Type::Number => Some(json!(number)),
        Type::IntOrString => Some(json!(number.clamp(i32::MIN.into(), i32::MAX.into()))),
        Type::Quantity => Some(json!(format!("{number}"))),
        _ => None,
    }
}

/// A value with something in each of its fields; structures that hold themselves do so once.
fn full(ty: &Type, number: i64, above: &mut Vec<String>) -> Option<Value> {
    Some(match ty {
        Type::Bool => json!(true),
        Type::String => json!("x"),
        Type::Bytes => json!("eA=="),
        Type::Time => json!("9999-12-31T23:59:59Z"),
        Type::List(inner) => json!([full(inner, number, above)?]),
        Type::Map(inner) => json!({"x": full(inner, number, above)?}),
        Type::Struct(definition) => full_struct(definition, number, above)?,
        other => return extreme(other, number),
    })
}

fn full_struct(definition: &Struct, number: i64, above: &mut Vec<String>) -> Option<Value> {
    let name = definition.name.to_string();
    if above.contains(&name) {
        return None;
    }
    above.push(name);
    let mut object = Map::new();
    for field in definition.fields() {
        if let Some(value) = full(&field.ty, number, above) {
            object.insert(field.name.to_string(), value);
        }
    }
    above.pop();
    Some(Value::Object(object))
}

/// The good object with one integer changed, for each integer that its schema has. What is on the way and not there is
/// made with what it requires. Templates of pods are left to pods.
fn changed(definition: &Struct, good: &Value, number: i64, above: &mut Vec<String>) -> Vec<Value> {
    let name = definition.name.to_string();
    if above.contains(&name) || definition.short_name() == "PodTemplateSpec" || definition.short_name() == "ObjectMeta"
    {
        return Vec::new();
    }
    above.push(name);
    let mut all = Vec::new();
    for field in definition.fields() {
        let there = good.get(&*field.name);
        for value in changed_value(&field.ty, there, number, above) {
            let mut object = good.clone();
            object[&*field.name] = value;
            all.push(object);
        }
    }
    above.pop();
    all
}

fn changed_value(ty: &Type, there: Option<&Value>, number: i64, above: &mut Vec<String>) -> Vec<Value> {
    match ty {
        Type::List(inner) => {
            let first = there.and_then(|list| list.get(0));
            changed_value(inner, first, number, above).into_iter().map(|value| json!([value])).collect()
        }
        Type::Map(inner) => {
            let key = there.and_then(Value::as_object).and_then(|map| map.keys().next()).map_or("cpu", String::as_str);
            let first = there.and_then(|map| map.get(key));
            changed_value(inner, first, number, above).into_iter().map(|value| json!({ key: value })).collect()
        }
        Type::Struct(definition) => {
            let required = || {
                let needed = definition.fields().iter().filter(|field| field.required);
                let needed =
                    needed.filter_map(|field| Some((field.name.to_string(), full(&field.ty, 1, &mut Vec::new())?)));
                Value::Object(needed.collect())
            };
            changed(definition, &there.cloned().unwrap_or_else(required), number, above)
        }
        other => extreme(other, number).into_iter().collect(),
    }
}

/// Objects that are accepted as they are, by the name of their resource.
fn good() -> Vec<(&'static str, &'static str, Value)> {
    let pod = json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
        "livenessProbe": {"httpGet": {"port": 80}}, "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}],
        "securityContext": {"runAsUser": 1}, "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"a": "b"}}}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1"}}]});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let never = json!({"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}});
    let selector = json!({"matchLabels": {"a": "b"}});
    vec![
        ("", "pods", json!({"spec": pod})),
        ("", "services", json!({"spec": {"type": "NodePort", "ports": [{"port": 80}]}})),
        ("", "nodes", json!({})),
        ("", "resourcequotas", json!({"spec": {"hard": {"cpu": "1"}}})),
        ("", "limitranges", json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}})),
        ("", "replicationcontrollers", json!({"spec": {"selector": {"a": "b"}, "template": template}})),
        (
            "apps",
            "deployments",
            json!({"spec": {"selector": selector, "template": template,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {}}}}),
        ),
        ("apps", "replicasets", json!({"spec": {"selector": selector, "template": template}})),
        (
            "apps",
            "daemonsets",
            json!({"spec": {"selector": selector, "template": template,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {}}}}),
        ),
        (
            "apps",
            "statefulsets",
            json!({"spec": {"selector": selector, "template": template, "serviceName": "s",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {}}}}),
        ),
        ("batch", "jobs", json!({"spec": {"template": never}})),
        ("batch", "cronjobs", json!({"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": never}}}})),
        (
            "autoscaling",
            "horizontalpodautoscalers",
            json!({"spec": {"maxReplicas": 2,
            "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
            "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1}]}}}}),
        ),
        ("policy", "poddisruptionbudgets", json!({"spec": {"selector": selector}})),
        ("scheduling.k8s.io", "priorityclasses", json!({"value": 1})),
        ("coordination.k8s.io", "leases", json!({"spec": {"holderIdentity": "x", "leaseDurationSeconds": 1}})),
        (
            "discovery.k8s.io",
            "endpointslices",
            json!({"addressType": "IPv4", "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["192.0.2.1"]}]}),
        ),
        (
            "networking.k8s.io",
            "networkpolicies",
            json!({"spec": {"podSelector": {},
            "ingress": [{"ports": [{"port": 80, "endPort": 90}]}]}}),
        ),
        ("node.k8s.io", "runtimeclasses", json!({"handler": "x", "overhead": {"podFixed": {"cpu": "1"}}})),
    ]
}

fn collection(resource: &Resource) -> String {
    let prefix = if resource.group.is_empty() { "/api" } else { "/apis" };
    let namespace = if resource.is_namespaced() { "/namespaces/default" } else { "" };
    format!("{prefix}/{}{namespace}/{}", resource.api_version(), resource.plural)
}

/// The code of the answer and its text, which is no failure of the server.
async fn ask(cluster: &Cluster, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = match method {
        "GET" => request.header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
        _ => request,
    };
    let mut request = request.body(bytes).unwrap();
    request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
    let response = cluster.handle(request).await;
    let code = response.status().as_u16();
    let answer = response.into_body().collect().await.unwrap().to_bytes();
    assert!(code < 500, "{method} {path} {body}: {code} {}", String::from_utf8_lossy(&answer));
    (code, serde_json::from_slice(&answer).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_every_integer_may_be_at_its_end() {
    let cluster = Cluster::start().await;
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let resources = registry::table::resources();
    // All at once.
    let served = |resource: &&Resource| {
        resource.has_verb(&registry::Verb::Create) && matches!(resource.serving, Serving::Stored)
    };
    for resource in resources.iter().filter(served) {
        for number in EXTREMES {
            let mut object = full_struct(&resource.strategy.schema(), number, &mut Vec::new()).unwrap();
            object["apiVersion"] = resource.api_version().into();
            object["kind"] = resource.kind.to_string().into();
            object["metadata"] = json!({"name": "x"});
            ask(&cluster, "POST", &format!("{}?dryRun=All", collection(resource)), &object).await;
        }
    }
    // One by one, in objects that are fine otherwise: those that are taken are shown, written again and removed.
    let mut taken = 0;
    for (group, plural, good) in good() {
        let resource = resources.iter().find(|resource| resource.group == group && resource.plural == plural).unwrap();
        let path = collection(resource);
        let mut objects = vec![good.clone()];
        for number in EXTREMES {
            objects.extend(changed(&resource.strategy.schema(), &good, number, &mut Vec::new()));
        }
        for (at, mut object) in objects.into_iter().enumerate() {
            object["apiVersion"] = resource.api_version().into();
            object["kind"] = resource.kind.to_string().into();
            object["metadata"] = json!({"name": "x"});
            let (code, answer) = ask(&cluster, "POST", &path, &object).await;
            assert!(at > 0 || code == 201, "{plural}: {answer}");
            if code != 201 {
                continue;
            }
            taken += 1;
            let own = format!("{path}/x");
            assert_eq!(ask(&cluster, "GET", &own, &Value::Null).await.0, 200, "{object}");
            let (code, answer) = ask(&cluster, "PUT", &own, &answer).await;
            assert_eq!(code, 200, "{object}: {answer}");
            let (code, answer) = ask(
                &cluster,
                "DELETE",
                &format!("{own}?gracePeriodSeconds=0&propagationPolicy=Background"),
                &Value::Null,
            )
            .await;
            assert_eq!(code, 200, "{object}: {answer}");
            assert_eq!(ask(&cluster, "GET", &own, &Value::Null).await.0, 404, "{object}");
        }
    }
    assert!(taken > 50, "{taken}");
}
