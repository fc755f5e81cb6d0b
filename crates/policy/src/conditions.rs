//! Says in the status of ClusterNetworkPolicies what of them is not enforced as it is written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::{Api, Clock, Patch};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use crate::cluster_policy::{ClusterNetworkPolicy, ClusterPolicy, GROUP, VERSION};

/// Whose fields of the status these are, the same on every node.
const MANAGER: &str = "cox-network-policy";
/// The type of the condition.
const ACCEPTED: &str = "Accepted";
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// What is to be said of policies, by name, the last of each.
#[derive(Clone, Default)]
pub(crate) struct Reporter {
    wanted: Arc<Mutex<BTreeMap<String, Wanted>>>,
    changed: Arc<Notify>,
}

#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    generation: i64,
    /// None: all of it is enforced.
    problem: Option<String>,
}

pub(crate) fn channel() -> (Reporter, Reporter) {
    let reporter = Reporter::default();
    (reporter.clone(), reporter)
}

impl Reporter {
    pub(crate) fn note(&self, name: &str, object: Option<&ClusterNetworkPolicy>) {
        match object.and_then(wanted) {
            Some(wanted) => {
                self.wanted.lock().insert(name.to_owned(), wanted);
                self.changed.notify_one();
            }
            None => drop(self.wanted.lock().remove(name)),
        }
    }
}

/// What the status should say and does not.
fn wanted(object: &ClusterNetworkPolicy) -> Option<Wanted> {
    let generation = object.metadata.generation.unwrap_or_default();
    let problems = ClusterPolicy::new(object).not_understood;
    let problem = (!problems.is_empty()).then(|| problems.join("; "));
    let said = object.status.conditions.iter().find(|condition| condition.type_ == ACCEPTED);
    let is_said = |condition: &Condition| {
        condition.observed_generation == Some(generation)
            && match &problem {
                Some(problem) => condition.status == "False" && condition.message == *problem,
                None => condition.status == "True",
            }
    };
    // Of one that was never in question nothing need be said.
    let is_right = said.map_or(problem.is_none(), is_said);
    (!is_right).then_some(Wanted { generation, problem })
}

/// Writes what policies' statuses should say. Does not end.
pub(crate) async fn report(api: Api<ClusterNetworkPolicy>, reporter: Reporter) {
    loop {
        let next = reporter.wanted.lock().pop_first();
        let Some((name, wanted)) = next else {
            reporter.changed.notified().await;
            continue;
        };
        if let Err(error) = write(&api, &name).await
            && !error.is_not_found()
        {
            tracing::warn!(name, %error, "cannot say what of a ClusterNetworkPolicy is not enforced");
            // What came meanwhile is newer.
            reporter.wanted.lock().entry(name).or_insert(wanted);
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

async fn write(api: &Api<ClusterNetworkPolicy>, name: &str) -> Result<(), client::Error> {
    // Another node may have said it.
    let Some(wanted) = wanted(&api.get(name).await?) else { return Ok(()) };
    let (status, reason, message) = match &wanted.problem {
        Some(problem) => ("False", "NotSupported", problem.as_str()),
        None => ("True", "Accepted", ""),
    };
    let condition = json!({"type": ACCEPTED, "status": status, "reason": reason, "message": message,
        "observedGeneration": wanted.generation, "lastTransitionTime": Clock::default().now()});
    let body = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name}, "status": {"conditions": [condition]}});
    api.patch_status(name, &Patch::apply(MANAGER, body).force()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_what_is_not_enforced_as_written_is_said() {
        let object = |peer: serde_json::Value, conditions: serde_json::Value| -> ClusterNetworkPolicy {
            serde_json::from_value(json!({"metadata": {"name": "p", "generation": 2}, "spec": {"tier": "Admin",
                "subject": {"namespaces": {}}, "egress": [{"name": "web", "action": "Accept", "to": [peer]}]},
                "status": {"conditions": conditions}}))
            .unwrap()
        };
        let (names, nodes) = (json!({"domainNames": ["example.org"]}), json!({"nodes": {}}));
        let condition = |status: &str, generation: i64, message: &str| {
            json!([{"type": ACCEPTED, "status": status, "reason": "R", "message": message,
                "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"}])
        };
        let problem = "egress rule web: domainNames are not supported: it accepts nothing";
        let said = wanted(&object(names.clone(), json!([])));
        assert_eq!(said, Some(Wanted { generation: 2, problem: Some(problem.to_owned()) }));
        assert_eq!(wanted(&object(names.clone(), condition("False", 2, problem))), None);
        assert!(wanted(&object(names, condition("False", 1, problem))).is_some());
        assert_eq!(wanted(&object(nodes.clone(), json!([]))), None);
        // What was said of an earlier form is taken back.
        let said = wanted(&object(nodes.clone(), condition("False", 1, problem)));
        assert_eq!(said, Some(Wanted { generation: 2, problem: None }));
        assert_eq!(wanted(&object(nodes, condition("True", 2, ""))), None);
    }
}
