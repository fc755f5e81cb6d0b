//! PodCertificateRequest and ClusterTrustBundle: certificates of pods, and whom to trust for a signer.

use api::field::{FieldErrors, Path};
use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};

use super::{pod_request, rules};
use crate::{NameRule, SelectableField, Strategy};

pub struct PodCertificateRequestStrategy;
pub struct ClusterTrustBundleStrategy;

impl Strategy for PodCertificateRequestStrategy {
    type Object = PodCertificateRequest;

    fn apply_defaults(&self, request: &mut PodCertificateRequest) {
        request.spec.max_expiration_seconds.get_or_insert(24 * rules::SHORTEST_EXPIRATION);
    }

    fn validate_create(&self, request: &PodCertificateRequest) -> FieldErrors {
        pod_request::created(request)
    }

    /// What was admitted is what is signed.
    fn validate_update(&self, new: &PodCertificateRequest, old: &PodCertificateRequest) -> FieldErrors {
        let mut errors = FieldErrors::default();
        errors.immutable("spec", &new.spec, &old.spec);
        errors
    }

    fn validate_status_update_at(
        &self,
        new: &PodCertificateRequest,
        old: &PodCertificateRequest,
        now: Timestamp,
    ) -> FieldErrors {
        pod_request::answered(new, old, now)
    }

    const UNCONDITIONAL_UPDATE: bool = false;

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

    /// The name of one that belongs to a signer begins with the signer's, which has colons in it.
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn validate_create(&self, bundle: &ClusterTrustBundle) -> FieldErrors {
        let mut errors = names(bundle);
        rules::trust_bundle(&mut errors, &Path::new("spec.trustBundle"), &bundle.spec.trust_bundle);
        errors
    }

    fn validate_update(&self, new: &ClusterTrustBundle, old: &ClusterTrustBundle) -> FieldErrors {
        // What was good when it was stored stays so, whatever is asked of bundles by now.
        let mut errors = match new.spec.trust_bundle == old.spec.trust_bundle {
            true => names(new),
            false => self.validate_create(new),
        };
        errors.immutable("spec.signerName", &new.spec.signer_name, &old.spec.signer_name);
        errors
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const { &[SelectableField::new("spec.signerName", &["spec", "signerName"])] }
    }
}

fn names(bundle: &ClusterTrustBundle) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let name = bundle.metadata.name();
    let signer = bundle.spec.signer_name.as_deref().unwrap_or_default();
    errors.invalid_each("metadata.name", name, rules::trust_bundle_name(name, signer));
    if !signer.is_empty() {
        rules::signer_name(&mut errors, &Path::new("spec.signerName"), signer);
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundleSpec;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    #[test]
    fn security_bundles_hold_authorities_and_name_their_signer() {
        let pem = |is_ca: IsCa| {
            let mut params = CertificateParams::new(vec!["a".to_owned()]).unwrap();
            params.is_ca = is_ca;
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
        };
        let (authority, leaf) = (pem(IsCa::Ca(BasicConstraints::Unconstrained)), pem(IsCa::ExplicitNoCa));
        let said = |name: &str, signer: &str, bundle: &str| -> Vec<String> {
            let signer_name = (!signer.is_empty()).then(|| signer.to_owned());
            let mut object = ClusterTrustBundle {
                spec: ClusterTrustBundleSpec { signer_name, trust_bundle: bundle.to_owned() },
                ..Default::default()
            };
            object.metadata.name = Some(name.to_owned());
            ClusterTrustBundleStrategy.validate_create(&object).iter().map(ToString::to_string).collect()
        };
        for (name, signer) in [("plain", ""), ("a.example:b:c", "a.example/b")] {
            assert_eq!(said(name, signer, &authority), Vec::<String>::new(), "{name}");
        }
        let twice = format!("{authority}{authority}");
        for (name, signer, bundle, expected) in [
            (
                "a.example:b:c",
                "",
                authority.as_str(),
                "metadata.name: Invalid value: \"a.example:b:c\": ClusterTrustBundle without signer name",
            ),
            (
                "plain",
                "a.example/b",
                authority.as_str(),
                "metadata.name: Invalid value: \"plain\": ClusterTrustBundle for signerName a.example/b must be named with prefix a.example:b:",
            ),
            (
                "plain",
                "",
                "",
                "spec.trustBundle: Invalid value: \"<value omitted>\": at least one trust anchor must be provided",
            ),
            (
                "plain",
                "",
                leaf.as_str(),
                "spec.trustBundle: Invalid value: \"<value omitted>\": entry 0 does not have the CA bit set",
            ),
            (
                "plain",
                "",
                twice.as_str(),
                "spec.trustBundle: Invalid value: \"<value omitted>\": duplicate trust anchor (indices [0 1])",
            ),
        ] {
            let said = said(name, signer, bundle);
            assert!(said.len() == 1 && said[0].starts_with(expected), "{name}: {said:?}");
        }
    }
}
