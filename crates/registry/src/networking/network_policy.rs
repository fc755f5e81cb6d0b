//! NetworkPolicy: who may talk to whom.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::address::{any_cidr, cidr};
use crate::column::Column;
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
        validate(policy, &BTreeSet::new())
    }

    fn validate_update(&self, new: &NetworkPolicy, old: &NetworkPolicy) -> FieldErrors {
        validate(new, &ranges(old))
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, policy: &NetworkPolicy, now: Timestamp) -> Vec<Value> {
        let selector = policy.spec.as_ref().and_then(|spec| spec.pod_selector.as_ref());
        vec![cells::name(&policy.metadata), cells::selector(selector), cells::age(&policy.metadata, now)]
    }
}

fn validate(policy: &NetworkPolicy, kept: &BTreeSet<&str>) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let spec = policy.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    label_selector(&mut errors, &path.child("podSelector"), spec.pod_selector.as_ref());
    for (i, rule) in items(&spec.ingress).iter().enumerate() {
        let path = path.child("ingress");
        let path = path.index(i);
        ports(&mut errors, &path.child("ports"), items(&rule.ports));
        peers(&mut errors, &path.child("from"), items(&rule.from), kept);
    }
    for (i, rule) in items(&spec.egress).iter().enumerate() {
        let path = path.child("egress");
        let path = path.index(i);
        ports(&mut errors, &path.child("ports"), items(&rule.ports));
        peers(&mut errors, &path.child("to"), items(&rule.to), kept);
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

fn peers(errors: &mut FieldErrors, path: &Path<'_>, peers: &[NetworkPolicyPeer], kept: &BTreeSet<&str>) {
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
                ip_block(errors, &path.child("ipBlock"), block, kept);
            }
        }
    }
}

/// Ranges in `kept` were in the policy before, when more may have been accepted.
fn ip_block(errors: &mut FieldErrors, path: &Path<'_>, block: &IPBlock, kept: &BTreeSet<&str>) {
    if block.cidr.is_empty() {
        return errors.required(path.child("cidr"), "");
    }
    if !kept.contains(block.cidr.as_str()) {
        cidr(errors, &path.child("cidr"), &block.cidr);
    }
    let Some(whole) = any_cidr(&block.cidr) else { return };
    for (i, except) in items(&block.except).iter().enumerate() {
        let path = path.child("except");
        let path = path.index(i);
        if !kept.contains(except.as_str()) {
            cidr(errors, &path, except);
        }
        if let Some(part) = any_cidr(except)
            && (!whole.contains(part.addr) || whole.prefix >= part.prefix)
        {
            errors.invalid(path, except, "must be a strict subset of `cidr`");
        }
    }
}

/// The ranges that a policy has, in whatever place.
fn ranges(policy: &NetworkPolicy) -> BTreeSet<&str> {
    let Some(spec) = &policy.spec else { return BTreeSet::new() };
    let from = items(&spec.ingress).iter().flat_map(|rule| items(&rule.from));
    let to = items(&spec.egress).iter().flat_map(|rule| items(&rule.to));
    let blocks = from.chain(to).filter_map(|peer| peer.ip_block.as_ref());
    blocks.flat_map(|block| items(&block.except).iter().chain([&block.cidr])).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(cidr: &str, except: &[&str]) -> NetworkPolicy {
        let from = json!([{"ipBlock": {"cidr": cidr, "except": except}}]);
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"ingress": [{"from": from}]}})).unwrap()
    }

    #[test]
    fn new_ranges_mean_the_same_to_everybody_and_old_ones_stay() {
        for (cidr, except, expected) in [
            ("10.0.0.0/8", &["10.1.0.0/16"][..], "[]"),
            ("", &[], "spec.ingress[0].from[0].ipBlock.cidr: Required value"),
            (
                "10.0.0.1/8",
                &[],
                "spec.ingress[0].from[0].ipBlock.cidr: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length",
            ),
            (
                "10.0.0.0/8",
                &["10.1.0.0/016"],
                "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"10.1.0.0/016\": must not have leading 0s in IP or prefix length",
            ),
            (
                "10.0.0.0/8",
                &["11.0.0.0/16"],
                "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`",
            ),
        ] {
            assert_eq!(NetworkPolicyStrategy.validate_create(&policy(cidr, except)).to_string(), expected);
        }
        let old = policy("10.0.0.1/8", &["10.1.0.0/016"]);
        assert!(NetworkPolicyStrategy.validate_update(&old, &old).is_empty());
        assert_eq!(NetworkPolicyStrategy.validate_update(&policy("10.0.0.2/8", &[]), &old).len(), 1);
    }
}
