//! The one table of resources. Routes, discovery, OpenAPI, rights, store keys and watch caches are read from it.
//!
//! To give a kind rules of its own, write `<group>/<resource>.rs` with a [`Strategy`](super::Strategy) and
//! add `.strategy(...)` to its row. Rows stand in the order in which discovery lists them.

use std::sync::LazyLock;

use k8s_openapi::api::{
    admissionregistration, apiserverinternal, apps, authentication, authorization, autoscaling, batch, certificates,
    coordination, core, discovery, events, flowcontrol, networking, node, policy, rbac, resource, scheduling, storage,
    storagemigration,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration;
use serde_json::Value;

use super::apps as apps_registry;
use super::conversion;
use super::core as core_registry;
use super::dra;
use super::resource::{Action, Conversion, MetricsOf, Resource, Review, Scope, Serving, Text};
use super::verb::Verb;

const READ: &[Verb] = &[Verb::Get, Verb::List];
const ALL_BUT_COLLECTIONS: &[Verb] =
    &[Verb::Create, Verb::Delete, Verb::Get, Verb::List, Verb::Patch, Verb::Update, Verb::Watch];

/// Where objects of a kind are stored: under its plural unless its row says otherwise.
pub fn store_prefix<K: k8s_openapi::Resource>() -> &'static str {
    /// Group, plural and prefix of those that are stored elsewhere.
    static ELSEWHERE: LazyLock<Vec<[String; 3]>> = LazyLock::new(|| {
        let elsewhere = resources().into_iter().filter(|row| row.store_prefix != row.plural);
        elsewhere.map(|row| [row.group, row.plural, row.store_prefix].map(Text::into_owned)).collect()
    });
    let found = ELSEWHERE.iter().find(|[group, plural, _]| plural == K::URL_PATH_SEGMENT && group == K::GROUP);
    found.map_or(K::URL_PATH_SEGMENT, |[_, _, prefix]| prefix)
}

/// Every resource this server knows, alpha and beta versions included.
pub fn resources() -> Vec<Resource> {
    let mut rows = Vec::with_capacity(96);
    rows.extend(core_group());
    rows.extend(apiregistration_group());
    rows.extend(apps_group());
    rows.extend(events_group());
    rows.extend(authentication_group());
    rows.extend(authorization_group());
    rows.extend(autoscaling_group());
    rows.extend(batch_group());
    rows.extend(certificates_group());
    rows.extend(networking_group());
    rows.extend(policy_group());
    rows.extend(rbac_group());
    rows.extend(storage_group());
    rows.extend(admissionregistration_group());
    rows.extend(apiextensions_group());
    rows.extend(scheduling_group());
    rows.extend(coordination_group());
    rows.extend(node_group());
    rows.extend(discovery_group());
    rows.extend(resource_group());
    rows.extend(flowcontrol_group());
    rows.extend(internal_groups());
    rows.extend(metrics_group());
    rows
}

/// Off unless `--runtime-config` asks for it, as `cox up` does: beside other components, a metrics-server has this group.
fn metrics_group() -> Vec<Resource> {
    use super::metrics::{NodeMetrics, PodMetrics};
    vec![
        Resource::answered::<NodeMetrics>(Scope::Cluster, "nodes", "nodemetrics", Serving::Metrics(MetricsOf::Nodes))
            .verbs(READ),
        Resource::answered::<PodMetrics>(Scope::Namespaced, "pods", "podmetrics", Serving::Metrics(MetricsOf::Pods))
            .verbs(READ),
    ]
}

fn core_group() -> Vec<Resource> {
    use core::v1::*;
    vec![
        Resource::answered::<Binding>(Scope::Namespaced, "bindings", "binding", Serving::Binding),
        Resource::answered::<ComponentStatus>(
            Scope::Cluster,
            "componentstatuses",
            "componentstatus",
            Serving::ComponentStatuses,
        )
        .verbs(READ)
        .short(&["cs"]),
        Resource::namespaced::<ConfigMap>("configmap")
            .short(&["cm"])
            .strategy(core_registry::config_map::ConfigMapStrategy),
        Resource::namespaced::<Endpoints>("endpoints")
            .strategy(super::core::endpoints::EndpointsStrategy)
            .short(&["ep"])
            .stored_under("services/endpoints"),
        event(),
        Resource::namespaced::<LimitRange>("limitrange")
            .strategy(super::core::limit_range::LimitRangeStrategy)
            .short(&["limits"]),
        Resource::cluster::<Namespace>("namespace")
            .short(&["ns"])
            .verbs(ALL_BUT_COLLECTIONS)
            .with(&[Action::Finalize, Action::Status])
            .strategy(core_registry::namespace::NamespaceStrategy),
        Resource::cluster::<Node>("node")
            .strategy(super::core::node::NodeStrategy)
            .short(&["no"])
            .with(&[Action::Proxy, Action::Status])
            .proxy_options("NodeProxyOptions")
            .stored_under("minions"),
        Resource::namespaced::<PersistentVolumeClaim>("persistentvolumeclaim")
            .returns_deleted()
            .strategy(super::core::persistent_volume_claim::PersistentVolumeClaimStrategy)
            .short(&["pvc"])
            .status(),
        Resource::cluster::<PersistentVolume>("persistentvolume")
            .returns_deleted()
            .strategy(super::core::persistent_volume::PersistentVolumeStrategy)
            .short(&["pv"])
            .status(),
        Resource::namespaced::<Pod>("pod")
            .returns_deleted()
            .short(&["po"])
            .category("all")
            .with(&[
                Action::Attach,
                Action::Binding,
                Action::EphemeralContainers,
                Action::Eviction,
                Action::Exec,
                Action::Log,
                Action::PortForward,
                Action::Proxy,
                Action::Resize,
                Action::Status,
            ])
            .proxy_options("PodProxyOptions")
            .strategy(core_registry::pod::PodStrategy),
        Resource::namespaced::<PodTemplate>("podtemplate")
            .returns_deleted()
            .strategy(super::core::pod_template::PodTemplateStrategy),
        Resource::namespaced::<ReplicationController>("replicationcontroller")
            .strategy(super::core::replication_controller::ReplicationControllerStrategy)
            .short(&["rc"])
            .category("all")
            .with(&[Action::Scale, Action::Status])
            .stored_under("controllers"),
        Resource::namespaced::<ResourceQuota>("resourcequota")
            .returns_deleted()
            .strategy(super::core::resource_quota::ResourceQuotaStrategy)
            .short(&["quota"])
            .status(),
        Resource::namespaced::<Secret>("secret").strategy(super::core::secret::SecretStrategy),
        Resource::namespaced::<ServiceAccount>("serviceaccount")
            .returns_deleted()
            .strategy(super::core::service_account::ServiceAccountStrategy)
            .short(&["sa"])
            .with(&[Action::Token]),
        Resource::namespaced::<Service>("service")
            .returns_deleted()
            .short(&["svc"])
            .category("all")
            .with(&[Action::Proxy, Action::Status])
            .proxy_options("ServiceProxyOptions")
            .strategy(core_registry::service::ServiceStrategy)
            .stored_under("services/specs"),
    ]
}

/// Events are stored once, in the core form, and served in two groups.
fn event() -> Resource {
    Resource::namespaced::<core::v1::Event>("event")
        .strategy(super::core::event::EventStrategy)
        .short(&["ev"])
        .expires()
}

fn apiregistration_group() -> Vec<Resource> {
    vec![
        Resource::cluster::<apiregistration::v1::APIService>("apiservice")
            .strategy(super::apiregistration::api_service::ApiServiceStrategy)
            .category("api-extensions")
            .status()
            .stored_under("apiregistration.k8s.io/apiservices"),
    ]
}

fn apps_group() -> Vec<Resource> {
    use apps::v1::*;
    vec![
        Resource::namespaced::<ControllerRevision>("controllerrevision")
            .strategy(apps_registry::controller_revision::ControllerRevisionStrategy),
        Resource::namespaced::<DaemonSet>("daemonset")
            .short(&["ds"])
            .category("all")
            .status()
            .strategy(apps_registry::daemon_set::DaemonSetStrategy),
        Resource::namespaced::<Deployment>("deployment")
            .short(&["deploy"])
            .category("all")
            .with(&[Action::Scale, Action::Status])
            .strategy(apps_registry::deployment::DeploymentStrategy),
        Resource::namespaced::<ReplicaSet>("replicaset")
            .short(&["rs"])
            .category("all")
            .with(&[Action::Scale, Action::Status])
            .strategy(apps_registry::replica_set::ReplicaSetStrategy),
        Resource::namespaced::<StatefulSet>("statefulset")
            .short(&["sts"])
            .category("all")
            .with(&[Action::Scale, Action::Status])
            .strategy(apps_registry::stateful_set::StatefulSetStrategy),
    ]
}

fn events_group() -> Vec<Resource> {
    vec![event().also_shaped_as::<events::v1::Event>(conversion::EVENTS_V1)]
}

fn authentication_group() -> Vec<Resource> {
    use authentication::v1::*;
    let review = Serving::Review;
    vec![
        Resource::answered::<SelfSubjectReview>(
            Scope::Cluster,
            "selfsubjectreviews",
            "selfsubjectreview",
            review(Review::SelfSubject),
        ),
        Resource::answered::<TokenReview>(Scope::Cluster, "tokenreviews", "tokenreview", review(Review::Token)),
    ]
}

fn authorization_group() -> Vec<Resource> {
    use authorization::v1::*;
    let review = Serving::Review;
    vec![
        Resource::answered::<LocalSubjectAccessReview>(
            Scope::Namespaced,
            "localsubjectaccessreviews",
            "localsubjectaccessreview",
            review(Review::LocalSubjectAccess),
        ),
        Resource::answered::<SelfSubjectAccessReview>(
            Scope::Cluster,
            "selfsubjectaccessreviews",
            "selfsubjectaccessreview",
            review(Review::SelfSubjectAccess),
        ),
        Resource::answered::<SelfSubjectRulesReview>(
            Scope::Cluster,
            "selfsubjectrulesreviews",
            "selfsubjectrulesreview",
            review(Review::SelfSubjectRules),
        ),
        Resource::answered::<SubjectAccessReview>(
            Scope::Cluster,
            "subjectaccessreviews",
            "subjectaccessreview",
            review(Review::SubjectAccess),
        ),
    ]
}

fn autoscaling_group() -> Vec<Resource> {
    let v2 = Resource::namespaced::<autoscaling::v2::HorizontalPodAutoscaler>("horizontalpodautoscaler")
        .strategy(super::autoscaling::horizontal_pod_autoscaler::HorizontalPodAutoscalerStrategy)
        .short(&["hpa"])
        .category("all")
        .status();
    let v1 = v2.also_shaped_as::<autoscaling::v1::HorizontalPodAutoscaler>(super::autoscaling::v1::CONVERSION);
    vec![v2, v1]
}

fn batch_group() -> Vec<Resource> {
    use batch::v1::*;
    vec![
        Resource::namespaced::<CronJob>("cronjob")
            .strategy(super::batch::cron_job::CronJobStrategy)
            .short(&["cj"])
            .category("all")
            .status(),
        Resource::namespaced::<Job>("job").strategy(super::batch::job::JobStrategy).category("all").status(),
    ]
}

fn certificates_group() -> Vec<Resource> {
    use super::certificates::pod_certificate::{ClusterTrustBundleStrategy, PodCertificateRequestStrategy};
    let bundle = Resource::cluster::<certificates::v1beta1::ClusterTrustBundle>("clustertrustbundle")
        .strategy(ClusterTrustBundleStrategy);
    let bundle_alpha = bundle.also_as::<certificates::v1alpha1::ClusterTrustBundle>(CERTIFICATES_V1ALPHA1);
    vec![
        Resource::cluster::<certificates::v1::CertificateSigningRequest>("certificatesigningrequest")
            .strategy(super::certificates::certificate_signing_request::CertificateSigningRequestStrategy)
            .short(&["csr"])
            .with(&[Action::Approval, Action::Status]),
        bundle,
        Resource::namespaced::<certificates::v1beta1::PodCertificateRequest>("podcertificaterequest")
            .strategy(PodCertificateRequestStrategy)
            .status(),
        bundle_alpha,
    ]
}

fn networking_group() -> Vec<Resource> {
    use networking::v1::*;
    let address = Resource::cluster::<IPAddress>("ipaddress")
        .strategy(super::networking::ip_address::IpAddressStrategy)
        .short(&["ip"]);
    let range = Resource::cluster::<ServiceCIDR>("servicecidr")
        .strategy(super::networking::service_cidr::ServiceCidrStrategy)
        .status();
    let address_beta = address.also_as::<networking::v1beta1::IPAddress>(NETWORKING_V1BETA1);
    let range_beta = range.also_as::<networking::v1beta1::ServiceCIDR>(NETWORKING_V1BETA1);
    vec![
        Resource::cluster::<IngressClass>("ingressclass")
            .strategy(super::networking::ingress_class::IngressClassStrategy),
        Resource::namespaced::<Ingress>("ingress")
            .strategy(super::networking::ingress::IngressStrategy)
            .short(&["ing"])
            .status()
            .stored_under("ingress"),
        address,
        Resource::namespaced::<NetworkPolicy>("networkpolicy")
            .strategy(super::networking::network_policy::NetworkPolicyStrategy)
            .short(&["netpol"]),
        range,
        address_beta,
        range_beta,
    ]
}

fn policy_group() -> Vec<Resource> {
    vec![
        Resource::namespaced::<policy::v1::PodDisruptionBudget>("poddisruptionbudget")
            .strategy(super::policy::pod_disruption_budget::PodDisruptionBudgetStrategy)
            .short(&["pdb"])
            .status(),
    ]
}

fn rbac_group() -> Vec<Resource> {
    use rbac::v1::*;
    vec![
        Resource::cluster::<ClusterRoleBinding>("clusterrolebinding")
            .strategy(super::rbac::binding::ClusterRoleBindingStrategy),
        Resource::cluster::<ClusterRole>("clusterrole").strategy(super::rbac::role::ClusterRoleStrategy),
        Resource::namespaced::<RoleBinding>("rolebinding").strategy(super::rbac::binding::RoleBindingStrategy),
        Resource::namespaced::<Role>("role").strategy(super::rbac::role::RoleStrategy),
    ]
}

fn storage_group() -> Vec<Resource> {
    use storage::v1::*;
    let class = Resource::cluster::<VolumeAttributesClass>("volumeattributesclass")
        .returns_deleted()
        .strategy(super::storage::volume_attributes_class::VolumeAttributesClassStrategy)
        .short(&["vac"]);
    let class_beta = class.also_as::<storage::v1beta1::VolumeAttributesClass>(STORAGE_V1BETA1);
    vec![
        Resource::cluster::<CSIDriver>("csidriver")
            .returns_deleted()
            .strategy(super::storage::csi_driver::CsiDriverStrategy),
        Resource::cluster::<CSINode>("csinode").returns_deleted().strategy(super::storage::csi_node::CsiNodeStrategy),
        Resource::namespaced::<CSIStorageCapacity>("csistoragecapacity")
            .strategy(super::storage::csi_storage_capacity::CsiStorageCapacityStrategy),
        Resource::cluster::<StorageClass>("storageclass")
            .returns_deleted()
            .strategy(super::storage::storage_class::StorageClassStrategy)
            .short(&["sc"]),
        Resource::cluster::<VolumeAttachment>("volumeattachment")
            .returns_deleted()
            .strategy(super::storage::volume_attachment::VolumeAttachmentStrategy)
            .status(),
        class,
        class_beta,
    ]
}

fn admissionregistration_group() -> Vec<Resource> {
    use admissionregistration::v1::*;
    let policy = Resource::cluster::<MutatingAdmissionPolicy>("mutatingadmissionpolicy")
        .strategy(super::admissionregistration::policy::MutatingAdmissionPolicyStrategy)
        .category("api-extensions");
    let binding = Resource::cluster::<MutatingAdmissionPolicyBinding>("mutatingadmissionpolicybinding")
        .strategy(super::admissionregistration::policy::MutatingAdmissionPolicyBindingStrategy)
        .category("api-extensions");
    let other_versions = [
        policy.also_as::<admissionregistration::v1beta1::MutatingAdmissionPolicy>(ADMISSION_V1BETA1),
        binding.also_as::<admissionregistration::v1beta1::MutatingAdmissionPolicyBinding>(ADMISSION_V1BETA1),
        policy.also_as::<admissionregistration::v1alpha1::MutatingAdmissionPolicy>(ADMISSION_V1ALPHA1),
        binding.also_as::<admissionregistration::v1alpha1::MutatingAdmissionPolicyBinding>(ADMISSION_V1ALPHA1),
    ];
    let mut rows = vec![
        policy,
        binding,
        Resource::cluster::<MutatingWebhookConfiguration>("mutatingwebhookconfiguration")
            .strategy(super::admissionregistration::webhook::MutatingWebhookStrategy)
            .category("api-extensions"),
        Resource::cluster::<ValidatingAdmissionPolicy>("validatingadmissionpolicy")
            .strategy(super::admissionregistration::policy::ValidatingAdmissionPolicyStrategy)
            .category("api-extensions")
            .status(),
        Resource::cluster::<ValidatingAdmissionPolicyBinding>("validatingadmissionpolicybinding")
            .strategy(super::admissionregistration::policy::ValidatingAdmissionPolicyBindingStrategy)
            .category("api-extensions"),
        Resource::cluster::<ValidatingWebhookConfiguration>("validatingwebhookconfiguration")
            .strategy(super::admissionregistration::webhook::ValidatingWebhookStrategy)
            .category("api-extensions"),
    ];
    rows.extend(other_versions);
    rows.push(
        Resource::cluster::<super::admissionregistration::initializer::InitializerConfiguration>(
            "initializerconfiguration",
        )
        .strategy(super::admissionregistration::initializer::InitializerConfigurationStrategy),
    );
    rows
}

fn apiextensions_group() -> Vec<Resource> {
    vec![
        Resource::cluster::<apiextensions::v1::CustomResourceDefinition>("customresourcedefinition")
            .strategy(super::apiextensions::custom_resource_definition::CustomResourceDefinitionStrategy)
            .short(&["crd", "crds"])
            .category("api-extensions")
            .status()
            .stored_under("apiextensions.k8s.io/customresourcedefinitions"),
    ]
}

fn scheduling_group() -> Vec<Resource> {
    vec![
        Resource::cluster::<scheduling::v1::PriorityClass>("priorityclass")
            .strategy(super::scheduling::priority_class::PriorityClassStrategy)
            .short(&["pc"]),
        Resource::namespaced::<scheduling::v1alpha2::PodGroup>("podgroup").status(),
        Resource::namespaced::<scheduling::v1alpha2::Workload>("workload"),
    ]
}

fn coordination_group() -> Vec<Resource> {
    let candidate = Resource::namespaced::<coordination::v1beta1::LeaseCandidate>("leasecandidate");
    let candidate_alpha = candidate.also_as::<coordination::v1alpha2::LeaseCandidate>(COORDINATION_V1ALPHA2);
    vec![
        Resource::namespaced::<coordination::v1::Lease>("lease").strategy(super::coordination::lease::LeaseStrategy),
        candidate,
        candidate_alpha,
    ]
}

fn node_group() -> Vec<Resource> {
    vec![
        Resource::cluster::<node::v1::RuntimeClass>("runtimeclass")
            .strategy(super::scheduling::runtime_class::RuntimeClassStrategy),
    ]
}

fn discovery_group() -> Vec<Resource> {
    vec![
        Resource::namespaced::<discovery::v1::EndpointSlice>("endpointslice")
            .strategy(super::discovery::endpoint_slice::EndpointSliceStrategy),
    ]
}

/// The v1beta1 shapes of claims and slices differ from v1 and are off by default: not served.
fn resource_group() -> Vec<Resource> {
    let class = Resource::cluster::<resource::v1::DeviceClass>("deviceclass")
        .returns_deleted()
        .strategy(dra::device_class::DeviceClassStrategy);
    let claim = Resource::namespaced::<resource::v1::ResourceClaim>("resourceclaim")
        .returns_deleted()
        .strategy(dra::claim::ResourceClaimStrategy)
        .status();
    let template = Resource::namespaced::<resource::v1::ResourceClaimTemplate>("resourceclaimtemplate")
        .returns_deleted()
        .strategy(dra::claim::ResourceClaimTemplateStrategy);
    let slice = Resource::cluster::<resource::v1::ResourceSlice>("resourceslice")
        .returns_deleted()
        .strategy(dra::slice::ResourceSliceStrategy);
    let beta = [
        class.also_as::<resource::v1beta2::DeviceClass>(RESOURCE_V1BETA2),
        claim.also_as::<resource::v1beta2::ResourceClaim>(RESOURCE_V1BETA2),
        template.also_as::<resource::v1beta2::ResourceClaimTemplate>(RESOURCE_V1BETA2),
        slice.also_as::<resource::v1beta2::ResourceSlice>(RESOURCE_V1BETA2),
    ];
    let rule = Resource::cluster::<resource::v1beta2::DeviceTaintRule>("devicetaintrule")
        .returns_deleted()
        .strategy(dra::taint_rule::DeviceTaintRuleStrategy)
        .status();
    let rule_alpha = rule.also_as::<resource::v1alpha3::DeviceTaintRule>(RESOURCE_V1ALPHA3);
    let mut rows = vec![class, claim, template, slice];
    rows.extend(beta);
    rows.extend([
        rule,
        rule_alpha,
        Resource::cluster::<resource::v1alpha3::ResourcePoolStatusRequest>("resourcepoolstatusrequest")
            .returns_deleted()
            .strategy(dra::pool_status_request::ResourcePoolStatusRequestStrategy)
            .status(),
    ]);
    rows
}

fn flowcontrol_group() -> Vec<Resource> {
    use flowcontrol::v1::*;
    vec![
        Resource::cluster::<FlowSchema>("flowschema")
            .strategy(super::flowcontrol::flow_schema::FlowSchemaStrategy)
            .status(),
        Resource::cluster::<PriorityLevelConfiguration>("prioritylevelconfiguration")
            .strategy(super::flowcontrol::priority_level::PriorityLevelStrategy)
            .status(),
    ]
}

fn internal_groups() -> Vec<Resource> {
    vec![
        Resource::cluster::<apiserverinternal::v1alpha1::StorageVersion>("storageversion").status(),
        Resource::cluster::<storagemigration::v1beta1::StorageVersionMigration>("storageversionmigration")
            .strategy(super::storagemigration::storage_version_migration::StorageVersionMigrationStrategy)
            .status(),
    ]
}

/// A conversion between versions of one group with the same fields: only `apiVersion` differs.
macro_rules! renamed {
    ($($name:ident: $served:literal <-> $stored:literal;)*) => {$(
        const $name: Conversion = Conversion::Fixed {
            to_storage: |object| set_api_version(object, $stored),
            from_storage: |object| set_api_version(object, $served),
        };
    )*};
}

renamed! {
    CERTIFICATES_V1ALPHA1: "certificates.k8s.io/v1alpha1" <-> "certificates.k8s.io/v1beta1";
    NETWORKING_V1BETA1: "networking.k8s.io/v1beta1" <-> "networking.k8s.io/v1";
    STORAGE_V1BETA1: "storage.k8s.io/v1beta1" <-> "storage.k8s.io/v1";
    ADMISSION_V1BETA1: "admissionregistration.k8s.io/v1beta1" <-> "admissionregistration.k8s.io/v1";
    ADMISSION_V1ALPHA1: "admissionregistration.k8s.io/v1alpha1" <-> "admissionregistration.k8s.io/v1";
    COORDINATION_V1ALPHA2: "coordination.k8s.io/v1alpha2" <-> "coordination.k8s.io/v1beta1";
    RESOURCE_V1BETA2: "resource.k8s.io/v1beta2" <-> "resource.k8s.io/v1";
    RESOURCE_V1ALPHA3: "resource.k8s.io/v1alpha3" <-> "resource.k8s.io/v1beta2";
}

fn set_api_version(object: &mut Value, version: &str) {
    if let Some(object) = object.as_object_mut() {
        object.insert("apiVersion".to_owned(), Value::from(version));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn rows_are_unique_and_complete() {
        let rows = resources();
        let mut seen = HashSet::new();
        for row in &rows {
            assert!(seen.insert((row.group.clone(), row.version.clone(), row.plural.clone())), "{row:?} twice");
            assert!(!row.singular.is_empty() && !row.kind.is_empty(), "{row:?}");
        }
        let stored = rows.iter().filter(|row| row.is_default() && row.serving == Serving::Stored).count();
        assert!(stored > 55, "{stored} stored resources");
    }

    /// What holds for every kind, whatever its strategy: nothing panics on objects that merely fit the schema, defaults
    /// are applied once and for all, each column has its cell, and neither encoding nor managed fields lose anything.
    #[test]
    fn every_strategy_is_sound_on_random_objects() {
        use api::patch::{apply, strategic};

        use crate::{Call, random};
        let user = api::UserInfo::anonymous();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let call = Call { user: &user, now };
        let mut counts = (0, 0);
        for row in resources().iter().filter(|row| row.serving == Serving::Stored) {
            let strategy = &row.strategy;
            let schema = strategy.schema();
            for seed in 0..12 {
                let fits = |seed| {
                    let mut value = random::object(&schema, seed);
                    let unknown =
                        strategy.normalize(&mut value).unwrap_or_else(|error| panic!("{row:?} {seed}: {error}"));
                    assert!(unknown.is_empty(), "{row:?} {seed}: {unknown:?}");
                    strategy.decode_value(value).unwrap_or_else(|error| panic!("{row:?} {seed}: {error}"))
                };
                let mut object = fits(seed);
                strategy.apply_defaults(&mut *object);
                let mut again = object.boxed_clone();
                strategy.apply_defaults(&mut *again);
                assert!(object.same(&*again), "{row:?} {seed}: defaults are not idempotent");
                strategy.prepare_for_create(&call, &mut *object);
                let _ = strategy.validate_create(&*object).to_string();
                let mut updated = fits(seed + 1);
                strategy.prepare_for_update(&call, &mut *updated, &*object);
                let _ = strategy.validate_update(&*updated, &*object).to_string();
                let mut status = fits(seed + 1);
                strategy.prepare_for_status_update(&call, &mut *status, &*object);
                let _ = strategy.validate_status_update(&*status, &*object, now).to_string();
                assert_eq!(strategy.cells(&*object, now).len(), strategy.column_definitions().len(), "{row:?}");
                let encoded = object.to_json().unwrap();
                let cells = strategy.cells_of(&encoded, now).unwrap();
                assert_eq!(cells, strategy.cells(&*object, now), "{row:?} {seed}: the text shows something else");
                let decoded = strategy.decode(&encoded).unwrap();
                assert!(decoded.same(&*object), "{row:?} {seed}: encoding is not stable");
                // A required quantity that is missing is the one thing that does not come back as it should be written.
                let fitting = strategy.decode_fitting(&encoded);
                counts = (counts.0 + u32::from(fitting.is_some()), counts.1 + 1);
                let is_same = fitting.is_none_or(|fitting| fitting.same(&*object));
                assert!(is_same, "{row:?} {seed}: the short way reads something else");

                let writer = apply::Writer { manager: "m", api_version: "v1", versions: None, subresource: "", now };
                let new = updated.to_json().unwrap();
                let create = apply::Write { live: None, new: &encoded, ignored: &[] };
                let recorded = apply::update(create, None, None, &schema, &writer);
                let update = apply::Write { live: Some(&encoded), new: &new, ignored: &[] };
                let _ = apply::update(update, recorded.as_deref(), None, &schema, &writer);
                let (live, new) = (object.to_value().unwrap(), updated.to_value().unwrap());
                let _ = apply::apply(Some(&live), &live, &schema, &writer, true, &[]);
                let mut patched = live.clone();
                let _ = strategic::apply(&mut patched, &new, &schema);
            }
        }
        assert!(counts.0 * 20 > counts.1 * 19, "nearly everything we write goes the short way: {counts:?}");
    }
}
