//! Certificate requests: approve those of kubelets, sign what is approved, remove what is old.

mod approve;
mod clean;
mod error;
mod request;
mod sign;
mod subject;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

pub(crate) use approve::build as build_approver;
pub(crate) use clean::build as build_cleaner;
pub(crate) use sign::build as build_signer;

const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const LEGACY_UNKNOWN: &str = "kubernetes.io/legacy-unknown";

fn has_condition(request: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == kind)
}

fn is_issued(request: &CertificateSigningRequest) -> bool {
    request
        .status
        .as_ref()
        .and_then(|status| status.certificate.as_ref())
        .is_some_and(|certificate| !certificate.0.is_empty())
}
