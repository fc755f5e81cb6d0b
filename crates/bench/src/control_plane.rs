//! Our whole control plane in this process, for comparisons that need one: API server, controllers, scheduler.
//!
//! The transport is either the function call that `cox up` uses or HTTPS on loopback, as with separate processes.

use std::path::Path;

use anyhow::{Context as _, Result};
use apiserver::{Server, Storage};
use client::Client;
use client::kubeconfig::{AuthInfo, Cluster, Kubeconfig, Overrides};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How the components reach the API server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Call,
    Https,
}

/// A running control plane. Dropping it aborts it; `stop` ends it in order.
pub(crate) struct ControlPlane {
    /// The administrator.
    pub(crate) client: Client,
    pub(crate) stop: CancellationToken,
    tasks: JoinSet<Result<()>>,
}

/// How programs of other processes reach a server that was started here over HTTPS, its data in `dir`.
pub(crate) fn kubeconfig(client: &Client, dir: &Path) -> Result<String> {
    let url = client.server().context("served over HTTPS")?;
    Ok(format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: bench\n\
         clusters:\n- name: bench\n  cluster: {{server: '{url}', certificate-authority: '{}'}}\n\
         users:\n- name: bench\n  user: {{token: secret}}\n\
         contexts:\n- name: bench\n  context: {{cluster: bench, user: bench}}\n",
        dir.join("tls.crt").display()
    ))
}

impl ControlPlane {
    /// The API server alone, its data in `dir`.
    pub(crate) async fn start(dir: &Path, transport: Transport) -> Result<Self> {
        Self::start_with(dir, transport, |_| {}).await
    }

    /// As `start`, with settings that `change` makes.
    pub(crate) async fn start_with(
        dir: &Path,
        transport: Transport,
        change: impl FnOnce(&mut apiserver::Config),
    ) -> Result<Self> {
        let path = |name: &str| dir.join(name);
        let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()])?;
        std::fs::write(path("tls.crt"), certificate.cert.pem())?;
        std::fs::write(path("tls.key"), certificate.signing_key.serialize_pem())?;
        std::fs::write(path("tokens.csv"), "secret,admin,1,system:masters\n")?;
        let mut config = apiserver::Config::new(Storage::Embedded(path("store")));
        config.bind = "127.0.0.1:0".parse()?;
        config.tls_cert_file = Some(path("tls.crt"));
        config.tls_private_key_file = Some(path("tls.key"));
        config.token_auth_file = Some(path("tokens.csv"));
        config.authorizers = vec![apiserver::Authorizer::Node, apiserver::Authorizer::Rbac];
        config.runtime_config = apiserver::RuntimeConfig(vec![("metrics.k8s.io/v1beta1".to_owned(), true)]);
        change(&mut config);
        let server = Server::new(config).await.context("starting the API server")?;
        let client = match transport {
            Transport::Call => Client::in_process(
                server.handler(),
                api::UserInfo::new("admin", &["system:masters", "system:authenticated"]),
            )
            .traced(server.trace(), "coxbench"),
            Transport::Https => {
                let cluster = Cluster {
                    server: Some(format!("https://{}", server.address())),
                    certificate_authority: Some(path("tls.crt").display().to_string()),
                    ..Cluster::default()
                };
                let admin = AuthInfo { token: Some("secret".into()), ..AuthInfo::default() };
                Client::from_kubeconfig(&Kubeconfig::single("bench", cluster, admin, None), &Overrides::default())?
            }
        };
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let stopped = stop.clone();
        tasks.spawn(async move { server.serve(stopped).await });
        Ok(Self { client, stop, tasks })
    }

    /// Adds every controller.
    pub(crate) fn with_controllers(mut self) -> Result<Self> {
        let client =
            self.client.with_user(api::UserInfo::new("system:kube-controller-manager", &["system:authenticated"]));
        let config = controllers::Config::new(client).with_cluster_cidr("10.0.0.0/10")?;
        self.tasks.spawn(controllers::run(config, self.stop.clone()));
        Ok(self)
    }

    /// Adds the scheduler.
    pub(crate) fn with_scheduler(mut self) -> Self {
        let client = self.client.with_user(api::UserInfo::new("system:kube-scheduler", &["system:authenticated"]));
        let config = ::scheduler::Config::new(client);
        self.tasks.spawn(::scheduler::run(config, self.stop.clone()));
        self
    }

    pub(crate) async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}
