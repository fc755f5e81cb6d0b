//! Where the volume of a claim is made, and what it is a copy of.

use api::meta::Meta as _;
use api::node_volumes::{Action, DRIVER, NodeVolumes, Source, TOPOLOGY_KEY};
use client::Informer;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use super::super::decision::{LOCAL_PATH, SELECTED_NODE, annotation, volume_name};
use super::super::matching::{capacity, claim_class, requested};
use super::super::snapshot::kinds::{GROUP as SNAPSHOTS, VolumeSnapshot, VolumeSnapshotContent};
use super::error::NoVolume;
use super::plan::{Asked, Target, handle, is_bound_to, node_of};
use super::{Controller, name_of, quantity, snapshots};
use crate::Error;

impl Controller {
    /// Where a claim is to get its volume; none until that is known. A copy is made where its source is: the pod follows the
    /// volume.
    pub(super) async fn target(
        &self,
        nodes: &Informer<NodeVolumes>,
        claim: &PersistentVolumeClaim,
        asked: &[Asked<'_>],
    ) -> Result<Result<Option<Target>, NoVolume>, Error> {
        // The annotations are the claim's owner's, the class is not.
        let class = claim_class(claim).and_then(|class| self.classes.get(class));
        let Some(class) = class.filter(|class| [DRIVER, LOCAL_PATH].contains(&class.provisioner.as_str())) else {
            return Ok(Ok(None));
        };
        let spec = claim.spec.as_ref();
        if spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
            return Ok(Err(NoVolume::Block));
        }
        let selected = annotation(&claim.metadata, SELECTED_NODE);
        let is_delayed = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        if is_delayed && selected.is_none() {
            return Ok(Ok(None));
        }
        if selected.is_some_and(|node| names_nodes(&class) && !is_allowed(&class, node)) {
            return Ok(Err(NoVolume::OtherNodes));
        }
        if spec.is_some_and(|spec| spec.data_source_ref.is_some() || spec.data_source.is_some()) {
            let found = self.source(claim).await?;
            return Ok(found.map(|(node, source)| Some(Target { node, source: Some(source) })));
        }
        let wanted = requested(claim).value();
        let roomiest = || {
            let all = nodes.list();
            let fitting = all.iter().filter(|node| is_allowed(&class, name_of(&node.metadata)));
            let with_room = fitting.filter(|node| node.status.available.is_some_and(|room| room >= wanted));
            with_room.max_by_key(|node| node.status.available).map(|node| name_of(&node.metadata).to_owned())
        };
        let begun = || {
            let create = asked.iter().find(|asked| asked.request.action == Action::Create);
            create.map(|asked| asked.node.to_owned())
        };
        match selected.map(str::to_owned).or_else(begun).or_else(roomiest) {
            Some(node) => Ok(Ok(Some(Target { node, source: None }))),
            None => Ok(Err(NoVolume::NoRoom(quantity(wanted)))),
        }
    }

    /// What a claim is to be a copy of, and the node that has it.
    async fn source(&self, claim: &PersistentVolumeClaim) -> Result<Result<(String, Source), NoVolume>, Error> {
        let namespace = claim.metadata.namespace();
        let Some(spec) = &claim.spec else { return Ok(Err(NoVolume::NoSpec)) };
        let Some(source) = &spec.data_source else {
            let kind = spec.data_source_ref.as_ref().map(|source| source.kind.clone()).unwrap_or_default();
            return Ok(Err(NoVolume::SourceKind(kind)));
        };
        let key = format!("{namespace}/{}", source.name);
        let (node, source, size) = match (source.api_group.as_deref().unwrap_or_default(), source.kind.as_str()) {
            ("", "PersistentVolumeClaim") => {
                let Some(other) = self.claims.get(&key) else {
                    return Ok(Err(NoVolume::NoClaim { namespace: namespace.to_owned(), name: source.name.clone() }));
                };
                let volume = volume_name(&other).and_then(|name| self.volumes.get(name));
                let Some(volume) = volume.filter(|volume| is_bound_to(volume, &other)) else {
                    return Ok(Err(NoVolume::Unbound { namespace: namespace.to_owned(), name: source.name.clone() }));
                };
                let (Some(node), Some(id)) = (node_of(&volume), handle(&volume)) else {
                    return Ok(Err(NoVolume::ForeignClaim(source.name.clone())));
                };
                (node.to_owned(), Source::Volume(id.to_owned()), capacity(&volume).value())
            }
            (SNAPSHOTS, "VolumeSnapshot") => match self.snapshot_source(namespace, &source.name).await? {
                Ok(found) => found,
                Err(why) => return Ok(Err(why)),
            },
            (_, kind) => return Ok(Err(NoVolume::SourceKind(kind.to_owned()))),
        };
        let wanted = requested(claim).value();
        if wanted < size {
            return Ok(Err(NoVolume::Smaller { wanted, size, key }));
        }
        Ok(Ok((node, source)))
    }

    /// Both halves of a snapshot, as they are now: a content is believed only by the snapshot that it names.
    async fn snapshot_source(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Result<(String, Source, i64), NoVolume>, Error> {
        let snapshot = self.client.namespaced::<VolumeSnapshot>(namespace).get_opt(name).await?;
        let Some(snapshot) = snapshot else {
            return Ok(Err(NoVolume::NoSnapshot(name.to_owned())));
        };
        let status = snapshot.status.clone().unwrap_or_default();
        let not_ready = || Ok(Err(NoVolume::SnapshotNotReady(name.to_owned())));
        let Some(content) = status.bound_volume_snapshot_content_name.filter(|_| status.ready_to_use == Some(true))
        else {
            return not_ready();
        };
        let content = self.client.all::<VolumeSnapshotContent>().get_opt(&content).await?;
        let Some(content) = content else { return not_ready() };
        let reference = &content.spec.volume_snapshot_ref;
        let is_its = reference.uid.is_some()
            && reference.uid == snapshot.metadata.uid
            && content.spec.driver == DRIVER
            && content.metadata.deletion_timestamp.is_none();
        let status = content.status.unwrap_or_default();
        let place = status.snapshot_handle.as_deref().filter(|_| is_its).and_then(snapshots::place);
        let Some((node, id)) = place else {
            return Ok(Err(NoVolume::ForeignSnapshot(name.to_owned())));
        };
        Ok(Ok((node.to_owned(), Source::Snapshot(id.to_owned()), status.restore_size.unwrap_or_default())))
    }
}

/// Whether a class says by name which nodes its volumes are on.
fn names_nodes(class: &StorageClass) -> bool {
    let terms = class.allowed_topologies.iter().flatten();
    terms.flat_map(|term| term.match_label_expressions.iter().flatten()).any(|one| one.key == TOPOLOGY_KEY)
}

/// Whether a class has volumes on a node.
fn is_allowed(class: &StorageClass, node: &str) -> bool {
    let Some(terms) = class.allowed_topologies.as_deref().filter(|terms| !terms.is_empty()) else { return true };
    let mut expressions = terms.iter().flat_map(|term| term.match_label_expressions.iter().flatten());
    expressions.any(|one| one.key == TOPOLOGY_KEY && one.values.iter().any(|value| value == node))
}
