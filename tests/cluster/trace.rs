//! The trace: every stage of the walk is seen, with its cause.

use std::collections::BTreeSet;

use ::trace::Walk;
use ::trace::walk::problems;

use crate::harness::{Cluster, describe};

/// What the seeds' command must be seen to do: number and name of each stage.
const STAGES: &[(&str, &str)] = &[
    ("1", "command"),
    ("1.1", "check"),
    ("1.2", "generate"),
    ("1.5", "credentials"),
    ("2", "request"),
    ("2.2", "authentication"),
    ("2.3", "audit"),
    ("2.3", "impersonation"),
    ("2.3", "limits"),
    ("2.4", "authorization"),
    ("2.5", "admission"),
    ("2.5", "admission check"),
    ("2.6", "decode"),
    ("2.6", "defaults"),
    ("2.6", "validation"),
    ("2.6", "encode"),
    ("3.1", "commit"),
    ("5.1", "watch delivery"),
    ("5.1", "queue wait"),
    ("5.2", "reconcile"),
    ("5.3", "reconcile"),
    ("6.1", "scheduling queue"),
    ("6.2", "filters"),
    ("6.2", "scores"),
    ("6.3", "scheduling cycle"),
    ("6.3", "bind"),
    ("7.1", "pod sync"),
    ("7.2", "status"),
    ("7.3", "directories, cgroup"),
    ("7.3", "volumes"),
    ("7.4", "ready"),
    ("8.1", "sandbox"),
    ("8.1", "pause"),
    ("8.2", "pull image"),
    ("8.2", "create container"),
    ("8.2", "start container"),
    ("9.1", "CNI"),
    ("11.1", "allocate addresses"),
    ("11.1", "endpoints"),
    ("11.2", "rules programmed"),
    ("11.3", "DNS record live"),
];

/// Walk 12.2: one command shows the whole walk, each stage with its cause.
#[test]
fn the_trace_of_a_deployment_has_every_stage_and_no_gap() {
    let cluster = Cluster::up(&[testkit::images::nginx]);
    cluster.kubectl("run --image=nginx --replicas=3 --port=80 --expose");
    cluster.kubectl("rollout status deployment/nginx --timeout=170s");
    complete(&cluster, "deploy/nginx", STAGES);
    // Each pod has its own way to its node. What is told of the last one may come later.
    let ways = |walk: &Walk| {
        ["bind", "sandbox", "pull image", "start container", "ready"].map(|stage| {
            let steps = walk.spans.iter().filter(|step| step.name == stage);
            steps.map(|step| step.object.as_str()).collect::<BTreeSet<_>>().len()
        })
    };
    let walk = cluster.wait("the ways of three pods", || {
        let walk = ask(&cluster, "deploy/nginx")?;
        (ways(&walk) == [3; 5]).then_some(walk)
    });

    // Causal order holds, and nothing is without a cause but the command.
    assert_eq!(problems(&walk), BTreeSet::new());
    assert_eq!(walk.spans[0].detail, "kubectl run");
    let plugins: BTreeSet<&str> =
        walk.spans.iter().filter(|step| step.stage == "2.5").map(|step| step.detail.as_str()).collect();
    assert!(plugins.contains("NamespaceLifecycle") && plugins.contains("ResourceQuota"), "{plugins:?}");
    assert!(walk.spans.iter().any(|step| step.stage == "9.1" && step.detail == "bridge"));
    let critical: BTreeSet<&str> =
        walk.spans.iter().filter(|step| step.critical).map(|step| step.stage.as_str()).collect();
    assert!(critical.contains("1") && critical.contains("8.1") && critical.contains("11.2"), "{critical:?}");

    // A pod's walk is the way to it and what followed, without the other pods.
    let pod = cluster.kubectl("get pods -l run=nginx -o jsonpath={.items[0].metadata.name}");
    let of_pod = ask(&cluster, &format!("pod/{pod}")).unwrap();
    assert_eq!(problems(&of_pod), BTreeSet::new());
    let started: BTreeSet<&str> =
        of_pod.spans.iter().filter(|step| step.name == "start container").map(|step| step.object.as_str()).collect();
    assert_eq!(started, BTreeSet::from([format!("pods/default/{pod}").as_str()]));

    // As text, for people.
    let text = cluster.cox("trace").args(["deploy/nginx", "--all"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    for word in ["●", "kubectl run", "NamespaceLifecycle", "rules programmed", "critical path"] {
        assert!(text.contains(word), "no {word} in\n{text}");
    }

    // For a collector: every span has the id of its cause, or is the command.
    let request: serde_json::Value = serde_json::from_str(&cluster.cox_says("trace deploy/nginx -o otlp")).unwrap();
    let resources = request["resourceSpans"].as_array().unwrap().iter();
    let spans: Vec<&serde_json::Value> =
        resources.flat_map(|actor| actor["scopeSpans"][0]["spans"].as_array().unwrap()).collect();
    let ids: BTreeSet<&str> = spans.iter().map(|span| span["spanId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), spans.len());
    let roots = spans.iter().filter(|span| !ids.contains(span["parentSpanId"].as_str().unwrap()));
    assert_eq!(roots.count(), 1);

    // A probe is a stage of its own, and readiness follows from it; so are the steps of a volume.
    let claim = serde_json::json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    let overrides = serde_json::json!({"spec": {
        "containers": [{
            "name": "probed", "image": "nginx", "readinessProbe": {"httpGet": {"port": 80}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
        "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}],
    }});
    cluster.kubectl(&format!("run probed --image=nginx --overrides={overrides}"));
    cluster.kubectl("wait --for=condition=Ready pod/probed --timeout=170s");
    let stages =
        [("7.3", "provision volume"), ("7.3", "publish volume"), ("7.4", "probe"), ("7.4", "ready"), ("7.2", "status")];
    let walk = complete(&cluster, "pod/probed", &stages);
    assert_eq!(problems(&walk), BTreeSet::new());
    let ready = walk.spans.iter().find(|step| step.name == "ready").unwrap();
    let probed = walk.spans.iter().find(|step| step.name == "probe").unwrap();
    assert!(ready.offset >= probed.offset, "ready before it was probed");

    let output = cluster.cox("trace").arg("deploy/none").output().unwrap();
    assert!(!output.status.success() && describe(&output).contains("is remembered"), "{}", describe(&output));
    a_volume_that_waits_says_for_what(&cluster);
}

/// What a trace does not show, because it has not happened: a claim and its pod name the one thing that they wait for.
fn a_volume_that_waits_says_for_what(cluster: &Cluster) {
    let waiting = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: waits}
spec: {accessModes: [ReadWriteOnce], storageClassName: missing, resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: waits}
spec:
  containers: [{name: c, image: nginx, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: waits}}]
---
apiVersion: v1
kind: Pod
metadata: {name: older}
spec:
  containers: [{name: c, image: nginx, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, gcePersistentDisk: {pdName: disk}}]
"#;
    cluster.apply(waiting);
    let no_class = "storage class \"missing\" does not exist";
    for (command, expected) in [
        ("why pvc/waits", format!("pvc/waits: {no_class}")),
        ("why pod/waits", format!("pod/waits: it waits for claim waits: {no_class}")),
        ("why pod/older", "driver name pd.csi.storage.gke.io not found in the list of registered CSI drivers".into()),
        ("kubectl describe pvc waits", "storageclass.storage.k8s.io \"missing\" not found".into()),
    ] {
        cluster.wait(&format!("{expected} from {command}"), || {
            cluster.cox_says(command).contains(&expected).then_some(())
        });
    }
}

fn ask(cluster: &Cluster, object: &str) -> Option<Walk> {
    let output = cluster.cox("trace").args([object, "-o", "json"]).output().unwrap();
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// The walk once it has all these stages.
fn complete(cluster: &Cluster, object: &str, stages: &[(&str, &str)]) -> Walk {
    let missing = |walk: &Walk| -> Vec<String> {
        let has =
            |(number, name): &&(&str, &str)| walk.spans.iter().any(|step| step.stage == *number && step.name == *name);
        stages.iter().filter(|stage| !has(stage)).map(|(number, name)| format!("{number} {name}")).collect()
    };
    let mut last = Vec::new();
    let mut tries = 0;
    cluster.wait("a complete walk", || {
        let walk = ask(cluster, object)?;
        let left = missing(&walk);
        tries += 1;
        if left != last {
            eprintln!("{object}: the walk has no {left:?} yet");
            last = left;
        }
        last.is_empty().then_some(walk)
    })
}
