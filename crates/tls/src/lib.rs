//! What every TLS end shares: certificates from files, files that are read again when they change, and the two
//! verifiers for when trust is decided elsewhere.
//!
//! Used by the API server, the client, the kubelet and the runtime's image puller. Which authority to trust, and what a
//! certificate means, is theirs to say.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod files;
mod reload;
mod serving;
mod verify;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use files::{certificates, load_certificates, load_key, load_roots, system_roots};
pub use reload::Reloading;
pub use serving::ServingCertificate;
pub use verify::AnyCertificate;

/// The one provider of cryptography in the program.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::OnceLock<Arc<CryptoProvider>> = std::sync::OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())).clone()
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
