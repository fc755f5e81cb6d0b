//! MutatingAdmissionPolicy: policies that change objects, one after the other.

use std::sync::Arc;

use api::Status;
use api::schema::Struct;
use api::status::StatusCause;
use cel::Value;

use super::super::expressions::{Answers, Failure, Input, Run, Shown};
use super::super::reinvocation::Callees;
use super::super::versioned::{stored, versioned_object};
use super::super::{Admitted, Attributes, Plugin, admitted, later};
use super::dispatch::{Common, Invocation, invocations, is_exempt};
use super::patch;
use super::source::{Change, Mutating, Policy, Source};
use crate::cluster::Cluster;

#[derive(Default)]
pub(crate) struct MutatingPolicy(Source);

impl Plugin for MutatingPolicy {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let policies = match self.0.policies::<Mutating>(cluster) {
            Ok(policies) => policies,
            Err(_) if is_exempt(attributes) => return admitted(),
            Err(unreadable) => return Err(unreadable.into()).into(),
        };
        if policies.is_empty() || is_exempt(attributes) {
            return admitted();
        }
        later(async move {
            attributes.reinvocation.enter(Callees::Policies, attributes.object.as_deref());
            let outcome = ask_all(cluster, &policies, attributes).await;
            attributes.reinvocation.leave(Callees::Policies, attributes.object.as_deref());
            outcome
        })
    }
}

async fn ask_all(cluster: &Cluster, policies: &[Policy], attributes: &mut Attributes<'_>) -> Result<(), Status> {
    let mut problems = Vec::new();
    let mut all = Vec::new();
    // Which policies mean the write is decided before the first one changes it.
    for policy in policies {
        let (invocations, misconfigured) = invocations(cluster, policy, attributes).await;
        all.extend(invocations);
        let misconfigured = misconfigured.into_iter().filter(|problem| !problem.policy.fails_open);
        problems.extend(misconfigured.map(|problem| match problem.binding {
            Some(binding) => denial(problem.policy, &binding.name, &problem.message),
            None => format!("policy {:?} denied request: {}", problem.policy.name, problem.message),
        }));
    }
    let mut common = Common::default();
    let answers = Answers::default();
    let mut reason = None;
    for invocation in &all {
        for (i, params) in invocation.params.iter().enumerate() {
            let found = ask(cluster, invocation, (i, params), attributes, &mut common, &answers).await?;
            if !invocation.policy.fails_open && !found.is_empty() {
                reason.get_or_insert(problems.is_empty());
                let name = &invocation.binding.name;
                problems.extend(found.iter().map(|problem| denial(invocation.policy, name, problem)));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(refused(attributes, problems, reason == Some(true))) }
}

fn denial(policy: &Policy, binding: &str, problem: &str) -> String {
    format!("policy '{}' with binding '{binding}' denied request: {problem}", policy.name)
}

/// Applies all mutations of one policy, with one value of its parameters. Returns what went wrong.
async fn ask(
    cluster: &Cluster,
    invocation: &Invocation<'_>,
    (index, params): (usize, &Value),
    attributes: &mut Attributes<'_>,
    common: &mut Common,
    answers: &Answers,
) -> Result<Vec<String>, Status> {
    let policy = invocation.policy;
    let namespace = common.namespace(cluster, attributes).await?;
    let shown = common.shown(attributes, &invocation.found).await?;
    let with_params = |attributes: &Attributes<'_>, shown: &Shown| {
        let mut input = Input::new(attributes, shown, answers);
        input.params = params.clone();
        input
    };
    let meets = loop {
        let meets = policy.conditions.decide(&with_params(attributes, &shown).scope());
        if !answers.ask(cluster).await {
            break meets;
        }
    };
    match meets {
        Ok(true) => {}
        Ok(false) => return Ok(Vec::new()),
        Err(problem) => return Ok(vec![problem.to_string()]),
    }
    let key = format!("{}/{}/{index}", policy.name, invocation.binding.name);
    if !attributes.reinvocation.may_call(Callees::Policies, &key) {
        return Ok(Vec::new());
    }
    let mut problems = Vec::new();
    let mut changed = false;
    for change in &policy.mutations {
        if attributes.object.is_none() {
            break;
        }
        // Each mutation sees what those before it did.
        let shown = common.shown(attributes, &invocation.found).await?;
        let result = loop {
            let mut input = with_params(attributes, &shown);
            input.namespace = namespace.clone();
            let result = Run::new().evaluate(&change.program, &input.with_variables(&policy.variables));
            if !answers.ask(cluster).await {
                break result;
            }
        };
        let outcome = match result {
            Ok(value) => mutate(attributes, invocation, change, &value).await,
            Err(failure) => Err(failure.into()),
        };
        match outcome {
            Ok(mutated) => {
                changed |= mutated;
                common.forget_versions();
            }
            Err(problem) => problems.push(problem.to_string()),
        }
    }
    attributes.reinvocation.called(Callees::Policies, &key, changed, policy.if_needed);
    Ok(problems)
}

/// Why a mutation is not made.
#[derive(Debug, thiserror::Error)]
enum MutationError {
    #[error(transparent)]
    Expression(#[from] Failure),
    #[error(transparent)]
    Patch(#[from] patch::PatchError),
    #[error(transparent)]
    Object(#[from] Status),
}

/// Makes the change. Returns whether the object is another.
async fn mutate(
    attributes: &mut Attributes<'_>,
    invocation: &Invocation<'_>,
    change: &Change,
    value: &Value,
) -> Result<bool, MutationError> {
    let resource = invocation.found.resource(attributes);
    let object = versioned_object(attributes, resource).await?;
    let (Some(mut object), Some(before)) = (object, attributes.object.as_deref()) else {
        return Ok(false);
    };
    if before.meta().managed_fields.is_none() {
        // They go on beside the object.
        object.pointer_mut("/metadata").and_then(|meta| meta.as_object_mut()?.remove("managedFields"));
    }
    let patched = match change.is_json_patch {
        true => patch::json_patch(object, value)?,
        // The bodies of some subresources have no schema here: maps are merged, lists cannot be.
        false if attributes.has_own_kind() => {
            patch::apply_configuration(&object, value, &Struct::new("", Vec::new()).open(true))?
        }
        false => patch::apply_configuration(&object, value, &resource.schema())?,
    };
    let new = stored(attributes, resource, patched, &**before).await?;
    let changed = !new.same(&**before);
    if let Some(object) = attributes.object.as_deref_mut() {
        *object = new;
    }
    Ok(changed)
}

/// The first problem is shown, all of them are causes. One of an expression makes the request invalid.
fn refused(attributes: &Attributes<'_>, problems: Vec<String>, is_invalid: bool) -> Status {
    let mut status = attributes.forbidden("admission request denied by policy");
    if is_invalid {
        status.reason = "Invalid".into();
    }
    status.message = problems.first().cloned().unwrap_or_default();
    let causes = problems.into_iter().map(|message| StatusCause { message, ..StatusCause::default() });
    status.details.get_or_insert_default().causes.extend(causes);
    status
}
