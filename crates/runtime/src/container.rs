//! Containers: what CreateContainer, StartContainer, StopContainer and RemoveContainer do.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::blocking::{blocking, on_own_thread};
use crate::container_spec;
use crate::engine::{Container, Engine};
use crate::error::{Error, Result, doing};
use crate::pod_config::cgroup_parent;
use crate::record::{self, ContainerRecord, StatusRecord};
use crate::shim::client::ShimClient;
use crate::shim::protocol::Request;
use crate::{cgroup, names, signal};

/// After SIGKILL, the kernel's part takes no longer than this unless something is badly wrong.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn create(engine: &Arc<Engine>, request: v1::CreateContainerRequest) -> Result<String> {
    let sandbox = engine.sandbox(&request.pod_sandbox_id)?;
    let not_running = || Error::Precondition(format!("sandbox {} is not running", sandbox.id()));
    if !sandbox.is_ready() {
        return Err(not_running());
    }
    let mut config = request.config.ok_or_else(|| Error::Invalid("container config is missing".into()))?;
    names::check_container(&config)?;
    let _reserved = Reserved::new(engine, &sandbox.id(), config.metadata.clone().unwrap_or_default())?;
    let image_name = config.image.clone().unwrap_or_default().image;
    // Until the container is known, nobody else knows that its layers are in use; the lease tells other processes.
    let _lease = engine.images.lease().await?;
    let mut claim = engine.images.claim();
    let image = claim.image(&image_name).ok_or(Error::NotFound { kind: "image", id: image_name })?;
    for volume in config.mounts.iter().filter_map(|mount| mount.image.as_ref()) {
        // One that is not there is refused below.
        let _ = claim.image(&volume.image);
    }
    let id = record::new_id().map_err(doing("making an id"))?;
    let pod = sandbox.record.lock().config.clone();
    let log_path = match (pod.log_directory.as_str(), config.log_path.as_str()) {
        ("", _) | (_, "") => None,
        (directory, path) => Some(PathBuf::from(directory).join(path)),
    };
    if let Some(parent) = log_path.as_deref().and_then(std::path::Path::parent) {
        fs::create_dir_all(parent).map_err(doing(format!("creating {}", parent.display())))?;
    }
    let cgroup = cgroup::child_path(&cgroup_parent(&pod), &id);
    let directory = engine.config.root.join("containers").join(&id);
    for part in ["upper", "work", "rootfs"] {
        let path = directory.join(part);
        fs::create_dir_all(&path).map_err(doing(format!("creating {}", path.display())))?;
    }
    let spec_file = engine.spec_file(&id);
    let prepare = {
        let (engine, sandbox, image, spec_file) = (engine.clone(), sandbox.clone(), image.clone(), spec_file.clone());
        let (pod, config, directory) = (pod.clone(), config.clone(), directory.clone());
        let (cgroup, log_path) = (cgroup.clone(), log_path.clone());
        move || {
            let input = container_spec::Input {
                engine: &engine,
                sandbox: &sandbox,
                pod: &pod,
                config: &config,
                image: &image,
                directory: &directory,
                cgroup: &cgroup,
                log_path,
            };
            Ok(container_spec::build(&input).and_then(|built| {
                record::write_spec(&directory, &spec_file, &built.spec).map_err(doing("writing spec.json"))?;
                Ok(built)
            }))
        }
    };
    // What is mounted is looked at. It may be on a server that is silent, which would hold up whoever else has this thread.
    let prepared = tokio::select! {
        prepared = on_own_thread(prepare) => prepared.unwrap_or_else(|error| Err(doing("preparing a container")(error))),
        // The thread may still write the spec. The next start finds both by the directory, and removes them.
        () = engine.stop.cancelled() => return Err(Error::Precondition("the runtime is stopping".into())),
    };
    let built = match prepared {
        Ok(built) => built,
        Err(error) => {
            let _ = (record::remove_spec(&spec_file), fs::remove_dir_all(&directory));
            return Err(error);
        }
    };
    // Only the spec needs them, and the record is on the disk.
    (config.command, config.args, config.envs) = Default::default();
    let resources = config.linux.as_mut().and_then(|l| l.resources.clone());
    let container = Container {
        record: Mutex::new(ContainerRecord {
            id: id.clone(),
            sandbox: sandbox.id(),
            stop_signal: signal::of_container(&config, &image.config.stop_signal),
            image_id: image.id.clone(),
            image_ref: image.reference(),
            created_at: record::now(),
            log_path: log_path.map(|p| p.to_string_lossy().into_owned()).unwrap_or_default(),
            cgroup,
            resources,
            volume_images: built.volume_images,
            config,
        }),
        directory,
        status: watch::channel(StatusRecord::default()).0,
        changing: Default::default(),
    };
    container.save()?;
    engine.containers.lock().insert(id.clone(), Arc::new(container));
    // It may have taken long. Whoever has removed the sandbox since did not see this one.
    if !sandbox.is_ready() {
        remove(engine, &id).await?;
        return Err(not_running());
    }
    engine.emit(&sandbox.id(), &id, v1::ContainerEventType::ContainerCreatedEvent);
    Ok(id)
}

/// The name of a container that is being made, until this is dropped. The kubelet asks again and again for one that it gets no answer
/// about: where a server is silent, each of those would wait for it beside the others.
struct Reserved<'a> {
    engine: &'a Engine,
    key: (String, v1::ContainerMetadata),
}

impl<'a> Reserved<'a> {
    fn new(engine: &'a Engine, sandbox: &str, name: v1::ContainerMetadata) -> Result<Self> {
        let key = (sandbox.to_owned(), name);
        let mut creating = engine.creating.lock();
        if creating.contains(&key) {
            let (sandbox, v1::ContainerMetadata { name, .. }) = key;
            return Err(Error::Precondition(format!(
                "container {name:?} of sandbox {sandbox} is being made: what it mounts has not answered yet"
            )));
        }
        creating.push(key.clone());
        Ok(Self { engine, key })
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.engine.creating.lock().retain(|key| *key != self.key);
    }
}

pub(crate) async fn start(engine: &Arc<Engine>, id: &str) -> Result<()> {
    let container = engine.container(id)?;
    let _alone = container.changing.lock().await;
    if container.state() != v1::ContainerState::ContainerCreated {
        return Err(Error::Precondition(format!("container {id} was started already")));
    }
    let sandbox = engine.sandbox(&container.sandbox_id())?;
    let started = sandbox.shim.call(Request::Start { id: container.id() }).await;
    container.refresh();
    started?;
    engine.emit(&sandbox.id(), &container.id(), v1::ContainerEventType::ContainerStartedEvent);
    Ok(())
}

/// Asks the container to stop, then makes it.
pub(crate) async fn stop(engine: &Arc<Engine>, id: &str, timeout: i64) -> Result<()> {
    let container = match engine.container(id) {
        Ok(container) => container,
        Err(Error::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    if !container.is_running() {
        return Ok(());
    }
    if timeout > 0 {
        let sandbox = engine.sandbox(&container.sandbox_id())?;
        if ended_when_asked(&container, &sandbox.shim, Duration::from_secs(timeout as u64)).await {
            return Ok(());
        }
    }
    kill(engine, &container).await
}

/// Whether a container has ended by itself. One whose shim cannot tell it to is not spared for that.
async fn ended_when_asked(container: &Container, shim: &ShimClient, limit: Duration) -> bool {
    let (id, signal) = {
        let record = container.record.lock();
        (record.id.clone(), record.stop_signal)
    };
    match shim.call(Request::Signal { id, signal }).await {
        Ok(_) => ended(container, limit).await,
        Err(error) => {
            tracing::warn!(container = container.id(), %error, "cannot be asked to stop");
            false
        }
    }
}

/// SIGKILL, and waits for the end.
pub(crate) async fn kill(engine: &Arc<Engine>, container: &Arc<Container>) -> Result<()> {
    if !container.is_running() {
        return Ok(());
    }
    let sandbox = engine.sandbox(&container.sandbox_id())?;
    let request = Request::Signal { id: container.id(), signal: libc::SIGKILL };
    if let Err(error) = sandbox.shim.call(request).await {
        tracing::debug!(container = container.id(), %error, "the shim could not signal");
        engine.cgroups.kill(container.record.lock().cgroup.clone());
    }
    match ended(container, KILL_TIMEOUT).await {
        true => Ok(()),
        false => Err(Error::Timeout {
            what: format!("killing container {}", container.id()),
            seconds: KILL_TIMEOUT.as_secs() as i64,
        }),
    }
}

async fn ended(container: &Container, limit: Duration) -> bool {
    let mut status = container.status.subscribe();
    let wait = status.wait_for(|s| s.finished_at != 0);
    matches!(tokio::time::timeout(limit, wait).await, Ok(Ok(_)))
}

pub(crate) async fn remove(engine: &Arc<Engine>, id: &str) -> Result<()> {
    let container = match engine.container(id) {
        Ok(container) => container,
        Err(Error::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    // Without its record nobody would end what is just being started.
    let _alone = container.changing.lock().await;
    kill(engine, &container).await?;
    let (id, sandbox, cgroup) = {
        let record = container.record.lock();
        (record.id.clone(), record.sandbox.clone(), record.cgroup.clone())
    };
    let (cgroups, directory, forgotten) = (engine.cgroups.clone(), container.directory.clone(), cgroup.clone());
    let spec_file = engine.spec_file(&id);
    blocking(move || {
        cgroups.remove(&cgroup)?;
        record::remove_spec(&spec_file)?;
        files::remove_tree(&directory)
    })
    .await
    .map_err(doing(format!("removing container {id}")))?;
    engine.cpu_rates.forget(&forgotten);
    engine.emit(&sandbox, &id, v1::ContainerEventType::ContainerDeletedEvent);
    engine.containers.lock().remove(&id);
    Ok(())
}

pub(crate) async fn reopen_log(engine: &Arc<Engine>, id: &str) -> Result<()> {
    let container = engine.container(id)?;
    if !container.is_running() {
        return Err(Error::Precondition(format!("container {id} is not running")));
    }
    let sandbox = engine.sandbox(&container.sandbox_id())?;
    sandbox.shim.call(Request::ReopenLog { id: container.id() }).await?;
    Ok(())
}

pub(crate) async fn update(engine: &Arc<Engine>, id: &str, new: v1::LinuxContainerResources) -> Result<()> {
    let container = engine.container(id)?;
    // What is just being started has read its limits already, and does not run yet.
    let _alone = container.changing.lock().await;
    if container.state() == v1::ContainerState::ContainerExited {
        return Err(Error::Precondition(format!("container {id} has exited")));
    }
    let mut merged = container.record.lock().resources.clone().unwrap_or_default();
    merge(&mut merged, &new);
    let resources = container_spec::resources(&merged, &engine.cgroups);
    let cgroup = container.record.lock().cgroup.clone();
    if container.is_running() {
        let (cgroups, resources) = (engine.cgroups.clone(), resources.clone());
        blocking(move || cgroups.change(&cgroup, &resources))
            .await
            .map_err(doing(format!("updating container {id}")))?;
    }
    // A start still to come uses the new values too.
    let path = fs::canonicalize(container.directory.join("spec.json")).map_err(doing("reading spec.json"))?;
    let mut spec: crate::spec::Spec = record::read(&path).map_err(doing("reading spec.json"))?;
    spec.resources = crate::spec::Resources { all_devices: spec.resources.all_devices, ..resources };
    record::write(&path, &spec).map_err(doing("writing spec.json"))?;
    container.record.lock().resources = Some(merged);
    container.save()
}

/// Zero in an update means "as it was".
fn merge(old: &mut v1::LinuxContainerResources, new: &v1::LinuxContainerResources) {
    for (old, new) in [
        (&mut old.cpu_period, new.cpu_period),
        (&mut old.cpu_quota, new.cpu_quota),
        (&mut old.cpu_shares, new.cpu_shares),
        (&mut old.memory_limit_in_bytes, new.memory_limit_in_bytes),
        (&mut old.memory_swap_limit_in_bytes, new.memory_swap_limit_in_bytes),
        (&mut old.oom_score_adj, new.oom_score_adj),
    ] {
        if new != 0 {
            *old = new;
        }
    }
    for (old, new) in [(&mut old.cpuset_cpus, &new.cpuset_cpus), (&mut old.cpuset_mems, &new.cpuset_mems)] {
        if !new.is_empty() {
            old.clone_from(new);
        }
    }
    old.unified.extend(new.unified.clone());
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc;

    use super::*;
    use crate::cgroup::Cgroups;
    use crate::engine::Sandbox;
    use crate::image::ImageStore;
    use crate::record::SandboxRecord;
    use crate::shim::protocol::{self, Response};
    use crate::shim::starter::Starter;

    fn created(directory: &Path, record: ContainerRecord) -> Container {
        Container {
            record: Mutex::new(record),
            directory: directory.to_path_buf(),
            status: watch::channel(StatusRecord::default()).0,
            changing: Default::default(),
        }
    }

    /// A shim is silent, or gone without a word: then a container is killed like one that does not do what it is asked.
    #[tokio::test]
    async fn a_container_that_cannot_be_asked_to_stop_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let container = created(directory.path(), ContainerRecord::default());
        let nobody = ShimClient::new(&directory.path().join("shim.sock"));
        assert!(!ended_when_asked(&container, &nobody, Duration::from_secs(3600)).await);
    }

    /// A container whose sandbox has this test as its shim.
    fn engine(root: &Path, cgroups: Cgroups) -> Arc<Engine> {
        let starter = Arc::new(Starter::new(fs::File::open("/dev/null").unwrap().into()));
        let sandbox = Sandbox {
            record: Mutex::new(SandboxRecord { id: "sandbox".into(), complete: true, ..Default::default() }),
            directory: root.to_path_buf(),
            shim: ShimClient::new(&root.join("shim.sock")),
            pause_pid: 0,
            alive: true.into(),
            changing: Default::default(),
        };
        let record = ContainerRecord {
            id: "container".into(),
            sandbox: "sandbox".into(),
            cgroup: "/cox-tests/of-no-container".into(),
            ..Default::default()
        };
        let container = created(&root.join("container"), record);
        fs::create_dir(&container.directory).unwrap();
        Arc::new(Engine {
            config: crate::Config::new(root, root, root.join("cri.sock")),
            images: Arc::new(ImageStore::open(root).unwrap()),
            mirrors: Default::default(),
            cgroups,
            sandboxes: Mutex::new([("sandbox".to_owned(), Arc::new(sandbox))].into()),
            containers: Mutex::new([("container".to_owned(), Arc::new(container))].into()),
            events: tokio::sync::broadcast::channel(1).0,
            shims: starter,
            pod_cidr: Default::default(),
            cpu_rates: Default::default(),
            walks: Default::default(),
            creating: Default::default(),
            tasks: Default::default(),
            stop: Default::default(),
        })
    }

    /// Removed between its record and its first process, a container would run and nobody would know of it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_container_is_not_removed_while_it_is_started() {
        let Ok(cgroups) = Cgroups::detect() else {
            eprintln!("skipped: there are no cgroups here");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("shim.sock")).unwrap();
        let engine = engine(directory.path(), cgroups);
        let (one, other) = (engine.clone(), engine.clone());
        let starting = tokio::spawn(async move { start(&one, "container").await.is_ok() });
        let (shim, _) = listener.accept().unwrap();
        assert!(matches!(protocol::receive(&shim, &mut Vec::new()).unwrap(), Request::Start { .. }));
        let mut removing = tokio::spawn(async move { remove(&other, "container").await.is_ok() });
        let removed = tokio::time::timeout(Duration::from_millis(100), &mut removing).await;
        assert!(removed.is_err(), "the shim has not answered yet");

        let place = directory.path().join("container");
        let ended = StatusRecord { pid: 1, started_at: 1, finished_at: 2, ..Default::default() };
        record::write(&place.join("status.json"), &ended).unwrap();
        protocol::send(&shim, &Response::Started { pid: 1 }, &[]).unwrap();
        assert!(starting.await.unwrap() && removing.await.unwrap());
        assert!(engine.containers.lock().is_empty() && !place.exists());
    }

    /// What is asked about a mount comes back from nowhere, until this is told to go on. It is a lock that is held for a while.
    fn silence(engine: &Arc<Engine>) -> (std::thread::JoinHandle<()>, mpsc::Sender<()>) {
        let ((locked, is_locked), (answer, answered)) = (mpsc::channel(), mpsc::channel());
        let engine = engine.clone();
        let server = std::thread::spawn(move || {
            let _containers = engine.containers.lock();
            locked.send(()).unwrap();
            // If nobody else has a turn, nobody asks it to go on.
            let _ = answered.recv_timeout(Duration::from_secs(5));
        });
        is_locked.recv().unwrap();
        (server, answer)
    }

    /// For a container that looks at another one's processes, of an image that is there.
    fn debugger(engine: &Engine) -> v1::CreateContainerRequest {
        let id = format!("sha256:{}", "a".repeat(64));
        engine.images.put(crate::image::store::Image { id: id.clone(), ..Default::default() }).unwrap();
        let options = v1::NamespaceOption {
            pid: v1::NamespaceMode::Target.into(),
            target_id: "container".into(),
            ..Default::default()
        };
        let security = v1::LinuxContainerSecurityContext { namespace_options: Some(options), ..Default::default() };
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "debugger".into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: id, ..Default::default() }),
            command: vec!["sh".into()],
            linux: Some(v1::LinuxContainerConfig { security_context: Some(security), ..Default::default() }),
            ..Default::default()
        };
        v1::CreateContainerRequest { pod_sandbox_id: "sandbox".into(), config: Some(config), ..Default::default() }
    }

    /// A pod may mount what it likes of servers that it likes, and one of them may stop to answer: then nothing that is asked about the
    /// mount comes back.
    #[tokio::test]
    async fn security_what_a_container_mounts_holds_up_no_other() {
        let Ok(cgroups) = Cgroups::detect() else {
            eprintln!("skipped: there are no cgroups here");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let engine = engine(directory.path(), cgroups);
        let request = debugger(&engine);
        let (server, answer) = silence(&engine);
        let mut creating = Box::pin(create(&engine, request));
        let created = tokio::time::timeout(Duration::from_millis(100), &mut creating).await;
        assert!(created.is_err(), "others had no turn");
        answer.send(()).unwrap();
        let refused = creating.await.unwrap_err().to_string();
        assert!(refused.contains("target container container is not running"), "{refused}");
        server.join().unwrap();
    }

    /// Nobody would ever remove what was made for a sandbox that is gone.
    #[tokio::test]
    async fn a_container_that_comes_after_the_end_of_its_sandbox_is_none() {
        let Ok(cgroups) = Cgroups::detect() else {
            eprintln!("skipped: there are no cgroups here");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let engine = engine(directory.path(), cgroups);
        fs::create_dir(engine.spec_file("any").parent().unwrap()).unwrap();
        let running = StatusRecord { pid: 1, started_at: 1, ..Default::default() };
        engine.container("container").unwrap().status.send_replace(running);
        let request = debugger(&engine);
        let (server, answer) = silence(&engine);
        let mut creating = Box::pin(create(&engine, request));
        let created = tokio::time::timeout(Duration::from_millis(100), &mut creating).await;
        assert!(created.is_err(), "the server has not answered yet");
        engine.sandbox("sandbox").unwrap().alive.store(false, Ordering::Relaxed);
        answer.send(()).unwrap();
        let refused = creating.await.unwrap_err().to_string();
        assert!(refused.contains("sandbox sandbox is not running"), "{refused}");
        server.join().unwrap();
        assert_eq!(engine.containers.lock().len(), 1);
        assert_eq!(fs::read_dir(directory.path().join("containers")).unwrap().count(), 0);
    }

    /// What it is started with has values of Secrets in it, and without the directory nobody would look for that.
    #[tokio::test]
    async fn a_container_that_is_being_made_at_the_end_is_left_to_the_next_start() {
        let Ok(cgroups) = Cgroups::detect() else {
            eprintln!("skipped: there are no cgroups here");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let engine = engine(directory.path(), cgroups);
        let request = debugger(&engine);
        let (server, answer) = silence(&engine);
        engine.stop.cancel();
        let refused = create(&engine, request).await.unwrap_err().to_string();
        assert!(refused.contains("the runtime is stopping"), "{refused}");
        assert_eq!(fs::read_dir(directory.path().join("containers")).unwrap().count(), 1);
        drop(answer);
        server.join().unwrap();
    }

    /// While a server is silent the kubelet asks again, every few minutes and for each container that mounts what is there.
    #[test]
    fn security_a_silent_mount_takes_one_thread_and_none_of_others() {
        let Ok(cgroups) = Cgroups::detect() else {
            eprintln!("skipped: there are no cgroups here");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let share = directory.path().join("share");
        fs::create_dir(&share).unwrap();
        let Some(silent) = testkit::silent::Silent::mount(&share) else {
            eprintln!("skipped: there is no FUSE here");
            return;
        };
        let threads =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
        threads.block_on(async move {
            let engine = engine(directory.path(), cgroups);
            let mut request = debugger(&engine);
            let config = request.config.as_mut().unwrap();
            config.linux = None;
            config.mounts.push(v1::Mount {
                container_path: "/data".into(),
                host_path: share.to_string_lossy().into_owned(),
                ..Default::default()
            });
            let mut creating = Box::pin(create(&engine, request.clone()));
            assert!(tokio::time::timeout(Duration::from_millis(100), &mut creating).await.is_err());
            let limit = Duration::from_secs(60);
            let again = tokio::time::timeout(limit, create(&engine, request)).await.expect("it waits as well");
            let refused = again.unwrap_err().to_string();
            assert!(refused.ends_with("is being made: what it mounts has not answered yet"), "{refused}");
            tokio::time::timeout(limit, blocking(|| Ok(()))).await.expect("others have no thread").unwrap();
            drop(silent);
            // What it comes to depends on when the mount is gone.
            let _ = creating.await;
            assert!(engine.creating.lock().is_empty());
        });
    }
}
