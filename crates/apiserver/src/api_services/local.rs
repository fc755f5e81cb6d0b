//! Registrations of what this server serves itself: one APIService for each built-in version, made when the server
//! starts, and one for each version that a CustomResourceDefinition serves, kept for as long as it does.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::try_join_all;
use http::Method;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceSpec};
use registry::apiregistration::api_service::LOCAL;
use registry::priority::{self, Priority};
use registry::unset::or_empty;
use serde_json::{Value, json};

use super::write_status;
use crate::aggregation::{PATH, PREFIX, condition};
use crate::state::State;
use crate::watch_cache::Unreadable;

const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";
/// Says that an APIService is the server's own, and for how long.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// What could not be written is tried again after this long.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long a registration is looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Managed {
    /// Made when the server starts, and left alone then.
    OnStart,
    Always,
}

impl Managed {
    fn as_str(self) -> &'static str {
        match self {
            Managed::OnStart => "onstart",
            Managed::Always => "true",
        }
    }

    fn of(service: &APIService) -> Option<Self> {
        let label = service.metadata.labels.as_ref()?.get(MANAGED)?;
        [Managed::OnStart, Managed::Always].into_iter().find(|managed| managed.as_str() == label)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    spec: APIServiceSpec,
    managed: Managed,
}

impl Wanted {
    fn new(group: &str, version: &str, rank: Priority, managed: Managed) -> (String, Self) {
        let spec = APIServiceSpec {
            group: Some(group.to_owned()).filter(|group| !group.is_empty()),
            version: Some(version.to_owned()),
            group_priority_minimum: rank.group,
            version_priority: rank.version,
            ..Default::default()
        };
        (format!("{version}.{group}"), Self { spec, managed })
    }
}

#[derive(Debug, PartialEq)]
enum Step {
    Create(Value),
    Update(Value),
    Delete { name: String, uid: String },
}

/// Makes the registrations of a server that starts.
pub(crate) async fn register(state: &Arc<State>) -> anyhow::Result<()> {
    if state.registry.find("apiregistration.k8s.io", "v1", "apiservices").is_none() {
        return Ok(());
    }
    carry_out(state, plan(&wanted(state)?, &found(state)?, true)).await
}

/// Follows definitions and registrations until the server stops.
pub(crate) async fn run(state: Arc<State>) {
    let (Some(services), Some(definitions)) = (state.caches.get(PREFIX), state.caches.get(DEFINITIONS)) else { return };
    let (mut services, mut definitions) = (services.subscribe(), definitions.subscribe());
    loop {
        services.mark_unchanged();
        definitions.mark_unchanged();
        let outcome = sync(&state).await;
        if let Err(error) = &outcome {
            tracing::warn!("registering what this server serves: {error:#}");
        }
        let again = tokio::time::sleep(RETRY_INTERVAL);
        tokio::select! {
            () = state.stop.cancelled() => return,
            changed = services.changed() => if changed.is_err() { return },
            changed = definitions.changed() => if changed.is_err() { return },
            () = again, if outcome.is_err() => {}
        }
    }
}

async fn sync(state: &Arc<State>) -> anyhow::Result<()> {
    let found = found(state)?;
    carry_out(state, plan(&wanted(state)?, &found, false)).await?;
    for service in &found {
        let is_local = service.spec.as_ref().is_none_or(|spec| spec.service.is_none());
        if is_local && condition(service).is_none_or(|found| !LOCAL.is(found)) {
            write_status(state, or_empty(&service.metadata.name), LOCAL).await?;
        }
    }
    Ok(())
}

fn found(state: &State) -> Result<Vec<Arc<APIService>>, Unreadable> {
    let Some(cache) = state.caches.get(PREFIX) else { return Ok(Vec::new()) };
    cache.snapshot().objects.values().map(|entry| entry.read()).collect()
}

/// What is to be registered: the built-in table, and the definitions as they are now.
fn wanted(state: &State) -> Result<BTreeMap<String, Wanted>, Unreadable> {
    let table = state.registry.table();
    let rows = table.rows().iter().filter(|row| !row.is_custom);
    let versions: HashSet<(&str, &str)> = rows.map(|row| (&*row.group, &*row.version)).collect();
    let built_in = versions.into_iter().filter_map(|(group, version)| {
        let rank = priority::built_in(group, version)?;
        Some(Wanted::new(group, version, rank, Managed::OnStart))
    });
    let mut wanted = BTreeMap::new();
    let definitions = state.caches.get(DEFINITIONS).map(|cache| cache.snapshot());
    for entry in definitions.iter().flat_map(|snapshot| snapshot.objects.values()) {
        let definition = entry.read::<CustomResourceDefinition>()?;
        for version in definition.spec.versions.iter().filter(|version| version.served) {
            wanted.extend([Wanted::new(&definition.spec.group, &version.name, priority::CUSTOM, Managed::Always)]);
        }
    }
    wanted.extend(built_in);
    Ok(wanted)
}

/// Decides what to write. Registrations that are not the server's own are never touched.
fn plan(wanted: &BTreeMap<String, Wanted>, found: &[Arc<APIService>], is_start: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut known = HashSet::new();
    let is_due = |managed| is_start || managed == Managed::Always;
    for service in found {
        let name = or_empty(&service.metadata.name);
        known.insert(name);
        // One that names a service was taken over, whatever its label still says.
        let is_taken_over = service.spec.as_ref().is_some_and(|spec| spec.service.is_some());
        if is_taken_over || !Managed::of(service).is_some_and(is_due) {
            continue;
        }
        match wanted.get(name) {
            None => {
                let uid = or_empty(&service.metadata.uid).to_owned();
                steps.push(Step::Delete { name: name.to_owned(), uid });
            }
            Some(wanted) if !is_due(wanted.managed) || service.spec.as_ref() == Some(&wanted.spec) => {}
            Some(wanted) => {
                let changed = APIService { spec: Some(wanted.spec.clone()), ..APIService::clone(service) };
                steps.push(Step::Update(json!(changed)));
            }
        }
    }
    for (name, wanted) in
        wanted.iter().filter(|(name, wanted)| !known.contains(name.as_str()) && is_due(wanted.managed))
    {
        steps.push(Step::Create(json!({"kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1",
            "metadata": {"name": name, "labels": {MANAGED: wanted.managed.as_str()}}, "spec": wanted.spec})));
    }
    steps
}

/// Together, so that the store can write many at once.
async fn carry_out(state: &Arc<State>, steps: Vec<Step>) -> anyhow::Result<()> {
    let writes = steps.into_iter().map(|step| async move {
        let url = |object: &Value| format!("{PATH}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
        let (method, path, body) = match step {
            Step::Create(object) => (Method::POST, PATH.to_owned(), object),
            Step::Update(object) => (Method::PUT, url(&object), object),
            Step::Delete { name, uid } => {
                (Method::DELETE, format!("{PATH}/{name}"), json!({"preconditions": {"uid": uid}}))
            }
        };
        let (code, answer) = crate::loopback::send(state, method, &path, &body).await.with_context(|| path.clone())?;
        // Made, changed or deleted in between: the cache will say.
        anyhow::ensure!(code < 300 || code == 409 || code == 404, "{path}: {}", answer["message"]);
        Ok(())
    });
    try_join_all(writes).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, label: &str, priority: i32) -> Arc<APIService> {
        let (version, group) = name.split_once('.').unwrap();
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name, "uid": "u", "labels": {MANAGED: label}},
                "spec": {"group": group, "version": version, "groupPriorityMinimum": priority, "versionPriority": 100}}))
            .unwrap(),
        )
    }

    #[test]
    fn what_another_server_took_over_stays_with_it() {
        let mut taken = APIService::clone(&service("v1.example.com", "onstart", 1));
        taken.spec.as_mut().unwrap().service = Some(Default::default());
        let wanted = [Wanted::new("example.com", "v1", priority::CUSTOM, Managed::OnStart)].into_iter().collect();
        assert_eq!(plan(&wanted, &[Arc::new(taken)], true), []);
    }

    #[test]
    fn only_own_registrations_are_kept_in_line() {
        use Managed::{Always, OnStart};
        let rank = priority::CUSTOM;
        // (label and priority of what is there, what is wanted) -> what happens at start, and later.
        for (there, managed, at_start, later) in [
            (None, None, "", ""),
            (None, Some(OnStart), "create", ""),
            (None, Some(Always), "create", "create"),
            (Some(("", 1)), None, "", ""),
            (Some(("", 1)), Some(Always), "", ""),
            (Some(("onstart", 1)), None, "delete", ""),
            (Some(("onstart", 1)), Some(OnStart), "update", ""),
            (Some(("onstart", 1)), Some(Always), "update", ""),
            (Some(("true", 1)), None, "delete", "delete"),
            (Some(("true", 1)), Some(OnStart), "update", ""),
            (Some(("true", 1)), Some(Always), "update", "update"),
            (Some(("true", 1000)), Some(Always), "", ""),
        ] {
            let found: Vec<_> =
                there.iter().map(|(label, priority)| service("v1.example.com", label, *priority)).collect();
            let wanted = managed.map(|managed| Wanted::new("example.com", "v1", rank, managed)).into_iter().collect();
            for (is_start, expected) in [(true, at_start), (false, later)] {
                let steps = plan(&wanted, &found, is_start);
                let told: Vec<&str> = steps
                    .iter()
                    .map(|step| match step {
                        Step::Create(_) => "create",
                        Step::Update(_) => "update",
                        Step::Delete { .. } => "delete",
                    })
                    .collect();
                assert_eq!(told.join(","), expected, "{there:?} {managed:?} {is_start}");
            }
        }
    }
}
