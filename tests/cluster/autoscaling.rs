//! What pods use, and a deployment that grows with it, with nothing installed besides the cluster.

use crate::harness::Cluster;
use crate::manifests::deployment;

#[test]
fn a_busy_deployment_grows_by_itself() {
    let cluster = Cluster::up(&[testkit::images::busybox]);
    let busy = "
      containers:
      - name: busy
        image: busybox
        command: [sh, -c, 'while :; do :; done']
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
    let nodes = cluster.kubectl("top nodes --no-headers");
    assert!(nodes.starts_with("node-1 "), "{nodes}");
    let one = cluster.kubectl("get --raw /apis/metrics.k8s.io/v1beta1/nodes/node-1");
    assert!(one.contains(r#""kind":"NodeMetrics""#) && one.contains(r#""window":"#), "{one}");
    let none = cluster.kubectl("get --raw /apis/metrics.k8s.io/v1beta1/pods?labelSelector=app%3Dother");
    assert!(none.contains(r#""items":[]"#), "{none}");
    let missing = cluster.cox("kubectl").args(["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes/none"]).output();
    assert!(String::from_utf8(missing.unwrap().stderr).unwrap().contains("NotFound"));

    cluster.kubectl("autoscale deployment busy --min=1 --max=3 --cpu=50%");
    cluster.wait("three pods", || {
        (cluster.kubectl("get deployment busy -o jsonpath={.spec.replicas}") == "3").then_some(())
    });
    cluster.wait("the autoscaler's conditions", || {
        let scaler = cluster.kubectl("describe hpa busy");
        let holds = ["ScalingActive   True    ValidMetricFound", "SuccessfulRescale", "above target"];
        holds.iter().all(|text| scaler.contains(text)).then_some(())
    });

    // A view of a namespace includes what its pods use.
    cluster.kubectl("create rolebinding look --clusterrole=view --user=jane");
    let may = cluster.kubectl("auth can-i list pods.metrics.k8s.io --as=jane");
    assert!(may.starts_with("yes"), "{may}");
}
