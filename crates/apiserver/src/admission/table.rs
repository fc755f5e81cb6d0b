//! The one table of plug-ins: upstream's names, in upstream's order, and whether each is on by default.
//!
//! Order matters twice: later plug-ins see what earlier ones made of the object, and of several refusals the first one
//! is shown. Policies and webhooks come after everything built in, and ResourceQuota last, because it charges what it admits.

use super::config::Setting;
use super::*;

type Make = fn(Setting) -> anyhow::Result<Box<dyn Plugin>>;

pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) default: bool,
    pub(super) make: Make,
}

const fn on(name: &'static str, make: Make) -> Row {
    Row { name, default: true, make }
}

const fn off(name: &'static str, make: Make) -> Row {
    Row { name, default: false, make }
}

pub(super) const TABLE: &[Row] = &[
    off("AlwaysAdmit", |_| Ok(Box::new(always::AlwaysAdmit))),
    off("NamespaceAutoProvision", |_| Ok(Box::new(namespace_exists::NamespaceAutoProvision))),
    on("NamespaceLifecycle", |_| Ok(Box::new(namespace_lifecycle::NamespaceLifecycle))),
    off("NamespaceExists", |_| Ok(Box::new(namespace_exists::NamespaceExists))),
    off("LimitPodHardAntiAffinityTopology", |_| Ok(Box::new(pod_anti_affinity::LimitPodHardAntiAffinityTopology))),
    // Of the seeds; before LimitRanger, whose defaults are for what nothing is known about.
    off("InitialResources", |setting| Ok(Box::new(initial_resources::InitialResources::new(setting)?))),
    on("LimitRanger", |_| Ok(Box::new(limit_ranger::LimitRanger))),
    on("ServiceAccount", |_| Ok(Box::new(service_account::ServiceAccount))),
    off("NodeRestriction", |_| Ok(Box::new(node_restriction::NodeRestriction))),
    on("TaintNodesByCondition", |_| Ok(Box::new(taint_nodes::TaintNodesByCondition))),
    off("AlwaysPullImages", |_| Ok(Box::new(always_pull_images::AlwaysPullImages))),
    off("ImagePolicyWebhook", |setting| Ok(Box::new(image_policy::ImagePolicyWebhook::new(setting)?))),
    on("PodSecurity", |setting| Ok(Box::new(pod_security::PodSecurity::new(setting)?))),
    off("PodNodeSelector", |setting| Ok(Box::new(pod_node_selector::PodNodeSelector::new(setting)?))),
    on("Priority", |_| Ok(Box::new(priority::Priority))),
    on("DefaultTolerationSeconds", |_| Ok(Box::new(default_toleration_seconds::DefaultTolerationSeconds))),
    off("PodTolerationRestriction", |setting| {
        Ok(Box::new(pod_toleration_restriction::PodTolerationRestriction::new(setting)?))
    }),
    off("EventRateLimit", |setting| Ok(Box::new(event_rate_limit::EventRateLimit::new(setting)?))),
    off("ExtendedResourceToleration", |_| Ok(Box::new(extended_resource_toleration::ExtendedResourceToleration))),
    on("DefaultStorageClass", |_| Ok(Box::new(default_storage_class::DefaultStorageClass))),
    on("StorageObjectInUseProtection", |_| Ok(Box::new(storage_protection::StorageObjectInUseProtection))),
    off("OwnerReferencesPermissionEnforcement", |_| {
        Ok(Box::new(owner_references::OwnerReferencesPermissionEnforcement))
    }),
    on("PersistentVolumeClaimResize", |_| Ok(Box::new(volume_claim_resize::PersistentVolumeClaimResize))),
    on("RuntimeClass", |_| Ok(Box::new(runtime_class::RuntimeClass))),
    on("CertificateApproval", |_| Ok(Box::new(certificates::CertificateApproval))),
    on("CertificateSigning", |_| Ok(Box::new(certificates::CertificateSigning))),
    on("ClusterTrustBundleAttest", |_| Ok(Box::new(certificates::ClusterTrustBundleAttest))),
    on("CertificateSubjectRestriction", |_| Ok(Box::new(certificates::CertificateSubjectRestriction))),
    on("DefaultIngressClass", |_| Ok(Box::new(default_ingress_class::DefaultIngressClass))),
    off("DenyServiceExternalIPs", |_| Ok(Box::new(service_external_ips::DenyServiceExternalIPs))),
    on("PodTopologyLabels", |_| Ok(Box::new(pod_topology_labels::PodTopologyLabels))),
    // What they check belongs to features that are off here (`api::features`): GenericWorkload and NodeDeclaredFeatures.
    on("PodGroupProtection", |_| Ok(Box::new(always::AlwaysAdmit))),
    on("PodGroupWorkloadExists", |_| Ok(Box::new(always::AlwaysAdmit))),
    on("NodeDeclaredFeatureValidator", |_| Ok(Box::new(always::AlwaysAdmit))),
    on("JobValidation", |_| Ok(Box::new(always::AlwaysAdmit))),
    on("PodResizeValidator", |_| Ok(Box::new(pod_resize::PodResizeValidator))),
    on("MutatingAdmissionPolicy", |_| Ok(Box::new(policy::MutatingPolicy::default()))),
    on("MutatingAdmissionWebhook", |setting| Ok(Box::new(webhook::MutatingWebhook::new(setting)?))),
    // Of the seeds; does nothing unless its configurations are served.
    on("Initializers", |_| Ok(Box::new(initializers::Initializers::default()))),
    on("ValidatingAdmissionPolicy", |_| Ok(Box::new(policy::ValidatingPolicy::default()))),
    on("ValidatingAdmissionWebhook", |setting| Ok(Box::new(webhook::ValidatingWebhook::new(setting)?))),
    on("ResourceQuota", |setting| Ok(Box::new(resource_quota::ResourceQuota::new(setting)?))),
    off("AlwaysDeny", |_| Ok(Box::new(always::AlwaysDeny))),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The plug-ins of v1.36 that are on.
    const UPSTREAM_ON: &str = "
        CertificateApproval CertificateSigning CertificateSubjectRestriction ClusterTrustBundleAttest
        DefaultIngressClass DefaultStorageClass DefaultTolerationSeconds JobValidation LimitRanger
        MutatingAdmissionPolicy MutatingAdmissionWebhook NamespaceLifecycle NodeDeclaredFeatureValidator
        PersistentVolumeClaimResize PodGroupProtection PodGroupWorkloadExists PodResizeValidator PodSecurity
        PodTopologyLabels Priority ResourceQuota RuntimeClass ServiceAccount StorageObjectInUseProtection
        TaintNodesByCondition ValidatingAdmissionPolicy ValidatingAdmissionWebhook
    ";

    /// Those that are off.
    const UPSTREAM_OFF: &str = "
        AlwaysAdmit AlwaysDeny AlwaysPullImages DenyServiceExternalIPs EventRateLimit ExtendedResourceToleration
        ImagePolicyWebhook LimitPodHardAntiAffinityTopology NamespaceAutoProvision NamespaceExists
        NodeRestriction OwnerReferencesPermissionEnforcement PodNodeSelector PodTolerationRestriction
    ";

    #[test]
    fn every_plug_in_of_upstream_is_known_and_on_where_it_is_there() {
        for (names, is_on) in [(UPSTREAM_ON, true), (UPSTREAM_OFF, false)] {
            for name in names.split_whitespace() {
                let row = TABLE.iter().find(|row| row.name == name);
                assert_eq!(row.map(|row| row.default), Some(is_on), "{name}");
            }
        }
    }
}
