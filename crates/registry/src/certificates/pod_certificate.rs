//! PodCertificateRequest and ClusterTrustBundle: certificates of pods, and whom to trust for a signer.

use api::field::{FieldErrors, IMMUTABLE};
use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};

use crate::{SelectableField, Strategy};

pub struct PodCertificateRequestStrategy;
pub struct ClusterTrustBundleStrategy;

impl Strategy for PodCertificateRequestStrategy {
    type Object = PodCertificateRequest;

    /// What was admitted is what is signed.
    fn validate_update(&self, new: &PodCertificateRequest, old: &PodCertificateRequest) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if new.spec != old.spec {
            errors.invalid("spec", "<request>", IMMUTABLE);
        }
        errors
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const {
            &[
                SelectableField::new("spec.signerName", &["spec", "signerName"]),
                SelectableField::new("spec.podName", &["spec", "podName"]),
                SelectableField::new("spec.nodeName", &["spec", "nodeName"]),
            ]
        }
    }
}

impl Strategy for ClusterTrustBundleStrategy {
    type Object = ClusterTrustBundle;

    fn validate_update(&self, new: &ClusterTrustBundle, old: &ClusterTrustBundle) -> FieldErrors {
        let mut errors = FieldErrors::default();
        errors.immutable("spec.signerName", &new.spec.signer_name, &old.spec.signer_name);
        errors
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const { &[SelectableField::new("spec.signerName", &["spec", "signerName"])] }
    }
}
