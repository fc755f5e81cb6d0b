//! ValidatingAdmissionPolicy: policies that refuse, warn or note.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::Status;
use api::sort::CompactSort as _;
use api::status::StatusCause;
use cel::Value;
use serde_json::json;

use super::super::expressions::{Answers, Failure, Input, Run, Scope};
use super::super::metrics::observe_check;
use super::super::{Admitted, Attributes, Plugin, admitted, later};
use super::dispatch::{Common, Invocation, Misconfigured, invocations, is_exempt};
use super::source::{Policy, Rule, Source, Validating};
use crate::cluster::Cluster;

/// The longest message that an expression may make, and the longest note in the audit log.
const LONGEST_MESSAGE: usize = 5 * 1024;
const LONGEST_ANNOTATION: usize = 10 * 1024;

#[derive(Default)]
pub(crate) struct ValidatingPolicy(Source);

impl Plugin for ValidatingPolicy {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let policies = match self.0.policies::<Validating>(cluster) {
            Ok(policies) => policies,
            Err(_) if is_exempt(attributes) => return admitted(),
            Err(unreadable) => return Err(unreadable.into()).into(),
        };
        if policies.is_empty() || is_exempt(attributes) {
            return admitted();
        }
        later(async move { ask_all(cluster, &policies, attributes).await })
    }
}

/// A reason to refuse the write.
struct Refusal {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: Option<String>,
}

async fn ask_all(cluster: &Cluster, policies: &[Policy], attributes: &Attributes<'_>) -> Result<(), Status> {
    let mut refusals = Vec::new();
    let mut common = Common::default();
    let answers = Answers::default();
    for policy in policies {
        let (invocations, problems) = invocations(cluster, policy, attributes).await;
        refusals.extend(problems.into_iter().filter_map(misconfigured));
        let mut annotations: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for invocation in &invocations {
            let began = Instant::now();
            let verdicts = ask(cluster, invocation, attributes, &mut common, &answers).await?;
            let took = began.elapsed() / u32::try_from(verdicts.len()).unwrap_or(u32::MAX).max(1);
            for verdict in verdicts {
                let (action, error) = outcome(&verdict, &invocation.binding.actions);
                observe_check(&policy.name, &invocation.binding.name, action, error, took);
                follow(invocation, verdict, attributes, &mut refusals, &mut annotations);
            }
        }
        for (key, mut values) in annotations {
            values.dedup();
            attributes.annotate(format!("{}/{key}", policy.name), values.join(", "));
        }
    }
    match refusals.into_iter().next() {
        Some(refusal) => Err(refused(attributes, refusal)),
        None => Ok(()),
    }
}

fn misconfigured(problem: Misconfigured<'_>) -> Option<Refusal> {
    (!problem.policy.fails_open).then(|| Refusal {
        policy: problem.policy.name.clone(),
        binding: problem.binding.map(|binding| binding.name.clone()),
        message: problem.message,
        reason: None,
    })
}

/// How a verdict is counted: the strongest thing that is done about it, and whether an expression failed.
fn outcome(verdict: &Verdict, actions: &[String]) -> (&'static str, &'static str) {
    let error = if verdict.has_failed { "unspecified_error" } else { "no_error" };
    if verdict.violations.is_empty() && verdict.failures.is_empty() {
        return ("allow", error);
    }
    let has = |action: &str| actions.iter().any(|known| known == action);
    let action = [("Deny", "deny"), ("Warn", "warn"), ("Audit", "audit")].into_iter().find(|(name, _)| has(name));
    (action.map_or("deny", |(_, shown)| shown), error)
}

/// What a policy makes of a write, with one value of its parameters.
#[derive(Default)]
struct Verdict {
    violations: Vec<Violation>,
    annotations: Vec<(String, String)>,
    /// Notes that could not be made, where that is a reason to refuse.
    failures: Vec<String>,
    /// An expression had no value.
    has_failed: bool,
}

struct Violation {
    /// Of the validation.
    index: usize,
    message: String,
    reason: Option<String>,
}

async fn ask(
    cluster: &Cluster,
    invocation: &Invocation<'_>,
    attributes: &Attributes<'_>,
    common: &mut Common,
    answers: &Answers,
) -> Result<Vec<Verdict>, Status> {
    let mut verdicts = Vec::new();
    for params in &invocation.params {
        let shown = common.shown(attributes, &invocation.found).await?;
        let namespace = common.namespace(cluster, attributes).await?;
        loop {
            let mut input = Input::new(attributes, &shown, answers);
            input.params = params.clone();
            // Conditions know nothing of the namespace.
            let conditions = input.clone().scope();
            input.namespace = namespace.clone();
            let scope = input.with_variables(&invocation.policy.variables);
            let verdict = judge(invocation.policy, &conditions, &scope);
            if !answers.ask(cluster).await {
                verdicts.push(verdict);
                break;
            }
        }
    }
    Ok(verdicts)
}

/// Decides, never awaits. May be repeated when there are answers that were missing.
fn judge(policy: &Policy, conditions: &Scope, scope: &Scope) -> Verdict {
    let undecided = |message: String| {
        let violations = match policy.fails_open {
            true => Vec::new(),
            false => vec![Violation { index: 0, message, reason: None }],
        };
        Verdict { violations, has_failed: true, ..Verdict::default() }
    };
    match policy.conditions.decide(conditions) {
        Ok(true) => {}
        Ok(false) => return Verdict::default(),
        Err(problem) => return undecided(problem.to_string()),
    }
    let mut verdict = Verdict::default();
    let mut run = Run::new();
    let mut broken = Vec::new();
    for (index, rule) in policy.validations.iter().enumerate() {
        match run.evaluate(&rule.program, scope) {
            Ok(Value::Bool(true)) => {}
            Ok(_) => broken.push((index, rule)),
            Err(failure @ Failure::OutOfBudget) => return undecided(failure.to_string()),
            Err(Failure::Expression(_)) if policy.fails_open => verdict.has_failed = true,
            Err(Failure::Expression(message)) => {
                verdict.has_failed = true;
                verdict.violations.push(Violation { index, message, reason: None });
            }
        }
    }
    for (index, rule) in broken {
        let message = message(rule, &mut run, scope);
        verdict.violations.push(Violation { index, message, reason: rule.reason.clone() });
    }
    verdict.violations.compact_sort_by_key(|violation| violation.index);
    let mut run = Run::new();
    for (key, program) in &policy.annotations {
        match run.evaluate(program, scope) {
            Ok(Value::String(text)) if !text.trim().is_empty() => {
                verdict.annotations.push((key.clone(), cut(text.trim()).to_owned()));
            }
            Ok(_) => {}
            Err(failure @ Failure::OutOfBudget) => return undecided(failure.to_string()),
            Err(Failure::Expression(_)) if policy.fails_open => {}
            Err(Failure::Expression(message)) => verdict.failures.push(message),
        }
    }
    verdict
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_ANNOTATION)]
}

/// The message of a rule that is broken: what its expression makes, else what it says, else the rule itself.
fn message(rule: &Rule, run: &mut Run, scope: &Scope) -> String {
    if let Some(program) = &rule.message_program
        && let Ok(Value::String(text)) = run.evaluate(program, scope)
    {
        let text = text.trim();
        if !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n') {
            return text.to_owned();
        }
    }
    match rule.message.trim() {
        "" => format!("failed expression: {}", rule.expression.trim()),
        message => message.to_owned(),
    }
}

/// Does what the binding wants done about violations.
fn follow(
    invocation: &Invocation<'_>,
    verdict: Verdict,
    attributes: &Attributes<'_>,
    refusals: &mut Vec<Refusal>,
    annotations: &mut BTreeMap<String, Vec<String>>,
) {
    let (policy, binding) = (invocation.policy, invocation.binding);
    let refusal = |message: &str, reason: Option<&String>| Refusal {
        policy: policy.name.clone(),
        binding: Some(binding.name.clone()),
        message: message.to_owned(),
        reason: reason.cloned(),
    };
    for violation in &verdict.violations {
        let message = violation.message.as_str();
        for action in &binding.actions {
            match action.as_str() {
                "Deny" => refusals.push(refusal(message, violation.reason.as_ref())),
                "Warn" => attributes.warn(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                    policy.name, binding.name
                )),
                "Audit" => {
                    let value = json!([{
                        "message": message, "policy": policy.name, "binding": binding.name,
                        "expressionIndex": violation.index, "validationActions": binding.actions,
                    }]);
                    attributes.annotate("validation.policy.admission.k8s.io/validation_failure", value.to_string());
                }
                _ => {}
            }
        }
    }
    for (key, value) in verdict.annotations {
        annotations.entry(key).or_default().push(value);
    }
    refusals.extend(verdict.failures.iter().map(|message| refusal(message, None)));
}

fn refused(attributes: &Attributes<'_>, refusal: Refusal) -> Status {
    let Refusal { policy, binding, message, reason } = refusal;
    let message = match binding {
        Some(binding) => {
            format!("ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}")
        }
        None => format!("ValidatingAdmissionPolicy '{policy}' denied request: {message}"),
    };
    let mut status = attributes.forbidden(&message);
    let reason = reason.filter(|reason| !reason.is_empty()).unwrap_or_else(|| "Invalid".to_owned());
    status.code = match reason.as_str() {
        "Forbidden" => 403,
        "Unauthorized" => 401,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    status.reason = reason.into();
    status.details.get_or_insert_default().causes.push(StatusCause { message, ..StatusCause::default() });
    status
}
