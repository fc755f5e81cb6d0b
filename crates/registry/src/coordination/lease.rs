//! Lease: who leads, and until when. Renewed often, so it is kept light.

use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::{or_empty, text};
use crate::{Strategy, cells};

pub struct LeaseStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::string("Holder", "Who holds the lease."), Column::AGE];

impl Strategy for LeaseStrategy {
    type Object = Lease;
    const CREATES_ON_UPDATE: bool = true;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn validate_create(&self, lease: &Lease) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let Some(spec) = &lease.spec else { return errors };
        if let Some(seconds) = spec.lease_duration_seconds.filter(|&seconds| seconds <= 0) {
            errors.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0");
        }
        if let Some(count) = spec.lease_transitions.filter(|&count| count < 0) {
            errors.invalid("spec.leaseTransitions", count, "must be greater than or equal to 0");
        }
        if text(&spec.preferred_holder).is_some() && text(&spec.strategy).is_none() {
            errors.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined");
        }
        errors
    }

    fn validate_update(&self, new: &Lease, _: &Lease) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, lease: &Lease, now: Timestamp) -> Vec<Value> {
        let holder = lease.spec.as_ref().map(|spec| or_empty(&spec.holder_identity)).unwrap_or_default();
        vec![cells::name(&lease.metadata), json!(holder), cells::age(&lease.metadata, now)]
    }
}
