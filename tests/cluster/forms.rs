//! The other forms of the command: with a name, as a generator, from a file. All end in running pods.

use crate::harness::Cluster;

const MANIFEST: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: applied}
spec:
  replicas: 2
  selector: {matchLabels: {app: applied}}
  template:
    metadata: {labels: {app: applied}}
    spec:
      containers:
      - name: web
        image: nginx
        ports: [{containerPort: 80}]
        readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: applied}
spec:
  type: NodePort
  selector: {app: applied}
  ports: [{port: 8080, targetPort: 80}]
";

#[test]
fn every_form_of_the_command_runs_pods() {
    let cluster = Cluster::up(&[testkit::images::nginx, testkit::images::busybox]);
    cluster.kubectl("run named --image=nginx --replicas=2");
    cluster.kubectl("create deployment created --image=nginx --replicas=2");
    let file = cluster.path("manifest.yaml");
    std::fs::write(&file, MANIFEST).unwrap();
    cluster.kubectl(&format!("apply -f {}", file.display()));
    for name in ["named", "created", "applied"] {
        cluster.kubectl(&format!("rollout status deployment/{name} --timeout=170s"));
    }

    // A node port answers on the node's own address.
    let port = cluster.kubectl("get service applied -o jsonpath={.spec.ports[0].nodePort}");
    cluster.wait("an answer through the node port", || cluster.http_get(&format!("172.31.7.2:{port}")));

    // A second apply changes what the file changes, and nothing else.
    std::fs::write(&file, MANIFEST.replace("replicas: 2", "replicas: 3")).unwrap();
    let said = cluster.kubectl(&format!("apply -f {}", file.display()));
    assert!(
        said.contains("deployment.apps/applied configured") && said.contains("service/applied unchanged"),
        "{said}"
    );
    cluster.kubectl("rollout status deployment/applied --timeout=170s");

    // A pod finds the service by name.
    cluster.kubectl("run asker --image=busybox --restart=Never -- wget -q -O - http://applied:8080/");
    cluster.wait("the pod's end", || {
        (cluster.kubectl("get pod asker -o jsonpath={.status.phase}") == "Succeeded").then_some(())
    });
    let said = cluster.kubectl("logs asker");
    assert!(said.contains("nginx"), "{said}");

    // Deleting a deployment takes its pods along.
    cluster.kubectl("delete deployment named created applied");
    cluster.wait("the end of the pods", || {
        cluster.kubectl("get pods -o name").lines().all(|pod| pod == "pod/asker").then_some(())
    });
}
