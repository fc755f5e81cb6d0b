//! What a pod wants of a CSI volume, and what drivers are told of it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use api::meta::Meta as _;
use api::volume_migration::{self, MigrationError};
use csi::v1::{self, AccessMode, MountVolume, NodeRpc, VolumeCapability};
use k8s_openapi::api::core::v1::{
    CSIVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, SELinuxOptions, SecretReference, Volume,
};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::layout::{self, Mode, Record};
use crate::state;
use crate::volumes::growth::{self, Growth};

/// One volume of one pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// The volume's name in the pod.
    pub(crate) volume: String,
    /// The PersistentVolume's name; for an inline volume the one in the pod.
    pub(crate) spec_name: String,
    pub(crate) driver: String,
    pub(crate) handle: String,
    pub(crate) is_inline: bool,
    /// It is named as a driver had it that was part of Kubernetes once.
    pub(crate) is_migrated: bool,
    pub(crate) is_block: bool,
    pub(crate) is_read_only: bool,
    pub(crate) fs_type: String,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) access_modes: Vec<String>,
    pub(crate) mount_options: Vec<String>,
    pub(crate) stage_secret: Option<SecretReference>,
    pub(crate) publish_secret: Option<SecretReference>,
    pub(crate) expand_secret: Option<SecretReference>,
    /// The claim's namespace and name.
    pub(crate) claim: Option<(String, String)>,
    /// How large the volume is, and how large the claim says that it is.
    pub(crate) size: Option<Quantity>,
    pub(crate) claimed: Option<i64>,
    /// The volume has grown, and its file system may not have yet.
    pub(crate) growth: Option<Growth>,
}

/// The driver does not take volumes that live as long as this one.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("volume mode {mode:?} not supported by driver {driver} ({why})")]
pub(crate) struct WrongLifecycle {
    mode: &'static str,
    driver: String,
    why: String,
}

/// Containers that share a volume see its files with different labels.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("multiple SELinux labels found: {0}")]
pub(crate) struct ManyLabels(String);

impl Wanted {
    /// None if the volume is not a CSI driver's, and never was one's that is now.
    pub(crate) fn of_claim(
        volume: &str,
        claim: &PersistentVolumeClaim,
        bound: &PersistentVolume,
        is_read_only: bool,
    ) -> Result<Option<Wanted>, MigrationError> {
        let Some(wanted) = Self::of_volume(volume, bound, is_read_only)? else { return Ok(None) };
        let meta = &claim.metadata;
        let size = bound.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage"));
        Ok(Some(Wanted {
            claim: meta.namespace.clone().zip(meta.name.clone()),
            claimed: growth::claimed(claim.status.as_ref()),
            growth: size.and_then(|size| growth::due(claim, size)),
            size: size.cloned(),
            ..wanted
        }))
    }

    /// An inline volume of a driver that was part of Kubernetes once.
    pub(crate) fn migrated(volume: &Volume, pod: &Pod) -> Result<Option<Wanted>, MigrationError> {
        let Some(meant) = volume_migration::inline(volume, state::namespace(pod))? else { return Ok(None) };
        let csi = meant.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let is_read_only = csi.is_some_and(|csi| csi.read_only == Some(true));
        let wanted = Self::of_volume(&volume.name, &meant, is_read_only)?;
        Ok(wanted.map(|wanted| Wanted { is_migrated: true, ..wanted }))
    }

    fn of_volume(volume: &str, bound: &PersistentVolume, is_read_only: bool) -> Result<Option<Wanted>, MigrationError> {
        let Some(source) = volume_migration::try_csi_source(bound)? else { return Ok(None) };
        let Some(spec) = bound.spec.as_ref() else { return Ok(None) };
        Ok(Some(Wanted {
            volume: volume.into(),
            spec_name: bound.metadata.name().to_owned(),
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            is_inline: false,
            is_migrated: spec.csi.is_none(),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            is_read_only,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            stage_secret: source.node_stage_secret_ref.clone(),
            publish_secret: source.node_publish_secret_ref.clone(),
            expand_secret: source.node_expand_secret_ref.clone(),
            ..Wanted::default()
        }))
    }

    pub(crate) fn inline(volume: &str, source: &CSIVolumeSource, pod: &Pod) -> Wanted {
        let secret = source.node_publish_secret_ref.as_ref().map(|secret| SecretReference {
            name: Some(secret.name.clone()),
            namespace: Some(state::namespace(pod).to_string()),
        });
        Wanted {
            volume: volume.into(),
            spec_name: volume.into(),
            driver: source.driver.clone(),
            handle: layout::inline_handle(state::uid(pod), volume),
            is_inline: true,
            is_read_only: source.read_only == Some(true),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            access_modes: vec!["ReadWriteOnce".into()],
            publish_secret: secret,
            ..Default::default()
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        if self.is_block { Mode::Block } else { Mode::Filesystem }
    }

    pub(crate) fn record(&self, node: &str, is_attached: bool) -> Record {
        Record {
            spec_name: self.spec_name.clone(),
            volume_handle: self.handle.clone(),
            driver_name: self.driver.clone(),
            node_name: node.into(),
            attachment: match is_attached {
                true => layout::attachment_name(&self.handle, &self.driver, node),
                false => String::new(),
            },
            volume_lifecycle_mode: if self.is_inline { "Ephemeral" } else { "Persistent" }.into(),
            group_applied: false,
        }
    }

    /// Whether only one pod of the whole cluster may use the volume.
    pub(crate) fn is_for_one_pod(&self) -> bool {
        self.access_modes == ["ReadWriteOncePod"]
    }

    /// How the volume is going to be used, as the driver understands it.
    pub(crate) fn capability(
        &self,
        pod: &Pod,
        abilities: &v1::NodeGetCapabilitiesResponse,
        label: Option<&str>,
    ) -> VolumeCapability {
        let knows_single_writers = abilities.has(NodeRpc::SingleNodeMultiWriter);
        let mode = match self.access_modes.first().map(String::as_str) {
            Some("ReadOnlyMany") => AccessMode::MultiNodeReaderOnly,
            Some("ReadWriteMany") => AccessMode::MultiNodeMultiWriter,
            Some("ReadWriteOncePod") if knows_single_writers => AccessMode::SingleNodeSingleWriter,
            Some("ReadWriteOnce") if knows_single_writers => AccessMode::SingleNodeMultiWriter,
            _ => AccessMode::SingleNodeWriter,
        };
        if self.is_block {
            return VolumeCapability::block(mode);
        }
        let mut mount_flags = self.mount_options.clone();
        // Quoted: it may have commas.
        mount_flags.extend(label.map(|label| format!("context=\"{label}\"")));
        let group = crate::volumes::fs_group(pod).filter(|_| abilities.has(NodeRpc::VolumeMountGroup));
        let mount = MountVolume {
            fs_type: self.fs_type.clone(),
            mount_flags,
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        };
        VolumeCapability::mount(mount, mode)
    }

    /// The label that all files of the volume have, for drivers that mount with one instead of having every file relabelled, on
    /// nodes with SELinux. Only where no other pod can have the volume with another label (`VolumeSupportsSELinuxMount`, v1.36).
    pub(crate) fn label(&self, pod: &Pod, object: Option<&CSIDriver>) -> Result<Option<String>, ManyLabels> {
        let is_able = spec(object).and_then(|spec| spec.se_linux_mount) == Some(true);
        let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        let policy = context.and_then(|context| context.se_linux_change_policy.as_deref());
        if !is_able || self.is_inline || self.is_block || !self.is_for_one_pod() || policy == Some("Recursive") {
            return Ok(None);
        }
        let of_pod = context.and_then(|context| context.se_linux_options.clone());
        let mut labels = BTreeSet::new();
        for container in state::all_containers(pod) {
            if container.volume_mounts.iter().flatten().any(|mount| mount.name == self.volume) {
                let own = container.security_context.and_then(|context| context.se_linux_options);
                labels.extend(own.or_else(|| of_pod.clone()).and_then(file_label));
            }
        }
        match labels.len() {
            0 | 1 => Ok(labels.pop_first()),
            _ => Err(ManyLabels(Vec::from_iter(labels).join(","))),
        }
    }

    /// Whether the kubelet gives the volume to the pod's group: as the driver's policy says, unless the driver did it.
    pub(crate) fn group_to_apply(
        &self,
        pod: &Pod,
        object: Option<&CSIDriver>,
        abilities: &v1::NodeGetCapabilitiesResponse,
    ) -> Option<u32> {
        let group = crate::volumes::fs_group(pod)?;
        if self.is_block || self.is_read_only || abilities.has(NodeRpc::VolumeMountGroup) {
            return None;
        }
        let policy = spec(object).and_then(|spec| spec.fs_group_policy.as_deref());
        let applies = match policy.unwrap_or("ReadWriteOnceWithFSType") {
            "None" => false,
            "File" => true,
            _ => {
                let is_once = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
                !self.fs_type.is_empty() && self.access_modes.iter().any(is_once)
            }
        };
        applies.then_some(group)
    }

    /// Why the driver does not take such volumes.
    pub(crate) fn refused(&self, object: Option<&CSIDriver>) -> Option<WrongLifecycle> {
        let mode = if self.is_inline { "Ephemeral" } else { "Persistent" };
        let refused = |why: String| WrongLifecycle { mode, driver: self.driver.clone(), why };
        let Some(spec) = spec(object) else {
            return self.is_inline.then(|| refused("no CSIDriver object".to_owned()));
        };
        let modes = spec.volume_lifecycle_modes.as_deref().unwrap_or_default();
        let supports = match modes {
            [] => !self.is_inline,
            some => some.iter().any(|known| known == mode),
        };
        let only = if modes.is_empty() { "Persistent".to_string() } else { modes.join("\", \"") };
        (!supports).then(|| refused(format!("only supports [\"{only}\"]")))
    }

    /// What the driver is told about the volume, and about the pod if it wants to know.
    pub(crate) fn context(&self, pod: &Pod, object: Option<&CSIDriver>) -> BTreeMap<String, String> {
        let mut context = self.attributes.clone();
        if spec(object).and_then(|spec| spec.pod_info_on_mount) == Some(true) {
            let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).unwrap_or_default();
            for (key, value) in [
                ("pod.name", state::name(pod).to_string()),
                ("pod.namespace", state::namespace(pod).to_string()),
                ("pod.uid", state::uid(pod).to_string()),
                ("serviceAccount.name", account),
                ("ephemeral", self.is_inline.to_string()),
            ] {
                context.insert(format!("csi.storage.k8s.io/{key}"), value);
            }
        }
        context
    }

    /// Whether an attacher must have attached the volume before it can be used here.
    pub(crate) fn needs_attachment(&self, object: Option<&CSIDriver>) -> bool {
        !self.is_inline && spec(object).and_then(|spec| spec.attach_required).unwrap_or(true)
    }
}

/// The label of files that a container with these options may use: user and level are its own. Without a level the runtime
/// chooses one, which nobody knows before.
fn file_label(options: SELinuxOptions) -> Option<String> {
    let level = options.level.filter(|level| !level.is_empty())?;
    let user = options.user.filter(|user| !user.is_empty()).unwrap_or_else(|| "system_u".to_owned());
    Some(format!("{user}:object_r:container_file_t:{level}"))
}

pub(crate) fn spec(object: Option<&CSIDriver>) -> Option<&CSIDriverSpec> {
    object.map(|object| &object.spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(security: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "serviceAccountName": "robot", "securityContext": security},
        }))
        .unwrap()
    }

    fn driver(spec: Value) -> CSIDriver {
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
    }

    fn can(rpcs: &[NodeRpc]) -> v1::NodeGetCapabilitiesResponse {
        v1::NodeGetCapabilitiesResponse { capabilities: rpcs.iter().map(|rpc| (*rpc).into()).collect() }
    }

    fn claimed(spec: Value, seen: &str) -> Wanted {
        let mut own = json!({
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}, "mountOptions": ["noatime"],
            "csi": {"driver": "d", "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": {"a": "b"}},
        });
        own.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let volume = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": own})).unwrap();
        let claim = serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns"}, "status": {"capacity": {"storage": seen}},
        }))
        .unwrap();
        Wanted::of_claim("v", &claim, &volume, false).unwrap().unwrap()
    }

    #[test]
    fn access_modes_follow_what_the_driver_knows() {
        let single = [NodeRpc::SingleNodeMultiWriter];
        for (mode, knows, expected) in [
            ("ReadWriteOnce", &[][..], AccessMode::SingleNodeWriter),
            ("ReadWriteOnce", &single[..], AccessMode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", &[], AccessMode::SingleNodeWriter),
            ("ReadWriteOncePod", &single, AccessMode::SingleNodeSingleWriter),
            ("ReadOnlyMany", &single, AccessMode::MultiNodeReaderOnly),
            ("ReadWriteMany", &[], AccessMode::MultiNodeMultiWriter),
        ] {
            let wanted = claimed(json!({"accessModes": [mode]}), "2Gi");
            let capability = wanted.capability(&pod(json!({})), &can(knows), None);
            assert_eq!(capability.access_mode, Some(expected.into()), "{mode}");
            assert_eq!(wanted.is_for_one_pod(), mode == "ReadWriteOncePod");
        }
    }

    #[test]
    fn options_groups_and_labels_reach_the_driver() {
        let group = pod(json!({"fsGroup": 7}));
        let flags = |capability: VolumeCapability| match capability.access_type {
            Some(v1::AccessType::Mount(mount)) => (mount.mount_flags, mount.volume_mount_group),
            other => panic!("{other:?}"),
        };
        let wanted = claimed(json!({}), "2Gi");
        let plain = flags(wanted.capability(&group, &can(&[]), None));
        assert_eq!(plain, (vec!["noatime".to_string()], String::new()));
        let label = "system_u:object_r:container_file_t:s0:c1,c2";
        let told = flags(wanted.capability(&group, &can(&[NodeRpc::VolumeMountGroup]), Some(label)));
        assert_eq!(told, (vec!["noatime".to_string(), format!("context=\"{label}\"")], "7".to_string()));
        let block = claimed(json!({"volumeMode": "Block"}), "2Gi");
        let capability = block.capability(&group, &can(&[]), Some(label));
        assert_eq!(capability, VolumeCapability::block(AccessMode::SingleNodeWriter));
    }

    #[test]
    fn a_volume_for_one_pod_is_mounted_with_the_label_of_its_containers() {
        let labels = driver(json!({"seLinuxMount": true}));
        let (one, many) = (json!({"accessModes": ["ReadWriteOncePod"]}), json!({}));
        let level = |level: &str| json!({"seLinuxOptions": {"level": level, "type": "spc_t", "role": "system_r"}});
        let user = json!({"seLinuxOptions": {"level": "s0", "user": "u"}});
        let none = json!({});
        let recursive = json!({"seLinuxOptions": {"level": "s0"}, "seLinuxChangePolicy": "Recursive"});
        let of = |label: &str| Ok(Some(format!("{label}:object_r:container_file_t:s0")));
        for (volume, object, of_pod, containers, expected) in [
            (&one, Some(&labels), level("s0"), [&none, &none], of("system_u")),
            (&one, Some(&labels), level("s9"), [&user, &user], of("u")),
            (&one, Some(&labels), level("s9"), [&user, &none], Err("u:object_r:container_file_t:s0")),
            (&one, Some(&labels), none.clone(), [&none, &none], Ok(None)),
            (&one, Some(&labels), recursive.clone(), [&none, &none], Ok(None)),
            (&one, None, level("s0"), [&none, &none], Ok(None)),
            (&many, Some(&labels), level("s0"), [&none, &none], Ok(None)),
        ] {
            let mut pod = serde_json::to_value(pod(of_pod.clone())).unwrap();
            let container = |security: &Value| json!({"name": "c", "securityContext": security, "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
            pod["spec"]["containers"] = json!([
                container(containers[0]), container(containers[1]),
                {"name": "other", "securityContext": {"seLinuxOptions": {"level": "s5"}}},
            ]);
            let label = claimed(volume.clone(), "2Gi").label(&serde_json::from_value(pod).unwrap(), object);
            match expected {
                Ok(expected) => assert_eq!(label, Ok(expected), "{of_pod} {containers:?}"),
                Err(part) => {
                    let why = label.unwrap_err().to_string();
                    assert!(why.starts_with("multiple SELinux labels found: ") && why.contains(part), "{why}");
                }
            }
        }
    }

    #[test]
    fn groups_are_applied_as_the_policy_says() {
        let (own, none) = (pod(json!({"fsGroup": 7})), pod(json!({})));
        let policy = |policy: &str| Some(driver(json!({"fsGroupPolicy": policy})));
        let many = json!({"accessModes": ["ReadWriteMany"]});
        let untyped = json!({"csi": {"driver": "d", "volumeHandle": "h"}});
        for (pod, volume, object, can_itself, expected) in [
            (&own, json!({}), None, false, true),
            (&none, json!({}), None, false, false),
            (&own, json!({}), policy("None"), false, false),
            (&own, many.clone(), None, false, false),
            (&own, many, policy("File"), false, true),
            (&own, untyped.clone(), None, false, false),
            (&own, untyped, policy("File"), false, true),
            (&own, json!({}), policy("File"), true, false),
        ] {
            let abilities = if can_itself { can(&[NodeRpc::VolumeMountGroup]) } else { can(&[]) };
            let applied = claimed(volume.clone(), "2Gi").group_to_apply(pod, object.as_ref(), &abilities);
            assert_eq!(applied.is_some(), expected, "{volume} {object:?}");
        }
    }

    #[test]
    fn drivers_take_the_volumes_they_name() {
        let source = CSIVolumeSource { driver: "d".into(), ..Default::default() };
        let inline = Wanted::inline("v", &source, &pod(json!({})));
        let persistent = claimed(json!({}), "2Gi");
        let both = driver(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
        let (only, silent) = (driver(json!({"volumeLifecycleModes": ["Ephemeral"]})), driver(json!({})));
        assert_eq!(
            inline.refused(None).map(|why| why.to_string()).as_deref(),
            Some("volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)")
        );
        assert_eq!(
            inline.refused(Some(&silent)).map(|why| why.to_string()).as_deref(),
            Some("volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])")
        );
        assert_eq!(inline.refused(Some(&both)), None);
        assert_eq!(persistent.refused(None), None);
        assert_eq!(
            persistent.refused(Some(&only)).map(|why| why.to_string()).as_deref(),
            Some("volume mode \"Persistent\" not supported by driver d (only supports [\"Ephemeral\"])")
        );
        for (object, wanted, expected) in [
            (None, &persistent, true),
            (Some(driver(json!({"attachRequired": false}))), &persistent, false),
            (Some(driver(json!({"attachRequired": true}))), &persistent, true),
            (Some(driver(json!({"attachRequired": true}))), &inline, false),
        ] {
            assert_eq!(wanted.needs_attachment(object.as_ref()), expected);
        }
    }

    #[test]
    fn drivers_hear_of_the_pod_only_if_they_ask() {
        let wanted = claimed(json!({}), "2Gi");
        assert_eq!(wanted.context(&pod(json!({})), None), BTreeMap::from([("a".into(), "b".into())]));
        let told = wanted.context(&pod(json!({})), Some(&driver(json!({"podInfoOnMount": true}))));
        for (key, value) in [
            ("a", "b"),
            ("csi.storage.k8s.io/pod.name", "p"),
            ("csi.storage.k8s.io/pod.namespace", "ns"),
            ("csi.storage.k8s.io/pod.uid", "u"),
            ("csi.storage.k8s.io/serviceAccount.name", "robot"),
            ("csi.storage.k8s.io/ephemeral", "false"),
        ] {
            assert_eq!(told[key], value);
        }
    }

    #[test]
    fn a_volume_grows_when_its_claim_shows_less() {
        for (seen, expected) in [("1Gi", Some(2 << 30)), ("2Gi", None), ("3Gi", None)] {
            assert_eq!(claimed(json!({}), seen).growth.map(|growth| growth.size), expected, "{seen}");
        }
    }
}
