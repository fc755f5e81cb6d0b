//! Several nodes on one machine: work spread over them, reached from all of them, and none missed when it goes.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cni::netns::Netns;

use crate::harness::{Cluster, http_answer, http_get, mounts_below, run};
use crate::leftovers::kill;
use crate::manifests;

/// Every pod answers with its own name. Pods of a node that is gone are not waited for.
fn web() -> String {
    let container = manifests::web(
        "nginx",
        // Ending takes long enough for every node to hear that the pod is going.
        ", command: [sh, -c, \"hostname > /usr/share/nginx/html/index.html && exec nginx -g 'daemon off;'\"], \
         lifecycle: {preStop: {exec: {command: [sleep, \"10\"]}}}",
    );
    let pod = format!(
        "
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        nodeTaintsPolicy: Honor
        labelSelector: {{matchLabels: {{app: web}}}}
      tolerations:
      - {{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 0}}
      containers: [{container}]"
    );
    // Of three replicas, a rolling update with its defaults has none missing and one more.
    manifests::deployment("web", 3, &pod) + &manifests::node_port("web")
}

/// A further node is a host of its own, by name too.
fn host_pods_see_the_name_of_their_node(cluster: &Cluster) {
    cluster.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: host}
spec:
  nodeName: node-2
  hostNetwork: true
  restartPolicy: Never
  containers:
  - {name: host, image: busybox, command: [sh, -c, 'hostname; cat /etc/hostname; cat /proc/sys/kernel/hostname']}
",
    );
    cluster.until_phase("host", "Succeeded");
    assert_eq!(cluster.kubectl("logs host"), "node-2\nnode-2\nnode-2\n");
    cluster.kubectl("delete pod host");
}

struct Pod {
    name: String,
    node: String,
    container: String,
}

/// The pods of the deployment that are ready and stay.
fn pods(cluster: &Cluster) -> Vec<Pod> {
    let listed = cluster.kubectl("get pods -l app=web -o json");
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let pods = listed["items"].as_array().unwrap().iter();
    let ready = pods.filter(|pod| {
        let status = &pod["status"]["containerStatuses"][0];
        pod["metadata"]["deletionTimestamp"].is_null() && status["ready"] == true
    });
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    ready
        .map(|pod| Pod {
            name: text(&pod["metadata"]["name"]),
            node: text(&pod["spec"]["nodeName"]),
            container: text(&pod["status"]["containerStatuses"][0]["containerID"]),
        })
        .collect()
}

fn names(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().map(|pod| pod.name.clone()).collect()
}

/// Asks until every pod has answered.
fn reaches_all(cluster: &Cluster, what: &str, expected: &BTreeSet<String>, ask: impl Fn() -> Option<String>) {
    assert_eq!(&cluster.answers(what, expected.len(), ask), expected, "{what}");
}

#[test]
fn three_nodes_share_the_work_and_survive() {
    let cluster = Cluster::up_with(&[testkit::images::nginx, testkit::images::busybox], &["--nodes", "3"]);
    let ranges = cluster.kubectl("get nodes -o jsonpath={.items[*].spec.podCIDR}");
    assert_eq!(ranges.split(' ').collect::<BTreeSet<_>>().len(), 3, "a pod range each: {ranges}");

    cluster.apply(&web());
    cluster.kubectl("rollout status deployment/web --timeout=170s");
    let before = pods(&cluster);
    let nodes: BTreeSet<&str> = before.iter().map(|pod| pod.node.as_str()).collect();
    assert_eq!(nodes, BTreeSet::from(["node-1", "node-2", "node-3"]));

    host_pods_see_the_name_of_their_node(&cluster);
    reaches_from_everywhere(&cluster, &names(&before));
    serves_streams_of_every_node(&cluster, &before);
    outlives_its_processes(&cluster, &before);
    reaches_from_everywhere(&cluster, &names(&before));
    rolls_without_a_failed_request(&cluster);

    // A node that is switched off is not missed, and comes back.
    cluster.cox_says("node stop node-3");
    let after = cluster.wait("the pod of the stopped node elsewhere", || {
        Some(pods(&cluster)).filter(|pods| pods.len() == 3 && pods.iter().all(|pod| pod.node != "node-3"))
    });
    let service = cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}:{.spec.ports[0].port}");
    reaches_all(&cluster, "after the stop", &names(&after), || cluster.http_get(&service));
    cluster.cox_says("node start node-3");
    // Where it was switched off its pods are gone, and it is a node like any other.
    cluster.kubectl("scale deployment/web --replicas=6");
    cluster.wait("pods on the node that came back", || {
        let pods = pods(&cluster);
        (pods.len() == 6 && pods.iter().filter(|pod| pod.node == "node-3").count() >= 2).then_some(())
    });

    // One comes, one goes.
    let said = cluster.cox_says("node add extra");
    assert!(said.contains("node extra is ready at 10.44.0.4"), "{said}");
    cluster.cox_says("node rm node-2");
    let listed = cluster.cox_says("node list");
    assert!(!listed.contains("node-2") && listed.contains("extra"), "{listed}");
    assert!(!cluster.path("data/nodes/node-2").exists() && !cluster.path("run/nodes/node-2").exists());

    let (data, run, cgroup) = (cluster.path("data"), cluster.path("run"), cluster.name().to_owned());
    drop(cluster);
    assert_eq!([mounts_below(&data), mounts_below(&run)].concat(), Vec::<String>::new());
    let left = |root: &Path| root.join(&cgroup).exists();
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
    assert_eq!(hierarchies.filter(|root| left(root)).collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new());
}

/// Walk 10.1.
#[test]
fn nodes_meet_in_a_tunnel_where_they_are_told_to() {
    let families = ["--cluster-cidr", "10.42.0.0/16,fd42::/48", "--service-cidr", "10.43.0.0/16,fd43::/112"];
    let cluster = Cluster::up_with(&[], &[&["--nodes", "2", "--routes", "vxlan"][..], &families].concat());
    let inside = |line: &str| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", cluster.path("run/nodes/node-2/netns").display())).args(line.split(' '));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let routes = cluster.wait("a route through the tunnel", || {
        Some(inside("ip -4 route")).filter(|routes| routes.contains("dev cox.vxlan"))
    });
    // The DNS server is on the first node's side of it; the name leads there through the service.
    cluster.wait("an answer of the cluster's DNS", || {
        let said = inside("dig +short +time=2 +tries=3 @10.43.0.10 kubernetes.default.svc.cluster.local");
        (said.trim() == "10.43.0.1").then_some(())
    });
    assert!(!routes.contains("via 172.31.7.2"), "nothing goes past the tunnel: {routes}");
    // In both families a node sends from the first address of its range: policies of the other one know it by that.
    let ranges = cluster.kubectl("get node node-2 -o jsonpath={.spec.podCIDRs[*]}");
    let sends_from_its_range = |link: &str| {
        for (target, range) in ["10.42.0.1", "fd42::1"].into_iter().zip(ranges.split(' ')) {
            let (own, _) = range.split_once('/').unwrap();
            cluster.wait(&format!("a way from {own} through {link}"), || {
                let way = inside(&format!("ip route get {target}"));
                (way.contains(&format!("dev {link} ")) && way.contains(&format!("src {own} "))).then_some(())
            });
        }
        let network = Netns::open(cluster.path("run/nodes/node-2/netns")).unwrap();
        // A port that nobody listens at: the first node itself says so.
        let closed: SocketAddr = "[fd42::1]:9".parse().unwrap();
        cluster.wait("an answer from the first node over IPv6", || {
            let asked = network.enter(|| TcpStream::connect_timeout(&closed, Duration::from_secs(5))).unwrap();
            asked.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused).then_some(())
        });
    };
    sends_from_its_range("cox.vxlan");

    // The same nodes, encrypted from now on, with one generation of keys after the other.
    cluster.cox_says("down");
    cluster.cox_says("up --encrypt");
    let reaches_the_other = |link: &str| {
        let routes = cluster.wait(&format!("a route into {link}"), || {
            Some(inside("ip -4 route")).filter(|routes| routes.contains(&format!("10.42.0.0/24 dev {link}")))
        });
        assert!(!routes.contains("cox.vxlan"), "nothing goes past the device: {routes}");
        cluster.wait("an answer from the first node", || {
            let said = inside("dig +short +time=2 +tries=3 @10.42.0.1 kubernetes.default.svc.cluster.local");
            (said.trim() == "10.43.0.1").then_some(())
        });
        sends_from_its_range(link);
    };
    reaches_the_other("cox-wg1");
    let status = cluster.cox_says("status");
    assert!(status.contains("encryption  WireGuard between nodes, UDP ports 51820 and 51821 (in the "), "{status}");
    let said = cluster.cox_says("node rotate-keys");
    assert!(said.contains("every node has a key of generation 2"), "{said}");
    reaches_the_other("cox-wg0");
    cluster.wait("figures of the other node", || {
        let metrics = inside("curl -s http://127.0.0.1:10249/metrics");
        metrics.contains("cox_wireguard_handshake_age_seconds{link=\"cox-wg0\",node=\"node-1\"}").then_some(())
    });
}

/// Through the service's address, a port of every node, and the name.
fn reaches_from_everywhere(cluster: &Cluster, expected: &BTreeSet<String>) {
    let service = cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}:{.spec.ports[0].port}");
    let port = cluster.kubectl("get service web -o jsonpath={.spec.ports[0].nodePort}");
    reaches_all(cluster, "through the cluster IP", expected, || cluster.http_get(&service));
    for node in ["172.31.7.2", "10.44.0.2", "10.44.0.3"] {
        let address = format!("{node}:{port}");
        reaches_all(cluster, &format!("through {address} from the machine"), expected, || cluster.http_get(&address));
        let other = Netns::open(cluster.path("run/nodes/node-2/netns")).unwrap();
        reaches_all(cluster, &format!("through {address} from node-2"), expected, || http_get(&other, &address));
    }
    for node in ["node-1", "node-2", "node-3"] {
        let overrides = format!("{{\"apiVersion\":\"v1\",\"spec\":{{\"nodeName\":\"{node}\"}}}}");
        let script = "for i in $(seq 30); do wget -q -O - http://web.default.svc.cluster.local:8080/; done";
        let name = format!("asker-{node}");
        let run = ["run", &name, "--image=busybox", "--restart=Never", "--overrides", &overrides];
        cluster.kubectl_args(&[&run[..], &["--command", "--", "sh", "-c", script]].concat());
        cluster.until_phase(&name, "Succeeded");
        let answers = cluster.kubectl(&format!("logs {name}"));
        let seen: BTreeSet<String> = answers.lines().map(str::to_owned).collect();
        assert_eq!(&seen, expected, "by name from {node}");
        cluster.kubectl(&format!("delete pod {name} --now"));
    }
}

/// Logs, exec and port-forward go through the API server to the kubelet of the pod's node.
fn serves_streams_of_every_node(cluster: &Cluster, pods: &[Pod]) {
    for pod in pods {
        let said = cluster.kubectl(&format!("exec {} -- hostname", pod.name));
        assert_eq!(said.trim(), pod.name);
        assert!(cluster.kubectl(&format!("logs {}", pod.name)).contains("GET / HTTP"), "{} was asked", pod.name);
    }
}

/// Every pod is replaced under load, through the service's address and a node port, and nobody notices.
fn rolls_without_a_failed_request(cluster: &Cluster) {
    let service = cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}:{.spec.ports[0].port}");
    let port = cluster.kubectl("get service web -o jsonpath={.spec.ports[0].nodePort}");
    let started = Instant::now();
    let is_over = AtomicBool::new(false);
    let load = |address: String| {
        let (mut answered, mut failed) = (0, Vec::new());
        while !is_over.load(Ordering::Relaxed) {
            let asked = Instant::now();
            match http_answer(&cluster.host.netns(), &address) {
                Ok(_) => answered += 1,
                Err(error) => {
                    let after = asked.duration_since(started);
                    failed.push(format!(
                        "{address}, asked {after:?} after the start, for {:?}: {error}",
                        asked.elapsed()
                    ));
                }
            }
        }
        (answered, failed)
    };
    let load = &load;
    std::thread::scope(|scope| {
        let clients = [service, format!("10.44.0.2:{port}")].map(|address| scope.spawn(move || load(address)));
        cluster.kubectl("rollout restart deployment/web");
        cluster.kubectl("rollout status deployment/web --timeout=170s");
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            let (answered, failed) = client.join().unwrap();
            let seen = || cluster.kubectl("get events --sort-by=.metadata.creationTimestamp") + &cluster.log();
            assert!(answered > 10 && failed.is_empty(), "{answered} answered, failed: {failed:#?}\n{}", seen());
        }
    });
}

/// Everything of ours is killed at once and comes back; no container notices.
fn outlives_its_processes(cluster: &Cluster, before: &[Pod]) {
    let locks = ["data/lock", "data/nodes/node-2/lock", "data/nodes/node-3/lock"];
    kill(cluster, &locks.map(|lock| std::fs::read_to_string(cluster.path(lock)).unwrap().trim().parse().unwrap()));
    cluster.up_again();
    let now = cluster.wait("the pods ready", || Some(pods(cluster)).filter(|pods| pods.len() == before.len()));
    let identities = |pods: &[Pod]| -> BTreeSet<String> { pods.iter().map(|pod| pod.container.clone()).collect() };
    assert_eq!(identities(&now), identities(before));

    // One node alone: the cluster's process starts it again.
    let lock = cluster.path("data/nodes/node-2/lock");
    let pid = std::fs::read_to_string(&lock).unwrap();
    run(Command::new("kill").args(["-9", &pid]));
    cluster.wait("a new process for node-2", || {
        let now = std::fs::read_to_string(&lock).unwrap();
        (now != pid && !now.is_empty() && Path::new("/proc").join(&now).exists()).then_some(())
    });
    cluster.wait("node-2 in the status", || {
        cluster.cox_says("status").contains("node-2 at 10.44.0.2 (process").then_some(())
    });
}
