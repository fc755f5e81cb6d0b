//! `metrics.k8s.io`: what nodes and pods use. Measured when somebody asks, never stored.

use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};

pub const GROUP: &str = "metrics.k8s.io";
pub const VERSION: &str = "v1beta1";

/// What a node uses.
pub struct NodeMetrics;

/// What the containers of a pod use.
pub struct PodMetrics;

impl k8s_openapi::Resource for NodeMetrics {
    const API_VERSION: &'static str = "metrics.k8s.io/v1beta1";
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "NodeMetrics";
    const VERSION: &'static str = VERSION;
    const URL_PATH_SEGMENT: &'static str = "nodes";
    type Scope = ClusterResourceScope;
}

impl k8s_openapi::Resource for PodMetrics {
    const API_VERSION: &'static str = "metrics.k8s.io/v1beta1";
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "PodMetrics";
    const VERSION: &'static str = VERSION;
    const URL_PATH_SEGMENT: &'static str = "pods";
    type Scope = NamespaceResourceScope;
}
