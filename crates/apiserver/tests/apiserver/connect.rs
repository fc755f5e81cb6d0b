//! Logs and upgrades, passed on to a kubelet that is a few lines of TLS here.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::harness::{ADMIN_TOKEN, Cluster};

/// Answers `/containerLogs` with text, `/exec` with an upgrade and an echo, `/attach` with a refusal that keeps the
/// connection open.
async fn kubelet(cluster: &Cluster) -> u16 {
    let file = |name: &str| cluster.dir.path().join(name);
    let certificates = vec![CertificateDer::from_pem_file(file("server.crt")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut tls = acceptor.accept(tcp).await.unwrap();
                let head = read_head(&mut tls).await;
                assert!(!head.to_lowercase().contains("authorization"), "credentials were passed on: {head}");
                if head.starts_with("GET /containerLogs/default/p/c?tailLines=5 ") {
                    // Upstream's answers 406 to who wants JSON only.
                    assert!(!head.to_lowercase().contains("\r\naccept"), "{head}");
                    tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\nhello\n")
                        .await
                        .unwrap();
                } else if head.starts_with("GET /containerLogs/default/p/c?tailLines=7 ") {
                    let elsewhere =
                        "HTTP/1.1 302 Found\r\nlocation: https://elsewhere.example/\r\ncontent-length: 0\r\n\r\n";
                    tls.write_all(elsewhere.as_bytes()).await.unwrap();
                } else if head.starts_with("POST /exec/default/p/c?output=1&command=ls")
                    || head.starts_with("POST /portForward/default/p?port=80&port=443 ")
                {
                    tls.write_all(
                        b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n",
                    )
                    .await
                    .unwrap();
                    let mut buffer = [0; 64];
                    let read = tls.read(&mut buffer).await.unwrap();
                    tls.write_all(&buffer[..read]).await.unwrap();
                } else {
                    tls.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
                    let mut smuggled = [0; 64];
                    let read = tls.read(&mut smuggled).await.unwrap_or(0);
                    assert_eq!(read, 0, "bytes after a refused upgrade: {:?}", &smuggled[..read]);
                }
                let _ = tls.shutdown().await;
            });
        }
    });
    port
}

async fn read_head(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn cluster_with_pod() -> Cluster {
    let cluster = Cluster::start().await;
    let port = kubelet(&cluster).await;
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let (code, answer) = cluster.send("POST", "/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    assert_eq!(code, 201, "{answer}");
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    let (code, answer) =
        cluster.send_raw("PATCH", "/api/v1/nodes/n/status", "application/merge-patch+json", status).await;
    assert_eq!(code, 200, "{}", String::from_utf8_lossy(&answer));
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    let (code, answer) = cluster.send("POST", "/api/v1/namespaces/default/pods", pod).await;
    assert_eq!(code, 201, "{answer}");
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_come_from_the_kubelet() {
    let cluster = cluster_with_pod().await;
    let (code, log) =
        cluster.send_raw("GET", "/api/v1/namespaces/default/pods/p/log?tailLines=5", "", Value::Null).await;
    assert_eq!((code, &log[..]), (200, &b"hello\n"[..]));
    let token = format!("Authorization: Bearer {ADMIN_TOKEN}");
    let only_json = ["--header", &token, "--header", "Accept: application/json"];
    let asked = cluster.curl("/api/v1/namespaces/default/pods/p/log?tailLines=5", &only_json).await;
    assert_eq!(asked, (200, "hello\n".to_owned()));
    let (code, _) = cluster.send("GET", "/api/v1/namespaces/default/pods/p/log?container=x", Value::Null).await;
    assert_eq!(code, 400);
}

/// A node that says that its kubelet is where an API server listens gets nobody what API servers may do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_kubelets_address_does_not_lead_back_with_the_servers_rights() {
    let cluster = Cluster::with_files(|dir, config| {
        let file = |name: &str| Some(dir.join(name));
        config.kubelet_client_certificate = file("admin.crt");
        config.kubelet_client_key = file("admin.key");
        config.kubelet_certificate_authority = file("ca.crt");
    })
    .await;
    let port: u16 = cluster.url.rsplit_once(':').unwrap().1.parse().unwrap();
    assert_eq!(cluster.send("POST", "/api/v1/nodes", json!({"metadata": {"name": "n"}})).await.0, 201);
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    let patch = "application/merge-patch+json";
    assert_eq!(cluster.send_raw("PATCH", "/api/v1/nodes/n/status", patch, status).await.0, 200);
    for path in ["/api/v1/secrets", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/version"] {
        let (code, answer) = cluster.send_raw("GET", &format!("/api/v1/nodes/n/proxy{path}"), "", Value::Null).await;
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(code, 403, "{path}: {answer}");
        assert!(answer.contains("was led to an API server"), "{path}: {answer}");
    }
}

/// A kubelet that was taken over must not send clients of ours elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_kubelets_redirection_ends_here() {
    let cluster = cluster_with_pod().await;
    for path in [
        "/api/v1/namespaces/default/pods/p/log?tailLines=7",
        "/api/v1/nodes/n/proxy/containerLogs/default/p/c?tailLines=7",
    ] {
        let response = cluster.request("GET", path, "", Default::default(), "admin", &["system:masters"]).await;
        assert_eq!(response.status().as_u16(), 502, "{path}");
        assert!(!response.headers().contains_key("location"), "{path}");
    }
}

/// Sends an upgrade request over TLS and HTTP/1.1, then `extra` bytes; returns what came back.
async fn upgrade(cluster: &Cluster, path: &str, extra: &[u8]) -> String {
    let mut tls = cluster.connect(None).await;
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ADMIN_TOKEN}\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n"
    );
    tls.write_all(request.as_bytes()).await.unwrap();
    let mut answer = read_head(&mut tls).await;
    tls.write_all(extra).await.unwrap();
    let mut buffer = [0; 256];
    let wait = tokio::time::timeout(std::time::Duration::from_secs(10), tls.read(&mut buffer));
    let read = wait.await.expect("an answer in time").unwrap_or(0);
    answer.push_str(&String::from_utf8_lossy(&buffer[..read]));
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_are_tunnelled_only_after_the_kubelet_agreed() {
    let cluster = cluster_with_pod().await;
    let pod = "/api/v1/namespaces/default/pods/p";
    let answer = upgrade(&cluster, &format!("{pod}/exec?command=ls&stdout=1"), b"ping").await;
    assert!(answer.starts_with("HTTP/1.1 101") && answer.ends_with("ping"), "{answer}");
    // Kubelets call it `port`.
    let answer = upgrade(&cluster, &format!("{pod}/portforward?ports=80,443"), b"ping").await;
    assert!(answer.starts_with("HTTP/1.1 101") && answer.ends_with("ping"), "{answer}");
    // A refusal ends it: what the client sends next is a new request to us, not bytes for the kubelet.
    let smuggled = b"GET /pods HTTP/1.1\r\nhost: kubelet\r\n\r\n";
    let answer = upgrade(&cluster, &format!("{pod}/attach?stdout=1"), smuggled).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}
