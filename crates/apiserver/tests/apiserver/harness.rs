//! A server on a free port with its own keys and an empty store, and ways to talk to it.

use std::path::PathBuf;
use std::process::Command;

use apiserver::{Config, Handler, Server, Storage};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub(crate) struct Cluster {
    pub(crate) dir: std::sync::Arc<tempfile::TempDir>,
    pub(crate) handler: Handler,
    pub(crate) url: String,
    stop: CancellationToken,
    serving: Option<tokio::task::JoinHandle<anyhow::Result<()>>>,
}

pub(crate) const ADMIN_TOKEN: &str = "admin-token";

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Starts a server whose configuration `change` may adjust.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
        write_keys(dir.path());
        std::fs::write(
            dir.path().join("tokens.csv"),
            format!("{ADMIN_TOKEN},admin,1,system:masters\nann-token,ann,2\nbob-token,bob,3,dev\n"),
        )
        .unwrap();
        let file = |name: &str| Some(dir.path().join(name));
        let mut config = Config::new(Storage::Embedded(dir.path().join("store")));
        config.bind = "127.0.0.1:0".parse().unwrap();
        config.tls_cert_file = file("server.crt");
        config.tls_private_key_file = file("server.key");
        config.client_ca_file = file("ca.crt");
        config.token_auth_file = file("tokens.csv");
        config.service_account_signing_key_file = file("sa.key");
        change(&mut config);
        let server = Server::new(config).await.unwrap();
        let url = format!("https://{}", server.address());
        let handler = server.handler();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server.serve(stop.clone()));
        let cluster = Self { dir, handler, url, stop, serving: Some(serving) };
        cluster.write_kubeconfig();
        cluster
    }

    /// Stops the server and waits until it has finished.
    pub(crate) async fn stop(mut self) -> std::sync::Arc<tempfile::TempDir> {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            serving.await.unwrap().unwrap();
        }
        self.handler = std::sync::Arc::new(|_| Box::pin(std::future::pending()));
        self.dir.clone()
    }

    fn write_kubeconfig(&self) {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: t\nclusters:\n- name: t\n  cluster:\n    server: {}\n    certificate-authority: {}\n\
             users:\n- name: t\n  user:\n    client-certificate: {}\n    client-key: {}\ncontexts:\n- name: t\n  context:\n    cluster: t\n    user: t\n",
            self.url,
            path("ca.crt"),
            path("admin.crt"),
            path("admin.key")
        );
        std::fs::write(self.kubeconfig(), text).unwrap();
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// Runs Debian's kubectl; returns what it printed, or what it complained about.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.kubectl_with(args, "").await
    }

    pub(crate) async fn kubectl_with(&self, args: &[&str], stdin: &str) -> Result<String, String> {
        let mut command = Command::new("kubectl");
        command
            .args(args)
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", self.dir.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let stdin = stdin.to_owned();
        tokio::task::spawn_blocking(move || {
            use std::io::Write;
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
        })
        .await
        .unwrap()
    }

    /// A request through the in-process door as a master; JSON in and out.
    pub(crate) async fn send(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let (code, bytes) = self.send_raw(method, path, "application/json", body).await;
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub(crate) async fn send_raw(&self, method: &str, path: &str, content_type: &str, body: Value) -> (u16, Bytes) {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let response = self.request(method, path, content_type, body, "admin", &["system:masters"]).await;
        let code = response.status().as_u16();
        (code, response.into_body().collect().await.unwrap().to_bytes())
    }

    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Bytes,
        user: &str,
        groups: &[&str],
    ) -> Response<apiserver::Body> {
        let mut request =
            Request::builder().method(method).uri(path).header("content-type", content_type).body(body).unwrap();
        request.extensions_mut().insert(api::UserInfo::new(user, groups));
        (self.handler)(request).await
    }

    /// curl over TLS; returns the status code and the body.
    pub(crate) async fn curl(&self, path: &str, args: &[&str]) -> (u16, String) {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "-w", "\n%{http_code}", "--cacert"])
            .arg(self.dir.path().join("ca.crt"))
            .args(args)
            .arg(format!("{}{path}", self.url));
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').unwrap_or(("", "0"));
        (code.parse().unwrap_or(0), body.to_owned())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn write_keys(dir: &std::path::Path) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "ca");
    let ca_cert = ca.self_signed(&ca_key).unwrap();
    std::fs::write(dir.join("ca.crt"), ca_cert.pem()).unwrap();
    let issuer = Issuer::new(ca, ca_key);
    let leaf = |file: &str, name: &str, group: Option<&str>, usage: ExtendedKeyUsagePurpose| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(dir.join(format!("{file}.crt")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    };
    leaf("server", "apiserver", None, ExtendedKeyUsagePurpose::ServerAuth);
    leaf("admin", "admin", Some("system:masters"), ExtendedKeyUsagePurpose::ClientAuth);
    leaf("ann", "ann", Some("dev"), ExtendedKeyUsagePurpose::ClientAuth);
    std::fs::write(dir.join("sa.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
}
