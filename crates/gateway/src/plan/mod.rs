//! Decides: objects -> routing table, statuses and news. Pure: the same objects always make the same plan.

mod addresses;
mod backend_tls;
mod backends;
mod builder;
mod conditions;
mod filters;
mod gateways;
mod grants;
mod ingresses;
mod routes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::cidr::Cidr;
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::Value;

use crate::table::{Bind, Table};
use crate::world::World;

/// Who we are to IngressClasses, and to GatewayClasses.
pub const INGRESS_CONTROLLER: &str = "cox.dev/ingress";
pub const GATEWAY_CONTROLLER: &str = "cox.dev/gateway";
/// The classes that `cox up` makes.
pub const CLASS: &str = "cox";

/// What the plan is made for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where clients reach the gateway; written into statuses.
    pub addresses: Vec<IpAddr>,
    /// Addresses of which each Gateway gets some for itself; without any, Gateways share those of the gateway.
    pub pool: Vec<Cidr>,
    /// Addresses of the pool that no Gateway gets, because this machine has them for something else.
    pub taken: BTreeSet<IpAddr>,
    pub node: String,
    /// The ports of Ingresses.
    pub http_port: u16,
    pub https_port: u16,
    /// Ports that no Gateway gets, free or not.
    pub reserved_ports: BTreeSet<u16>,
    /// Ports that could not be opened, and why.
    pub closed_ports: BTreeMap<Bind, String>,
    /// Stands in for the time in conditions that change.
    pub now: jiff::Timestamp,
}

#[derive(Default)]
pub struct Plan {
    pub table: Table,
    pub statuses: Vec<Status>,
    pub news: Vec<News>,
}

/// A status that is not as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub kind: Kind,
    pub namespace: Option<String>,
    pub name: String,
    /// The object that the status is about: if it has changed since, the status is made anew.
    pub resource_version: Option<String>,
    pub status: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Ingress,
    GatewayClass,
    Gateway,
    HttpRoute,
    GrpcRoute,
    TlsRoute,
    BackendTlsPolicy,
}

/// Something that its author should know: an event of type Warning.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    pub about: ObjectReference,
    pub reason: &'static str,
    pub message: String,
}

/// Everything that follows from what is known.
pub fn plan(world: &World, settings: &Settings) -> Plan {
    let mut plan = Plan::default();
    let mut builder = builder::Builder::default();
    let gateways = addresses::assign(gateways::ours(world), settings);
    let mut backends = backends::Backends::new(world, settings, gateways::shared_ports(&gateways, settings));
    let claims = ingresses::plan(world, settings, &mut backends, &mut builder, &mut plan);
    gateways::plan(world, settings, (&gateways[..], &claims[..]), &mut backends, &mut builder, &mut plan);
    plan.table = builder.finish();
    plan.table.owners = addresses::owners(&gateways);
    plan.statuses.extend(backends.policies.statuses(world, settings));
    plan.table.endpoints = backends.endpoints();
    plan.table.tls = backends.tls_ids();
    plan
}
