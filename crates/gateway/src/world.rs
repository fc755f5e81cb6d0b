//! What the gateway knows of the cluster: copies of objects, certificates already read.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;

use crate::gateway_api::{GRPCRoute, Gateway, GatewayClass, HTTPRoute, NamespaceLabels, ReferenceGrant, TLSRoute};

/// Objects by `namespace/name`.
pub type Objects<K> = BTreeMap<String, Arc<K>>;

/// A certificate with its key, or why it is none.
pub type Certificate = Result<Arc<CertifiedKey>, String>;

#[derive(Clone, Default)]
pub struct World {
    pub ingresses: Objects<Ingress>,
    pub ingress_classes: Objects<IngressClass>,
    pub services: Objects<Service>,
    /// Slices by service, `namespace/name`, then by their own names.
    pub slices: BTreeMap<String, Objects<EndpointSlice>>,
    /// Secrets of type `kubernetes.io/tls`.
    pub certificates: BTreeMap<String, Certificate>,
    /// The zone of the gateway's node.
    pub zone: Option<String>,
    pub namespaces: NamespaceLabels,
    pub gateway_classes: Objects<GatewayClass>,
    pub gateways: Objects<Gateway>,
    pub http_routes: Objects<HTTPRoute>,
    pub grpc_routes: Objects<GRPCRoute>,
    pub tls_routes: Objects<TLSRoute>,
    pub grants: Objects<ReferenceGrant>,
}

/// Reads the pair of a TLS Secret.
pub fn certificate(secret: &Secret) -> Certificate {
    let part = |name: &str| {
        let data = secret.data.as_ref().and_then(|data| data.get(name));
        data.map(|bytes| bytes.0.as_slice()).with_context(|| format!("it has no {name}"))
    };
    let read = || -> anyhow::Result<CertifiedKey> {
        let chain = tls::certificates(part("tls.crt")?).context("tls.crt")?;
        let key = PrivateKeyDer::from_pem_slice(part("tls.key")?).context("tls.key")?;
        // Refuses a key that does not belong to the certificate.
        CertifiedKey::from_der(chain, key, &tls::provider()).context("tls.crt and tls.key")
    };
    read().map(Arc::new).map_err(|error| format!("{error:#}"))
}
