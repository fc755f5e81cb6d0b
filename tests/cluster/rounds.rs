//! Deploy, reach, delete, again and again on three nodes, while processes of ours are killed at random. Every round ends well,
//! and at the end nothing is left that was not there at the beginning. `COX_ROUNDS` says how many rounds, `COX_SEED` which.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::harness::Cluster;
use crate::leftovers::{Leftovers, kill, named, processes_of};

/// Enough to tell rounds apart and to repeat one; not for anything that matters.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// What a round kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// Control plane and first node; started again as a service manager would.
    Cluster,
    /// The process of a further node; the cluster's starts it again.
    Node(&'static str),
    /// The owner of one pod's containers.
    Shim,
    /// What holds one pod's namespaces.
    Pause,
    /// A container's own process.
    Container,
}

const VICTIMS: [Victim; 6] =
    [Victim::Cluster, Victim::Node("node-2"), Victim::Node("node-3"), Victim::Shim, Victim::Pause, Victim::Container];

fn strike(cluster: &Cluster, victim: Victim, random: &mut Random) {
    let holder = |lock: &str| std::fs::read_to_string(cluster.path(lock)).ok()?.trim().parse::<u32>().ok();
    let one_of = |pids: Vec<u32>, random: &mut Random| (!pids.is_empty()).then(|| pids[random.below(pids.len())]);
    let pid = match victim {
        Victim::Cluster => holder("data/lock"),
        Victim::Node(name) => holder(&format!("data/nodes/{name}/lock")),
        Victim::Shim => one_of(named(cluster, "cox-shim"), random),
        Victim::Pause => one_of(named(cluster, "pause"), random),
        Victim::Container => {
            let found = processes_of(cluster).into_iter().filter(|(_, command)| command.starts_with("/hello"));
            one_of(found.map(|(pid, _)| pid).collect(), random)
        }
    };
    // The pod may not have come that far, or may be gone already.
    let Some(pid) = pid else { return };
    kill(cluster, &[pid]);
    if victim == Victim::Cluster {
        cluster.up_again();
    }
}

fn round(cluster: &Cluster, number: u32, victim: Option<Victim>, random: &mut Random) {
    let name = format!("round-{number}");
    let moment = random.below(3);
    let strike_at = |when: usize, random: &mut Random| {
        if let Some(victim) = victim.filter(|_| when == moment) {
            std::thread::sleep(Duration::from_millis(random.below(400) as u64));
            strike(cluster, victim, random);
        }
    };
    cluster.kubectl(&format!("create deployment {name} --image=cox.local/hello --replicas=3 --port=80"));
    cluster.kubectl(&format!("expose deployment {name} --port=80 --type=NodePort"));
    strike_at(0, random);
    cluster.kubectl(&format!("rollout status deployment/{name} --timeout=170s"));
    strike_at(1, random);
    let field = |path: &str| cluster.kubectl(&format!("get service {name} -o jsonpath={path}"));
    let (service, port) = (field("{.spec.clusterIP}"), field("{.spec.ports[0].nodePort}"));
    for address in [
        format!("{service}:80"),
        format!("172.31.7.2:{port}"),
        format!("10.44.0.2:{port}"),
        format!("10.44.0.3:{port}"),
    ] {
        cluster.wait(&format!("an answer of {name} at {address}"), || {
            cluster.http_get(&address).filter(|page| page.contains(&format!("Hello from {name}-")))
        });
    }
    cluster.kubectl(&format!("delete deployment,service {name} --wait=false"));
    strike_at(2, random);
    cluster.wait(&format!("the end of {name}"), || {
        let left = cluster.kubectl("get pods,replicasets,endpointslices -o name");
        left.lines().all(|object| !object.contains(&name)).then_some(())
    });
}

#[test]
fn rounds_end_well_whatever_is_killed() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = number("COX_ROUNDS").unwrap_or(VICTIMS.len() as u64) as u32;
    let seed = number("COX_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let mut random = Random(seed);
    let cluster = Cluster::up_with(&[], &["--nodes", "3"]);
    // The first round makes what stays for good: chains for three endpoints, unpacked images.
    round(&cluster, 0, None, &mut random);
    let before = Leftovers::of(&cluster);
    for number in 1..=rounds {
        // Few rounds meet every victim once.
        let victim = match rounds as usize <= VICTIMS.len() {
            true => VICTIMS[(number as usize - 1) % VICTIMS.len()],
            false => VICTIMS[random.below(VICTIMS.len())],
        };
        eprintln!("seed {seed} round {number}: {victim:?}");
        round(&cluster, number, Some(victim), &mut random);
    }
    let nodes: BTreeSet<String> = cluster.nodes().into_iter().collect();
    assert_eq!(nodes.len(), 2);
    let mut after = Leftovers::of(&cluster);
    let deadline = std::time::Instant::now() + crate::harness::WAIT_TIMEOUT;
    while after != before && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(500));
        after = Leftovers::of(&cluster);
    }
    assert_eq!(after, before, "seed {seed}");
}
