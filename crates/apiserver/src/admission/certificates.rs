//! CertificateApproval, CertificateSigning, ClusterTrustBundleAttest and CertificateSubjectRestriction: who may approve, sign
//! and vouch for a signer, and whom no certificate may name.

use std::sync::Arc;

use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestStatus};
use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};

use super::{Admitted, Attributes, Plugin, Verb, admitted, later};
use crate::authz;
use crate::cluster::Cluster;

const GROUP: &str = "certificates.k8s.io";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

fn updates(attributes: &Attributes<'_>, subresource: &str) -> bool {
    attributes.verb == Verb::Update
        && attributes.subresource == subresource
        && attributes.is(GROUP, "certificatesigningrequests")
}

/// Rights are given for one signer, or for all of a domain (`IsAuthorizedForSignerName`).
async fn may(cluster: &Cluster, attributes: &Attributes<'_>, verb: registry::Verb, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    for name in [signer.to_owned(), format!("{domain}/*")] {
        let asked = authz::Attributes {
            is_resource: true,
            verb: verb.clone(),
            group: GROUP.to_owned(),
            resource: "signers".to_owned(),
            name,
            ..Default::default()
        };
        if cluster.authz.decide(attributes.user(), &asked).await.allowed {
            return true;
        }
    }
    false
}

pub(super) struct CertificateApproval;

impl Plugin for CertificateApproval {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let old = attributes.old_ref::<CertificateSigningRequest>().filter(|_| updates(attributes, "approval"));
        let Some(signer) = old.map(|request| request.spec.signer_name.as_str()) else { return admitted() };
        later(async move {
            if may(cluster, attributes, registry::Verb::custom("approve"), signer).await {
                return Ok(());
            }
            Err(attributes.forbidden(format!("user not permitted to approve requests with signerName {signer:?}")))
        })
    }
}

pub(super) struct CertificateSigning;

impl Plugin for CertificateSigning {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if attributes.is(GROUP, "podcertificaterequests") {
            return sign_for_pod(cluster, attributes);
        }
        if !updates(attributes, "status") {
            return admitted();
        }
        let requests = attributes.old_ref::<CertificateSigningRequest>().zip(attributes.object_ref());
        let Some((old, new)) = requests as Option<(&CertificateSigningRequest, &CertificateSigningRequest)> else {
            return admitted();
        };
        let empty = CertificateSigningRequestStatus::default();
        let of = |request: &CertificateSigningRequest| request.status.clone().unwrap_or_else(|| empty.clone());
        let (before, after) = (of(old), of(new));
        let changes = before.certificate != after.certificate
            || before.conditions.unwrap_or_default() != after.conditions.unwrap_or_default();
        let signer = &old.spec.signer_name;
        if !changes {
            return admitted();
        }
        sign(cluster, attributes, signer)
    }
}

fn sign<'a>(cluster: &'a Cluster, attributes: &'a Attributes<'_>, signer: &'a str) -> Admitted<'a> {
    later(async move {
        if may(cluster, attributes, registry::Verb::custom("sign"), signer).await {
            return Ok(());
        }
        Err(attributes.forbidden(format!("user not permitted to sign requests with signerName {signer:?}")))
    })
}

fn sign_for_pod<'a>(cluster: &'a Cluster, attributes: &'a Attributes<'_>) -> Admitted<'a> {
    let requests = attributes.old_ref::<PodCertificateRequest>().zip(attributes.object_ref::<PodCertificateRequest>());
    match requests.filter(|_| attributes.verb == Verb::Update && attributes.subresource == "status") {
        Some((old, new)) if old.status != new.status => sign(cluster, attributes, &old.spec.signer_name),
        _ => admitted(),
    }
}

/// Who says whom to trust for a signer speaks for it.
pub(super) struct ClusterTrustBundleAttest;

impl Plugin for ClusterTrustBundleAttest {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let writes = matches!(attributes.verb, Verb::Create | Verb::Update);
        if !writes || !attributes.is(GROUP, "clustertrustbundles") {
            return admitted();
        }
        let Some(new) = attributes.object_ref::<ClusterTrustBundle>() else { return admitted() };
        let old = attributes.old_ref::<ClusterTrustBundle>();
        if old.is_some_and(|old| old.spec.signer_name != new.spec.signer_name) {
            return Err(attributes.forbidden("changing signerName is forbidden")).into();
        }
        let signer = new.spec.signer_name.as_deref().filter(|signer| !signer.is_empty());
        let is_other = |old: &ClusterTrustBundle| without_bookkeeping(old) != without_bookkeeping(new);
        match signer.filter(|_| old.is_none_or(is_other)) {
            None => admitted(),
            Some(signer) => later(async move {
                if may(cluster, attributes, registry::Verb::custom("attest"), signer).await {
                    return Ok(());
                }
                Err(attributes.forbidden(format!("user not permitted to attest for signerName {signer:?}")))
            }),
        }
    }
}

/// A bundle without what the garbage collector writes. Labels stay: pods choose bundles by them.
fn without_bookkeeping(bundle: &ClusterTrustBundle) -> ClusterTrustBundle {
    let mut rest = bundle.clone();
    rest.metadata.finalizers = None;
    rest.metadata.owner_references = None;
    rest.metadata.managed_fields = None;
    rest.metadata.resource_version = None;
    rest
}

pub(super) struct CertificateSubjectRestriction;

impl Plugin for CertificateSubjectRestriction {
    fn validate<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if !attributes.creates(GROUP, "certificatesigningrequests") {
            return admitted();
        }
        let request = attributes.object_ref::<CertificateSigningRequest>();
        let Some(request) = request.filter(|request| request.spec.signer_name == CLIENT_SIGNER) else {
            return admitted();
        };
        match subject(&request.spec.request.0) {
            Err(problem) => Err(attributes.forbidden(format!("failed to parse CSR: {problem}"))).into(),
            Ok(named) if named.organizations.iter().any(|group| group == api::user::MASTERS) => Err(attributes
                .forbidden(format!("use of {CLIENT_SIGNER} signer with {} group is not allowed", api::user::MASTERS)))
            .into(),
            Ok(_) => admitted(),
        }
    }
}

/// Whom a certificate request is for.
pub(super) struct Subject {
    pub(super) common_name: String,
    pub(super) organizations: Vec<String>,
}

/// Why nobody can say whom a certificate request is for.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Label,
    #[error("{0}")]
    Unreadable(String),
}

/// Reads a certificate request in PEM form.
pub(super) fn subject(pem: &[u8]) -> Result<Subject, RequestError> {
    use x509_parser::prelude::FromDer;
    let (_, block) =
        x509_parser::pem::parse_x509_pem(pem).map_err(|error| RequestError::Unreadable(error.to_string()))?;
    if block.label != "CERTIFICATE REQUEST" {
        return Err(RequestError::Label);
    }
    let (_, request) = x509_parser::certification_request::X509CertificationRequest::from_der(&block.contents)
        .map_err(|error| RequestError::Unreadable(error.to_string()))?;
    let name = &request.certification_request_info.subject;
    // Whoever signs may be able to read what we cannot: passing a group over would let it through.
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().map(str::to_owned);
    let organizations = name.iter_organization().map(text).collect::<Result<_, _>>();
    let common_name = name.iter_common_name().last().map(text).transpose();
    let unreadable =
        |error: x509_parser::error::X509Error| RequestError::Unreadable(format!("its subject cannot be read: {error}"));
    Ok(Subject {
        common_name: common_name.map_err(unreadable)?.unwrap_or_default(),
        organizations: organizations.map_err(unreadable)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::string::BmpString;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    #[test]
    fn security_a_group_that_cannot_be_read_is_not_passed_over() {
        let pem = |group: DnValue| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, "eve");
            params.distinguished_name.push(DnType::OrganizationName, group);
            params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
        };
        let plain = subject(pem(DnValue::Utf8String("system:masters".into())).as_bytes()).unwrap();
        assert_eq!(
            (plain.common_name.as_str(), plain.organizations.as_slice()),
            ("eve", &["system:masters".to_owned()][..])
        );
        let spelled_otherwise = pem(DnValue::BmpString(BmpString::try_from("system:masters").unwrap()));
        assert!(subject(spelled_otherwise.as_bytes()).is_err_and(|error| error.to_string().contains("cannot be read")));
    }
}
