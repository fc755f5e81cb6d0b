//! The server both sides talk to: ours, in this process, over TLS, with the objects that scenarios ask for.

use std::path::Path;

use apiserver::{Config, Handler, Storage};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) struct Server {
    dir: tempfile::TempDir,
    pub(crate) url: String,
    handler: Handler,
    stop: CancellationToken,
}

impl Server {
    pub(crate) async fn start() -> Server {
        let dir = tempfile::tempdir().unwrap();
        testkit::keys::write(dir.path());
        let file = |name: &str| Some(dir.path().join(name));
        let mut config = Config::new(Storage::Embedded(dir.path().join("store")));
        config.bind = "127.0.0.1:0".parse().unwrap();
        config.tls_cert_file = file("server.crt");
        config.tls_private_key_file = file("server.key");
        config.client_ca_file = file("ca.crt");
        config.service_account_signing_key_file = file("sa.key");
        config.authorizers = vec![apiserver::Authorizer::Rbac];
        // Pods are made without a controller that would give namespaces their account.
        config.disable_admission_plugins = vec!["ServiceAccount".to_owned()];
        let server = apiserver::Server::new(config).await.unwrap();
        let url = format!("https://{}", server.address());
        let handler = server.handler();
        let stop = CancellationToken::new();
        tokio::spawn(server.serve(stop.clone()));
        Server { dir, url, handler, stop }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn namespace(&self, name: &str) {
        self.put("", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }

    /// Creates an object, or replaces it, then its status when it has one.
    pub(crate) async fn put(&self, namespace: &str, object: Value) {
        let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let root = if api_version.contains('/') { "/apis" } else { "/api" };
        let (_, list) = self.send("GET", &format!("{root}/{api_version}"), &Value::Null).await;
        let row = list["resources"].as_array().unwrap().iter();
        let row = row
            .filter(|r| !r["name"].as_str().unwrap().contains('/'))
            .find(|r| r["kind"] == kind)
            .unwrap_or_else(|| panic!("no {kind} in {api_version}"));
        let place = if row["namespaced"] == true { format!("/namespaces/{namespace}") } else { String::new() };
        let collection = format!("{root}/{api_version}{place}/{}", row["name"].as_str().unwrap());
        let path = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap());
        let (mut code, mut made) = self.send("POST", &collection, &object).await;
        if code == 409 {
            (code, made) = self.send("PUT", &path, &object).await;
        }
        assert!(code < 300, "{kind} {path}: {made}");
        if object["status"].is_object() {
            made["status"] = object["status"].clone();
            let (code, answer) = self.send("PUT", &format!("{path}/status"), &made).await;
            assert!(code < 300, "{path}/status: {answer}");
        }
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let mut request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(body)
            .unwrap();
        request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
        let response = (self.handler)(request).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
