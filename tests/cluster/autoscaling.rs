//! What pods use, and a deployment that grows with it, with nothing installed besides the cluster.

use serde_json::Value;

use crate::harness::Cluster;
use crate::manifests::deployment;

#[test]
fn a_busy_deployment_grows_by_itself() {
    let cluster = Cluster::up(&[testkit::images::busybox]);
    let busy = "
      containers:
      - name: busy
        image: busybox
        command: [sh, -c, 'until [ -e /tmp/calm ]; do :; done; exec sleep 100000']
        resources: {requests: {cpu: 10m}, limits: {cpu: 200m}}";
    cluster.apply(&deployment("busy", 1, busy));
    cluster.kubectl("rollout status deployment busy --timeout=180s");

    cluster.wait("the use of the pod", || {
        let output = cluster.cox("kubectl").args(["top", "pods", "--containers", "--no-headers"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let cores = words.get(2)?.strip_suffix('m')?.parse::<u32>().ok()?;
        (words[0].starts_with("busy-") && words[1] == "busy" && cores > 0).then_some(())
    });
    cluster.wait("the use of the node", || {
        let output = cluster.cox("kubectl").args(["top", "nodes", "--no-headers"]).output().unwrap();
        output.stdout.starts_with(b"node-1 ").then_some(())
    });
    let one = cluster.kubectl("get --raw /apis/metrics.k8s.io/v1beta1/nodes/node-1");
    assert!(one.contains(r#""kind":"NodeMetrics""#) && one.contains(r#""window":"#), "{one}");
    let none = cluster.kubectl("get --raw /apis/metrics.k8s.io/v1beta1/pods?labelSelector=app%3Dother");
    assert!(none.contains(r#""items":[]"#), "{none}");
    let missing = cluster.cox("kubectl").args(["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes/none"]).output();
    assert!(String::from_utf8(missing.unwrap().stderr).unwrap().contains("NotFound"));

    cpu_is_the_cgroups(&cluster);

    cluster.kubectl("autoscale deployment busy --min=1 --max=3 --cpu=50%");
    cluster.wait("three pods", || {
        (cluster.kubectl("get deployment busy -o jsonpath={.spec.replicas}") == "3").then_some(())
    });
    cluster.wait("the autoscaler's conditions", || {
        let scaler = cluster.kubectl("describe hpa busy");
        let holds = ["ScalingActive   True    ValidMetricFound", "SuccessfulRescale", "above target"];
        holds.iter().all(|text| scaler.contains(text)).then_some(())
    });

    // And back once the load has ended, without the five minutes that it would be held otherwise.
    let at_once = r#"{"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}}"#;
    cluster.kubectl_args(&["patch", "hpa", "busy", "--type=merge", "-p", at_once]);
    cluster.kubectl("rollout status deployment busy --timeout=180s");
    for pod in cluster.kubectl("get pods -l app=busy -o name").lines() {
        cluster.kubectl(&format!("exec {pod} -- touch /tmp/calm"));
    }
    cluster.wait("one pod again", || {
        let replicas = cluster.kubectl("get deployment busy -o jsonpath={.spec.replicas}");
        (replicas == "1" && cluster.kubectl("describe hpa busy").contains("All metrics below target")).then_some(())
    });

    figures_are_the_cgroups(&cluster);

    // A view of a namespace includes what its pods use.
    cluster.kubectl("create rolebinding look --clusterrole=view --user=jane");
    let may = cluster.kubectl("auth can-i list pods.metrics.k8s.io --as=jane");
    assert!(may.starts_with("yes"), "{may}");
}

/// Seconds between two readings of a cgroup: as long as the window of what is told.
const WINDOW: f64 = 15.0;

/// A pod that is held at its limit uses the same in every window: what is told of it is what its cgroup counts, but for 2 %.
fn cpu_is_the_cgroups(cluster: &Cluster) {
    let pod = cluster.kubectl("get pods -l app=busy -o jsonpath={.items[0].metadata.name}");
    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/{pod}");
    // Seconds, and the CPU time in millionths or, with version 1 of cgroups, in billionths of a second.
    let script = "cut -d' ' -f1 /proc/uptime; if [ -e /sys/fs/cgroup/cpu.stat ]; then \
        sed -n 's/^usage_usec \\(.*\\)/\\1000/p' /sys/fs/cgroup/cpu.stat; else cat /sys/fs/cgroup/cpuacct/cpuacct.usage; fi";
    let mut readings: Vec<(f64, f64)> = Vec::new();
    cluster.wait("a rate that agrees with the cgroup's", || {
        let seen = cluster.kubectl_args(&["exec", &pod, "--", "sh", "-c", script]);
        let mut numbers = seen.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        let (at, used) = (numbers.next()?, numbers.next()? / 1e9);
        readings.push((at, used));
        let (since, before) = readings.iter().rev().find(|(since, _)| at - since >= WINDOW)?;
        let own = (used - before) / (at - since);
        let told: Value = serde_json::from_str(&cluster.kubectl(&format!("get --raw {path}"))).ok()?;
        let told = cores(told["containers"][0]["usage"]["cpu"].as_str()?)?;
        (own > 0.0 && (told - own).abs() <= 0.02 * own).then_some(())
    });
}

/// Of a quantity of CPU.
fn cores(quantity: &str) -> Option<f64> {
    let (digits, unit) = match quantity.strip_suffix(['n', 'u', 'm']) {
        Some(digits) => (digits, quantity.chars().last()?),
        None => (quantity, ' '),
    };
    let part = match unit {
        'n' => 1e-9,
        'u' => 1e-6,
        'm' => 1e-3,
        _ => 1.0,
    };
    Some(digits.parse::<f64>().ok()? * part)
}

/// A pod that has used its share of CPU and keeps its memory: what is told of it is what its cgroup says, but for 2 %.
fn figures_are_the_cgroups(cluster: &Cluster) {
    let steady = r#"
apiVersion: v1
kind: Pod
metadata: {name: steady}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox
    command: [sh, -c, 'head -c 67108864 /dev/zero > /kept/file && touch /tmp/done && sleep 100000']
    readinessProbe: {exec: {command: [test, -e, /tmp/done]}, periodSeconds: 1}
    volumeMounts: [{name: kept, mountPath: /kept}]
  volumes: [{name: kept, emptyDir: {medium: Memory}}]
"#;
    cluster.apply(steady);
    cluster.kubectl("wait --for=condition=Ready pod/steady --timeout=180s");
    // As both versions of cgroups have it, without what could be given back at once.
    let script = "if [ -e /sys/fs/cgroup/memory.current ]; then cd /sys/fs/cgroup; cat memory.current; \
        grep ^inactive_file memory.stat; else cd /sys/fs/cgroup/memory; cat memory.usage_in_bytes; \
        grep ^total_inactive_file memory.stat; fi";
    cluster.wait("figures that agree with the cgroup's", || {
        let path = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/steady";
        let output = cluster.cox("kubectl").args(["get", "--raw", path]).output().unwrap();
        let told: Value = serde_json::from_slice(&output.stdout).ok()?;
        let told = told["containers"][0]["usage"]["memory"].as_str()?.strip_suffix("Ki")?.parse::<f64>().ok()? * 1024.0;
        let seen = cluster.kubectl_args(&["exec", "steady", "--", "sh", "-c", script]);
        let mut numbers = seen.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        let own = numbers.next()? - numbers.next()?;
        let top = cluster.kubectl("top pod steady --no-headers");
        let top = top.split_whitespace().nth(2)?.strip_suffix("Mi")?.parse::<f64>().ok()? * 1048576.0;
        let agrees = |figure: f64| (figure - own).abs() <= 0.02 * own;
        (own > 67e6 && agrees(told) && agrees(top)).then_some(())
    });
}
