//! What containers are given, and what they leave behind.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use serde_json::json;

use crate::node::{Node, is_ready, phase, shell};

/// Command, arguments and environment: from the spec, from the image, from objects with any prefix.
pub(crate) async fn commands_and_variables_are_put_together(node: &mut Node) {
    let client = node.api.client();
    let map: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "map"}, "data": {"a-1": "one", "b": "two"}})).unwrap();
    client.namespaced::<ConfigMap>("default").create(&map).await.unwrap();
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "secret"}, "stringData": {"c": "three"}})).unwrap();
    client.namespaced::<Secret>("default").create(&secret).await.unwrap();
    let from = |kind: &str, name: &str, prefix: &str| json!({kind: {"name": name}, "prefix": prefix});
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    node.create(
        "env",
        json!({
            "restartPolicy": "Never",
            "containers": [{
                "name": "c",
                // The image has a command and no entrypoint: arguments take its place.
                "args": ["sh", "-c", "tr '\\0' '\\n' < /proc/1/environ | grep -E '^(p-|1-|[$]_-|a-1|b=|NAME|UID_|NODE|LATE|EMPTY)'; echo $0 $1 $2", "$(NAME)", "$$(NAME)", "$(MISSING)"],
                "envFrom": [from("configMapRef", "map", ""), from("configMapRef", "map", "p-"), from("configMapRef", "map", "1-"),
                    from("secretRef", "secret", "$_-"), {"configMapRef": {"name": "none", "optional": true}}],
                "env": [field("NAME", "metadata.name"), field("NODE", "spec.nodeName"), field("UID_", "metadata.uid"),
                    {"name": "LATE", "value": "$(NAME)-$(b)"}, {"name": "EMPTY", "value": ""}],
            }],
        }),
    )
    .await;
    let pod = node.wait("env", "done", |pod| phase(pod) == "Succeeded").await;
    let uid = pod.metadata.uid.clone().unwrap();
    let expected = format!(
        "$_-c=three\n1-a-1=one\n1-b=two\nEMPTY=\nLATE=env-two\nNAME=env\nNODE={}\nUID_={uid}\na-1=one\nb=two\np-a-1=one\np-b=two\nenv $(NAME) $(MISSING)\n",
        node.name
    );
    let log = node.container_log(&pod, "c");
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&log), sorted(&expected));
}

/// A message for whoever looks at the pod: from a file that anyone may write, or from the log of a failure.
pub(crate) async fn last_words_are_told(node: &mut Node) {
    let fallback = "FallbackToLogsOnError";
    for (name, script, policy, expected) in [
        ("file", "printf DONE > /dev/custom; exit 0", "File", Some("DONE")),
        ("failing-file", "echo log; printf BAD > /dev/custom; exit 1", fallback, Some("BAD")),
        ("failing-log", "echo one; printf DONE; exit 1", fallback, Some("one\nDONE")),
        ("fine-log", "printf DONE; exit 0", fallback, None),
        ("silent", "echo log; exit 1", "File", None),
    ] {
        node.create(
            name,
            json!({
                "restartPolicy": "Never", "securityContext": {"runAsUser": 1000},
                "containers": [{"name": "c", "command": shell(script), "terminationMessagePath": "/dev/custom", "terminationMessagePolicy": policy}],
            }),
        )
        .await;
        let pod = node.wait(name, "over", |pod| matches!(phase(pod), "Succeeded" | "Failed")).await;
        let status = pod.status.unwrap().container_statuses.unwrap()[0].clone();
        let ended = status.state.unwrap().terminated.unwrap();
        assert_eq!(ended.message.as_deref(), expected, "{name}");
        assert_eq!(ended.reason.as_deref(), Some(if ended.exit_code == 0 { "Completed" } else { "Error" }), "{name}");
    }
}

/// Fifty volumes a pod, several pods at once.
pub(crate) async fn many_volumes_are_mounted_side_by_side(node: &mut Node) {
    let client = node.api.client().namespaced::<ConfigMap>("default");
    let count = 50;
    for number in 0..count {
        let map = json!({"metadata": {"name": format!("map-{number}")}, "data": {"number": number.to_string()}});
        client.create(&serde_json::from_value(map).unwrap()).await.unwrap();
    }
    let volumes: Vec<_> = (0..count)
        .map(|number| json!({"name": format!("v{number}"), "configMap": {"name": format!("map-{number}")}}))
        .collect();
    let mounts: Vec<_> =
        (0..count).map(|number| json!({"name": format!("v{number}"), "mountPath": format!("/v/{number}")})).collect();
    let script = "cat /v/*/number | wc -c; sleep 1000";
    let spec = json!({"containers": [{"name": "c", "command": shell(script), "volumeMounts": mounts}], "volumes": volumes,
        "terminationGracePeriodSeconds": 0});
    let names = ["one", "two", "three"];
    for name in names {
        node.create(name, spec.clone()).await;
    }
    for name in names {
        let pod: Pod = node.wait(name, "ready", is_ready).await;
        // Ten of one digit, forty of two.
        node.wait_log(&pod, "c", |log| log == "90\n").await;
    }
}
