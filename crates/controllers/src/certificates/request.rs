//! What a certificate request asks for, and whether its signer may grant it.

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use rcgen::{CertificateSigningRequestParams, DnType, DnValue, SanType};

use super::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY_UNKNOWN};

pub(super) fn parse(spec: &CertificateSigningRequestSpec) -> Result<CertificateSigningRequestParams, String> {
    let text = std::str::from_utf8(&spec.request.0).map_err(|error| error.to_string())?;
    CertificateSigningRequestParams::from_pem(text).map_err(|error| format!("unable to parse csr: {error}"))
}

fn name(params: &CertificateSigningRequestParams, kind: &DnType) -> String {
    match params.params.distinguished_name.get(kind) {
        Some(DnValue::Utf8String(text)) => text.clone(),
        Some(DnValue::PrintableString(text)) => text.as_str().to_owned(),
        Some(DnValue::Ia5String(text)) => text.as_str().to_owned(),
        _ => String::new(),
    }
}

pub(super) fn common_name(params: &CertificateSigningRequestParams) -> String {
    name(params, &DnType::CommonName)
}

fn is_node(params: &CertificateSigningRequestParams) -> bool {
    name(params, &DnType::OrganizationName) == "system:nodes" && common_name(params).starts_with("system:node:")
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
pub(super) fn is_kubelet_client(
    spec: &CertificateSigningRequestSpec,
    params: &CertificateSigningRequestParams,
) -> bool {
    is_node(params) && params.params.subject_alt_names.is_empty() && usages_are(spec, "client auth")
}

/// A kubelet asking for its serving certificate: names and addresses only.
fn is_kubelet_serving(spec: &CertificateSigningRequestSpec, params: &CertificateSigningRequestParams) -> bool {
    let names = &params.params.subject_alt_names;
    let only = names.iter().all(|name| matches!(name, SanType::DnsName(_) | SanType::IpAddress(_)));
    is_node(params) && !names.is_empty() && only && usages_are(spec, "server auth")
}

/// Why the signer refuses, if it does.
pub(super) fn refusal(
    spec: &CertificateSigningRequestSpec,
    params: &CertificateSigningRequestParams,
) -> Option<&'static str> {
    const ALLOWED_CLIENT: [&str; 3] = ["digital signature", "key encipherment", "client auth"];
    let client = |usage: &String| ALLOWED_CLIENT.contains(&usage.as_str());
    match spec.signer_name.as_str() {
        KUBELET_CLIENT if !is_kubelet_client(spec, params) => Some("invalid kubelet client certificate request"),
        KUBELET_SERVING if !is_kubelet_serving(spec, params) => Some("invalid kubelet serving certificate request"),
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
