//! What the status of a service of type LoadBalancer says.

use k8s_openapi::api::core::v1::{LoadBalancerIngress, PortStatus};

/// Whether the nodes take what is sent to a port of this address for the service's. Not if it arrives there with another destination
/// (`Proxy`). An address that names its ports has no others, whatever the service asks for.
pub fn is_answered(ingress: &LoadBalancerIngress, protocol: &str, port: i32) -> bool {
    let is_this = |known: &PortStatus| known.port == port && known.error.is_none() && known.protocol == protocol;
    ingress.ip_mode.as_deref() != Some("Proxy")
        && ingress.ports.as_ref().is_none_or(|ports| ports.is_empty() || ports.iter().any(is_this))
}
