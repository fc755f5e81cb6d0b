//! TLS to backends: a policy says whom to trust, and nobody else is.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http::Response;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::harness::{full, local, until, until_code, with_gateway};

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";

/// A backend with a certificate for a host, which is its own authority; it answers with the version that was spoken.
async fn secure(host: &str) -> (SocketAddr, String) {
    let keys = rcgen::generate_simple_self_signed(vec![host.to_owned()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::Pkcs8(keys.signing_key.serialize_der().into());
    let config = tls::server_builder().with_no_client_auth().with_single_cert(vec![keys.cert.der().clone()], key);
    let mut config = config.unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((local(2), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let asked = stream.get_ref().1.server_name().map(str::to_owned);
                let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let seen = json!({"version": format!("{:?}", request.version()), "name": asked});
                    async move { Ok::<_, Infallible>(Response::new(full(seen.to_string()))) }
                });
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
            });
        }
    });
    (address, keys.cert.pem())
}

fn policy(service: &str, validation: Value) -> Value {
    json!({"apiVersion": GATEWAY_API, "kind": "BackendTLSPolicy", "metadata": {"name": service}, "spec": {
        "targetRefs": [{"group": "", "kind": "Service", "name": service}], "validation": validation}})
}

#[test]
fn security_backends_with_tls_prove_who_they_are() {
    with_gateway(|world| async move {
        let (address, authority) = secure("backend.test").await;
        let (_, other) = secure("backend.test").await;
        for (name, text) in [("authority", &authority), ("other", &other)] {
            world
                .create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"ca.crt": text}}))
                .await;
        }
        world.service("web", Some("https"), &[address]).await;
        world.service("streams", Some("kubernetes.io/h2c"), &[address]).await;
        let listeners = json!([{"name": "web", "port": 8080, "protocol": "HTTP"}]);
        world
            .create(json!({"apiVersion": GATEWAY_API, "kind": "Gateway", "metadata": {"name": "gw"},
                "spec": {"gatewayClassName": "cox", "listeners": listeners}}))
            .await;
        for service in ["web", "streams"] {
            let rules = json!([{"backendRefs": [{"name": service, "port": 80}]}]);
            world
                .create(json!({"apiVersion": GATEWAY_API, "kind": "HTTPRoute", "metadata": {"name": service},
                    "spec": {"parentRefs": [{"name": "gw"}], "hostnames": [format!("{service}.test")], "rules": rules}}))
                .await;
        }
        // Whom to trust is not said: nobody.
        until_code(8080, "web.test", "/", 500).await;
        let trusted = |map: &str, host: &str| json!({"hostname": host, "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": map}]});
        world.create(policy("web", trusted("authority", "backend.test"))).await;
        let seen = until_code(8080, "web.test", "/", 200).await;
        assert_eq!(seen, json!({"version": "HTTP/1.1", "name": "backend.test"}));
        world.create(policy("streams", trusted("authority", "backend.test"))).await;
        assert_eq!(until_code(8080, "streams.test", "/", 200).await["version"], "HTTP/2.0");
        until("the policy's status", || async {
            let status = world.get(GATEWAY_API, "BackendTLSPolicy", "web").await["status"].clone();
            let ancestor = &status["ancestors"][0];
            let conditions = ancestor["conditions"].as_array()?;
            let is_true = |kind: &str| conditions.iter().any(|it| it["type"] == kind && it["status"] == "True");
            (ancestor["ancestorRef"]["name"] == "gw" && is_true("Accepted") && is_true("ResolvedRefs")).then_some(())
        })
        .await;

        // Another authority, another name: nobody who is there.
        let change = async |validation: Value| {
            world.patch(GATEWAY_API, "BackendTLSPolicy", "web", json!({"spec": {"validation": validation}})).await;
        };
        change(trusted("other", "backend.test")).await;
        until_code(8080, "web.test", "/", 502).await;
        change(trusted("authority", "elsewhere.test")).await;
        until("the name that is asked for", || async {
            let (code, _) = crate::harness::get(8080, "web.test", "/").await?;
            (code == 502).then_some(())
        })
        .await;
        // The name that is asked for need not be the one that is proved.
        let mut validation = trusted("authority", "elsewhere.test");
        validation["subjectAltNames"] = json!([{"type": "Hostname", "hostname": "backend.test"}]);
        change(validation).await;
        assert_eq!(until_code(8080, "web.test", "/", 200).await["name"], "elsewhere.test");
        // An authority that is not there is not a reason to do without.
        let mut validation = trusted("missing", "backend.test");
        validation["subjectAltNames"] = json!(null);
        change(validation).await;
        until_code(8080, "web.test", "/", 500).await;
        until("the reason", || async {
            let status = world.get(GATEWAY_API, "BackendTLSPolicy", "web").await["status"].clone();
            let conditions = status["ancestors"][0]["conditions"].as_array()?.clone();
            let has = |kind: &str, reason: &str| {
                conditions.iter().any(|it| it["type"] == kind && it["status"] == "False" && it["reason"] == reason)
            };
            (has("Accepted", "NoValidCACertificate") && has("ResolvedRefs", "InvalidCACertificateRef")).then_some(())
        })
        .await;
    });
}
