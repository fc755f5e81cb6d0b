//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: servers outside that are asked about writes.
//!
//! Flow of one write: `source` (what is configured, parsed once per change of a configuration) -> `matching` (does a
//! webhook want to see it, and in which version) -> `review` (question and answer) -> `call` (dry-run rules, the call
//! itself, what a failure means) -> here, where patches are applied and refusals end the request. Mutating webhooks
//! are asked one after the other, validating ones all at once. Without configurations the plug-ins return at once.

mod call;
mod matching;
mod mutating;
mod review;
mod source;
mod validating;

pub(super) use mutating::MutatingWebhook;
pub(super) use validating::ValidatingWebhook;

use super::Attributes;

/// Configurations of admission itself are never shown to webhooks: a broken one could otherwise never be repaired.
fn is_exempt(attributes: &Attributes<'_>) -> bool {
    attributes.resource.group == "admissionregistration.k8s.io"
        && matches!(
            &*attributes.resource.kind,
            "ValidatingWebhookConfiguration"
                | "MutatingWebhookConfiguration"
                | "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding"
                | "MutatingAdmissionPolicy"
                | "MutatingAdmissionPolicyBinding"
                | "InitializerConfiguration"
        )
}
