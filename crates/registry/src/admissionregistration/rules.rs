//! What admission policies and their bindings must be; expressions must compile.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use cel::Type;
use k8s_openapi::api::admissionregistration::v1::{
    AuditAnnotation, MatchResources, MutatingAdmissionPolicySpec, Mutation, NamedRuleWithOperations, ParamKind,
    ParamRef, RuleWithOperations, ValidatingAdmissionPolicySpec, Validation, Variable,
};

use super::environment::{Compiler, Names, mutation_type};
use super::webhook::{choice, conditions, rules};
use crate::metadata::label_selector;
use crate::unset::{items, or_empty};

const SPEC: Path<'static> = Path::new("spec");
const MOST_ANNOTATIONS: usize = 20;
const LONGEST_ANNOTATION: usize = 5 * 1024;

pub(super) fn validating(name: &str, spec: &ValidatingAdmissionPolicySpec) -> FieldErrors {
    let mut errors = FieldErrors::default();
    choice(&mut errors, &SPEC.child("failurePolicy"), or_empty(&spec.failure_policy), &["Fail", "Ignore"]);
    let names = Names { params: spec.param_kind.is_some(), authorizer: true, patches: false };
    param_kind(&mut errors, spec.param_kind.as_ref());
    constraints(&mut errors, spec.match_constraints.as_ref());
    conditions(&mut errors, &SPEC.child("matchConditions"), items(&spec.match_conditions), names.params);
    let compiler = variables(&mut errors, items(&spec.variables), names);
    let (validations, annotations) = (items(&spec.validations), items(&spec.audit_annotations));
    if validations.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        errors.required("spec.validations", detail);
        errors.required("spec.auditAnnotations", detail);
    }
    for (i, item) in validations.iter().enumerate() {
        validation(&mut errors, &SPEC.child("validations").index(i), item, &compiler, names);
    }
    if annotations.len() > MOST_ANNOTATIONS {
        let detail = format!("must not have more than {MOST_ANNOTATIONS} auditAnnotations");
        errors.invalid("spec.auditAnnotations", annotations, detail);
    }
    let mut keys = BTreeSet::new();
    for (i, item) in annotations.iter().enumerate() {
        let path = SPEC.child("auditAnnotations");
        let path = path.index(i);
        annotation(&mut errors, &path, name, item, &compiler, names);
        if !keys.insert(item.key.as_str()) {
            errors.duplicate(path.child("key"), &item.key);
        }
    }
    errors
}

pub(super) fn mutating(spec: &MutatingAdmissionPolicySpec) -> FieldErrors {
    let mut errors = FieldErrors::default();
    choice(&mut errors, &SPEC.child("failurePolicy"), or_empty(&spec.failure_policy), &["Fail", "Ignore"]);
    let names = Names { params: spec.param_kind.is_some(), authorizer: true, patches: false };
    param_kind(&mut errors, spec.param_kind.as_ref());
    constraints(&mut errors, spec.match_constraints.as_ref());
    mutating_operations(&mut errors, &SPEC.child("matchConstraints"), spec.match_constraints.as_ref());
    conditions(&mut errors, &SPEC.child("matchConditions"), items(&spec.match_conditions), names.params);
    let compiler = variables(&mut errors, items(&spec.variables), names);
    let mutations = items(&spec.mutations);
    if mutations.is_empty() {
        errors.required("spec.mutations", "mutations must contain at least one item");
    }
    for (i, item) in mutations.iter().enumerate() {
        mutation(&mut errors, &SPEC.child("mutations").index(i), item, &compiler, names);
    }
    let policy = or_empty(&spec.reinvocation_policy);
    choice(&mut errors, &SPEC.child("reinvocationPolicy"), policy, &["IfNeeded", "Never"]);
    errors
}

/// What both kinds of bindings have in common.
pub(super) fn binding(
    errors: &mut FieldErrors,
    policy: &str,
    reference: Option<&ParamRef>,
    resources: Option<&MatchResources>,
) {
    match policy {
        "" => errors.required("spec.policyName", ""),
        name => errors.invalid_each("spec.policyName", name, api::validation::dns1123_subdomain(name)),
    }
    if let Some(reference) = reference {
        param_ref(errors, &SPEC.child("paramRef"), reference);
    }
    if let Some(resources) = resources {
        match_resources(errors, &SPEC.child("matchResources"), resources);
    }
}

/// What is deleted cannot be changed any more.
pub(super) fn mutating_operations(errors: &mut FieldErrors, path: &Path<'_>, resources: Option<&MatchResources>) {
    let rules = resources.map_or(&[][..], |resources| items(&resources.resource_rules));
    for operation in rules.iter().flat_map(|rule| items(&rule.operations)) {
        if !matches!(operation.as_str(), "*" | "CREATE" | "UPDATE" | "CONNECT") {
            let path = path.child("resourceRules");
            errors.not_supported(path.child("operations"), operation, &["*", "CONNECT", "CREATE", "UPDATE"]);
        }
    }
}

fn constraints(errors: &mut FieldErrors, constraints: Option<&MatchResources>) {
    let path = SPEC.child("matchConstraints");
    let Some(constraints) = constraints else { return errors.required(path, "") };
    match_resources(errors, &path, constraints);
    if items(&constraints.resource_rules).is_empty() {
        errors.required(path.child("resourceRules"), "");
    }
}

fn match_resources(errors: &mut FieldErrors, path: &Path<'_>, resources: &MatchResources) {
    choice(errors, &path.child("matchPolicy"), or_empty(&resources.match_policy), &["Equivalent", "Exact"]);
    label_selector(errors, &path.child("namespaceSelector"), resources.namespace_selector.as_ref());
    label_selector(errors, &path.child("objectSelector"), resources.object_selector.as_ref());
    named_rules(errors, &path.child("resourceRules"), items(&resources.resource_rules));
    named_rules(errors, &path.child("excludeResourceRules"), items(&resources.exclude_resource_rules));
}

fn named_rules(errors: &mut FieldErrors, path: &Path<'_>, named: &[NamedRuleWithOperations]) {
    for (i, rule) in named.iter().enumerate() {
        let path = path.index(i);
        let path = path.child("resourceNames");
        let mut seen = BTreeSet::new();
        for (i, name) in items(&rule.resource_names).iter().enumerate() {
            errors.invalid_each(path.index(i), name, api::validation::path_segment_name(name));
            if !seen.insert(name) {
                errors.duplicate(path.index(i), name);
            }
        }
    }
    let plain: Vec<RuleWithOperations> = named
        .iter()
        .map(|rule| RuleWithOperations {
            api_groups: rule.api_groups.clone(),
            api_versions: rule.api_versions.clone(),
            operations: rule.operations.clone(),
            resources: rule.resources.clone(),
            scope: rule.scope.clone(),
        })
        .collect();
    rules(errors, path, &plain);
}

fn param_kind(errors: &mut FieldErrors, kind: Option<&ParamKind>) {
    let Some(kind) = kind else { return };
    let path = SPEC.child("paramKind");
    let (api_version, name) = (or_empty(&kind.api_version), or_empty(&kind.kind));
    let at = path.child("apiVersion");
    if api_version.is_empty() {
        errors.required(at, "");
    } else {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let problems = api::validation::dns1123_subdomain(group);
        if !group.is_empty() && !problems.is_empty() {
            errors.invalid(at, group, problems.join(","));
        }
        let problems = api::validation::dns1035_label(version);
        if version.is_empty() {
            errors.invalid(at, api_version, "version must be specified");
        } else if !problems.is_empty() {
            errors.invalid(at, version, problems.join(","));
        }
    }
    let problems = api::validation::dns1035_label(&name.to_lowercase());
    if name.is_empty() {
        errors.required(path.child("kind"), "");
    } else if !problems.is_empty() {
        let detail = format!("may have mixed case, but should otherwise match: {}", problems.join(","));
        errors.invalid(path.child("kind"), name, detail);
    }
}

fn param_ref(errors: &mut FieldErrors, path: &Path<'_>, reference: &ParamRef) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let name = or_empty(&reference.name);
    if !name.is_empty() {
        errors.invalid_each(path.child("name"), name, api::validation::path_segment_name(name));
        if reference.selector.is_some() {
            errors.forbidden(path.child("name"), EXCLUSIVE);
        }
    }
    if reference.selector.is_some() {
        label_selector(errors, &path.child("selector"), reference.selector.as_ref());
        if !name.is_empty() {
            errors.forbidden(path.child("selector"), EXCLUSIVE);
        }
    }
    if name.is_empty() && reference.selector.is_none() {
        errors.required(path, "one of name or selector must be specified");
    }
    let action = or_empty(&reference.parameter_not_found_action);
    choice(errors, &path.child("parameterNotFoundAction"), action, &["Deny", "Allow"]);
}

/// Checks variables in their order: each may use those before it.
fn variables(errors: &mut FieldErrors, variables: &[Variable], names: Names) -> Compiler {
    if variables.is_empty() {
        return Compiler::default();
    }
    let mut compiler = Compiler::with_variables();
    for (i, variable) in variables.iter().enumerate() {
        let path = SPEC.child("variables");
        let path = path.index(i);
        if variable.name.trim().is_empty() {
            errors.required(path.child("name"), "name is not specified");
        } else if !cel::is_identifier(&variable.name) {
            errors.invalid(path.child("name"), &variable.name, "must be a valid CEL identifier");
        }
        if variable.expression.trim().is_empty() {
            errors.required(path.child("expression"), "expression is not specified");
        } else if let Err(problem) = compiler.variable(&variable.name, &variable.expression, names) {
            errors.invalid(path.child("expression"), &variable.expression, problem.to_string());
        }
    }
    compiler
}

fn validation(errors: &mut FieldErrors, path: &Path<'_>, item: &Validation, compiler: &Compiler, names: Names) {
    match item.expression.trim() {
        "" => errors.required(path.child("expression"), "expression is not specified"),
        _ => compiler.check(errors, path.child("expression"), &item.expression, names, &[Type::Bool]),
    }
    let source = or_empty(&item.message_expression);
    if !source.is_empty() && source.trim().is_empty() {
        errors.invalid(path.child("messageExpression"), source, "must be non-empty if specified");
    } else if !source.is_empty() {
        let names = Names { authorizer: false, ..names };
        compiler.check(errors, path.child("messageExpression"), source, names, &[Type::String]);
    }
    let message = or_empty(&item.message);
    if !message.is_empty() && message.trim().is_empty() {
        errors.invalid(path.child("message"), message, "must be non-empty if specified");
    } else if message.trim().contains('\n') {
        errors.invalid(path.child("message"), message, "must not contain line breaks");
    }
    if let Some(reason) = &item.reason
        && !matches!(reason.as_str(), "Forbidden" | "Invalid" | "RequestEntityTooLarge")
    {
        errors.not_supported(path.child("reason"), reason, &["Forbidden", "Invalid", "RequestEntityTooLarge"]);
    }
}

fn annotation(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    policy: &str,
    item: &AuditAnnotation,
    compiler: &Compiler,
    names: Names,
) {
    let key = path.child("key");
    match policy {
        "" => errors.invalid(key, &item.key, "requires metadata.name be non-empty"),
        _ => {
            let full = format!("{policy}/{}", item.key);
            errors.invalid_each(key, &full, api::validation::qualified_name(&full));
        }
    }
    let at = path.child("valueExpression");
    match item.value_expression.trim() {
        "" => errors.required(at, "valueExpression is not specified"),
        source if source.len() > LONGEST_ANNOTATION => {
            errors.required(at, format!("must not exceed {LONGEST_ANNOTATION} bytes in length"));
        }
        source => {
            if let Err(problem) = compiler.compile(source, names, &[Type::String, Type::Null]) {
                errors.invalid(at, &item.value_expression, problem.to_string());
            }
        }
    }
}

fn mutation(errors: &mut FieldErrors, path: &Path<'_>, item: &Mutation, compiler: &Compiler, names: Names) {
    let apply = item.apply_configuration.as_ref().map(|apply| or_empty(&apply.expression));
    let patch = item.json_patch.as_ref().map(|patch| or_empty(&patch.expression));
    let (wanted, other, is_json_patch) = match item.patch_type.as_str() {
        "" => return errors.required(path.child("patchType"), ""),
        "ApplyConfiguration" => (("applyConfiguration", apply), ("jsonPatch", patch), false),
        "JSONPatch" => (("jsonPatch", patch), ("applyConfiguration", apply), true),
        unknown => {
            return errors.not_supported(path.child("patchType"), unknown, &["ApplyConfiguration", "JSONPatch"]);
        }
    };
    let at = path.child(wanted.0);
    match wanted.1.map(str::trim) {
        None => errors.required(at, format!("must be specified when patchType is {}", item.patch_type)),
        Some("") => errors.required(at.child("expression"), ""),
        Some(source) => {
            let names = Names { patches: true, ..names };
            compiler.check(errors, at.child("expression"), source, names, &[mutation_type(is_json_patch)]);
        }
    }
    if other.1.is_some() {
        let detail = format!("must not be specified when patchType is {}", item.patch_type);
        errors.invalid(path.child(other.0), format!("{{{}}}", other.0), detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn with(more: Value) -> Value {
        let mut spec = json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never", "matchConstraints": {
            "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, "resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["CREATE"]}]}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    }

    #[test]
    fn validating_policies_are_checked() {
        for (more, expected) in [
            (json!({"validations": [{"expression": "object.spec.replicas > 1"}]}), ""),
            (
                json!({"variables": [{"name": "a", "expression": "object.spec.replicas"},
                    {"name": "b", "expression": "variables.a % 2 == 1"}], "validations": [{"expression": "variables.b",
                    "messageExpression": "'is ' + string(variables.a)"}]}),
                "",
            ),
            (
                json!({"validations": [{"expression": "object.spec.replicas >"}]}),
                "spec.validations[0].expression: Invalid value: \"object.spec.replicas >\": compilation failed: ERROR: <input>:1:23: Syntax error",
            ),
            (
                json!({"validations": [{"expression": "variables.c"}], "variables": [{"name": "a", "expression": "1"}]}),
                "undefined field 'c'",
            ),
            (json!({"validations": [{"expression": "params.x == 1"}]}), "undeclared reference to 'params'"),
            (
                json!({"validations": [{"expression": "params.x == 1"}], "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}),
                "",
            ),
            (
                json!({"validations": [{"expression": "true", "messageExpression": "1"}]}),
                "spec.validations[0].messageExpression: Invalid value: \"1\": must evaluate to string but got int",
            ),
            (json!({"validations": [{"expression": "request.nope == ''"}]}), "undefined field 'nope'"),
            (
                json!({"validations": [{"expression": "request.userInfo.username == 'x' && namespaceObject.metadata.name == 'y'"}]}),
                "",
            ),
            (
                json!({"variables": [{"name": "for", "expression": "1"}], "validations": [{"expression": "true"}]}),
                "must be a valid CEL identifier",
            ),
            (json!({}), "validations or auditAnnotations must contain at least one item"),
            (json!({"validations": [{"expression": "true", "reason": "Gone"}]}), "Unsupported value: \"Gone\""),
        ] {
            let found = validating("p", &serde_json::from_value(with(more.clone())).unwrap());
            assert_eq!(found.is_empty(), expected.is_empty(), "{more}: {found}");
            assert!(found.to_string().contains(expected), "{more}: {found}");
        }
    }

    #[test]
    fn mutating_policies_are_checked() {
        let apply = |source: &str| json!({"mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": source}}]});
        let patch =
            |source: &str| json!({"mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": source}}]});
        for (more, expected) in [
            (apply("Object{spec: Object.spec{replicas: 1337}}"), ""),
            (apply("Object{metadata: Object.metadata{annotations: {'a': 'b'}}}"), ""),
            (apply("{'spec': 1}"), "must evaluate to Object but got map(string, int)"),
            (apply("Objct{}"), "undeclared reference to 'Objct'"),
            (patch("[JSONPatch{op: 'add', path: '/x/' + jsonpatch.escapeKey('a/b'), value: object.spec}]"), ""),
            (patch("[JSONPatch{op: 'add', nope: '/x'}]"), "undefined field 'nope'"),
            (patch("true"), "must evaluate to list(JSONPatch) but got bool"),
            (json!({"mutations": [{"patchType": "Merge"}]}), "Unsupported value: \"Merge\""),
            (json!({"mutations": [{"patchType": "JSONPatch"}]}), "must be specified when patchType is JSONPatch"),
            (json!({}), "mutations must contain at least one item"),
        ] {
            let found = mutating(&serde_json::from_value(with(more.clone())).unwrap());
            assert_eq!(found.is_empty(), expected.is_empty(), "{more}: {found}");
            assert!(found.to_string().contains(expected), "{more}: {found}");
        }
    }
}
