//! What keeps a claim from its volume, or a volume from its pod: the first blocker on the way, in the order of that way.
//!
//! Class -> first consumer -> provisioner -> bound -> attached to the node -> (the kubelet's part) -> grown.

use api::attachable::{csi_name, iscsi_name};
use api::meta::Meta as _;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};

use super::Cause;

pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const IN_USE: &str = "kubernetes.io/pvc-protection";

/// A claim and what bears on it.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) claim: PersistentVolumeClaim,
    /// The class that it names, if it exists.
    pub(super) class: Option<StorageClass>,
    /// The volume that it names, if it exists.
    pub(super) volume: Option<PersistentVolume>,
    /// Pods of its namespace that use it.
    pub(super) pods: Vec<Pod>,
    /// About the claim, oldest first.
    pub(super) events: Vec<Event>,
    /// The drivers of the node that was chosen for it, if one was.
    pub(super) node: Option<CSINode>,
    /// The driver of its volume or class, if it is registered.
    pub(super) driver: Option<CSIDriver>,
    pub(super) attachments: Vec<VolumeAttachment>,
}

/// Decides, never awaits.
pub(super) fn cause(facts: &Facts) -> Cause {
    let found = facts.deletion().or_else(|| match facts.phase() {
        "Bound" => facts.growth(),
        "Lost" => Some(
            Cause::new(format!(
                "its volume {:?} is gone or another's, and what was on it is lost",
                facts.volume_name()
            ))
            .then("delete the claim and make it anew"),
        ),
        _ => Some(facts.binding()),
    });
    found.unwrap_or_else(|| Cause::new(format!("nothing blocks it: it is bound to volume {}", facts.volume_name())))
}

/// What of a pod's claims the pod waits for, if that is what it waits for. `node` is the one it is bound to.
pub(super) fn of_pod(pod: &Pod, node: Option<&Node>, claims: &[Facts]) -> Option<Cause> {
    let starts = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let has_begun = starts
        .iter()
        .any(|status| status.state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some()));
    if has_begun || api::pod::is_terminal(pod) || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    claims.iter().find_map(|facts| {
        let name = facts.claim.metadata.name();
        let why = match (facts.phase(), node) {
            ("Bound", Some(node)) => facts.attachment(node)?,
            // The claim waits for the pod, not the pod for the claim.
            ("Pending", None) if facts.waits_for_consumer() => return None,
            ("Bound", None) => return None,
            _ => cause(facts),
        };
        let summary = format!("it waits for claim {name}: {}", why.summary);
        Some(Cause { summary, ..why }.then(format!("cox why pvc/{name}")))
    })
}

/// The names of the claims that a pod uses, those included that are made for it.
pub(super) fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let names = volumes.iter().filter_map(|volume| api::claim::of_volume(pod.metadata.name(), volume));
    names.map(|(name, _)| name).collect()
}

impl Facts {
    fn phase(&self) -> &str {
        self.claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
    }

    fn volume_name(&self) -> &str {
        self.claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default()
    }

    fn class_name(&self) -> &str {
        api::beta_annotations::claim_class(&self.claim).unwrap_or_default()
    }

    fn selected_node(&self) -> Option<&str> {
        self.claim.metadata.annotation(SELECTED_NODE)
    }

    fn waits_for_consumer(&self) -> bool {
        let mode = self.class.as_ref().and_then(|class| class.volume_binding_mode.as_deref());
        mode == Some("WaitForFirstConsumer") && self.selected_node().is_none() && self.volume_name().is_empty()
    }

    fn newest(&self, reasons: &[&str]) -> Option<String> {
        let fits = |event: &&Event| reasons.contains(&event.reason.as_deref().unwrap_or_default());
        self.events.iter().rev().find(fits)?.message.clone()
    }

    fn deletion(&self) -> Option<Cause> {
        self.claim.metadata.deletion_timestamp.as_ref()?;
        let finalizers = self.claim.metadata.finalizers.clone().unwrap_or_default();
        // Also those that have ended keep it until they are deleted.
        let users: Vec<_> = self.pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
        if finalizers.iter().any(|name| name == IN_USE) && !users.is_empty() {
            return Some(
                Cause::new(format!("it is being deleted, and pod {} uses it", users.join(", ")))
                    .then(format!("cox kubectl delete pod {}", users.join(" "))),
            );
        }
        let others = finalizers.join(", ");
        Some(
            Cause::new(format!("it is being deleted, and waits for whoever removes finalizer {others}"))
                .then("is the controller that owns the finalizer running?"),
        )
    }

    /// Until it has a volume.
    fn binding(&self) -> Cause {
        let name = self.volume_name();
        if !name.is_empty() {
            let because = self.newest(&["VolumeMismatch", "FailedBinding"]);
            let mut cause = match &self.volume {
                None => Cause::new(format!("volume {name:?}, which it names, does not exist"))
                    .then("make the volume, or name another"),
                Some(_) => Cause::new(format!("it cannot have volume {name:?}, which it names"))
                    .then(format!("cox kubectl describe pv {name}")),
            };
            cause.evidence.extend(because);
            return cause;
        }
        let Some(class) = &self.class else {
            return match self.class_name() {
                "" => Cause::new("no volume fits it, and it names no storage class").then(
                    "make a volume that fits, name a class, or mark one as the default: cox kubectl get storageclass",
                ),
                class => Cause::new(format!("storage class {class:?} does not exist"))
                    .then("make the class, or delete the claim and name another: cox kubectl get storageclass"),
            };
        };
        if self.waits_for_consumer() {
            let waiting = self.pods.iter().find(|pod| !api::pod::is_terminal(*pod));
            return match waiting.and_then(|pod| pod.metadata.name.as_deref()) {
                Some(pod) => Cause::new(format!("it waits until pod {pod}, its first user, has a node"))
                    .then(format!("cox why pod/{pod}")),
                None => Cause::new("it waits for its first user: no pod uses it")
                    .because(format!("class {} binds with the first consumer", self.class_name()))
                    .then("start a pod that uses it"),
            };
        }
        let provisioner = class.provisioner.as_str();
        if provisioner == "kubernetes.io/no-provisioner" {
            return Cause::new(format!("no volume of class {} fits it, and the class makes none", self.class_name()))
                .then("make a volume that fits: cox kubectl get pv");
        }
        if let Some(message) = self.newest(&["ProvisioningFailed"]) {
            return Cause::new(format!("provisioner {provisioner} cannot make its volume"))
                .because(message)
                .then("put right what it says; it tries again by itself");
        }
        let cause = Cause::new(format!("it waits for provisioner {provisioner} to make a volume"));
        let has_driver = |node: &CSINode| node.spec.drivers.iter().any(|driver| driver.name == provisioner);
        match (self.selected_node(), &self.node) {
            (Some(node), found) if !found.as_ref().is_some_and(has_driver) && self.driver.is_some() => {
                cause.because(format!("driver {provisioner} is not registered on node {node}")).then(format!(
                    "is the driver's pod running there? cox kubectl get pods -A --field-selector spec.nodeName={node}"
                ))
            }
            _ => cause.then("is the provisioner running? cox kubectl get pods -A"),
        }
    }

    /// Until its volume is on the node of a pod.
    fn attachment(&self, node: &Node) -> Option<Cause> {
        let spec = self.volume.as_ref()?.spec.as_ref()?;
        let name = node.metadata.name();
        let reported = node.status.as_ref().and_then(|status| status.volumes_attached.as_deref()).unwrap_or_default();
        if let Some(iscsi) = &spec.iscsi {
            let unique = iscsi_name(&iscsi.target_portal, &iscsi.iqn, iscsi.lun);
            let is_attached = reported.iter().any(|volume| volume.name == unique);
            return (!is_attached).then(|| {
                Cause::new(format!("node {name} may not use the disk of volume {} yet", self.volume_name()))
                    .because(format!("volumesAttached of the node does not name {unique}: another node may have it"))
                    .then("events of the pod tell who has it: cox kubectl describe pod")
            });
        }
        let csi = spec.csi.as_ref()?;
        if self.driver.as_ref().is_some_and(|driver| driver.spec.attach_required == Some(false)) {
            return None;
        }
        let unique = csi_name(&csi.driver, &csi.volume_handle);
        if reported.iter().any(|volume| volume.name == unique) {
            return None;
        }
        let volume = self.volume_name();
        let here = self.attachments.iter().find(|it| it.spec.node_name == name);
        let elsewhere = self.attachments.iter().find(|it| it.spec.node_name != name);
        Some(match (here, elsewhere) {
            (Some(attachment), _) => {
                let status = attachment.status.as_ref();
                let error = status.and_then(|status| status.attach_error.as_ref()?.message.clone());
                match error {
                    Some(error) => {
                        Cause::new(format!("driver {} cannot attach volume {volume} to node {name}", csi.driver))
                            .because(error)
                    }
                    None if status.is_some_and(|status| status.attached) => Cause::new(format!(
                        "volume {volume} is attached to node {name}, whose status is still to say so"
                    ))
                    .then("cox logs controllers"),
                    None => Cause::new(format!(
                        "it waits for the attacher of {} to attach volume {volume} to node {name}",
                        csi.driver
                    ))
                    .because(format!("volumeattachment {}", attachment.metadata.name()))
                    .then("is the driver's attacher running? cox kubectl get pods -A"),
                }
            }
            (None, Some(other)) => {
                Cause::new(format!("volume {volume} is still attached to node {}", other.spec.node_name))
                    .because(match other.metadata.deletion_timestamp {
                        Some(_) => "it is being detached",
                        None => "a pod there uses it, or its kubelet has not unmounted it",
                    })
                    .then(format!("cox why node/{}", other.spec.node_name))
            }
            (None, None) => Cause::new(format!("volume {volume} is about to be attached to node {name}"))
                .then("cox logs controllers"),
        })
    }

    /// Until it is as large as it wants to be.
    fn growth(&self) -> Option<Cause> {
        let status = self.claim.status.as_ref()?;
        let condition =
            |kind: &str| status.conditions.iter().flatten().find(|it| it.type_ == kind && it.status == "True");
        if let Some(pending) = condition("FileSystemResizePending") {
            let mut cause =
                Cause::new("its volume has grown, and its file system grows when a pod that uses it starts");
            cause.evidence.extend(pending.message.clone());
            return Some(cause);
        }
        for kind in ["ControllerResizeError", "NodeResizeError", "ModifyVolumeError"] {
            if let Some(failed) = condition(kind) {
                let mut cause = Cause::new("its volume cannot be changed as it asks for");
                cause.evidence.extend(failed.message.clone());
                return Some(cause);
            }
        }
        let size = |list: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
            list.and_then(|size| Quantity::try_from(size).ok()).unwrap_or_default()
        };
        let spec = self.claim.spec.as_ref()?;
        let wanted = size(spec.resources.as_ref().and_then(|it| it.requests.as_ref()?.get("storage")));
        let held = size(status.capacity.as_ref().and_then(|capacity| capacity.get("storage")));
        if wanted > held {
            let whom = self.driver.as_ref().and_then(|driver| driver.metadata.name.as_deref()).unwrap_or("its driver");
            let mut cause =
                Cause::new(format!("it has {held} and waits for the resizer of {whom} to make it {wanted}"));
            cause.evidence.extend(self.newest(&["VolumeResizeFailed", "ExternalExpanding"]));
            return Some(cause.then("is the driver's resizer running? cox kubectl get pods -A"));
        }
        let current = status.current_volume_attributes_class_name.as_deref().unwrap_or_default();
        let class = spec.volume_attributes_class_name.as_deref().unwrap_or_default();
        (!class.is_empty() && class != current).then(|| {
            Cause::new(format!("it waits for its driver to give it the attributes of class {class}"))
                .then("is the driver's resizer running? cox kubectl get pods -A")
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn made<K: DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    fn claim(spec: Value, status: Value) -> Facts {
        let meta = json!({ "name": "data", "namespace": "default" });
        Facts { claim: made(json!({ "metadata": meta, "spec": spec, "status": status })), ..Facts::default() }
    }

    fn class(provisioner: &str, mode: &str) -> Option<StorageClass> {
        Some(made(json!({ "metadata": { "name": "fast" }, "provisioner": provisioner, "volumeBindingMode": mode })))
    }

    fn pod(node: Option<&str>) -> Pod {
        made(
            json!({ "metadata": { "name": "web" }, "spec": { "nodeName": node, "containers": [] }, "status": { "phase": "Pending" } }),
        )
    }

    fn event(reason: &str, message: &str) -> Event {
        made(json!({ "metadata": {}, "involvedObject": {}, "reason": reason, "message": message }))
    }

    fn fast() -> Value {
        json!({ "storageClassName": "fast" })
    }

    fn pending() -> Value {
        json!({ "phase": "Pending" })
    }

    #[test]
    fn a_claim_names_what_it_waits_for() {
        let selected = |facts: Facts| {
            let mut facts = facts;
            facts.claim.metadata.annotations = Some([(SELECTED_NODE.to_owned(), "n".to_owned())].into());
            facts
        };
        let later = || class("csi.example", "WaitForFirstConsumer");
        let driver = || Some(made(json!({ "metadata": { "name": "csi.example" }, "spec": {} })));
        let bound = |spec: Value, status: Value| {
            let mut status = status;
            status["phase"] = json!("Bound");
            claim(spec, status)
        };
        for (facts, expected) in [
            (claim(json!({}), pending()), "no volume fits it, and it names no storage class"),
            (claim(fast(), pending()), "storage class \"fast\" does not exist"),
            (claim(json!({ "volumeName": "v" }), pending()), "volume \"v\", which it names, does not exist"),
            (Facts { class: later(), ..claim(fast(), pending()) }, "it waits for its first user: no pod uses it"),
            (
                Facts { class: later(), pods: vec![pod(None)], ..claim(fast(), pending()) },
                "it waits until pod web, its first user, has a node",
            ),
            (
                selected(Facts { class: later(), ..claim(fast(), pending()) }),
                "it waits for provisioner csi.example to make a volume",
            ),
            (
                Facts { class: class("kubernetes.io/no-provisioner", "Immediate"), ..claim(fast(), pending()) },
                "no volume of class fast fits it, and the class makes none",
            ),
            (
                Facts {
                    class: class("csi.example", "Immediate"),
                    events: vec![event("ProvisioningFailed", "out of space")],
                    ..claim(fast(), pending())
                },
                "provisioner csi.example cannot make its volume",
            ),
            (
                claim(json!({ "volumeName": "v" }), json!({ "phase": "Lost" })),
                "its volume \"v\" is gone or another's, and what was on it is lost",
            ),
            (bound(json!({ "volumeName": "v" }), json!({})), "nothing blocks it: it is bound to volume v"),
            (
                Facts {
                    driver: driver(),
                    ..bound(
                        json!({ "resources": { "requests": { "storage": "2Gi" } } }),
                        json!({ "capacity": { "storage": "1Gi" } }),
                    )
                },
                "it has 1Gi and waits for the resizer of csi.example to make it 2Gi",
            ),
            (
                bound(
                    json!({ "volumeAttributesClassName": "gold" }),
                    json!({ "currentVolumeAttributesClassName": "iron" }),
                ),
                "it waits for its driver to give it the attributes of class gold",
            ),
        ] {
            assert_eq!(cause(&facts).summary, expected);
        }
        let missing = selected(Facts { class: later(), driver: driver(), ..claim(fast(), pending()) });
        assert_eq!(cause(&missing).evidence, ["driver csi.example is not registered on node n"]);
        let mut deleted = Facts { pods: vec![pod(Some("n"))], ..claim(fast(), pending()) };
        deleted.claim.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        deleted.claim.metadata.finalizers = Some(vec![IN_USE.into()]);
        assert_eq!(cause(&deleted).summary, "it is being deleted, and pod web uses it");
    }

    #[test]
    fn a_pod_names_the_volume_that_it_waits_for() {
        let node = |attached: &[&str]| -> Node {
            let attached: Vec<_> = attached.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect();
            made(json!({ "metadata": { "name": "n" }, "status": { "volumesAttached": attached } }))
        };
        let bound = |attachments: Vec<VolumeAttachment>| Facts {
            volume: Some(made(
                json!({ "metadata": { "name": "v" }, "spec": { "csi": { "driver": "d", "volumeHandle": "h" } } }),
            )),
            attachments,
            ..claim(json!({ "volumeName": "v" }), json!({ "phase": "Bound" }))
        };
        let on = |node: &str, status: Value| -> VolumeAttachment {
            made(json!({
                "metadata": { "name": "csi-1" }, "status": status,
                "spec": { "attacher": "d", "nodeName": node, "source": { "persistentVolumeName": "v" } },
            }))
        };
        let failed = json!({ "attached": false, "attachError": { "message": "no such disk" } });
        let waiting = || Facts { class: class("d", "WaitForFirstConsumer"), ..claim(fast(), pending()) };
        for (pod, node, facts, expected) in [
            (pod(None), None, waiting(), None),
            (pod(None), None, claim(fast(), pending()), Some("storage class \"fast\" does not exist")),
            (pod(Some("n")), Some(node(&["kubernetes.io/csi/d^h"])), bound(vec![]), None),
            (pod(Some("n")), Some(node(&[])), bound(vec![]), Some("volume v is about to be attached to node n")),
            (
                pod(Some("n")),
                Some(node(&[])),
                bound(vec![on("n", json!(null))]),
                Some("it waits for the attacher of d to attach volume v to node n"),
            ),
            (
                pod(Some("n")),
                Some(node(&[])),
                bound(vec![on("n", failed)]),
                Some("driver d cannot attach volume v to node n"),
            ),
            (
                pod(Some("n")),
                Some(node(&[])),
                bound(vec![on("m", json!({ "attached": true }))]),
                Some("volume v is still attached to node m"),
            ),
        ] {
            let found = of_pod(&pod, node.as_ref(), &[facts]).map(|cause| cause.summary);
            assert_eq!(found, expected.map(|text| format!("it waits for claim data: {text}")));
        }
        let iscsi = json!({ "targetPortal": "h", "iqn": "iqn.2026-01.org.example:a", "lun": 0 });
        let volume = made(json!({ "metadata": { "name": "v" }, "spec": { "iscsi": iscsi } }));
        let disk = Facts { volume: Some(volume), ..bound(vec![]) };
        let found = of_pod(&pod(Some("n")), Some(&node(&[])), &[disk]).map(|cause| cause.summary);
        let expected = "it waits for claim data: node n may not use the disk of volume v yet";
        assert_eq!(found.as_deref(), Some(expected));
    }
}
