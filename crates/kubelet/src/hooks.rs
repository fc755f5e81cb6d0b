//! Lifecycle hooks: postStart and preStop, by exec, HTTP or sleep.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::probes::{ProbeError, http_get, named_ports, port_number, run_http};
use crate::runtime::{CallError, Runtime};
use crate::state;

/// The event of a hook that failed: reason and message. Why it failed is in the container's state, or in the log.
pub(crate) const FAILED_POST_START: (&str, &str) = ("FailedPostStartHook", "PostStartHook failed");
pub(crate) const FAILED_PRE_STOP: (&str, &str) = ("FailedPreStopHook", "PreStopHook failed");

/// Why a hook failed, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error(
        "Exec lifecycle hook ([{command}]) for Container \"{container}\" in Pod \"{pod}\" failed - error: {source}"
    )]
    Exec { command: String, container: String, pod: String, source: CallError },
    #[error("command '{command}' exited with {code}: {stderr}")]
    Exit { command: String, code: i32, stderr: String },
    #[error(transparent)]
    Http(#[from] ProbeError),
    #[error("invalid handler: {0}")]
    Invalid(String),
}

/// Runs one hook to its end.
pub(crate) async fn run(
    handler: &LifecycleHandler,
    pod: &Pod,
    container: &Container,
    container_id: &str,
    pod_ips: &[String],
    runtime: &Runtime,
) -> Result<(), HookError> {
    if let Some(exec) = &handler.exec {
        let arguments = exec.command.clone().unwrap_or_default();
        let command = arguments.join(" ");
        return match runtime.exec_sync(container_id, arguments, EXEC_TIMEOUT).await {
            Ok(answer) if answer.exit_code == 0 => Ok(()),
            Ok(answer) => {
                let stderr = beginning(&answer.stderr);
                Err(HookError::Exit { command, code: answer.exit_code, stderr })
            }
            Err(source) => {
                let pod = format!("{}_{}({})", state::name(pod), state::namespace(pod), state::uid(pod));
                Err(HookError::Exec { command, container: container.name.clone(), pod, source })
            }
        };
    }
    if let Some(get) = &handler.http_get {
        let ports = named_ports(container);
        let ip = pod_ips
            .first()
            .cloned()
            .or_else(|| pod.status.as_ref().and_then(|status| status.pod_ip.clone()))
            .unwrap_or_default();
        let request = http_get(get, &ip, |port| port_number(&ports, port))?;
        // The call is the hook: whatever it is answered with, it was made. Nothing of the answer is told, for whoever may
        // read the pod would read what only the node can ask for.
        run_http(&request).await?;
        return Ok(());
    }
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        return Ok(());
    }
    Err(HookError::Invalid(format!("{handler:?}")))
}

/// What a command said, as much of it as a status can show: it stands there for as long as the pod does.
fn beginning(output: &[u8]) -> String {
    String::from_utf8_lossy(&output[..output.len().min(MAX_SHOWN)]).into_owned()
}

const MAX_SHOWN: usize = 4096;

/// Hooks have no deadline of their own besides the pod's: this only ends what was forgotten.
const EXEC_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    /// A status that is too long is refused, and the next one too: nothing would be heard of the pod any more.
    #[test]
    fn security_a_status_shows_the_beginning_of_what_a_hook_said() {
        assert_eq!(beginning(b"why"), "why");
        assert_eq!(beginning(&vec![b'x'; 7 << 20]).len(), MAX_SHOWN);
    }

    #[test]
    fn errors_read_as_upstreams() {
        let source = CallError::from(cri::tonic::Status::unavailable("gone"));
        let exec =
            format!("Exec lifecycle hook ([sh -c x]) for Container \"c\" in Pod \"p_n(u)\" failed - error: {source}");
        let command = || "sh -c x".to_owned();
        for (error, expected) in [
            (
                HookError::Exec { command: command(), container: "c".into(), pod: "p_n(u)".into(), source },
                exec.as_str(),
            ),
            (
                HookError::Exit { command: command(), code: 3, stderr: "why".into() },
                "command 'sh -c x' exited with 3: why",
            ),
            (ProbeError::InvalidPort(0).into(), "invalid port number: 0"),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
}
