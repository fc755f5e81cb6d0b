//! Rules of certificate requests: what may be asked for, who may say yes, and that an answer stays.

use std::collections::BTreeMap;

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

use crate::metadata::annotation_size;
use crate::unset::items;

const DECISIONS: [&str; 2] = ["Approved", "Denied"];
const LABEL: &str = "CERTIFICATE REQUEST";

/// Whether the bytes are a request whose sender holds the key.
pub(super) fn request(pem: &[u8]) -> Result<(), String> {
    let block = Pem::iter_from_buffer(pem).next().and_then(Result::ok);
    let Some(block) = block.filter(|block| block.label == LABEL) else {
        return Err(format!("PEM block type must be {LABEL}"));
    };
    // What is checked here is what others approve and sign: none of them may find another block in it.
    if !api::validation::is_one_pem_block(pem, LABEL) {
        return Err("must be exactly one PEM block of plain lines".to_owned());
    }
    let (_, request) = X509CertificationRequest::from_der(&block.contents).map_err(|error| error.to_string())?;
    request.verify_signature().map_err(|error| error.to_string())
}

/// `example.com/signer-name`: a domain of at least two parts, and a name that may be that of an object in a namespace.
pub fn signer_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    const SUBDOMAIN: usize = 253;
    const LABEL: usize = 63;
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    let Some((domain, own)) = name.split_once('/').filter(|(_, own)| !own.contains('/')) else {
        errors.invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'");
        return;
    };
    if domain.len() > SUBDOMAIN {
        errors.too_long(path, SUBDOMAIN);
    }
    first_mistakes(errors, path, domain, api::validation::dns1123_label);
    if !domain.contains('.') {
        errors.invalid(path, domain, "should be a domain with at least two segments separated by dots");
    }
    first_mistakes(errors, path, own, api::validation::dns1123_subdomain);
    let longest = SUBDOMAIN + (SUBDOMAIN + LABEL + 1) + 1;
    if name.len() > longest {
        errors.too_long(path, longest);
    }
}

/// What is wrong with the first bad one among parts that dots separate: of the others it would be the same.
fn first_mistakes(errors: &mut FieldErrors, path: &Path<'_>, text: &str, rule: fn(&str) -> Vec<String>) {
    let found = text.split('.').map(|label| (label, rule(label))).find(|(_, mistakes)| !mistakes.is_empty());
    if let Some((label, mistakes)) = found {
        let messages = mistakes.into_iter().map(|mistake| format!("validating label {label:?}: {mistake}"));
        errors.invalid_each(path, text, messages.collect());
    }
}

/// Whether a signer is one of Kubernetes' own.
pub fn is_kubernetes_signer(name: &str) -> bool {
    let host = name.split('/').next().unwrap_or_default();
    host == "kubernetes.io" || host.ends_with(".kubernetes.io")
}

/// The shortest time that a pod's certificate may be asked for.
pub const SHORTEST_EXPIRATION: i32 = 60 * 60;

/// The longest time that a pod may ask a signer for.
pub fn longest_expiration(signer: &str) -> i32 {
    if is_kubernetes_signer(signer) { 24 * SHORTEST_EXPIRATION } else { 91 * 24 * SHORTEST_EXPIRATION }
}

/// What a pod says to its signer: keys have a domain, `acme.io/foo`.
pub fn user_annotations(errors: &mut FieldErrors, path: &Path<'_>, annotations: &BTreeMap<String, String>) {
    for key in annotations.keys().map(|key| key.to_lowercase()) {
        if key.is_empty() {
            errors.required(path, "");
            continue;
        }
        let mistakes = api::validation::qualified_name(&key);
        if mistakes.is_empty() && !key.contains('/') {
            errors.invalid(path, &key, "must be a domain-prefixed key (such as \"acme.io/foo\")");
        }
        errors.invalid_each(path, &key, mistakes);
    }
    annotation_size(errors, path, annotations);
}

/// What is wrong with the name of a ClusterTrustBundle of this signer, or of none.
pub fn trust_bundle_name(name: &str, signer: &str) -> Vec<String> {
    if signer.is_empty() {
        return match name.contains(':') {
            true => vec!["ClusterTrustBundle without signer name must not have \":\" in its name".to_owned()],
            false => api::validation::dns1123_subdomain(name),
        };
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(own) => api::validation::dns1123_subdomain(own),
        None => vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")],
    }
}

/// Authorities in PEM form, each once, and nothing else.
pub(super) fn trust_bundle(errors: &mut FieldErrors, path: &Path<'_>, text: &str) {
    const LARGEST: usize = 1024 * 1024;
    const OMITTED: &str = "<value omitted>";
    if text.len() > LARGEST {
        errors.too_long(path, LARGEST);
        return;
    }
    let before = errors.len();
    let mut anchors: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    for (i, block) in Pem::iter_from_buffer(text.as_bytes()).enumerate() {
        let problem = match &block {
            Err(error) => Some(format!("entry {i} cannot be read: {error}")),
            Ok(block) if block.label != "CERTIFICATE" => Some(format!("entry {i} has bad block type: {}", block.label)),
            Ok(block) => match block.parse_x509() {
                Err(_) => Some(format!("entry {i} does not parse as X.509")),
                Ok(certificate) if !certificate.is_ca() => Some(format!("entry {i} does not have the CA bit set")),
                Ok(_) => None,
            },
        };
        match (problem, block) {
            (Some(problem), _) => errors.invalid(path, OMITTED, problem),
            (None, Ok(block)) => anchors.entry(block.contents).or_default().push(i),
            (None, Err(_)) => {}
        }
    }
    if errors.len() > before {
        return;
    }
    if anchors.is_empty() {
        errors.invalid(path, OMITTED, "at least one trust anchor must be provided");
    }
    for indices in anchors.values().filter(|indices| indices.len() > 1) {
        let indices: Vec<String> = indices.iter().map(ToString::to_string).collect();
        errors.invalid(path, OMITTED, format!("duplicate trust anchor (indices [{}])", indices.join(" ")));
    }
}

/// Fills the times of conditions; one whose status is as before keeps the time of its transition.
pub fn stamp(new: &mut CertificateSigningRequest, old: &CertificateSigningRequest, now: Timestamp) {
    let before = conditions(old).to_vec();
    for condition in new.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten()) {
        condition.last_update_time.get_or_insert(Time(now));
        if condition.last_transition_time.is_none() {
            let same = |other: &&CertificateSigningRequestCondition| {
                other.type_ == condition.type_ && other.status == condition.status
            };
            let time = before.iter().find(same).and_then(|other| other.last_transition_time.clone());
            condition.last_transition_time = Some(time.unwrap_or(Time(now)));
        }
    }
}

/// Puts the decision as it was in the place of one that is sent along: only adding or removing one is a mistake.
pub(super) fn keep_decision(new: &mut CertificateSigningRequest, old: &CertificateSigningRequest) {
    for decision in DECISIONS {
        let before: Vec<_> = of_type(old, decision).into_iter().cloned().collect();
        if of_type(new, decision).len() != before.len() {
            continue;
        }
        let after = new.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten());
        for (kept, sent) in before.into_iter().zip(after.filter(|condition| condition.type_ == decision)) {
            *sent = kept;
        }
    }
}

/// A write to `/status`: the decision stays as it was, a certificate is set once.
pub(super) fn status_update(new: &CertificateSigningRequest, old: &CertificateSigningRequest) -> FieldErrors {
    let mut errors = common(new, old);
    let path = Path::new("status");
    for decision in DECISIONS {
        let (after, before) = (of_type(new, decision), of_type(old, decision));
        if after.len() > before.len() {
            errors.forbidden(path.child("conditions"), format!("updates may not add a condition of type {decision:?}"));
        } else if after.len() == before.len() && after != before {
            errors.forbidden(
                path.child("conditions"),
                format!("updates may not modify a condition of type {decision:?}"),
            );
        }
    }
    let (after, before) = (certificate(new), certificate(old));
    if after != before {
        if !before.is_empty() {
            errors.forbidden(path.child("certificate"), "updates may not modify existing certificate content");
        }
        if let Err(error) = chain(after) {
            errors.invalid(path.child("certificate"), "<certificate data>", error);
        }
    }
    errors
}

/// A write to `/approval`: conditions only.
pub fn approval_update(new: &CertificateSigningRequest, old: &CertificateSigningRequest) -> FieldErrors {
    common(new, old)
}

fn common(new: &CertificateSigningRequest, old: &CertificateSigningRequest) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let status = Path::new("status");
    let path = status.child("conditions");
    for kind in ["Approved", "Denied", "Failed"] {
        if of_type(new, kind).len() < of_type(old, kind).len() {
            errors.forbidden(path, format!("updates may not remove a condition of type {kind:?}"));
        }
    }
    let found = conditions(new);
    for (i, condition) in found.iter().enumerate() {
        let item = path.index(i);
        if condition.type_.is_empty() {
            errors.required(item.child("type"), "");
        }
        let allowed: &[&str] = match condition.type_.as_str() {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        if condition.status.is_empty() {
            errors.required(item.child("status"), "");
        } else if !allowed.contains(&condition.status.as_str()) {
            errors.not_supported(item.child("status"), &condition.status, allowed);
        }
        if found[..i].iter().any(|other| other.type_ == condition.type_) {
            errors.duplicate(item.child("type"), &condition.type_);
        }
        let opposite = found[..i].iter().any(|other| other.type_ != condition.type_ && is_decision(other));
        if is_decision(condition) && opposite {
            errors.invalid(path, &condition.type_, "Approved and Denied conditions are mutually exclusive");
        }
    }
    errors
}

fn is_decision(condition: &CertificateSigningRequestCondition) -> bool {
    DECISIONS.contains(&condition.type_.as_str())
}

fn conditions(request: &CertificateSigningRequest) -> &[CertificateSigningRequestCondition] {
    request.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default()
}

fn of_type<'r>(request: &'r CertificateSigningRequest, kind: &str) -> Vec<&'r CertificateSigningRequestCondition> {
    conditions(request).iter().filter(|condition| condition.type_ == kind).collect()
}

fn certificate(request: &CertificateSigningRequest) -> &[u8] {
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    certificate.map(|certificate| certificate.0.as_slice()).unwrap_or_default()
}

/// Certificates and nothing else.
fn chain(pem: &[u8]) -> Result<(), String> {
    if pem.is_empty() {
        return Ok(());
    }
    let mut count = 0;
    for block in Pem::iter_from_buffer(pem) {
        let block = block.map_err(|error| error.to_string())?;
        if block.label != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        x509_parser::parse_x509_certificate(&block.contents).map_err(|error| error.to_string())?;
        count += 1;
    }
    if count == 0 { Err("must contain at least one CERTIFICATE PEM block".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use rcgen::{CertificateParams, KeyPair};

    #[test]
    fn requests_are_signed_by_who_asks() {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::new(vec!["a".to_owned()]).unwrap().serialize_request(&key).unwrap();
        let pem = made.pem().unwrap();
        assert_eq!(request(pem.as_bytes()), Ok(()));
        let mut der = made.der().to_vec();
        *der.last_mut().unwrap() ^= 1;
        let forged = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
        let forged = format!("-----BEGIN CERTIFICATE REQUEST-----\n{forged}\n-----END CERTIFICATE REQUEST-----\n");
        let certificate = CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap().pem();
        for text in ["", "x", &forged, &certificate] {
            assert!(request(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn security_a_request_hides_no_other() {
        let made = |name: &str| {
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
        };
        let (shown, hidden) = (made("node"), made("kubernetes.default.svc"));
        assert_eq!(request(shown.as_bytes()), Ok(()));
        let other = shown.replace(LABEL, "X");
        for text in [
            format!("# {other}{hidden}"),
            format!("x\r{}{hidden}", shown.replace('\n', "\r")),
            format!("{shown}{hidden}"),
        ] {
            assert!(request(text.as_bytes()).is_err(), "{text}");
        }
    }

    fn with(kinds: &[&str], certificate: &str) -> CertificateSigningRequest {
        let condition = |kind: &&str| CertificateSigningRequestCondition {
            type_: (*kind).to_owned(),
            status: "True".to_owned(),
            ..Default::default()
        };
        let mut request = CertificateSigningRequest::default();
        let status = request.status.get_or_insert_default();
        status.conditions = Some(kinds.iter().map(condition).collect());
        status.certificate = (!certificate.is_empty()).then(|| ByteString(certificate.as_bytes().to_vec()));
        request
    }

    #[test]
    fn a_decision_is_made_in_one_place_and_stays() {
        let key = KeyPair::generate().unwrap();
        let pem = CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap().pem();
        for (old, new, by_status, by_approval) in [
            (with(&[], ""), with(&["Approved"], ""), false, true),
            (with(&[], ""), with(&["Approved", "Denied"], ""), false, false),
            (with(&["Approved"], ""), with(&[], ""), false, false),
            (with(&["Denied"], ""), with(&["Denied", "Approved"], ""), false, false),
            (with(&["Approved"], ""), with(&["Approved", "Failed"], ""), true, true),
            (with(&["Approved"], ""), with(&["Approved", "Other", "Other"], ""), false, false),
            (with(&["Approved"], ""), with(&["Approved"], &pem), true, true),
            (with(&["Approved"], ""), with(&["Approved"], "x"), false, true),
            (with(&["Approved"], &pem), with(&["Approved"], ""), false, true),
        ] {
            assert_eq!(status_update(&new, &old).is_empty(), by_status, "{old:?} -> {new:?}");
            assert_eq!(approval_update(&new, &old).is_empty(), by_approval, "{old:?} -> {new:?}");
        }
    }

    #[test]
    fn conditions_get_their_times() {
        let (early, late) = (Timestamp::from_second(1).unwrap(), Timestamp::from_second(2).unwrap());
        let mut old = with(&["Approved"], "");
        stamp(&mut old, &with(&[], ""), early);
        let mut new = with(&["Approved", "Failed"], "");
        stamp(&mut new, &old, late);
        let times: Vec<_> = conditions(&new).iter().map(|condition| condition.last_transition_time.clone()).collect();
        assert_eq!(times, [Some(Time(early)), Some(Time(late))]);
    }
}
