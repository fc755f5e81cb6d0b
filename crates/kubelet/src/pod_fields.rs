//! What a pod may ask for and this node does not do. Such a pod is refused; it is never started without what it asked
//! for. Every other field of a pod's spec is done here or is somebody else's: the tests hold the list of them against
//! the schema, so that a new field needs a decision.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, VolumeProjection};

use crate::{containers, state};

/// What of the machine and its runtime decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    /// The kernel confines programs by AppArmor profiles.
    pub(crate) has_apparmor: bool,
    /// The runtime has a profile for containers that want `RuntimeDefault`.
    pub(crate) has_default_profile: bool,
}

impl Host {
    pub(crate) fn look(runtime: &str) -> Self {
        let enabled = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
        let is_mounted = std::path::Path::new("/sys/kernel/security/apparmor").exists();
        Host {
            has_apparmor: is_mounted && enabled.is_ok_and(|text| text.starts_with('Y')),
            has_default_profile: runtime != OWN_RUNTIME,
        }
    }
}

/// The name of our own runtime, which has no AppArmor profile to offer.
const OWN_RUNTIME: &str = "cox";

struct Row {
    /// Type and field.
    field: &'static str,
    reason: &'static str,
    asks: Asks,
}

/// Finds out whether somebody asks, and answers with the explanation.
enum Asks {
    Pod(fn(&PodSpec) -> Option<String>),
    Container(fn(&Pod, &Container, Host) -> Option<String>),
}

#[rustfmt::skip]
const REFUSED: &[Row] = &[
    Row { field: "PodSpec.hostUsers", reason: "HostUsersNotSupported", asks: Asks::Pod(host_users) },
    Row { field: "PodSpec.resourceClaims", reason: "ResourceClaimsNotSupported", asks: Asks::Pod(resource_claims) },
    Row { field: "PodSpec.schedulingGroup", reason: "SchedulingGroupNotSupported", asks: Asks::Pod(scheduling_group) },
    Row { field: "VolumeProjection.clusterTrustBundle", reason: "ClusterTrustBundleNotSupported", asks: Asks::Pod(cluster_trust_bundle) },
    Row { field: "VolumeProjection.podCertificate", reason: "PodCertificateNotSupported", asks: Asks::Pod(pod_certificate) },
    Row { field: "ResourceRequirements.claims", reason: "ResourceClaimsNotSupported", asks: Asks::Container(claims) },
    Row { field: "SecurityContext.appArmorProfile", reason: "AppArmor", asks: Asks::Container(app_armor) },
];

/// Why this node cannot run the pod, as a reason and its explanation.
pub(crate) fn refuse(pod: &Pod, host: Host) -> Option<(String, String)> {
    let spec = pod.spec.as_ref()?;
    let all = state::all_containers(pod);
    REFUSED.iter().find_map(|row| {
        let cause = match row.asks {
            Asks::Pod(asks) => asks(spec),
            Asks::Container(asks) => all.iter().find_map(|container| asks(pod, container, host)),
        };
        let cause = cause?;
        tracing::info!(
            pod = state::full_name(pod),
            field = row.field,
            cause,
            "pod asks for what this node does not do"
        );
        Some((row.reason.to_string(), cause))
    })
}

/// A field of a container asks for what this node does not do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotDone(String);

/// The same for a container alone: ephemeral ones come when their pod has long been let in.
pub(crate) fn refuse_container(pod: &Pod, container: &Container, host: Host) -> Result<(), NotDone> {
    let cause = REFUSED.iter().find_map(|row| match row.asks {
        Asks::Pod(_) => None,
        Asks::Container(asks) => asks(pod, container, host),
    });
    cause.map_or(Ok(()), |cause| Err(NotDone(cause)))
}

fn host_users(spec: &PodSpec) -> Option<String> {
    (spec.host_users == Some(false)).then(|| "hostUsers: false: this node has no user namespaces for pods".into())
}

fn resource_claims(spec: &PodSpec) -> Option<String> {
    let claim = spec.resource_claims.as_ref()?.first()?;
    Some(format!("resourceClaims {:?}: this node does not prepare claimed devices", claim.name))
}

/// A pod of a group must not start without the others.
fn scheduling_group(spec: &PodSpec) -> Option<String> {
    let group = spec.scheduling_group.as_ref()?.pod_group_name.as_deref().unwrap_or_default();
    Some(format!("schedulingGroup {group:?}: pods are placed one by one here"))
}

fn projected(spec: &PodSpec, asks: impl Fn(&VolumeProjection) -> bool) -> Option<&str> {
    let volumes = spec.volumes.iter().flatten();
    let mut asking = volumes
        .filter(|volume| volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()).any(&asks));
    asking.next().map(|volume| volume.name.as_str())
}

fn cluster_trust_bundle(spec: &PodSpec) -> Option<String> {
    let volume = projected(spec, |source| source.cluster_trust_bundle.is_some())?;
    Some(format!("volume {volume:?}: this node does not project clusterTrustBundle"))
}

fn pod_certificate(spec: &PodSpec) -> Option<String> {
    let volume = projected(spec, |source| source.pod_certificate.is_some())?;
    Some(format!("volume {volume:?}: this node does not project podCertificate"))
}

fn claims(_: &Pod, container: &Container, _: Host) -> Option<String> {
    let claim = container.resources.as_ref()?.claims.as_ref()?.first()?;
    Some(format!("container {:?}: claim {:?}: this node does not prepare claimed devices", container.name, claim.name))
}

/// Upstream's words where the kernel has no AppArmor.
fn app_armor(pod: &Pod, container: &Container, host: Host) -> Option<String> {
    let profile = containers::effective_security(pod, container).app_armor_profile?;
    let cause = match profile.type_.as_str() {
        "Unconfined" => return None,
        _ if !host.has_apparmor => "AppArmor is not enabled on the host",
        "RuntimeDefault" if !host.has_default_profile => "the container runtime has no default profile",
        _ => return None,
    };
    Some(format!("Cannot enforce AppArmor: {cause}"))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use api::schema::{Struct, Type};
    use serde_json::{Value, json};

    use super::*;

    /// What the kubelet reads and acts on, or gives to the runtime as it is, by type.
    #[rustfmt::skip]
    const DONE: &[(&str, &str)] = &[
        ("PodSpec", "activeDeadlineSeconds affinity containers dnsConfig dnsPolicy enableServiceLinks ephemeralContainers \
            hostAliases hostIPC hostNetwork hostPID hostname hostnameOverride imagePullSecrets initContainers nodeName \
            nodeSelector os overhead priority readinessGates resources restartPolicy runtimeClassName securityContext \
            serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations volumes"),
        ("Affinity", "nodeAffinity"),
        ("NodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"),
        ("NodeSelector", "nodeSelectorTerms"),
        ("NodeSelectorTerm", "matchExpressions matchFields"),
        ("NodeSelectorRequirement", "key operator values"),
        ("Container", "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe \
            resizePolicy resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce \
            terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir"),
        ("EphemeralContainer", "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe \
            resizePolicy resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce targetContainerName \
            terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir"),
        ("EnvVar", "name value valueFrom"),
        ("EnvVarSource", "configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef"),
        ("ConfigMapKeySelector", "key name optional"),
        ("SecretKeySelector", "key name optional"),
        ("FileKeySelector", "key optional path volumeName"),
        ("ObjectFieldSelector", "apiVersion fieldPath"),
        ("ResourceFieldSelector", "containerName divisor resource"),
        ("EnvFromSource", "configMapRef prefix secretRef"),
        ("ConfigMapEnvSource", "name optional"),
        ("SecretEnvSource", "name optional"),
        ("Lifecycle", "postStart preStop stopSignal"),
        ("LifecycleHandler", "exec httpGet sleep tcpSocket"),
        ("ExecAction", "command"),
        ("HTTPGetAction", "host httpHeaders path port scheme"),
        ("HTTPHeader", "name value"),
        ("SleepAction", "seconds"),
        ("TCPSocketAction", "host port"),
        ("GRPCAction", "port service"),
        ("Probe", "exec failureThreshold grpc httpGet initialDelaySeconds periodSeconds successThreshold tcpSocket \
            terminationGracePeriodSeconds timeoutSeconds"),
        ("ContainerPort", "containerPort hostIP hostPort name protocol"),
        ("ContainerResizePolicy", "resourceName restartPolicy"),
        ("ResourceRequirements", "limits requests"),
        ("ContainerRestartRule", "action exitCodes"),
        ("ContainerRestartRuleOnExitCodes", "operator values"),
        ("SecurityContext", "allowPrivilegeEscalation capabilities privileged procMount readOnlyRootFilesystem runAsGroup \
            runAsNonRoot runAsUser seLinuxOptions seccompProfile"),
        ("PodSecurityContext", "appArmorProfile fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seLinuxOptions \
            seccompProfile supplementalGroups supplementalGroupsPolicy sysctls"),
        // Of the pod, for containers that have none.
        ("AppArmorProfile", "localhostProfile type"),
        ("Capabilities", "add drop"),
        ("SELinuxOptions", "level role type user"),
        ("SeccompProfile", "localhostProfile type"),
        ("Sysctl", "name value"),
        ("VolumeDevice", "devicePath name"),
        ("CSIVolumeSource", "driver fsType nodePublishSecretRef readOnly volumeAttributes"),
        ("VolumeMount", "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr"),
        ("PodDNSConfig", "nameservers options searches"),
        ("PodDNSConfigOption", "name value"),
        ("HostAlias", "hostnames ip"),
        ("LocalObjectReference", "name"),
        ("PodOS", "name"),
        ("PodReadinessGate", "conditionType"),
        ("Toleration", "effect key operator tolerationSeconds value"),
        ("Volume", "configMap csi downwardAPI emptyDir ephemeral hostPath image iscsi name nfs persistentVolumeClaim projected secret"),
        ("ConfigMapVolumeSource", "defaultMode items name optional"),
        ("SecretVolumeSource", "defaultMode items optional secretName"),
        ("KeyToPath", "key mode path"),
        ("DownwardAPIVolumeSource", "defaultMode items"),
        ("DownwardAPIVolumeFile", "fieldRef mode path resourceFieldRef"),
        ("EmptyDirVolumeSource", "medium sizeLimit"),
        ("HostPathVolumeSource", "path type"),
        ("ImageVolumeSource", "pullPolicy reference"),
        ("ISCSIVolumeSource", "chapAuthDiscovery chapAuthSession fsType initiatorName iqn iscsiInterface lun portals readOnly secretRef targetPortal"),
        ("NFSVolumeSource", "path readOnly server"),
        ("PersistentVolumeClaimVolumeSource", "claimName readOnly"),
        ("ProjectedVolumeSource", "defaultMode sources"),
        ("VolumeProjection", "configMap downwardAPI secret serviceAccountToken"),
        ("ConfigMapProjection", "items name optional"),
        ("DownwardAPIProjection", "items"),
        ("SecretProjection", "items name optional"),
        ("ServiceAccountTokenProjection", "audience expirationSeconds path"),
    ];

    /// What is not a kubelet's to do, and whose it is.
    #[rustfmt::skip]
    const OTHERS: &[(&str, &str, &str)] = &[
        ("PodSpec", "preemptionPolicy schedulerName schedulingGates topologySpreadConstraints", "the scheduler's"),
        ("PodSpec", "automountServiceAccountToken priorityClassName serviceAccount", "admission's"),
        ("Affinity", "podAffinity podAntiAffinity", "the scheduler's"),
        ("NodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution", "the scheduler's"),
        ("SecurityContext", "windowsOptions", "for Windows: a pod for another system is refused"),
        ("PodSecurityContext", "windowsOptions", "for Windows: a pod for another system is refused"),
        ("PodSecurityContext", "seLinuxChangePolicy", "read with seLinuxOptions, for volumes mounted with a label"),
        ("EphemeralVolumeSource", "volumeClaimTemplate", "a controller makes the claim"),
        ("Volume", "awsElasticBlockStore azureDisk azureFile cinder gcePersistentDisk portworxVolume vsphereVolume",
            "asked of the CSI driver that took the work over (`api::volume_migration`)"),
        ("Volume", "cephfs fc flexVolume flocker gitRepo glusterfs photonPersistentDisk quobyte rbd scaleIO storageos",
            "no plug-in here: as upstream, the pod waits and an event says why (FailedMount)"),
    ];

    fn decided() -> BTreeMap<String, BTreeSet<String>> {
        let mut decided: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let others = OTHERS.iter().map(|(name, fields, _)| (*name, *fields));
        let refused = REFUSED.iter().map(|row| row.field.split_once('.').unwrap());
        for (name, fields) in DONE.iter().copied().chain(others).chain(refused) {
            for field in fields.split_whitespace() {
                let is_new = decided.entry(name.into()).or_default().insert(field.into());
                assert!(is_new, "{name}.{field} is decided twice");
            }
        }
        decided
    }

    /// All types that are reached over fields that are done.
    fn walk(definition: &Struct, seen: &mut BTreeMap<String, BTreeSet<String>>) {
        let name = definition.short_name();
        let fields: BTreeSet<String> = definition.fields().iter().map(|field| field.name.to_string()).collect();
        if seen.insert(name.into(), fields).is_some() {
            return;
        }
        let done: BTreeSet<&str> =
            DONE.iter().filter(|(of, _)| *of == name).flat_map(|(_, fields)| fields.split_whitespace()).collect();
        for field in definition.fields().iter().filter(|field| done.contains(&*field.name)) {
            let mut ty = &field.ty;
            while let Type::List(inner) | Type::Map(inner) = ty {
                ty = inner;
            }
            if let Some(inner) = ty.as_struct() {
                walk(inner, seen);
            }
        }
    }

    #[test]
    fn every_field_of_a_pod_is_decided() {
        let pod = api::schema::of::<Pod>();
        let spec = pod.field("spec").and_then(|field| field.ty.as_struct()).unwrap();
        let mut schema = BTreeMap::new();
        walk(spec, &mut schema);
        let decided = decided();
        for (name, fields) in &schema {
            let own = decided.get(name).cloned().unwrap_or_default();
            assert_eq!(&own, fields, "{name}");
        }
        let unknown: Vec<_> = decided.keys().filter(|name| !schema.contains_key(*name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    #[test]
    fn security_pods_that_ask_for_more_than_there_is_are_refused() {
        let with = |container: Value| {
            let mut own = json!({"name": "c", "image": "i"});
            own.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
            json!({"containers": [own]})
        };
        let volume = |source: Value| {
            let mut own = json!({"name": "v"});
            own.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            json!({"containers": [{"name": "c"}], "volumes": [own]})
        };
        let armored =
            |kind: &str| with(json!({"securityContext": {"appArmorProfile": {"type": kind, "localhostProfile": "p"}}}));
        let (none, own) = (
            Host { has_apparmor: false, has_default_profile: false },
            Host { has_apparmor: true, has_default_profile: false },
        );
        let other = Host { has_apparmor: true, has_default_profile: true };
        for (spec, host, expected) in [
            (with(json!({})), none, None),
            (json!({"hostUsers": true, "containers": []}), none, None),
            (json!({"hostUsers": false, "containers": []}), none, Some("HostUsersNotSupported")),
            (json!({"resourceClaims": [{"name": "gpu"}], "containers": []}), none, Some("ResourceClaimsNotSupported")),
            (with(json!({"resources": {"claims": [{"name": "gpu"}]}})), none, Some("ResourceClaimsNotSupported")),
            (
                json!({"schedulingGroup": {"podGroupName": "g"}, "containers": []}),
                none,
                Some("SchedulingGroupNotSupported"),
            ),
            (with(json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]})), none, None),
            (
                with(
                    json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}}]}),
                ),
                none,
                None,
            ),
            (
                volume(json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "p"}}]}})),
                none,
                Some("ClusterTrustBundleNotSupported"),
            ),
            (
                volume(
                    json!({"projected": {"sources": [{"podCertificate": {"keyType": "ED25519", "signerName": "s"}}]}}),
                ),
                none,
                Some("PodCertificateNotSupported"),
            ),
            (volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "p"}}]}})), none, None),
            (volume(json!({"emptyDir": {"medium": "HugePages-2Mi"}})), none, None),
            (volume(json!({"emptyDir": {"medium": "Memory"}})), none, None),
            (with(json!({"securityContext": {"seLinuxOptions": {"level": "s0:c0,c1"}}})), none, None),
            (armored("Unconfined"), none, None),
            (armored("Localhost"), none, Some("AppArmor")),
            (armored("RuntimeDefault"), none, Some("AppArmor")),
            (armored("Localhost"), own, None),
            (armored("RuntimeDefault"), own, Some("AppArmor")),
            (armored("RuntimeDefault"), other, None),
        ] {
            let refused = refuse(&pod(spec.clone()), host).map(|(reason, _)| reason);
            assert_eq!(refused.as_deref(), expected, "{spec} {host:?}");
        }
        let (_, message) = refuse(&pod(armored("Localhost")), none).unwrap();
        assert_eq!(message, "Cannot enforce AppArmor: AppArmor is not enabled on the host");
    }

    #[test]
    fn security_ephemeral_containers_are_looked_at_when_they_come() {
        let pod = pod(json!({"containers": [{"name": "c"}], "ephemeralContainers": [
            {"name": "e", "resources": {"claims": [{"name": "gpu"}]}}]}));
        let host = Host { has_apparmor: false, has_default_profile: false };
        let answers: Vec<bool> =
            state::all_containers(&pod).iter().map(|c| refuse_container(&pod, c, host).is_ok()).collect();
        assert_eq!(answers, [true, false]);
    }
}
