//! Manifests that several tests apply: pods that answer on port 80, and services in front of them.

/// One pod per node, which answers with its name.
pub(crate) const HELLO: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: hello}
spec:
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      containers:
      - {name: hello, image: cox.local/hello, ports: [{containerPort: 80}]}
---";

/// Pods labelled `app: <name>` with a spec that is indented by six.
pub(crate) fn deployment(name: &str, replicas: u32, pod: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:{pod}
---"
    )
}

/// A container that is ready once port 80 answers, with more fields of its own.
pub(crate) fn web(image: &str, more: &str) -> String {
    let probe = "{httpGet: {path: /, port: 80}, periodSeconds: 1}";
    format!("{{name: web, image: {image}, ports: [{{containerPort: 80}}], readinessProbe: {probe}{more}}}")
}

/// Port 8080 in front of port 80 of the pods labelled `app: <name>`, on every node too.
pub(crate) fn node_port(name: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  type: NodePort
  selector: {{app: {name}}}
  ports: [{{port: 8080, targetPort: 80}}]
---"
    )
}
