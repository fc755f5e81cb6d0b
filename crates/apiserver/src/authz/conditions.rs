//! Match conditions of an authorization webhook: all must be true for it to be asked.

use std::sync::LazyLock;

use api::UserInfo;
use api::field::FieldErrors;
use cel::{Budget, Env, PER_CALL_LIMIT, Program, Type, Value};
use serde_json::json;

use super::Attributes;
use registry::admissionregistration::environment::structure;

/// As upstream's admission and authorization allow.
const MAX_CONDITIONS: usize = 64;
/// What all conditions of a webhook may cost for one request.
const BUDGET: u64 = 2_500_000;

/// Conditions that are neither true nor false.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undecided {
    #[error("running out of cost budget, no further conditions are run")]
    OutOfBudget,
    #[error("{}", api::field::aggregate(.0))]
    Failed(Vec<String>),
}

pub(super) struct Conditions(Vec<Program>);

impl Conditions {
    /// Compiles them; `path` is where they stand in their file.
    pub(super) fn new(expressions: &[String], path: &str) -> Result<Self, FieldErrors> {
        let mut errors = FieldErrors::default();
        if expressions.len() > MAX_CONDITIONS {
            errors.too_many(path, expressions.len(), MAX_CONDITIONS);
            return Err(errors);
        }
        let mut programs = Vec::new();
        for (index, expression) in expressions.iter().enumerate() {
            let path = format!("{path}[{index}].expression");
            if expression.trim().is_empty() {
                errors.required(path, "");
            } else if expressions[..index].contains(expression) {
                errors.duplicate(path, expression);
            } else {
                match ENVIRONMENT.compile_as(expression, &[Type::Bool]) {
                    Ok(program) => programs.push(program),
                    Err(problem) => errors.invalid(path, expression, problem.to_string()),
                }
            }
        }
        if errors.is_empty() { Ok(Self(programs)) } else { Err(errors) }
    }

    /// Whether the webhook is to be asked. One that is false decides, even if others fail; otherwise a failure does.
    pub(super) fn decide(&self, user: &UserInfo, attributes: &Attributes) -> Result<bool, Undecided> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let request = request(user, attributes);
        let variables = |name: &str| (name == "request").then(|| request.clone());
        let (mut left, mut problems) = (BUDGET, Vec::new());
        for program in &self.0 {
            let mut budget = Budget::new(PER_CALL_LIMIT);
            let result = program.run(&variables, &mut budget);
            left = left.checked_sub(budget.used()).ok_or(Undecided::OutOfBudget)?;
            match result {
                Ok(Value::Bool(false)) => return Ok(false),
                Ok(_) => {}
                Err(error) => {
                    problems.push(format!("expression '{}' resulted in error: {error}", program.source()));
                }
            }
        }
        if problems.is_empty() { Ok(true) } else { Err(Undecided::Failed(problems)) }
    }
}

/// The spec of a SubjectAccessReview, with every text even if it is empty.
fn request(user: &UserInfo, attributes: &Attributes) -> Value {
    let mut spec = json!({"user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
    if !attributes.is_resource {
        spec["nonResourceAttributes"] = json!({"path": attributes.path, "verb": attributes.verb});
        return Value::from_json(&spec);
    }
    let mut resource = json!({
        "namespace": attributes.namespace,
        "verb": attributes.verb,
        "group": attributes.group,
        "version": attributes.version,
        "resource": attributes.resource,
        "subresource": attributes.subresource,
        "name": attributes.name,
    });
    for (key, mut requirements) in [
        ("fieldSelector", super::webhook::field_requirements(&attributes.field_selector)),
        ("labelSelector", super::webhook::label_requirements(&attributes.label_selector)),
    ] {
        if requirements.is_empty() {
            continue;
        }
        for requirement in requirements.iter_mut().filter(|requirement| requirement.get("values").is_none()) {
            requirement["values"] = json!([]);
        }
        resource[key] = json!({"requirements": requirements});
    }
    spec["resourceAttributes"] = resource;
    Value::from_json(&spec)
}

static ENVIRONMENT: LazyLock<Env> = LazyLock::new(|| {
    let text = || Type::String;
    let texts = || Type::list(Type::String);
    let requirement =
        structure("kubernetes.SelectorRequirement", &[("key", text()), ("operator", text()), ("values", texts())]);
    let selector =
        |name| structure(name, &[("rawSelector", text()), ("requirements", Type::list(requirement.clone()))]);
    let resource = structure(
        "kubernetes.ResourceAttributes",
        &[
            ("namespace", text()),
            ("verb", text()),
            ("group", text()),
            ("version", text()),
            ("resource", text()),
            ("subresource", text()),
            ("name", text()),
            ("fieldSelector", selector("kubernetes.FieldSelectorAttributes")),
            ("labelSelector", selector("kubernetes.LabelSelectorAttributes")),
        ],
    );
    let other = structure("kubernetes.NonResourceAttributes", &[("path", text()), ("verb", text())]);
    let spec = structure(
        "kubernetes.SubjectAccessReviewSpec",
        &[
            ("resourceAttributes", resource),
            ("nonResourceAttributes", other),
            ("user", text()),
            ("groups", texts()),
            ("extra", Type::map(text(), texts())),
            ("uid", text()),
        ],
    );
    Env::default().with("request", spec)
});

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(expressions: &[&str], attributes: &Attributes) -> Result<bool, String> {
        let expressions: Vec<String> = expressions.iter().map(|text| (*text).to_owned()).collect();
        let conditions = Conditions::new(&expressions, "m").map_err(|errors| errors.to_string())?;
        conditions.decide(&UserInfo::new("ann", &["dev"]), attributes).map_err(|undecided| undecided.to_string())
    }

    fn pods() -> Attributes {
        Attributes {
            is_resource: true,
            verb: "list".into(),
            version: "v1".into(),
            resource: "pods".into(),
            namespace: "kube-system".into(),
            label_selector: "app=web,!old".into(),
            ..Default::default()
        }
    }

    #[test]
    fn all_must_be_true() {
        let metrics = Attributes { verb: "get".into(), path: "/metrics".into(), ..Default::default() };
        let bad = "request.resourceAttributes.namespace == 'x'";
        for (expressions, attributes, expected) in [
            (&[][..], pods(), Ok(true)),
            (&["has(request.resourceAttributes)"], pods(), Ok(true)),
            (&["has(request.resourceAttributes)"], metrics.clone(), Ok(false)),
            (&["request.resourceAttributes.namespace == 'kube-system'"], pods(), Ok(true)),
            (&["request.resourceAttributes.name == ''"], pods(), Ok(true)),
            (&["'dev' in request.groups", "request.user != 'ann'"], pods(), Ok(false)),
            (&["!('system:masters' in request.groups)", "request.uid == ''"], pods(), Ok(true)),
            (&["request.nonResourceAttributes.path.startsWith('/met')"], metrics.clone(), Ok(true)),
            (
                &[
                    "request.resourceAttributes.labelSelector.requirements.exists(r, r.key == 'old' && r.operator == 'DoesNotExist')",
                ],
                pods(),
                Ok(true),
            ),
            // A false one decides whatever the others do.
            (&[bad, "request.user == 'bob'"], metrics.clone(), Ok(false)),
            (&[bad], metrics, Err(())),
        ] {
            assert_eq!(decide(expressions, &attributes).map_err(drop), expected, "{expressions:?}");
        }
    }

    #[test]
    fn mistakes_get_the_words_of_upstream() {
        for (expressions, expected) in [
            (&["1 + 1"][..], "m[0].expression: Invalid value: \"1 + 1\": must evaluate to bool but got int"),
            (&["true", "true"], "m[1].expression: Duplicate value: \"true\""),
            (&[" "], "m[0].expression: Required value"),
            (&["request.nobody == 'x'"], "compilation failed: "),
            (&["object.metadata.name == 'x'"], "compilation failed: "),
        ] {
            let error = decide(expressions, &pods()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let many: Vec<String> = (0..65).map(|number| format!("{number} > 0")).collect();
        let error = Conditions::new(&many, "m").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("m: Too many: 65: must have at most 64 items"), "{error}");
    }
}
