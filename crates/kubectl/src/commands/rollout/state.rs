//! How far a rollout is, in the words of `kubectl rollout status`.

use serde_json::Value;

use crate::objects::text;

/// A rollout that will not end; in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum RolloutError {
    #[error("deployment \"{0}\" exceeded its progress deadline")]
    DeadlineExceeded(String),
    #[error("rollout status is only available for RollingUpdate strategy type")]
    NotRolling,
}

/// What to say about a rollout, and whether it is over.
type State = (String, bool);

pub(super) fn rollout_state(object: &Value) -> Result<State, RolloutError> {
    let kind = text(object, "/kind");
    if number(object, "/status/observedGeneration") < number(object, "/metadata/generation") {
        let what = match kind {
            "Deployment" => "deployment spec update to be observed",
            "DaemonSet" => "daemon set spec update to be observed",
            _ => "statefulset spec update to be observed",
        };
        return Ok((format!("Waiting for {what}...\n"), false));
    }
    match kind {
        "Deployment" => deployment(object),
        "DaemonSet" => daemon_set(object),
        _ => stateful_set(object),
    }
}

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn wanted_replicas(object: &Value) -> i64 {
    object["spec"]["replicas"].as_i64().unwrap_or(1)
}

fn check_rolling(object: &Value) -> Result<(), RolloutError> {
    let is_rolling = object["spec"]["updateStrategy"]["type"] == "RollingUpdate";
    if is_rolling { Ok(()) } else { Err(RolloutError::NotRolling) }
}

fn deployment(object: &Value) -> Result<State, RolloutError> {
    let name = text(object, "/metadata/name");
    let exceeded = object["status"]["conditions"]
        .as_array()
        .is_some_and(|c| c.iter().any(|c| c["type"] == "Progressing" && c["reason"] == "ProgressDeadlineExceeded"));
    if exceeded {
        return Err(RolloutError::DeadlineExceeded(name.to_owned()));
    }
    let (wanted, updated, total, available) = (
        wanted_replicas(object),
        number(object, "/status/updatedReplicas"),
        number(object, "/status/replicas"),
        number(object, "/status/availableReplicas"),
    );
    let left = if updated < wanted {
        format!("{updated} out of {wanted} new replicas have been updated")
    } else if total > updated {
        format!("{} old replicas are pending termination", total - updated)
    } else if available < updated {
        format!("{available} of {updated} updated replicas are available")
    } else {
        return Ok((format!("deployment \"{name}\" successfully rolled out\n"), true));
    };
    Ok((format!("Waiting for deployment \"{name}\" rollout to finish: {left}...\n"), false))
}

fn daemon_set(object: &Value) -> Result<State, RolloutError> {
    check_rolling(object)?;
    let name = text(object, "/metadata/name");
    let (wanted, updated, available) = (
        number(object, "/status/desiredNumberScheduled"),
        number(object, "/status/updatedNumberScheduled"),
        number(object, "/status/numberAvailable"),
    );
    let left = if updated < wanted {
        format!("{updated} out of {wanted} new pods have been updated")
    } else if available < wanted {
        format!("{available} of {wanted} updated pods are available")
    } else {
        return Ok((format!("daemon set \"{name}\" successfully rolled out\n"), true));
    };
    Ok((format!("Waiting for daemon set \"{name}\" rollout to finish: {left}...\n"), false))
}

fn stateful_set(object: &Value) -> Result<State, RolloutError> {
    check_rolling(object)?;
    let (wanted, ready, updated) =
        (wanted_replicas(object), number(object, "/status/readyReplicas"), number(object, "/status/updatedReplicas"));
    if ready < wanted {
        return Ok((format!("Waiting for {} pods to be ready...\n", wanted - ready), false));
    }
    // A server says 0 where nobody said anything.
    if !object["spec"]["updateStrategy"]["rollingUpdate"].is_null() {
        let wanted = wanted - number(object, "/spec/updateStrategy/rollingUpdate/partition");
        return Ok(if updated < wanted {
            let left = format!("{updated} out of {wanted} new pods have been updated");
            (format!("Waiting for partitioned roll out to finish: {left}...\n"), false)
        } else {
            (format!("partitioned roll out complete: {updated} new pods have been updated...\n"), true)
        });
    }
    let [new, current] = ["/status/updateRevision", "/status/currentRevision"].map(|pointer| text(object, pointer));
    Ok(if new != current {
        (format!("waiting for statefulset rolling update to complete {updated} pods at revision {new}...\n"), false)
    } else {
        let replicas = number(object, "/status/currentReplicas");
        (format!("statefulset rolling update complete {replicas} pods at revision {current}...\n"), true)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn deployment_states() {
        let d = |status: Value| json!({"kind": "Deployment", "metadata": {"name": "web", "generation": 2}, "spec": {"replicas": 3}, "status": status});
        for (object, expected, done) in [
            (d(json!({"observedGeneration": 1})), "Waiting for deployment spec update to be observed...\n", false),
            (
                d(json!({"observedGeneration": 2, "updatedReplicas": 1})),
                "Waiting for deployment \"web\" rollout to finish: 1 out of 3 new replicas have been updated...\n",
                false,
            ),
            (
                d(json!({"observedGeneration": 2, "updatedReplicas": 3, "replicas": 4})),
                "Waiting for deployment \"web\" rollout to finish: 1 old replicas are pending termination...\n",
                false,
            ),
            (
                d(json!({"observedGeneration": 2, "updatedReplicas": 3, "replicas": 3, "availableReplicas": 2})),
                "Waiting for deployment \"web\" rollout to finish: 2 of 3 updated replicas are available...\n",
                false,
            ),
            (
                d(json!({"observedGeneration": 2, "updatedReplicas": 3, "replicas": 3, "availableReplicas": 3})),
                "deployment \"web\" successfully rolled out\n",
                true,
            ),
        ] {
            assert_eq!(rollout_state(&object).unwrap(), (expected.to_owned(), done));
        }
    }

    #[test]
    fn states_of_other_kinds() {
        for (object, expected, done) in [
            (
                json!({"kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {"updateStrategy": {"type": "RollingUpdate"}},
                       "status": {"desiredNumberScheduled": 3, "updatedNumberScheduled": 1}}),
                "Waiting for daemon set \"d\" rollout to finish: 1 out of 3 new pods have been updated...\n",
                false,
            ),
            (
                json!({"kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {"updateStrategy": {"type": "RollingUpdate"}}}),
                "daemon set \"d\" successfully rolled out\n",
                true,
            ),
            (
                json!({"kind": "StatefulSet", "spec": {"replicas": 3, "updateStrategy": {"type": "RollingUpdate",
                       "rollingUpdate": {"partition": 1}}}, "status": {"readyReplicas": 3, "updatedReplicas": 1}}),
                "Waiting for partitioned roll out to finish: 1 out of 2 new pods have been updated...\n",
                false,
            ),
            (
                json!({"kind": "StatefulSet", "spec": {"replicas": 1, "updateStrategy": {"type": "RollingUpdate"}},
                       "status": {"readyReplicas": 1, "updatedReplicas": 1, "updateRevision": "b", "currentRevision": "a"}}),
                "waiting for statefulset rolling update to complete 1 pods at revision b...\n",
                false,
            ),
        ] {
            assert_eq!(rollout_state(&object).unwrap(), (expected.to_owned(), done));
        }
        let deleted = json!({"kind": "StatefulSet", "spec": {"updateStrategy": {"type": "OnDelete"}}});
        let refused = rollout_state(&deleted).unwrap_err().to_string();
        assert_eq!(refused, "rollout status is only available for RollingUpdate strategy type");
    }
}
