//! Events of the API -> the cluster as decisions see it, and the queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::cached::{Packed, Pod};
use api::meta::Meta as _;
use client::{Event as Seen, InformerFactory, Object};
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use tokio::sync::watch;

use crate::cluster::{Observed, workload_selector};
use crate::framework::{Event, NodeChange, PodChange};
use crate::pod::{self, OwnerKind, PodInfo};
use crate::scheduler::Scheduler;

/// Follows everything that decisions depend on. Returns what has to be seen whole before the first decision.
pub(crate) fn follow(
    scheduler: &Arc<Scheduler>,
    informers: &InformerFactory,
    volume_changes: watch::Sender<u64>,
) -> Vec<futures_util::future::BoxFuture<'static, ()>> {
    let mut synced: Vec<futures_util::future::BoxFuture<'static, ()>> = Vec::new();
    macro_rules! follow {
        ($kind:ty, $handle:expr) => {{
            let (informer, scheduler) = (informers.informer::<$kind>(), scheduler.clone());
            let handle = $handle;
            informer.subscribe(move |event: &Seen<$kind>| handle(&scheduler, event));
            synced.push(informer.untyped().synced());
        }};
    }
    follow!(Namespace, |scheduler: &Scheduler, event: &Seen<Namespace>| scheduler.see_namespace(event));
    follow!(PodDisruptionBudget, |scheduler: &Scheduler, event: &Seen<PodDisruptionBudget>| {
        let (namespace, name) = names(event);
        scheduler.core.lock().cluster.budgets.set(namespace, name, present(event).map(|budget| &**budget));
    });
    follow!(Service, |scheduler: &Scheduler, event: &Seen<Service>| {
        let selector = present(event).and_then(|service| service.spec.as_ref()?.selector.as_ref());
        let (namespace, name) = names(event);
        scheduler.core.lock().cluster.owners.set_service(namespace, name, selector);
    });
    follow!(Packed<ReplicationController>, |scheduler: &Scheduler, event: &Seen<Packed<ReplicationController>>| {
        let selector: Option<BTreeMap<String, String>> =
            present(event).and_then(|owner| owner.part(&["spec", "selector"]));
        let selector = selector.as_ref().map(api::selector::Selector::from_map);
        scheduler.see_workload(OwnerKind::ReplicationController, event, selector);
    });
    follow!(Packed<ReplicaSet>, |scheduler: &Scheduler, event: &Seen<Packed<ReplicaSet>>| {
        let selector: Option<LabelSelector> = present(event).and_then(|owner| owner.part(&["spec", "selector"]));
        let selector = selector.and_then(|selector| workload_selector(Some(&selector)));
        scheduler.see_workload(OwnerKind::ReplicaSet, event, selector);
    });
    follow!(StatefulSet, |scheduler: &Scheduler, event: &Seen<StatefulSet>| {
        let spec = present(event).and_then(|owner| owner.spec.as_ref());
        let selector = spec.and_then(|spec| workload_selector(Some(&spec.selector)));
        scheduler.see_workload(OwnerKind::StatefulSet, event, selector);
    });
    let changes = volume_changes.clone();
    follow!(PersistentVolumeClaim, move |scheduler: &Scheduler, event: &Seen<PersistentVolumeClaim>| {
        scheduler.see_claim(event);
        changes.send_modify(|count| *count += 1);
    });
    let changes = volume_changes.clone();
    follow!(PersistentVolume, move |scheduler: &Scheduler, event: &Seen<PersistentVolume>| {
        scheduler.core.lock().cluster.volumes.set_volume(names(event).1, present(event).cloned());
        changes.send_modify(|count| *count += 1);
        match event {
            Seen::Added(_) => scheduler.queue.happened(&Event::VolumeAdded),
            Seen::Modified { .. } => scheduler.queue.happened(&Event::VolumeChanged),
            Seen::Deleted(_) => {}
        }
    });
    follow!(StorageClass, |scheduler: &Scheduler, event: &Seen<StorageClass>| {
        scheduler.core.lock().cluster.volumes.set_class(names(event).1, present(event).cloned());
        match event {
            Seen::Added(class) => scheduler.queue.happened(&Event::StorageClassAdded(class.clone())),
            Seen::Modified { old, new } => {
                scheduler.queue.happened(&Event::StorageClassChanged { old: old.clone(), new: new.clone() });
            }
            Seen::Deleted(_) => {}
        }
    });
    follow!(CSIDriver, |scheduler: &Scheduler, event: &Seen<CSIDriver>| {
        let name = names(event).1;
        scheduler.core.lock().cluster.volumes.set_driver(name, present(event).cloned());
        if let Seen::Modified { old, new } = event
            && old.spec.storage_capacity == Some(true)
            && new.spec.storage_capacity != Some(true)
        {
            scheduler.queue.happened(&Event::CsiDriverChanged(name.to_owned()));
        }
    });
    follow!(CSINode, |scheduler: &Scheduler, event: &Seen<CSINode>| {
        scheduler.core.lock().cluster.volumes.set_csi_node(names(event).1, present(event).cloned());
        match event {
            Seen::Added(_) => scheduler.queue.happened(&Event::CsiNodeAdded),
            Seen::Modified { old, new } => {
                scheduler.queue.happened(&Event::CsiNodeChanged { old: old.clone(), new: new.clone() });
            }
            Seen::Deleted(_) => {}
        }
    });
    follow!(VolumeAttachment, |scheduler: &Scheduler, event: &Seen<VolumeAttachment>| {
        scheduler.core.lock().cluster.volumes.set_attachment(names(event).1, present(event).cloned());
        if matches!(event, Seen::Deleted(_)) {
            scheduler.queue.happened(&Event::AttachmentDeleted);
        }
    });
    follow!(CSIStorageCapacity, |scheduler: &Scheduler, event: &Seen<CSIStorageCapacity>| {
        let key = client::object_key(&**event.object());
        scheduler.core.lock().cluster.volumes.set_capacity(&key, present(event).cloned());
        match event {
            Seen::Added(_) => scheduler.queue.happened(&Event::CapacityAdded),
            Seen::Modified { old, new } => {
                scheduler.queue.happened(&Event::CapacityChanged { old: old.clone(), new: new.clone() });
            }
            Seen::Deleted(_) => {}
        }
    });
    let changes = volume_changes.clone();
    follow!(Node, move |scheduler: &Scheduler, event: &Seen<Node>| {
        scheduler.see_node(event);
        if matches!(event, Seen::Deleted(_)) {
            changes.send_modify(|count| *count += 1);
        }
    });
    follow!(Pod, move |scheduler: &Scheduler, event: &Seen<Pod>| {
        scheduler.see_pod(event);
        // A pod that waits for its volumes has no node yet.
        if matches!(event, Seen::Deleted(pod) if pod::node_name(pod).is_none()) {
            volume_changes.send_modify(|count| *count += 1);
        }
    });
    synced
}

/// The object, unless it is gone.
fn present<K>(event: &Seen<K>) -> Option<&Arc<K>> {
    match event {
        Seen::Deleted(_) => None,
        _ => Some(event.object()),
    }
}

fn names<K: Object>(event: &Seen<K>) -> (&str, &str) {
    let metadata = event.object().meta();
    (metadata.namespace(), metadata.name())
}

impl Scheduler {
    fn see_namespace(&self, event: &Seen<Namespace>) {
        let labels = present(event).map(|namespace| namespace.metadata.labels.clone().unwrap_or_default());
        // A pod may have been judged before the labels were seen that its terms go by.
        let is_news = self.core.lock().cluster.set_namespace(names(event).1, labels);
        if is_news {
            self.queue.happened(&Event::NamespaceChanged);
        }
    }

    fn see_workload<K: Object>(&self, kind: OwnerKind, event: &Seen<K>, selector: Option<api::selector::Selector>) {
        let (namespace, name) = names(event);
        self.core.lock().cluster.owners.set_workload(kind, namespace, name, selector);
    }

    fn see_claim(&self, event: &Seen<PersistentVolumeClaim>) {
        let key = client::object_key(&**event.object());
        self.core.lock().cluster.volumes.set_claim(&key, present(event).cloned());
        match event {
            Seen::Added(claim) => self.queue.happened(&Event::ClaimAdded(claim.clone())),
            Seen::Modified { new, .. } => self.queue.happened(&Event::ClaimChanged(new.clone())),
            Seen::Deleted(_) => {}
        }
    }

    fn see_node(&self, event: &Seen<Node>) {
        let began = Instant::now();
        let happened = match event {
            Seen::Added(node) => {
                self.core.lock().cluster.set_node(node.clone());
                Some(Event::NodeAdded(node.clone()))
            }
            Seen::Modified { old, new } => {
                self.core.lock().cluster.set_node(new.clone());
                let change = NodeChange::between(old, new);
                change.map(|change| Event::NodeChanged { old: old.clone(), new: new.clone(), change })
            }
            Seen::Deleted(node) => {
                self.core.lock().cluster.remove_node(names(event).1);
                Some(Event::NodeDeleted(node.clone()))
            }
        };
        self.enqueue_event(happened, began);
    }

    fn see_pod(&self, event: &Seen<Pod>) {
        match event {
            Seen::Deleted(pod) => self.lose_pod(pod),
            Seen::Added(pod) => self.keep_pod(None, pod),
            Seen::Modified { old, new } => self.keep_pod(Some(old), new),
        }
    }

    fn keep_pod(&self, old: Option<&Arc<Pod>>, pod: &Arc<Pod>) {
        let began = Instant::now();
        if pod::is_terminal(pod) {
            return self.lose_pod(pod);
        }
        if pod::node_name(pod).is_none() {
            return self.keep_pending(old, pod);
        }
        let uid = pod.metadata.uid();
        let mut core = self.core.lock();
        let before = core.cluster.placed(uid).map(|(info, _)| info.clone());
        let observed = core.cluster.observe(pod);
        let after = core.cluster.placed(uid).map(|(info, _)| info.clone());
        drop(core);
        self.queue.remove(uid);
        let was_bound = old.is_some_and(|old| pod::node_name(old).is_some());
        let happened = match (before, after, observed) {
            (Some(old), Some(new), Some(Observed::Known)) if was_bound => {
                let change = PodChange::between(&old, &new);
                (change != PodChange::default()).then_some(Event::PodChanged { old, new, change })
            }
            (_, Some(new), _) => Some(Event::PodAdded(new)),
            _ => None,
        };
        self.enqueue_event(happened, began);
    }

    fn keep_pending(&self, old: Option<&Arc<Pod>>, pod: &Arc<Pod>) {
        if self.profiles.of(pod).is_none() {
            return;
        }
        let info = self.pending(pod);
        let nominated = |pod: &Arc<Pod>| pod::nominated_node(pod).map(str::to_owned);
        if old.and_then(nominated) != nominated(pod) {
            let mut core = self.core.lock();
            match nominated(pod) {
                Some(node) if !core.cluster.is_assumed(&info.uid) => core.cluster.nominated.add(info.clone(), &node),
                Some(_) => {}
                None => core.cluster.nominated.remove(&info.uid),
            }
        }
        match old {
            None => {
                self.metrics.count(
                    "scheduler_queue_incoming_pods_total",
                    &[("queue", "active"), ("event", "UnscheduledPodAdd")],
                );
                self.queue.add(info);
            }
            Some(old) => {
                let before = PodInfo::pending(old.clone(), &self.catalogue);
                let change = PodChange::between(&before, &info);
                let gates_gone = pod::has_gates(old) && !pod::has_gates(pod);
                self.queue.update(info, &Event::SelfChanged { change, gates_gone });
            }
        }
    }

    fn lose_pod(&self, pod: &Arc<Pod>) {
        let began = Instant::now();
        let uid = pod.metadata.uid();
        self.queue.remove(uid);
        let mut core = self.core.lock();
        let was_nominated = core.cluster.nominated.node_of(uid).is_some();
        core.cluster.nominated.remove(uid);
        let placed = core.cluster.forget(uid);
        drop(core);
        // A pod that room was kept for frees that room as well.
        let nominated = || was_nominated.then(|| self.pending(pod));
        self.enqueue_event(placed.or_else(nominated).map(Event::PodDeleted), began);
    }

    fn enqueue_event(&self, happened: Option<Event>, began: Instant) {
        if let Some(event) = happened {
            self.queue.happened(&event);
            let labels = [("event", event.label())];
            self.metrics.time("scheduler_event_handling_duration_seconds", &labels, began.elapsed());
        }
    }
}
