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
pub(super) fn rollout_state(o: &Value) -> Result<(String, bool), RolloutError> {
    let name = text(o, "/metadata/name");
    let number = |pointer: &str| o.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let observed = number("/status/observedGeneration") >= number("/metadata/generation");
    let kind = text(o, "/kind");
    if !observed {
        let what = match kind {
            "Deployment" => "deployment spec update to be observed",
            "DaemonSet" => "daemon set spec update to be observed",
            _ => "statefulset spec update to be observed",
        };
        return Ok((format!("Waiting for {what}...\n"), false));
    }
    match kind {
        "Deployment" => {
            let exceeded = o["status"]["conditions"].as_array().is_some_and(|c| {
                c.iter().any(|c| c["type"] == "Progressing" && c["reason"] == "ProgressDeadlineExceeded")
            });
            if exceeded {
                return Err(RolloutError::DeadlineExceeded(name.to_owned()));
            }
            let (wanted, updated, total, available) = (
                o["spec"]["replicas"].as_i64().unwrap_or(1),
                number("/status/updatedReplicas"),
                number("/status/replicas"),
                number("/status/availableReplicas"),
            );
            if updated < wanted {
                return Ok((
                    format!(
                        "Waiting for deployment \"{name}\" rollout to finish: {updated} out of {wanted} new replicas have been updated...\n"
                    ),
                    false,
                ));
            }
            if total > updated {
                return Ok((
                    format!(
                        "Waiting for deployment \"{name}\" rollout to finish: {} old replicas are pending termination...\n",
                        total - updated
                    ),
                    false,
                ));
            }
            if available < updated {
                return Ok((
                    format!(
                        "Waiting for deployment \"{name}\" rollout to finish: {available} of {updated} updated replicas are available...\n"
                    ),
                    false,
                ));
            }
            Ok((format!("deployment \"{name}\" successfully rolled out\n"), true))
        }
        "DaemonSet" => {
            if o["spec"]["updateStrategy"]["type"] != "RollingUpdate" {
                return Err(RolloutError::NotRolling);
            }
            let (wanted, updated, available) = (
                number("/status/desiredNumberScheduled"),
                number("/status/updatedNumberScheduled"),
                number("/status/numberAvailable"),
            );
            if updated < wanted {
                return Ok((
                    format!(
                        "Waiting for daemon set \"{name}\" rollout to finish: {updated} out of {wanted} new pods have been updated...\n"
                    ),
                    false,
                ));
            }
            if available < wanted {
                return Ok((
                    format!(
                        "Waiting for daemon set \"{name}\" rollout to finish: {available} of {wanted} updated pods are available...\n"
                    ),
                    false,
                ));
            }
            Ok((format!("daemon set \"{name}\" successfully rolled out\n"), true))
        }
        _ => {
            if o["spec"]["updateStrategy"]["type"] != "RollingUpdate" {
                return Err(RolloutError::NotRolling);
            }
            let (wanted, ready, updated) = (
                o["spec"]["replicas"].as_i64().unwrap_or(1),
                number("/status/readyReplicas"),
                number("/status/updatedReplicas"),
            );
            if ready < wanted {
                return Ok((format!("Waiting for {} pods to be ready...\n", wanted - ready), false));
            }
            // A server says 0 where nobody said anything.
            if !o["spec"]["updateStrategy"]["rollingUpdate"].is_null() {
                let partition = number("/spec/updateStrategy/rollingUpdate/partition");
                if updated < wanted - partition {
                    return Ok((
                        format!(
                            "Waiting for partitioned roll out to finish: {updated} out of {} new pods have been updated...\n",
                            wanted - partition
                        ),
                        false,
                    ));
                }
                return Ok((format!("partitioned roll out complete: {updated} new pods have been updated...\n"), true));
            }
            if o["status"]["updateRevision"] != o["status"]["currentRevision"] {
                return Ok((
                    format!(
                        "waiting for statefulset rolling update to complete {updated} pods at revision {}...\n",
                        text(o, "/status/updateRevision")
                    ),
                    false,
                ));
            }
            Ok((
                format!(
                    "statefulset rolling update complete {} pods at revision {}...\n",
                    number("/status/currentReplicas"),
                    text(o, "/status/currentRevision")
                ),
                true,
            ))
        }
    }
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
}
