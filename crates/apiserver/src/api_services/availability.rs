//! Whether aggregated API servers can be used: looked at when their service or its endpoints change, and again after a
//! while, because a network can fail without anybody saying so.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_ok;
use http::StatusCode;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use registry::apiregistration::api_service::Availability;
use tokio::sync::watch::Receiver;

use super::write_status;
use crate::aggregation::{Backend, PREFIX, condition, remote_discovery};
use crate::remote::Problem;
use crate::remote::service::{self, NoAddress};
use crate::state::State;
use crate::watch_cache::Unreadable;

/// A server that answers is asked again after this long; one that does not, sooner at first.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How many questions decide that a server does not answer. Each may go to another endpoint.
const ATTEMPTS: usize = 4;

/// Reason and message of a condition.
type Reason = (&'static str, String);

/// What an earlier verdict was based on: the versions of the service and of its slices.
type Basis = (Option<u64>, Vec<u64>);

/// Follows one backend until it is replaced or the server stops.
pub(super) async fn follow(state: Arc<State>, backend: Arc<Backend>) {
    // What a server of others answers may be too much for those who read it.
    let follow = || follow_once(&state, &backend).boxed();
    let _ended = ::metrics::outlive_panics("API services", &backend.name(), &state.stop, follow).await;
}

async fn follow_once(state: &Arc<State>, backend: &Backend) {
    let watched = [PREFIX, "services/specs", "endpointslices"].map(|prefix| state.caches.get(prefix));
    let [Some(registered), Some(services), Some(slices)] = watched else { return };
    let (mut registered, mut services, mut slices) = (registered.subscribe(), services.subscribe(), slices.subscribe());
    let (namespace, name, _) = backend.service.clone();
    let mut last: Option<(Basis, Result<(), Reason>)> = None;
    let mut pause = FIRST_RETRY_DELAY;
    let mut due = tokio::time::Instant::now();
    loop {
        for changes in [&mut registered, &mut services, &mut slices] {
            changes.mark_unchanged();
        }
        let basis = basis(state, &namespace, &name);
        let is_new =
            last.as_ref().is_none_or(|(before, verdict)| *before != basis || !is_reported(state, backend, verdict));
        if is_new || tokio::time::Instant::now() >= due {
            let was_available = match &last {
                Some((_, before)) => before.is_ok(),
                None => is_reported(state, backend, &Ok(())),
            };
            let verdict = check(state, backend).await;
            if let (true, Err((reason, _))) = (was_available, &verdict) {
                count_loss(state, backend, reason);
            }
            let is_written = write_condition(state, backend, &verdict).await;
            let offered = match &verdict {
                Ok(()) => remote_discovery::discover(&state.services, backend).await,
                Err(_) => Default::default(),
            };
            super::backends::learned(state, backend, offered);
            pause = if verdict.is_ok() && is_written { RECHECK_INTERVAL } else { (pause * 2).min(RECHECK_INTERVAL) };
            due = tokio::time::Instant::now() + pause;
            if verdict.is_ok() {
                pause = FIRST_RETRY_DELAY;
            }
            last = Some((basis, verdict));
        }
        tokio::select! {
            () = state.stop.cancelled() => return,
            is_there = any(&mut registered, &mut services, &mut slices) => if !is_there { return },
            () = tokio::time::sleep_until(due) => {}
        }
    }
}

async fn any(a: &mut Receiver<u64>, b: &mut Receiver<u64>, c: &mut Receiver<u64>) -> bool {
    tokio::select! {
        changed = a.changed() => changed.is_ok(),
        changed = b.changed() => changed.is_ok(),
        changed = c.changed() => changed.is_ok(),
    }
}

fn basis(state: &State, namespace: &str, name: &str) -> Basis {
    let service = state.caches.get("services/specs").and_then(|cache| cache.get(&format!("{namespace}/{name}")));
    let slices = service::entries(&state.services, namespace, name);
    (service.map(|entry| entry.revision), slices.iter().map(|entry| entry.revision).collect())
}

fn availability(verdict: &Result<(), Reason>) -> Availability<'_> {
    match verdict {
        Ok(()) => Availability { is_available: true, reason: "Passed", message: "all checks passed" },
        Err((reason, message)) => Availability { is_available: false, reason, message },
    }
}

/// Whether the registration says so already.
fn is_reported(state: &State, backend: &Backend, verdict: &Result<(), Reason>) -> bool {
    let registered = state.objects().get::<APIService>("", &backend.name());
    let says_so = |service: Arc<APIService>| condition(&service).is_some_and(|found| availability(verdict).is(found));
    registered.is_ok_and(|service| service.is_none_or(says_so))
}

/// Counts that a backend cannot be used any more.
fn count_loss(state: &State, backend: &Backend, reason: &str) {
    let name = backend.name();
    let labels = [("name", name.as_str()), ("reason", reason)];
    let help = "How often an API service could not be used any more, by name and reason.";
    state.metrics.all().counter("aggregator_unavailable_apiservice_total", help, &labels).inc();
}

async fn write_condition(state: &Arc<State>, backend: &Backend, verdict: &Result<(), Reason>) -> bool {
    if is_reported(state, backend, verdict) {
        return true;
    }
    let found = availability(verdict);
    tracing::info!(service = backend.name(), reason = found.reason, message = found.message, "availability changed");
    match write_status(state, &backend.name(), found).await {
        Ok(()) => true,
        Err(status) => {
            tracing::warn!(service = backend.name(), message = status.message, "writing the status of an API service");
            false
        }
    }
}

async fn check(state: &State, backend: &Backend) -> Result<(), Reason> {
    let (namespace, name, port) = &backend.service;
    let unknown = |unreadable: Unreadable| ("ServiceAccessError", unreadable.to_string());
    let found = state.objects().get::<Service>(namespace, name).map_err(unknown)?;
    let slices = service::slices(&state.services, namespace, name).map_err(unknown)?;
    routable((namespace, name, *port), found.as_deref(), &slices)?;
    let Err(_) = probe(state, backend).await else { return Ok(()) };
    let probes = (0..ATTEMPTS).map(|_| Box::pin(probe(state, backend)));
    select_ok(probes).await.map(drop).map_err(|error| ("FailedDiscoveryCheck", error.to_string()))
}

/// Why a backend does not do.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Address(#[from] NoAddress),
    #[error("failing or missing response from {url}: Get {url:?}: {problem}")]
    NoAnswer { url: String, problem: Problem },
    #[error("failing or missing response from {url}: bad status from {url}: {}", code.as_u16())]
    Status { url: String, code: StatusCode },
}

/// Asks for what every API server has to answer.
async fn probe(state: &State, backend: &Backend) -> Result<(), ProbeError> {
    let (host, port) = backend.address(&state.services)?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let url = format!("https://{host}:{port}{}", backend.path());
    match backend.ask(&state.services, &backend.path(), "*/*").await {
        Err(problem) => Err(ProbeError::NoAnswer { url, problem }),
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(ProbeError::Status { url, code: answer.status() }),
    }
}

/// Whether there is anybody to ask.
fn routable(
    (namespace, name, port): (&str, &str, u16),
    service: Option<&Service>,
    slices: &[Arc<EndpointSlice>],
) -> Result<(), Reason> {
    let of = format!("service/{name} in {namespace:?}");
    let Some(service) = service else { return Err(("ServiceNotFound", format!("{of} is not present"))) };
    let spec = service.spec.as_ref();
    if spec.and_then(|spec| spec.type_.as_deref()).unwrap_or("ClusterIP") != "ClusterIP" {
        return Ok(());
    }
    let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let Some(found) = ports.iter().find(|declared| declared.port == i32::from(port)) else {
        return Err(("ServicePortError", format!("{of} is not listening on port {port}")));
    };
    if slices.is_empty() {
        return Err(("EndpointsNotFound", format!("cannot find endpointslices for {of}")));
    }
    let port_name = found.name.as_deref().unwrap_or_default();
    let is_usable = |slice: &Arc<EndpointSlice>| {
        let mut ports = slice.ports.iter().flatten();
        slice.endpoints.iter().flatten().any(api::endpoint::is_ready)
            && ports.any(|port| port.name.as_deref().unwrap_or_default() == port_name && port.port.is_some())
    };
    if slices.iter().any(is_usable) {
        return Ok(());
    }
    let message = format!("endpointslices for {of} have no addresses with port name {port_name:?}");
    Err(("MissingEndpoints", message))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_service_needs_its_port_and_a_ready_endpoint() {
        let service =
            |kind: &str, port: u16| json!({"spec": {"type": kind, "ports": [{"name": "https", "port": port}]}});
        let slice = |port: &str, ready: Value| {
            json!({"addressType": "IPv4", "ports": [{"name": port, "port": 8443}],
                "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]})
        };
        let missing = "endpointslices for service/api in \"ns\" have no addresses with port name \"https\"";
        for (service, slices, expected) in [
            (None, vec![], Some(("ServiceNotFound", "service/api in \"ns\" is not present"))),
            (
                Some(service("ClusterIP", 80)),
                vec![],
                Some(("ServicePortError", "service/api in \"ns\" is not listening on port 443")),
            ),
            (
                Some(service("ClusterIP", 443)),
                vec![],
                Some(("EndpointsNotFound", "cannot find endpointslices for service/api in \"ns\"")),
            ),
            (Some(service("ClusterIP", 443)), vec![slice("https", json!(false))], Some(("MissingEndpoints", missing))),
            (Some(service("ClusterIP", 443)), vec![slice("http", json!(true))], Some(("MissingEndpoints", missing))),
            (Some(service("ClusterIP", 443)), vec![slice("https", json!(null))], None),
            (Some(service("ExternalName", 80)), vec![], None),
        ] {
            let service: Option<Service> = service.map(|value| serde_json::from_value(value).unwrap());
            let slices = slices.into_iter().map(|value| Arc::new(serde_json::from_value(value).unwrap()));
            let verdict = routable(("ns", "api", 443), service.as_ref(), &slices.collect::<Vec<_>>());
            let expected = expected.map(|(reason, message)| (reason, message.to_owned()));
            assert_eq!(verdict.err(), expected);
        }
    }
}
