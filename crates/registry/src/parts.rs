//! Which kinds carry a `status`, so that the generic verbs can keep spec and status apart.
//!
//! A write to the main resource never changes the status, and a write to `/status` changes nothing but the status
//! (and metadata). One macro row per kind is all that is needed for both, and for the code that writes the kind
//! (`api::schema::Encode`).

use api::read::Read;
use k8s_openapi::api::*;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

pub trait Parts: Read {
    /// The object as JSON, with the zero values that upstream writes and without those that it leaves out.
    fn write_json(&self) -> serde_json::Result<Vec<u8>>;
    /// Takes over the status of `from`; nothing for kinds without one.
    fn copy_status(&mut self, from: &Self);
    /// Forgets the status, as a create through the main resource does.
    fn clear_status(&mut self);
    /// Makes a status that says nothing yet, because upstream writes no object of such a kind without one.
    fn fill_status(&mut self) {}
}

/// How the built-in kind around it is written.
macro_rules! write_json {
    () => {
        fn write_json(&self) -> serde_json::Result<Vec<u8>> {
            api::schema::Encode::encode(self)
        }
    };
}

macro_rules! parts_of {
    ($kind:ty, |$object:ident| $fill:block) => {
        impl Parts for $kind {
            write_json!();
            fn copy_status(&mut self, from: &Self) {
                self.status.clone_from(&from.status);
            }
            fn clear_status(&mut self) {
                self.status = Default::default();
            }
            fn fill_status(&mut self) {
                let $object = self;
                $fill
            }
        }
    };
}

/// Rows of a kind and, where its status always holds something, what that is.
macro_rules! with_status {
    ($($kind:ty $(: |$status:ident| $fill:block)?),* $(,)?) => {$(
        parts_of!($kind, |object| {
            let _status = object.status.get_or_insert_default();
            $(
                let $status = _status;
                $fill
            )?
        });
    )*};
}

/// A status that upstream leaves out too while it is absent, or that cannot be absent.
macro_rules! with_status_as_given {
    ($($kind:ty),* $(,)?) => {$(parts_of!($kind, |_object| {});)*};
}

macro_rules! without_status {
    ($($kind:ty),* $(,)?) => {$(
        impl Parts for $kind {
            write_json!();
            fn copy_status(&mut self, _: &Self) {}
            fn clear_status(&mut self) {}
        }
    )*};
}

with_status! {
    core::v1::Namespace,
    core::v1::Node: |status| {
        status.daemon_endpoints.get_or_insert_default().kubelet_endpoint.get_or_insert_default();
        status.node_info.get_or_insert_default();
    },
    core::v1::PersistentVolume, core::v1::PersistentVolumeClaim, core::v1::Pod,
    core::v1::ReplicationController, core::v1::ResourceQuota,
    core::v1::Service: |status| {
        status.load_balancer.get_or_insert_default();
    },
    apps::v1::DaemonSet, apps::v1::Deployment, apps::v1::ReplicaSet,
    apps::v1::StatefulSet: |status| {
        status.available_replicas.get_or_insert_default();
    },
    autoscaling::v1::HorizontalPodAutoscaler, autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::CronJob, batch::v1::Job,
    certificates::v1::CertificateSigningRequest, certificates::v1beta1::PodCertificateRequest,
    networking::v1::Ingress: |status| {
        status.load_balancer.get_or_insert_default();
    },
    networking::v1::ServiceCIDR,
    policy::v1::PodDisruptionBudget: |status| {
        status.current_healthy.get_or_insert_default();
        status.desired_healthy.get_or_insert_default();
        status.disruptions_allowed.get_or_insert_default();
        status.expected_pods.get_or_insert_default();
    },
    storage::v1::VolumeAttachment,
    admissionregistration::v1::ValidatingAdmissionPolicy,
    CustomResourceDefinition,
    APIService,
    scheduling::v1alpha2::PodGroup,
    resource::v1::ResourceClaim, resource::v1beta2::DeviceTaintRule,
    flowcontrol::v1::FlowSchema, flowcontrol::v1::PriorityLevelConfiguration,
    storagemigration::v1beta1::StorageVersionMigration,
    // Bodies of subresources, which admission sees.
    authentication::v1::TokenRequest, autoscaling::v1::Scale,
}

with_status_as_given! { resource::v1alpha3::ResourcePoolStatusRequest, apiserverinternal::v1alpha1::StorageVersion }

without_status! {
    core::v1::ConfigMap, core::v1::Endpoints, core::v1::Event, core::v1::LimitRange, core::v1::PodTemplate,
    core::v1::Secret, core::v1::ServiceAccount,
    apps::v1::ControllerRevision,
    certificates::v1beta1::ClusterTrustBundle,
    networking::v1::IngressClass, networking::v1::IPAddress, networking::v1::NetworkPolicy,
    rbac::v1::ClusterRole, rbac::v1::ClusterRoleBinding, rbac::v1::Role, rbac::v1::RoleBinding,
    storage::v1::CSIDriver, storage::v1::CSINode, storage::v1::CSIStorageCapacity, storage::v1::StorageClass,
    storage::v1::VolumeAttributesClass,
    admissionregistration::v1::MutatingAdmissionPolicy, admissionregistration::v1::MutatingAdmissionPolicyBinding,
    admissionregistration::v1::MutatingWebhookConfiguration, admissionregistration::v1::ValidatingAdmissionPolicyBinding,
    admissionregistration::v1::ValidatingWebhookConfiguration,
    scheduling::v1::PriorityClass, scheduling::v1alpha2::Workload,
    coordination::v1::Lease, coordination::v1beta1::LeaseCandidate,
    node::v1::RuntimeClass,
    discovery::v1::EndpointSlice,
    // Bodies of subresources, which admission sees.
    core::v1::Binding, policy::v1::Eviction,
    resource::v1::DeviceClass, resource::v1::ResourceClaimTemplate, resource::v1::ResourceSlice,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn filled<K: Parts + Default + serde::Serialize>() -> Value {
        let mut object = K::default();
        object.fill_status();
        serde_json::to_value(&object).unwrap().get("status").cloned().unwrap_or_default()
    }

    #[test]
    fn a_status_that_says_nothing_reads_like_upstreams() {
        for (status, expected) in [
            (filled::<core::v1::Service>(), json!({"loadBalancer": {}})),
            (filled::<networking::v1::Ingress>(), json!({"loadBalancer": {}})),
            (filled::<apps::v1::Deployment>(), json!({})),
            (filled::<apps::v1::ReplicaSet>(), json!({"replicas": 0})),
            (filled::<apps::v1::StatefulSet>(), json!({"replicas": 0, "availableReplicas": 0})),
            (filled::<batch::v1::Job>(), json!({})),
            (filled::<storage::v1::VolumeAttachment>(), json!({"attached": false})),
            (filled::<resource::v1alpha3::ResourcePoolStatusRequest>(), Value::Null),
            (filled::<core::v1::ConfigMap>(), Value::Null),
        ] {
            assert_eq!(status, expected);
        }
        assert_eq!(filled::<core::v1::Node>()["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 0}}));
    }
}
