//! What the gateway knows of the cluster: copies of objects, certificates already read.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use anyhow::Context;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

use crate::gateway_api::{
    BackendTLSPolicy, GRPCRoute, Gateway, GatewayClass, HTTPRoute, NamespaceLabels, ReferenceGrant, TLSRoute,
};

/// Objects by `namespace/name`.
pub type Objects<K> = BTreeMap<String, Arc<K>>;

/// Why an object holds no certificate that can be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct NoCertificate(Arc<anyhow::Error>);

impl From<anyhow::Error> for NoCertificate {
    fn from(error: anyhow::Error) -> Self {
        NoCertificate(Arc::new(error))
    }
}

/// A certificate with its key, or why it is none.
pub type Certificate = Result<Arc<CertifiedKey>, NoCertificate>;

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
    pub backend_tls_policies: Objects<BackendTLSPolicy>,
    /// Authorities in ConfigMaps, known while there are policies that may name them.
    pub authorities: BTreeMap<String, Result<Authority, NoCertificate>>,
}

/// Certificates of authorities that a ConfigMap holds.
#[derive(Clone)]
pub struct Authority {
    pub roots: Arc<RootCertStore>,
    /// Of what it says.
    pub hash: u64,
}

/// Reads the `ca.crt` of a ConfigMap; none has none.
pub fn authority(map: &AuthorityMap) -> Option<Result<Authority, NoCertificate>> {
    let text = map.data.as_ref()?.certificate.as_ref()?;
    let read = || -> anyhow::Result<Authority> {
        let mut roots = RootCertStore::empty();
        for certificate in tls::certificates(text.as_bytes()).context("ca.crt")? {
            roots.add(certificate).context("ca.crt")?;
        }
        anyhow::ensure!(!roots.is_empty(), "ca.crt has no certificate");
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Ok(Authority { roots: Arc::new(roots), hash: hasher.finish() })
    };
    Some(read().map_err(NoCertificate::from))
}

/// Of a ConfigMap, what can be an authority.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AuthorityMap {
    pub metadata: ObjectMeta,
    pub data: Option<AuthorityData>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AuthorityData {
    #[serde(rename = "ca.crt")]
    pub certificate: Option<String>,
}

impl client::Object for AuthorityMap {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn kind() -> &'static str {
        "ConfigMap"
    }
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
    read().map(Arc::new).map_err(NoCertificate::from)
}
