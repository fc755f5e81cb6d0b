//! One call of one webhook, and what its outcome means for the write.

use std::time::Instant;

use api::Status;
use serde_json::Value;

use super::super::Attributes;
use super::super::metrics::{self, Asked};
use super::matching::Invocation;
use super::review::{self, Answer};
use super::source::Hook;
use crate::cluster::Cluster;

/// Why a webhook did not let a write pass.
pub(super) enum Refusal {
    /// It said no, or the write cannot be shown to it: final whatever its failure policy.
    Denied(Status),
    /// It could not be asked or did not answer properly: its failure policy decides.
    Failed(String),
}

/// What a webhook is asked about.
pub(super) struct Call<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) invocation: &'a Invocation<'a>,
    pub(super) attributes: &'a Attributes<'a>,
    pub(super) mutating: bool,
    pub(super) object: Option<&'a Value>,
    pub(super) old: Option<&'a Value>,
}

/// Asks the webhook and counts what came of it.
pub(super) async fn call(call: Call<'_>) -> Result<Answer, Refusal> {
    let (hook, started) = (call.invocation.hook, Instant::now());
    let outcome = ask(&call).await;
    let asked = match &outcome {
        Ok(_) => Asked::Allowed,
        Err(Refusal::Denied(status)) => Asked::Denied(status.code()),
        Err(Refusal::Failed(_)) => Asked::Failed { open: hook.ignores_failure },
    };
    metrics::observe_webhook(&hook.name, call.mutating, call.attributes.verb, started.elapsed(), asked);
    outcome
}

/// `Ok` is an answer that allows the write; warnings and audit annotations are already passed on.
async fn ask(&Call { cluster, invocation, attributes, mutating, object, old }: &Call<'_>) -> Result<Answer, Refusal> {
    let hook = invocation.hook;
    if attributes.dry_run && !matches!(hook.side_effects.as_str(), "None" | "NoneOnDryRun") {
        let message = format!("admission webhook {:?} does not support dry run", hook.name);
        return Err(Refusal::Denied(Status::bad_request(message)));
    }
    let question = review::question(invocation, attributes, object, old)
        .map_err(|problem| Refusal::Failed(format!("could not create admission objects: {problem}")))?;
    let client =
        hook.client.as_ref().map_err(|problem| Refusal::Failed(format!("could not get REST client: {problem}")))?;
    let query = format!("timeout={}s", hook.timeout.as_secs());
    let body = client
        .post(&cluster.services, &query, question.body.clone(), hook.timeout)
        .await
        .map_err(|error| Refusal::Failed(format!("failed to call webhook: {error}")))?;
    let answer = review::answer(&question, mutating, &body)
        .map_err(|problem| Refusal::Failed(format!("received invalid webhook response: {problem}")))?;
    for (key, value) in &answer.audit_annotations {
        attributes.annotate(format!("{}/{key}", hook.name), value);
    }
    answer.warnings.iter().for_each(|warning| attributes.warn(warning));
    if answer.allowed {
        return Ok(answer);
    }
    Err(Refusal::Denied(denial(&hook.name, answer.result)))
}

/// The status of a refusal: the webhook's own, made presentable (upstream's `ToStatusErr`).
fn denial(name: &str, result: Option<Status>) -> Status {
    let denied = format!("admission webhook {name:?} denied the request");
    let unexplained = || Status { message: String::new(), reason: "".into(), ..Status::bad_request("") };
    let mut status = result.unwrap_or_else(unexplained);
    let explanation = if !status.message.is_empty() { status.message.clone() } else { status.reason.to_string() };
    status.message = if explanation.is_empty() {
        format!("{denied} without explanation")
    } else {
        format!("{denied}: {explanation}")
    };
    if status.code < 400 {
        status.code = 400;
    }
    status.status = "Failure".into();
    status
}

/// The text of a failed call.
pub(super) fn failure(hook: &Hook, problem: &str) -> String {
    format!("failed calling webhook {:?}: {problem}", hook.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_presentable() {
        let status = |value: Value| serde_json::from_value::<Status>(value).ok();
        for (result, code, message) in [
            (None, 400, "admission webhook \"w\" denied the request without explanation"),
            (status(serde_json::json!({"message": "no"})), 400, "admission webhook \"w\" denied the request: no"),
            (
                status(serde_json::json!({"reason": "Forbidden", "code": 403})),
                403,
                "admission webhook \"w\" denied the request: Forbidden",
            ),
            (
                status(serde_json::json!({"code": 200, "status": "Success"})),
                400,
                "admission webhook \"w\" denied the request without explanation",
            ),
        ] {
            let denied = denial("w", result);
            assert_eq!((denied.code, denied.message.as_str(), &*denied.status), (code, message, "Failure"));
        }
    }
}
