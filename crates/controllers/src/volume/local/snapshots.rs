//! Snapshots of `local.cox`: contents of its name are taken, shown and deleted on the node that has the volume.

use api::meta::Meta as _;
use api::node_volumes::{Action, Answer, DRIVER, NodeVolumes, Request, Source, is_id};
use client::{Event, Informer, ListParams, Patch};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::snapshot::kinds::{GROUP, VolumeSnapshotContent};
use super::super::snapshot::plan::{BEING_DELETED, CONTENT_FINALIZER};
use super::plan::node_of;
use super::{BY_SNAPSHOT, BY_VOLUME, Controller, answer_to, name_of, token};
use crate::Error;
use crate::controller::{Outcome, Requeue};

/// A snapshot's handle says which node has it: `<node>/<id>`.
pub(super) fn place(handle: &str) -> Option<(&str, &str)> {
    handle.split_once('/').filter(|(node, id)| !node.is_empty() && is_id(id))
}

/// The id of the snapshot that a content stands for.
fn id_of(content: &VolumeSnapshotContent) -> String {
    let given = content.spec.source.snapshot_handle.as_deref().and_then(place);
    let own = || format!("snapshot-{}", content.metadata.uid());
    given.map_or_else(own, |(_, id)| id.to_owned())
}

fn is_held(content: &VolumeSnapshotContent) -> bool {
    content.metadata.finalizers.iter().flatten().any(|known| known == CONTENT_FINALIZER)
}

fn is_ready(content: &VolumeSnapshotContent) -> bool {
    content.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true) && status.snapshot_handle.is_some())
}

#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    Ask {
        action: Action,
        source: Option<Source>,
        instead_of: Option<String>,
    },
    /// It is there.
    Show {
        token: String,
        created: Option<i64>,
        size: i64,
    },
    /// It is gone, or nobody's business here.
    LetGo {
        token: Option<String>,
    },
    Fail {
        token: String,
        message: String,
    },
    Withdraw {
        token: String,
    },
}

/// `wanted` is what a node is to be asked for.
fn next(
    content: &VolumeSnapshotContent,
    wanted: (Action, Option<Source>),
    asked: Option<(&Request, Option<&Answer>)>,
) -> Step {
    let (action, source) = wanted;
    let is_done = action != Action::Delete && is_ready(content);
    match asked {
        Some((request, _)) if is_done => Step::Withdraw { token: request.token.clone() },
        None if is_done => Step::Nothing,
        Some((request, answer)) if request.action == action => match answer {
            None => Step::Nothing,
            Some(Answer { error: Some(message), .. }) => {
                Step::Fail { token: request.token.clone(), message: message.clone() }
            }
            Some(_) if action == Action::Delete => Step::LetGo { token: Some(request.token.clone()) },
            Some(answer) => Step::Show {
                token: request.token.clone(),
                created: answer.created,
                size: answer.size.unwrap_or_default().max(0),
            },
        },
        other => Step::Ask { action, source, instead_of: other.map(|(request, _)| request.token.clone()) },
    }
}

impl Controller {
    pub(super) async fn follow_contents(&self, stop: CancellationToken) {
        if !self.until_served(&format!("volumesnapshotcontents.{GROUP}"), None, &stop).await {
            return;
        }
        let contents = self.contents.get_or_init(|| {
            let contents: Informer<VolumeSnapshotContent> = Informer::new(self.client.all(), ListParams::default());
            contents.add_index(BY_SNAPSHOT, |content: &VolumeSnapshotContent| {
                if content.spec.driver == DRIVER { vec![id_of(content)] } else { Vec::new() }
            });
            let (queue, claims) = (self.queue.clone(), self.claims.clone());
            contents.subscribe(move |event: &Event<VolumeSnapshotContent>| {
                let content = event.object();
                if content.spec.driver != DRIVER {
                    return;
                }
                queue.add(format!("content/{}", name_of(&content.metadata)));
                // Claims may wait for it.
                for claim in
                    claims.by_namespace(content.spec.volume_snapshot_ref.namespace.as_deref().unwrap_or_default())
                {
                    let source = claim.spec.as_ref().and_then(|spec| spec.data_source.as_ref());
                    if source.is_some_and(|source| Some(&source.name) == content.spec.volume_snapshot_ref.name.as_ref())
                    {
                        queue.add(super::volume_key(&super::id_for(&claim)));
                    }
                }
            });
            contents
        });
        let ready = async {
            contents.synced().await;
            // What was answered before has been passed over.
            self.tidy_all();
        };
        tokio::join!(contents.run(stop.clone()), async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = ready => {}
            }
        });
    }

    /// Whether a node has removed a snapshot for a content that is gone by now, or needs nothing any more.
    pub(super) fn is_let_go(&self, object: &NodeVolumes, id: &str) -> bool {
        let Some(contents) = self.contents.get().filter(|contents| contents.has_synced()) else { return false };
        let request = object.spec.snapshots.get(id).filter(|request| request.action == Action::Delete && is_id(id));
        let answer = request.and_then(|request| answer_to(request, object.status.snapshots.get(id)));
        let is_removed = answer.is_some_and(|answer| answer.error.is_none());
        is_removed && !contents.by_index(BY_SNAPSHOT, id).iter().any(|content| is_held(content))
    }

    pub(super) async fn sync_content(&self, nodes: &Informer<NodeVolumes>, name: &str) -> Outcome {
        let Some(contents) = self.contents.get().filter(|contents| contents.has_synced()) else {
            return Ok(Requeue::Never);
        };
        let Some(content) = contents.get(name).filter(|content| content.spec.driver == DRIVER) else {
            return Ok(Requeue::Never);
        };
        let is_deleted = content.metadata.deletion_timestamp.is_some();
        if is_deleted && !is_held(&content) {
            return Ok(Requeue::Never);
        }
        if is_deleted && content.spec.deletion_policy != "Delete" {
            // A request to remove it must not outlast the decision to keep it.
            let id = id_of(&content);
            for object in nodes.by_index(BY_SNAPSHOT, &id) {
                if let Some(request) = object.spec.snapshots.get(&id) {
                    self.withdraw(name_of(&object.metadata), "snapshots", &id, &request.token).await?;
                }
            }
            return self.let_content_go(&content).await;
        }
        let marked = content.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(BEING_DELETED));
        if is_deleted && !marked && content.spec.volume_snapshot_ref.uid.is_some() {
            // Its snapshot is still there; the snapshot controller says when it goes.
            return Ok(Requeue::Never);
        }
        let id = id_of(&content);
        let status = content.status.clone().unwrap_or_default();
        let given = status.snapshot_handle.as_deref().or(content.spec.source.snapshot_handle.as_deref());
        let source = content.spec.source.volume_handle.clone();
        let volume = source.as_ref().and_then(|id| self.volumes.by_index(BY_VOLUME, id).into_iter().next());
        let asking = nodes.by_index(BY_SNAPSHOT, &id).into_iter().next();
        let node = given.and_then(place).map(|(node, _)| node.to_owned());
        let node = node.or_else(|| asking.as_ref().map(|object| name_of(&object.metadata).to_owned()));
        let Some(node) = node.or_else(|| volume.as_deref().and_then(node_of).map(str::to_owned)) else {
            if is_deleted {
                return self.let_content_go(&content).await;
            }
            let id = source.unwrap_or_default();
            return self.content_failed(&content, &format!("volume {id} is not on any node")).await;
        };
        let Some(object) = nodes.get(&node) else {
            if is_deleted && self.client.all::<Node>().get_opt(&node).await?.is_none() {
                return self.let_content_go(&content).await;
            }
            if is_deleted || is_ready(&content) {
                return Ok(Requeue::Never);
            }
            return self.content_failed(&content, &format!("node {node} does not serve {DRIVER}")).await;
        };
        let request = object.spec.snapshots.get(&id);
        let asked = request.map(|request| (request, answer_to(request, object.status.snapshots.get(&id))));
        let wanted = match (is_deleted, source) {
            (true, _) => (Action::Delete, None),
            (false, Some(volume)) => (Action::Create, Some(Source::Volume(volume))),
            (false, None) => (Action::Find, None),
        };
        match next(&content, wanted, asked) {
            Step::Nothing => Ok(Requeue::Never),
            Step::Ask { action, source, instead_of } => {
                let request = Request { token: token(), action, capacity: 0, source };
                self.ask(&node, "snapshots", &id, &request, instead_of.as_deref()).await?;
                Ok(Requeue::Never)
            }
            Step::Show { token, created, size } => {
                let shown = json!({
                    "snapshotHandle": format!("{node}/{id}"), "creationTime": created, "restoreSize": size,
                    "readyToUse": true, "error": null,
                });
                self.patch_content_status(&content, shown).await?;
                self.withdraw(&node, "snapshots", &id, &token).await?;
                Ok(Requeue::Never)
            }
            Step::LetGo { token } => {
                // First: nobody would do so for a content that is gone, and one that is still there asks again.
                if let Some(token) = token {
                    self.withdraw(&node, "snapshots", &id, &token).await?;
                }
                self.let_content_go(&content).await
            }
            Step::Fail { token, message } => {
                self.withdraw(&node, "snapshots", &id, &token).await?;
                self.content_failed(&content, &message).await
            }
            Step::Withdraw { token } => {
                self.withdraw(&node, "snapshots", &id, &token).await?;
                Ok(Requeue::Never)
            }
        }
    }

    async fn patch_content_status(&self, content: &VolumeSnapshotContent, status: Value) -> Result<(), Error> {
        let contents = self.client.all::<VolumeSnapshotContent>();
        contents.patch_status(name_of(&content.metadata), &Patch::merge(json!({ "status": status }))).await?;
        Ok(())
    }

    /// It says why it is not ready, or not gone, and is tried again.
    async fn content_failed(&self, content: &VolumeSnapshotContent, message: &str) -> Outcome {
        let is_deleted = content.metadata.deletion_timestamp.is_some();
        let (reason, what) = match is_deleted {
            true => ("SnapshotDeleteError", "Failed to delete snapshot"),
            false => ("SnapshotCreationFailed", "Failed to create snapshot"),
        };
        self.recorder.warning(&client::reference(content), reason, format!("{what}: {message}"));
        let shown = content.status.as_ref().and_then(|status| status.error.as_ref()?.message.as_deref());
        if !is_deleted && shown != Some(message) {
            let time = api::time::rfc3339(self.clock.now());
            let status = json!({ "readyToUse": false, "error": { "time": time, "message": message } });
            self.patch_content_status(content, status).await?;
        }
        Err(Error::object(format!("content {}: {message}", name_of(&content.metadata))))
    }

    async fn let_content_go(&self, content: &VolumeSnapshotContent) -> Outcome {
        let finalizers = content.metadata.finalizers.iter().flatten();
        let left: Vec<_> = finalizers.filter(|name| *name != CONTENT_FINALIZER).collect();
        let meta = json!({ "finalizers": left, "resourceVersion": content.metadata.resource_version });
        let patch = Patch::merge(json!({ "metadata": meta }));
        match self.client.all::<VolumeSnapshotContent>().patch(name_of(&content.metadata), &patch).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Requeue::Never),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_taken_shown_and_deleted() {
        let fresh = VolumeSnapshotContent::default();
        let ready: VolumeSnapshotContent =
            serde_json::from_value(json!({ "status": { "readyToUse": true, "snapshotHandle": "n/s" } })).unwrap();
        let request = |action| Request { token: "t".into(), action, capacity: 0, source: None };
        let answer = |error: Option<&str>| Answer {
            token: "t".into(),
            error: error.map(str::to_owned),
            created: Some(1),
            size: Some(-5),
        };
        let (create, delete) = (request(Action::Create), request(Action::Delete));
        let (fine, bad) = (answer(None), answer(Some("full")));
        let ask = |action, instead: bool| Step::Ask { action, source: None, instead_of: instead.then(|| "t".into()) };
        for (content, action, asked, expected) in [
            (&fresh, Action::Create, None, ask(Action::Create, false)),
            (&fresh, Action::Create, Some((&create, None)), Step::Nothing),
            (
                &fresh,
                Action::Create,
                Some((&create, Some(&fine))),
                Step::Show { token: "t".into(), created: Some(1), size: 0 },
            ),
            (
                &fresh,
                Action::Create,
                Some((&create, Some(&bad))),
                Step::Fail { token: "t".into(), message: "full".into() },
            ),
            (&ready, Action::Create, None, Step::Nothing),
            (&ready, Action::Create, Some((&create, Some(&fine))), Step::Withdraw { token: "t".into() }),
            (&ready, Action::Delete, None, ask(Action::Delete, false)),
            (&fresh, Action::Delete, Some((&create, None)), ask(Action::Delete, true)),
            (&ready, Action::Delete, Some((&delete, Some(&fine))), Step::LetGo { token: Some("t".into()) }),
        ] {
            assert_eq!(next(content, (action, None), asked), expected);
        }
        assert_eq!(place("n.example/snapshot-1"), Some(("n.example", "snapshot-1")));
        for bad in ["snapshot-1", "/s", "n/", "n/../x", "n/a/b"] {
            assert_eq!(place(bad), None, "{bad}");
        }
    }
}
