//! From the first minute, without a registry: the binary carries an image to run.

use crate::harness::Cluster;

#[test]
fn the_carried_image_runs_where_no_registry_has_one() {
    let cluster = Cluster::up(&[]);
    cluster.kubectl("run hello --image=cox.local/hello --replicas=3 --port=80 --expose");
    cluster.kubectl("rollout status deployment/hello --timeout=170s");
    let service = cluster.kubectl("get service hello -o jsonpath={.spec.clusterIP}");
    // Every pod answers, by its own name.
    let names = cluster.answers("through the service", 3, || cluster.http_get(&format!("{service}:80")));
    assert!(names.iter().all(|line| line.starts_with("Hello from hello-")), "{names:?}");

    // The web server is PID 1 and still ends when it is asked to: nobody waits for the grace period.
    let patient = r#"{"apiVersion":"v1","spec":{"terminationGracePeriodSeconds":3600}}"#;
    cluster.kubectl_args(&["run", "ends", "--image=cox.local/hello", "--restart=Never", "--overrides", patient]);
    cluster.kubectl("wait --for=condition=Ready pod/ends --timeout=170s");
    let address = cluster.kubectl("get pod ends -o jsonpath={.status.podIP}") + ":80";
    cluster.wait("an answer of the pod", || cluster.http_get(&address));
    cluster.kubectl("delete pod ends --timeout=170s");
    cluster.kubectl("delete deployment hello --timeout=170s");
    cluster.kubectl("wait --for=delete pod -l run=hello --timeout=170s");

    cluster.kubectl("run x --image=cox.local/nothing");
    let said = cluster.wait("the reason why the pod does not start", || {
        let events = cluster.kubectl("get events -o jsonpath={.items[*].message}");
        events.contains("this binary carries cox.local/hello").then_some(events)
    });
    assert!(said.contains("cox.local/nothing"), "{said}");
}
