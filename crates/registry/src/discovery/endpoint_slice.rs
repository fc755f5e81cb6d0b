//! EndpointSlice: some of the addresses behind a Service.

use api::field::{FieldErrors, IMMUTABLE, Path};
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use serde_json::{Value, json};

use crate::address::{not_special, parse_canonical_ip, parse_ip};
use crate::column::Column;
use crate::core::pod_spec::validation::one_of;
use crate::unset::{items, items_mut, set_text, text};
use crate::{Strategy, cells};

pub struct EndpointSliceStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("AddressType", "What kind of addresses."),
    Column::string("Ports", "The ports of every endpoint."),
    Column::string("Endpoints", "The addresses."),
    Column::AGE,
];

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const SHOWN: usize = 3;

impl Strategy for EndpointSliceStrategy {
    type Object = EndpointSlice;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, slice: &mut EndpointSlice) {
        for endpoint in items_mut(&mut slice.endpoints) {
            endpoint.conditions.get_or_insert_default();
        }
        for port in items_mut(&mut slice.ports) {
            port.name.get_or_insert_default();
            set_text(&mut port.protocol, "TCP");
        }
    }

    fn validate_create(&self, slice: &EndpointSlice) -> FieldErrors {
        let mut errors = FieldErrors::default();
        type_and_ports(&mut errors, slice);
        endpoints(&mut errors, &Path::new("endpoints"), items(&slice.endpoints), &slice.address_type);
        errors
    }

    fn validate_update(&self, new: &EndpointSlice, old: &EndpointSlice) -> FieldErrors {
        let mut errors = FieldErrors::default();
        type_and_ports(&mut errors, new);
        if items(&new.endpoints) != items(&old.endpoints) {
            endpoints(&mut errors, &Path::new("endpoints"), items(&new.endpoints), &new.address_type);
        }
        if new.address_type != old.address_type {
            errors.invalid("addressType", &new.address_type, IMMUTABLE);
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, slice: &EndpointSlice, now: Timestamp) -> Vec<Value> {
        let ports: Vec<String> = items(&slice.ports)
            .iter()
            .map(|port| match (port.port, text(&port.name)) {
                (Some(number), _) => number.to_string(),
                (None, Some(name)) => name.to_owned(),
                (None, None) => "*".to_owned(),
            })
            .collect();
        let addresses: Vec<String> =
            items(&slice.endpoints).iter().flat_map(|endpoint| endpoint.addresses.iter().cloned()).collect();
        vec![
            cells::name(&slice.metadata),
            json!(slice.address_type),
            json!(first_few(&ports)),
            json!(first_few(&addresses)),
            cells::age(&slice.metadata, now),
        ]
    }
}

fn first_few(all: &[String]) -> String {
    match all.len() {
        0 => "<unset>".to_owned(),
        n if n > SHOWN => format!("{} + {} more...", all[..SHOWN].join(","), n - SHOWN),
        _ => all.join(","),
    }
}

fn type_and_ports(errors: &mut FieldErrors, slice: &EndpointSlice) {
    match slice.address_type.as_str() {
        "" => errors.required("addressType", ""),
        "IPv4" | "IPv6" | "FQDN" => {}
        other => errors.not_supported("addressType", other, &["IPv4", "IPv6", "FQDN"]),
    }
    ports(errors, &Path::new("ports"), items(&slice.ports));
}

fn endpoints(errors: &mut FieldErrors, path: &Path<'_>, endpoints: &[Endpoint], kind: &str) {
    if endpoints.len() > MAX_ENDPOINTS {
        errors.too_many(path, endpoints.len(), MAX_ENDPOINTS);
        return;
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        let path = path.index(i);
        let addresses = path.child("addresses");
        if endpoint.addresses.is_empty() {
            errors.required(addresses, "must contain at least 1 address");
        } else if endpoint.addresses.len() > MAX_ADDRESSES {
            errors.too_many(addresses, endpoint.addresses.len(), MAX_ADDRESSES);
        }
        for (i, address) in endpoint.addresses.iter().enumerate() {
            let path = addresses.index(i);
            let parsed = match kind {
                "IPv4" => parse_ip(address),
                "IPv6" => parse_canonical_ip(address),
                "FQDN" => {
                    errors.invalid_each(path, address, validation::dns1123_subdomain(address));
                    continue;
                }
                _ => continue,
            };
            match parsed {
                Err(error) => errors.invalid(path, address, error.to_string()),
                Ok(ip) => {
                    if ip.is_ipv4() != (kind == "IPv4") {
                        errors.invalid(addresses, address, format!("must be an {kind} address"));
                    }
                    not_special(errors, &path, address);
                }
            }
        }
        if let Some(node) = text(&endpoint.node_name) {
            errors.invalid_each(path.child("nodeName"), node, validation::dns1123_subdomain(node));
        }
        if let Some(hostname) = &endpoint.hostname {
            errors.invalid_each(path.child("hostname"), hostname, validation::dns1123_label(hostname));
        }
    }
}

fn ports(errors: &mut FieldErrors, path: &Path<'_>, ports: &[EndpointPort]) {
    if ports.len() > MAX_PORTS {
        errors.too_many(path, ports.len(), MAX_PORTS);
        return;
    }
    let mut names = std::collections::BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = port.name.as_deref().unwrap_or_default();
        if !name.is_empty() {
            errors.invalid_each(path.child("name"), name, validation::dns1123_label(name));
        }
        if !names.insert(name) {
            errors.duplicate(path.child("name"), name);
        }
        one_of(errors, &path.child("protocol"), &port.protocol, &["SCTP", "TCP", "UDP"]);
        if let Some(protocol) = text(&port.app_protocol) {
            errors.invalid_each(path.child("appProtocol"), protocol, validation::qualified_name(protocol));
        }
    }
}
