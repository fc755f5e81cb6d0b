//! DeviceTaintRule: taints on devices that somebody other than their driver sets.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::DeviceTaint;
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::rules;
use crate::column::{Column, age};
use crate::unset::{items, or_empty};
use crate::{Call, Strategy, cells};

pub struct DeviceTaintRuleStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Key", "The key of the taint."),
    Column::string("Value", "The value of the taint."),
    Column::string("Effect", "What the taint does to claims that do not tolerate it."),
    Column::string("TimeAdded", "Time since the taint was added."),
    Column::AGE,
];

impl Strategy for DeviceTaintRuleStrategy {
    type Object = DeviceTaintRule;
    const COUNTS_GENERATIONS: bool = true;

    fn prepare_for_create(&self, call: &Call<'_>, rule: &mut DeviceTaintRule) {
        rule.spec.taint.time_added.get_or_insert(Time(call.now));
    }

    fn validate_create(&self, rule: &DeviceTaintRule) -> FieldErrors {
        validate(rule, None)
    }

    fn prepare_for_update(&self, call: &Call<'_>, new: &mut DeviceTaintRule, old: &DeviceTaintRule) {
        let (taint, before) = (&mut new.spec.taint, &old.spec.taint);
        // The time says since when this effect holds.
        if taint.effect != before.effect && taint.time_added == before.time_added {
            taint.time_added = Some(Time(call.now));
        }
        taint.time_added.get_or_insert(Time(call.now));
    }

    fn validate_update(&self, new: &DeviceTaintRule, old: &DeviceTaintRule) -> FieldErrors {
        validate(new, Some(&old.spec.taint.effect))
    }

    fn validate_status_update(&self, new: &DeviceTaintRule, _: &DeviceTaintRule) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let conditions = new.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
        let path = Path::new("status");
        crate::metadata::conditions(&mut errors, &path.child("conditions"), conditions);
        if conditions.len() > rules::CONDITIONS {
            errors.too_many(path.child("conditions"), conditions.len(), rules::CONDITIONS);
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, rule: &DeviceTaintRule, now: Timestamp) -> Vec<Value> {
        let taint = &rule.spec.taint;
        let added = taint.time_added.as_ref().map_or(json!(""), |time| age(Some(time), now));
        vec![
            cells::name(&rule.metadata),
            json!(taint.key),
            json!(or_empty(&taint.value)),
            json!(taint.effect),
            added,
            cells::age(&rule.metadata, now),
        ]
    }
}

fn validate(rule: &DeviceTaintRule, old_effect: Option<&str>) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let path = Path::new("spec");
    if let Some(selector) = &rule.spec.device_selector {
        let path = path.child("deviceSelector");
        if let Some(driver) = &selector.driver {
            rules::driver_name(&mut errors, &path.child("driver"), driver);
        }
        if let Some(pool) = &selector.pool {
            rules::pool_name(&mut errors, &path.child("pool"), pool);
        }
        if let Some(device) = &selector.device {
            rules::label(&mut errors, &path.child("device"), device);
        }
    }
    let taint = &rule.spec.taint;
    let taint = DeviceTaint {
        effect: taint.effect.clone(),
        key: taint.key.clone(),
        time_added: None,
        value: taint.value.clone(),
    };
    rules::taint(&mut errors, &path.child("taint"), &taint, old_effect);
    errors
}
