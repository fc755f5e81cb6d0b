//! Pod sandboxes: what RunPodSandbox, StopPodSandbox and RemovePodSandbox do.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cri::v1;
use parking_lot::Mutex;

use crate::blocking::blocking;
use crate::engine::{Engine, Sandbox};
use crate::error::{Error, Result, doing};
use crate::pod_config::{cgroup_parent, check_users, hostname, namespace_options};
use crate::record::{self, SandboxRecord, ShimRecord};
use crate::shim::Paths;
use crate::shim::client::{ShimClient, ShimError};
use crate::shim::protocol::Request;
use crate::spec::{Namespace, Namespaces, PodSpec};
use crate::{cgroup, container, names, network, sys};

/// How long a killed pod may take to disappear.
const SHUTDOWN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

pub(crate) async fn run(engine: &Arc<Engine>, config: v1::PodSandboxConfig, handler: String) -> Result<String> {
    if !engine.config.is_handler(&handler) {
        return Err(Error::Invalid(format!("no runtime for {handler:?} is configured")));
    }
    names::check_sandbox(&config)?;
    check_users(&namespace_options(&config))?;
    let id = record::new_id().map_err(doing("making an id"))?;
    let directory = engine.config.root.join("sandboxes").join(&id);
    fs::create_dir(&directory).map_err(doing(format!("creating {}", directory.display())))?;
    let record = SandboxRecord {
        id: id.clone(),
        config,
        runtime_handler: handler,
        created_at: record::now(),
        boot_id: record::boot_id().map_err(doing("reading the boot id"))?,
        ..Default::default()
    };
    record::write(&directory.join("sandbox.json"), &record).map_err(doing("recording a sandbox"))?;
    let cgroup = cgroup::child_path(&cgroup_parent(&record.config), &id);
    match start(engine, record, &directory).await {
        Ok(()) => Ok(id),
        Err(error) => {
            if engine.sandbox(&id).is_ok() {
                if let Err(error) = remove(engine, &id).await {
                    tracing::warn!(sandbox = id, %error, "cannot clean up after a failed start");
                }
            } else {
                // A shim that was killed while it set the pod up has left pause behind.
                let cgroups = engine.cgroups.clone();
                if let Err(error) = blocking(move || cgroups.remove(&cgroup)).await {
                    tracing::warn!(sandbox = id, %error, "cannot remove the cgroup after a failed start");
                }
                let _ = fs::remove_file(engine.shim_socket(&id));
                unmount_shm(&directory);
                let _ = fs::remove_dir_all(&directory);
            }
            Err(error)
        }
    }
}

async fn start(engine: &Arc<Engine>, record: SandboxRecord, directory: &Path) -> Result<()> {
    let id = record.id.clone();
    let pod = pod_spec(&record);
    prepare_files(&record.config, &pod, directory)?;
    record::write(&directory.join("pod.json"), &pod).map_err(doing("writing pod.json"))?;
    trace::mark();
    spawn_shim(engine, &id, directory).await?;
    trace::lap(trace::Stage::Pause);
    let shim: ShimRecord = record::read(&directory.join("shim.json")).map_err(doing("reading shim.json"))?;
    let sandbox = Arc::new(Sandbox {
        shim: ShimClient::new(&engine.shim_socket(&id)),
        pause_pid: shim.pause_pid,
        alive: AtomicBool::new(false),
        record: Mutex::new(record.clone()),
        directory: directory.to_path_buf(),
        changing: Default::default(),
    });
    engine.sandboxes.lock().insert(id.clone(), sandbox.clone());
    engine.watch_shim(&sandbox).await?;
    if pod.namespaces.network == Namespace::Own {
        trace::mark();
        let ips = network::add(&engine.config, &id, &record.config, shim.pause_pid).await?;
        sandbox.record.lock().ips = ips;
    }
    sandbox.record.lock().complete = true;
    sandbox.save()?;
    engine.emit(&id, &id, v1::ContainerEventType::ContainerCreatedEvent);
    engine.emit(&id, &id, v1::ContainerEventType::ContainerStartedEvent);
    Ok(())
}

/// Starts the pod's shim and waits until the pod's namespaces are held.
async fn spawn_shim(engine: &Engine, id: &str, directory: &Path) -> Result<()> {
    let paths = Paths {
        sandbox: directory.to_path_buf(),
        containers: engine.config.root.join("containers"),
        socket: engine.shim_socket(id),
    };
    engine.shims.start(paths).await.map_err(|error| Error::Shim(format!("sandbox {id}: {error}")))
}

fn pod_spec(record: &SandboxRecord) -> PodSpec {
    let options = namespace_options(&record.config);
    let of = |mode: v1::NamespaceMode| match mode {
        v1::NamespaceMode::Node => Namespace::Host,
        _ => Namespace::Own,
    };
    let namespaces = Namespaces {
        network: of(options.network()),
        ipc: of(options.ipc()),
        // A pod on the node's network has the node's name.
        uts: of(options.network()),
        pid: match options.pid() {
            v1::NamespaceMode::Pod => Namespace::Own,
            // Containers have their own (or the node's): pause has nothing to be the parent of.
            _ => Namespace::Host,
        },
    };
    let linux = record.config.linux.clone().unwrap_or_default();
    let mut sysctls: BTreeMap<String, String> = BTreeMap::new();
    if namespaces.network == Namespace::Own {
        // As containerd does by default: any port, and ping, without privileges. The pod has its network for itself.
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), "0".into());
        sysctls.insert("net.ipv4.ping_group_range".into(), "0 2147483647".into());
    }
    sysctls.extend(linux.sysctls);
    PodSpec {
        hostname: hostname(&record.config),
        namespaces,
        sysctls,
        cgroup: cgroup::child_path(&linux.cgroup_parent, &record.id),
        resources: Default::default(),
        oom_score_adj: -998,
    }
}

/// The files that all containers of the pod see: /etc/hostname, /etc/hosts, /etc/resolv.conf, /dev/shm.
fn prepare_files(config: &v1::PodSandboxConfig, pod: &PodSpec, directory: &Path) -> Result<()> {
    let write = |name: &str, content: String| {
        fs::write(directory.join(name), content).map_err(doing(format!("writing {name}")))
    };
    write("hostname", format!("{}\n", pod.hostname))?;
    write("hosts", fs::read_to_string("/etc/hosts").unwrap_or_else(|_| "127.0.0.1\tlocalhost\n".into()))?;
    let resolv_conf = resolv_conf(config.dns_config.as_ref()).map_err(doing("reading /etc/resolv.conf"))?;
    write("resolv.conf", resolv_conf)?;
    if pod.namespaces.ipc == Namespace::Own {
        let shm = directory.join("shm");
        fs::create_dir(&shm).map_err(doing("creating shm"))?;
        let flags = libc::MS_NOEXEC | libc::MS_NOSUID | libc::MS_NODEV;
        sys::mount("shm", &shm, "tmpfs", flags, "mode=1777,size=65536k").map_err(doing("mounting /dev/shm"))?;
    }
    Ok(())
}

fn resolv_conf(dns: Option<&v1::DnsConfig>) -> std::io::Result<String> {
    let Some(dns) = dns.filter(|d| !(d.servers.is_empty() && d.searches.is_empty() && d.options.is_empty())) else {
        return match fs::read_to_string("/etc/resolv.conf") {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            other => other,
        };
    };
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        text.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    Ok(text)
}

fn unmount_shm(directory: &Path) {
    let shm = directory.join("shm");
    if shm.exists()
        && let Err(error) = sys::unmount(&shm, libc::MNT_DETACH)
        && error.raw_os_error() != Some(libc::EINVAL)
    {
        tracing::warn!(path = %shm.display(), %error, "cannot unmount");
    }
}

/// Removes what an earlier process began to start and nobody was ever told of.
pub(crate) async fn remove_unfinished(engine: &Arc<Engine>) {
    let sandboxes: Vec<Arc<Sandbox>> = engine.sandboxes.lock().values().cloned().collect();
    for sandbox in sandboxes.iter().filter(|sandbox| !sandbox.record.lock().complete) {
        let id = sandbox.id();
        tracing::warn!(sandbox = id, "removing a sandbox that was never finished");
        if let Err(error) = remove(engine, &id).await {
            tracing::warn!(sandbox = id, %error, "cannot remove it");
        }
    }
}

/// Stops a sandbox and all in it. Everything is tried even after a failure; the first error is returned.
pub(crate) async fn stop(engine: &Arc<Engine>, id: &str) -> Result<()> {
    let sandbox = match engine.sandbox(id) {
        Ok(sandbox) => sandbox,
        // Gone is stopped: callers repeat this until they are sure.
        Err(Error::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let _alone = sandbox.changing.lock().await;
    stop_locked(engine, &sandbox).await
}

async fn stop_locked(engine: &Arc<Engine>, sandbox: &Arc<Sandbox>) -> Result<()> {
    if sandbox.record.lock().stopped {
        return Ok(());
    }
    let (id, config) = {
        let record = sandbox.record.lock();
        (record.id.clone(), record.config.clone())
    };
    for container in engine.containers_of(&id) {
        container::kill(engine, &container).await?;
    }
    if namespace_options(&config).network() != v1::NamespaceMode::Node {
        network::remove(&engine.config, &id, &config, sandbox.pause()).await?;
    }
    match sandbox.shim.call(Request::Shutdown).await {
        Ok(_) | Err(ShimError::Unreachable { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    wait_until_gone(&engine.shim_socket(&id), &id).await?;
    sandbox.alive.store(false, Ordering::Relaxed);
    let cgroup = cgroup::child_path(&cgroup_parent(&config), &id);
    let cgroups = engine.cgroups.clone();
    blocking(move || cgroups.remove(&cgroup)).await.map_err(doing("removing the sandbox's cgroup"))?;
    unmount_shm(&sandbox.directory);
    sandbox.record.lock().stopped = true;
    sandbox.save()?;
    engine.emit(&id, &id, v1::ContainerEventType::ContainerStoppedEvent);
    Ok(())
}

/// A shim removes its socket as its last act.
async fn wait_until_gone(socket: &Path, id: &str) -> Result<()> {
    let start = tokio::time::Instant::now();
    let mut pause = std::time::Duration::from_millis(1);
    while socket.exists() {
        if std::os::unix::net::UnixStream::connect(socket).is_err() {
            // Nobody listens: the shim was killed. Its file is ours to remove.
            let _ = fs::remove_file(socket);
            return Ok(());
        }
        if start.elapsed() > SHUTDOWN_TIMEOUT {
            return Err(Error::Timeout { what: format!("sandbox {id}: shutdown"), seconds: 30 });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(std::time::Duration::from_millis(50));
    }
    Ok(())
}

/// Removes a sandbox with its containers, stopping it first where needed.
pub(crate) async fn remove(engine: &Arc<Engine>, id: &str) -> Result<()> {
    let sandbox = match engine.sandbox(id) {
        Ok(sandbox) => sandbox,
        Err(Error::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let _alone = sandbox.changing.lock().await;
    stop_locked(engine, &sandbox).await?;
    let id = sandbox.id();
    for container in engine.containers_of(&id) {
        container::remove(engine, &container.id()).await?;
    }
    let directory = sandbox.directory.clone();
    blocking(move || files::remove_tree(&directory)).await.map_err(doing("removing the sandbox's directory"))?;
    crate::stats::forget_sandbox(engine, &sandbox);
    engine.emit(&id, &id, v1::ContainerEventType::ContainerDeletedEvent);
    engine.sandboxes.lock().remove(&id);
    Ok(())
}
