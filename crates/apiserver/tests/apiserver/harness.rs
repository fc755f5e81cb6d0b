//! A server on a free port with its own keys and an empty store, and ways to talk to it.

use std::path::{Path, PathBuf};
use std::process::Command;

use apiserver::{Config, Handler, Server, Storage};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::Value;
pub(crate) use testkit::keys::{Authority, replace};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

pub(crate) struct Cluster {
    pub(crate) dir: std::sync::Arc<tempfile::TempDir>,
    pub(crate) handler: Handler,
    pub(crate) url: String,
    pub(crate) authority: Authority,
    stop: CancellationToken,
    serving: Option<tokio::task::JoinHandle<anyhow::Result<()>>>,
}

pub(crate) const ADMIN_TOKEN: &str = "admin-token";

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// A server whose claims and volumes go at once: no controller runs that would take their protection off.
    pub(crate) async fn unprotected() -> Self {
        Self::with(|config| config.disable_admission_plugins.push("StorageObjectInUseProtection".to_owned())).await
    }

    /// Starts a server whose configuration `change` may adjust.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::with_files(|_, config| change(config)).await
    }

    /// As [`Cluster::with`], with a directory for more files.
    pub(crate) async fn with_files(change: impl FnOnce(&Path, &mut Config)) -> Self {
        let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
        let authority = write_keys(dir.path());
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
        change(dir.path(), &mut config);
        let server = Server::new(config).await.unwrap();
        let url = format!("https://{}", server.address());
        let handler = server.handler();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server.serve(stop.clone()));
        let cluster = Self { dir, handler, url, authority, stop, serving: Some(serving) };
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

    fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(args).env("KUBECONFIG", self.kubeconfig()).env("HOME", self.dir.path());
        command
    }

    /// Runs Debian's kubectl with more environment; returns its exit code and all that it printed.
    pub(crate) async fn kubectl_output(&self, args: &[&str], environment: &[(&str, &str)]) -> (i32, String) {
        let mut command = self.kubectl_command(args);
        command.envs(environment.iter().copied());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    pub(crate) async fn kubectl_with(&self, args: &[&str], stdin: &str) -> Result<String, String> {
        let mut command = self.kubectl_command(args);
        command
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
        self.handle(request).await
    }

    /// A request through the in-process door, with whatever headers and identity it has.
    pub(crate) async fn handle(&self, request: Request<Bytes>) -> Response<apiserver::Body> {
        (self.handler)(request).await
    }

    /// A TLS connection for HTTP/1.1, with the certificate of `<identity>.crt` if given.
    pub(crate) async fn connect(&self, identity: Option<&str>) -> tokio_rustls::client::TlsStream<TcpStream> {
        let file = |name: String| self.dir.path().join(name);
        let builder = tls::client_builder().with_root_certificates(tls::load_roots(&file("ca.crt".into())).unwrap());
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let chain = tls::load_certificates(&file(format!("{name}.crt"))).unwrap();
                builder.with_client_auth_cert(chain, tls::load_key(&file(format!("{name}.key"))).unwrap()).unwrap()
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tcp = TcpStream::connect(self.url.strip_prefix("https://").unwrap()).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        tokio_rustls::TlsConnector::from(std::sync::Arc::new(config)).connect(name, tcp).await.unwrap()
    }

    /// Who the server takes the caller of curl for: the answer to a SelfSubjectReview.
    pub(crate) async fn whoami(&self, args: &[&str]) -> Result<Value, u16> {
        let mut all = vec!["-d", "{}", "-H", "Content-Type: application/json"];
        all.extend(args);
        let (code, body) = self.curl("/apis/authentication.k8s.io/v1/selfsubjectreviews", &all).await;
        let value: Value = serde_json::from_str(&body).unwrap_or(Value::Null);
        if code == 201 { Ok(value["status"]["userInfo"].clone()) } else { Err(code) }
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

fn write_keys(dir: &Path) -> Authority {
    let authority = testkit::keys::write(dir);
    let client = ExtendedKeyUsagePurpose::ClientAuth;
    authority.sign(dir, "ann", "ann", Some("dev"), client.clone());
    authority.sign(dir, "node", "system:node:n", Some("system:nodes"), client);
    authority
}
