//! The whole scheduler against the real API server, in one process. Nodes are objects only: being bound is what counts.

#![allow(clippy::unwrap_used, reason = "tests")]

mod cases;
mod extending;
mod seen;
mod stress;
mod volumes;

use std::time::Duration;

use client::{Client, Handler, ListParams, Resource};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use scheduler::{Config, Configuration, run};
use seen::Seen;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often a test looks for what takes a moment, every 20 milliseconds: long enough for a busy machine.
const TRIES: usize = 6000;

/// An API server with a scheduler that can be ended and started again.
struct Cluster {
    client: Client,
    handler: Handler,
    /// What the scheduler that runs has seen.
    seen: Seen,
    configuration: Configuration,
    stop: CancellationToken,
    running: JoinSet<anyhow::Result<()>>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Cluster {
        Self::with(Configuration::default()).await
    }

    async fn with(configuration: Configuration) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        std::fs::write(path("tls.crt"), certificate.cert.pem()).unwrap();
        std::fs::write(path("tls.key"), certificate.signing_key.serialize_pem()).unwrap();
        let mut config = apiserver::Config::new(apiserver::Storage::Embedded(path("store")));
        config.bind = "127.0.0.1:0".parse().unwrap();
        (config.tls_cert_file, config.tls_private_key_file) = (Some(path("tls.crt")), Some(path("tls.key")));
        // No controllers run here that would make accounts or see nodes ready.
        config.disable_admission_plugins = vec!["ServiceAccount".into(), "TaintNodesByCondition".into()];
        config.authorizers = vec![apiserver::Authorizer::Rbac];
        let server = apiserver::Server::new(config).await.unwrap();
        let handler = server.handler();
        let mut cluster = Cluster {
            client: Client::in_process(handler.clone(), api::UserInfo::new("admin", &["system:masters"])),
            handler,
            seen: Seen::default(),
            configuration,
            stop: CancellationToken::new(),
            running: JoinSet::new(),
            _dir: dir,
        };
        cluster.start_scheduler();
        cluster
    }

    fn start_scheduler(&mut self) {
        self.stop = CancellationToken::new();
        self.seen = Seen::default();
        let user = api::UserInfo::new("system:kube-scheduler", &["system:authenticated"]);
        let client = Client::in_process(self.seen.noting(self.handler.clone()), user);
        let config = Config { configuration: self.configuration.clone(), ..Config::new(client) };
        self.running.spawn(run(config, self.stop.clone()));
    }

    async fn stop_scheduler(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap().unwrap();
        }
        self.seen = Seen::default();
    }

    /// Makes an object, and waits until the scheduler that runs has seen it: its watches do not wait for each other.
    async fn create<K: Resource + serde::Serialize>(&self, object: Value) -> K {
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        let object: K = api::codec::from_value(&object).unwrap();
        let api = match &namespace {
            Some(namespace) => self.client.namespaced::<K>(namespace),
            None => self.client.all::<K>(),
        };
        let made = api.create(&object).await.unwrap_or_else(|error| panic!("{}: {error}", K::KIND));
        self.seen.until(&made).await;
        made
    }

    async fn node(&self, name: &str, allocatable: Value) {
        let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": allocatable, "allocatable": allocatable}});
        self.create::<Node>(node.clone()).await;
        let patch = client::Patch::merge(json!({"status": node["status"]}));
        self.seen.until(&self.client.all::<Node>().patch_status(name, &patch).await.unwrap()).await;
    }

    async fn pod(&self, name: &str, spec: Value) -> Pod {
        let mut pod =
            json!({"metadata": {"name": name, "namespace": "default", "labels": {"app": name}}, "spec": spec});
        if pod["spec"]["containers"].is_null() {
            pod["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
        }
        self.create(pod).await
    }

    async fn get(&self, name: &str) -> Pod {
        self.client.namespaced::<Pod>("default").get(name).await.unwrap()
    }

    /// The pod's node, once it has one.
    async fn bound(&self, name: &str) -> String {
        let pod = self.until(name, |pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())).await;
        pod.spec.unwrap().node_name.unwrap()
    }

    /// The pod, once something holds of it.
    async fn until(&self, name: &str, holds: impl Fn(&Pod) -> bool) -> Pod {
        let mut last = None;
        for _ in 0..TRIES {
            let pod = self.get(name).await;
            if holds(&pod) {
                return pod;
            }
            last = Some(pod);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{name} does not come to be as it should: {:#?}", last.and_then(|pod| pod.status));
    }

    /// The event of a pod with this reason, once it is there.
    async fn event(&self, pod: &str, reason: &str) -> String {
        for _ in 0..TRIES {
            let events = self.client.namespaced::<Event>("default").list(&ListParams::default()).await.unwrap();
            let found = events.items.into_iter().find(|event| {
                event.involved_object.name.as_deref() == Some(pod) && event.reason.as_deref() == Some(reason)
            });
            if let Some(event) = found {
                return event.message.unwrap_or_default();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no event {reason} of {pod}");
    }
}

fn cpu(cores: &str) -> Value {
    json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": cores}}}])
}

fn offers(cpu: &str) -> Value {
    json!({"cpu": cpu, "memory": "4Gi", "pods": "110"})
}

fn condition(pod: &Pod, kind: &str) -> Option<(String, String, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == kind)?;
    Some((found.status.clone(), found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default()))
}

fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}
