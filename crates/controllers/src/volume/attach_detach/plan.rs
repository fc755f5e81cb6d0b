//! Where a volume should be attached and where no longer: decided from what pods want and what VolumeAttachments say.

use std::time::Duration;

use api::attachable;
use api::cached::Pod;
use api::meta::Meta as _;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Volume};

use crate::pods;

/// How long a node that is not ready may keep a volume nobody wants there (`DefaultTimerConfig`, v1.36).
pub(super) const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(6 * 60);

const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const KEEP_TERMINATED: &str = "volumes.kubernetes.io/keep-terminated-pod-volumes";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// No pod needs the volume where it is, and it is still there.
const NO_USER: &str =
    "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node";

/// A volume that is attached to nodes, whatever PersistentVolumes call it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct VolumeId {
    /// A CSI driver; or the plug-in, whose name no driver can have, of a disk that needs no attacher.
    pub(super) driver: String,
    pub(super) handle: String,
}

impl VolumeId {
    pub(super) fn of(volume: &PersistentVolume) -> Option<Self> {
        if let Some(csi) = api::volume_migration::csi_source(volume) {
            return Some(Self { driver: csi.driver.clone(), handle: csi.volume_handle.clone() });
        }
        let iscsi = volume.spec.as_ref()?.iscsi.as_ref()?;
        Self::of_disk(&attachable::iscsi_name(&iscsi.target_portal, &iscsi.iqn, iscsi.lun))
    }

    /// A disk that a pod names itself.
    pub(super) fn of_inline_disk(volume: &Volume) -> Option<Self> {
        let iscsi = volume.iscsi.as_ref()?;
        Self::of_disk(&attachable::iscsi_name(&iscsi.target_portal, &iscsi.iqn, iscsi.lun))
    }

    /// A disk that needs no attacher, by what node statuses call it.
    pub(super) fn of_disk(unique_name: &str) -> Option<Self> {
        let handle = unique_name.strip_prefix(attachable::ISCSI)?.strip_prefix('/')?;
        Some(Self { driver: attachable::ISCSI.to_owned(), handle: handle.to_owned() })
    }

    /// Whether no attacher has to attach it.
    pub(super) fn is_disk(&self) -> bool {
        self.driver == attachable::ISCSI
    }

    /// What node statuses call it.
    pub(super) fn unique_name(&self) -> String {
        match self.is_disk() {
            true => format!("{}/{}", self.driver, self.handle),
            false => attachable::csi_name(&self.driver, &self.handle),
        }
    }

    /// The key of the queue; names of drivers and plug-ins have no circumflex.
    pub(super) fn key(&self) -> String {
        format!("volume/{}^{}", self.driver, self.handle)
    }

    pub(super) fn from_key(key: &str) -> Option<Self> {
        let (driver, handle) = key.strip_prefix("volume/")?.split_once('^')?;
        Some(Self { driver: driver.to_owned(), handle: handle.to_owned() })
    }

    /// The name of the VolumeAttachment for a node: attachers and kubelets compute it, too (`getAttachmentName`, v1.36).
    pub(super) fn attachment(&self, node: &str) -> String {
        let text = format!("{}{}{node}", self.handle, self.driver);
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        format!("csi-{}", api::hex::encode(digest))
    }
}

/// Whether the volume may be attached to one node only.
pub(super) fn is_exclusive(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    !modes.is_empty() && !modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}

/// Whether volumes are attached to the node by us rather than by its kubelet.
pub(super) fn is_managed(node: &Node) -> bool {
    annotation(node, MANAGED) == Some("true")
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.annotation(key)
}

/// Whether the pod needs its volumes on its node (`DetermineVolumeAction`, v1.36).
pub(super) fn needs_volumes(pod: &Pod, node: &Node) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let is_running = statuses
        .iter()
        .any(|status| status.state.as_ref().is_none_or(|state| state.terminated.is_none() && state.waiting.is_none()));
    let is_over = pods::is_finished(pod) || (pods::is_terminating(pod) && !is_running);
    !is_over || annotation(node, KEEP_TERMINATED) == Some("true")
}

/// A node that has, or had, the volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) is_managed: bool,
    pub(super) is_ready: bool,
    /// Its kubelet says that the volume is mounted, or nobody can say that it is not.
    pub(super) is_in_use: bool,
    pub(super) is_out_of_service: bool,
}

impl Holder {
    pub(super) fn new(node: &Node, volume: &VolumeId) -> Self {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        Self {
            is_managed: is_managed(node),
            is_ready: api::node::is_ready(node),
            is_in_use: is_in_use(node, volume),
            is_out_of_service: taints.iter().any(|taint| taint.key == OUT_OF_SERVICE && taint.effect == "NoExecute"),
        }
    }

    /// Whether the volume may go, by force if that was decided: what it was decided from may be over.
    pub(super) fn lets_go(self, force: Option<Force>) -> bool {
        !self.is_in_use
            || match force {
                None => false,
                Some(Force::Timeout) => !self.is_ready,
                Some(Force::OutOfService) => self.is_out_of_service,
            }
    }

    /// A node that is gone; `in_use` is what it said last, if anybody heard it.
    pub(super) fn gone(in_use: Option<bool>) -> Self {
        Self { is_managed: true, is_ready: false, is_in_use: in_use.unwrap_or(true), is_out_of_service: false }
    }
}

fn is_in_use(node: &Node, volume: &VolumeId) -> bool {
    let name = volume.unique_name();
    node.status.as_ref().and_then(|status| status.volumes_in_use.as_ref()).is_some_and(|names| names.contains(&name))
}

/// A VolumeAttachment of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) node: String,
    /// Its deletion was asked for, whether the cache shows that or not.
    pub(super) is_deleting: bool,
    /// The driver could not detach.
    pub(super) has_failed: bool,
    pub(super) holder: Holder,
    /// How long nobody has wanted it.
    pub(super) unwanted_for: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Force {
    Timeout,
    OutOfService,
}

impl Force {
    /// As metrics call it.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Force::Timeout => "timeout",
            Force::OutOfService => "out-of-service",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Attach(String),
    /// Without force only if the node, asked again, does not use the volume.
    Detach {
        node: String,
        force: Option<Force>,
    },
    /// Pods on `node` have to wait because `others` have the volume.
    MultiAttach {
        node: String,
        others: Vec<String>,
    },
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// When time alone changes the decision.
    pub(super) again: Option<Duration>,
}

/// `wanted` are the nodes of pods that need the volume, the first come first.
pub(super) fn plan(wanted: &[String], is_exclusive: bool, attachments: &[Attachment], may_force: bool) -> Plan {
    let mut plan = Plan::default();
    // Those who keep the volume from others, and are not just letting it go.
    let mut holders = Vec::new();
    let mut is_leaving = false;
    for attachment in attachments {
        let node = attachment.node.clone();
        if attachment.is_deleting {
            if attachment.has_failed {
                holders.push(node);
            } else {
                is_leaving = true;
            }
            continue;
        }
        if wanted.contains(&node) || !attachment.holder.is_managed {
            holders.push(node);
            continue;
        }
        let holder = attachment.holder;
        let is_due = attachment.unwanted_for >= UNMOUNT_TIMEOUT;
        let force = match holder {
            Holder { is_out_of_service: true, .. } => Some(Force::OutOfService),
            Holder { is_ready: false, is_in_use: true, .. } if is_due && may_force => Some(Force::Timeout),
            _ => None,
        };
        if holder.is_in_use && force.is_none() {
            if !is_due && may_force {
                let left = UNMOUNT_TIMEOUT - attachment.unwanted_for;
                plan.again = Some(plan.again.map_or(left, |again| again.min(left)));
            }
            holders.push(node);
            continue;
        }
        is_leaving = true;
        plan.steps.push(Step::Detach { node, force });
    }
    for node in wanted {
        if attachments.iter().any(|attachment| attachment.node == *node) {
            continue; // attached, being attached, or about to go before it can come again
        }
        if is_exclusive && !holders.is_empty() {
            plan.steps.push(Step::MultiAttach { node: node.clone(), others: holders.clone() });
        } else if !is_exclusive || !is_leaving {
            plan.steps.push(Step::Attach(node.clone()));
            holders.push(node.clone());
        }
    }
    plan
}

/// What pods are told that wait for a volume which pods elsewhere use; names of other namespaces are nobody's business
/// (`reportMultiAttachError`, v1.36).
pub(super) fn multi_attach_message(volume: &str, pod: &Pod, users: &[(String, String)]) -> String {
    let namespace = pod.metadata.namespace();
    let local: Vec<_> = users.iter().filter(|(place, _)| place == namespace).map(|(_, name)| name.as_str()).collect();
    let others = users.len() - local.len();
    let why = match (local.is_empty(), others) {
        (true, 0) => NO_USER.to_owned(),
        (true, _) => format!("Volume is already used by {others} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", local.join(", ")),
        (false, _) => {
            format!("Volume is already used by pod(s) {} and {others} pod(s) in different namespaces", local.join(", "))
        }
    };
    format!("Waiting for detach for volume {volume:?} {why}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn on(node: &str) -> Attachment {
        let holder = Holder { is_managed: true, is_ready: true, is_in_use: false, is_out_of_service: false };
        Attachment { node: node.into(), is_deleting: false, has_failed: false, holder, unwanted_for: Duration::ZERO }
    }

    fn with(node: &str, change: impl FnOnce(&mut Attachment)) -> Attachment {
        let mut attachment = on(node);
        change(&mut attachment);
        attachment
    }

    fn attach(node: &str) -> Step {
        Step::Attach(node.into())
    }

    fn detach(node: &str, force: Option<Force>) -> Step {
        Step::Detach { node: node.into(), force }
    }

    fn refused(node: &str, other: &str) -> Step {
        Step::MultiAttach { node: node.into(), others: vec![other.into()] }
    }

    #[test]
    fn volumes_follow_their_pods() {
        let in_use = |attachment: &mut Attachment| attachment.holder.is_in_use = true;
        let deleting = |attachment: &mut Attachment| attachment.is_deleting = true;
        for (name, wanted, exclusive, attachments, expected) in [
            ("nobody wants it", vec![], true, vec![], vec![]),
            ("the first pod", vec!["a"], true, vec![], vec![attach("a")]),
            ("already there", vec!["a"], true, vec![on("a")], vec![]),
            ("two at once, shared", vec!["a", "b"], false, vec![], vec![attach("a"), attach("b")]),
            ("two at once, exclusive", vec!["a", "b"], true, vec![], vec![attach("a"), refused("b", "a")]),
            ("the second comes later", vec!["b", "a"], true, vec![on("a")], vec![refused("b", "a")]),
            ("the pod moved, not unmounted", vec!["b"], true, vec![with("a", in_use)], vec![refused("b", "a")]),
            ("the pod moved, unmounted", vec!["b"], true, vec![on("a")], vec![detach("a", None)]),
            ("the shared one moved", vec!["b"], false, vec![on("a")], vec![detach("a", None), attach("b")]),
            ("still going", vec!["b"], true, vec![with("a", deleting)], vec![]),
            ("back on the node it leaves", vec!["a"], true, vec![with("a", deleting)], vec![]),
            (
                "cannot leave",
                vec!["b"],
                true,
                vec![with("a", |it| (it.is_deleting, it.has_failed) = (true, true))],
                vec![refused("b", "a")],
            ),
            (
                "the node attaches by itself",
                vec!["b"],
                true,
                vec![with("a", |it| it.holder.is_managed = false)],
                vec![refused("b", "a")],
            ),
        ] {
            let wanted: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
            assert_eq!(plan(&wanted, exclusive, &attachments, true).steps, expected, "{name}");
        }
    }

    #[test]
    fn a_volume_in_use_is_taken_away_by_force_only() {
        let six = UNMOUNT_TIMEOUT;
        let one = Duration::from_secs(60);
        for (name, ready, in_use, out_of_service, unwanted_for, may_force, expected, again) in [
            ("unmounted", true, false, false, Duration::ZERO, true, Some(None), None),
            ("mounted", true, true, false, one, true, None, Some(six - one)),
            ("mounted for long on a healthy node", true, true, false, six, true, None, None),
            ("a silent node", false, true, false, one, true, None, Some(six - one)),
            ("silent for long", false, true, false, six, true, Some(Some(Force::Timeout)), None),
            ("never by time", false, true, false, six, false, None, None),
            ("out of service", false, true, true, Duration::ZERO, true, Some(Some(Force::OutOfService)), None),
            ("out of service, never by time", false, true, true, six, false, Some(Some(Force::OutOfService)), None),
            ("a silent node that had unmounted", false, false, false, Duration::ZERO, true, Some(None), None),
        ] {
            let attachment = with("a", |it| {
                it.holder =
                    Holder { is_managed: true, is_ready: ready, is_in_use: in_use, is_out_of_service: out_of_service };
                it.unwanted_for = unwanted_for;
            });
            let plan = plan(&[], true, &[attachment], may_force);
            let expected: Vec<_> = expected.into_iter().map(|force| detach("a", force)).collect();
            assert_eq!((plan.steps, plan.again), (expected, again), "{name}");
        }
    }

    #[test]
    fn force_is_not_used_on_a_node_that_is_there_again() {
        let held = Holder { is_managed: true, is_ready: false, is_in_use: true, is_out_of_service: false };
        let (ready, tainted) = (Holder { is_ready: true, ..held }, Holder { is_out_of_service: true, ..held });
        let free = Holder { is_in_use: false, ..ready };
        for (holder, force, expected) in [
            (held, None, false),
            (held, Some(Force::Timeout), true),
            (ready, Some(Force::Timeout), false),
            (held, Some(Force::OutOfService), false),
            (tainted, Some(Force::OutOfService), true),
            (free, None, true),
            (free, Some(Force::Timeout), true),
        ] {
            assert_eq!(holder.lets_go(force), expected, "{holder:?} {force:?}");
        }
    }

    #[test]
    fn attachments_have_the_names_that_attachers_expect() {
        let volume = VolumeId { driver: "d".into(), handle: "h".into() };
        assert_eq!(VolumeId::from_key(&volume.key()), Some(volume.clone()));
        let odd = VolumeId { driver: "d".into(), handle: "a/b^c".into() };
        assert_eq!(VolumeId::from_key(&odd.key()), Some(odd));
        // printf hdn | sha256sum
        let digest = "9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d";
        assert_eq!(volume.attachment("n"), format!("csi-{digest}"));
        assert_ne!(volume.attachment("n"), volume.attachment("m"));
        assert_eq!(volume.unique_name(), "kubernetes.io/csi/d^h");
    }

    #[test]
    fn a_disk_is_the_same_whoever_names_it() {
        let source = json!({ "targetPortal": "10.0.0.1", "iqn": "iqn.2003-01.org.x:a", "lun": 3 });
        let volume = serde_json::from_value(json!({ "metadata": {}, "spec": { "iscsi": source } })).unwrap();
        let disk = VolumeId::of(&volume).unwrap();
        assert!(disk.is_disk());
        assert_eq!(disk.unique_name(), "kubernetes.io/iscsi/10.0.0.1:iqn.2003-01.org.x:a:3");
        assert_eq!(VolumeId::from_key(&disk.key()), Some(disk.clone()));
        assert_eq!(VolumeId::of_disk(&disk.unique_name()), Some(disk.clone()));
        let inline = serde_json::from_value(json!({ "name": "v", "iscsi": source })).unwrap();
        assert_eq!(VolumeId::of_inline_disk(&inline), Some(disk));
        assert_eq!(VolumeId::of_disk("kubernetes.io/csi/d^h"), None);
    }

    #[test]
    fn pods_that_are_over_need_no_volumes() {
        let node = |keep: bool| -> Node {
            serde_json::from_value(json!({ "metadata": { "annotations": { KEEP_TERMINATED: keep.to_string() } } }))
                .unwrap()
        };
        let running = json!([{ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": { "running": {} } }]);
        let ended = json!([{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "terminated": { "exitCode": 0 } } }]);
        for (phase, deleted, statuses, keep, expected) in [
            ("Pending", false, json!([]), false, true),
            ("Running", false, running.clone(), false, true),
            ("Succeeded", false, ended.clone(), false, false),
            ("Failed", false, ended.clone(), true, true),
            ("Running", true, running, false, true),
            ("Running", true, ended, false, false),
            ("Pending", true, json!([]), false, false),
        ] {
            let deleted = deleted.then_some("2024-01-01T00:00:00Z");
            let pod: Pod = api::codec::from_value(&json!({
                "metadata": { "deletionTimestamp": deleted },
                "status": { "phase": phase, "containerStatuses": statuses },
            }))
            .unwrap();
            assert_eq!(needs_volumes(&pod, &node(keep)), expected, "{phase} {deleted:?}");
        }
    }

    #[test]
    fn only_pods_of_the_same_namespace_are_named() {
        let pod: Pod = api::codec::from_value(&json!({ "metadata": { "name": "p", "namespace": "mine" } })).unwrap();
        let user = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let nobody = "Volume is already exclusively attached to one node, \
            waiting on detach before it can be attached to another node";
        for (users, expected) in [
            (vec![], nobody),
            (vec![user("mine", "a"), user("mine", "b")], "Volume is already used by pod(s) a, b"),
            (vec![user("other", "a")], "Volume is already used by 1 pod(s) in different namespaces"),
            (
                vec![user("mine", "a"), user("other", "b")],
                "Volume is already used by pod(s) a and 1 pod(s) in different namespaces",
            ),
        ] {
            let message = multi_attach_message("pv", &pod, &users);
            assert_eq!(message, format!("Waiting for detach for volume \"pv\" {expected}"));
        }
    }
}
