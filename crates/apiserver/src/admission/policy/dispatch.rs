//! Which policies mean a write, bound by what, with which parameters.

use std::collections::BTreeMap;

use api::Status;
use cel::Value;

use super::super::Attributes;
use super::super::expressions::{Shown, namespace_object};
use super::super::matching::{Match, matched};
use super::params;
use super::source::{Binding, Policy};
use crate::cluster::Cluster;

/// A policy and a binding that mean the write, and each value of the parameters.
pub(super) struct Invocation<'p> {
    pub(super) policy: &'p Policy,
    pub(super) binding: &'p Binding,
    pub(super) found: Match,
    pub(super) params: Vec<Value>,
}

/// A policy that means the write but cannot be asked.
pub(super) struct Misconfigured<'p> {
    pub(super) policy: &'p Policy,
    pub(super) binding: Option<&'p Binding>,
    pub(super) message: String,
}

/// Admission policies are not subject to admission policies: one could otherwise never be repaired.
pub(super) fn is_exempt(attributes: &Attributes<'_>) -> bool {
    let group = &*attributes.resource.group;
    let is_policy = group == "admissionregistration.k8s.io"
        && matches!(
            &*attributes.resource.kind,
            "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding"
                | "MutatingAdmissionPolicy"
                | "MutatingAdmissionPolicyBinding"
        );
    // Questions, which change nothing.
    let is_question = matches!(group, "authentication.k8s.io" | "authorization.k8s.io");
    is_policy || is_question
}

/// All invocations of one policy.
pub(super) async fn invocations<'p>(
    cluster: &Cluster,
    policy: &'p Policy,
    attributes: &Attributes<'_>,
) -> (Vec<Invocation<'p>>, Vec<Misconfigured<'p>>) {
    let (mut invocations, mut problems) = (Vec::new(), Vec::new());
    let found = match matched(cluster, &policy.criteria, attributes).await {
        Ok(Some(found)) => found,
        Ok(None) => return (invocations, problems),
        Err(status) => {
            let message = format!("failed to configure policy: {}", status.message);
            return (invocations, vec![Misconfigured { policy, binding: None, message }]);
        }
    };
    for binding in &policy.bindings {
        let outcome = invocation(cluster, policy, binding, &found, attributes).await;
        match outcome {
            Ok(Some(invocation)) => invocations.push(invocation),
            Ok(None) => {}
            Err(problem) => {
                let message = format!("failed to configure binding: {problem}");
                problems.push(Misconfigured { policy, binding: Some(binding), message });
            }
        }
    }
    (invocations, problems)
}

/// Why a binding cannot be followed.
#[derive(Debug, thiserror::Error)]
enum BindingError {
    #[error(transparent)]
    Criteria(#[from] Status),
    #[error(transparent)]
    Params(#[from] params::ParamsError),
}

async fn invocation<'p>(
    cluster: &Cluster,
    policy: &'p Policy,
    binding: &'p Binding,
    found: &Match,
    attributes: &Attributes<'_>,
) -> Result<Option<Invocation<'p>>, BindingError> {
    if let Some(criteria) = &binding.criteria
        && matched(cluster, criteria, attributes).await?.is_none()
    {
        return Ok(None);
    }
    let reference = binding.param_ref.as_ref();
    let params = params::collect(cluster, policy.param_kind.as_ref(), reference, attributes.namespace).await?;
    Ok(Some(Invocation { policy, binding, found: found.clone(), params }))
}

/// What is the same for all policies that see a write, made when the first one does.
#[derive(Default)]
pub(super) struct Common {
    versions: BTreeMap<String, Shown>,
    namespace: Option<Value>,
}

impl Common {
    pub(super) async fn shown(&mut self, attributes: &Attributes<'_>, found: &Match) -> Result<Shown, Status> {
        let resource = found.resource(attributes);
        let key = resource.api_version();
        if let Some(shown) = self.versions.get(&key) {
            return Ok(shown.clone());
        }
        let shown = Shown::new(attributes, resource).await?;
        self.versions.insert(key, shown.clone());
        Ok(shown)
    }

    /// The object has changed.
    pub(super) fn forget_versions(&mut self) {
        self.versions.clear();
    }

    pub(super) async fn namespace(&mut self, cluster: &Cluster, attributes: &Attributes<'_>) -> Result<Value, Status> {
        if self.namespace.is_none() {
            self.namespace = Some(namespace_object(cluster, attributes).await?);
        }
        Ok(self.namespace.clone().unwrap_or(Value::Null))
    }
}
