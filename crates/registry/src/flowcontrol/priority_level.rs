//! PriorityLevelConfiguration: how many requests of a kind run at once, and how others wait.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::flowcontrol::v1::{
    LimitedPriorityLevelConfiguration, PriorityLevelConfiguration, QueuingConfiguration,
};
use serde_json::{Value, json};

use super::flow_schema::check_conditions;
use crate::column::Column;
use crate::unset::{items, or_empty, set_number};
use crate::{Strategy, cells};

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
        let name = or_empty(&level.metadata.name);
        let spec = level.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        if (name == "exempt") != (spec.type_ == "Exempt") {
            let rule = "must be 'Exempt' if and only if `name` is 'exempt'";
            errors.invalid(path.child("type"), &spec.type_, rule);
        }
        match (spec.type_.as_str(), &spec.limited) {
            ("Exempt", limited) => {
                if limited.is_some() {
                    errors.forbidden(path.child("limited"), "must be nil if the type is not Limited");
                }
                if let Some(exempt) = &spec.exempt {
                    let path = path.child("exempt");
                    check_shares(exempt.nominal_concurrency_shares, exempt.lendable_percent, path, &mut errors);
                }
            }
            ("Limited", limited) => {
                if spec.exempt.is_some() {
                    errors.forbidden(path.child("exempt"), "must be nil if the type is Limited");
                }
                match limited {
                    None => errors.required(path.child("limited"), "must not be empty when type is Limited"),
                    Some(limited) => check_limited(limited, path.child("limited"), &mut errors),
                }
            }
            ("", _) => errors.required(path.child("type"), ""),
            (other, _) => errors.not_supported(path.child("type"), other, &["Exempt", "Limited"]),
        }
        if let Some(mut fixed) = super::suggested::mandatory_level(name) {
            let is_exempt = name == "exempt";
            if is_exempt {
                fixed["exempt"] = json!(spec.exempt);
            }
            if json!(level.spec) != fixed {
                let but = if is_exempt { " except the 'spec.exempt' field" } else { "" };
                errors.invalid(path, &level.spec, format!("spec of '{name}'{but} must equal the fixed value"));
            }
        }
        errors
    }

    fn validate_update(&self, new: &PriorityLevelConfiguration, _: &PriorityLevelConfiguration) -> FieldErrors {
        self.validate_create(new)
    }

    fn validate_status_update(&self, new: &PriorityLevelConfiguration, _: &PriorityLevelConfiguration) -> FieldErrors {
        let conditions = new.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
        check_conditions(conditions.iter().map(|condition| or_empty(&condition.type_)))
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

/// Queues of a level at most.
const MAX_QUEUES: i32 = 10_000_000;
/// The bits of a hash from which the queues of a flow are dealt.
const HASH_BITS: u32 = 60;

fn check_shares(shares: Option<i32>, lendable: Option<i32>, path: Path<'_>, errors: &mut FieldErrors) {
    if let Some(shares) = shares.filter(|shares| *shares < 0) {
        errors.invalid(path.child("nominalConcurrencyShares"), shares, "must be a non-negative integer");
    }
    if let Some(percent) = lendable.filter(|percent| !(0..=100).contains(percent)) {
        errors.invalid(path.child("lendablePercent"), percent, "must be between 0 and 100, inclusive");
    }
}

fn check_limited(limited: &LimitedPriorityLevelConfiguration, path: Path<'_>, errors: &mut FieldErrors) {
    check_shares(limited.nominal_concurrency_shares, limited.lendable_percent, path, errors);
    if let Some(percent) = limited.borrowing_limit_percent.filter(|percent| *percent < 0) {
        errors.invalid(path.child("borrowingLimitPercent"), percent, "if specified, must be a non-negative integer");
    }
    let response = limited.limit_response.clone().unwrap_or_default();
    let path = path.child("limitResponse");
    match (response.type_.as_str(), &response.queuing) {
        ("Queue", None) => {
            let rule = "must not be empty if limited.limitResponse.type is Limited";
            errors.required(path.child("queuing"), rule);
        }
        ("Queue", Some(queuing)) => check_queuing(queuing, path.child("queuing"), errors),
        ("Reject", Some(_)) => {
            let rule = "must be nil if limited.limitResponse.type is not Limited";
            errors.forbidden(path.child("queuing"), rule);
        }
        ("Reject", None) => {}
        ("", _) => errors.required(path.child("type"), ""),
        (other, _) => errors.not_supported(path.child("type"), other, &["Queue", "Reject"]),
    }
}

fn check_queuing(queuing: &QueuingConfiguration, path: Path<'_>, errors: &mut FieldErrors) {
    let number = |value: Option<i32>| value.unwrap_or(0);
    let (queues, hand, length) =
        (number(queuing.queues), number(queuing.hand_size), number(queuing.queue_length_limit));
    if length <= 0 {
        errors.invalid(path.child("queueLengthLimit"), length, "must be positive");
    }
    if queues <= 0 {
        errors.invalid(path.child("queues"), queues, "must be positive");
    } else if queues > MAX_QUEUES {
        errors.invalid(path.child("queues"), queues, format!("must not be greater than {MAX_QUEUES}"));
    }
    let path = path.child("handSize");
    if hand <= 0 {
        errors.invalid(path, hand, "must be positive");
    } else if hand > queues {
        errors.invalid(path, hand, format!("should not be greater than queues ({queues})"));
    } else if entropy_bits(queues, hand) > HASH_BITS {
        let rule = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        errors.invalid(path, hand, rule);
    }
}

/// How many bits say which of all hands a flow is dealt.
fn entropy_bits(queues: i32, hand: i32) -> u32 {
    (f64::from(queues).log2() * f64::from(hand)).ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_queues_that_can_be_dealt() {
        let level = |name: &str, spec: Value| {
            let object = json!({"metadata": {"name": name}, "spec": spec});
            PriorityLevelStrategy.validate_create(&serde_json::from_value(object).unwrap()).to_string()
        };
        let limited = |response: Value| json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": response}});
        let queue = |queues: i32, hand: i32| {
            limited(json!({"type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50}}))
        };
        let reject = || limited(json!({"type": "Reject"}));
        assert_eq!(level("l", queue(128, 6)), "[]");
        assert_eq!(level("catch-all", reject()), "[]");
        for (name, spec, expected) in [
            ("l", queue(4, 5), "should not be greater than queues (4)"),
            ("l", queue(512, 8), "required entropy bits of deckSize 512 and handSize 8 should not be greater than 60"),
            ("l", json!({"type": "Exempt"}), "must be 'Exempt' if and only if `name` is 'exempt'"),
            ("catch-all", queue(128, 6), "spec of 'catch-all' must equal the fixed value"),
            ("exempt", reject(), "spec of 'exempt' except the 'spec.exempt' field must equal the fixed value"),
            ("l", limited(json!({"type": "Odd"})), "Unsupported value: \"Odd\""),
        ] {
            let found = level(name, spec);
            assert!(found.contains(expected), "{expected}: {found}");
        }
    }
}
