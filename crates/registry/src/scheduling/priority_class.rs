//! PriorityClass: how much a pod matters.

use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::{or_empty, set_text};
use crate::{Strategy, cells};

pub struct PriorityClassStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::integer("Value", "Higher goes first."),
    Column { r#type: "boolean", ..Column::string("Global-Default", "Whether pods without a class get it.") },
    Column::AGE,
    Column::string("PreemptionPolicy", "Whether its pods may push others out."),
];

const HIGHEST_USER_VALUE: i32 = 1_000_000_000;
const SYSTEM: &[(&str, i32)] = &[("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

impl Strategy for PriorityClassStrategy {
    type Object = PriorityClass;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, class: &mut PriorityClass) {
        set_text(&mut class.preemption_policy, "PreemptLowerPriority");
    }

    fn validate_create(&self, class: &PriorityClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let (name, value) = (or_empty(&class.metadata.name), class.value.unwrap_or(0));
        if name.starts_with("system-") {
            let known = SYSTEM.iter().find(|(system, _)| *system == name);
            let complaint = match known {
                None => Some(format!("{name} is not a known system priority class")),
                Some((_, wanted)) if *wanted != value => {
                    Some(format!("value of {name} PriorityClass must be {wanted}"))
                }
                Some(_) if class.global_default == Some(true) => {
                    Some(format!("globalDefault of {name} PriorityClass must be false"))
                }
                Some(_) => None,
            };
            if let Some(complaint) = complaint {
                errors.forbidden(
                    "metadata.name",
                    format!("priority class names with 'system-' prefix are reserved for system use only. error: {complaint}"),
                );
            }
        } else if value > HIGHEST_USER_VALUE {
            errors.forbidden(
                "value",
                format!("maximum allowed value of a user defined priority is {HIGHEST_USER_VALUE}"),
            );
        }
        let policy = or_empty(&class.preemption_policy);
        if !matches!(policy, "PreemptLowerPriority" | "Never") {
            errors.not_supported("preemptionPolicy", policy, &["PreemptLowerPriority", "Never"]);
        }
        errors
    }

    fn validate_update(&self, new: &PriorityClass, old: &PriorityClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if new.value.unwrap_or(0) != old.value.unwrap_or(0) {
            errors.forbidden("value", "may not be changed in an update.");
        }
        errors.immutable("preemptionPolicy", &new.preemption_policy, &old.preemption_policy);
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, class: &PriorityClass, now: Timestamp) -> Vec<Value> {
        vec![
            cells::name(&class.metadata),
            json!(class.value.unwrap_or(0)),
            json!(class.global_default == Some(true)),
            cells::age(&class.metadata, now),
            json!(or_empty(&class.preemption_policy)),
        ]
    }
}
