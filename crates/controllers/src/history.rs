//! ControllerRevisions: the templates that a StatefulSet or DaemonSet has had.

use std::sync::Arc;

use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::{Client, DeleteParams, Event, Informer, Resource};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use crate::Error;
use crate::owners::{controller_key, controller_reference, former_controller, may_adopt};

/// The label on pods that tells which revision they are of.
pub(crate) const REVISION_LABEL: &str = "controller-revision-hash";

/// The recorded revisions of `owner`, oldest first.
pub(crate) fn of<K: Resource>(informer: &Informer<ControllerRevision>, owner: &K) -> Vec<Arc<ControllerRevision>> {
    let uid = owner.metadata().uid();
    let mut revisions: Vec<_> =
        informer.by_owner(uid).into_iter().filter(|revision| revision.metadata.is_controlled_by(uid)).collect();
    revisions.compact_sort_by(|left, right| {
        (left.revision, &left.metadata.creation_timestamp).cmp(&(right.revision, &right.metadata.creation_timestamp))
    });
    revisions
}

/// A revision of `owner` by its name. The cache may be behind the status that names it, so the server is asked: without it, pods
/// of the revision would be made of another.
pub(crate) async fn named<K: Resource>(
    client: &Client,
    owner: &K,
    revisions: &[Arc<ControllerRevision>],
    wanted: &str,
) -> Result<Option<ControllerRevision>, Error> {
    if let Some(found) = revisions.iter().find(|revision| name(revision) == wanted) {
        return Ok(Some(ControllerRevision::clone(found)));
    }
    let owner = owner.metadata();
    let live = client.namespaced::<ControllerRevision>(owner.namespace()).get_opt(wanted).await?;
    Ok(live.filter(|live| live.metadata.is_controlled_by(owner.uid())))
}

/// Whom a change of a revision concerns: the set that has it, and one that has lost it and records it again. One that goes may
/// have stood in the way of a set that only has the name of its owner: the set of that name was deleted and made anew.
pub(crate) fn keys<K: Resource>(event: &Event<ControllerRevision>, owners: &Informer<K>) -> Vec<String> {
    let meta = &event.object().metadata;
    if !matches!(event, Event::Deleted(_)) {
        return controller_key(meta, owners).into_iter().chain(former_controller(event, owners)).collect();
    }
    let owner = meta.controller().filter(|owner| owner.kind == K::KIND);
    let key = owner.map(|owner| format!("{}/{}", meta.namespace(), owner.name));
    key.filter(|key| owners.get(key).is_some()).into_iter().collect()
}

pub(crate) fn name(revision: &ControllerRevision) -> &str {
    revision.metadata.name()
}

/// What a revision remembers of a template: a patch that replaces it.
fn data(template: &PodTemplateSpec) -> Value {
    let mut template = api::codec::to_value(template).unwrap_or_default();
    template["$patch"] = json!("replace");
    json!({ "spec": { "template": template } })
}

pub(crate) fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    api::codec::from_value(&template).ok()
}

/// The revision of the present template, recorded if it is new and moved to the front if it is an old one again.
pub(crate) async fn record<K: Resource>(
    client: &Client,
    owner: &K,
    present: &PodTemplateSpec,
    revisions: &[Arc<ControllerRevision>],
    collisions: Option<i32>,
) -> Result<ControllerRevision, Error> {
    let api = client.namespaced::<ControllerRevision>(owner.metadata().namespace());
    let data = data(present);
    let newest = revisions.last().map_or(0, |revision| revision.revision);
    let same =
        revisions.iter().rev().find(|revision| revision.data.as_ref().is_some_and(|recorded| recorded.0 == data));
    if let Some(same) = same {
        if same.revision == newest {
            return Ok(ControllerRevision::clone(same));
        }
        return Ok(api.update(&ControllerRevision { revision: newest + 1, ..ControllerRevision::clone(same) }).await?);
    }
    let mut collisions = collisions;
    loop {
        let hash = crate::deployment::template_hash(present, collisions);
        let owner_name = owner.metadata().name();
        let name = format!("{}-{hash}", owner_name.chars().take(223).collect::<String>());
        let mut labels = present.metadata.as_ref().and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
        labels.insert(REVISION_LABEL.into(), hash);
        let revision = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: owner.metadata().namespace.clone(),
                labels: Some(labels),
                // Among them is why it was changed, which `kubectl rollout history` shows.
                annotations: owner.metadata().annotations.clone(),
                owner_references: Some(vec![controller_reference(owner)]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(data.clone())),
            revision: newest + 1,
        };
        match api.create(&revision).await {
            Ok(created) => return Ok(created),
            Err(error) if error.is_already_exists() => {
                let existing = api.get(&name).await?;
                if existing.data.as_ref().is_some_and(|recorded| recorded.0 == data) {
                    return adopt(client, owner, existing, newest + 1).await; // or the cache is behind
                }
                collisions = Some(collisions.unwrap_or_default() + 1);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes over a revision that a deleted owner of the same shape left behind. One on its way out leaves its own behind.
async fn adopt<K: Resource>(
    client: &Client,
    owner: &K,
    mut revision: ControllerRevision,
    number: i64,
) -> Result<ControllerRevision, Error> {
    if revision.metadata.controller().is_some() || !may_adopt(client, owner).await? {
        return Ok(revision);
    }
    revision.metadata.owner_references.get_or_insert_default().push(controller_reference(owner));
    revision.revision = number;
    Ok(client.all::<ControllerRevision>().update(&revision).await?)
}

/// Deletes revisions that nothing uses, beyond `limit` of them, oldest first.
pub(crate) async fn truncate(
    client: &Client,
    revisions: &[Arc<ControllerRevision>],
    is_live: impl Fn(&str) -> bool,
    limit: i32,
) -> Result<(), Error> {
    let unused: Vec<_> = revisions.iter().filter(|revision| !is_live(name(revision))).collect();
    let surplus = unused.len().saturating_sub(usize::try_from(limit).unwrap_or_default());
    for revision in unused.into_iter().take(surplus) {
        let api = client.namespaced::<ControllerRevision>(revision.metadata.namespace());
        match api.delete(name(revision), &DeleteParams::default()).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use http_body_util::{BodyExt, Full};
    use k8s_openapi::api::apps::v1::DaemonSet;

    use super::*;
    use crate::pods::tests::informer_of;

    #[test]
    fn a_template_survives_its_record() {
        let mut present = PodTemplateSpec::default();
        present.metadata.get_or_insert_default().labels = Some([("app".to_owned(), "db".to_owned())].into());
        let revision = ControllerRevision { data: Some(RawExtension(data(&present))), ..ControllerRevision::default() };
        assert_eq!(template(&revision), Some(present));
    }

    /// A status may name a revision that no watch has shown yet.
    #[tokio::test]
    async fn a_revision_that_the_cache_does_not_show_is_asked_for() {
        let handler: client::Handler = Arc::new(|_: Request<bytes::Bytes>| {
            let owner = json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u" });
            let mut revision = json!({ "metadata": { "name": "agent-1", "ownerReferences": [owner] }, "revision": 1 });
            revision["metadata"]["ownerReferences"][0]["controller"] = json!(true);
            let body: client::Body =
                Full::new(revision.to_string().into()).map_err(|never| match never {}).boxed_unsync();
            Box::pin(async move { Response::new(body) })
        });
        let client = Client::in_process(handler, api::UserInfo::default());
        for (uid, expected) in [("u", Some("agent-1")), ("another", None)] {
            let mut set = DaemonSet::default();
            set.metadata.namespace = Some("default".into());
            set.metadata.uid = Some(uid.into());
            let found = named(&client, &set, &[], "agent-1").await.unwrap();
            assert_eq!(found.as_ref().map(name), expected, "{uid}");
        }
    }

    /// What a set that is deleted leaves behind is not taken back, though the cache does not show the deletion yet.
    #[tokio::test]
    async fn a_set_on_its_way_out_adopts_no_revision() {
        for (deletion, is_adopted) in [(Value::Null, true), (json!("2026-01-01T00:00:00Z"), false)] {
            let set = json!({ "metadata": { "name": "agent", "namespace": "default", "uid": "u" } });
            let mut live = set.clone();
            live["metadata"]["deletionTimestamp"] = deletion;
            // The set as the server has it, and whatever is written.
            let handler: client::Handler = Arc::new(move |request: Request<bytes::Bytes>| {
                let body: bytes::Bytes = match *request.method() == Method::GET {
                    true => live.to_string().into(),
                    false => request.into_body(),
                };
                let body: client::Body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
                Box::pin(async move { Response::new(body) })
            });
            let client = Client::in_process(handler, api::UserInfo::default());
            let cached: DaemonSet = serde_json::from_value(set).unwrap();
            let mut orphan = ControllerRevision::default();
            orphan.metadata.name = Some("agent-1".into());
            orphan.metadata.namespace = Some("default".into());
            let found = adopt(&client, &cached, orphan, 2).await.unwrap();
            assert_eq!(found.metadata.is_controlled_by("u"), is_adopted);
        }
    }

    /// A set that was made anew may have found the revision of its predecessor, which then goes.
    #[tokio::test]
    async fn a_set_hears_of_the_end_of_its_predecessors_revision() {
        let set = json!({ "metadata": { "name": "agent", "namespace": "default", "uid": "new" } });
        let sets = informer_of::<DaemonSet>(vec![set.clone()]).await;
        let revision = |uid: &str| {
            let mut owner: DaemonSet = serde_json::from_value(set.clone()).unwrap();
            owner.metadata.uid = Some(uid.into());
            let mut revision = ControllerRevision::default();
            revision.metadata.namespace = Some("default".into());
            revision.metadata.owner_references = Some(vec![controller_reference(&owner)]);
            Arc::new(revision)
        };
        for (event, expected) in [
            (Event::Deleted(revision("old")), vec!["default/agent"]),
            (Event::Deleted(revision("new")), vec!["default/agent"]),
            (Event::Added(revision("new")), vec!["default/agent"]),
            (Event::Added(revision("old")), vec![]),
            (Event::Modified { old: revision("new"), new: revision("another") }, vec!["default/agent"]),
        ] {
            assert_eq!(keys(&event, &sets), expected, "{event:?}");
        }
    }
}
