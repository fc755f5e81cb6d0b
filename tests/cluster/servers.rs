//! Several servers over one etcd cluster: each is an etcd member, an API server, a controller manager and a scheduler of its
//! own, as on a machine of its own. They die one by one under load, and whoever uses the cluster goes on.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Host, WAIT_TIMEOUT, describe, run};

const SERVERS: usize = 3;
/// Where clients find whichever server is alive, as behind a load balancer.
const FRONT: &str = "127.0.0.1:6443";

fn address(server: usize) -> String {
    format!("172.31.7.{}", 11 + server)
}

/// A process that is started again when it ends by itself, as a service manager would.
struct Process {
    name: String,
    command: Vec<String>,
    child: Option<Child>,
}

impl Process {
    fn start(&mut self, host: &Host, dir: &Path) {
        let log = File::options().create(true).append(true).open(dir.join(format!("{}.log", self.name))).unwrap();
        let mut command = host.command("sh");
        // Whoever could leave a core would.
        command.args(["-c", "ulimit -c unlimited || true; exec \"$@\"", "sh"]).args(&self.command);
        self.child = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    }

    /// Ends what is ours as a fault of it would; no core may be left, which would have Secrets in it.
    fn crash(&mut self) {
        if self.name.starts_with("etcd") {
            return self.kill();
        }
        if let Some(mut child) = self.child.take() {
            run(Command::new("kill").args(["-ABRT", &child.id().to_string()]));
            assert!(!child.wait().unwrap().core_dumped(), "{} has left a core", self.name);
        }
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

struct Cluster {
    host: Arc<Host>,
    dir: TempDir,
    servers: Vec<Vec<Process>>,
    nodes: Process,
}

impl Cluster {
    fn start(host: Arc<Host>) -> Cluster {
        let dir = tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap();
        testkit::keys::write(dir.path());
        for server in 0..SERVERS {
            run(host.command("ip").args(["addr", "add", &format!("{}/24", address(server)), "dev", "eth0"]));
            write_kubeconfig(dir.path(), &format!("server-{server}"), &format!("{}:6443", address(server)));
        }
        write_kubeconfig(dir.path(), "front", FRONT);
        let servers = (0..SERVERS).map(|server| processes(dir.path(), server)).collect();
        let kubeconfig = path(dir.path(), "front.kubeconfig");
        let nodes = process("nodes", cox(["sim", "--nodes=5", &format!("--kubeconfig={kubeconfig}")]));
        let mut cluster = Cluster { host, dir, servers, nodes };
        for server in 0..SERVERS {
            cluster.start_server(server);
        }
        for server in 0..SERVERS {
            cluster.until_serving(server);
        }
        let Cluster { host, dir, nodes, .. } = &mut cluster;
        nodes.start(host, dir.path());
        cluster
    }

    fn start_server(&mut self, server: usize) {
        let Cluster { host, dir, servers, .. } = self;
        servers[server].iter_mut().for_each(|process| process.start(host, dir.path()));
    }

    /// All at once and without a word, as when a machine loses power.
    fn kill_server(&mut self, server: usize) {
        self.servers[server].iter_mut().for_each(Process::crash);
    }

    /// Starts what ended by itself: a manager that loses its lead ends, and is started again to stand by.
    fn look_after(&mut self) {
        let Cluster { host, dir, servers, nodes } = self;
        for process in servers.iter_mut().flatten().chain([nodes]) {
            let ended = process.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some());
            if ended {
                process.start(host, dir.path());
            }
        }
    }

    fn kubectl(&self, through: &str, line: &str) -> Result<String, String> {
        kubectl(&self.host, self.dir.path(), through, line)
    }

    fn wait<T>(&mut self, what: &str, mut probe: impl FnMut(&Cluster) -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            if let Some(value) = probe(self) {
                return value;
            }
            assert!(Instant::now() < deadline, "no sign of {what}\n{}", self.logs());
            self.look_after();
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The same until it is done: on a busy machine members of etcd choose another leader now and then.
    fn insist(&mut self, through: &str, line: &str) -> String {
        self.wait(line, |cluster| cluster.kubectl(through, line).ok())
    }

    fn until_serving(&mut self, server: usize) {
        self.wait(&format!("server {server}"), |cluster| {
            cluster.kubectl(&format!("server-{server}"), "get --raw /readyz").ok()
        });
    }

    /// The servers that `kubernetes.default` leads to.
    fn endpoints(&self) -> BTreeSet<String> {
        let line = "get endpointslice kubernetes -o jsonpath={.endpoints[*].addresses[0]}";
        let listed = self.kubectl("front", line).unwrap_or_default();
        listed.split_whitespace().map(str::to_owned).collect()
    }

    fn logs(&self) -> String {
        let names = self.servers.iter().flatten().chain([&self.nodes]).map(|process| &process.name);
        let tail = |name: &String| {
            let text = std::fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("--- {name}\n{}\n", lines[lines.len().saturating_sub(8)..].join("\n"))
        };
        names.map(tail).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.kill();
        self.servers.iter_mut().flatten().for_each(Process::kill);
    }
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

fn process(name: impl Into<String>, command: Vec<String>) -> Process {
    Process { name: name.into(), command, child: None }
}

fn cox<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    [env!("CARGO_BIN_EXE_cox")].into_iter().chain(words).map(str::to_owned).collect()
}

/// What one server runs.
fn processes(dir: &Path, server: usize) -> Vec<Process> {
    let own = address(server);
    let members = |port: u16, name: bool| {
        let one = |server: usize| {
            let name = if name { format!("m{server}=") } else { String::new() };
            format!("{name}http://{}:{port}", address(server))
        };
        (0..SERVERS).map(one).collect::<Vec<_>>().join(",")
    };
    let file = |name: &str| path(dir, name);
    let etcd = [
        "etcd".to_owned(),
        format!("--name=m{server}"),
        format!("--data-dir={}", file(&format!("etcd-{server}"))),
        format!("--listen-client-urls=http://{own}:2379"),
        format!("--advertise-client-urls=http://{own}:2379"),
        format!("--listen-peer-urls=http://{own}:2380"),
        format!("--initial-advertise-peer-urls=http://{own}:2380"),
        format!("--initial-cluster={}", members(2380, true)),
        "--log-level=error".to_owned(),
    ];
    let apiserver = [
        format!("--etcd-servers={}", members(2379, false)),
        format!("--bind-address={own}"),
        format!("--tls-cert-file={}", file("server.crt")),
        format!("--tls-private-key-file={}", file("server.key")),
        format!("--client-ca-file={}", file("ca.crt")),
        format!("--service-account-key-file={}", file("sa.key")),
        format!("--service-account-signing-key-file={}", file("sa.key")),
        "--authorization-mode=RBAC".to_owned(),
    ];
    let kubeconfig = format!("--kubeconfig={}", file(&format!("server-{server}.kubeconfig")));
    // Shorter than upstream's, so that the test is; long enough for a busy machine.
    let election = [
        "--leader-elect=true",
        "--leader-elect-lease-duration=8s",
        "--leader-elect-renew-deadline=6s",
        "--leader-elect-retry-period=1s",
        "--secure-port=0",
    ];
    let component = |name: &str, flags: &[String]| {
        let words = [name].into_iter().chain(flags.iter().map(String::as_str));
        process(format!("{name}-{server}"), cox(words))
    };
    let elected: Vec<String> = [kubeconfig].into_iter().chain(election.map(str::to_owned)).collect();
    vec![
        process(format!("etcd-{server}"), etcd.into()),
        component("apiserver", &apiserver),
        component("controller-manager", &elected),
        component("scheduler", &elected),
    ]
}

fn write_kubeconfig(dir: &Path, name: &str, server: &str) {
    let file = |name: &str| path(dir, name);
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: \"https://{server}\", certificate-authority: {}, tls-server-name: localhost}}}}]\n\
         users: [{{name: test, user: {{client-certificate: {}, client-key: {}}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n",
        file("ca.crt"),
        file("admin.crt"),
        file("admin.key"),
    );
    std::fs::write(dir.join(format!("{name}.kubeconfig")), text).unwrap();
}

fn kubectl(host: &Host, dir: &Path, through: &str, line: &str) -> Result<String, String> {
    let mut command = host.command(env!("CARGO_BIN_EXE_cox"));
    command.arg("kubectl").args(line.split_whitespace()).env("HOME", dir);
    let output = command.env("KUBECONFIG", dir.join(format!("{through}.kubeconfig"))).output().unwrap();
    if output.status.success() { Ok(String::from_utf8(output.stdout).unwrap()) } else { Err(describe(&output)) }
}

/// Hands every connection to the next server that takes it.
fn balance(host: &Host, stop: &AtomicBool) {
    let listener = host.netns().enter(|| TcpListener::bind(FRONT)).unwrap().unwrap();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        while let Ok((client, _)) = listener.accept() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let turn = next.fetch_add(1, Ordering::Relaxed);
            let backend = host.netns().enter(|| {
                (0..SERVERS).find_map(|offset| {
                    let server = format!("{}:6443", address((turn + offset) % SERVERS));
                    TcpStream::connect_timeout(&server.parse().unwrap(), Duration::from_secs(2)).ok()
                })
            });
            let Some(backend) = backend.unwrap() else { continue };
            let (back, front) = (backend.try_clone().unwrap(), client.try_clone().unwrap());
            scope.spawn(move || carry(client, back));
            scope.spawn(move || carry(backend, front));
        }
    });
}

/// Copies one direction of a connection; when it ends, so does the connection.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 1 << 14];
    while let Ok(count) = from.read(&mut buffer)
        && count > 0
        && std::io::Write::write_all(&mut to, &buffer[..count]).is_ok()
    {}
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Someone who uses the cluster all the time and does not give up when a server is away.
struct User<'a> {
    host: &'a Host,
    dir: PathBuf,
    stop: &'a AtomicBool,
    done: &'a AtomicUsize,
}

impl User<'_> {
    /// Tries until the cluster says yes; an answer that was lost with its server counts when its effect is there.
    fn insist(&self, line: &str, already: &str) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while let Err(said) = kubectl(self.host, &self.dir, "front", line) {
            if !already.is_empty() && said.contains(already) {
                return;
            }
            assert!(Instant::now() < deadline, "kubectl {line}: {said}");
        }
    }

    /// Leaves a mark each time; every one that was acknowledged must be there at the end.
    fn leave_marks(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.done.load(Ordering::Relaxed);
            self.insist(&format!("create configmap mark-{number}"), "already exists");
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Deploys, waits for all pods, and deletes again.
    fn deploy(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let name = format!("web-{}", self.done.load(Ordering::Relaxed));
            self.insist(&format!("create deployment {name} --image=nginx --replicas=4"), "already exists");
            self.insist(&format!("rollout status deployment/{name} --timeout=60s"), "");
            self.insist(&format!("delete deployment {name}"), "not found");
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn servers_die_one_by_one_and_the_cluster_goes_on() {
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (marks, rollouts) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let host = Arc::new(Host::new());
    std::thread::scope(|scope| {
        let mut cluster = Cluster::start(host.clone());
        scope.spawn(|| balance(&host, &over));
        // Whatever happens, the others must not be waited for in vain.
        let _end = End { stop: &stop, over: &over, host: &host };
        let user = |done| User { host: &host, dir: cluster.dir.path().to_owned(), stop: &stop, done };
        let (marking, deploying) = (user(&marks), user(&rollouts));
        let users = [scope.spawn(move || marking.leave_marks()), scope.spawn(move || deploying.deploy())];

        let all: BTreeSet<String> = (0..SERVERS).map(address).collect();
        cluster.wait("all servers among the endpoints", |cluster| (cluster.endpoints() == all).then_some(()));
        let go_on = |cluster: &mut Cluster, what: &str| {
            let (mark, rollout) = (marks.load(Ordering::Relaxed) + 3, rollouts.load(Ordering::Relaxed) + 1);
            cluster.wait(what, |_| {
                (marks.load(Ordering::Relaxed) >= mark && rollouts.load(Ordering::Relaxed) >= rollout).then_some(())
            });
        };
        go_on(&mut cluster, "the first rollout");
        for server in 0..SERVERS {
            cluster.kill_server(server);
            go_on(&mut cluster, &format!("progress without server {server}"));
            let mut others = all.clone();
            others.remove(&address(server));
            cluster
                .wait("the dead server no endpoint any more", |cluster| (cluster.endpoints() == others).then_some(()));
            cluster.start_server(server);
            cluster.until_serving(server);
            cluster.wait("all servers among the endpoints", |cluster| (cluster.endpoints() == all).then_some(()));
        }
        stop.store(true, Ordering::Relaxed);
        users.into_iter().for_each(|user| user.join().unwrap());

        // Nothing that was acknowledged is lost, and nothing was done twice.
        let listed = cluster.insist("server-0", "get configmaps -o name");
        let listed: BTreeSet<&str> = listed.lines().collect();
        let lost = (0..marks.load(Ordering::Relaxed)).filter(|n| !listed.contains(&*format!("configmap/mark-{n}")));
        assert_eq!(lost.collect::<Vec<_>>(), Vec::<usize>::new());
        cluster.wait("the end of all that was deleted", |cluster| {
            let left = cluster.kubectl("front", "get deployments,replicasets,pods -o name").ok()?;
            left.trim().is_empty().then_some(())
        });
        for lease in ["kube-controller-manager", "kube-scheduler"] {
            let line = format!("get lease {lease} -n kube-system -o json");
            let lease: Value = serde_json::from_str(&cluster.insist("server-1", &line)).unwrap();
            assert!(lease["spec"]["leaseTransitions"].as_i64() >= Some(1), "the lead changed hands: {lease}");
        }
    });
}

/// Ends the users and the balancer, also when the test fails.
struct End<'a> {
    stop: &'a AtomicBool,
    over: &'a AtomicBool,
    host: &'a Host,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.over.store(true, Ordering::Relaxed);
        // Wakes the balancer.
        let _ = self.host.netns().enter(|| TcpStream::connect(FRONT));
    }
}
