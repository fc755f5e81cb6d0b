//! Rules in CEL: admission policies, what they refuse, warn about and change, and rules of custom resources.

use serde_json::{Value, json};

use crate::harness::Cluster;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

pub(crate) fn rules(group: &str, resource: &str) -> Value {
    json!({"resourceRules": [{"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource],
        "operations": ["CREATE", "UPDATE"]}]})
}

/// Creates a policy and its binding, and waits until the server knows them.
pub(crate) async fn bind(cluster: &Cluster, kind: &str, name: &str, spec: Value, binding: Value) {
    let mut bound = json!({"policyName": name});
    bound.as_object_mut().unwrap().extend(binding.as_object().unwrap().clone());
    for (plural, spec) in [("policies", spec), ("policybindings", bound)] {
        let path = format!("{GROUP}/{kind}admission{plural}");
        let (code, answer) = cluster.send("POST", &path, json!({"metadata": {"name": name}, "spec": spec})).await;
        assert_eq!(code, 201, "{answer}");
        assert_eq!(cluster.send("GET", &format!("{path}/{name}"), Value::Null).await.0, 200);
    }
}

async fn unbind(cluster: &Cluster, kind: &str, name: &str) {
    for plural in ["policies", "policybindings"] {
        let path = format!("{GROUP}/{kind}admission{plural}/{name}");
        assert_eq!(cluster.send("DELETE", &path, Value::Null).await.0, 200);
        assert_eq!(cluster.send("GET", &path, Value::Null).await.0, 404);
    }
}

fn deployment(name: &str, replicas: i64) -> Value {
    let labels = json!({"app": name});
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}})
}

fn map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name, "labels": {"kind": "tested"}}, "data": data})
}

/// A policy says what its expressions get wrong about the kinds that they are meant for, and when it was looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validating_policies_say_what_their_expressions_get_wrong() {
    let cluster = Cluster::start().await;
    let path = format!("{GROUP}/validatingadmissionpolicies");
    let status = async |name: &str, generation: i64| {
        let started = std::time::Instant::now();
        loop {
            let (_, policy) = cluster.send("GET", &format!("{path}/{name}"), Value::Null).await;
            if policy["status"]["observedGeneration"] == generation {
                return policy["status"].clone();
            }
            assert!(started.elapsed().as_secs() < 120, "{policy}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let mut policy = json!({"metadata": {"name": "typed"}, "spec": {
        "matchConstraints": rules("apps", "deployments"),
        "variables": [{"name": "wanted", "expression": "object.spec.replicas"}],
        "validations": [{"expression": "object.replicas > 1"}, {"expression": "variables.wanted > 1",
            "messageExpression": "'not ' + object.spec.replicas"},
            {"expression": "object.metadata.labels['a'] == 'b' && object.spec.template.spec.containers.all(c, c.name != '')"}]}});
    let (code, answer) = cluster.send("POST", &path, policy.clone()).await;
    assert_eq!(code, 201, "{answer}");
    let checked = status("typed", 1).await;
    let warnings = checked["typeChecking"]["expressionWarnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 2, "{checked}");
    assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].expression");
    let warning = warnings[0]["warning"].as_str().unwrap();
    assert!(
        warning.starts_with("apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'"),
        "{warning}"
    );
    assert_eq!(warnings[1]["fieldRef"], "spec.validations[1].messageExpression");

    policy["spec"]["validations"] = json!([{"expression": "object.spec.replicas > 1"}]);
    let (code, answer) = cluster
        .send_raw("PATCH", &format!("{path}/typed"), "application/merge-patch+json", json!({"spec": policy["spec"]}))
        .await;
    assert_eq!(code, 200, "{answer:?}");
    assert_eq!(status("typed", 2).await["typeChecking"], json!({}));

    // Of custom kinds as much is known as their schema says, and of their metadata what is known of any.
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "replicas": {"type": "integer"}, "port": {"x-kubernetes-int-or-string": true},
        "rest": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}});
    let definition = json!({"metadata": {"name": "crontabs.example.com"}, "spec": {"group": "example.com",
        "scope": "Namespaced", "names": {"plural": "crontabs", "kind": "CronTab"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    crate::custom_resources::define(&cluster, &definition).await;
    let expressions = [
        "object.spec.replicas > '1'",
        "object.spec.maxRetries < 10",
        "object.spec.replicas > 1 && object.metadata.labels['a'] == 'b' && object.kind == 'CronTab'",
        "object.spec.port == 80 || object.spec.port == 'web' || object.spec.rest.any == 1",
    ];
    let validations = expressions.map(|expression| json!({"expression": expression}));
    let policy = json!({"metadata": {"name": "custom"},
        "spec": {"matchConstraints": rules("example.com", "crontabs"), "validations": validations}});
    let (code, answer) = cluster.send("POST", &path, policy).await;
    assert_eq!(code, 201, "{answer}");
    let checked = status("custom", 1).await;
    let warnings = checked["typeChecking"]["expressionWarnings"].as_array().unwrap();
    let fields: Vec<&Value> = warnings.iter().map(|warning| &warning["fieldRef"]).collect();
    assert_eq!(fields, ["spec.validations[0].expression", "spec.validations[1].expression"], "{checked}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validating_policies_refuse_what_breaks_their_rules() {
    let cluster = Cluster::start().await;
    let deny = json!({"validationActions": ["Deny"]});
    let spec = json!({"matchConstraints": rules("apps", "deployments"),
        "variables": [{"name": "replicas", "expression": "object.spec.replicas"},
            {"name": "odd", "expression": "variables.replicas % 2 == 1"}],
        "validations": [
            {"expression": "variables.replicas > 1", "messageExpression": "'wants > 1, got ' + string(variables.replicas)"},
            {"expression": "variables.odd", "message": "even numbers are not odd", "reason": "Forbidden"},
            {"expression": "namespaceObject.metadata.name == 'default'"}]});
    bind(&cluster, "validating", "replicas.example.com", spec, deny.clone()).await;
    let prefix = "is forbidden: ValidatingAdmissionPolicy 'replicas.example.com' with binding \
                  'replicas.example.com' denied request:";
    for (replicas, code, reason, message) in
        [(1, 422, "Invalid", "wants > 1, got 1"), (2, 403, "Forbidden", "even numbers are not odd"), (3, 201, "", "")]
    {
        let (found, answer) = cluster.send("POST", DEPLOYMENTS, deployment("d", replicas)).await;
        assert_eq!(found, code, "{answer}");
        if code != 201 {
            let expected = format!("deployments.apps \"d\" {prefix} {message}");
            assert_eq!(answer["message"], expected);
            assert_eq!(answer["reason"], reason);
            assert!(answer["details"]["causes"][0]["message"].as_str().unwrap().ends_with(message));
        }
    }
    // A rule about deployments has nothing to say about other things, nor about itself.
    assert_eq!(cluster.send("POST", MAPS, map("m", json!({}))).await.0, 201);
    unbind(&cluster, "validating", "replicas.example.com").await;
    assert_eq!(cluster.send("POST", DEPLOYMENTS, deployment("e", 1)).await.0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_decided_is_up_to_the_failure_policy() {
    let cluster = Cluster::start().await;
    let deny = json!({"validationActions": ["Deny"]});
    let broken = "object.data.missing == 'x'";
    for (policy, expression, condition, code) in [
        ("Fail", broken, "true", 422),
        ("Ignore", broken, "true", 201),
        ("Fail", broken, "object.metadata.name != 'm'", 201),
        ("Fail", "true", "object.nope == 1", 422),
        ("Ignore", "false", "object.nope == 1", 201),
        ("Fail", "has(object.data.missing) || object.metadata.name == 'm'", "true", 201),
        ("Fail", "lists.range(1000).all(a, lists.range(1000).all(b, a + b >= 0))", "true", 422),
        ("Fail", "authorizer.requestResource.check('delete').allowed()", "true", 201),
    ] {
        let spec = json!({"matchConstraints": rules("", "configmaps"), "failurePolicy": policy,
            "matchConditions": [{"name": "c", "expression": condition}], "validations": [{"expression": expression}]});
        bind(&cluster, "validating", "p", spec, deny.clone()).await;
        let (found, answer) = cluster.send("POST", MAPS, map("m", json!({"a": "1"}))).await;
        assert_eq!(found, code, "{expression} {condition}: {answer}");
        if expression == broken && code == 422 {
            let expected = format!("expression '{broken}' resulted in error: no such key: missing");
            assert!(answer["message"].as_str().unwrap().ends_with(&expected), "{answer}");
        }
        unbind(&cluster, "validating", "p").await;
        if code == 201 {
            assert_eq!(cluster.send("DELETE", &format!("{MAPS}/m"), Value::Null).await.0, 200);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_come_from_objects() {
    let cluster = Cluster::start().await;
    let limit = |name: &str, most: &str| json!({"metadata": {"name": name, "labels": {"limit": "yes"}}, "data": {"most": most}});
    let spec = json!({"matchConstraints": rules("apps", "deployments"),
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "validations": [{"expression": "object.spec.replicas <= int(params.data.most)",
            "messageExpression": "'at most ' + params.data.most"}]});
    let named = |action: &str| json!({"validationActions": ["Deny"], "paramRef": {"name": "limit", "parameterNotFoundAction": action}});
    bind(&cluster, "validating", "p", spec.clone(), named("Deny")).await;
    let (code, answer) = cluster.send("POST", DEPLOYMENTS, deployment("d", 1)).await;
    assert_eq!(code, 422);
    assert!(answer["message"].as_str().unwrap().contains("failed to configure binding: no params found"), "{answer}");
    assert_eq!(cluster.send("POST", MAPS, limit("limit", "2")).await.0, 201);
    assert_eq!(cluster.send("POST", DEPLOYMENTS, deployment("d", 2)).await.0, 201);
    let (code, answer) = cluster.send("POST", DEPLOYMENTS, deployment("e", 3)).await;
    assert_eq!(code, 422);
    assert!(answer["message"].as_str().unwrap().ends_with("at most 2"), "{answer}");
    unbind(&cluster, "validating", "p").await;
    // All that a selector finds count.
    assert_eq!(cluster.send("POST", MAPS, limit("other", "1")).await.0, 201);
    let selected = json!({"validationActions": ["Deny"], "paramRef": {"selector": {"matchLabels": {"limit": "yes"}},
        "parameterNotFoundAction": "Allow"}});
    bind(&cluster, "validating", "p", spec, selected).await;
    assert_eq!(cluster.send("POST", DEPLOYMENTS, deployment("e", 2)).await.0, 422);
    assert_eq!(cluster.send("POST", DEPLOYMENTS, deployment("e", 1)).await.0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_select_and_may_only_warn() {
    let cluster = Cluster::start().await;
    let spec = json!({"matchConstraints": rules("", "configmaps"), "validations": [{"expression": "false", "message": "never"}]});
    let binding = json!({"validationActions": ["Warn", "Audit"],
        "matchResources": {"objectSelector": {"matchLabels": {"kind": "tested"}}}});
    bind(&cluster, "validating", "p", spec, binding).await;
    let create = async |body: Value| {
        let body = bytes::Bytes::from(body.to_string());
        cluster.request("POST", MAPS, "application/json", body, "admin", &["system:masters"]).await
    };
    let response = create(map("m", json!({}))).await;
    assert_eq!(response.status(), 201);
    let warning = response.headers()["warning"].to_str().unwrap().to_owned();
    let expected = "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p': never";
    assert!(warning.contains(expected), "{warning}");
    let response = create(json!({"metadata": {"name": "n"}})).await;
    assert_eq!((response.status().as_u16(), response.headers().get("warning")), (201, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutating_policies_change_objects() {
    let cluster = Cluster::start().await;
    let apply =
        |expression: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
    let patch = |expression: &str| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}});
    let spec = json!({"matchConstraints": rules("apps", "deployments"), "reinvocationPolicy": "Never",
    "variables": [{"name": "by", "expression": "'admission-policy'"}],
    "mutations": [
        apply("Object{metadata: Object.metadata{annotations: {'mutated-by': variables.by}}}"),
        apply("Object{spec: Object.spec{replicas: object.spec.replicas + 1336}}"),
        apply("Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: \
            [Object.spec.template.spec.containers{name: 'sidecar', image: 'y'}]}}}}"),
        patch("[JSONPatch{op: 'add', path: '/metadata/labels', value: {'a': 'b'}}, JSONPatch{op: 'add', \
            path: '/metadata/annotations/' + jsonpatch.escapeKey('x/y'), value: string(object.spec.replicas)}]"),
    ]});
    bind(&cluster, "mutating", "p", spec, json!({})).await;
    let (code, answer) = cluster.send("POST", DEPLOYMENTS, deployment("d", 1)).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(answer["spec"]["replicas"], 1337);
    assert_eq!(answer["metadata"]["annotations"], json!({"mutated-by": "admission-policy", "x/y": "1337"}));
    assert_eq!(answer["metadata"]["labels"], json!({"a": "b"}));
    let containers = answer["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let names: Vec<&Value> = containers.iter().map(|container| &container["name"]).collect();
    assert_eq!(names, ["c", "sidecar"]);
    // Defaults came after the change.
    assert_eq!(containers[1]["terminationMessagePolicy"], "File");
    unbind(&cluster, "mutating", "p").await;
    // What is replaced as a whole may not be set, and a mutation that fails is up to the failure policy.
    for (expression, policy, expected) in [
        (
            "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: \
                [Object.spec.template.spec.containers{name: 'c', args: ['x']}]}}}}",
            "Fail",
            "may not mutate atomic arrays, maps or structs: .spec.template.spec.containers[0].args",
        ),
        ("Object{spec: Object.wrong{replicas: 1}}", "Fail", "type mismatch: unexpected type name \"Object.wrong\""),
        ("Object{spec: Object.spec{replicas: object.nope}}", "Fail", "resulted in error: no such key: nope"),
        ("Object{spec: Object.spec{replicas: object.nope}}", "Ignore", ""),
    ] {
        let spec = json!({"matchConstraints": rules("apps", "deployments"), "reinvocationPolicy": "Never",
            "failurePolicy": policy, "mutations": [apply(expression)]});
        bind(&cluster, "mutating", "p", spec, json!({})).await;
        let (code, answer) = cluster.send("POST", DEPLOYMENTS, deployment("f", 1)).await;
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!(code == 201, expected.is_empty(), "{expression}: {answer}");
        assert!(message.contains(expected), "{expression}: {answer}");
        assert!(code == 201 || message.starts_with("policy 'p' with binding 'p' denied request: "), "{answer}");
        unbind(&cluster, "mutating", "p").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_that_want_to_see_later_changes_run_again() {
    let cluster = Cluster::start().await;
    let count = "Object{data: {'first': string(int(object.?data.?first.orValue('0')) + 1)}}";
    let first = |policy: &str| {
        json!({"matchConstraints": rules("", "configmaps"), "reinvocationPolicy": policy, "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": count}}]})
    };
    let second = json!({"matchConstraints": rules("", "configmaps"), "reinvocationPolicy": "Never", "mutations": [
        {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{data: {'second': 'x'}}"}}]});
    for (policy, expected) in [("Never", "1"), ("IfNeeded", "2")] {
        bind(&cluster, "mutating", "a", first(policy), json!({})).await;
        bind(&cluster, "mutating", "b", second.clone(), json!({})).await;
        let (code, answer) = cluster.send("POST", MAPS, json!({"metadata": {"name": policy.to_lowercase()}})).await;
        assert_eq!(code, 201, "{answer}");
        assert_eq!(answer["data"], json!({"first": expected, "second": "x"}));
        unbind(&cluster, "mutating", "a").await;
        unbind(&cluster, "mutating", "b").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_fulfil_the_rules_of_their_schema() {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
    let cluster = Cluster::start().await;
    let definition = |rule: &str| {
        json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"}, "versions": [{"name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object",
            "x-kubernetes-validations": [{"rule": "self.metadata.name.startsWith('w')"}], "properties": {
                "spec": {"type": "object", "x-kubernetes-validations": [{"rule": rule}],
                    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
                "status": {"type": "object", "properties": {"health": {"type": "string"}},
                    "x-kubernetes-validations": [{"rule": "self.health == 'ok' || self.health == 'unhealthy'"}]}}}}}]}})
    };
    for (rule, expected) in [("self.z == 100", "undefined field 'z'"), ("self = 42", "Syntax error")] {
        let (code, answer) = cluster.send("POST", DEFINITIONS, definition(rule)).await;
        assert_eq!(code, 422, "{answer}");
        let message = answer["message"].as_str().unwrap();
        let place = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value";
        assert!(message.contains(expected) && message.contains(place), "{message}");
    }
    crate::custom_resources::define(&cluster, &definition("self.x + self.y > 0")).await;
    let widget = |name: &str, x: i64| {
        json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": name}, "spec": {"x": x, "y": 0}})
    };
    let (code, answer) = cluster.send("POST", WIDGETS, widget("w", -1)).await;
    assert_eq!(code, 422, "{answer}");
    let expected = "Widget.example.com \"w\" is invalid: spec: Invalid value: failed rule: self.x + self.y > 0";
    assert_eq!(answer["message"], expected);
    assert_eq!(cluster.send("POST", WIDGETS, widget("v", 1)).await.0, 422);
    let (code, mut answer) = cluster.send("POST", WIDGETS, widget("w", 1)).await;
    assert_eq!(code, 201, "{answer}");
    answer["status"] = json!({"health": "so so"});
    let status = format!("{WIDGETS}/w/status");
    assert_eq!(cluster.send("PUT", &status, answer.clone()).await.0, 422);
    answer["status"] = json!({"health": "ok"});
    assert_eq!(cluster.send("PUT", &status, answer).await.0, 200);
}
