//! A real API server in this process, with the objects that controllers would have made.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use apiserver::{Config, Server, Storage};
use client::{Client, Handler};
use k8s_openapi::api::core::v1::{ConfigMap, Event, ServiceAccount};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) struct TestApi {
    handler: Handler,
    address: SocketAddr,
    dir: PathBuf,
    /// Ends it with the test.
    _stop: DropGuard,
}

/// Bearer tokens of the users in a token file: the node, and one that is not a node yet.
pub(crate) const NODE_TOKEN: &str = "a-token-for-the-node";
pub(crate) const BOOTSTRAP_TOKEN: &str = "a-token-for-a-start";

impl TestApi {
    pub(crate) async fn start(dir: &Path, node: &str) -> Self {
        testkit::keys::write(dir);
        let mut config = Config::new(Storage::Embedded(dir.join("store")));
        config.bind = ([127, 0, 0, 1], 0).into();
        config.tls_cert_file = Some(dir.join("server.crt"));
        config.tls_private_key_file = Some(dir.join("server.key"));
        config.client_ca_file = Some(dir.join("ca.crt"));
        config.service_account_signing_key_file = Some(dir.join("sa.key"));
        config.service_account_key_files = vec![dir.join("sa.key")];
        config.authorizers = vec![apiserver::Authorizer::Node, apiserver::Authorizer::Rbac];
        let tokens = dir.join("tokens.csv");
        let users = format!(
            "{NODE_TOKEN},system:node:{node},{node},system:nodes\n{BOOTSTRAP_TOKEN},system:bootstrap:test,test,system:bootstrappers\n"
        );
        std::fs::write(&tokens, users).unwrap();
        config.token_auth_file = Some(tokens);
        let server = Server::new(config).await.unwrap();
        let stop = CancellationToken::new();
        let (handler, address) = (server.handler(), server.address());
        tokio::spawn(server.serve(stop.clone()));
        let api = TestApi { handler, address, dir: dir.to_path_buf(), _stop: stop.drop_guard() };
        let client = api.client();
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        client.namespaced("default").create(&account).await.unwrap();
        let authority: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "test"}}))
                .unwrap();
        client.namespaced("default").create(&authority).await.unwrap();
        api
    }

    /// May do everything.
    pub(crate) fn client(&self) -> Client {
        self.client_of("admin", "system:masters")
    }

    /// May do what a kubelet may.
    pub(crate) fn node_client(&self, node: &str) -> Client {
        self.client_of(&format!("system:node:{node}"), "system:nodes")
    }

    /// The authority whose certificates the server takes: certificate and key in PEM.
    pub(crate) fn authority(&self) -> (String, String) {
        let read = |name: &str| std::fs::read_to_string(self.dir.join(name)).unwrap();
        (read("ca.crt"), read("ca.key"))
    }

    /// For a kubelet in a process of its own.
    pub(crate) fn kubeconfig(&self, token: &str) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("https://{}", self.address), "certificate-authority": self.dir.join("ca.crt")}}],
            "users": [{"name": "node", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "node"}}],
        })
        .to_string()
    }

    fn client_of(&self, name: &str, group: &str) -> Client {
        let groups = vec![group.to_string(), "system:authenticated".to_string()];
        Client::in_process(self.handler.clone(), api::UserInfo { name: name.into(), groups, ..Default::default() })
    }

    pub(crate) async fn events(&self) -> Vec<Event> {
        self.client().all::<Event>().list(&Default::default()).await.unwrap().items
    }
}
