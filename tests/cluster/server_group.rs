//! Three servers with members of etcd, machines that are nodes, and somebody who uses the cluster all the time.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::etcd_servers::{Machine, StopOnDrop, Switch, must};
use crate::harness::{Host, WAIT_TIMEOUT, describe, run, with_input};

pub(crate) const SERVERS: [&str; 3] = ["192.168.80.1", "192.168.80.2", "192.168.80.3"];
const NODES: [&str; 5] = ["192.168.80.4", "192.168.80.5", "192.168.80.6", "192.168.80.7", "192.168.80.8"];

pub(crate) struct Group {
    pub(crate) nodes: Vec<Machine>,
    pub(crate) servers: Vec<Machine>,
    _switch: Switch,
}

impl Group {
    /// `server-1` to `server-3`, and as many nodes, `node-1` and so on.
    pub(crate) fn new(nodes: usize, machine: fn(Host) -> Machine, flags: &[&str]) -> Group {
        let switch = Switch::new();
        let addresses = SERVERS.iter().chain(&NODES[..nodes]);
        let mut machines: Vec<Machine> = addresses
            .enumerate()
            .map(|(number, address)| {
                let host = Host::new();
                switch.plug_in(&host, number, address);
                machine(host)
            })
            .collect();
        let nodes = machines.split_off(SERVERS.len());
        let group = Group { nodes, servers: machines, _switch: switch };
        let first = &group.servers[0];
        let mut up = first.cox("up");
        up.args(["--ha", "--gateway=false", "--node-name", "server-1", "--node-ip", SERVERS[0]]).args(flags);
        must(&up.output().unwrap(), || first.log());
        for (number, (server, address)) in group.servers.iter().zip(SERVERS).enumerate().skip(1) {
            let line = must(&first.cox("server").arg("add").output().unwrap(), || first.log());
            must(&server.join(&line, &format!("server-{}", number + 1), address), || server.log());
        }
        for (number, (node, address)) in group.nodes.iter().zip(NODES).enumerate() {
            let mut create = first.cox("token");
            let line = must(&create.args(["create", "--print-join-command"]).output().unwrap(), || first.log());
            must(&node.join(&line, &format!("node-{}", number + 1), address), || node.log());
        }
        group.until_healthy();
        group
    }

    pub(crate) fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.servers.iter().chain(&self.nodes)
    }

    /// Waits until `probe` gives a value; fails with the logs of the servers when it never does.
    pub(crate) fn wait<T>(&self, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            if let Some(value) = probe() {
                return value;
            }
            assert!(Instant::now() < deadline, "no sign of {what}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn logs(&self) -> String {
        let end = |machine: &Machine| {
            let log = machine.log();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        self.machines().map(|machine| format!("{}:\n{}\n", machine.host.name(), end(machine))).collect()
    }

    /// A line of kubectl, through whichever server answers; it must be done in the end. It is also done if that was not heard
    /// the first time: members of etcd may choose another leader meanwhile.
    pub(crate) fn kubectl(&self, line: &str) -> String {
        self.wait(&format!("an answer to {line}"), || {
            self.servers.iter().find_map(|server| {
                let output = server.kubectl(line);
                let is_done = output.status.success()
                    || line.starts_with("create ") && describe(&output).contains("already exists");
                is_done.then(|| String::from_utf8_lossy(&output.stdout).into_owned())
            })
        })
    }

    pub(crate) fn apply(&self, manifest: &str) {
        let first = &self.servers[0];
        let kubeconfig = first.dir.path().join("data/admin.kubeconfig");
        self.wait("an answer to apply", || {
            let mut apply = first.cox("kubectl");
            apply.arg("--kubeconfig").arg(&kubeconfig).args(["apply", "-f", "-"]);
            with_input(&mut apply, manifest).status.success().then_some(())
        });
    }

    /// All members of etcd vote, and all servers serve.
    pub(crate) fn until_healthy(&self) {
        self.wait("three healthy servers", || {
            let output = self.servers[1].cox("server").arg("status").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let count = text.lines().filter(|line| line.contains(" healthy ") && line.contains(" serving ")).count();
            (count == SERVERS.len()).then_some(())
        });
    }

    /// A server's kubeconfig, once it names all servers.
    pub(crate) fn kubeconfig(&self, server: usize) -> PathBuf {
        let path = self.servers[server].dir.path().join("data/admin.kubeconfig");
        self.wait("all servers in the kubeconfig", || {
            let text = std::fs::read_to_string(&path).ok()?;
            SERVERS.iter().all(|address| text.contains(&format!("@{address}:6443"))).then_some(())
        });
        path
    }

    /// The server's process at once and without a word; its member of etcd goes on.
    pub(crate) fn kill(&self, server: usize) {
        let pid = std::fs::read_to_string(self.servers[server].dir.path().join("data/lock")).unwrap();
        run(Command::new("kill").args(["-9", pid.trim()]));
    }
}

/// Somebody who writes and watches, and turns to another server when one does not answer.
pub(crate) struct User<'a> {
    group: &'a Group,
    at: &'a Machine,
    /// With a context for every server, named as those of `at`.
    kubeconfig: &'a Path,
    stop: &'a AtomicBool,
    /// Nobody waits for what is seen any more.
    over: &'a AtomicBool,
    written: &'a AtomicUsize,
    /// What was said when something was not done at once.
    failures: &'a Mutex<Vec<String>>,
}

impl User<'_> {
    /// kubectl, through the server whose turn it is. It is a program of its own: that of the machine may be replaced.
    fn kubectl(&self, turn: usize) -> Command {
        let mut command = self.at.host.command(Path::new(env!("CARGO_BIN_EXE_cox")));
        command.arg("kubectl").env("HOME", self.at.dir.path()).env_remove("KUBECONFIG");
        let context = format!("{}@{}:6443", self.at.host.name(), SERVERS[turn % SERVERS.len()]);
        command.arg("--kubeconfig").arg(self.kubeconfig).arg("--context").arg(context);
        command
    }

    /// Leaves marks; every one that was acknowledged must be there at the end.
    fn write(&self) {
        let mut turn = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let name = format!("mark-{}", self.written.load(Ordering::Relaxed));
            let said = self.kubectl(turn).args(["create", "configmap", &name]).output().unwrap();
            if said.status.success() || describe(&said).contains("already exists") {
                self.written.fetch_add(1, Ordering::Relaxed);
            } else {
                self.failures.lock().unwrap().push(describe(&said));
            }
            turn += 1;
        }
    }

    /// Follows the marks; returns all that were seen. Whoever lost a server begins again with another, from a list.
    fn watch(&self) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        for turn in 0.. {
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            let mut command = self.kubectl(turn);
            command.args(["get", "configmaps", "--watch", "-o", "name", "--request-timeout=30s"]);
            command.stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
                seen.insert(line.trim_start_matches("configmap/").to_owned());
                // The last mark comes after everything.
                if line == "configmap/the-end" {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    return seen;
                }
            }
            child.wait().unwrap();
        }
        seen
    }

    /// Waits for some more marks.
    pub(crate) fn progress(&self, what: &str) {
        let goal = self.written.load(Ordering::Relaxed) + 3;
        self.group.wait(what, || (self.written.load(Ordering::Relaxed) >= goal).then_some(()));
    }
}

/// While somebody writes and watches with a kubeconfig, `what` is done; everything written was seen, and failures are returned.
pub(crate) fn under_load(group: &Group, at: &Machine, kubeconfig: &Path, what: impl FnOnce(&User<'_>)) -> Vec<String> {
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (written, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let user = User { group, at, kubeconfig, stop: &stop, over: &over, written: &written, failures: &failures };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| user.write());
        let watcher = scope.spawn(|| user.watch());
        // Whatever happens, the others must not be waited for in vain.
        let _end = [StopOnDrop(&stop), StopOnDrop(&over)];
        what(&user);
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        group.kubectl("create configmap the-end");
        let seen = watcher.join().unwrap();
        let count = written.load(Ordering::Relaxed);
        let listed = group.kubectl("get configmaps -o name");
        let listed: BTreeSet<&str> = listed.lines().filter_map(|line| line.strip_prefix("configmap/")).collect();
        let marks = || (0..count).map(|number| format!("mark-{number}"));
        assert_eq!(
            marks().filter(|mark| !listed.contains(mark.as_str())).collect::<Vec<_>>(),
            Vec::<String>::new(),
            "lost"
        );
        assert_eq!(marks().filter(|mark| !seen.contains(mark)).collect::<Vec<_>>(), Vec::<String>::new(), "never seen");
    });
    failures.into_inner().unwrap()
}
