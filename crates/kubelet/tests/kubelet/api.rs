//! A real API server in this process, with the objects that controllers would have made.

use std::net::SocketAddr;
use std::path::Path;

use apiserver::{Config, Server, Storage};
use client::{Client, Handler};
use k8s_openapi::api::core::v1::{ConfigMap, Event, ServiceAccount};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) struct TestApi {
    handler: Handler,
    address: SocketAddr,
    /// Ends it with the test.
    _stop: DropGuard,
}

/// The bearer token of the user that is in a token file: whoever the kubeconfig of a node names.
const TOKEN: &str = "a-token-for-the-node";

impl TestApi {
    pub(crate) async fn start(dir: &Path, node: &str) -> Self {
        let key = dir.join("sa.key");
        std::fs::write(&key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let mut config = Config::new(Storage::Embedded(dir.join("store")));
        config.bind = ([127, 0, 0, 1], 0).into();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).unwrap();
        let (cert, cert_key) = (dir.join("tls.crt"), dir.join("tls.key"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&cert_key, made.signing_key.serialize_pem()).unwrap();
        config.tls_cert_file = Some(cert);
        config.tls_private_key_file = Some(cert_key);
        config.service_account_signing_key_file = Some(key.clone());
        config.service_account_key_files = vec![key];
        config.authorizers = vec![apiserver::Authorizer::Node, apiserver::Authorizer::Rbac];
        let tokens = dir.join("tokens.csv");
        std::fs::write(&tokens, format!("{TOKEN},system:node:{node},{node},system:nodes\n")).unwrap();
        config.token_auth_file = Some(tokens);
        let server = Server::new(config).await.unwrap();
        let stop = CancellationToken::new();
        let (handler, address) = (server.handler(), server.address());
        tokio::spawn(server.serve(stop.clone()));
        let api = TestApi { handler, address, _stop: stop.drop_guard() };
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

    /// For a kubelet in a process of its own.
    pub(crate) fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("https://{}", self.address), "insecure-skip-tls-verify": true}}],
            "users": [{"name": "node", "user": {"token": TOKEN}}],
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
