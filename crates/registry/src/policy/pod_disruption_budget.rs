//! PodDisruptionBudget: how many pods may be taken away at once.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};

use crate::apps::rules;
use crate::column::Column;
use crate::metadata::label_selector;
use crate::unset::text;
use crate::{Strategy, cells};

pub struct PodDisruptionBudgetStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Min Available", "How many pods must stay."),
    Column::string("Max Unavailable", "How many pods may be away."),
    Column::integer("Allowed Disruptions", "How many pods may be taken away now."),
    Column::AGE,
];

impl Strategy for PodDisruptionBudgetStrategy {
    type Object = PodDisruptionBudget;
    const COUNTS_GENERATIONS: bool = true;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn validate_create(&self, budget: &PodDisruptionBudget) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let Some(spec) = &budget.spec else { return errors };
        let path = Path::new("spec");
        if spec.min_available.is_some() && spec.max_unavailable.is_some() {
            errors.invalid(path, spec, "minAvailable and maxUnavailable cannot be both set");
        }
        for (name, value) in [("minAvailable", &spec.min_available), ("maxUnavailable", &spec.max_unavailable)] {
            let path = path.child(name);
            rules::count_or_percent(&mut errors, &path, value.as_ref());
            rules::at_most_all(&mut errors, &path, value.as_ref());
        }
        label_selector(&mut errors, &path.child("selector"), spec.selector.as_ref());
        if let Some(policy) = text(&spec.unhealthy_pod_eviction_policy)
            && !matches!(policy, "AlwaysAllow" | "IfHealthyBudget")
        {
            errors.not_supported(path.child("unhealthyPodEvictionPolicy"), policy, &["AlwaysAllow", "IfHealthyBudget"]);
        }
        errors
    }

    fn validate_update(&self, new: &PodDisruptionBudget, _: &PodDisruptionBudget) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, budget: &PodDisruptionBudget, now: Timestamp) -> Vec<Value> {
        let spec = budget.spec.clone().unwrap_or_default();
        let or_not = |value: &Option<_>| value.as_ref().map_or("N/A".to_owned(), cells::int_or_string);
        vec![
            cells::name(&budget.metadata),
            json!(or_not(&spec.min_available)),
            json!(or_not(&spec.max_unavailable)),
            json!(budget.status.as_ref().and_then(|status| status.disruptions_allowed).unwrap_or(0)),
            cells::age(&budget.metadata, now),
        ]
    }
}
