//! Namespace: once it is being deleted, delete all it contains, then let it go.
//!
//! Pods go first, so that nothing they use is taken from under them. The `kubernetes` finalizer is removed only when a list of
//! every resource the server knows comes back empty.

use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::{ApiResource, Client, Clock, DeleteParams, Event, Informer, ListParams};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::Error;
use crate::controller::{Context, Outcome, Reconcile, Requeue};

const FINALIZER: &str = "kubernetes";
/// Content that waits for its own finalizers or grace periods is looked at again after this.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A look at everything that a server has costs it as many requests as there are kinds: one that fails is given time.
const MAX_RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// What tells that a server fails.
const DISCOVERY_FAILURE: &str = "NamespaceDeletionDiscoveryFailure";
const CONTENT_FAILURE: &str = "NamespaceDeletionContentFailure";

/// All of one kind that a namespace has is deleted within this time, or later.
const KIND_TIMEOUT: Duration = Duration::from_secs(300);

/// Not on its way out.
pub(crate) fn is_active(namespace: &Namespace) -> bool {
    namespace.metadata.deletion_timestamp.is_none()
        && namespace.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Terminating")
}

struct Controller {
    client: Client,
    clock: Clock,
    namespaces: Informer<Namespace>,
    pods: Informer<Pod>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let namespaces = context.on::<Namespace, _>(|event| {
        let namespace = event.object();
        namespace.metadata.deletion_timestamp.is_some().then(|| namespace.metadata.name.clone()).flatten()
    });
    let pods = {
        let namespaces = namespaces.clone();
        context.on::<Pod, _>(move |event| {
            let Event::Deleted(pod) = event else { return None };
            let namespace = namespaces.get(pod.metadata.namespace.as_deref()?)?;
            (!is_active(&namespace)).then(|| namespace.metadata.name.clone()).flatten()
        })
    };
    Arc::new(Controller { clock: context.config.clock.clone(), client: context.client.clone(), namespaces, pods })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

/// What is left of a namespace's content.
#[derive(Debug, Default)]
struct Remains {
    /// `pods. has 3 resource instances`, in upstream's words.
    resources: Vec<String>,
    finalizers: std::collections::BTreeMap<String, usize>,
    discovery_failures: Vec<String>,
    content_failures: Vec<String>,
}

impl Remains {
    fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.discovery_failures.is_empty() && self.content_failures.is_empty()
    }
}

impl Controller {
    async fn sync(&self, name: &str) -> Outcome {
        if self.namespaces.get(name).is_none() {
            return Ok(Requeue::Never);
        }
        let api = self.client.all::<Namespace>();
        // What the cache shows may be gone by now, and another namespace have its name: its content is not ours to delete.
        let Some(namespace) = api.get_opt(name).await? else { return Ok(Requeue::Never) };
        let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.clone()).unwrap_or_default();
        if namespace.metadata.deletion_timestamp.is_none() || finalizers.is_empty() {
            return Ok(Requeue::Never);
        }
        let remains = self.delete_content(name).await?;
        let mut changed = namespace.clone();
        let status = changed.status.get_or_insert_default();
        status.phase = Some("Terminating".into());
        status.conditions = Some(conditions(status.conditions.take().unwrap_or_default(), &remains, self.clock.now()));
        if changed.status != namespace.status {
            match api.update_status(&changed).await {
                Ok(written) => changed = written,
                Err(error) if error.is_not_found() => return Ok(Requeue::Never),
                Err(error) => return Err(error.into()),
            }
        }
        if !remains.is_empty() {
            let conditions = changed.status.as_ref().and_then(|status| status.conditions.as_deref());
            return Ok(Requeue::After(recheck_after(conditions.unwrap_or_default(), self.clock.now())));
        }
        changed.spec.get_or_insert_default().finalizers =
            Some(finalizers.into_iter().filter(|finalizer| finalizer != FINALIZER).collect());
        match api.update_subresource::<_, Namespace>(name, "finalize", &changed).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Requeue::Never),
        }
    }

    /// Asks for the deletion of everything and says what is still there.
    async fn delete_content(&self, namespace: &str) -> Result<Remains, Error> {
        let (resources, failed) = self.client.discover().await?;
        let mut remains = Remains {
            discovery_failures: failed
                .into_iter()
                .map(|(path, error)| format!("{}: {error}", path.trim_start_matches("/apis/")))
                .collect(),
            ..Remains::default()
        };
        let mut resources: Vec<ApiResource> = resources
            .into_iter()
            .filter(|resource| resource.namespaced && resource.supports("delete") && resource.supports("list"))
            .collect();
        resources.compact_sort_by_key(|resource| !is_pods(resource));
        let mut silent: Vec<String> = Vec::new();
        for resource in &resources {
            let group = resource.gvr.url_prefix();
            // A server that does not answer is asked once: with each of its kinds all other namespaces wait as long.
            if silent.contains(&group) {
                continue;
            }
            if !self.delete_all(namespace, resource, &mut remains).await {
                silent.push(group);
            }
            let waits =
                is_pods(resource) && (!remains.resources.is_empty() || !self.pods.by_namespace(namespace).is_empty());
            if waits {
                if remains.resources.is_empty() {
                    remains.resources.push("pods. has 1 resource instances".into());
                }
                break;
            }
        }
        Ok(remains)
    }

    /// Returns whether the server answered.
    async fn delete_all(&self, namespace: &str, resource: &ApiResource, remains: &mut Remains) -> bool {
        let api = self.client.metadata(&resource.gvr, Some(namespace));
        let what = format!("{}.{}", resource.gvr.resource, resource.gvr.group);
        let result = async {
            let list = api.list(&ListParams::default()).await?;
            if list.items.is_empty() {
                return Ok(list);
            }
            if resource.supports("deletecollection") {
                api.delete_collection(&ListParams::default(), &DeleteParams::background()).await?;
            } else {
                for object in list.items.iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
                    match api.delete(object.metadata.name(), &DeleteParams::background()).await {
                        Err(error) if !error.is_not_found() => return Err(error),
                        _ => {}
                    }
                }
            }
            api.list(&ListParams::default()).await
        };
        match tokio::time::timeout(KIND_TIMEOUT, result).await {
            Err(_) => {
                remains.content_failures.push(format!("{what}: not deleted within {} s", KIND_TIMEOUT.as_secs()));
                return false;
            }
            Ok(Ok(list)) if list.items.is_empty() => {}
            Ok(Ok(list)) => {
                for finalizer in list.items.iter().flat_map(|object| object.metadata.finalizers.iter().flatten()) {
                    *remains.finalizers.entry(finalizer.clone()).or_default() += 1;
                }
                remains.resources.push(format!("{what} has {} resource instances", list.items.len()));
            }
            // A kind that went away while we looked has no objects.
            Ok(Err(error)) if error.is_not_found() || error.code() == Some(405) => {}
            Ok(Err(error)) => {
                remains.content_failures.push(format!("{what}: {error}"));
                return !matches!(error, client::Error::Transport { .. } | client::Error::Timeout { .. });
            }
        }
        true
    }
}

fn is_pods(resource: &ApiResource) -> bool {
    resource.gvr.group.is_empty() && resource.gvr.resource == "pods"
}

/// When to look again at what a namespace has left. As long again as servers have failed: they are asked ever more seldom.
fn recheck_after(conditions: &[NamespaceCondition], now: Timestamp) -> Duration {
    let fails = |condition: &&NamespaceCondition| {
        condition.status == "True" && [DISCOVERY_FAILURE, CONTENT_FAILURE].contains(&condition.type_.as_str())
    };
    let times = conditions.iter().filter(fails).filter_map(|condition| condition.last_transition_time.as_ref());
    let since = times.map(|time| time.0).min();
    let failed_for = since.map(|since| Duration::try_from(now.duration_since(since)).unwrap_or_default());
    failed_for.unwrap_or_default().clamp(RECHECK_INTERVAL, MAX_RECHECK_INTERVAL)
}

/// The five conditions that tell why a namespace is still there.
fn conditions(old: Vec<NamespaceCondition>, remains: &Remains, now: Timestamp) -> Vec<NamespaceCondition> {
    let finalizers: Vec<String> =
        remains.finalizers.iter().map(|(name, count)| format!("{name} in {count} resource instances")).collect();
    let row =
        |kind: &'static str, bad: bool, reason: (&'static str, &'static str), message: String, good: &'static str| {
            (kind, bad, if bad { reason.0 } else { reason.1 }, if bad { message } else { good.to_owned() })
        };
    let rows = [
        row(
            DISCOVERY_FAILURE,
            !remains.discovery_failures.is_empty(),
            ("DiscoveryFailed", "ResourcesDiscovered"),
            format!(
                "Discovery failed for some groups, {} failing: {}",
                remains.discovery_failures.len(),
                remains.discovery_failures.join(", ")
            ),
            "All resources successfully discovered",
        ),
        row(
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            ("GroupVersionParsingFailed", "ParsedGroupVersions"),
            String::new(),
            "All legacy kube types successfully parsed",
        ),
        row(
            CONTENT_FAILURE,
            !remains.content_failures.is_empty(),
            ("ContentDeletionFailed", "ContentDeleted"),
            format!(
                "Failed to delete all resource types, {} remaining: {}",
                remains.content_failures.len(),
                remains.content_failures.join(", ")
            ),
            "All content successfully deleted, may be waiting on finalization",
        ),
        row(
            "NamespaceContentRemaining",
            !remains.resources.is_empty(),
            ("SomeResourcesRemain", "ContentRemoved"),
            format!("Some resources are remaining: {}", remains.resources.join(", ")),
            "All content successfully removed",
        ),
        row(
            "NamespaceFinalizersRemaining",
            !finalizers.is_empty(),
            ("SomeFinalizersRemain", "ContentHasNoFinalizers"),
            format!("Some content in the namespace has finalizers remaining: {}", finalizers.join(", ")),
            "All content-preserving finalizers finished",
        ),
    ];
    let ours = |condition: &NamespaceCondition| rows.iter().any(|(kind, ..)| condition.type_ == *kind);
    let mut conditions: Vec<_> = old.iter().filter(|condition| !ours(condition)).cloned().collect();
    for (kind, bad, reason, message) in &rows {
        let status = if *bad { "True" } else { "False" };
        let previous = old.iter().find(|condition| condition.type_ == *kind && condition.status == status);
        conditions.push(NamespaceCondition {
            type_: (*kind).into(),
            status: status.into(),
            reason: Some((*reason).into()),
            message: Some(message.clone()),
            last_transition_time: previous
                .and_then(|previous| previous.last_transition_time.clone())
                .or(Some(Time(now))),
        });
    }
    conditions
}

#[cfg(test)]
mod tests {
    use client::{Body, BoxError, InformerFactory};
    use http::{Method, Request, Response, StatusCode};
    use http_body_util::{BodyExt, Full, StreamBody};
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// A server whose lists still show a namespace that is being deleted, while another one has taken its name.
    fn answer(request: &Request<bytes::Bytes>) -> Response<Body> {
        let gone = json!({"metadata": {"name": "n", "uid": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"finalizers": [FINALIZER]}, "status": {"phase": "Terminating"}});
        let new = json!({"metadata": {"name": "n", "uid": "new"}, "spec": {"finalizers": [FINALIZER]}});
        let list = |items: Vec<Value>| json!({"metadata": {"resourceVersion": "5"}, "items": items});
        let query = request.uri().query().unwrap_or_default();
        let (code, body) = match request.uri().path() {
            _ if query.contains("sendInitialEvents") => (StatusCode::BAD_REQUEST, json!({})),
            _ if query.contains("watch=") => {
                let silence = futures_util::stream::pending::<Result<http_body::Frame<bytes::Bytes>, BoxError>>();
                return Response::new(StreamBody::new(silence).boxed_unsync());
            }
            "/api/v1/namespaces" => (StatusCode::OK, list(vec![gone])),
            "/api/v1/pods" => (StatusCode::OK, list(Vec::new())),
            "/api/v1/namespaces/n" => (StatusCode::OK, new),
            _ => (StatusCode::NOT_FOUND, json!({})),
        };
        let body = Full::new(body.to_string().into()).map_err(|never| match never {}).boxed_unsync();
        Response::builder().status(code).body(body).unwrap()
    }

    #[tokio::test]
    async fn a_namespace_that_took_the_name_of_another_keeps_its_content() {
        let deletes: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = deletes.clone();
        let handler: client::Handler = Arc::new(move |request: Request<bytes::Bytes>| {
            if request.method() != Method::GET {
                seen.lock().push(request.uri().to_string());
            }
            let response = answer(&request);
            Box::pin(async move { response })
        });
        let client = Client::in_process(handler, api::UserInfo::default());
        let (informers, stop) = (InformerFactory::new(client.clone()), CancellationToken::new());
        let (namespaces, pods) = (informers.informer(), informers.informer());
        informers.start(stop.clone());
        let controller = Controller { client, clock: Clock::default(), namespaces, pods };
        controller.namespaces.synced().await;
        assert!(!is_active(&controller.namespaces.get("n").unwrap()), "the cache is late");
        assert!(matches!(controller.sync("n").await, Ok(Requeue::Never)));
        assert_eq!(*deletes.lock(), Vec::<String>::new());
        stop.cancel();
    }

    /// What discovery and lists say of config maps, and of a group with three kinds whose server only answers discovery.
    async fn half_silent(path: String) -> Response<Body> {
        let kind = |name: &str| {
            json!({"name": name, "singularName": "", "namespaced": true, "kind": name,
            "verbs": ["delete", "deletecollection", "list"]})
        };
        let version = json!({"groupVersion": "silent.example.com/v1", "version": "v1"});
        let body = match path.as_str() {
            "/apis" => json!({"groups": [{"name": "silent.example.com", "versions": [version]}]}),
            "/api/v1" => json!({"groupVersion": "v1", "resources": [kind("configmaps")]}),
            "/apis/silent.example.com/v1" => {
                json!({"groupVersion": "silent.example.com/v1", "resources": [kind("a"), kind("b"), kind("c")]})
            }
            "/api/v1/namespaces/n/configmaps" => json!({"metadata": {}, "items": [{"metadata": {"name": "one"}}]}),
            _ => std::future::pending().await,
        };
        Response::new(Full::new(body.to_string().into()).map_err(|never| match never {}).boxed_unsync())
    }

    #[tokio::test(start_paused = true)]
    async fn security_a_silent_server_is_asked_once_for_a_namespace() {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = asked.clone();
        let handler: client::Handler = Arc::new(move |request: Request<bytes::Bytes>| {
            let path = request.uri().path().to_owned();
            if path.contains("/namespaces/") {
                seen.lock().push(format!("{} {path}", request.method()));
            }
            Box::pin(half_silent(path))
        });
        let client = Client::in_process(handler, api::UserInfo::default());
        let informers = InformerFactory::new(client.clone());
        let (namespaces, pods) = (informers.informer(), informers.informer());
        let controller = Controller { client, clock: Clock::default(), namespaces, pods };
        let remains = controller.delete_content("n").await.unwrap();
        assert_eq!((remains.resources.len(), remains.content_failures.len()), (1, 1), "{remains:?}");
        let maps = "/api/v1/namespaces/n/configmaps";
        let silent = "GET /apis/silent.example.com/v1/namespaces/n/a".to_owned();
        assert_eq!(*asked.lock(), [format!("GET {maps}"), format!("DELETE {maps}"), format!("GET {maps}"), silent]);
    }

    #[test]
    fn conditions_tell_what_remains_and_keep_their_times() {
        let now = Timestamp::UNIX_EPOCH;
        let remains = Remains { resources: vec!["pods. has 2 resource instances".into()], ..Remains::default() };
        let first = conditions(Vec::new(), &remains, now);
        let remaining = first.iter().find(|condition| condition.type_ == "NamespaceContentRemaining").unwrap();
        assert_eq!(remaining.message.as_deref(), Some("Some resources are remaining: pods. has 2 resource instances"));
        assert_eq!(first.len(), 5);
        let later = now + Duration::from_secs(60);
        assert_eq!(conditions(first.clone(), &remains, later), first);
        let failing = Remains { content_failures: vec!["things: late".into()], ..Remains::default() };
        let failing = conditions(first.clone(), &failing, later);
        for (conditions, seconds, expected) in
            [(&first, 600, 1), (&failing, 60, 1), (&failing, 70, 10), (&failing, 600, 60), (&failing, 0, 1)]
        {
            let now = Timestamp::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(recheck_after(conditions, now), Duration::from_secs(expected), "{seconds}");
        }
        let emptied = conditions(first, &Remains::default(), later);
        assert!(emptied.iter().all(|condition| condition.status == "False"));
    }
}
