//! Lifecycle hooks: postStart and preStop, by exec, HTTP or sleep.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::probes::{http_get, run_http};
use crate::runtime::Runtime;
use crate::state;

/// Runs one hook to its end. The error is the event's text after the hook's name.
pub(crate) async fn run(
    handler: &LifecycleHandler,
    pod: &Pod,
    container: &Container,
    container_id: &str,
    pod_ips: &[String],
    runtime: &Runtime,
) -> Result<(), String> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        let answer = runtime.exec_sync(container_id, command, EXEC_LIMIT).await.map_err(|error| {
            format!(
                "Exec lifecycle hook ([{shown}]) for Container \"{}\" in Pod \"{}_{}({})\" failed - error: {error}",
                container.name,
                state::name(pod),
                state::namespace(pod),
                state::uid(pod)
            )
        })?;
        if answer.exit_code != 0 {
            return Err(format!(
                "command '{shown}' exited with {}: {}",
                answer.exit_code,
                String::from_utf8_lossy(&answer.stderr)
            ));
        }
        return Ok(());
    }
    if let Some(get) = &handler.http_get {
        let ports: Vec<_> = container.ports.clone().unwrap_or_default();
        let ip = pod_ips
            .first()
            .cloned()
            .or_else(|| pod.status.as_ref().and_then(|status| status.pod_ip.clone()))
            .unwrap_or_default();
        let request = http_get(get, &ip, |port| {
            use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
            let number = match port {
                IntOrString::Int(number) => Some(*number),
                IntOrString::String(name) => ports
                    .iter()
                    .find(|port| port.name.as_deref() == Some(name))
                    .map(|port| port.container_port)
                    .or_else(|| name.parse().ok()),
            };
            number.and_then(|number| u16::try_from(number).ok()).ok_or_else(|| format!("couldn't find port: {port:?}"))
        })?;
        // The call is the hook: whatever it is answered with, it was made. Nothing of the answer is told, for whoever may
        // read the pod would read what only the node can ask for.
        return run_http(&request).await.map(drop);
    }
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        return Ok(());
    }
    Err(format!("invalid handler: {handler:?}"))
}

/// Hooks have no deadline of their own besides the pod's: this only ends what was forgotten.
const EXEC_LIMIT: Duration = Duration::from_secs(24 * 3600);
