//! One large Deployment through its whole life on hollow nodes: scaled up, rolled, rolled back, and deleted with each propagation.
//!
//! Every step is timed until the API shows it done, and at the end nothing may be left: an orphan is an error, not a figure.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use client::{Client, DeleteParams, ListParams, Patch, Resource};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::Args;
use crate::control_plane::{ControlPlane, Transport};
use crate::report::{self, Better};

const NAMESPACE: &str = "default";
const NAME: &str = "web";
/// How often the API is asked whether a step is done.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A step that has not ended by then never will.
const STEP_TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) async fn run(args: &Args) -> Result<()> {
    let pods = args.pods.unwrap_or(if args.quick { 50 } else { 5000 });
    let dir = tempfile::tempdir_in(&args.dir)?;
    let cluster = ControlPlane::start(dir.path(), Transport::Call).await?.with_controllers()?.with_scheduler();
    let nodes = tokio::spawn(sim::run(
        sim::Config::new(cluster.client.clone(), pods.div_ceil(50)).with_capacity("pods", "200"),
        cluster.stop.clone(),
    ));
    let lived = Life { client: cluster.client.clone(), pods }.live().await;
    cluster.stop().await?;
    nodes.await??;
    lived
}

struct Life {
    client: Client,
    pods: usize,
}

impl Life {
    async fn live(&self) -> Result<()> {
        let api = self.client.namespaced::<Deployment>(NAMESPACE);
        let replicas = |count: usize| Patch::merge(json!({ "spec": { "replicas": count } }));
        let image = |name: &str| {
            let containers = json!([{ "name": "web", "image": name }]);
            Patch::strategic(json!({ "spec": { "template": { "spec": { "containers": containers } } } }))
        };
        api.create(&deployment(0)?).await?;
        self.time("scale", self.until_rolled_out(), api.patch(NAME, &replicas(self.pods))).await?;
        self.time("roll", self.until_rolled_out(), api.patch(NAME, &image("nginx:2"))).await?;
        self.time("roll-back", self.until_rolled_out(), api.patch(NAME, &image("nginx:1"))).await?;
        let sets = self.count::<ReplicaSet>().await?;
        ensure!(sets == 2, "{sets} ReplicaSets: rolling back uses the first one again");

        self.time("delete-orphan", self.until_gone(), api.delete(NAME, &DeleteParams::orphan())).await?;
        let alive = self.count::<Pod>().await?;
        // Some of the roll before may still be on their way out.
        ensure!(alive >= self.pods, "{alive} of {} orphans live on", self.pods);
        let again = deployment(self.pods)?;
        self.time("adopt", self.until_rolled_out(), api.create(&again)).await?;
        self.time("delete-background", self.until_nothing(), api.delete(NAME, &DeleteParams::background())).await?;

        self.time("make", self.until_rolled_out(), api.create(&again)).await?;
        self.time("delete-foreground", self.until_gone(), api.delete(NAME, &DeleteParams::foreground())).await?;
        let left = (self.count::<ReplicaSet>().await?, self.count::<Pod>().await?);
        ensure!(left == (0, 0), "the owner went before {left:?} of its dependents");
        Ok(())
    }

    /// Asks for something and waits until it is done.
    async fn time<T>(
        &self,
        step: &str,
        done: impl Future<Output = Result<()>>,
        ask: impl Future<Output = Result<T, client::Error>>,
    ) -> Result<()> {
        let began = Instant::now();
        ask.await.with_context(|| step.to_owned())?;
        let done = tokio::time::timeout(STEP_TIMEOUT, done).await;
        done.with_context(|| format!("{step} takes more than {STEP_TIMEOUT:?}"))??;
        let rate = self.pods as f64 / began.elapsed().as_secs_f64();
        let memory = report::resident(std::process::id())? / (1 << 20);
        let parameters = format!("pods={} rss_mib={memory}", self.pods);
        report::line(&format!("lifecycle-{step}"), parameters, "pods/s", rate, None, Better::More);
        Ok(())
    }

    async fn until_rolled_out(&self) -> Result<()> {
        let (api, wanted) = (self.client.namespaced::<Deployment>(NAMESPACE), i32::try_from(self.pods)?);
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let found = api.get(NAME).await?;
            let status = found.status.unwrap_or_default();
            let counts = [status.replicas, status.updated_replicas, status.available_replicas];
            if status.observed_generation == found.metadata.generation && counts == [Some(wanted); 3] {
                return Ok(());
            }
        }
    }

    async fn until_gone(&self) -> Result<()> {
        let api = self.client.namespaced::<Deployment>(NAMESPACE);
        while api.get_opt(NAME).await?.is_some() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn until_nothing(&self) -> Result<()> {
        self.until_gone().await?;
        while self.count::<ReplicaSet>().await? + self.count::<Pod>().await? > 0 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// How many objects there are, without fetching them all.
    async fn count<K: Resource>(&self) -> Result<usize> {
        let one = ListParams { limit: Some(1), ..ListParams::default() };
        let list = self.client.namespaced::<K>(NAMESPACE).list(&one).await?;
        Ok(list.items.len() + usize::try_from(list.metadata.remaining_item_count.unwrap_or_default())?)
    }
}

fn deployment(replicas: usize) -> Result<Deployment> {
    let labels = json!({ "app": NAME });
    let container = json!({ "name": "web", "image": "nginx:1", "resources": { "requests": { "cpu": "10m" } } });
    let object: Value = json!({
        "metadata": { "name": NAME, "namespace": NAMESPACE },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [container], "terminationGracePeriodSeconds": 1 } },
        },
    });
    Ok(serde_json::from_value(object)?)
}
