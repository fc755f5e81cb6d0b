//! Endpoints: the addresses behind a Service, in the old form.

use api::field::{FieldErrors, Path};
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EndpointSubset, Endpoints};
use serde_json::{Value, json};

use super::pod_spec::validation::one_of;
use crate::column::Column;
use crate::unset::{items, items_mut, set_text, text};
use crate::{Strategy, cells};

pub struct EndpointsStrategy;

const COLUMNS: &[Column] =
    &[Column::NAME, Column::string("Endpoints", "The addresses behind the service."), Column::AGE];

impl Strategy for EndpointsStrategy {
    type Object = Endpoints;
    const CREATES_ON_UPDATE: bool = true;

    fn deprecation(&self) -> Option<&str> {
        Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
    }

    fn apply_defaults(&self, endpoints: &mut Endpoints) {
        for subset in items_mut(&mut endpoints.subsets) {
            for port in items_mut(&mut subset.ports) {
                set_text(&mut port.protocol, "TCP");
            }
        }
    }

    fn validate_create(&self, endpoints: &Endpoints) -> FieldErrors {
        let mut errors = FieldErrors::default();
        for (i, subset) in items(&endpoints.subsets).iter().enumerate() {
            validate_subset(&mut errors, &Path::new("subsets").index(i), subset);
        }
        errors
    }

    fn validate_update(&self, new: &Endpoints, old: &Endpoints) -> FieldErrors {
        if new.subsets == old.subsets { FieldErrors::default() } else { self.validate_create(new) }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, endpoints: &Endpoints, now: Timestamp) -> Vec<Value> {
        const SHOWN: usize = 3;
        let mut all = Vec::new();
        for subset in items(&endpoints.subsets) {
            let ports = items(&subset.ports);
            for address in items(&subset.addresses) {
                if ports.is_empty() {
                    all.push(address.ip.clone());
                }
            }
            for port in ports {
                all.extend(items(&subset.addresses).iter().map(|address| {
                    if address.ip.contains(':') {
                        format!("[{}]:{}", address.ip, port.port)
                    } else {
                        format!("{}:{}", address.ip, port.port)
                    }
                }));
            }
        }
        let shown = match all.len() {
            0 => "<none>".to_owned(),
            n if n > SHOWN => format!("{} + {} more...", all[..SHOWN].join(","), n - SHOWN),
            _ => all.join(","),
        };
        vec![cells::name(&endpoints.metadata), json!(shown), cells::age(&endpoints.metadata, now)]
    }
}

fn validate_subset(errors: &mut FieldErrors, path: &Path<'_>, subset: &EndpointSubset) {
    let (ready, not_ready) = (items(&subset.addresses), items(&subset.not_ready_addresses));
    if ready.is_empty() && not_ready.is_empty() {
        errors.required(path, "must specify `addresses` or `notReadyAddresses`");
    }
    for (name, addresses) in [("addresses", ready), ("notReadyAddresses", not_ready)] {
        for (i, address) in addresses.iter().enumerate() {
            let path = path.child(name);
            let path = path.index(i);
            crate::address::ordinary(errors, &path.child("ip"), &address.ip);
            if let Some(hostname) = text(&address.hostname) {
                errors.invalid_each(path.child("hostname"), hostname, validation::dns1123_label(hostname));
            }
            if let Some(node) = text(&address.node_name) {
                errors.invalid_each(path.child("nodeName"), node, validation::dns1123_subdomain(node));
            }
        }
    }
    let ports = items(&subset.ports);
    for (i, port) in ports.iter().enumerate() {
        let path = path.child("ports");
        let path = path.index(i);
        match text(&port.name) {
            None if ports.len() > 1 => errors.required(path.child("name"), ""),
            None => {}
            Some(name) => errors.invalid_each(path.child("name"), name, validation::dns1123_label(name)),
        }
        errors.invalid_each(path.child("port"), port.port, validation::port_number(i64::from(port.port)));
        one_of(errors, &path.child("protocol"), &port.protocol, &["SCTP", "TCP", "UDP"]);
    }
}
