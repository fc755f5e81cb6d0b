//! ServiceCIDR: ranges that cluster IPs come from.

use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use serde_json::{Value, json};

use crate::address::parse_canonical_cidr;
use crate::column::Column;
use crate::unset::items;
use crate::{Strategy, cells};

pub struct ServiceCidrStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::string("CIDRs", "The ranges."), Column::AGE];

impl Strategy for ServiceCidrStrategy {
    type Object = ServiceCIDR;

    fn validate_create(&self, range: &ServiceCIDR) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = range.spec.clone().unwrap_or_default();
        let ranges = items(&spec.cidrs);
        if ranges.is_empty() {
            errors.required("spec.cidrs", "at least one CIDR required");
        }
        if ranges.len() > 2 {
            errors.invalid("spec.cidrs", ranges, "may only hold up to 2 values");
        }
        if let [first, second] = ranges
            && first.contains(':') == second.contains(':')
        {
            errors.invalid(
                "spec.cidrs",
                ranges,
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
            );
        }
        for (i, range) in ranges.iter().enumerate() {
            if let Err(error) = parse_canonical_cidr(range) {
                errors.invalid(format!("spec.cidrs[{i}]"), range, error.to_string());
            }
        }
        errors
    }

    fn validate_update(&self, new: &ServiceCIDR, old: &ServiceCIDR) -> FieldErrors {
        let ranges = |range: &ServiceCIDR| range.spec.clone().unwrap_or_default().cidrs.unwrap_or_default();
        let (now, before) = (ranges(new), ranges(old));
        // A second family may be added; nothing else changes.
        let grows = before.len() == 1 && now.len() == 2;
        let mut errors = if grows { self.validate_create(new) } else { FieldErrors::default() };
        if !grows && now.len() != before.len() {
            errors.immutable("spec.cidrs", &now, &before);
            return errors;
        }
        for (i, (now, before)) in now.iter().zip(&before).enumerate() {
            errors.immutable(format!("spec.cidrs[{i}]"), now, before);
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, range: &ServiceCIDR, now: Timestamp) -> Vec<Value> {
        let spec = range.spec.clone().unwrap_or_default();
        vec![cells::name(&range.metadata), json!(items(&spec.cidrs).join(",")), cells::age(&range.metadata, now)]
    }
}
