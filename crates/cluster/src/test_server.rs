//! An API server for tests: all of it, with nobody but an administrator.

use std::path::Path;

use client::Client;

/// Starts one that keeps everything below `dir`, and returns the administrator's way to it.
pub(crate) async fn start(dir: &Path) -> Client {
    let path = |name: &str| dir.join(name);
    let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    std::fs::write(path("tls.crt"), certificate.cert.pem()).unwrap();
    std::fs::write(path("tls.key"), certificate.signing_key.serialize_pem()).unwrap();
    std::fs::write(path("sa.key"), rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let mut config = apiserver::Config::new(apiserver::Storage::Embedded(path("store")));
    config.bind = "127.0.0.1:0".parse().unwrap();
    config.tls_cert_file = Some(path("tls.crt"));
    config.tls_private_key_file = Some(path("tls.key"));
    config.service_account_key_files = vec![path("sa.key")];
    config.service_account_signing_key_file = Some(path("sa.key"));
    // Nobody makes accounts here.
    config.disable_admission_plugins = vec!["ServiceAccount".to_owned()];
    let server = apiserver::Server::new(config).await.unwrap();
    Client::in_process(server.handler(), api::UserInfo::new("admin", &["system:masters"]))
}
