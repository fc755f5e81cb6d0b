//! Three machines in network namespaces on a bridge, each with an etcd member and API servers over all three members.
//!
//! Whoever uses them must be on the bridge itself: [`inside`] starts this program once more there.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use client::Client;
use client::kubeconfig::{AuthInfo, Cluster, Kubeconfig, Overrides};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(crate) const COUNT: usize = 3;
const NETWORK: &str = "10.99.7";
/// What a disk takes of this machine's memory at most. A member preallocates two or three files of 64 MiB for its log.
const MEMORY: &str = "size=1g";
/// What a disk that can stand still has room for: little, so that a fault fills it soon.
const FREEZABLE: u64 = 450 << 20;
/// How long a slow disk takes nothing, and then takes what has gathered.
const FROZEN: Duration = Duration::from_millis(400);
const THAWED: Duration = Duration::from_millis(50);
/// Where Debian's libfaketime is.
const CLOCKS: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
const START_TIMEOUT: Duration = Duration::from_secs(120);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What machines write to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    /// Memory.
    Memory,
    /// A file system in memory that can be told to stand still.
    Freezable,
}

/// Names of namespaces, and the directory of everything else.
#[derive(Clone)]
pub(crate) struct Place {
    name: String,
    pub(crate) dir: PathBuf,
}

impl Place {
    /// Of the run whose directory this is.
    pub(crate) fn of(dir: &Path) -> Place {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Place { name, dir: dir.to_owned() }
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.name)
    }

    fn machine(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// A program on a machine.
    fn on(&self, number: usize, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.machine(number))).arg("--").arg(program);
        command
    }

    fn disk(&self, number: usize) -> PathBuf {
        self.dir.join(format!("disk-{number}"))
    }

    fn below_disk(&self, number: usize) -> PathBuf {
        self.dir.join(format!("below-disk-{number}"))
    }

    fn make_disk(&self, number: usize, kind: Disk) -> Result<()> {
        let (disk, below) = (self.disk(number), self.below_disk(number));
        let memory = |at: &Path| run(Command::new("mount").args(["-t", "tmpfs", "-o", MEMORY, "tmpfs"]).arg(at));
        std::fs::create_dir(&disk)?;
        if kind == Disk::Memory {
            return memory(&disk);
        }
        std::fs::create_dir(&below)?;
        memory(&below)?;
        let image = below.join("image");
        File::create(&image)?.set_len(FREEZABLE)?;
        run(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&disk))
    }

    /// Has a machine's disk stand still for most of some time.
    pub(crate) fn slow_disk(&self, number: usize, time: Duration) -> Result<()> {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            run(Command::new("fsfreeze").arg("-f").arg(self.disk(number)))?;
            std::thread::sleep(FROZEN);
            run(Command::new("fsfreeze").arg("-u").arg(self.disk(number)))?;
            std::thread::sleep(THAWED);
        }
        Ok(())
    }

    /// One that does not stand still refuses this.
    pub(crate) fn thaw_disk(&self, number: usize) -> Result<()> {
        run(Command::new("fsfreeze").arg("-u").arg(self.disk(number)))
    }

    fn set_up(&self, disks: Disk) -> Result<()> {
        let switch = self.switch();
        ip(&format!("netns add {switch}"))?;
        let there = |line: &str| ip(&format!("-n {switch} {line}"));
        there("link set lo up")?;
        there("link add switch0 type bridge")?;
        there(&format!("addr add {NETWORK}.1/24 dev switch0"))?;
        there("link set switch0 up")?;
        for number in 0..COUNT {
            let name = self.machine(number);
            ip(&format!("netns add {name}"))?;
            there(&format!("link add port{number} type veth peer name eth0 netns {name}"))?;
            there(&format!("link set port{number} master switch0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} addr add {}/24 dev eth0", address(number)))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            self.make_disk(number, disks)?;
        }
        testkit::keys::write(&self.dir);
        Ok(())
    }

    /// Removes what there is of it; the first failure is told.
    fn clear(&self) -> Result<()> {
        let mut results = Vec::new();
        for number in 0..COUNT {
            if self.below_disk(number).exists() {
                // One that stands still, since the run was ended, cannot be unmounted; one that does not refuses this.
                let thawed = Command::new("fsfreeze").arg("-u").arg(self.disk(number)).output();
                results.push(thawed.map(drop).map_err(anyhow::Error::from));
            }
            for mount in [self.disk(number), self.below_disk(number)].iter().filter(|mount| mount.exists()) {
                // Lazily: a namespace that somebody made meanwhile has a copy of the mount, and keeps it busy.
                results.push(run(Command::new("umount").arg("--lazy").arg(mount)));
            }
        }
        for name in (0..COUNT).map(|number| self.machine(number)).chain([self.switch()]) {
            if Path::new("/run/netns").join(&name).exists() {
                results.push(ip(&format!("netns del {name}")));
            }
        }
        results.into_iter().find(Result::is_err).unwrap_or(Ok(()))
    }

    /// Cuts a machine off, or connects it again.
    pub(crate) fn set_link(&self, number: usize, is_up: bool) -> Result<()> {
        let state = if is_up { "up" } else { "down" };
        ip(&format!("-n {} link set port{number} {state}", self.switch()))
    }

    /// Writes until nothing is left of a machine's disk.
    pub(crate) fn fill_disk(&self, number: usize) -> Result<()> {
        let mut file = File::create(self.filler(number))?;
        let block = vec![0u8; 1 << 16];
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
        Ok(())
    }

    pub(crate) fn empty_disk(&self, number: usize) -> Result<()> {
        Ok(std::fs::remove_file(self.filler(number))?)
    }

    fn filler(&self, number: usize) -> PathBuf {
        self.disk(number).join("filler")
    }
}

/// Starts this program again on the bridge, with the words it was given, and clears everything away afterwards.
pub(crate) fn inside(dir: &Path, disks: Disk) -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "namespaces and mounts need root");
    let dir = tempfile::Builder::new().prefix("coxbench-").rand_bytes(4).tempdir_in(dir)?;
    let place = Place::of(dir.path());
    let ended = place.set_up(disks).and_then(|()| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", place.switch())).arg("--").arg(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).arg("--inside").arg(dir.path());
        Ok(command.status()?)
    });
    let cleared = place.clear();
    ensure!(ended?.success(), "it failed");
    cleared
}

fn ip(line: &str) -> Result<()> {
    run(Command::new("ip").args(line.split(' ')))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

pub(crate) fn address(number: usize) -> String {
    format!("{NETWORK}.{}", 11 + number)
}

/// All members, for clients or for each other.
fn members(port: u16, with_names: bool) -> String {
    let one = |number: usize| {
        let name = if with_names { format!("m{number}=") } else { String::new() };
        format!("{name}http://{}:{port}", address(number))
    };
    (0..COUNT).map(one).collect::<Vec<_>>().join(",")
}

/// The clock of a process, where libfaketime is installed; timers go on as they were.
pub(crate) struct Clock(PathBuf);

impl Clock {
    pub(crate) fn of(place: &Place, number: usize) -> Clock {
        Clock(place.dir.join(format!("clock-{number}")))
    }

    pub(crate) fn library() -> Option<PathBuf> {
        let named = std::env::var_os("FAKETIME_LIBRARY").map(PathBuf::from);
        Some(named.unwrap_or_else(|| CLOCKS.into())).filter(|path| path.exists())
    }

    /// Before the process starts.
    pub(crate) fn give_to(&self, process: &mut Process) -> Result<()> {
        let Some(library) = Clock::library() else { return Ok(()) };
        self.set(0)?;
        process.command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &self.0);
        process.command.env("FAKETIME_CACHE_DURATION", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Ok(())
    }

    /// So many minutes ahead of this machine's.
    pub(crate) fn set(&self, minutes: i32) -> Result<()> {
        std::fs::write(&self.0, format!("{minutes:+}m\n")).with_context(|| self.0.display().to_string())
    }
}

/// A process of a machine, started again when it has ended.
pub(crate) struct Process {
    command: Command,
    child: Option<Child>,
}

impl Process {
    fn new(place: &Place, number: usize, name: &str, program: &Path, words: &[String]) -> Result<Process> {
        let log = File::options().create(true).append(true).open(place.dir.join(format!("{name}-{number}.log")))?;
        let mut command = place.on(number, program);
        command.args(words).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Process { command, child: None })
    }

    /// An etcd member, with its data on the machine's disk.
    pub(crate) fn etcd(place: &Place, number: usize, program: &Path) -> Result<Process> {
        let url = |port: u16| format!("http://{}:{port}", address(number));
        let words = [
            format!("--name=m{number}"),
            format!("--data-dir={}", place.disk(number).join("etcd").display()),
            format!("--listen-client-urls={}", url(2379)),
            format!("--advertise-client-urls={}", url(2379)),
            format!("--listen-peer-urls={}", url(2380)),
            format!("--initial-advertise-peer-urls={}", url(2380)),
            format!("--initial-cluster={}", members(2380, true)),
            "--pre-vote=true".to_owned(),
            "--log-level=error".to_owned(),
        ];
        Process::new(place, number, "etcd", program, &words)
    }

    /// One of our API servers.
    pub(crate) fn server(place: &Place, number: usize, program: &Path) -> Result<Process> {
        let words = [vec!["apiserver".to_owned()], server_flags(place, number, "/registry", OURS)].concat();
        Process::new(place, number, "apiserver", program, &words)
    }

    /// An upstream kube-apiserver over the same etcd, in a place of its own.
    pub(crate) fn peer(place: &Place, number: usize, program: &Path) -> Result<Process> {
        let mut words = server_flags(place, number, "/peer", PEER);
        words.extend([
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        ]);
        Process::new(place, number, "kube-apiserver", program, &words)
    }

    pub(crate) fn add_flags(&mut self, flags: &[&str]) {
        self.command.args(flags);
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        self.child = Some(self.command.spawn().with_context(|| format!("{:?}", self.command))?);
        Ok(())
    }

    /// Starts what has ended by itself.
    pub(crate) fn look_after(&mut self) -> Result<()> {
        let ended = match &mut self.child {
            Some(child) => child.try_wait()?.is_some(),
            None => true,
        };
        if ended { self.start() } else { Ok(()) }
    }

    /// While it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        if let Some(child) = &self.child {
            kill(Pid::from_raw(child.id() as i32), signal)?;
        }
        Ok(())
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kill();
    }
}

/// Ports of API servers.
pub(crate) const OURS: u16 = 6443;
pub(crate) const PEER: u16 = 7443;

fn server_flags(place: &Place, number: usize, prefix: &str, port: u16) -> Vec<String> {
    let mut flags = vec![
        format!("--etcd-servers={}", members(2379, false)),
        format!("--etcd-prefix={prefix}"),
        format!("--bind-address={}", address(number)),
        format!("--secure-port={port}"),
        "--authorization-mode=RBAC".to_owned(),
    ];
    flags.extend(key_flags(&place.dir));
    flags
}

/// The flags of an API server for the keys and certificates in a folder.
pub(crate) fn key_flags(dir: &Path) -> [String; 5] {
    [
        ("tls-cert-file", "server.crt"),
        ("tls-private-key-file", "server.key"),
        ("client-ca-file", "ca.crt"),
        ("service-account-key-file", "sa.pub"),
        ("service-account-signing-key-file", "sa.key"),
    ]
    .map(|(flag, file)| format!("--{flag}={}", dir.join(file).display()))
}

/// The administrator of the API server on a machine.
pub(crate) fn client(place: &Place, number: usize, port: u16) -> Result<Client> {
    let file = |name: &str| Some(place.dir.join(name).display().to_string());
    let cluster = Cluster {
        server: Some(format!("https://{}:{port}", address(number))),
        certificate_authority: file("ca.crt"),
        tls_server_name: Some("localhost".to_owned()),
        ..Cluster::default()
    };
    let admin =
        AuthInfo { client_certificate: file("admin.crt"), client_key: file("admin.key"), ..AuthInfo::default() };
    Ok(Client::from_kubeconfig(&Kubeconfig::single("bench", cluster, admin, None), &Overrides::default())?)
}

/// Waits until a server lets its namespaces be read.
pub(crate) async fn until_serving(client: &Client) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let namespaces = client.all::<k8s_openapi::api::core::v1::Namespace>();
        let failure = match tokio::time::timeout(Duration::from_secs(5), namespaces.get("default")).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        ensure!(Instant::now() < deadline, "{:?} does not come up: {failure}", client.server());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The same, while `look_after` is called again and again: a server that found no etcd has ended, and is started again.
pub(crate) async fn until_served(client: &Client, mut look_after: impl FnMut() -> Result<()>) -> Result<()> {
    let mut serving = std::pin::pin!(until_serving(client));
    loop {
        tokio::select! {
            served = &mut serving => return served,
            () = tokio::time::sleep(LOOK_INTERVAL) => look_after()?,
        }
    }
}

/// Our program: the one that was named, or the one beside this.
pub(crate) fn cox(named: Option<&Path>) -> Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("cox"),
    };
    ensure!(path.is_file(), "{} is not there: build it, or name it with --cox", path.display());
    Ok(path)
}
