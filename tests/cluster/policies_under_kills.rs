//! Processes of ours are killed at random, and pods come and go, while probes try all along what a policy forbids: nothing
//! opens. `COX_KILL_MINUTES` says how long that goes on, `COX_SEED` in which order.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cni::netns::Netns;

use crate::harness::Cluster;
use crate::inside_pods;
use crate::leftovers::{kill, processes_of};
use crate::rounds::Random;

const SETTING: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  replicas: 4
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: server}}}
      containers: [{name: c, image: cox.local/hello, env: [{name: PORT, value: "8080"}]}]
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec: {selector: {app: server}, ports: [{port: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends-only}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}]}]
"#;

/// The first address of a node's range that a pod gets, and how many are probed: those that pods of a short run get, or all.
const FIRST: u8 = 2;
const PROBERS: u8 = 6;
const FEW: u8 = 10;
const ALL: u8 = 41;
const PORT: u16 = 8080;
const ANSWER_TIMEOUT: Duration = Duration::from_millis(60);

#[derive(Debug, Clone, Copy)]
enum Blow {
    /// Control plane and first node.
    Cluster,
    /// The process of the second node.
    Node,
    /// What holds the namespaces of a server's pod.
    Pause,
    /// A container's own process.
    Container,
    /// All pods are replaced, at once and without a word.
    Pods,
    /// The policy itself is written again, with the same meaning.
    Policy,
}

const BLOWS: [Blow; 6] = [Blow::Cluster, Blow::Node, Blow::Pause, Blow::Container, Blow::Pods, Blow::Policy];

fn strike(cluster: &Cluster, blow: Blow, spared: &[Netns], random: &mut Random) {
    let holder = |lock: &str| std::fs::read_to_string(cluster.path(lock)).ok()?.trim().parse::<u32>().ok();
    // Not those who probe, and not those who show that it can be reached.
    let is_spared = |pid: &u32| {
        let own = Netns::open(format!("/proc/{pid}/ns/net"));
        own.is_ok_and(|own| spared.iter().any(|spared| own.is_same(spared).unwrap_or(true)))
    };
    let one_of = |is_it: &dyn Fn(&str) -> bool, random: &mut Random| {
        let found = processes_of(cluster).into_iter().filter(|(_, command)| is_it(command));
        let pids: Vec<u32> = found.map(|(pid, _)| pid).filter(|pid| !is_spared(pid)).collect();
        (!pids.is_empty()).then(|| pids[random.below(pids.len())])
    };
    let pid = match blow {
        Blow::Cluster => holder("data/lock"),
        Blow::Node => holder("data/nodes/node-2/lock"),
        Blow::Pause => one_of(&|command| command.split(' ').nth(1) == Some("pause"), random),
        Blow::Container => one_of(&|command| command.starts_with("/hello"), random),
        Blow::Pods => {
            cluster.kubectl("delete pods -l app=server --force --grace-period=0 --wait=false");
            None
        }
        Blow::Policy => {
            let peers = r#"{"spec":{"ingress":[{"from":[{"podSelector":{"matchLabels":{"role":"friend"}}},{"podSelector":{"matchLabels":{"role":"nobody"}}}]}]}}"#;
            cluster.kubectl_args(&["patch", "networkpolicy", "friends-only", "--type=merge", "-p", peers]);
            cluster.apply(SETTING);
            None
        }
    };
    if let Some(pid) = pid {
        kill(cluster, &[pid]);
    }
    if matches!(blow, Blow::Cluster) {
        cluster.up_again();
    }
}

fn reaches(from: &Netns, target: SocketAddr, patience: Duration) -> bool {
    from.enter(|| TcpStream::connect_timeout(&target, patience)).is_ok_and(|connected| connected.is_ok())
}

/// Tries all addresses that servers have or may get, again and again, until it is over; any that answers is open.
fn probe(from: &Netns, hosts: Range<u8>, is_over: &AtomicBool, tried: &AtomicUsize) -> Option<SocketAddr> {
    while !is_over.load(Ordering::Relaxed) {
        for node in 0..2 {
            for host in hosts.clone() {
                let address = Ipv4Addr::new(10, 42, node, host);
                let target = SocketAddr::new(address.into(), PORT);
                if reaches(from, target, ANSWER_TIMEOUT) {
                    return Some(target);
                }
                tried.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    None
}

#[test]
fn security_nothing_opens_whatever_is_killed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("COX_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let minutes = number("COX_KILL_MINUTES").map(|minutes| Duration::from_secs(60 * minutes));
    let mut random = Random(seed);
    let cluster = Cluster::up_with(&[], &["--nodes", "2"]);
    // A server of the image on another port, so that nobody takes them for one of those who are closed.
    for (name, role, node) in [
        ("stranger-1", "stranger", "node-1"),
        ("stranger-2", "stranger", "node-2"),
        ("friend-1", "friend", "node-1"),
        ("friend-2", "friend", "node-2"),
    ] {
        cluster.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{role: {role}}}}}, spec: {{nodeName: {node}, \
             containers: [{{name: c, image: cox.local/hello, env: [{{name: PORT, value: \"9000\"}}]}}]}}}}"
        ));
    }
    cluster.kubectl("wait --for=condition=Ready pod --all --timeout=170s");
    cluster.apply(SETTING);
    cluster.kubectl("rollout status deployment/server --timeout=170s");
    let nodes = [cluster.host.netns(), Netns::open(cluster.path("run/nodes/node-2/netns")).unwrap()];
    let netns = |name: &str| {
        let uid = cluster.kubectl(&format!("get pod {name} -o jsonpath={{.metadata.uid}}"));
        inside_pods::netns_of(&uid, &nodes)
    };
    // The policy is in force once all servers are closed to strangers; whoever comes later is closed from the first packet.
    let addresses = || -> Vec<SocketAddr> {
        let line = "get pods -l app=server --field-selector=status.phase=Running -o jsonpath={.items[*].status.podIP}";
        let found = cluster.kubectl(line);
        found.split_whitespace().map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT)).collect()
    };
    for stranger in ["stranger-1", "stranger-2"] {
        let from = netns(stranger);
        cluster.wait(&format!("servers closed to {stranger}"), || {
            let all = addresses();
            (all.len() == 4 && !all.iter().any(|to| reaches(&from, *to, Duration::from_secs(1)))).then_some(())
        });
    }
    let began = Instant::now();
    let mut round = 0;
    while minutes.map_or(round < BLOWS.len(), |minutes| began.elapsed() < minutes) {
        let blow = match minutes {
            // Few rounds meet every blow once.
            None => BLOWS[round % BLOWS.len()],
            Some(_) => BLOWS[random.below(BLOWS.len())],
        };
        eprintln!("seed {seed} round {round}: {blow:?}");
        let spared = ["stranger-1", "stranger-2", "friend-1", "friend-2"].map(netns);
        let (is_over, tried) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let probes: Vec<_> = ["stranger-1", "stranger-2"]
            .into_iter()
            .flat_map(|stranger| (0..PROBERS).map(move |part| (stranger, part)))
            .map(|(stranger, part)| {
                let (from, is_over, tried) = (netns(stranger), is_over.clone(), tried.clone());
                let count = if minutes.is_some() { ALL } else { FEW };
                let hosts = FIRST + part * count..FIRST + (part + 1) * count;
                std::thread::spawn(move || probe(&from, hosts, &is_over, &tried))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(random.below(400) as u64));
        strike(&cluster, blow, &spared, &mut random);
        cluster.kubectl("rollout status deployment/server --timeout=170s");
        // Whom the policy lets in gets in: it is not closed because all is.
        for friend in ["friend-1", "friend-2"] {
            let from = netns(friend);
            cluster.wait(&format!("{friend} at the servers"), || {
                let all = addresses();
                (all.len() == 4 && all.iter().all(|to| reaches(&from, *to, Duration::from_secs(1)))).then_some(())
            });
        }
        let so_far = tried.load(Ordering::Relaxed);
        cluster.wait("a few more probes", || (tried.load(Ordering::Relaxed) > so_far + 100).then_some(()));
        is_over.store(true, Ordering::Relaxed);
        for probe in probes {
            let opened = probe.join().unwrap();
            assert_eq!(opened, None, "seed {seed} round {round}: {blow:?} opened what the policy forbids");
        }
        round += 1;
    }
}
