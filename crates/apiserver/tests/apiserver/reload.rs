//! Files that change while the server runs.

use apiserver::Authorizer;
use rcgen::ExtendedKeyUsagePurpose;

use crate::harness::{Authority, Cluster, replace};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_passwords_and_policies_are_read_again() {
    let cluster = Cluster::with_files(|dir, config| {
        std::fs::write(dir.join("basic.csv"), "one,carol,9\n").unwrap();
        config.basic_auth_file = Some(dir.join("basic.csv"));
        std::fs::write(dir.join("policy"), "").unwrap();
        config.authorization_policy_file = Some(dir.join("policy"));
        config.authorizers = vec![Authorizer::Abac];
    })
    .await;
    let file = |name: &str| cluster.dir.path().join(name);
    let bearer = ["-H", "Authorization: Bearer late"];
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(cluster.curl(pods, &bearer).await.0, 401);
    replace(&file("tokens.csv"), "late,dave,4\n");
    assert_eq!(cluster.curl(pods, &bearer).await.0, 403);
    let policy = r#"{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"*","namespace":"*","resource":"*","apiGroup":"*"}}"#;
    replace(&file("policy"), policy);
    assert_eq!(cluster.curl(pods, &bearer).await.0, 200);
    // A file that does not parse changes nothing.
    replace(&file("tokens.csv"), "late\n");
    assert_eq!(cluster.curl(pods, &bearer).await.0, 200);

    assert_eq!(cluster.whoami(&["-u", "carol:one"]).await.unwrap()["username"], "carol");
    assert_eq!(cluster.whoami(&["-u", "carol:two"]).await, Err(401));
    replace(&file("basic.csv"), "two,carol,9\n");
    assert_eq!(cluster.whoami(&["-u", "carol:two"]).await.unwrap()["username"], "carol");
    assert_eq!(cluster.whoami(&["-u", "carol:one"]).await, Err(401));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_authorities_are_read_again() {
    let cluster = Cluster::with_files(|dir, config| {
        std::fs::copy(dir.join("ca.crt"), dir.join("clients.crt")).unwrap();
        config.client_ca_file = Some(dir.join("clients.crt"));
    })
    .await;
    let dir = cluster.dir.path();
    let file = |name: &str| dir.join(name).display().to_string();
    let shown = async || {
        let stream = cluster.connect(None).await;
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let before = shown().await;
    cluster.authority.sign(dir, "server", "apiserver", None, ExtendedKeyUsagePurpose::ServerAuth);
    assert_ne!(shown().await, before);

    let told = asked_for(&cluster).await;
    assert_eq!(told, names(&file("clients.crt")), "clients are told whose certificates count");

    // A new authority for clients: its certificates count, those of the old one no longer do.
    let ann = [file("ann.crt"), file("ann.key")];
    let as_ann = ["--cert", ann[0].as_str(), "--key", ann[1].as_str()];
    assert_eq!(cluster.whoami(&as_ann).await.unwrap()["username"], "ann");
    Authority::new(dir, "clients").sign(dir, "zoe", "zoe", Some("dev"), ExtendedKeyUsagePurpose::ClientAuth);
    let zoe = [file("zoe.crt"), file("zoe.key")];
    assert_eq!(cluster.whoami(&["--cert", &zoe[0], "--key", &zoe[1]]).await.unwrap()["username"], "zoe");
    assert_eq!(cluster.whoami(&as_ann).await, Err(401));
    assert_eq!(asked_for(&cluster).await, names(&file("clients.crt")));
    assert_ne!(asked_for(&cluster).await, told);
}

fn names(file: &str) -> Vec<Vec<u8>> {
    let roots = tls::load_roots(file.as_ref()).unwrap();
    roots.subjects().iter().map(|name| name.as_ref().to_vec()).collect()
}

/// The authorities whose certificates the server asks its clients for.
async fn asked_for(cluster: &Cluster) -> Vec<Vec<u8>> {
    #[derive(Debug, Default)]
    struct Asked(std::sync::Mutex<Vec<Vec<u8>>>);

    impl rustls::client::ResolvesClientCert for Asked {
        fn resolve(
            &self,
            authorities: &[&[u8]],
            _: &[rustls::SignatureScheme],
        ) -> Option<std::sync::Arc<rustls::sign::CertifiedKey>> {
            *self.0.lock().unwrap() = authorities.iter().map(|name| name.to_vec()).collect();
            None
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    let asked = std::sync::Arc::new(Asked::default());
    let roots = tls::load_roots(&cluster.dir.path().join("ca.crt")).unwrap();
    let config = tls::client_builder().with_root_certificates(roots).with_client_cert_resolver(asked.clone());
    let tcp = tokio::net::TcpStream::connect(cluster.url.strip_prefix("https://").unwrap()).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    tokio_rustls::TlsConnector::from(std::sync::Arc::new(config)).connect(name, tcp).await.unwrap();
    asked.0.lock().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_authorization_configuration_is_followed() {
    let text = |authorizers: &str| {
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{authorizers}]\n"
        )
    };
    let (allow, rbac) = ("{type: AlwaysAllow, name: a}", "{type: RBAC, name: r}");
    let first = text(&format!("{rbac}, {allow}"));
    let cluster = Cluster::with_files(|dir, config| {
        std::fs::write(dir.join("authorization.yaml"), &first).unwrap();
        config.authorization_config_file = Some(dir.join("authorization.yaml"));
        config.authorizers = vec![Authorizer::Rbac, Authorizer::AlwaysAllow];
    })
    .await;
    let file = cluster.dir.path().join("authorization.yaml");
    let ask = async || cluster.curl("/api/v1/nodes", &["-H", "Authorization: Bearer ann-token"]).await.0;
    assert_eq!(ask().await, 200);
    replace(&file, &text(rbac));
    assert_eq!(ask().await, 403);
    // What was not there at the start cannot come, and what is wrong changes nothing.
    replace(&file, &text(&format!("{{type: Node, name: n}}, {allow}")));
    assert_eq!(ask().await, 403);
    replace(&file, "authorizers: 3\n");
    assert_eq!(ask().await, 403);
    replace(&file, &first);
    assert_eq!(ask().await, 200);
}

/// Anonymous requests, which such a server refuses, would find everything allowed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_server_does_not_begin_to_allow_everything() {
    let text = |kind: &str| {
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{{type: {kind}, name: a}}]\n"
        )
    };
    let cluster = Cluster::with_files(|dir, config| {
        std::fs::write(dir.join("authorization.yaml"), text("RBAC")).unwrap();
        config.authorization_config_file = Some(dir.join("authorization.yaml"));
        config.authorizers = vec![Authorizer::Rbac];
    })
    .await;
    assert_eq!(cluster.curl("/api/v1/nodes", &[]).await.0, 403);
    replace(&cluster.dir.path().join("authorization.yaml"), &text("AlwaysAllow"));
    assert_eq!(cluster.curl("/api/v1/nodes", &[]).await.0, 403);
}
