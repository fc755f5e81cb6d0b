//! A cluster for a test: the real binary in a network namespace with no way out, pulling from a real registry.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testkit::images::Image;
use testkit::registry::Registry;

/// Puts an image into a registry.
pub(crate) type Push = fn(&Registry) -> Image;

/// Long enough for a busy machine; a test that works never waits for it.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Puts a copy of our program there. Another process writes it: while a file is open for writing here, a child that
/// another test is starting has it open too, and nobody can run it ("Text file busy").
pub(crate) fn install(path: &Path) {
    run(Command::new("cp").arg(env!("CARGO_BIN_EXE_cox")).arg(path));
}

/// The same with a script.
pub(crate) fn install_script(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    run(Command::new("install").arg(&draft).arg(path));
}

/// A host of its own: loopback, one address, and a default route that leads nowhere.
pub(crate) struct Host {
    name: String,
    /// No program is found on it but by its full path.
    has_programs: bool,
}

impl Host {
    pub(crate) fn new() -> Host {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let host = Host { name: format!("coxtest-{}-{number}", std::process::id()), has_programs: true };
        run(Command::new("ip").args(["netns", "add", &host.name]));
        for line in testkit::host::ISOLATED {
            run(host.command("ip").args(line.split(' ')));
        }
        host
    }

    /// One with loopback and nothing else: no address, no route, and no programs for `cox` to call.
    pub(crate) fn bare() -> Host {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let host = Host { name: format!("coxtest-{}-{number}", std::process::id()), has_programs: false };
        run(Command::new("ip").args(["netns", "add", &host.name]));
        run(host.command("ip").args(["link", "set", "lo", "up"]));
        host
    }

    /// One whose only address beyond loopback is of IPv6.
    pub(crate) fn six() -> Host {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let host = Host { name: format!("coxtest-{}-{number}", std::process::id()), has_programs: true };
        run(Command::new("ip").args(["netns", "add", &host.name]));
        for line in testkit::host::ISOLATED_SIX {
            run(host.command("ip").args(line.split(' ')));
        }
        host
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// For what this thread does on the host itself.
    pub(crate) fn netns(&self) -> cni::netns::Netns {
        cni::netns::Netns::open(format!("/run/netns/{}", self.name)).unwrap()
    }

    /// A command that runs on this host.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        // Not `ip netns exec`: that remounts /sys and hides the cgroups.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg("--").arg(program.as_ref());
        command
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        run(Command::new("ip").args(["netns", "del", &self.name]));
    }
}

/// A cluster that was brought up by `cox up` and is deleted at the end.
pub(crate) struct Cluster {
    pub(crate) host: Host,
    dir: TempDir,
    registry: Option<Registry>,
}

impl Cluster {
    /// Brings a cluster up whose docker.io is a registry with the given images.
    pub(crate) fn up(images: &[Push]) -> Cluster {
        Cluster::up_with(images, &[])
    }

    /// As [`Cluster::up`], with more flags for the first `cox up`.
    pub(crate) fn up_with(images: &[Push], flags: &[&str]) -> Cluster {
        Cluster::up_on(Host::new(), images, flags)
    }

    /// On a host that was made before.
    pub(crate) fn up_on(host: Host, images: &[Push], flags: &[&str]) -> Cluster {
        let dir = tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap();
        let mut cluster = Cluster { host, dir, registry: None };
        cluster.start_registry(images);
        let registries = cluster.path("registries.yaml");
        let mut all = vec!["--node-name", "node-1", "--registries", registries.to_str().unwrap()];
        all.extend(flags);
        cluster.cox_up(&all);
        cluster
    }

    /// Starts what is in a directory already.
    pub(crate) fn resume(host: Host, dir: TempDir, flags: &[&str]) -> Cluster {
        let mut cluster = Cluster { host, dir, registry: None };
        cluster.start_registry(&[]);
        let registries = cluster.path("registries.yaml");
        cluster.cox_up(&[&["--registries", registries.to_str().unwrap()][..], flags].concat());
        cluster
    }

    /// `cox up`, once more: it remembers what it was told.
    pub(crate) fn up_again(&self) -> String {
        self.cox_up(&[])
    }

    /// The cluster's name.
    pub(crate) fn name(&self) -> &str {
        &self.host.name
    }

    /// The further nodes, by name.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("run/nodes")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn cox_up(&self, flags: &[&str]) -> String {
        let output = self.cox("up").args(flags).output().unwrap();
        assert!(output.status.success(), "cox up failed\n{}\n{}", describe(&output), self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `cox <component>` aimed at this cluster.
    pub(crate) fn cox(&self, component: &str) -> Command {
        let mut command = self.aimed(env!("CARGO_BIN_EXE_cox"));
        command.arg(component);
        command.env("COX_DATA_DIR", self.path("data")).env("COX_RUN_DIR", self.path("run"));
        command.env("COX_NAME", &self.host.name);
        command
    }

    /// The kubectl of Debian, or another that is installed, aimed at this cluster.
    pub(crate) fn other_kubectl(&self) -> Command {
        self.aimed(testkit::peers::kubectl())
    }

    fn aimed(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match self.host.has_programs {
            true => self.host.command(program),
            false => {
                let mut command = self.host.command("env");
                command.arg("PATH=/nonexistent").arg(program.as_ref());
                command
            }
        };
        command.env("KUBECONFIG", self.path("kubeconfig")).env("HOME", self.dir.path());
        command
    }

    /// Runs a kubectl command line, which must succeed, and returns what it printed.
    pub(crate) fn kubectl(&self, line: &str) -> String {
        self.kubectl_args(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// As [`Cluster::kubectl`], with words that may have spaces in them.
    pub(crate) fn kubectl_args(&self, args: &[&str]) -> String {
        self.must(self.cox("kubectl").args(args))
    }

    /// Runs a line of `cox`, which must succeed, and returns what it printed.
    pub(crate) fn cox_says(&self, line: &str) -> String {
        let mut words = line.split(' ');
        self.must(self.cox(words.next().unwrap()).args(words))
    }

    fn must(&self, command: &mut Command) -> String {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}\n{}\n{}", describe(&output), self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// `kubectl apply` of a manifest.
    pub(crate) fn apply(&self, manifest: &str) -> String {
        let file = self.path("manifest.yaml");
        std::fs::write(&file, manifest).unwrap();
        self.kubectl(&format!("apply -f {}", file.display()))
    }

    /// Waits until `probe` gives a value; fails with the cluster's log when it never does.
    pub(crate) fn wait<T>(&self, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            if let Some(value) = probe() {
                return value;
            }
            if Instant::now() > deadline {
                let pods = self.cox("kubectl").args(["get", "pods,events", "-A", "-o", "wide"]).output().unwrap();
                panic!("no sign of {what}\n{}\n{}", describe(&pods), self.log());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until a pod has come to a phase.
    pub(crate) fn until_phase(&self, pod: &str, phase: &str) {
        self.wait(&format!("pod {pod} in phase {phase}"), || {
            (self.kubectl(&format!("get pod {pod} -o jsonpath={{.status.phase}}")) == phase).then_some(())
        });
    }

    /// Asks until so many different answers have come, and returns them. Pods tell themselves apart by their last line.
    pub(crate) fn answers(&self, what: &str, count: usize, ask: impl Fn() -> Option<String>) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        self.wait(&format!("{count} different answers {what}"), || {
            let new = ask().and_then(|answer| answer.lines().last().map(str::to_owned));
            if let Some(new) = new.filter(|new| !seen.contains(new)) {
                // For who reads of a failure.
                println!("{what}: {new}");
                seen.insert(new);
            }
            (seen.len() >= count).then_some(())
        });
        seen
    }

    /// An HTTP GET of `/` from the host; None while there is no answer.
    pub(crate) fn http_get(&self, address: &str) -> Option<String> {
        http_get(&self.host.netns(), address)
    }

    pub(crate) fn log(&self) -> String {
        let mut told = String::new();
        let nodes = std::fs::read_dir(self.path("data/nodes")).into_iter().flatten().flatten();
        let homes = nodes.map(|node| node.path()).chain([self.path("data")]);
        for log in homes.map(|home| home.join("logs/cox.log")) {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(80)..].join("\n");
            told += &format!("the end of {}:\n{end}\n", log.display());
        }
        told
    }

    /// On this thread, inside the host's namespace: what it starts and connects to is there.
    fn start_registry(&mut self, images: &[Push]) {
        let registry = self.host.netns().enter(|| {
            let registry = testkit::registry::start();
            images.iter().for_each(|push| drop(push(&registry)));
            registry
        });
        let registry = registry.unwrap();
        std::fs::write(self.path("registries.yaml"), registry.registries_yaml()).unwrap();
        self.registry = Some(registry);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let output = self.cox("delete").output();
        drop(self.registry.take());
        if !std::thread::panicking() {
            let output = output.unwrap();
            assert!(output.status.success(), "cox delete failed\n{}", describe(&output));
        }
    }
}

/// An HTTP GET of `/` from inside a network; None while there is no answer.
pub(crate) fn http_get(from: &cni::netns::Netns, address: &str) -> Option<String> {
    http_answer(from, address).ok()
}

/// As [`http_get`], for those who want to know what went wrong.
pub(crate) fn http_answer(from: &cni::netns::Netns, address: &str) -> Result<String, String> {
    let address: SocketAddr = address.parse().unwrap();
    let get = || -> Result<String, String> {
        let connected = TcpStream::connect_timeout(&address, Duration::from_secs(5));
        let mut stream = connected.map_err(|error| format!("connect: {error}"))?;
        let local = stream.local_addr().map_err(|error| format!("own address: {error}"))?;
        let mut ask = || -> std::io::Result<String> {
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(|error| format!("connected from {local}: {error}"))?;
        if answer.starts_with("HTTP/1.1 200") { Ok(answer) } else { Err(format!("answered from {local}: {answer:?}")) }
    };
    from.enter(get).unwrap()
}

pub(crate) fn run(command: &mut Command) {
    said(command);
}

/// Runs a command until it succeeds, as one does that asks whether somebody is there.
pub(crate) fn until_done(what: &str, command: &mut Command) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        let output = command.output().unwrap();
        if output.status.success() {
            return;
        }
        assert!(Instant::now() < deadline, "no sign of {what}\n{}", describe(&output));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Runs a command, which must succeed, and returns what it printed.
pub(crate) fn said(command: &mut Command) -> String {
    told(command, "")
}

/// As [`said`], with something on standard input.
pub(crate) fn told(command: &mut Command, input: &str) -> String {
    let output = with_input(command, input);
    assert!(output.status.success(), "{command:?}\n{}", describe(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command with something on standard input.
pub(crate) fn with_input(command: &mut Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

pub(crate) fn describe(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Mounts below a directory: none may be left when a cluster is gone.
pub(crate) fn mounts_below(dir: &Path) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let dir = dir.to_str().unwrap();
    mounts
        .lines()
        .filter(|line| line.split(' ').nth(4).is_some_and(|point| point.starts_with(dir)))
        .map(str::to_owned)
        .collect()
}
