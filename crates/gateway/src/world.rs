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
    #[serde(deserialize_with = "api::read::by_table")]
    pub metadata: ObjectMeta,
    pub data: Option<AuthorityData>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AuthorityData {
    #[serde(rename = "ca.crt")]
    pub certificate: Option<String>,
}

api::read_by_serde!(AuthorityMap, Definition);

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

/// Of a CustomResourceDefinition, what it serves. Schemas are long, and others' definitions many: neither is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Definition {
    #[serde(deserialize_with = "api::read::by_table")]
    pub metadata: ObjectMeta,
    pub spec: DefinitionSpec,
    pub status: DefinitionStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DefinitionSpec {
    pub group: String,
    pub names: DefinitionNames,
    pub versions: Vec<DefinitionVersion>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DefinitionNames {
    pub plural: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DefinitionVersion {
    pub name: String,
    pub served: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DefinitionStatus {
    pub conditions: Option<Vec<DefinitionCondition>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DefinitionCondition {
    pub r#type: String,
    pub status: String,
}

impl Definition {
    /// Whether its objects can be asked for.
    pub fn is_established(&self) -> bool {
        let mut conditions = self.status.conditions.iter().flatten();
        conditions.any(|condition| condition.r#type == "Established" && condition.status == "True")
    }

    pub fn serves(&self, version: &str) -> bool {
        self.spec.versions.iter().any(|known| known.served && known.name == version)
    }
}

impl client::Object for Definition {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn kind() -> &'static str {
        "CustomResourceDefinition"
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_definition_only_what_it_serves_is_kept() {
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}});
        let read = |conditions: serde_json::Value| -> Definition {
            serde_json::from_value(json!({
                "metadata": {"name": "gateways.gateway.networking.k8s.io"},
                "spec": {"group": "gateway.networking.k8s.io", "scope": "Namespaced",
                    "names": {"plural": "gateways", "kind": "Gateway"},
                    "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema},
                        {"name": "v1beta1", "served": false, "storage": false, "schema": schema}]},
                "status": {"conditions": conditions, "storedVersions": ["v1"]},
            }))
            .unwrap()
        };
        let established =
            read(json!([{"type": "NamesAccepted", "status": "True"}, {"type": "Established", "status": "True"}]));
        assert!(established.is_established() && established.serves("v1") && !established.serves("v1beta1"));
        assert_eq!(established.spec.names.plural, "gateways");
        assert!(!serde_json::to_string(&established).unwrap().contains("Schema"));
        assert!(!read(json!(null)).is_established());
        assert!(!read(json!([{"type": "Established", "status": "False"}])).is_established());
    }
}
