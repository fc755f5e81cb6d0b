//! Pods with a volume each, from their creation until all run: provisioned, bound, mounted, started.
//!
//! Ours is the default class of a fresh `cox up` in namespaces of its own, or that of the cluster that `--kubeconfig` names. The peer is the
//! default class of the cluster that `--peer-kubeconfig` names, or the class of either that `--peer-class` names: that of a CSI driver with
//! upstream's external-provisioner, say. Without them it is the design of rancher's local-path provisioner, driven from here on the same
//! cluster: four workers, and for every volume a helper pod that makes the folder and is looked at once a second. Both take turns, and the
//! medians are compared. Everything that was made is removed again.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Client, DeleteParams, ListParams};
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::api::storage::v1::StorageClass;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Args;
use crate::report::{Better, line, median};

pub(crate) const IMAGE: &str = "docker.io/library/busybox:latest";
const NAMESPACE: &str = "coxbench-storage";
const HELPER_CLASS: &str = "coxbench-helper";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// How often ours and the peer take turns.
const ROUNDS: usize = 3;
/// Requests under way at once while objects are made.
const CREATORS: usize = 16;
/// How often the API is asked whether all is done.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// As local-path has it: volumes made at once, and how often a helper is looked at.
const HELPERS: usize = 4;
const HELPER_INTERVAL: Duration = Duration::from_secs(1);
/// A round that has not ended by then never will.
const ROUND_TIMEOUT: Duration = Duration::from_secs(900);

pub(crate) async fn run(args: Args) -> Result<()> {
    let pods = args.pods.unwrap_or(if args.quick { 5 } else { 100 });
    if let Some(path) = &args.kubeconfig {
        return compare(&args, connect(path)?, &args.dir, pods).await;
    }
    if let Some(code) = testkit::suite::in_namespaces() {
        ensure!(code == std::process::ExitCode::SUCCESS, "the benchmark failed");
        return Ok(());
    }
    let cluster = Cluster::start(&args.dir)?;
    let compared =
        compare(&args, connect(&cluster.path("data/admin.kubeconfig"))?, &cluster.path("folders"), pods).await;
    drop(cluster);
    compared
}

pub(crate) fn connect(kubeconfig: &Path) -> Result<Client> {
    let config = Kubeconfig::read(kubeconfig).with_context(|| kubeconfig.display().to_string())?;
    Ok(Client::from_kubeconfig(&config, &Overrides::default())?)
}

async fn compare(args: &Args, client: Client, folders: &Path, pods: usize) -> Result<()> {
    let (name, other) = match (&args.peer_kubeconfig, args.peer_class.clone()) {
        (Some(path), class) => ("named", Some(Round { client: connect(path)?, class, pods })),
        (None, Some(class)) => ("class", Some(Round { client: client.clone(), class: Some(class), pods })),
        (None, None) => ("helper-pods", None),
    };
    let own = Round { client: client.clone(), class: None, pods };
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..if args.quick { 1 } else { ROUNDS } {
        ours.push(own.time().await.context("ours")?);
        peers.push(match &other {
            Some(other) => other.time().await.context("the peer")?,
            None => with_helpers(client.clone(), folders, pods).await.context("helper pods")?,
        });
    }
    line("storage-start", format!("pods={pods} peer={name}"), "s", median(ours), median(peers), Better::Less);
    Ok(())
}

/// One measurement in one cluster.
struct Round {
    client: Client,
    /// None: the cluster's default.
    class: Option<String>,
    pods: usize,
}

impl Round {
    /// Seconds until all pods run; nothing is left of them afterwards, whatever came of it.
    async fn time(&self) -> Result<f64> {
        let timed = tokio::time::timeout(ROUND_TIMEOUT, self.measure()).await;
        let removed = tokio::time::timeout(ROUND_TIMEOUT, self.remove()).await;
        let seconds = timed.with_context(|| format!("not done after {ROUND_TIMEOUT:?}"))??;
        removed.with_context(|| format!("not removed after {ROUND_TIMEOUT:?}"))??;
        Ok(seconds)
    }

    async fn measure(&self) -> Result<f64> {
        let namespace: Namespace = made(json!({ "metadata": { "name": NAMESPACE } }))?;
        self.client.all::<Namespace>().create(&namespace).await?;
        let accounts = self.client.namespaced::<ServiceAccount>(NAMESPACE);
        while accounts.get_opt("default").await?.is_none() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        // The image is unpacked and the driver awake before the clock runs.
        self.make(0).await?;
        self.until_running(1).await?;
        let began = Instant::now();
        stream::iter(1..=self.pods).map(Ok).try_for_each_concurrent(CREATORS, |number| self.make(number)).await?;
        self.until_running(self.pods + 1).await?;
        Ok(began.elapsed().as_secs_f64())
    }

    async fn make(&self, number: usize) -> Result<()> {
        let name = format!("data-{number}");
        let claim: PersistentVolumeClaim = made(json!({
            "metadata": { "name": name },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": self.class,
                "resources": { "requests": { "storage": "1Mi" } },
            },
        }))?;
        self.client.namespaced::<PersistentVolumeClaim>(NAMESPACE).create(&claim).await?;
        let pod: Pod = made(json!({
            "metadata": { "name": name, "labels": { "bench": "storage" } },
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", "echo x > /data/f && exec sleep 100000"],
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": name } }],
            },
        }))?;
        self.client.namespaced::<Pod>(NAMESPACE).create(&pod).await?;
        Ok(())
    }

    async fn until_running(&self, count: usize) -> Result<()> {
        let pods = self.client.namespaced::<Pod>(NAMESPACE);
        loop {
            let all = pods.list(&ListParams::labels("bench=storage")).await?.items;
            let running = all.iter().filter(|pod| phase(pod) == "Running").count();
            if running == count {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn remove(&self) -> Result<()> {
        let namespaces = self.client.all::<Namespace>();
        match namespaces.delete(NAMESPACE, &DeleteParams::default()).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        while namespaces.get_opt(NAMESPACE).await?.is_some() || !self.volumes().await?.is_empty() {
            if self.class.as_deref() == Some(HELPER_CLASS) {
                for name in self.volumes().await? {
                    match self.client.all::<PersistentVolume>().delete(&name, &DeleteParams::default()).await {
                        Err(error) if !error.is_not_found() => return Err(error.into()),
                        _ => {}
                    }
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// The names of what was made for the claims.
    async fn volumes(&self) -> Result<Vec<String>> {
        let all = self.client.all::<PersistentVolume>().list(&ListParams::default()).await?.items;
        let is_ours = |volume: &PersistentVolume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            claim.and_then(|claim| claim.namespace.as_deref()) == Some(NAMESPACE)
        };
        Ok(all.into_iter().filter(is_ours).filter_map(|volume| volume.metadata.name).collect())
    }
}

/// The same pods, with volumes of a provisioner that starts a pod for each.
async fn with_helpers(client: Client, folders: &Path, pods: usize) -> Result<f64> {
    let class: StorageClass = made(json!({
        "metadata": { "name": HELPER_CLASS }, "provisioner": "coxbench/helper-pods",
        "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Retain",
    }))?;
    let classes = client.all::<StorageClass>();
    classes.create(&class).await?;
    let provisioner = Provisioner { client: client.clone(), folders: folders.to_owned() };
    let round = Round { client: client.clone(), class: Some(HELPER_CLASS.to_owned()), pods };
    let timed = tokio::select! {
        timed = round.time() => timed,
        failed = Arc::new(provisioner).run() => failed.and_then(|()| Err(anyhow::anyhow!("the provisioner ended"))),
    };
    if timed.is_err() {
        round.remove().await?;
    }
    classes.delete(HELPER_CLASS, &DeleteParams::default()).await?;
    timed
}

struct Provisioner {
    client: Client,
    folders: PathBuf,
}

impl Provisioner {
    async fn run(self: Arc<Self>) -> Result<()> {
        let (mut begun, mut tasks, places) = (HashSet::new(), JoinSet::new(), Arc::new(Semaphore::new(HELPERS)));
        let claims = self.client.namespaced::<PersistentVolumeClaim>(NAMESPACE);
        loop {
            for claim in claims.list(&ListParams::default()).await?.items {
                let node = claim.metadata.annotations.as_ref().and_then(|all| all.get(SELECTED_NODE)).cloned();
                let uid = claim.metadata.uid.clone().unwrap_or_default();
                if let Some(node) = node
                    && begun.insert(uid)
                {
                    let (this, places) = (self.clone(), places.clone());
                    tasks.spawn(async move {
                        let _place = places.acquire().await?;
                        this.provision(&claim, &node).await
                    });
                }
            }
            while let Some(ended) = tasks.try_join_next() {
                ended??;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn provision(&self, claim: &PersistentVolumeClaim, node: &str) -> Result<()> {
        let (name, uid) = (claim.metadata.name.as_deref().unwrap_or_default(), claim.metadata.uid.as_deref());
        let volume = format!("pvc-{}", uid.unwrap_or_default());
        let helper = format!("helper-{name}");
        let pods = self.client.namespaced::<Pod>(NAMESPACE);
        let pod: Pod = made(json!({
            "metadata": { "name": helper },
            "spec": {
                "nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "helper", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                    "command": ["mkdir", "-m", "0777", "-p", format!("/folders/{volume}")],
                    "volumeMounts": [{ "name": "folders", "mountPath": "/folders" }],
                }],
                "volumes": [{
                    "name": "folders", "hostPath": { "path": self.folders, "type": "DirectoryOrCreate" },
                }],
            },
        }))?;
        pods.create(&pod).await?;
        loop {
            match phase(&pods.get(&helper).await?) {
                "Succeeded" => break,
                "Failed" => anyhow::bail!("helper pod {helper} failed"),
                _ => tokio::time::sleep(HELPER_INTERVAL).await,
            }
        }
        pods.delete(&helper, &DeleteParams::default()).await?;
        let spec = json!({
            "capacity": { "storage": "1Mi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": HELPER_CLASS,
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": { "path": self.folders.join(&volume) },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": name, "uid": uid,
            },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] },
            ] }] } },
        });
        let object: PersistentVolume = made(json!({ "metadata": { "name": volume }, "spec": spec }))?;
        self.client.all::<PersistentVolume>().create(&object).await?;
        Ok(())
    }
}

/// A cluster in the namespaces of this process; deleted at the end.
pub(crate) struct Cluster {
    program: PathBuf,
    dir: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn start(dir: &Path) -> Result<Cluster> {
        let program = std::env::current_exe()?.with_file_name("cox");
        ensure!(program.exists(), "{} is not there: cargo build --profile dist", program.display());
        for words in testkit::host::ISOLATED {
            run_command(Command::new("ip").args(words.split(' ')))?;
        }
        let cluster = Cluster { program, dir: tempfile::Builder::new().prefix("coxbench-").tempdir_in(dir)? };
        std::fs::create_dir_all(cluster.path("data/images"))?;
        let archive = testkit::images::busybox_image().docker_archive(IMAGE);
        std::fs::write(cluster.path("data/images/busybox.tar"), archive)?;
        cluster.cox(&["up", "--node-name=node-1", "--no-kubeconfig"])?;
        Ok(cluster)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn cox(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(words).env("COX_NAME", format!("coxbench-{}", std::process::id())).env("HOME", self.dir.path());
        run_command(command.env("COX_DATA_DIR", self.path("data")).env("COX_RUN_DIR", self.path("run")))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.cox(&["delete"]) {
            eprintln!("coxbench: cleaning up: {error:#}");
        }
    }
}

fn run_command(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn made<K: DeserializeOwned>(object: Value) -> Result<K> {
    Ok(serde_json::from_value(object)?)
}
