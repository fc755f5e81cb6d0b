//! Processes of ours are killed at random, and pods come and go, while probes try all along what policies forbid: nothing
//! opens. `COX_KILL_MINUTES` says how long that goes on, `COX_SEED` in which order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cni::netns::Netns;
use futures_util::future::join_all;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::harness::Cluster;
use crate::inside_pods;
use crate::leftovers::{kill, named, parent, processes_of};
use crate::rounds::Random;

const SERVERS: &str = r#"
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
      containers:
      - {name: c, image: cox.local/hello, env: [{name: PORT, value: "8080"}], ports: [{name: http, containerPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec: {selector: {app: server}, ipFamilyPolicy: RequireDualStack, ports: [{port: 8080}]}
"#;

/// Servers are for friends of their own namespace and for whoever is not a pod; prisoners, who are friends, reach strangers only.
const POLICIES: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends-only}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}], ports: [{port: http}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: outside}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from:
    - ipBlock: {cidr: 0.0.0.0/0, except: [10.42.0.0/16]}
    - ipBlock: {cidr: "::/0", except: ["fd42::/48"]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: cells}
spec:
  podSelector: {matchLabels: {lives-in: cell}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {role: stranger}}}]}]
"#;

/// A pod that stays: its name, namespace, labels and node.
type Fixed = (&'static str, &'static str, &'static str, &'static str);

/// None of these may reach a server: a stranger, a friend from another namespace, and friends who may not go out.
const PROBES: [Fixed; 4] = [
    ("stranger-1", "default", "role: stranger", "node-1"),
    ("stranger-2", "other", "role: friend", "node-2"),
    ("prisoner-1", "default", "role: friend, lives-in: cell", "node-1"),
    ("prisoner-2", "default", "role: friend, lives-in: cell", "node-2"),
];
const FRIENDS: [Fixed; 2] =
    [("friend-1", "default", "role: friend", "node-1"), ("friend-2", "default", "role: friend", "node-2")];

/// Where servers answer, and where those do who are there for good.
const PORT: u16 = 8080;
const OTHER_PORT: u16 = 9000;
/// Of a connection within the machine; what a policy drops has no answer at all.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(60);
const PATIENCE: Duration = Duration::from_secs(1);
/// Targets that are refused at once are not tried without a pause.
const SWEEP_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
enum Blow {
    /// Control plane and first node.
    Cluster,
    /// The process of the second node.
    Node,
    /// Both at once.
    Both,
    /// What owns a server's containers.
    Shim,
    /// What holds the namespaces of a server's pod.
    Pause,
    /// A container's own process.
    Container,
    /// All servers are replaced, at once and without a word.
    Pods,
    /// A policy is written anew, and back.
    Policy,
}

const BLOWS: [Blow; 8] =
    [Blow::Cluster, Blow::Node, Blow::Both, Blow::Shim, Blow::Pause, Blow::Container, Blow::Pods, Blow::Policy];
/// What a short run has time for.
const FEW: [Blow; 6] = [Blow::Both, Blow::Node, Blow::Shim, Blow::Pause, Blow::Pods, Blow::Policy];

fn strike(cluster: &Cluster, blow: Blow, spared: &[Netns], random: &mut Random) {
    // Empty for a moment while another process takes it.
    let holder = |lock: &str| -> u32 {
        let read = || std::fs::read_to_string(cluster.path(lock)).ok()?.trim().parse().ok();
        cluster.wait(&format!("a process in {lock}"), read)
    };
    // Not those who probe, and not those who show that it can be reached.
    let is_spared = |pid: &u32| {
        let own = Netns::open(format!("/proc/{pid}/ns/net"));
        // One that is gone by now is none to kill.
        own.map_or(true, |own| spared.iter().any(|spared| own.is_same(spared).unwrap_or(true)))
    };
    let mut one_of = |find: &dyn Fn() -> Vec<u32>| {
        cluster.wait(&format!("{blow:?}: somebody to kill"), || {
            let pids: Vec<u32> = find().into_iter().filter(|pid| !is_spared(pid)).collect();
            (!pids.is_empty()).then(|| pids[random.below(pids.len())])
        })
    };
    let pids = match blow {
        Blow::Cluster => vec![holder("data/lock")],
        Blow::Node => vec![holder("data/nodes/node-2/lock")],
        Blow::Both => ["data/lock", "data/nodes/node-2/lock"].map(holder).to_vec(),
        // A shim is in its node's network: the pod that it is of is told by its pause.
        Blow::Shim => {
            let pause = one_of(&|| shims(cluster).into_keys().collect());
            shims(cluster).get(&pause).copied().into_iter().collect()
        }
        Blow::Pause => vec![one_of(&|| named(cluster, "pause"))],
        Blow::Container => {
            let is_server = |(pid, command): (u32, String)| command.starts_with("/hello").then_some(pid);
            vec![one_of(&|| processes_of(cluster).into_iter().filter_map(is_server).collect())]
        }
        Blow::Pods => {
            cluster.kubectl("delete pods -l app=server --force --grace-period=0 --wait=false");
            return;
        }
        Blow::Policy => {
            let peers = r#"{"spec":{"ingress":[{"from":[{"podSelector":{"matchLabels":{"role":"friend"}}},{"podSelector":{"matchLabels":{"role":"nobody"}}}]}]}}"#;
            cluster.kubectl_args(&["patch", "networkpolicy", "friends-only", "--type=merge", "-p", peers]);
            cluster.apply(POLICIES);
            return;
        }
    };
    kill(cluster, &pids);
    if matches!(blow, Blow::Cluster | Blow::Both) {
        cluster.up_again();
    }
}

/// The shims that are there, by the pause of their pod.
fn shims(cluster: &Cluster) -> BTreeMap<u32, u32> {
    let all = named(cluster, "cox-shim");
    // A pause whose shim was killed has been left to somebody else.
    let of_pause = |pause: u32| Some((pause, parent(pause).filter(|shim| all.contains(shim))?));
    named(cluster, "pause").into_iter().filter_map(of_pause).collect()
}

/// Tries all targets at once in the network of this thread; those that were reached.
async fn sweep(targets: &[SocketAddr], patience: Duration) -> BTreeSet<SocketAddr> {
    let tries = targets.iter().map(|target| async move {
        let connected = timeout(patience, TcpStream::connect(*target)).await;
        matches!(connected, Ok(Ok(_))).then_some(*target)
    });
    join_all(tries).await.into_iter().flatten().collect()
}

/// A runtime whose sockets are in the network that its thread is in.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn reached(from: &Netns, targets: &[SocketAddr]) -> BTreeSet<SocketAddr> {
    from.enter(|| runtime().block_on(sweep(targets, PATIENCE))).unwrap()
}

fn reaches_all(from: &Netns, targets: &[SocketAddr]) -> bool {
    reached(from, targets).len() == targets.len()
}

/// Where servers may be: every address that a pod has been given, from before the pod has it until after, and the services.
struct Targets {
    leases: [PathBuf; 2],
    /// Of pods that are not servers.
    others: BTreeSet<IpAddr>,
    services: Vec<IpAddr>,
}

impl Targets {
    fn now(&self) -> Vec<SocketAddr> {
        let entries = self.leases.iter().flat_map(|dir| std::fs::read_dir(dir).unwrap().flatten());
        let leased = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<IpAddr>().ok());
        let servers = leased.filter(|address| !self.others.contains(address));
        servers.chain(self.services.iter().copied()).map(|address| SocketAddr::new(address, PORT)).collect()
    }
}

/// One who tries the targets of the moment, again and again.
struct Probe {
    name: &'static str,
    tried: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Option<SocketAddr>>>,
}

/// They try until something was reached or this is dropped.
struct Probes {
    all: Vec<Probe>,
    is_over: Arc<AtomicBool>,
}

impl Probes {
    fn start(networks: Vec<(&'static str, Netns)>, targets: &Arc<Targets>) -> Probes {
        let is_over: Arc<AtomicBool> = Arc::default();
        let start = |(name, from): (&'static str, Netns)| {
            let tried: Arc<AtomicUsize> = Arc::default();
            let (count, ended, targets) = (tried.clone(), is_over.clone(), targets.clone());
            let thread = std::thread::spawn(move || {
                from.enter_for_good().unwrap();
                let runtime = runtime();
                while !ended.load(Ordering::Relaxed) {
                    let targets = targets.now();
                    let round = async { tokio::join!(sweep(&targets, ANSWER_TIMEOUT), sleep(SWEEP_INTERVAL)).0 };
                    if let Some(open) = runtime.block_on(round).pop_first() {
                        return Some(open);
                    }
                    count.fetch_add(targets.len(), Ordering::Relaxed);
                }
                None
            });
            Probe { name, tried, thread: Some(thread) }
        };
        Probes { all: networks.into_iter().map(start).collect(), is_over }
    }

    /// Who has reached what, if any has.
    fn opened(&mut self) -> Option<(&'static str, SocketAddr)> {
        self.all.iter_mut().find_map(|probe| {
            let ended = probe.thread.take_if(|thread| thread.is_finished())?;
            let target = ended.join().expect("a probe goes on until it reaches something");
            target.map(|target| (probe.name, target))
        })
    }

    fn tried(&self) -> Vec<usize> {
        self.all.iter().map(|probe| probe.tried.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.all.iter_mut().filter_map(|probe| probe.thread.take()) {
            // What it found is asked for before.
            let _unasked = thread.join();
        }
    }
}

#[test]
fn security_nothing_opens_whatever_is_killed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("COX_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let minutes = number("COX_KILL_MINUTES").map(|minutes| Duration::from_secs(60 * minutes));
    let mut random = Random(seed);
    let (pods, services) = ("10.42.0.0/16,fd42::/48", "10.43.0.0/16,fd43::/112");
    let cluster = Cluster::up_with(&[], &["--nodes", "2", "--cluster-cidr", pods, "--service-cidr", services]);
    cluster.kubectl("create namespace other");
    for (name, namespace, labels, node) in PROBES.into_iter().chain(FRIENDS) {
        cluster.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}, \
             spec: {{nodeName: {node}, containers: [{{name: c, image: cox.local/hello, \
             env: [{{name: PORT, value: \"{OTHER_PORT}\"}}]}}]}}}}"
        ));
    }
    for namespace in ["default", "other"] {
        cluster.kubectl(&format!("wait --for=condition=Ready pod --all -n {namespace} --timeout=170s"));
    }
    cluster.apply(SERVERS);
    cluster.kubectl("rollout status deployment/server --timeout=170s");
    let addresses = |line: &str, port: u16| -> Vec<SocketAddr> {
        let found = cluster.kubectl(line);
        found.split_whitespace().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect()
    };
    let of_pods = "--field-selector=status.phase=Running -o jsonpath={.items[*].status.podIPs[*].ip}";
    let servers = || addresses(&format!("get pods -l app=server {of_pods}"), PORT);
    let service = addresses("get service server -o jsonpath={.spec.clusterIPs[*]}", PORT);
    let others = addresses(&format!("get pods --all-namespaces -l role {of_pods}"), OTHER_PORT);
    assert_eq!((service.len(), others.len()), (2, 12), "an address of each family");
    let nodes = [cluster.host.netns(), Netns::open(cluster.path("run/nodes/node-2/netns")).unwrap()];
    let netns = |(name, namespace, ..): Fixed| {
        let uid = cluster.kubectl(&format!("get pod -n {namespace} {name} -o jsonpath={{.metadata.uid}}"));
        inside_pods::netns_of(&uid, &nodes)
    };
    let fixed = || -> Vec<Netns> { PROBES.into_iter().chain(FRIENDS).map(netns).collect() };
    let networks = fixed();
    // Without policies every probe reaches every server: what is closed later is closed by them.
    let all_servers = |what: &str, is_it: &dyn Fn(&[SocketAddr]) -> bool| {
        cluster
            .wait(what, || Some(servers()).filter(|all| all.len() == 8 && is_it(&[&all[..], &service[..]].concat())));
    };
    for (probe, from) in PROBES.iter().zip(&networks) {
        all_servers(&format!("the servers, from {}", probe.0), &|all| reaches_all(from, all));
    }
    cluster.apply(POLICIES);
    // Policies are in force once all servers are closed; whoever comes later is closed from the first packet.
    for (probe, from) in PROBES.iter().zip(&networks) {
        all_servers(&format!("servers that are closed to {}", probe.0), &|all| reached(from, all).is_empty());
    }
    let targets = Arc::new(Targets {
        leases: ["data", "data/nodes/node-2"].map(|home| cluster.path(home).join("cni/leases/cox")),
        others: others.iter().map(SocketAddr::ip).collect(),
        services: service.iter().map(SocketAddr::ip).collect(),
    });
    let mut probes = Probes::start(PROBES.iter().map(|probe| (probe.0, netns(*probe))).collect(), &targets);
    // Whom everybody may speak to.
    let stranger = addresses(&format!("get pods -l role=stranger {of_pods}"), OTHER_PORT);
    let friend = addresses("get pod friend-1 -o jsonpath={.status.podIPs[*].ip}", OTHER_PORT);
    let began = Instant::now();
    let mut round = 0;
    while minutes.map_or(round < FEW.len(), |minutes| began.elapsed() < minutes) {
        let blows: Vec<Blow> = match minutes {
            // Few rounds meet every blow once.
            None => vec![FEW[round]],
            Some(_) => (0..=random.below(2)).map(|_| BLOWS[random.below(BLOWS.len())]).collect(),
        };
        eprintln!("seed {seed} round {round}: {blows:?}");
        let spared = fixed();
        let is_same = spared.iter().zip(&networks).all(|(now, before)| now.is_same(before).unwrap());
        assert!(is_same, "seed {seed} round {round}: a probe was replaced and has tried nothing since");
        for blow in &blows {
            std::thread::sleep(Duration::from_millis(random.below(400) as u64));
            strike(&cluster, *blow, &spared, &mut random);
        }
        cluster.kubectl("rollout status deployment/server --timeout=170s");
        // Whom the policies let in gets in: it is not closed because all is. And probes have a way to send.
        for from in &networks[PROBES.len()..] {
            all_servers("servers that friends reach", &|all| reaches_all(from, all));
        }
        for (probe, from) in PROBES.iter().zip(&networks) {
            let allowed = if probe.0 == "stranger-1" { &friend } else { &stranger };
            let what = format!("{} where it may go", probe.0);
            cluster.wait(&what, || reaches_all(from, allowed).then_some(()));
        }
        let present = targets.now();
        assert!(servers().iter().all(|server| present.contains(server)), "all servers are probed: {present:?}");
        let so_far = probes.tried();
        let opened = cluster.wait("a few more probes of each", || {
            let opened = probes.opened();
            let have_tried = probes.tried().iter().zip(&so_far).all(|(now, before)| *now > before + 100);
            (opened.is_some() || have_tried).then_some(opened)
        });
        assert_eq!(opened, None, "seed {seed} round {round}: {blows:?} opened what policies forbid");
        round += 1;
    }
    eprintln!("{round} rounds, {:?} connections tried", probes.tried());
}
