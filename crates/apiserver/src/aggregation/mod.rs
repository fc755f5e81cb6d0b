//! Aggregation: who serves which version of which group, as APIService objects say.
//!
//! Flow: the watch cache of registrations -> `api_services`, which keeps [`Aggregation`] in line with them -> the chain, which
//! hands a request to its [`backend`] once it knows who asks and that they may. [`remote_discovery`] asks what a server
//! offers, from which `discovery` makes one picture. Invariants: only this server says who a client is; a request that
//! comes back to it ends; with no backend registered nothing runs and a request looks at one flag.

mod backend;
mod backends;
pub(crate) mod remote_discovery;

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceCondition};
use registry::unset::items;

pub(crate) use backend::{Backend, Forwarding};
pub(crate) use backends::Aggregation;

use crate::watch_cache::Caches;

/// Where registrations are stored, and where they are served.
pub(crate) const PREFIX: &str = "apiregistration.k8s.io/apiservices";
pub(crate) const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// What an APIService says about its availability.
pub(crate) fn condition(service: &APIService) -> Option<&APIServiceCondition> {
    let conditions = service.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
    conditions.iter().find(|condition| condition.type_ == "Available")
}

/// Which registrations cannot be used at present.
pub(crate) fn render_metrics(caches: &Caches, out: &mut String) {
    use std::fmt::Write;
    let Some(cache) = caches.get(PREFIX) else { return };
    out.push_str("# HELP aggregator_unavailable_apiservice [ALPHA] Whether an API service cannot be used, by name.\n");
    out.push_str("# TYPE aggregator_unavailable_apiservice gauge\n");
    for entry in cache.snapshot().objects.values() {
        let service = entry.read::<APIService>();
        let is_available =
            service.as_deref().ok().and_then(condition).is_some_and(|condition| condition.status == "True");
        let value = u8::from(!is_available);
        let _ = writeln!(out, "aggregator_unavailable_apiservice{{name=\"{}\"}} {value}", entry.name());
    }
}
