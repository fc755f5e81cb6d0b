//! Admission policies in CEL and their bindings: validating and mutating.

use api::field::{FieldErrors, Path};
use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ParamKind, ParamRef,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use serde_json::{Value, json};

use super::rules;
use crate::column::Column;
use crate::unset::{items, items_mut, or_empty, set_text, text};
use crate::{Strategy, cells};

pub struct ValidatingAdmissionPolicyStrategy;
pub struct ValidatingAdmissionPolicyBindingStrategy;
pub struct MutatingAdmissionPolicyStrategy;
pub struct MutatingAdmissionPolicyBindingStrategy;

const PARAM_KIND: Column = Column::string("ParamKind", "What parameters the policy takes.");
const VALIDATING: &[Column] =
    &[Column::NAME, Column::integer("Validations", "How many rules there are."), PARAM_KIND, Column::AGE];
const MUTATING: &[Column] =
    &[Column::NAME, Column::integer("Mutations", "How many changes there are."), PARAM_KIND, Column::AGE];
const BINDING: &[Column] = &[
    Column::NAME,
    Column::string("PolicyName", "The policy that is bound."),
    Column::string("ParamRef", "The parameters it is bound with."),
    Column::AGE,
];

impl Strategy for ValidatingAdmissionPolicyStrategy {
    type Object = ValidatingAdmissionPolicy;
    const UNCONDITIONAL_UPDATE: bool = false;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, policy: &mut ValidatingAdmissionPolicy) {
        let Some(spec) = &mut policy.spec else { return };
        set_text(&mut spec.failure_policy, "Fail");
        if let Some(constraints) = &mut spec.match_constraints {
            match_resources(constraints);
        }
    }

    fn validate_create(&self, policy: &ValidatingAdmissionPolicy) -> FieldErrors {
        let name = policy.metadata.name();
        rules::validating(name, &policy.spec.clone().unwrap_or_default())
    }

    fn validate_update(&self, new: &ValidatingAdmissionPolicy, _: &ValidatingAdmissionPolicy) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        VALIDATING
    }

    fn cells(&self, policy: &ValidatingAdmissionPolicy, now: Timestamp) -> Vec<Value> {
        let spec = policy.spec.clone().unwrap_or_default();
        vec![
            cells::name(&policy.metadata),
            json!(items(&spec.validations).len()),
            param_kind(spec.param_kind.as_ref()),
            cells::age(&policy.metadata, now),
        ]
    }
}

impl Strategy for MutatingAdmissionPolicyStrategy {
    type Object = MutatingAdmissionPolicy;
    const UNCONDITIONAL_UPDATE: bool = false;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, policy: &mut MutatingAdmissionPolicy) {
        let Some(spec) = &mut policy.spec else { return };
        set_text(&mut spec.failure_policy, "Fail");
        if let Some(constraints) = &mut spec.match_constraints {
            match_resources(constraints);
        }
    }

    fn validate_create(&self, policy: &MutatingAdmissionPolicy) -> FieldErrors {
        rules::mutating(&policy.spec.clone().unwrap_or_default())
    }

    fn validate_update(&self, new: &MutatingAdmissionPolicy, _: &MutatingAdmissionPolicy) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        MUTATING
    }

    fn cells(&self, policy: &MutatingAdmissionPolicy, now: Timestamp) -> Vec<Value> {
        let spec = policy.spec.clone().unwrap_or_default();
        vec![
            cells::name(&policy.metadata),
            json!(items(&spec.mutations).len()),
            param_kind(spec.param_kind.as_ref()),
            cells::age(&policy.metadata, now),
        ]
    }
}

impl Strategy for ValidatingAdmissionPolicyBindingStrategy {
    type Object = ValidatingAdmissionPolicyBinding;
    const UNCONDITIONAL_UPDATE: bool = false;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, binding: &mut ValidatingAdmissionPolicyBinding) {
        if let Some(resources) = &mut binding.spec.match_resources {
            match_resources(resources);
        }
    }

    fn validate_create(&self, binding: &ValidatingAdmissionPolicyBinding) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = &binding.spec;
        let (policy, resources) = (spec.policy_name.as_str(), spec.match_resources.as_ref());
        rules::binding(&mut errors, policy, spec.param_ref.as_ref(), resources);
        let actions = spec.validation_actions.as_slice();
        if actions.is_empty() {
            errors.required("spec.validationActions", "at least one validation action is required");
        }
        for (i, action) in actions.iter().enumerate() {
            if !matches!(action.as_str(), "Audit" | "Deny" | "Warn") {
                errors.not_supported(format!("spec.validationActions[{i}]"), action, &["Audit", "Deny", "Warn"]);
            }
            if actions[..i].contains(action) {
                errors.duplicate(format!("spec.validationActions[{i}]"), action);
            }
        }
        let has = |wanted: &str| actions.iter().any(|action| action == wanted);
        if has("Deny") && has("Warn") {
            errors.invalid("spec.validationActions", actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)");
        }
        errors
    }

    fn validate_update(
        &self,
        new: &ValidatingAdmissionPolicyBinding,
        _: &ValidatingAdmissionPolicyBinding,
    ) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        BINDING
    }

    fn cells(&self, binding: &ValidatingAdmissionPolicyBinding, now: Timestamp) -> Vec<Value> {
        let spec = &binding.spec;
        vec![
            cells::name(&binding.metadata),
            json!(spec.policy_name),
            param_ref(spec.param_ref.as_ref()),
            cells::age(&binding.metadata, now),
        ]
    }
}

impl Strategy for MutatingAdmissionPolicyBindingStrategy {
    type Object = MutatingAdmissionPolicyBinding;
    const UNCONDITIONAL_UPDATE: bool = false;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, binding: &mut MutatingAdmissionPolicyBinding) {
        if let Some(resources) = binding.spec.as_mut().and_then(|spec| spec.match_resources.as_mut()) {
            match_resources(resources);
        }
    }

    fn validate_create(&self, binding: &MutatingAdmissionPolicyBinding) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = binding.spec.clone().unwrap_or_default();
        let (policy, resources) = (or_empty(&spec.policy_name), spec.match_resources.as_ref());
        rules::binding(&mut errors, policy, spec.param_ref.as_ref(), resources);
        rules::mutating_operations(&mut errors, &Path::new("spec.matchResources"), resources);
        errors
    }

    fn validate_update(&self, new: &MutatingAdmissionPolicyBinding, _: &MutatingAdmissionPolicyBinding) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        BINDING
    }

    fn cells(&self, binding: &MutatingAdmissionPolicyBinding, now: Timestamp) -> Vec<Value> {
        let spec = binding.spec.clone().unwrap_or_default();
        vec![
            cells::name(&binding.metadata),
            json!(or_empty(&spec.policy_name)),
            param_ref(spec.param_ref.as_ref()),
            cells::age(&binding.metadata, now),
        ]
    }
}

fn match_resources(resources: &mut MatchResources) {
    set_text(&mut resources.match_policy, "Equivalent");
    resources.namespace_selector.get_or_insert_default();
    resources.object_selector.get_or_insert_default();
    let rules = items_mut(&mut resources.resource_rules).iter_mut();
    for rule in rules.chain(items_mut(&mut resources.exclude_resource_rules)) {
        set_text(&mut rule.scope, "*");
    }
}

fn param_kind(kind: Option<&ParamKind>) -> Value {
    let shown = kind.map(|kind| format!("{}/{}", or_empty(&kind.api_version), or_empty(&kind.kind)));
    json!(shown.as_deref().unwrap_or("<unset>"))
}

fn param_ref(reference: Option<&ParamRef>) -> Value {
    let shown = reference.map(|reference| match (text(&reference.namespace), text(&reference.name)) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (None, Some(name)) => name.to_owned(),
        (namespace, None) => {
            let selector = cells::selector(reference.selector.as_ref());
            format!("{}{}", namespace.map_or(String::new(), |n| format!("{n}/")), selector.as_str().unwrap_or_default())
        }
    });
    json!(shown.as_deref().unwrap_or("<unset>"))
}
