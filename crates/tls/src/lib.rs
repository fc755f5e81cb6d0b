//! What every TLS end shares: certificates from files, files that are read again when they change, the two verifiers for
//! when trust is decided elsewhere, a stream that sends the frames of HTTP/2 together, and the limits of a port's connections.
//!
//! Used by the API server, the store's client of etcd, the client, the kubelet and the runtime's image puller. Which authority to trust, and what a
//! certificate means, is theirs to say.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod connections;
pub mod der;
pub mod descriptors;
mod files;
mod gathered;
mod pair;
mod private_key;
mod reload;
mod serving;
mod verify;

use std::sync::Arc;

use rustls::CipherSuite;
use rustls::crypto::CryptoProvider;

pub use connections::{Accepted, Answered, Connections, Detached, Limits, Place, Stream, Work, accept};
pub use files::{certificates, load_certificates, load_key, load_roots, system_roots};
pub use gathered::Gathered;
pub use pair::{Pair, is_pair, read_pair};
pub use private_key::pkcs8;
pub use reload::{Reloading, Reloads};
pub use serving::ServingCertificate;
pub use verify::AnyCertificate;

/// The one provider of cryptography in the program.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::OnceLock<Arc<CryptoProvider>> = std::sync::OnceLock::new();
    PROVIDER
        .get_or_init(|| {
            let mut provider = rustls::crypto::ring::default_provider();
            // AES with 128 bits first, as Go has it: strong enough, and a third cheaper.
            provider.cipher_suites.sort_by_key(|suite| match suite.suite() {
                CipherSuite::TLS13_AES_128_GCM_SHA256 => 0,
                CipherSuite::TLS13_AES_256_GCM_SHA384 | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => 1,
                CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => 2,
                _ => 3,
            });
            Arc::new(provider)
        })
        .clone()
}

/// A client that talks to whoever answers (upstream's `InsecureSkipVerify`).
pub fn unverified_client() -> rustls::ClientConfig {
    client_builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate::default()))
        .with_no_client_auth()
}

/// The start of every client configuration.
pub fn client_builder() -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::WantsVerifier> {
    rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
}

/// The start of every server configuration.
pub fn server_builder() -> rustls::ConfigBuilder<rustls::ServerConfig, rustls::WantsVerifier> {
    rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
}
