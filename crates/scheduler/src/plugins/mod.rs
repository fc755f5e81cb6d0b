//! The plug-ins, one file each, and the table of them.

mod args;
pub(crate) mod balanced_allocation;
pub(crate) mod default_binder;
pub(crate) mod default_preemption;
pub(crate) mod image_locality;
pub(crate) mod inter_pod_affinity;
pub(crate) mod node_affinity;
pub(crate) mod node_name;
pub(crate) mod node_ports;
pub(crate) mod node_resources;
pub(crate) mod node_resources_fit;
pub(crate) mod node_unschedulable;
pub(crate) mod node_volume_limits;
pub(crate) mod pod_topology_spread;
pub(crate) mod priority_sort;
pub(crate) mod scheduling_gates;
pub(crate) mod taint_toleration;
pub(crate) mod volume_binding;
pub(crate) mod volume_restrictions;
pub(crate) mod volume_zone;

use std::sync::Arc;

use client::Client;

use crate::framework::Plugin;
use crate::pod::Catalogue;
use args::ArgsError;

/// What plug-ins are made from besides their arguments.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) catalogue: Arc<Catalogue>,
    /// None where decisions are made but nothing is written.
    pub(crate) client: Option<Client>,
    pub(crate) volumes: Option<volume_binding::Api>,
    /// Resources that extenders alone look after.
    pub(crate) ignored_resources: Vec<String>,
}

type Make = fn(Option<&serde_json::Value>, &Context) -> Result<Arc<dyn Plugin>, ArgsError>;

/// Every plug-in: its name, its weight in the default profile (0 where it does not score), and how it is made from its
/// arguments. The order is that of the default profile.
pub(crate) const PLUGINS: &[(&str, i64, Make)] = &[
    ("SchedulingGates", 0, |_, _| Ok(Arc::new(scheduling_gates::SchedulingGates))),
    ("PrioritySort", 0, |_, _| Ok(Arc::new(priority_sort::PrioritySort))),
    ("NodeUnschedulable", 0, |_, _| Ok(Arc::new(node_unschedulable::NodeUnschedulable))),
    ("NodeName", 0, |_, _| Ok(Arc::new(node_name::NodeName))),
    ("TaintToleration", 3, |_, _| Ok(Arc::new(taint_toleration::TaintToleration))),
    ("NodeAffinity", 2, |given, _| Ok(Arc::new(args::node_affinity(given)?))),
    ("NodePorts", 0, |_, _| Ok(Arc::new(node_ports::NodePorts))),
    ("NodeResourcesFit", 1, |given, context| {
        let mut plugin = args::node_resources_fit(given, &context.catalogue)?;
        plugin.ignored.extend(context.ignored_resources.iter().cloned());
        Ok(Arc::new(plugin))
    }),
    ("VolumeRestrictions", 0, |_, _| Ok(Arc::new(volume_restrictions::VolumeRestrictions))),
    ("NodeVolumeLimits", 0, |_, _| Ok(Arc::new(node_volume_limits::NodeVolumeLimits))),
    ("VolumeBinding", 0, |given, context| Ok(Arc::new(args::volume_binding(given, context.volumes.clone())?))),
    ("VolumeZone", 0, |_, _| Ok(Arc::new(volume_zone::VolumeZone))),
    ("PodTopologySpread", 2, |given, _| Ok(Arc::new(args::pod_topology_spread(given)?))),
    ("InterPodAffinity", 2, |given, _| Ok(Arc::new(args::inter_pod_affinity(given)?))),
    ("DefaultPreemption", 0, |given, _| Ok(Arc::new(args::default_preemption(given)?))),
    ("NodeResourcesBalancedAllocation", 1, |given, context| {
        Ok(Arc::new(args::balanced_allocation(given, &context.catalogue)?))
    }),
    ("ImageLocality", 1, |_, _| Ok(Arc::new(image_locality::ImageLocality))),
    ("DefaultBinder", 0, |_, context| Ok(Arc::new(default_binder::DefaultBinder { client: context.client.clone() }))),
];
