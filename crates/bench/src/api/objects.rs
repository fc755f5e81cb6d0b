//! What is written: bodies as clients send them.

pub(super) const JSON: &str = "application/json";
pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub(super) const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// A pod as a Deployment would make it.
pub(super) fn pod(name: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","labels":{{"app":"bench","tier":"web","pod-template-hash":"5d8f9c7b6"}},"annotations":{{"example.com/checksum":"0123456789abcdef0123456789abcdef"}}}},"spec":{{"containers":[{{"name":"web","image":"registry.example.com/team/web:1.2.3","ports":[{{"containerPort":8080,"name":"http"}}],"env":[{{"name":"MODE","value":"production"}},{{"name":"POD","valueFrom":{{"fieldRef":{{"fieldPath":"metadata.name"}}}}}}],"resources":{{"requests":{{"cpu":"100m","memory":"64Mi"}},"limits":{{"memory":"128Mi"}}}},"readinessProbe":{{"httpGet":{{"path":"/ready","port":"http"}}}}}}],"nodeSelector":{{"kubernetes.io/os":"linux"}},"terminationGracePeriodSeconds":10}}}}"#
    )
}

/// One of those that lists ask for.
pub(super) fn listed_pod(n: usize) -> String {
    pod(&format!("listed-{n:06}")).replace(r#""app":"bench""#, r#""app":"listed""#)
}

/// The `n`th state of a worker's lease.
pub(super) fn lease(namespace: &str, worker: usize, n: usize, version: &str) -> String {
    format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"own-{worker}","namespace":"{namespace}","resourceVersion":"{version}"}},"spec":{{"holderIdentity":"node-{worker}","leaseDurationSeconds":40,"renewTime":"2026-01-01T00:00:00.{:06}Z"}}}}"#,
        n % 1_000_000
    )
}

/// The `n`th state of a worker's ConfigMap.
pub(super) fn config_map(worker: usize, n: usize, version: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"own-{worker}","resourceVersion":"{version}"}},"data":{{"turn":"{n}","file":"{}"}}}}"#,
        "line of text\\n".repeat(40)
    )
}
