//! NetworkPolicy: who may talk to whom.

use api::field::{FieldErrors, Path};
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::column::Column;
use crate::core::node::is_cidr;
use crate::metadata::label_selector;
use crate::unset::{items, items_mut, set_text, text};
use crate::{Strategy, cells};

pub struct NetworkPolicyStrategy;

const COLUMNS: &[Column] =
    &[Column::NAME, Column::string("Pod-Selector", "Which pods the policy is about."), Column::AGE];

impl Strategy for NetworkPolicyStrategy {
    type Object = NetworkPolicy;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, policy: &mut NetworkPolicy) {
        let Some(spec) = &mut policy.spec else { return };
        spec.pod_selector.get_or_insert_default();
        if items(&spec.policy_types).is_empty() {
            let mut types = vec!["Ingress".to_owned()];
            if !items(&spec.egress).is_empty() {
                types.push("Egress".to_owned());
            }
            spec.policy_types = Some(types);
        }
        let ingress = items_mut(&mut spec.ingress).iter_mut().flat_map(|rule| items_mut(&mut rule.ports));
        let egress = items_mut(&mut spec.egress).iter_mut().flat_map(|rule| items_mut(&mut rule.ports));
        for port in ingress.chain(egress) {
            set_text(&mut port.protocol, "TCP");
        }
    }

    fn validate_create(&self, policy: &NetworkPolicy) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = policy.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        label_selector(&mut errors, &path.child("podSelector"), spec.pod_selector.as_ref());
        for (i, rule) in items(&spec.ingress).iter().enumerate() {
            let path = path.child("ingress");
            let path = path.index(i);
            ports(&mut errors, &path.child("ports"), items(&rule.ports));
            peers(&mut errors, &path.child("from"), items(&rule.from));
        }
        for (i, rule) in items(&spec.egress).iter().enumerate() {
            let path = path.child("egress");
            let path = path.index(i);
            ports(&mut errors, &path.child("ports"), items(&rule.ports));
            peers(&mut errors, &path.child("to"), items(&rule.to));
        }
        let types = items(&spec.policy_types);
        if types.len() > 2 {
            errors.invalid(path.child("policyTypes"), types, "may not specify more than two policyTypes");
        } else {
            for (i, kind) in types.iter().enumerate() {
                if !matches!(kind.as_str(), "Ingress" | "Egress") {
                    errors.not_supported(path.child("policyTypes").index(i), kind, &["Ingress", "Egress"]);
                }
            }
        }
        errors
    }

    fn validate_update(&self, new: &NetworkPolicy, _: &NetworkPolicy) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, policy: &NetworkPolicy, now: Timestamp) -> Vec<Value> {
        let selector = policy.spec.as_ref().and_then(|spec| spec.pod_selector.as_ref());
        vec![cells::name(&policy.metadata), cells::selector(selector), cells::age(&policy.metadata, now)]
    }
}

fn ports(errors: &mut FieldErrors, path: &Path<'_>, ports: &[NetworkPolicyPort]) {
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        if let Some(protocol) = text(&port.protocol)
            && !matches!(protocol, "TCP" | "UDP" | "SCTP")
        {
            errors.not_supported(path.child("protocol"), protocol, &["TCP", "UDP", "SCTP"]);
        }
        match (&port.port, port.end_port) {
            (None, Some(end)) => {
                errors.invalid(path.child("endPort"), end, "may not be specified when `port` is not specified");
            }
            (None, None) => {}
            (Some(IntOrString::Int(number)), end) => {
                errors.invalid_each(path.child("port"), number, validation::port_number(i64::from(*number)));
                if let Some(end) = end {
                    if end < *number {
                        errors.invalid(path.child("endPort"), number, "must be greater than or equal to `port`");
                    }
                    errors.invalid_each(path.child("endPort"), end, validation::port_number(i64::from(end)));
                }
            }
            (Some(IntOrString::String(name)), end) => {
                if let Some(end) = end {
                    errors.invalid(path.child("endPort"), end, "may not be specified when `port` is non-numeric");
                }
                errors.invalid_each(path.child("port"), name, validation::port_name(name));
            }
        }
    }
}

fn peers(errors: &mut FieldErrors, path: &Path<'_>, peers: &[NetworkPolicyPeer]) {
    for (i, peer) in peers.iter().enumerate() {
        let path = path.index(i);
        label_selector(errors, &path.child("podSelector"), peer.pod_selector.as_ref());
        label_selector(errors, &path.child("namespaceSelector"), peer.namespace_selector.as_ref());
        let selected = peer.pod_selector.is_some() || peer.namespace_selector.is_some();
        match &peer.ip_block {
            None if !selected => errors.required(path, "must specify a peer"),
            None => {}
            Some(_) if selected => errors.forbidden(path, "may not specify both ipBlock and another peer"),
            Some(block) => {
                let path = path.child("ipBlock");
                const DETAIL: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                if block.cidr.is_empty() {
                    errors.required(path.child("cidr"), "");
                } else if !is_cidr(&block.cidr) {
                    errors.invalid(path.child("cidr"), &block.cidr, DETAIL);
                }
                for (i, except) in items(&block.except).iter().enumerate() {
                    if !is_cidr(except) {
                        errors.invalid(path.child("except").index(i), except, DETAIL);
                    }
                }
            }
        }
    }
}
