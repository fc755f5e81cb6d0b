//! Several servers made by `cox` alone: `cox up --etcd-servers` on one host, `cox join --server` on two more, and a machine
//! that is only a node. They share one etcd; one of them is killed under writes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tempfile::TempDir;

use crate::harness::{Cluster, Host, describe, install, mounts_below, run, said, until_done};

const SERVERS: [&str; 3] = ["192.168.78.1", "192.168.78.2", "192.168.78.3"];
const NODE: &str = "192.168.78.4";
const SWITCH: &str = "192.168.78.9";

/// A host with a bridge and cables from it to others.
pub(crate) struct Switch {
    host: Host,
    etcd: Option<(Child, TempDir)>,
}

impl Switch {
    pub(crate) fn new() -> Switch {
        let host = Host::new();
        let ip = |line: &str| run(host.command("ip").args(line.split(' ')));
        ip("link add switch0 type bridge");
        ip(&format!("addr add {SWITCH}/24 dev switch0"));
        ip("link set switch0 up");
        Switch { host, etcd: None }
    }

    fn with_etcd() -> Switch {
        let mut switch = Switch::new();
        let host = &switch.host;
        let data = tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap();
        let url = |port: u16| format!("http://{SWITCH}:{port}");
        let mut etcd = host.command("etcd");
        etcd.args(["--name=m", "--log-level=error"]).arg(format!("--data-dir={}", data.path().display()));
        etcd.arg(format!("--listen-client-urls={}", url(2379))).arg(format!("--advertise-client-urls={}", url(2379)));
        etcd.arg(format!("--listen-peer-urls={}", url(2380)));
        etcd.arg(format!("--initial-advertise-peer-urls={}", url(2380)));
        etcd.arg(format!("--initial-cluster=m={}", url(2380))).stdout(Stdio::null()).stderr(Stdio::null());
        let etcd = etcd.spawn().expect("etcd is installed: apt-get install etcd-server");
        switch.etcd = Some((etcd, data));
        // A server that does not find it within some seconds gives up.
        let mut look = switch.host.command("etcdctl");
        until_done("etcd", look.env("ETCDCTL_API", "3").args(["--endpoints", &url(2379), "endpoint", "health"]));
        switch
    }

    pub(crate) fn plug_in(&self, other: &Host, number: usize, address: &str) {
        let inside = |host: &Host, line: String| run(host.command("ip").args(line.split(' ')));
        let port = format!("port{number}");
        inside(&self.host, format!("link add {port} type veth peer name cable0 netns {}", other.name()));
        inside(&self.host, format!("link set {port} master switch0 up"));
        inside(other, format!("addr add {address}/24 dev cable0"));
        inside(other, "link set cable0 up".to_owned());
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Some((etcd, _)) = &mut self.etcd {
            let _ = (etcd.kill(), etcd.wait());
        }
    }
}

/// A host that joins.
pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) dir: TempDir,
    pub(crate) program: PathBuf,
}

impl Machine {
    pub(crate) fn new(host: Host) -> Machine {
        let dir = tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap();
        Machine { host, dir, program: env!("CARGO_BIN_EXE_cox").into() }
    }

    /// With a program of its own, which can be replaced.
    pub(crate) fn installed(host: Host) -> Machine {
        let mut machine = Machine::new(host);
        machine.program = machine.dir.path().join("bin/cox");
        std::fs::create_dir(machine.dir.path().join("bin")).unwrap();
        install(&machine.program);
        machine
    }

    pub(crate) fn cox(&self, component: &str) -> Command {
        let mut command = self.host.command(&self.program);
        command.arg(component).env("COX_DATA_DIR", self.dir.path().join("data")).env("COX_NAME", self.host.name());
        command.env("COX_RUN_DIR", self.dir.path().join("run")).env("HOME", self.dir.path()).env_remove("KUBECONFIG");
        command
    }

    /// Types what 'cox token create' printed, with an address and a name for the node.
    pub(crate) fn join(&self, line: &str, name: &str, address: &str) -> Output {
        let mut words = line.split_whitespace().skip(2);
        self.cox("join").args(&mut words).args(["--node-name", name, "--node-ip", address]).output().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("data/logs/cox.log")).unwrap_or_default()
    }

    pub(crate) fn kubectl(&self, line: &str) -> Output {
        let kubeconfig = self.dir.path().join("data/admin.kubeconfig");
        self.cox("kubectl").arg("--kubeconfig").arg(kubeconfig).args(line.split_whitespace()).output().unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let output = self.cox("delete").output().unwrap();
        if !std::thread::panicking() {
            assert!(output.status.success(), "cox delete failed\n{}", describe(&output));
            assert_eq!(mounts_below(self.dir.path()), Vec::<String>::new());
        }
    }
}

pub(crate) fn must(output: &Output, more: impl FnOnce() -> String) -> String {
    assert!(output.status.success(), "{}\n{}", describe(output), more());
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn servers_join_and_one_is_killed_under_writes() {
    let switch = Switch::with_etcd();
    let hosts: Vec<Host> = (0..4).map(|_| Host::new()).collect();
    for (number, (host, address)) in hosts.iter().zip(SERVERS.into_iter().chain([NODE])).enumerate() {
        switch.plug_in(host, number, address);
    }
    let mut hosts = hosts.into_iter();
    let first = hosts.next().unwrap();
    let [second, third, node] = [(); 3].map(|()| Machine::new(hosts.next().unwrap()));
    let etcd = format!("http://{SWITCH}:2379");
    let flags = ["--node-ip", SERVERS[0], "--etcd-servers", &etcd, "--etcd-prefix", "/clusters/one", "--gateway=false"];
    let cluster = Cluster::up_on(first, &[], &flags);
    cluster.kubectl("create configmap first");

    // Another cluster has no business there.
    let mut stranger = third.cox("up");
    stranger.args(["--node-name", "x", "--node-ip", SERVERS[2], "--gateway=false", "--etcd-servers", &etcd]);
    let output = stranger.args(["--etcd-prefix", "/clusters/one"]).output().unwrap();
    assert!(!output.status.success());
    assert!(describe(&output).contains("belongs to the cluster with the authority"), "{}", describe(&output));
    said(&mut third.cox("delete"));

    // One that does not answer is waited for, and why is shown. Who does not want to wait learns how to stop it.
    let mut early = third.cox("up");
    early.args(["--node-name", "x", "--node-ip", SERVERS[2], "--gateway=false"]);
    early.arg(format!("--etcd-servers=http://{SWITCH}:2399")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut early = early.spawn().unwrap();
    let told = BufReader::new(early.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains("! waiting for etcd: connecting to etcd at http://192.168.78.9:2399"));
    run(Command::new("kill").args(["-INT", &early.id().to_string()]));
    let output = early.wait_with_output().unwrap();
    assert!(told && describe(&output).contains("'cox down' stops it"), "{}\n{}", describe(&output), third.log());
    said(&mut third.cox("down"));
    said(&mut third.cox("delete"));

    let offer = || said(cluster.cox("token").args(["create", "--server"]));
    let refused = {
        let line = offer();
        let (start, key) = line.trim().rsplit_once(' ').unwrap();
        let output = second.join(&format!("{start} {}", key.chars().rev().collect::<String>()), "server-2", SERVERS[1]);
        assert!(!output.status.success() && !second.dir.path().join("data/pki/ca.key").exists());
        describe(&output)
    };
    assert!(refused.contains("does not fit this token"), "{refused}");
    for (machine, name, address) in [(&second, "server-2", SERVERS[1]), (&third, "server-3", SERVERS[2])] {
        let line = offer();
        must(&machine.join(&line, name, address), || format!("{}\n{}", machine.log(), cluster.log()));
        // What was offered is gone once it is taken.
        let id = line.split("--token ").nth(1).unwrap().split('.').next().unwrap().to_owned();
        let found = cluster.kubectl("get secrets -n kube-system -o name");
        assert!(!found.contains(&format!("cox-server-{id}")), "{found}");
    }
    for file in ["pki/ca.key", "pki/sa.key", "pki/encryption.yaml"] {
        let read = |dir: std::path::PathBuf| std::fs::read(dir.join(file)).unwrap();
        assert_eq!(read(second.dir.path().join("data")), read(cluster.path("data")), "{file}");
    }
    let line = said(cluster.cox("token").args(["create", "--print-join-command"]));
    must(&node.join(&line, "node-4", NODE), || format!("{}\n{}", node.log(), cluster.log()));
    let all: BTreeSet<String> = SERVERS.iter().map(|address| (*address).to_owned()).collect();
    let endpoints = |machine: &Machine| -> BTreeSet<String> {
        let listed = machine.kubectl("get endpointslice kubernetes -o jsonpath={.endpoints[*].addresses[0]}");
        String::from_utf8_lossy(&listed.stdout).split_whitespace().map(str::to_owned).collect()
    };
    cluster.wait("all servers among the endpoints", || (endpoints(&second) == all).then_some(()));
    cluster.wait("all servers in the kubeconfig", || {
        let servers = std::fs::read_to_string(cluster.path("data/admin.kubeconfig")).ok()?;
        SERVERS.iter().all(|server| servers.contains(&format!("https://{server}:6443"))).then_some(())
    });
    cluster.wait("the node knows all servers", || {
        let known = std::fs::read_to_string(node.dir.path().join("data/servers.json")).ok()?;
        SERVERS.iter().all(|server| known.contains(server)).then_some(())
    });

    // The first server, which leads, dies without a word, while somebody writes to whichever server answers.
    let marks = Marks::new(&second, &SERVERS);
    let count = marks.while_written(|| {
        let progress = |what: &str, count: usize| marks.progress(&cluster, what, count);
        progress("writes", 5);
        let pid = std::fs::read_to_string(cluster.path("data/lock")).unwrap();
        run(Command::new("kill").args(["-9", pid.trim()]));
        progress("writes without the first server", 5);
        let others: BTreeSet<String> = all.iter().skip(1).cloned().collect();
        cluster.wait("the dead server no endpoint any more", || (endpoints(&second) == others).then_some(()));
        // Controllers and scheduler have another leader, and the node has found another server.
        must(&second.kubectl("cordon node-1 server-2 server-3"), || second.log());
        must(&second.kubectl("create deployment web --image=cox.local/hello --replicas=2"), || second.log());
        must(&second.kubectl("rollout status deployment/web --timeout=170s"), || {
            format!("{}\n{}", second.log(), node.log())
        });
        // It may have been missed before it had found another server.
        must(&second.kubectl("wait --for=condition=Ready node/node-4 --timeout=170s"), || node.log());
        progress("writes after the fail-over", 5);
    });

    // Nothing that was acknowledged is lost.
    let listed = must(&third.kubectl("get configmaps -o name"), || third.log());
    Marks::assert_all_of(count, &listed);

    // The first one comes back as what it was.
    cluster.up_again();
    cluster.wait("all servers among the endpoints again", || (endpoints(&second) == all).then_some(()));
    assert_eq!(cluster.kubectl("get configmap first -o name"), "configmap/first\n");
    drop((node, third, second));
    drop(cluster);
}

/// ConfigMaps that are written one after the other, to whichever server answers, while something happens to the servers.
pub(crate) struct Marks<'a> {
    machine: &'a Machine,
    servers: &'a [&'a str],
    written: AtomicUsize,
}

impl<'a> Marks<'a> {
    pub(crate) fn new(machine: &'a Machine, servers: &'a [&'a str]) -> Marks<'a> {
        Marks { machine, servers, written: AtomicUsize::new(0) }
    }

    /// Writes all the while; how many were acknowledged in the end.
    pub(crate) fn while_written(&self, meanwhile: impl FnOnce()) -> usize {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let is_written = self.servers.iter().any(|server| self.write(server));
                    self.written.fetch_add(usize::from(is_written), Ordering::Relaxed);
                }
            });
            meanwhile();
        });
        self.written.load(Ordering::Relaxed)
    }

    fn write(&self, server: &str) -> bool {
        let number = self.written.load(Ordering::Relaxed);
        let context = format!("--context={}@{server}:6443", self.machine.host.name());
        let said = self.machine.kubectl(&format!("{context} --request-timeout=5s create configmap mark-{number}"));
        said.status.success() || describe(&said).contains("already exists")
    }

    /// Waits until so many more are acknowledged.
    pub(crate) fn progress(&self, cluster: &Cluster, what: &str, count: usize) {
        let goal = self.written.load(Ordering::Relaxed) + count;
        cluster.wait(what, || (self.written.load(Ordering::Relaxed) >= goal).then_some(()));
    }

    /// Nothing that was acknowledged is lost.
    pub(crate) fn assert_all_of(count: usize, listed: &str) {
        let listed: BTreeSet<&str> = listed.lines().collect();
        let lost: Vec<usize> = (0..count).filter(|n| !listed.contains(&*format!("configmap/mark-{n}"))).collect();
        assert_eq!(lost, Vec::<usize>::new());
    }
}

pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
