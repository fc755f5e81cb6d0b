//! Rules of PodCertificateRequests: who asks holds the key, and what a signer answers is a certificate for that key.

use api::field::{FieldError, FieldErrors, Path};
use api::validation;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1beta1::{
    PodCertificateRequest, PodCertificateRequestSpec, PodCertificateRequestStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

use super::public_key::{KeyError, PublicKey};
use super::rules;
use crate::metadata;
use crate::unset::{items, or_empty};

const SPEC: Path<'static> = Path::new("spec");
const STATUS: Path<'static> = Path::new("status");
const KEY: Path<'static> = Path::new("spec.pkixPublicKey");
const REQUEST: Path<'static> = Path::new("spec.stubPKCS10Request");
const CHAIN: Path<'static> = Path::new("status.certificateChain");

const UID: usize = 128;
/// Of a key, a proof and a request.
const PROOF: usize = 10 * 1024;
const CHAIN_SIZE: usize = 100 * 1024;
const ENDS: &[&str] = &["Issued", "Denied", "Failed"];
/// How far the clocks of a signer and of the server may be apart.
const SKEW: SignedDuration = SignedDuration::from_mins(5);
/// How long before its end, and after its beginning, a certificate is replaced.
const MARGIN: SignedDuration = SignedDuration::from_mins(10);

const NOT_A_REQUEST: &str = "must be a valid PKCS#10 CSR";
const NOT_A_KEY: &str = "must be a valid PKIX-serialized public key";
const UNKNOWN_KEY: &str = "unknown public key type; supported types are Ed25519, ECDSA, and RSA";
const SIZES: &str = "RSA keys must have modulus size 3072 or 4096";
const UNPROVEN: &str = "could not verify proof-of-possession signature";

/// A new request: it names its pod, and whoever sends it holds the key.
pub(super) fn created(request: &PodCertificateRequest) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let spec = &request.spec;
    rules::signer_name(&mut errors, &SPEC.child("signerName"), &spec.signer_name);
    if let Some(annotations) = &spec.unverified_user_annotations {
        rules::user_annotations(&mut errors, &SPEC.child("unverifiedUserAnnotations"), annotations);
    }
    for (name_field, name, uid_field, uid) in [
        ("podName", &spec.pod_name, "podUID", &spec.pod_uid),
        ("serviceAccountName", &spec.service_account_name, "serviceAccountUID", &spec.service_account_uid),
        ("nodeName", &spec.node_name, "nodeUID", &spec.node_uid),
    ] {
        errors.invalid_each(SPEC.child(name_field), name, validation::dns1123_subdomain(name));
        if uid.is_empty() {
            errors.invalid(SPEC.child(uid_field), uid, "must not be empty");
        }
        if uid.len() > UID {
            errors.too_long(SPEC.child(uid_field), UID);
        }
    }
    let Some(seconds) = spec.max_expiration_seconds else {
        errors.required(SPEC.child("maxExpirationSeconds"), "must be set");
        return errors;
    };
    let (shortest, longest) = (rules::SHORTEST_EXPIRATION, rules::longest_expiration(&spec.signer_name));
    if !(shortest..=longest).contains(&seconds) {
        let detail = format!("must be in the range [{shortest}, {longest}]");
        errors.invalid(SPEC.child("maxExpirationSeconds"), seconds, detail);
    }
    let (key, proof) = (key_of(spec), proof_of(spec));
    match (spec.stub_pkc_s10_request.0.is_empty(), key.is_empty(), proof.is_empty()) {
        (false, true, true) => stub(&mut errors, &spec.stub_pkc_s10_request.0),
        (true, false, false) => proven(&mut errors, spec),
        _ => without_value(
            &mut errors,
            &SPEC,
            "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set",
        ),
    }
    errors
}

fn key_of(spec: &PodCertificateRequestSpec) -> &[u8] {
    spec.pkix_public_key.as_ref().map(|key| key.0.as_slice()).unwrap_or_default()
}

fn proof_of(spec: &PodCertificateRequestSpec) -> &[u8] {
    spec.proof_of_possession.as_ref().map(|proof| proof.0.as_slice()).unwrap_or_default()
}

/// A key, and the uid of the pod signed with it.
fn proven(errors: &mut FieldErrors, spec: &PodCertificateRequestSpec) {
    let (key, proof) = (key_of(spec), proof_of(spec));
    let proof_path = SPEC.child("proofOfPossession");
    if key.len() > PROOF {
        errors.too_long(KEY, PROOF);
        return;
    }
    if proof.len() > PROOF {
        errors.too_long(proof_path, PROOF);
        return;
    }
    let key = match PublicKey::from_der(key) {
        Ok(PublicKey::Other) => {
            errors.invalid(KEY, &spec.pkix_public_key, UNKNOWN_KEY);
            return;
        }
        Ok(key) => key,
        Err(KeyError::Unreadable | KeyError::UnknownKind) => {
            errors.invalid(KEY, &spec.pkix_public_key, NOT_A_KEY);
            return;
        }
    };
    // Upstream's words leave P521 out here, and take it.
    if is_strong(errors, &KEY, &key, "elliptic public keys must use curve P256 or P384")
        && !key.is_proven_by(spec.pod_uid.as_bytes(), proof)
    {
        without_value(errors, &proof_path, UNPROVEN);
    }
}

/// An empty request for a certificate, which its sender signed. What is in it is for the signer to judge.
fn stub(errors: &mut FieldErrors, der: &[u8]) {
    if der.len() > PROOF {
        errors.too_long(REQUEST, PROOF);
        return;
    }
    let Ok(([], request)) = X509CertificationRequest::from_der(der) else {
        without_value(errors, &REQUEST, NOT_A_REQUEST);
        return;
    };
    let key = match PublicKey::of(&request.certification_request_info.subject_pki) {
        Ok(PublicKey::Other) | Err(KeyError::UnknownKind) => {
            without_value(errors, &REQUEST, UNKNOWN_KEY);
            return;
        }
        Ok(key) => key,
        Err(KeyError::Unreadable) => {
            without_value(errors, &REQUEST, NOT_A_REQUEST);
            return;
        }
    };
    if is_strong(errors, &REQUEST, &key, "elliptic public keys must use curve P256, P384, or P521")
        && !key.has_signed(&request)
    {
        without_value(errors, &REQUEST, "invalid signature");
    }
}

/// Whether a key is of a size that pods get certificates for; `curves` is said of another curve.
fn is_strong(errors: &mut FieldErrors, path: &Path<'_>, key: &PublicKey, curves: &str) -> bool {
    match key {
        PublicKey::P224 => {
            errors.invalid(path, "curve P-224", curves);
            false
        }
        PublicKey::Rsa { modulus, .. } => {
            let bits = modulus.bits().div_ceil(8) * 8;
            let fits = matches!(bits, 3072 | 4096);
            if !fits {
                errors.invalid(path, format!("{bits}-bit modulus"), SIZES);
            }
            fits
        }
        PublicKey::Ed25519(_) | PublicKey::Ecdsa(..) | PublicKey::Other => true,
    }
}

/// A write to `/status`: one answer, once, and a certificate is the one that was asked for.
pub(super) fn answered(new: &PodCertificateRequest, old: &PodCertificateRequest, now: Timestamp) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let nothing = PodCertificateRequestStatus::default();
    let (after, before) = (new.status.as_ref().unwrap_or(&nothing), old.status.as_ref().unwrap_or(&nothing));
    let conditions = items(&after.conditions);
    check_conditions(&mut errors, conditions);
    if !errors.is_empty() {
        return errors;
    }
    let is = |status: &PodCertificateRequestStatus, kind: &str| {
        items(&status.conditions).iter().any(|condition| condition.type_ == kind && condition.status == "True")
    };
    if ENDS.iter().any(|kind| is(before, kind)) {
        if after != before {
            without_value(&mut errors, &STATUS, "immutable after PodCertificateRequest is issued, denied, or failed");
        }
    } else if is(after, "Denied") || is(after, "Failed") {
        if *after != (PodCertificateRequestStatus { conditions: after.conditions.clone(), ..Default::default() }) {
            without_value(
                &mut errors,
                &STATUS,
                "non-condition status fields must be empty when denying or failing the PodCertificateRequest",
            );
        }
    } else if is(after, "Issued") {
        issued(&mut errors, after, &old.spec, now);
    } else if after != before {
        without_value(
            &mut errors,
            &STATUS,
            "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"",
        );
    }
    errors
}

fn check_conditions(errors: &mut FieldErrors, conditions: &[Condition]) {
    let path = STATUS.child("conditions");
    let mut ends = 0;
    for (i, condition) in conditions.iter().enumerate() {
        // Upstream writes the index as a name.
        let index = format!("[{i}]");
        let path = path.child(&index);
        if !ENDS.contains(&condition.type_.as_str()) {
            errors.not_supported(path.child("type"), &condition.type_, ENDS);
            continue;
        }
        ends += 1;
        if ends > 1 {
            errors.invalid(
                path.child("type"),
                &condition.type_,
                "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"",
            );
        }
        if condition.status != "True" {
            errors.not_supported(path.child("status"), &condition.status, &["True"]);
        }
    }
    metadata::conditions(errors, &path, conditions);
}

/// A chain of certificates whose first is for the key of the request, and times that are those of this certificate.
fn issued(
    errors: &mut FieldErrors,
    status: &PodCertificateRequestStatus,
    spec: &PodCertificateRequestSpec,
    now: Timestamp,
) {
    let chain = or_empty(&status.certificate_chain);
    if chain.len() > CHAIN_SIZE {
        errors.too_long(CHAIN, CHAIN_SIZE);
        return;
    }
    let mut blocks = Pem::iter_from_buffer(chain.as_bytes());
    let Some(Ok(first)) = blocks.next() else {
        errors.invalid(CHAIN, chain, "issued certificate chain must contain at least one certificate");
        return;
    };
    if first.label != "CERTIFICATE" {
        errors.invalid(CHAIN, chain, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks");
        return;
    }
    let Ok(([], leaf)) = X509Certificate::from_der(&first.contents) else {
        errors.invalid(CHAIN, chain, "leaf certificate does not parse as valid X.509");
        return;
    };
    names(errors, &leaf);
    let wanted = match spec.stub_pkc_s10_request.0.is_empty() {
        true => PublicKey::from_der(key_of(spec)).map_err(|_| (KEY, NOT_A_KEY)),
        false => X509CertificationRequest::from_der(&spec.stub_pkc_s10_request.0)
            .map_err(|_| KeyError::Unreadable)
            .and_then(|(_, request)| PublicKey::of(&request.certification_request_info.subject_pki))
            .map_err(|_| (REQUEST, NOT_A_REQUEST)),
    };
    let wanted = match wanted {
        Ok(key) => key,
        Err((path, detail)) => {
            without_value(errors, &path, detail);
            return;
        }
    };
    if PublicKey::of(leaf.public_key()) != Ok(wanted) {
        errors.invalid(CHAIN, chain, "leaf certificate was not issued to the requested public key");
        return;
    }
    times(errors, status, spec, &leaf, now);
    if !errors.is_empty() {
        return;
    }
    for block in blocks {
        match block {
            Ok(block) if block.label != "CERTIFICATE" => {
                // The word is upstream's.
                errors.invalid(CHAIN, chain, "issued certificate chain must consist entirely of CERTFICATE PEM blocks");
                return;
            }
            Ok(block) if matches!(X509Certificate::from_der(&block.contents), Ok(([], _))) => {}
            _ => {
                errors.invalid(CHAIN, chain, "intermediate certificate does not parse as valid X.509");
                return;
            }
        }
    }
}

fn names(errors: &mut FieldErrors, leaf: &X509Certificate<'_>) {
    let extension = leaf.subject_alternative_name().ok().flatten();
    for name in extension.iter().flat_map(|extension| &extension.value.general_names) {
        match name {
            GeneralName::DNSName(name) => {
                if name.is_empty() {
                    errors.invalid(CHAIN, name, "leaf certificate should not contain empty DNSName");
                }
                if name.contains("..") {
                    errors.invalid(CHAIN, name, "leaf certificate's DNSName should not contain '..'");
                }
                if name.starts_with('.') || name.ends_with('.') {
                    errors.invalid(CHAIN, name, "leaf certificate's DNSName should not start or end with '.'");
                }
            }
            GeneralName::RFC822Name(name) if !is_mail_address(name) => {
                errors.invalid(CHAIN, name, "leaf certificate should not contain invalid EmailAddress");
            }
            _ => {}
        }
    }
}

/// `someone@example.com`, as certificates have it: without quotes, comments or a name before it.
fn is_mail_address(text: &str) -> bool {
    let is_plain = |part: &str| {
        let is_special = |c: char| c.is_whitespace() || c.is_control() || "()<>[]:;@\\,\"".contains(c);
        !part.is_empty()
            && !part.contains("..")
            && !part.starts_with('.')
            && !part.ends_with('.')
            && !part.contains(is_special)
    };
    text.rsplit_once('@').is_some_and(|(local, domain)| is_plain(local) && is_plain(domain))
}

fn times(
    errors: &mut FieldErrors,
    status: &PodCertificateRequestStatus,
    spec: &PodCertificateRequestSpec,
    leaf: &X509Certificate<'_>,
    now: Timestamp,
) {
    const CONSISTENT: &str = "must be present and consistent with the issued certificate";
    let (begin_path, end_path) = (STATUS.child("notBefore"), STATUS.child("notAfter"));
    let refresh_path = STATUS.child("beginRefreshAt");
    for (path, time, detail) in [
        (&begin_path, &status.not_before, CONSISTENT),
        (&end_path, &status.not_after, CONSISTENT),
        (&refresh_path, &status.begin_refresh_at, "must be present and in the range [notbefore+10min, notafter-10min]"),
    ] {
        if time.is_none() {
            errors.required(path, detail);
        }
    }
    let (Some(Time(begin)), Some(Time(end)), Some(Time(refresh))) =
        (&status.not_before, &status.not_after, &status.begin_refresh_at)
    else {
        return;
    };
    let validity = leaf.validity();
    if Timestamp::from_second(validity.not_before.timestamp()).ok() != Some(*begin) {
        errors.invalid(begin_path, Time(*begin), "must be set to the NotBefore time encoded in the leaf certificate");
    } else if begin.duration_since(now).abs() >= SKEW {
        errors.invalid(begin_path, Time(*begin), "must be set to within 5 minutes of kube-apiserver's current time");
    } else if Timestamp::from_second(validity.not_after.timestamp()).ok() != Some(*end) {
        errors.invalid(end_path, Time(*end), "must be set to the NotAfter time encoded in the leaf certificate");
    } else if let Some(detail) = wrong_lifetime(spec, end.duration_since(*begin)) {
        // As upstream shows a duration: in nanoseconds, as many as it can hold.
        let lifetime = i64::try_from(end.duration_since(*begin).as_nanos()).unwrap_or(i64::MAX);
        errors.invalid(CHAIN, lifetime, detail);
    } else if refresh.duration_since(*begin) < MARGIN {
        errors.invalid(refresh_path, Time(*refresh), "must be at least 10 minutes after status.notBefore");
    } else if end.duration_since(*refresh) < MARGIN {
        errors.invalid(refresh_path, Time(*refresh), "must be at least 10 minutes before status.notAfter");
    }
}

fn wrong_lifetime(spec: &PodCertificateRequestSpec, lifetime: SignedDuration) -> Option<String> {
    let longest = spec.max_expiration_seconds.unwrap_or_default();
    if lifetime < SignedDuration::from_hours(1) {
        return Some("leaf certificate lifetime must be >= 1 hour".to_owned());
    }
    (lifetime > SignedDuration::from_secs(i64::from(longest)))
        .then(|| format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({longest})"))
}

/// Refused without a word about the value.
fn without_value(errors: &mut FieldErrors, path: &Path<'_>, detail: &str) {
    errors.push(FieldError { value: None, ..FieldError::invalid(path, "", detail) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use k8s_openapi::ByteString;
    use rcgen::{CertificateParams, KeyPair, PublicKeyData};
    use std::collections::BTreeMap;
    use std::time::{Duration, UNIX_EPOCH};

    const POD: &str = "0e5a5a6a-3a0c-4f6e-8c0e-0f2f4c8f1f55";

    struct Key {
        public: Vec<u8>,
        proof: Vec<u8>,
        request: Vec<u8>,
    }

    fn keys() -> BTreeMap<&'static str, Key> {
        let lines = include_str!("keys.txt").lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| {
                let parts: Vec<&str> = line.split(' ').collect();
                let bytes = |i: usize| STANDARD.decode(parts[i]).unwrap();
                (parts[0], Key { public: bytes(1), proof: bytes(2), request: bytes(3) })
            })
            .collect()
    }

    fn asked() -> PodCertificateRequestSpec {
        let name = || "a".to_owned();
        PodCertificateRequestSpec {
            signer_name: "a.example/b".to_owned(),
            pod_name: name(),
            pod_uid: POD.to_owned(),
            service_account_name: name(),
            service_account_uid: name(),
            node_name: name(),
            node_uid: name(),
            max_expiration_seconds: Some(3600),
            ..Default::default()
        }
    }

    fn by_proof(key: &[u8], proof: &[u8]) -> PodCertificateRequestSpec {
        PodCertificateRequestSpec {
            pkix_public_key: Some(ByteString(key.to_vec())),
            proof_of_possession: Some(ByteString(proof.to_vec())),
            ..asked()
        }
    }

    fn by_request(der: &[u8]) -> PodCertificateRequestSpec {
        PodCertificateRequestSpec { stub_pkc_s10_request: ByteString(der.to_vec()), ..asked() }
    }

    fn said(spec: PodCertificateRequestSpec) -> Vec<String> {
        created(&PodCertificateRequest { spec, ..Default::default() }).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn security_who_asks_for_a_pods_certificate_holds_the_key() {
        const NONE: Vec<String> = Vec::new();
        let keys = keys();
        for kind in ["ed25519", "p256", "p384", "p521", "rsa3072", "rsa4096"] {
            let key = &keys[kind];
            assert_eq!(said(by_proof(&key.public, &key.proof)), NONE, "{kind}");
            assert_eq!(said(by_request(&key.request)), NONE, "{kind}");
            // Somebody else's proof, one for another pod, and requests that were changed on their way.
            let other = if kind == "p521" { &keys["p256"] } else { &keys["p521"] };
            let unproven = [format!("spec.proofOfPossession: Invalid value: {UNPROVEN}")];
            assert_eq!(said(by_proof(&key.public, &other.proof)), unproven, "{kind}");
            for at in [0, key.proof.len() / 2, key.proof.len() - 1] {
                let mut proof = key.proof.clone();
                proof[at] ^= 1;
                assert_eq!(said(by_proof(&key.public, &proof)), unproven, "{kind} {at}");
            }
            assert_eq!(said(by_proof(&key.public, &key.proof[1..])), unproven, "{kind}");
            let elsewhere = PodCertificateRequestSpec { pod_uid: "b".to_owned(), ..by_proof(&key.public, &key.proof) };
            assert_eq!(said(elsewhere), unproven, "{kind}");
            let mut forged = key.request.clone();
            *forged.last_mut().unwrap() ^= 1;
            assert_eq!(
                said(by_request(&forged)),
                ["spec.stubPKCS10Request: Invalid value: invalid signature"],
                "{kind}"
            );
            let longer = [key.request.as_slice(), &[0]].concat();
            assert_eq!(said(by_request(&longer)), [format!("spec.stubPKCS10Request: Invalid value: {NOT_A_REQUEST}")]);
        }
    }

    #[test]
    fn keys_that_are_too_small_or_of_another_kind_are_refused() {
        let keys = keys();
        let shown = |key: &str| STANDARD.encode(&keys[key].public);
        let mut off_curve = keys["p521"].public.clone();
        *off_curve.last_mut().unwrap() ^= 1;
        let both = PodCertificateRequestSpec {
            stub_pkc_s10_request: ByteString(keys["p256"].request.clone()),
            ..by_proof(&keys["p256"].public, &keys["p256"].proof)
        };
        let one_of =
            "spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
        for (spec, expected) in [
            (
                by_proof(&keys["rsa2048"].public, &keys["rsa2048"].proof),
                format!("spec.pkixPublicKey: Invalid value: \"2048-bit modulus\": {SIZES}"),
            ),
            (
                by_request(&keys["rsa2048"].request),
                format!("spec.stubPKCS10Request: Invalid value: \"2048-bit modulus\": {SIZES}"),
            ),
            (
                by_proof(&keys["p224"].public, &keys["p224"].proof),
                "spec.pkixPublicKey: Invalid value: \"curve P-224\": elliptic public keys must use curve P256 or P384"
                    .to_owned(),
            ),
            (
                by_request(&keys["p224"].request),
                "spec.stubPKCS10Request: Invalid value: \"curve P-224\": elliptic public keys must use curve P256, P384, or P521"
                    .to_owned(),
            ),
            (
                by_proof(&keys["x25519"].public, &keys["x25519"].proof),
                format!("spec.pkixPublicKey: Invalid value: {:?}: {UNKNOWN_KEY}", shown("x25519")),
            ),
            (by_proof(b"x", b"x"), format!("spec.pkixPublicKey: Invalid value: \"eA==\": {NOT_A_KEY}")),
            (
                by_proof(&off_curve, &keys["p521"].proof),
                format!("spec.pkixPublicKey: Invalid value: {:?}: {NOT_A_KEY}", STANDARD.encode(&off_curve)),
            ),
            (by_request(b"x"), format!("spec.stubPKCS10Request: Invalid value: {NOT_A_REQUEST}")),
            (
                by_request(&[0; PROOF + 1]),
                "spec.stubPKCS10Request: Too long: may not be more than 10240 bytes".to_owned(),
            ),
            (asked(), one_of.to_owned()),
            (both, one_of.to_owned()),
            (by_proof(&keys["p256"].public, b""), one_of.to_owned()),
        ] {
            assert_eq!(said(spec), [expected]);
        }
    }

    #[test]
    fn requests_name_their_pod_and_last_within_limits() {
        let keys = keys();
        let key = &keys["ed25519"];
        let good = || by_proof(&key.public, &key.proof);
        let kubernetes = |seconds: i32| PodCertificateRequestSpec {
            signer_name: "kubernetes.io/b".to_owned(),
            max_expiration_seconds: Some(seconds),
            ..good()
        };
        assert_eq!(said(kubernetes(86_400)), Vec::<String>::new());
        for (spec, expected) in [
            (kubernetes(86_401), "spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]"),
            (
                PodCertificateRequestSpec { max_expiration_seconds: Some(3599), ..good() },
                "spec.maxExpirationSeconds: Invalid value: 3599: must be in the range [3600, 7862400]",
            ),
            (
                PodCertificateRequestSpec { max_expiration_seconds: None, ..good() },
                "spec.maxExpirationSeconds: Required value: must be set",
            ),
            (
                PodCertificateRequestSpec { node_uid: String::new(), ..good() },
                "spec.nodeUID: Invalid value: \"\": must not be empty",
            ),
            (
                PodCertificateRequestSpec { service_account_uid: "a".repeat(129), ..good() },
                "spec.serviceAccountUID: Too long: may not be more than 128 bytes",
            ),
            (
                PodCertificateRequestSpec { pod_name: "../x".to_owned(), ..good() },
                "spec.podName: Invalid value: \"../x\": a lowercase RFC 1123 subdomain",
            ),
            (
                PodCertificateRequestSpec {
                    unverified_user_annotations: Some(BTreeMap::from([("key".to_owned(), String::new())])),
                    ..good()
                },
                "spec.unverifiedUserAnnotations: Invalid value: \"key\": must be a domain-prefixed key",
            ),
        ] {
            let said = said(spec);
            assert!(said.len() == 1 && said[0].starts_with(expected), "{expected}: {said:?}");
        }
    }

    const NOW: i64 = 1_800_000_000;
    const HOUR: i64 = 3600;

    fn condition(kind: &str) -> Condition {
        Condition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: "R".to_owned(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::from_second(NOW).unwrap()),
        }
    }

    fn certificate(key: &KeyPair, from: i64, to: i64, names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        let moment = |seconds: i64| UNIX_EPOCH + Duration::from_secs(seconds.unsigned_abs());
        (params.not_before, params.not_after) = (moment(from).into(), moment(to).into());
        params.self_signed(key).unwrap().pem()
    }

    fn with(spec: &PodCertificateRequestSpec, status: PodCertificateRequestStatus) -> PodCertificateRequest {
        PodCertificateRequest { spec: spec.clone(), status: Some(status), ..Default::default() }
    }

    #[test]
    fn security_what_is_issued_is_for_the_key_and_the_time_that_were_asked_for() {
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let spec = by_proof(&key.subject_public_key_info(), b"x");
        let time = |seconds: i64| Some(Time(Timestamp::from_second(seconds).unwrap()));
        let issued = |chain: String, from: i64, to: i64, refresh: i64| PodCertificateRequestStatus {
            conditions: Some(vec![condition("Issued")]),
            certificate_chain: Some(chain),
            not_before: time(from),
            not_after: time(to),
            begin_refresh_at: time(refresh),
        };
        let pem = certificate(&key, NOW, NOW + HOUR, &["a"]);
        let half = NOW + HOUR / 2;
        let none = || with(&spec, PodCertificateRequestStatus::default());
        let good = issued(pem.clone(), NOW, NOW + HOUR, half);
        let now = Timestamp::from_second(NOW).unwrap();
        let said = |new: PodCertificateRequestStatus, old: &PodCertificateRequest| -> Vec<String> {
            answered(&with(&spec, new), old, now).iter().map(ToString::to_string).collect()
        };
        assert_eq!(said(good.clone(), &none()), Vec::<String>::new());
        // The same by a request in the place of a proof.
        let request = CertificateParams::new(Vec::new()).unwrap().serialize_request(&key).unwrap();
        let by_request = PodCertificateRequest { spec: by_request(request.der()), ..Default::default() };
        let answer = PodCertificateRequest { status: Some(good.clone()), ..by_request.clone() };
        assert!(answered(&answer, &by_request, now).is_empty());

        let theirs = certificate(&other, NOW, NOW + HOUR, &["a"]);
        let foreign = format!("{pem}{}", pem.replace("CERTIFICATE", "PRIVATE KEY"));
        let of = |from: i64, to: i64| issued(certificate(&key, from, to, &["a"]), from, to, from + HOUR / 2);
        for (status, expected) in [
            (issued(theirs, NOW, NOW + HOUR, half), "leaf certificate was not issued to the requested public key"),
            (issued(String::new(), NOW, NOW + HOUR, half), "must contain at least one certificate"),
            (issued(foreign, NOW, NOW + HOUR, half), "must consist entirely of CERTFICATE PEM blocks"),
            (
                issued(certificate(&key, NOW, NOW + HOUR, &["a..b"]), NOW, NOW + HOUR, half),
                "leaf certificate's DNSName should not contain '..'",
            ),
            (issued(pem.clone(), NOW + 1, NOW + HOUR, half), "the NotBefore time encoded in the leaf certificate"),
            (issued(pem.clone(), NOW, NOW + HOUR + 1, half), "the NotAfter time encoded in the leaf certificate"),
            (of(NOW - 300, NOW - 300 + HOUR), "within 5 minutes of kube-apiserver's current time"),
            (of(NOW, NOW + HOUR - 1), "3599000000000: leaf certificate lifetime must be >= 1 hour"),
            (
                of(NOW, NOW + HOUR + 1),
                "3601000000000: leaf certificate lifetime must be <= spec.maxExpirationSeconds (3600)",
            ),
            (issued(pem.clone(), NOW, NOW + HOUR, NOW + 599), "at least 10 minutes after status.notBefore"),
            (issued(pem.clone(), NOW, NOW + HOUR, NOW + HOUR - 599), "at least 10 minutes before status.notAfter"),
            (
                PodCertificateRequestStatus { not_before: None, ..good.clone() },
                "status.notBefore: Required value: must be present and consistent with the issued certificate",
            ),
            (
                PodCertificateRequestStatus { conditions: Some(vec![condition("Denied")]), ..good.clone() },
                "non-condition status fields must be empty when denying or failing",
            ),
            (
                PodCertificateRequestStatus { conditions: None, ..good.clone() },
                "status is immutable unless transitioning to",
            ),
            (
                PodCertificateRequestStatus {
                    conditions: Some(vec![condition("Issued"), condition("Failed")]),
                    ..good.clone()
                },
                "status.conditions.[1].type: Invalid value: \"Failed\": There may be at most one condition",
            ),
            (
                PodCertificateRequestStatus { conditions: Some(vec![condition("Ready")]), ..good.clone() },
                "status.conditions.[0].type: Unsupported value: \"Ready\": supported values: \"Issued\", \"Denied\", \"Failed\"",
            ),
        ] {
            let said = said(status, &none());
            assert!(said.len() == 1 && said[0].contains(expected), "{expected}: {said:?}");
        }
        // What was answered stays.
        let denied = PodCertificateRequestStatus { conditions: Some(vec![condition("Denied")]), ..Default::default() };
        assert_eq!(said(denied.clone(), &none()), Vec::<String>::new());
        assert_eq!(said(denied.clone(), &with(&spec, denied.clone())), Vec::<String>::new());
        assert_eq!(
            said(good, &with(&spec, denied)),
            ["status: Invalid value: immutable after PodCertificateRequest is issued, denied, or failed"]
        );
    }
}
