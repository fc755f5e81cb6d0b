//! A crash of ours never hurts theirs: the cluster dies and comes back, the containers do not notice.

use std::path::Path;

use crate::harness::{Cluster, run};

#[test]
fn containers_outlive_the_cluster_process() {
    let cluster = Cluster::up(&[testkit::images::busybox]);
    let output = cluster
        .cox("kubectl")
        .args([
            "run",
            "ticker",
            "--image=busybox",
            "--restart=Never",
            "--command",
            "--",
            "sh",
            "-c",
            "while true; do date; sleep 1; done",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", crate::harness::describe(&output));
    let running = || {
        let found = cluster.kubectl("get pod ticker -o jsonpath={.status.phase}");
        (found == "Running").then_some(())
    };
    cluster.wait("the pod running", running);
    let identity = || {
        let path = "{.metadata.uid}/{.status.containerStatuses[0].containerID}/{.status.containerStatuses[0].restartCount}/{.status.podIP}";
        cluster.kubectl(&format!("get pod ticker -o jsonpath={path}"))
    };
    let before = identity();
    for _ in 0..3 {
        let pid = std::fs::read_to_string(cluster.path("data/lock")).unwrap();
        run(std::process::Command::new("kill").args(["-9", pid.trim()]));
        cluster.wait("the end of the process", || (!Path::new("/proc").join(pid.trim()).exists()).then_some(()));
        cluster.up_again();
        cluster.wait("the pod running", running);
        assert_eq!(identity(), before);
    }
    assert!(cluster.kubectl("logs ticker --tail=2").lines().count() == 2);
}
