//! A control plane in this process: the real API server with RBAC on, the whole manager, the scheduler, hollow nodes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use apiserver::{Server, Storage};
use client::kubeconfig::{AuthInfo, Cluster as KubeCluster, Kubeconfig, Overrides};
use client::{Client, Handler, ListParams, Resource};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) struct Cluster {
    /// The administrator.
    pub(crate) client: Client,
    pub(crate) handler: Handler,
    pub(crate) url: String,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) stop: CancellationToken,
    tasks: tokio::task::JoinSet<()>,
}

/// Long enough for a busy machine; a test that works never waits for it.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(240);

/// The bearer tokens of the test cluster: name of the user, token, groups.
const USERS: &str = "secret,admin,1,system:masters\nmanager,system:kube-controller-manager,2,\n";

impl Cluster {
    /// Everything, with `nodes` hollow nodes called `node-0` and so on.
    pub(crate) async fn start(nodes: usize) -> Self {
        let mut cluster = Self::without_manager(nodes).await;
        let config = cluster.manager();
        cluster.spawn(controllers::run(config, cluster.stop.clone()));
        cluster.until_pods_can_be_made().await;
        cluster
    }

    /// API server, scheduler and nodes only.
    pub(crate) async fn without_manager(nodes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        std::fs::write(path("tls.crt"), certificate.cert.pem()).unwrap();
        std::fs::write(path("tls.key"), certificate.signing_key.serialize_pem()).unwrap();
        std::fs::write(path("tokens.csv"), USERS).unwrap();
        std::fs::write(path("sa.key"), rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let mut config = apiserver::Config::new(Storage::Embedded(path("store")));
        config.bind = "127.0.0.1:0".parse().unwrap();
        config.tls_cert_file = Some(path("tls.crt"));
        config.tls_private_key_file = Some(path("tls.key"));
        config.token_auth_file = Some(path("tokens.csv"));
        config.service_account_key_files = vec![path("sa.key")];
        config.service_account_signing_key_file = Some(path("sa.key"));
        config.authorizers = vec![apiserver::Authorizer::Rbac];
        let server = Server::new(config).await.unwrap();
        let url = format!("https://{}", server.address());
        let handler = server.handler();
        let client = Client::in_process(handler.clone(), api::UserInfo::new("admin", &["system:masters"]));
        let stop = CancellationToken::new();
        let mut cluster = Self { client, handler, url, dir, stop, tasks: tokio::task::JoinSet::new() };
        let stop = cluster.stop.clone();
        cluster.spawn(async move { server.serve(stop).await });
        let scheduler = scheduler::Config::new(cluster.user("system:kube-scheduler"));
        cluster.spawn(scheduler::run(scheduler, cluster.stop.clone()));
        let mut config =
            sim::Config::new(cluster.client.clone(), nodes).with_capacity("pods", "10000").with_capacity("cpu", "1k");
        config.name_prefix = "node-".into();
        cluster.spawn(sim::run(config, cluster.stop.clone()));
        if nodes > 0 {
            cluster.until::<Node>("", &format!("node-{}", nodes - 1), "registered", |_| true).await;
        }
        cluster
    }

    /// The configuration of a manager in this process.
    pub(crate) fn manager(&self) -> controllers::Config {
        let client = self.user("system:kube-controller-manager");
        let mut config = controllers::Config::new(client).with_cluster_cidr("10.42.0.0/16").unwrap();
        config.root_ca = Some("PEM".into());
        config.service_account_key = Some(std::fs::read_to_string(self.path("sa.key")).unwrap());
        config.controllers = ["*", "bootstrapsigner", "tokencleaner"].map(str::to_owned).into();
        config
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.tasks.spawn(async move { task.await.unwrap() });
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn user(&self, name: &str) -> Client {
        Client::in_process(self.handler.clone(), api::UserInfo::new(name, &["system:authenticated"]))
    }

    /// A kubeconfig for a bearer token over HTTPS.
    pub(crate) fn kubeconfig(&self, token: &str) -> Kubeconfig {
        let cluster = KubeCluster {
            server: Some(self.url.clone()),
            certificate_authority: Some(self.path("tls.crt").display().to_string()),
            ..KubeCluster::default()
        };
        Kubeconfig::single("t", cluster, AuthInfo { token: Some(token.into()), ..AuthInfo::default() }, None)
    }

    pub(crate) fn https(&self, token: &str) -> Client {
        Client::from_kubeconfig(&self.kubeconfig(token), &Overrides::default()).unwrap()
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let ended = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.unwrap()
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, ended).await.expect("everything ends when told to");
    }

    pub(crate) async fn apply<K: Resource + serde::Serialize>(&self, object: Value) -> K {
        let object: K = api::codec::from_value(&object).unwrap();
        self.client.all::<K>().create(&object).await.unwrap_or_else(|error| panic!("{}: {error}", K::KIND))
    }

    /// A namespace in which pods can be made.
    pub(crate) async fn namespace(&self, name: &str) -> Namespace {
        let made = self.apply::<Namespace>(json!({ "metadata": { "name": name } })).await;
        self.until::<ServiceAccount>(name, "default", "there", |_| true).await;
        made
    }

    /// Pods of the namespace `default` are refused until a manager has made its ServiceAccount.
    pub(crate) async fn until_pods_can_be_made(&self) {
        self.until::<ServiceAccount>("default", "default", "there", |_| true).await;
    }

    pub(crate) async fn list<K: Resource>(&self, namespace: &str) -> Vec<K> {
        self.client.namespaced::<K>(namespace).list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until what the API says about `name` satisfies `done`.
    pub(crate) async fn until<K: Resource + serde::Serialize>(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        done: impl Fn(&K) -> bool,
    ) -> K {
        let api = self.client.namespaced::<K>(namespace);
        let found = patiently(async || api.get_opt(name).await.unwrap().filter(|object| done(object))).await;
        match found {
            Some(object) => object,
            None => {
                let last = serde_json::to_string_pretty(&api.get_opt(name).await.unwrap()).unwrap();
                panic!("{} {name} never {what}: {last}\npods {:?}", K::KIND, self.some_pods(namespace).await)
            }
        }
    }

    /// What a failed test shows of a namespace's pods.
    async fn some_pods(&self, namespace: &str) -> Vec<String> {
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
        let listed = ListParams { limit: Some(20), ..ListParams::default() };
        let pods = self.client.namespaced::<Pod>(namespace).list(&listed).await.unwrap().items;
        pods.iter().map(|pod| format!("{:?} {:?}", pod.metadata.name, phase(pod))).collect()
    }

    /// Waits until no object of `K` is left in the namespace.
    pub(crate) async fn until_none<K: Resource + serde::Serialize>(&self, namespace: &str) {
        self.until_left::<K>(namespace, 0).await;
    }

    pub(crate) async fn until_left<K: Resource + serde::Serialize>(&self, namespace: &str, wanted: usize) {
        if patiently(async || (self.count::<K>(namespace).await == wanted).then_some(())).await.is_none() {
            let left = self.list::<K>(namespace).await;
            panic!("{} {} left: {}", left.len(), K::KIND, serde_json::to_string_pretty(&left.first()).unwrap());
        }
    }

    /// How many objects of `K` there are, without fetching them all.
    pub(crate) async fn count<K: Resource>(&self, namespace: &str) -> usize {
        let one = ListParams { limit: Some(1), ..ListParams::default() };
        let list = self.client.namespaced::<K>(namespace).list(&one).await.unwrap();
        list.items.len() + usize::try_from(list.metadata.remaining_item_count.unwrap_or_default()).unwrap()
    }

    /// Waits until `name` is gone.
    pub(crate) async fn until_gone<K: Resource + serde::Serialize>(&self, namespace: &str, name: &str) {
        let api = self.client.namespaced::<K>(namespace);
        if patiently(async || api.get_opt(name).await.unwrap().is_none().then_some(())).await.is_none() {
            panic!("{} left: {}", K::KIND, serde_json::to_string_pretty(&api.get(name).await.unwrap()).unwrap());
        }
    }
}

/// Asks until there is an answer; `None` when there never is one.
pub(crate) async fn patiently<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        let answer = ask().await;
        if answer.is_some() || Instant::now() > deadline {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Reads, changes and writes, again when a controller wrote in between: what every client does.
pub(crate) async fn until_no_conflict<T>(mut revise: impl AsyncFnMut() -> Result<T, client::Error>) -> T {
    loop {
        match revise().await {
            Err(error) if error.is_conflict() => {}
            answer => return answer.unwrap(),
        }
    }
}

pub(crate) fn template(app: &str, image: &str, restart: &str) -> Value {
    json!({ "metadata": { "labels": { "app": app } }, "spec": { "restartPolicy": restart, "containers": [{ "name": "c", "image": image, "ports": [{ "containerPort": 80 }] }] } })
}

pub(crate) fn deployment(name: &str, replicas: i32) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": name } }, "template": template(name, "nginx:1", "Always") },
    })
}

/// The patch that gives every container of a workload this image.
pub(crate) fn image(image: &str) -> client::Patch {
    client::Patch::strategic(
        json!({ "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } } }),
    )
}

pub(crate) fn is_rolled_out(deployment: &Deployment, replicas: i32) -> bool {
    let status = deployment.status.clone().unwrap_or_default();
    status.observed_generation == deployment.metadata.generation
        && [status.replicas, status.updated_replicas, status.available_replicas]
            .iter()
            .all(|count| count.unwrap_or_default() == replicas)
}
