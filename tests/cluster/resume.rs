//! A crash of ours never hurts theirs: the cluster dies and comes back, the containers do not notice.

use crate::harness::Cluster;
use crate::leftovers::kill;

#[test]
fn containers_outlive_the_cluster_process() {
    let cluster = Cluster::up(&[testkit::images::busybox]);
    let script = "while true; do date; sleep 1; done";
    let run = ["run", "ticker", "--image=busybox", "--restart=Never", "--command", "--", "sh", "-c", script];
    cluster.kubectl_args(&run);
    cluster.until_phase("ticker", "Running");
    let identity = || {
        let path = "{.metadata.uid}/{.status.containerStatuses[0].containerID}/{.status.containerStatuses[0].restartCount}/{.status.podIP}";
        cluster.kubectl(&format!("get pod ticker -o jsonpath={path}"))
    };
    let before = identity();
    for _ in 0..3 {
        let pid = std::fs::read_to_string(cluster.path("data/lock")).unwrap();
        kill(&cluster, &[pid.trim().parse().unwrap()]);
        cluster.up_again();
        cluster.until_phase("ticker", "Running");
        assert_eq!(identity(), before);
    }
    // It ticks once a second; all of the above may take less.
    cluster.wait("two ticks", || (cluster.kubectl("logs ticker --tail=2").lines().count() == 2).then_some(()));
}
