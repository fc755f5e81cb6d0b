//! Whether a webhook is asked about a write, and in which version of the object.

use std::sync::Arc;

use api::Status;
use registry::Resource;

use super::super::expressions::{Answers, Input, Shown};
use super::super::{Attributes, matching};
use super::source::Hook;
use crate::cluster::Cluster;

/// A webhook that wants to see a write, and the version of the resource that it understands.
pub(super) struct Invocation<'h> {
    pub(super) hook: &'h Hook,
    /// `None` when the request's own version is the right one.
    pub(super) equivalent: Option<Arc<Resource>>,
}

/// `None` when the webhook has nothing to do with the write.
pub(super) async fn invocation<'h>(
    cluster: &Cluster,
    hook: &'h Hook,
    attributes: &Attributes<'_>,
) -> Result<Option<Invocation<'h>>, Status> {
    let Some(found) = matching::matched(cluster, &hook.criteria, attributes).await? else { return Ok(None) };
    if !hook.conditions.is_empty() && !meets_conditions(cluster, hook, attributes, &found).await? {
        return Ok(None);
    }
    let equivalent = match found {
        matching::Match::Own => None,
        matching::Match::Equivalent(row) => Some(row),
    };
    Ok(Some(Invocation { hook, equivalent }))
}

/// A condition that is false keeps the webhook out; of one that cannot be decided, the failure policy makes the best.
async fn meets_conditions(
    cluster: &Cluster,
    hook: &Hook,
    attributes: &Attributes<'_>,
    found: &matching::Match,
) -> Result<bool, Status> {
    let shown = Shown::new(attributes, found.resource(attributes)).await?;
    let answers = Answers::default();
    loop {
        let input = Input::new(attributes, &shown, &answers);
        let outcome = hook.conditions.decide(&input.scope());
        if answers.ask(cluster).await {
            continue;
        }
        return match outcome {
            Ok(meets) => Ok(meets),
            Err(_) if hook.ignores_failure => Ok(false),
            Err(problem) => Err(attributes.forbidden(problem)),
        };
    }
}
