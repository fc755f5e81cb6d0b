//! What a certificate request asks for, and whether its signer may grant it.

use std::collections::HashSet;
use std::net::IpAddr;

use api::sort::CompactSort as _;
use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use rcgen::{SanType, SubjectPublicKeyInfo};
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequestInfo;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use super::error::Error;
use super::subject::Subject;
use super::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY_UNKNOWN};

/// A request that was read and proves that whoever asks has the key.
pub(super) struct Request {
    /// Those of the kinds that Go reads. Others are in no certificate that upstream signs, and neither are extensions.
    pub(super) names: Vec<SanType>,
    pub(super) key: SubjectPublicKeyInfo,
    pub(super) subject: Subject,
}

pub(super) fn parse(spec: &CertificateSigningRequestSpec) -> Result<Request, Error> {
    if !api::validation::is_one_pem_block(&spec.request.0, "CERTIFICATE REQUEST") {
        return Err(Error::Block);
    }
    let der = CertificateSigningRequestDer::from_pem_slice(&spec.request.0)?;
    let (rest, request) =
        X509CertificationRequest::from_der(&der).map_err(|error| Error::Subject(error.to_string()))?;
    if !rest.is_empty() {
        return Err(Error::Malformed("trailing data"));
    }
    request.verify_signature()?;
    let info = &request.certification_request_info;
    let key = SubjectPublicKeyInfo::from_der(info.subject_pki.raw).map_err(Error::Request)?;
    Ok(Request { names: names(info)?, key, subject: Subject::of_name(&info.subject)? })
}

/// The alternative names as Go's `ParseCertificateRequest` reads them.
fn names(info: &X509CertificationRequestInfo<'_>) -> Result<Vec<SanType>, Error> {
    let requested = info.iter_attributes().filter_map(|attribute| match attribute.parsed_attribute() {
        ParsedCriAttribute::ExtensionRequest(requested) => Some(&requested.extensions),
        _ => None,
    });
    let mut known = HashSet::new();
    let mut names = Vec::new();
    for extension in requested.flatten() {
        if !known.insert(&extension.oid) {
            return Err(Error::Malformed("certificate request contains duplicate requested extensions"));
        }
        if extension.oid != OID_X509_EXT_SUBJECT_ALT_NAME {
            continue;
        }
        let ParsedExtension::SubjectAlternativeName(found) = extension.parsed_extension() else {
            return Err(Error::Malformed("invalid subject alternative names"));
        };
        for name in &found.general_names {
            names.extend(name_of(name)?);
        }
    }
    Ok(names)
}

/// `None` for kinds that Go passes over.
fn name_of(name: &GeneralName<'_>) -> Result<Option<SanType>, Error> {
    Ok(Some(match name {
        GeneralName::DNSName(name) => SanType::DnsName((*name).try_into().map_err(Error::Request)?),
        GeneralName::RFC822Name(name) => SanType::Rfc822Name((*name).try_into().map_err(Error::Request)?),
        GeneralName::URI(name) if name.bytes().any(|byte| byte <= b' ' || byte == 0x7f) => {
            return Err(Error::Malformed("cannot parse URI"));
        }
        GeneralName::URI(name) => SanType::URI((*name).try_into().map_err(Error::Request)?),
        GeneralName::IPAddress(octets) => SanType::IpAddress(match octets.len() {
            4 => IpAddr::from(<[u8; 4]>::try_from(*octets).unwrap_or_default()),
            16 => IpAddr::from(<[u8; 16]>::try_from(*octets).unwrap_or_default()),
            _ => return Err(Error::Malformed("cannot parse IP address of this length")),
        }),
        GeneralName::Invalid(..) => return Err(Error::Malformed("invalid subject alternative names")),
        _ => return Ok(None),
    }))
}

fn is_node(subject: &Subject) -> bool {
    subject.organizations == ["system:nodes"] && subject.common_name.starts_with("system:node:")
}

/// Exactly the required usages, with or without key encipherment.
fn usages_are(spec: &CertificateSigningRequestSpec, purpose: &str) -> bool {
    let mut usages: Vec<&str> =
        spec.usages.iter().flatten().map(String::as_str).filter(|usage| *usage != "key encipherment").collect();
    usages.compact_sort();
    let mut wanted = ["digital signature", purpose];
    wanted.compact_sort();
    usages == wanted
}

/// A kubelet asking for its own client certificate.
pub(super) fn is_kubelet_client(spec: &CertificateSigningRequestSpec, request: &Request) -> bool {
    is_node(&request.subject) && request.names.is_empty() && usages_are(spec, "client auth")
}

/// A kubelet asking for its serving certificate: names and addresses only.
fn is_kubelet_serving(spec: &CertificateSigningRequestSpec, request: &Request) -> bool {
    let names = &request.names;
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
