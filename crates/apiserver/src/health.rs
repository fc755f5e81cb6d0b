//! `/healthz`, `/livez` and `/readyz`, with named checks, and the `componentstatuses` that clients still ask for.

use std::borrow::Cow;
use std::sync::Arc;

use api::Status;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use store::StoreError;

use crate::accept::encode;
use crate::body::Body;
use crate::body::response;
use crate::request_info::RequestInfo;
use crate::seal::UnhealthyKeyServices;
use crate::state::{Operation, State};
use crate::watch_cache::Unreadable;

/// What a hook may still be waiting for while requests are answered.
enum Awaited {
    /// It was made before the server listened: plug-ins, caches and filters of the chain.
    Nothing,
    /// That what every cluster has was made, and that leases and records of this server were tried.
    FirstObjects,
    /// That definitions have their rows.
    Definitions,
    /// That definitions have their statuses, and discovery shows their kinds.
    Published,
}

/// Upstream's hooks, in its order: clients and tests ask for them by name.
const HOOKS: &[(&str, Awaited)] = &[
    ("poststarthook/start-apiserver-admission-initializer", Awaited::Nothing),
    ("poststarthook/generic-apiserver-start-informers", Awaited::Nothing),
    ("poststarthook/priority-and-fairness-config-consumer", Awaited::FirstObjects),
    ("poststarthook/priority-and-fairness-filter", Awaited::Nothing),
    ("poststarthook/storage-object-count-tracker-hook", Awaited::Nothing),
    ("poststarthook/start-apiextensions-informers", Awaited::Nothing),
    ("poststarthook/start-apiextensions-controllers", Awaited::Published),
    ("poststarthook/crd-informer-synced", Awaited::Definitions),
    ("poststarthook/start-system-namespaces-controller", Awaited::FirstObjects),
    ("poststarthook/start-cluster-authentication-info-controller", Awaited::FirstObjects),
    ("poststarthook/start-kube-apiserver-identity-lease-controller", Awaited::FirstObjects),
    ("poststarthook/start-kube-apiserver-identity-lease-garbage-collector", Awaited::FirstObjects),
    ("poststarthook/storage-readiness", Awaited::FirstObjects),
    ("poststarthook/start-legacy-token-tracking-controller", Awaited::FirstObjects),
    ("poststarthook/start-service-ip-repair-controllers", Awaited::FirstObjects),
    ("poststarthook/rbac/bootstrap-roles", Awaited::FirstObjects),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", Awaited::FirstObjects),
    ("poststarthook/priority-and-fairness-config-producer", Awaited::FirstObjects),
    ("poststarthook/bootstrap-controller", Awaited::FirstObjects),
    ("poststarthook/start-kubernetes-service-cidr-controller", Awaited::FirstObjects),
    ("poststarthook/aggregator-reload-proxy-client-cert", Awaited::Nothing),
    ("poststarthook/start-kube-aggregator-informers", Awaited::Nothing),
    ("poststarthook/apiservice-status-local-available-controller", Awaited::FirstObjects),
    ("poststarthook/apiservice-status-remote-available-controller", Awaited::Nothing),
    ("poststarthook/apiservice-registration-controller", Awaited::FirstObjects),
    ("poststarthook/apiservice-discovery-controller", Awaited::Nothing),
    ("poststarthook/kube-apiserver-autoregistration", Awaited::FirstObjects),
    ("autoregister-completion", Awaited::FirstObjects),
    ("poststarthook/apiservice-openapi-controller", Awaited::Nothing),
    ("poststarthook/apiservice-openapiv3-controller", Awaited::Nothing),
];

/// Why a check fails.
#[derive(Clone, Debug, thiserror::Error)]
enum Unhealthy {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    KeyService(#[from] UnhealthyKeyServices),
    #[error("not finished")]
    NotFinished,
    #[error("custom resource definitions are being read")]
    DefinitionsUnread,
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Unreadable(Vec<Unreadable>),
    #[error("process is shutting down")]
    Stopping,
}

/// Name and outcome of every check.
type Checks = Vec<(Cow<'static, str>, Result<(), Unhealthy>)>;

async fn checks(state: &Arc<State>, ready: bool) -> Checks {
    let store = state.caches.store.current_revision().await.map(drop).map_err(Unhealthy::from);
    let mut checks = vec![("ping".into(), Ok(())), ("log".into(), Ok(())), ("etcd".into(), store.clone())];
    if ready {
        checks.push(("etcd-readiness".into(), store));
    }
    if let Some(sealed) = &state.sealed {
        let services = sealed.seals.health().await.into_iter();
        checks.extend(services.map(|(name, outcome)| (name.into(), outcome.map_err(Unhealthy::from))));
    }
    if ready {
        checks.push(("informer-sync".into(), readable(state).and_then(|()| definitions_read(state))));
    }
    checks.extend(HOOKS.iter().map(|(name, waits_for)| {
        let outcome = match waits_for {
            Awaited::Nothing => Ok(()),
            Awaited::FirstObjects => if_finished(state.is_bootstrapped()),
            Awaited::Definitions => definitions_read(state),
            Awaited::Published => if_finished(state.published.borrow().is_some()),
        };
        (Cow::Borrowed(*name), outcome)
    }));
    if ready {
        let stopping = state.stop.is_cancelled();
        checks.push(("shutdown".into(), if stopping { Err(Unhealthy::Stopping) } else { Ok(()) }));
    }
    checks
}

fn if_finished(is_finished: bool) -> Result<(), Unhealthy> {
    if is_finished { Ok(()) } else { Err(Unhealthy::NotFinished) }
}

fn definitions_read(state: &State) -> Result<(), Unhealthy> {
    if crate::custom::is_synced(state) { Ok(()) } else { Err(Unhealthy::DefinitionsUnread) }
}

/// As upstream, where an informer never syncs while one of its objects cannot be read.
fn readable(state: &State) -> Result<(), Unhealthy> {
    if_finished(state.caches.checked.load(std::sync::atomic::Ordering::Acquire))?;
    let unreadable = state.caches.unreadable();
    if unreadable.is_empty() { Ok(()) } else { Err(Unhealthy::Unreadable(unreadable)) }
}

/// What the checks of an endpoint say now, which the figures about them remember.
async fn noted(state: &Arc<State>, endpoint: &str) -> Checks {
    let checks = checks(state, endpoint == "readyz").await;
    for (name, outcome) in &checks {
        state.metrics.slis.note(endpoint, name, outcome.is_ok());
    }
    checks
}

/// The figures about checks. Where nobody probes this server, who reads them is the first to ask.
pub(crate) async fn slis(state: &Arc<State>) -> String {
    let text = state.metrics.slis.render();
    if !text.is_empty() {
        return text;
    }
    for endpoint in ["healthz", "livez", "readyz"] {
        noted(state, endpoint).await;
    }
    state.metrics.slis.render()
}

pub(crate) async fn serve(state: &Arc<State>, info: &RequestInfo) -> Result<Response<Body>, Status> {
    let path = info.path.trim_matches('/');
    let (endpoint, single) = path.split_once('/').map_or((path, None), |(endpoint, name)| (endpoint, Some(name)));
    let checks = noted(state, endpoint).await;
    if let Some(single) = single {
        let Some((_, outcome)) = checks.iter().find(|(name, _)| *name == single) else {
            return Err(Status::no_such_path());
        };
        return Ok(match outcome {
            Ok(()) => text(StatusCode::OK, "ok".to_owned()),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {error}")),
        });
    }
    let excluded: Vec<&str> = info.query.all("exclude").collect();
    let mut lines = String::new();
    let mut failed = false;
    for (name, outcome) in &checks {
        match outcome {
            _ if excluded.contains(&&**name) => lines.push_str(&format!("[+]{name} excluded: ok\n")),
            Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
            Err(_) => {
                failed = true;
                lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
            }
        }
    }
    if failed {
        lines.push_str(&format!("{endpoint} check failed\n"));
        return Ok(text(StatusCode::INTERNAL_SERVER_ERROR, lines));
    }
    if info.query.flag("verbose") {
        lines.push_str(&format!("{endpoint} check passed\n"));
        return Ok(text(StatusCode::OK, lines));
    }
    Ok(text(StatusCode::OK, "ok".to_owned()))
}

fn text(code: StatusCode, body: String) -> Response<Body> {
    response(code, "text/plain; charset=utf-8", body.into())
}

/// `kubectl get componentstatuses`: deprecated upstream, still asked for.
pub(crate) async fn component_statuses(operation: &Operation) -> Result<Response<Body>, Status> {
    operation.state.metrics.deprecated(&operation.info, "");
    operation.warn("v1 ComponentStatus is deprecated in v1.19+");
    let outcome = operation.state.caches.store.current_revision().await;
    let (healthy, message) = match outcome {
        Ok(_) => ("True", "ok".to_owned()),
        Err(error) => ("False", error.to_string()),
    };
    let item = |name: &str| json!({"metadata": {"name": name}, "conditions": [{"type": "Healthy", "status": healthy, "message": message}]});
    let value: Value = if operation.info.verb == registry::Verb::List {
        json!({"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": [item("etcd-0")]})
    } else if operation.info.name == "etcd-0" {
        let mut value = item("etcd-0");
        value["kind"] = "ComponentStatus".into();
        value["apiVersion"] = "v1".into();
        value
    } else {
        return Err(operation.not_found(&operation.info.name));
    };
    Ok(response(StatusCode::OK, operation.accept.content_type(), encode(&operation.accept, &value)?))
}
