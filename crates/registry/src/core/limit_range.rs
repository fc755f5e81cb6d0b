//! LimitRange: bounds and defaults for what one namespace's pods may ask for.

use std::collections::BTreeMap;

use api::field::{FieldErrors, Path};
use api::quantity::Quantity;
use api::sort::CompactSort as _;
use api::time::rfc3339;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;
use serde_json::{Value, json};

use crate::Strategy;
use crate::cells;
use crate::column::Column;
use crate::core::pod_spec::resources;

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
    let lists = [
        ("max", &item.max),
        ("min", &item.min),
        ("default", &item.default),
        ("defaultRequest", &item.default_request),
        ("maxLimitRequestRatio", &item.max_limit_request_ratio),
    ];
    for (field, list) in lists {
        for name in list.iter().flat_map(|list| list.keys()) {
            let place = path.child(field);
            match item.type_.as_str() {
                "Pod" | "Container" => resources::container_resource_name(errors, &place.key(name), name),
                _ => resources::resource_name(errors, &place.key(name), name),
            }
        }
    }
    let has_size = |list: &Option<BTreeMap<String, RawQuantity>>| amount(list, "storage").is_some();
    if item.type_ == "PersistentVolumeClaim" && !has_size(&item.min) && !has_size(&item.max) {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        errors.required(path.child("limits"), detail);
    }
    let mut names: Vec<&String> =
        lists.into_iter().filter_map(|(_, list)| list.as_ref()).flat_map(|list| list.keys()).collect();
    names.compact_sort();
    names.dedup();
    for name in names {
        let (min, max) = (amount(&item.min, name), amount(&item.max, name));
        let (limit, request) = match item.type_.as_str() {
            "Pod" => (None, None),
            _ => (amount(&item.default, name), amount(&item.default_request, name)),
        };
        for (field, shown, (low, low_words), (high, high_words)) in [
            ("min", &min, (&min, "min"), (&max, "max")),
            ("defaultRequest", &request, (&min, "min"), (&request, "default request")),
            ("defaultRequest", &request, (&request, "default request"), (&max, "max")),
            ("defaultRequest", &request, (&request, "default request"), (&limit, "default limit")),
            ("default", &min, (&min, "min"), (&limit, "default")),
            ("default", &max, (&limit, "default"), (&max, "max")),
        ] {
            if let (Some(low), Some(high), Some(shown)) = (low, high, shown)
                && low > high
            {
                let detail = format!("{low_words} value {low} is greater than {high_words} value {high}");
                errors.invalid(path.child(field).key(name), shown, detail);
            }
        }
        if let Some(ratio) = amount(&item.max_limit_request_ratio, name)
            && ratio < Quantity::new(1, api::quantity::Format::DecimalSI)
        {
            let place = path.child("maxLimitRequestRatio");
            errors.invalid(place.key(name), &ratio, format!("ratio {ratio} is less than 1"));
        }
        if let (Some(ratio), Some(min), Some(max)) = (amount(&item.max_limit_request_ratio, name), &min, &max) {
            let most = max.as_f64() / min.as_f64();
            if ratio.as_f64() > most {
                let detail = format!("ratio {ratio} is greater than max/min = {most:.6}");
                errors.invalid(path.child("maxLimitRequestRatio").key(name), &ratio, detail);
            }
        }
        if let (Some(limit), Some(request), false) = (&limit, &request, resources::overcommits(name))
            && limit != request
        {
            let detail = format!("default value {limit} must equal to defaultRequest value {request} in {name}");
            errors.invalid(path.child("defaultRequest").key(name), request, detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_defaults_fit_each_other() {
        let at = |field: &str, name: &str| format!("spec.limits[0].{field}[{name}]: Invalid value");
        for (item, expected) in [
            (
                json!({"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "4"}}),
                None,
            ),
            (json!({"type": "Container", "max": {"pods": "1"}}), Some(at("max", "pods"))),
            (
                json!({"type": "Container", "min": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}),
                Some(at("defaultRequest", "cpu")),
            ),
            (json!({"type": "Container", "min": {"cpu": "2"}, "default": {"cpu": "1"}}), Some(at("default", "cpu"))),
            (
                json!({"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "4"}, "maxLimitRequestRatio": {"cpu": "5"}}),
                Some(format!(
                    "{}: \"5\": ratio 5 is greater than max/min = 4.000000",
                    at("maxLimitRequestRatio", "cpu")
                )),
            ),
            (
                json!({"type": "PersistentVolumeClaim", "max": {"x.io/y": "1"}}),
                Some(
                    "spec.limits[0].limits: Required value: either minimum or maximum storage value is required"
                        .to_owned(),
                ),
            ),
            (
                json!({"type": "Container", "default": {"x.io/gpu": "2"}, "defaultRequest": {"x.io/gpu": "1"}}),
                Some(format!(
                    "{}: \"1\": default value 2 must equal to defaultRequest value 1",
                    at("defaultRequest", "x.io/gpu")
                )),
            ),
        ] {
            let mut range: LimitRange = serde_json::from_value(json!({"spec": {"limits": [item]}})).unwrap();
            LimitRangeStrategy.apply_defaults(&mut range);
            let found = LimitRangeStrategy.validate_create(&range).to_string();
            match expected {
                None => assert_eq!(found, "[]", "{item}"),
                Some(expected) => assert!(found.contains(&expected), "{item}: {found}"),
            }
        }
    }
}
