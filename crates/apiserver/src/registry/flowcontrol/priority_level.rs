//! PriorityLevelConfiguration: how many requests of a kind run at once, and how others wait.

use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::api::flowcontrol::v1::PriorityLevelConfiguration;
use serde_json::{Value, json};

use crate::registry::column::Column;
use crate::registry::unset::set_number;
use crate::registry::{Strategy, cells};

pub struct PriorityLevelStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Type", "Whether requests are limited."),
    Column::string("NominalConcurrencyShares", "Its share of what runs at once."),
    Column::string("Queues", "How many queues it has."),
    Column::string("HandSize", "How many queues a flow is dealt."),
    Column::string("QueueLengthLimit", "How many may wait in a queue."),
    Column::AGE,
];

impl Strategy for PriorityLevelStrategy {
    type Object = PriorityLevelConfiguration;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, level: &mut PriorityLevelConfiguration) {
        let Some(spec) = &mut level.spec else { return };
        if let Some(exempt) = &mut spec.exempt {
            exempt.nominal_concurrency_shares.get_or_insert(0);
            exempt.lendable_percent.get_or_insert(0);
        }
        if let Some(limited) = &mut spec.limited {
            limited.nominal_concurrency_shares.get_or_insert(30);
            limited.lendable_percent.get_or_insert(0);
            if let Some(queuing) = limited.limit_response.as_mut().and_then(|response| response.queuing.as_mut()) {
                set_number(&mut queuing.hand_size, 8);
                set_number(&mut queuing.queues, 64);
                set_number(&mut queuing.queue_length_limit, 50);
            }
        }
    }

    fn validate_create(&self, level: &PriorityLevelConfiguration) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = level.spec.clone().unwrap_or_default();
        match (spec.type_.as_str(), &spec.limited) {
            ("Exempt", Some(_)) => {
                errors.forbidden("spec.limited", "must be nil if the type is not Limited");
            }
            ("Limited", None) => errors.required("spec.limited", "must not be empty when type is Limited"),
            ("Limited", Some(limited)) => {
                if spec.exempt.is_some() {
                    errors.forbidden("spec.exempt", "must be nil if the type is Limited");
                }
                if let Some(shares) = limited.nominal_concurrency_shares.filter(|&shares| shares < 0) {
                    errors.invalid("spec.limited.nominalConcurrencyShares", shares, "must be a non-negative integer");
                }
                let response = limited.limit_response.clone().unwrap_or_default();
                match (response.type_.as_str(), &response.queuing) {
                    ("Queue", None) => errors.required(
                        "spec.limited.limitResponse.queuing",
                        "must not be empty if limit response type is Queue",
                    ),
                    ("Reject", Some(_)) => {
                        errors.forbidden("spec.limited.limitResponse.queuing", "must be nil if the type is not Limited")
                    }
                    ("Queue" | "Reject", _) => {}
                    (other, _) => {
                        errors.not_supported("spec.limited.limitResponse.type", other, &["Queue", "Reject"]);
                    }
                }
            }
            ("Exempt", None) => {}
            ("", _) => errors.required("spec.type", ""),
            (other, _) => errors.not_supported("spec.type", other, &["Exempt", "Limited"]),
        }
        errors
    }

    fn validate_update(&self, new: &PriorityLevelConfiguration, _: &PriorityLevelConfiguration) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, level: &PriorityLevelConfiguration, now: Timestamp) -> Vec<Value> {
        let spec = level.spec.clone().unwrap_or_default();
        let shown = |value: Option<i32>| value.map_or(json!("<none>"), |value| json!(value));
        let limited = spec.limited.clone().unwrap_or_default();
        let queuing = limited.limit_response.and_then(|response| response.queuing).unwrap_or_default();
        vec![
            cells::name(&level.metadata),
            json!(spec.type_),
            shown(limited.nominal_concurrency_shares),
            shown(queuing.queues),
            shown(queuing.hand_size),
            shown(queuing.queue_length_limit),
            cells::age(&level.metadata, now),
        ]
    }
}
