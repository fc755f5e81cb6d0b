//! What the generated schemas do not say: how lists and maps merge.
//!
//! Strategic merge patch and server-side apply need to know which field tells the elements of a list
//! apart, and which structures are replaced as a whole. A list without a row here is replaced as a
//! whole by both; a structure without a row merges field by field.

/// How two versions of one field come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// Who owns what in a list, for server-side apply.
    pub list: ListType,
    /// The field that tells elements apart in a strategic merge patch; `Some("")` merges a list of plain values.
    pub patch_key: Option<&'static str>,
    /// A patch of this value drops the fields it does not name (`$retainKeys`).
    pub retain_keys: bool,
    /// A map or structure that is owned and replaced as a whole.
    pub atomic: bool,
    /// A structure that a strategic merge patch replaces as a whole, whatever apply does with it.
    pub patch_replaces: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    Map(&'static [&'static str]),
}

impl Merge {
    pub const ATOMIC_LIST: Self =
        Self { list: ListType::Atomic, patch_key: None, retain_keys: false, atomic: false, patch_replaces: false };
}

const fn map(keys: &'static [&'static str], patch_key: &'static str) -> Merge {
    Merge { list: ListType::Map(keys), patch_key: Some(patch_key), ..Merge::ATOMIC_LIST }
}

const fn retain(keys: &'static [&'static str], patch_key: &'static str) -> Merge {
    Merge { retain_keys: true, ..map(keys, patch_key) }
}

/// A map for apply, replaced as a whole by a strategic merge patch.
const fn apply_map(keys: &'static [&'static str]) -> Merge {
    Merge { list: ListType::Map(keys), ..Merge::ATOMIC_LIST }
}

/// Merged by a strategic merge patch, owned as a whole for apply.
const fn patch_only(patch_key: &'static str) -> Merge {
    Merge { patch_key: Some(patch_key), ..Merge::ATOMIC_LIST }
}

const SET: Merge = Merge { list: ListType::Set, ..Merge::ATOMIC_LIST };
const MERGED_SET: Merge = Merge { patch_key: Some(""), ..SET };
const ATOMIC: Merge = Merge { atomic: true, ..Merge::ATOMIC_LIST };
const RETAIN: Merge = Merge { retain_keys: true, ..Merge::ATOMIC_LIST };
const PATCH_REPLACES: Merge = Merge { patch_replaces: true, ..Merge::ATOMIC_LIST };

/// Rows of (end of the definition's name, field, rule).
const FIELDS: &[(&str, &str, Merge)] = &[
    ("meta.v1.ObjectMeta", "finalizers", MERGED_SET),
    ("meta.v1.ObjectMeta", "ownerReferences", map(&["uid"], "uid")),
    // Pods
    ("core.v1.PodSpec", "containers", map(&["name"], "name")),
    ("core.v1.PodSpec", "initContainers", map(&["name"], "name")),
    ("core.v1.PodSpec", "ephemeralContainers", map(&["name"], "name")),
    ("core.v1.PodSpec", "imagePullSecrets", map(&["name"], "name")),
    ("core.v1.PodSpec", "schedulingGates", map(&["name"], "name")),
    ("core.v1.PodSpec", "hostAliases", map(&["ip"], "ip")),
    ("core.v1.PodSpec", "volumes", retain(&["name"], "name")),
    ("core.v1.PodSpec", "resourceClaims", retain(&["name"], "name")),
    ("core.v1.PodSpec", "topologySpreadConstraints", map(&["topologyKey", "whenUnsatisfiable"], "topologyKey")),
    ("core.v1.PodSpec", "nodeSelector", ATOMIC),
    ("core.v1.PodStatus", "conditions", map(&["type"], "type")),
    ("core.v1.PodStatus", "podIPs", map(&["ip"], "ip")),
    ("core.v1.PodStatus", "hostIPs", patch_only("ip")),
    ("core.v1.PodStatus", "resourceClaimStatuses", retain(&["name"], "name")),
    ("Container", "env", map(&["name"], "name")),
    ("Container", "ports", map(&["containerPort", "protocol"], "containerPort")),
    ("Container", "volumeMounts", map(&["mountPath"], "mountPath")),
    ("Container", "volumeDevices", map(&["devicePath"], "devicePath")),
    ("core.v1.ContainerStatus", "volumeMounts", map(&["mountPath"], "mountPath")),
    ("core.v1.ContainerStatus", "allocatedResourcesStatus", map(&["name"], "name")),
    ("core.v1.ContainerRestartRuleOnExitCodes", "values", SET),
    ("core.v1.NodeAllocatableResourceClaimStatus", "containers", SET),
    ("core.v1.ResourceRequirements", "claims", apply_map(&["name"])),
    ("core.v1.ResourceStatus", "resources", apply_map(&["resourceID"])),
    // The rest of the core group
    ("core.v1.ServiceSpec", "ports", map(&["port", "protocol"], "port")),
    ("core.v1.ServiceSpec", "selector", ATOMIC),
    ("core.v1.ReplicationControllerSpec", "selector", ATOMIC),
    ("core.v1.ServiceAccount", "secrets", map(&["name"], "name")),
    ("core.v1.NodeSpec", "podCIDRs", MERGED_SET),
    ("core.v1.NodeStatus", "addresses", map(&["type"], "type")),
    ("core.v1.NodeStatus", "conditions", map(&["type"], "type")),
    ("core.v1.NamespaceStatus", "conditions", map(&["type"], "type")),
    ("core.v1.ServiceStatus", "conditions", map(&["type"], "type")),
    ("core.v1.ComponentStatus", "conditions", map(&["type"], "type")),
    ("core.v1.PersistentVolumeClaimStatus", "conditions", map(&["type"], "type")),
    ("core.v1.ReplicationControllerStatus", "conditions", map(&["type"], "type")),
    // Workloads
    ("apps.v1.DeploymentSpec", "strategy", RETAIN),
    ("apps.v1.DeploymentStatus", "conditions", map(&["type"], "type")),
    ("apps.v1.ReplicaSetStatus", "conditions", map(&["type"], "type")),
    ("apps.v1.DaemonSetStatus", "conditions", map(&["type"], "type")),
    ("apps.v1.StatefulSetStatus", "conditions", map(&["type"], "type")),
    ("batch.v1.JobStatus", "conditions", patch_only("type")),
    ("batch.v1.PodFailurePolicyOnExitCodesRequirement", "values", SET),
    ("batch.v1.UncountedTerminatedPods", "failed", SET),
    ("batch.v1.UncountedTerminatedPods", "succeeded", SET),
    ("HorizontalPodAutoscalerStatus", "conditions", map(&["type"], "type")),
    ("policy.v1.PodDisruptionBudgetSpec", "selector", PATCH_REPLACES),
    ("policy.v1.PodDisruptionBudgetStatus", "conditions", map(&["type"], "type")),
    // Networking and discovery
    ("discovery.v1.Endpoint", "addresses", SET),
    ("ServiceCIDRStatus", "conditions", map(&["type"], "type")),
    // Access and admission
    ("MutatingWebhookConfiguration", "webhooks", map(&["name"], "name")),
    ("ValidatingWebhookConfiguration", "webhooks", map(&["name"], "name")),
    ("MutatingWebhook", "matchConditions", map(&["name"], "name")),
    ("ValidatingWebhook", "matchConditions", map(&["name"], "name")),
    ("MutatingAdmissionPolicySpec", "matchConditions", map(&["name"], "name")),
    ("ValidatingAdmissionPolicySpec", "matchConditions", map(&["name"], "name")),
    ("ValidatingAdmissionPolicySpec", "variables", map(&["name"], "name")),
    ("ValidatingAdmissionPolicyBindingSpec", "validationActions", SET),
    ("ValidatingAdmissionPolicyStatus", "conditions", apply_map(&["type"])),
    ("CertificateSigningRequestStatus", "conditions", apply_map(&["type"])),
    ("PodCertificateRequestStatus", "conditions", map(&["type"], "type")),
    ("APIServiceStatus", "conditions", map(&["type"], "type")),
    ("CustomResourceDefinitionStatus", "conditions", apply_map(&["type"])),
    ("JSONSchemaProps", "x-kubernetes-validations", map(&["rule"], "rule")),
    ("FlowSchemaStatus", "conditions", map(&["type"], "type")),
    ("PriorityLevelConfigurationStatus", "conditions", map(&["type"], "type")),
    ("NonResourcePolicyRule", "nonResourceURLs", SET),
    ("NonResourcePolicyRule", "verbs", SET),
    ("ResourcePolicyRule", "apiGroups", SET),
    ("ResourcePolicyRule", "namespaces", SET),
    ("ResourcePolicyRule", "resources", SET),
    ("ResourcePolicyRule", "verbs", SET),
    ("ServerStorageVersion", "decodableVersions", SET),
    ("ServerStorageVersion", "servedVersions", SET),
    ("StorageVersionStatus", "conditions", apply_map(&["type"])),
    ("StorageVersionStatus", "storageVersions", apply_map(&["apiServerID"])),
    ("StorageVersionMigrationStatus", "conditions", map(&["type"], "type")),
    // Storage, devices, scheduling
    ("storage.v1.CSINodeSpec", "drivers", map(&["name"], "name")),
    ("storage.v1.CSIDriverSpec", "volumeLifecycleModes", SET),
    ("node.v1.Scheduling", "nodeSelector", ATOMIC),
    ("ResourceClaimStatus", "devices", apply_map(&["driver", "device", "pool", "shareID"])),
    ("ResourceClaimStatus", "reservedFor", map(&["uid"], "uid")),
    ("AllocatedDeviceStatus", "conditions", apply_map(&["type"])),
    ("DeviceTaintRuleStatus", "conditions", map(&["type"], "type")),
    ("ResourcePoolStatusRequestStatus", "conditions", map(&["type"], "type")),
    ("PodGroupStatus", "conditions", map(&["type"], "type")),
    ("PodGroupStatus", "resourceClaimStatuses", retain(&["name"], "name")),
    ("PodGroupSpec", "resourceClaims", retain(&["name"], "name")),
    ("PodGroupTemplate", "resourceClaims", retain(&["name"], "name")),
    ("WorkloadSpec", "podGroupTemplates", apply_map(&["name"])),
];

/// Structures that are owned and replaced as a whole wherever they stand.
const ATOMIC_STRUCTS: &[&str] = &[
    "meta.v1.LabelSelector",
    "meta.v1.OwnerReference",
    "core.v1.ConfigMapKeySelector",
    "core.v1.EndpointAddress",
    "EndpointPort",
    "core.v1.FileKeySelector",
    "core.v1.LocalObjectReference",
    "core.v1.NodeSelector",
    "core.v1.NodeSelectorTerm",
    "core.v1.ObjectFieldSelector",
    "core.v1.ObjectReference",
    "core.v1.ResourceFieldSelector",
    "core.v1.ScopeSelector",
    "core.v1.SecretKeySelector",
    "core.v1.SecretReference",
    "core.v1.TopologySelectorTerm",
    "core.v1.TypedLocalObjectReference",
    "autoscaling.v1.CrossVersionObjectReference",
    "networking.v1.ServiceBackendPort",
    "rbac.v1.RoleRef",
    "rbac.v1.Subject",
    "MatchResources",
    "NamedRuleWithOperations",
    "ParamKind",
    "ParamRef",
    "admissionregistration.v1.Variable",
    "admissionregistration.v1beta1.Variable",
];

/// Values that a key field takes when it is absent.
const KEY_DEFAULTS: &[(&str, &str, &str)] =
    &[("core.v1.ContainerPort", "protocol", "TCP"), ("core.v1.ServicePort", "protocol", "TCP")];

/// The rule of a field, if it has one.
pub fn merge(definition: &str, field: &str) -> Option<Merge> {
    FIELDS.iter().find(|(owner, name, _)| *name == field && owns(definition, owner)).map(|&(_, _, merge)| merge)
}

/// Whether a structure is replaced as a whole. `claimRef` of a volume is the one place that says otherwise
/// about a type that is atomic everywhere else.
pub fn is_atomic(definition: &str) -> bool {
    ATOMIC_STRUCTS.iter().any(|owner| owns(definition, owner))
}

/// A field whose value merges although its type is atomic everywhere else.
pub fn is_granular(definition: &str, field: &str) -> bool {
    field == "claimRef" && owns(definition, "core.v1.PersistentVolumeSpec")
}

pub(crate) fn key_default(definition: &str, field: &str) -> Option<&'static str> {
    KEY_DEFAULTS.iter().find(|(owner, name, _)| *name == field && owns(definition, owner)).map(|&(_, _, value)| value)
}

/// `Container` also stands for `EphemeralContainer`, which embeds its fields.
fn owns(definition: &str, owner: &str) -> bool {
    let Some(rest) = definition.strip_suffix(owner) else {
        return false;
    };
    rest.ends_with('.') || (owner == "Container" && rest.ends_with(".Ephemeral"))
}
