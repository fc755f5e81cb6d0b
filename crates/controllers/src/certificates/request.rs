//! What a certificate request asks for, and whether its signer may grant it.

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use rcgen::{CertificateSigningRequestParams, SanType};
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;

use super::error::Error;
use super::subject::Subject;
use super::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY_UNKNOWN};

/// A request that was read.
pub(super) struct Request {
    pub(super) params: CertificateSigningRequestParams,
    pub(super) subject: Subject,
}

pub(super) fn parse(spec: &CertificateSigningRequestSpec) -> Result<Request, Error> {
    if !api::validation::is_one_pem_block(&spec.request.0, "CERTIFICATE REQUEST") {
        return Err(Error::Block);
    }
    let der = CertificateSigningRequestDer::from_pem_slice(&spec.request.0)?;
    let params = CertificateSigningRequestParams::from_der(&der).map_err(Error::Request)?;
    Ok(Request { params, subject: Subject::of_request(&der)? })
}

fn is_node(subject: &Subject) -> bool {
    subject.organizations == ["system:nodes"] && subject.common_name.starts_with("system:node:")
}

/// Exactly the required usages, with or without key encipherment.
fn usages_are(spec: &CertificateSigningRequestSpec, purpose: &str) -> bool {
    let mut usages: Vec<&str> =
        spec.usages.iter().flatten().map(String::as_str).filter(|usage| *usage != "key encipherment").collect();
    usages.sort_unstable();
    let mut wanted = ["digital signature", purpose];
    wanted.sort_unstable();
    usages == wanted
}

/// A kubelet asking for its own client certificate.
pub(super) fn is_kubelet_client(spec: &CertificateSigningRequestSpec, request: &Request) -> bool {
    is_node(&request.subject) && request.params.params.subject_alt_names.is_empty() && usages_are(spec, "client auth")
}

/// A kubelet asking for its serving certificate: names and addresses only.
fn is_kubelet_serving(spec: &CertificateSigningRequestSpec, request: &Request) -> bool {
    let names = &request.params.params.subject_alt_names;
    let only = names.iter().all(|name| matches!(name, SanType::DnsName(_) | SanType::IpAddress(_)));
    is_node(&request.subject) && !names.is_empty() && only && usages_are(spec, "server auth")
}

/// Why the signer refuses, if it does.
pub(super) fn refusal(spec: &CertificateSigningRequestSpec, request: &Request) -> Option<&'static str> {
    const ALLOWED_CLIENT: [&str; 3] = ["digital signature", "key encipherment", "client auth"];
    let client = |usage: &String| ALLOWED_CLIENT.contains(&usage.as_str());
    match spec.signer_name.as_str() {
        KUBELET_CLIENT if !is_kubelet_client(spec, request) => Some("invalid kubelet client certificate request"),
        KUBELET_SERVING if !is_kubelet_serving(spec, request) => Some("invalid kubelet serving certificate request"),
        CLIENT
            if !spec.usages.iter().flatten().all(client)
                || !spec.usages.iter().flatten().any(|usage| usage == "client auth") =>
        {
            Some("usages did not match")
        }
        CLIENT | KUBELET_CLIENT | KUBELET_SERVING | LEGACY_UNKNOWN => None,
        _ => Some("unrecognized signer name"),
    }
}
