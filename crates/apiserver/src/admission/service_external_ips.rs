//! DenyServiceExternalIPs: external IPs let a service catch traffic meant for others; no new ones.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;

use super::{Admitted, Attributes, Plugin, admitted};
use crate::cluster::Cluster;

pub(super) struct DenyServiceExternalIPs;

impl Plugin for DenyServiceExternalIPs {
    fn validate<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if !attributes.writes("", "services") {
            return admitted();
        }
        let old = attributes.old_ref::<Service>().map(addresses).unwrap_or_default();
        let new = attributes.object_ref::<Service>().map(addresses).unwrap_or_default();
        if new.iter().all(|address| old.contains(address)) {
            return admitted();
        }
        Err(attributes.forbidden("Use of external IPs is denied by admission control")).into()
    }
}

fn addresses(service: &Service) -> &[String] {
    service.spec.as_ref().and_then(|spec| spec.external_ips.as_deref()).unwrap_or_default()
}
