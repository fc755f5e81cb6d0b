//! Aggregation: who serves which version of which group, as APIService objects say.
//!
//! Flow: [`local`] registers what this server serves itself. The watch cache of registrations -> [`backends`] (who serves
//! the rest) -> the chain, which hands a request to its [`backend`] once it knows who asks and that they may.
//! [`availability`] says in each registration whether its server can be used, and [`remote_discovery`] asks what it
//! offers, from which `discovery` makes one picture. [`trust`] publishes what such servers need to know. Invariants: only this server says who a client is; a request that
//! comes back to it ends; with no backend registered nothing runs and a request looks at one flag.

mod availability;
mod backend;
mod backends;
pub(crate) mod local;
mod remote_discovery;
pub(crate) mod trust;

use std::sync::Arc;

use api::Status;
use http::HeaderValue;
use http::header::USER_AGENT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceCondition};

pub(crate) use backend::Backend;
pub(crate) use backends::{Aggregation, run};

use crate::registry::apiregistration::api_service::Availability;
use crate::registry::unset::items;
use crate::registry::{AnyObject, Object};
use crate::state::{State, now, own_operation};
use crate::verbs::{Current, Target, modify};

/// Where registrations are stored, and where they are served.
pub(crate) const PREFIX: &str = "apiregistration.k8s.io/apiservices";
const PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// What an APIService says about its availability.
fn condition(service: &APIService) -> Option<&APIServiceCondition> {
    let conditions = service.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
    conditions.iter().find(|condition| condition.type_ == "Available")
}

/// Which registrations cannot be used at present.
pub(crate) fn render_metrics(state: &State, out: &mut String) {
    use std::fmt::Write;
    let Some(cache) = state.caches.get(PREFIX) else { return };
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

/// Says in an APIService whether it can be used. Nothing is written if it says so already.
async fn write_status(state: &Arc<State>, name: &str, found: Availability<'_>) -> Result<(), Status> {
    let row = state.registry.find_any("apiregistration.k8s.io", "apiservices");
    let row = row.ok_or_else(|| Status::internal("API services are not served"))?;
    let mut operation = own_operation(state, "patch", &row, "", name, "status");
    operation.headers.insert(USER_AGENT, HeaderValue::from_static("kube-apiserver"));
    let make = |_: &Current<'_>, old: &dyn Object| -> Result<AnyObject, Status> {
        let old = old.downcast_ref::<APIService>();
        let mut service = old.cloned().ok_or_else(|| Status::internal("not an API service"))?;
        service.metadata.resource_version = None;
        found.write(&mut service, Time(now()));
        Ok(Box::new(service))
    };
    match modify(&operation, Target::Status, make).await {
        Err(status) if !status.is_not_found() => Err(status),
        _ => Ok(()),
    }
}
