//! LimitRange: bounds and defaults for what one namespace's pods may ask for.

use std::collections::BTreeMap;

use api::field::{FieldErrors, Path};
use api::quantity::Quantity;
use api::time::rfc3339;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;
use serde_json::{Value, json};

use crate::Strategy;
use crate::cells;
use crate::column::Column;

pub struct LimitRangeStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::CREATED];

impl Strategy for LimitRangeStrategy {
    type Object = LimitRange;

    fn apply_defaults(&self, range: &mut LimitRange) {
        for item in range.spec.iter_mut().flat_map(|spec| spec.limits.iter_mut()) {
            if item.type_ == "Container" {
                defaults(item);
            }
        }
    }

    fn validate_create(&self, range: &LimitRange) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let limits = range.spec.clone().unwrap_or_default().limits;
        let mut seen = std::collections::BTreeSet::new();
        for (i, item) in limits.iter().enumerate() {
            let path = Path::new("spec.limits");
            let path = path.index(i);
            if !seen.insert(item.type_.as_str()) {
                errors.duplicate(path.child("type"), &item.type_);
            }
            validate_item(&mut errors, &path, item);
        }
        errors
    }

    fn validate_update(&self, new: &LimitRange, _: &LimitRange) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, range: &LimitRange, _: Timestamp) -> Vec<Value> {
        let created = range.metadata.creation_timestamp.as_ref().map(|time| rfc3339(time.0));
        vec![cells::name(&range.metadata), json!(created.unwrap_or_default())]
    }
}

/// Limits follow maxima, requests follow limits, then minima.
fn defaults(item: &mut LimitRangeItem) {
    let fill = |target: &mut Option<BTreeMap<String, RawQuantity>>, from: &Option<BTreeMap<String, RawQuantity>>| {
        let target = target.get_or_insert_default();
        for (name, amount) in from.iter().flatten() {
            target.entry(name.clone()).or_insert_with(|| amount.clone());
        }
    };
    let (max, min) = (item.max.clone(), item.min.clone());
    fill(&mut item.default, &max);
    let limits = item.default.clone();
    fill(&mut item.default_request, &limits);
    fill(&mut item.default_request, &min);
}

fn validate_item(errors: &mut FieldErrors, path: &Path<'_>, item: &LimitRangeItem) {
    let amount = |list: &Option<BTreeMap<String, RawQuantity>>, name: &str| {
        list.as_ref().and_then(|list| list.get(name)).and_then(|raw| Quantity::try_from(raw).ok())
    };
    let is_standard = matches!(item.type_.as_str(), "Pod" | "Container" | "PersistentVolumeClaim");
    if !item.type_.contains('/') && !is_standard {
        errors.invalid(path.child("type"), &item.type_, "must be a standard limit type or fully qualified");
    }
    if item.type_ == "Pod" {
        for (name, present) in [("default", item.default.is_some()), ("defaultRequest", item.default_request.is_some())]
        {
            if present {
                errors.forbidden(path.child(name), "may not be specified when `type` is 'Pod'");
            }
        }
    }
    let lists = [&item.max, &item.min, &item.default, &item.default_request, &item.max_limit_request_ratio];
    let mut names: Vec<&String> = lists.into_iter().flatten().flat_map(|list| list.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let (min, max) = (amount(&item.min, name), amount(&item.max, name));
        let (limit, request) = (amount(&item.default, name), amount(&item.default_request, name));
        let mut above = |field: &str, low: &Option<Quantity>, high: &Option<Quantity>, words: &str| {
            if let (Some(low), Some(high)) = (low, high)
                && low > high
            {
                let place = path.child(field);
                errors.invalid(
                    place.key(name),
                    low,
                    words.replace("{low}", &low.to_string()).replace("{high}", &high.to_string()),
                );
            }
        };
        above("min", &min, &max, "min value {low} is greater than max value {high}");
        above("defaultRequest", &request, &max, "default request value {low} is greater than max value {high}");
        above(
            "defaultRequest",
            &request,
            &limit,
            "default request value {low} is greater than default limit value {high}",
        );
        above("default", &limit, &max, "default value {low} is greater than max value {high}");
        above("min", &min, &request, "min value {low} is greater than default request value {high}");
        if let Some(ratio) = amount(&item.max_limit_request_ratio, name)
            && ratio < Quantity::new(1, api::quantity::Format::DecimalSI)
        {
            let place = path.child("maxLimitRequestRatio");
            errors.invalid(place.key(name), &ratio, format!("ratio {ratio} is less than 1"));
        }
    }
}
