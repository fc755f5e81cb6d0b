//! CertificateSigningRequest: someone asks for a certificate, someone else says yes.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use serde_json::{Value, json};

use super::rules;
use crate::column::Column;
use crate::unset::{items, or_empty};
use crate::{Action, Call, SelectableField, Strategy, cells};

pub struct CertificateSigningRequestStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::AGE,
    Column::string("SignerName", "Who should sign."),
    Column::string("Requestor", "Who asks."),
    Column::string("RequestedDuration", "For how long."),
    Column::string("Condition", "How it stands."),
];

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

impl Strategy for CertificateSigningRequestStrategy {
    type Object = CertificateSigningRequest;

    /// Only the conditions, with the times of those that changed.
    fn with_part(
        &self,
        action: Action,
        new: &CertificateSigningRequest,
        old: &CertificateSigningRequest,
        now: Timestamp,
    ) -> Option<CertificateSigningRequest> {
        if action != Action::Approval {
            return None;
        }
        let mut kept = CertificateSigningRequest { metadata: new.metadata.clone(), ..old.clone() };
        let conditions = new.status.as_ref().and_then(|status| status.conditions.clone());
        kept.status.get_or_insert_default().conditions = conditions;
        rules::stamp(&mut kept, old, now);
        Some(kept)
    }

    fn validate_part_update(
        &self,
        action: Action,
        new: &CertificateSigningRequest,
        old: &CertificateSigningRequest,
    ) -> FieldErrors {
        match action {
            Action::Approval => rules::approval_update(new, old),
            _ => FieldErrors::default(),
        }
    }

    fn prepare_for_create(&self, call: &Call<'_>, request: &mut CertificateSigningRequest) {
        // Who asks is what authentication found, never what the body says.
        let spec = &mut request.spec;
        spec.username = Some(call.user.name.clone());
        spec.uid = Some(call.user.uid.clone()).filter(|uid| !uid.is_empty());
        spec.groups = Some(call.user.groups.clone()).filter(|groups| !groups.is_empty());
        spec.extra = Some(call.user.extra.clone()).filter(|extra| !extra.is_empty());
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut CertificateSigningRequest, old: &CertificateSigningRequest) {
        new.spec.clone_from(&old.spec);
    }

    fn validate_create(&self, request: &CertificateSigningRequest) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let (spec, path) = (&request.spec, Path::new("spec"));
        if let Err(error) = rules::request(&spec.request.0) {
            errors.invalid(path.child("request"), &spec.request, error);
        }
        let usages = items(&spec.usages);
        if usages.is_empty() {
            errors.required(path.child("usages"), "");
        }
        let mut seen = BTreeSet::new();
        for (i, usage) in usages.iter().enumerate() {
            let path = path.child("usages");
            if !USAGES.contains(&usage.as_str()) {
                errors.not_supported(path.index(i), usage, USAGES);
            }
            if !seen.insert(usage) {
                errors.duplicate(path.index(i), usage);
            }
        }
        let signer = path.child("signerName");
        if spec.signer_name == "kubernetes.io/legacy-unknown" {
            errors.invalid(signer, &spec.signer_name, "the legacy signerName is not allowed via this API version");
        } else {
            rules::signer_name(&mut errors, &signer, &spec.signer_name);
        }
        if let Some(seconds) = spec.expiration_seconds.filter(|&seconds| seconds < 600) {
            errors.invalid(
                path.child("expirationSeconds"),
                seconds,
                "may not specify a duration less than 600 seconds (10 minutes)",
            );
        }
        errors
    }

    fn prepare_for_status_update(
        &self,
        call: &Call<'_>,
        new: &mut CertificateSigningRequest,
        old: &CertificateSigningRequest,
    ) {
        new.spec.clone_from(&old.spec);
        rules::keep_decision(new, old);
        rules::stamp(new, old, call.now);
    }

    fn validate_status_update(&self, new: &CertificateSigningRequest, old: &CertificateSigningRequest) -> FieldErrors {
        rules::status_update(new, old)
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const { &[SelectableField::new("spec.signerName", &["spec", "signerName"])] }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, request: &CertificateSigningRequest, now: Timestamp) -> Vec<Value> {
        let spec = &request.spec;
        let status = request.status.clone().unwrap_or_default();
        let is = |wanted: &str| items(&status.conditions).iter().any(|condition| condition.type_ == wanted);
        let mut state = if is("Denied") {
            "Denied"
        } else if is("Approved") {
            "Approved"
        } else {
            "Pending"
        }
        .to_owned();
        if is("Failed") {
            state.push_str(",Failed");
        }
        if status.certificate.as_ref().is_some_and(|certificate| !certificate.0.is_empty()) {
            state.push_str(",Issued");
        }
        let signer = if spec.signer_name.is_empty() { "<none>" } else { &spec.signer_name };
        vec![
            cells::name(&request.metadata),
            cells::age(&request.metadata, now),
            json!(signer),
            json!(or_empty(&spec.username)),
            json!(spec.expiration_seconds.map_or("<none>".to_owned(), |s| api::duration::human(i64::from(s)))),
            json!(state),
        ]
    }
}
