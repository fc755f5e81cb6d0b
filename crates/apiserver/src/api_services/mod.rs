//! APIService objects: those of this server itself, and what becomes of the others.
//!
//! Flow: [`local`] registers what this server serves itself. The watch cache of registrations -> [`backends`] (who serves
//! the rest), from where `aggregation` has them. [`availability`] says in each registration whether its server can be
//! used. [`trust`] publishes what such servers need to know.

mod availability;
mod backends;
pub(crate) mod local;
pub(crate) mod trust;

use std::sync::Arc;

use api::Status;
use http::HeaderValue;
use http::header::USER_AGENT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use registry::apiregistration::api_service::Availability;
use registry::{AnyObject, Object, Verb};

pub(crate) use backends::run;

use crate::stamp::now;
use crate::state::{State, own_operation};
use crate::verbs::{Current, Target, modify};

/// Says in an APIService whether it can be used. Nothing is written if it says so already.
async fn write_status(state: &Arc<State>, name: &str, found: Availability<'_>) -> Result<(), Status> {
    let row = state.registry.find_any("apiregistration.k8s.io", "apiservices");
    let row = row.ok_or_else(|| Status::internal("API services are not served"))?;
    let mut operation = own_operation(state, Verb::Patch, &row, "", name, "status");
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
