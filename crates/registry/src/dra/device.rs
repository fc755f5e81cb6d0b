//! One device of a slice: its attributes, capacities, counters and taints.

use std::collections::BTreeMap;

use api::field::{FieldErrors, Path};
use api::quantity::Quantity as Amount;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Counter, Device, DeviceAttribute, DeviceCapacity,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::rules;
use crate::core::pod_spec::placement;
use crate::unset::items;

const ATTRIBUTES_AND_CAPACITIES: usize = 32;
const ATTRIBUTE_VALUES: usize = 48;
const VALUE_LENGTH: usize = 64;
const TAINTS: usize = 16;
const CONSUMPTIONS: usize = 2;
const COUNTERS: usize = 32;
const DISCRETE_VALUES: usize = 10;

/// A mapping to a resource of the node counts once unless it says how often.
pub(super) fn apply_defaults(device: &mut Device) {
    for mapping in device.node_allocatable_resource_mappings.iter_mut().flat_map(BTreeMap::values_mut) {
        mapping.allocation_multiplier.get_or_insert_with(|| Quantity("1".to_owned()));
    }
}

/// Whether a device uses what makes slices shorter.
pub(super) fn is_advanced(device: &Device) -> bool {
    let lists = |attribute: &DeviceAttribute| {
        attribute.bools.is_some()
            || attribute.ints.is_some()
            || attribute.strings.is_some()
            || attribute.versions.is_some()
    };
    !items(&device.taints).is_empty()
        || !items(&device.consumes_counters).is_empty()
        || device.attributes.iter().flat_map(BTreeMap::values).any(lists)
}

pub(super) fn validate(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    device: &Device,
    old: Option<&Device>,
    per_device_node_selection: bool,
) {
    rules::label(errors, &path.child("name"), &device.name);
    let none = BTreeMap::new();
    let attributes = device.attributes.as_ref().unwrap_or(&none);
    let count = attributes.len() + device.capacity.as_ref().map_or(0, BTreeMap::len);
    if count > ATTRIBUTES_AND_CAPACITIES {
        let rule = format!("the total number of attributes and capacities must not exceed {ATTRIBUTES_AND_CAPACITIES}");
        errors.invalid(path, count, rule);
    }
    let values: usize = attributes.values().map(value_count).sum();
    if values > ATTRIBUTE_VALUES {
        errors.invalid(
            path,
            values,
            format!("the total number of attribute values must not exceed {ATTRIBUTE_VALUES}"),
        );
    }
    let attributes_path = path.child("attributes");
    for (name, attribute) in attributes {
        rules::qualified_name(errors, &attributes_path, name);
        validate_attribute(errors, &attributes_path.key(name), attribute);
    }
    let capacity_path = path.child("capacity");
    for (name, capacity) in device.capacity.iter().flatten() {
        rules::qualified_name(errors, &capacity_path, name);
        let shared = device.allow_multiple_allocations == Some(true);
        validate_capacity(errors, &capacity_path.key(name), capacity, shared);
    }
    if old.is_none_or(|old| old.taints != device.taints) {
        rules::each(errors, &path.child("taints"), items(&device.taints), TAINTS, |errors, path, taint| {
            rules::taint(errors, path, taint, None);
        });
    }
    let consumptions = items(&device.consumes_counters);
    let consumes_path = path.child("consumesCounters");
    rules::each_once(
        errors,
        &consumes_path,
        consumptions,
        CONSUMPTIONS,
        |one| one.counter_set.clone(),
        |errors, path, one| {
            counter_set(errors, path, ("counterSet", &one.counter_set), &one.counters);
        },
    );
    validate_place(errors, path, device, per_device_node_selection);
    let (wanted, failed) = (items(&device.binding_conditions), items(&device.binding_failure_conditions));
    rules::binding_conditions(errors, path, wanted, failed);
    validate_mappings(errors, &path.child("nodeAllocatableResourceMappings"), device);
}

fn value_count(attribute: &DeviceAttribute) -> usize {
    let listed = items(&attribute.bools).len()
        + items(&attribute.ints).len()
        + items(&attribute.strings).len()
        + items(&attribute.versions).len();
    listed.max(1)
}

fn validate_attribute(errors: &mut FieldErrors, path: &Path<'_>, attribute: &DeviceAttribute) {
    let empty = |errors: &mut FieldErrors, field: &str, length: Option<usize>| {
        if length == Some(0) {
            errors.invalid(path.child(field), [(); 0], "must not be empty if specified");
        }
    };
    empty(errors, "bools", attribute.bools.as_ref().map(Vec::len));
    empty(errors, "ints", attribute.ints.as_ref().map(Vec::len));
    empty(errors, "strings", attribute.strings.as_ref().map(Vec::len));
    empty(errors, "versions", attribute.versions.as_ref().map(Vec::len));
    let too_long = |errors: &mut FieldErrors, path: &Path<'_>, value: &str| {
        if value.len() > VALUE_LENGTH {
            errors.too_long(path, VALUE_LENGTH);
        }
    };
    let version = |errors: &mut FieldErrors, path: &Path<'_>, value: &str| {
        if !is_semantic_version(value) {
            errors.invalid(path, value, "must be a string compatible with semver.org spec 2.0.0");
        }
        too_long(errors, path, value);
    };
    if let Some(value) = &attribute.string {
        too_long(errors, &path.child("string"), value);
    }
    if let Some(value) = &attribute.version {
        version(errors, &path.child("version"), value);
    }
    for (i, value) in items(&attribute.strings).iter().enumerate() {
        too_long(errors, &path.child("strings").index(i), value);
    }
    for (i, value) in items(&attribute.versions).iter().enumerate() {
        version(errors, &path.child("versions").index(i), value);
    }
    let set = [
        attribute.bool.is_some(),
        attribute.int.is_some(),
        attribute.string.is_some(),
        attribute.version.is_some(),
        attribute.bools.is_some(),
        attribute.ints.is_some(),
        attribute.strings.is_some(),
        attribute.versions.is_some(),
    ];
    match set.iter().filter(|set| **set).count() {
        0 => errors.invalid(path, "", "exactly one value must be specified"),
        1 => {}
        _ => errors.invalid(path, attribute, "exactly one value must be specified"),
    }
}

/// `1.2.3[-pre.release][+build]`, as semver.org defines it.
fn is_semantic_version(text: &str) -> bool {
    let word = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let number = |part: &str| {
        part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0')) && !part.is_empty()
    };
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, pre) = text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
    let numeric = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3
        && numbers.into_iter().all(number)
        && pre.is_none_or(|pre| pre.split('.').all(|part| word(part) && (!numeric(part) || number(part))))
        && build.is_none_or(|build| build.split('.').all(word))
}

/// Only a device that several claims may share can say how its capacity is divided.
fn validate_capacity(errors: &mut FieldErrors, path: &Path<'_>, capacity: &DeviceCapacity, shared: bool) {
    let Some(policy) = &capacity.request_policy else { return };
    let path = path.child("requestPolicy");
    if !shared {
        errors.forbidden(path, "allowMultipleAllocations must be true");
        return;
    }
    let values = items(&policy.valid_values);
    match (&policy.valid_range, values.is_empty()) {
        (Some(_), false) => errors.forbidden(
            path,
            "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time",
        ),
        (Some(range), true) => {
            if let Some(default) = default_of(errors, &path, policy, "validRange") {
                validate_range(errors, &path.child("validRange"), default, &capacity.value, range)
            }
        }
        (None, false) => {
            if let Some(default) = default_of(errors, &path, policy, "validValues") {
                validate_values(errors, &path.child("validValues"), default, &capacity.value, values)
            }
        }
        (None, true) => {}
    }
}

fn default_of<'a>(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    policy: &'a CapacityRequestPolicy,
    needed_by: &str,
) -> Option<&'a Quantity> {
    if policy.default.is_none() {
        errors.required(path.child("default"), format!("required when {needed_by} is defined"));
    }
    policy.default.as_ref()
}

/// Stored quantities parse: decoding has checked them.
fn amount(quantity: &Quantity) -> Amount {
    Amount::parse(&quantity.0).unwrap_or_default()
}

fn validate_values(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    default: &Quantity,
    capacity: &Quantity,
    values: &[Quantity],
) {
    for (i, pair) in values.windows(2).enumerate() {
        if let [before, after] = pair
            && amount(before) > amount(after)
        {
            errors.invalid(path.index(i + 1), &after.0, "values must be sorted in ascending order");
        }
    }
    rules::each_once(
        errors,
        path,
        values,
        DISCRETE_VALUES,
        |value| amount(value).value(),
        |errors, path, value| {
            if amount(value) > amount(capacity) {
                errors.invalid(path, &value.0, format!("option is larger than capacity value: {}", capacity.0));
            }
        },
    );
    if !values.iter().any(|value| amount(value) == amount(default)) {
        errors.invalid(path, &default.0, "default value is not valid according to the requestPolicy");
    }
}

fn validate_range(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    default: &Quantity,
    capacity: &Quantity,
    range: &CapacityRequestPolicyRange,
) {
    let (min, all, usual) = (amount(&range.min), amount(capacity), amount(default));
    if min > all {
        errors.invalid(path.child("min"), &range.min.0, format!("min is larger than capacity value: {}", capacity.0));
    }
    if usual < min {
        errors.invalid(path.child("min"), &default.0, format!("default is less than min: {}", range.min.0));
    }
    if let Some(max) = &range.max {
        let path = path.child("max");
        if min > amount(max) {
            errors.invalid(path, &range.min.0, format!("min is larger than max: {}", max.0));
        }
        if amount(max) > all {
            errors.invalid(path, &max.0, format!("max is larger than capacity value: {}", capacity.0));
        }
        if usual > amount(max) {
            errors.invalid(path, &default.0, format!("default is more than max: {}", max.0));
        }
    }
    if let Some(step) = &range.step {
        let path = path.child("step");
        let mut one = min.clone();
        one.add(&amount(step));
        if one > all {
            let rule = format!("one step {one} is larger than capacity value: {}", capacity.0);
            errors.invalid(path, &step.0, rule);
        }
        for value in [Some(default), range.max.as_ref()].into_iter().flatten() {
            let (distance, step_size) = (amount(value).value() - min.value(), amount(step).value());
            if step_size != 0 && distance % step_size != 0 {
                let rule = format!("value is not a multiple of a given step ({}) from ({})", step.0, range.min.0);
                errors.invalid(path, &value.0, rule);
            }
        }
    }
}

/// A named set of counters, of a slice or as a device consumes it.
pub(super) fn counter_set(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    (field, name): (&str, &str),
    counters: &BTreeMap<String, Counter>,
) {
    if name.is_empty() {
        errors.required(path.child(field), "");
    } else {
        rules::label(errors, &path.child(field), name);
    }
    let path = path.child("counters");
    if counters.is_empty() {
        errors.required(path, "");
    } else if counters.len() > COUNTERS {
        errors.too_many(path, counters.len(), COUNTERS);
    } else {
        counters.keys().for_each(|name| rules::label(errors, &path, name));
    }
}

fn validate_place(errors: &mut FieldErrors, path: &Path<'_>, device: &Device, per_device: bool) {
    if !per_device {
        if device.node_name.is_some() || device.node_selector.is_some() || device.all_nodes.is_some() {
            errors.invalid(
                path,
                serde_json::Value::Null,
                "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
            );
        }
        return;
    }
    let mut set = Vec::new();
    match device.node_name.as_deref() {
        Some("") => errors.invalid(path.child("nodeName"), "", "must not be empty"),
        Some(name) => {
            set.push("`nodeName`");
            errors.invalid_each(path.child("nodeName"), name, api::validation::dns1123_subdomain(name));
        }
        None => {}
    }
    if let Some(selector) = &device.node_selector {
        set.push("`nodeSelector`");
        placement::node_selector(errors, &path.child("nodeSelector"), selector);
    }
    match device.all_nodes {
        Some(true) => set.push("`allNodes`"),
        Some(false) => errors.invalid(path.child("allNodes"), false, "must be either unset or set to true"),
        None => {}
    }
    let rule = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match set.len() {
        0 => errors.required(path, rule),
        1 => {}
        _ => errors.invalid(path, format!("{{{}}}", set.join(", ")), rule),
    }
}

fn validate_mappings(errors: &mut FieldErrors, path: &Path<'_>, device: &Device) {
    for (name, mapping) in device.node_allocatable_resource_mappings.iter().flatten() {
        let path = path.key(name);
        if name.contains('/') && !name.contains("kubernetes.io/") {
            errors.invalid(path, name, "must be a node allocatable resource name");
        }
        if mapping.allocation_multiplier.is_none() && mapping.capacity_key.is_none() {
            errors.invalid(path, "", "at least one of allocationMultiplier or capacityKey must be set");
        }
        if let Some(multiplier) = &mapping.allocation_multiplier
            && amount(multiplier) <= Amount::default()
        {
            errors.invalid(path.child("allocationMultiplier"), &multiplier.0, "must be positive");
        }
        match mapping.capacity_key.as_deref() {
            Some("") => errors.invalid(path.child("capacityKey"), "", "capacityKey must not be an empty string"),
            Some(key) if !device.capacity.as_ref().is_some_and(|capacity| capacity.contains_key(key)) => {
                errors.not_found(path.child("capacityKey"), key);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_semantic() {
        for (text, valid) in [
            ("1.2.3", true),
            ("1.2.3-alpha.1+build.5", true),
            ("0.0.0", true),
            ("1.2", false),
            ("01.2.3", false),
            ("1.2.3-01", false),
            ("1.2.3-", false),
            ("v1.2.3", false),
        ] {
            assert_eq!(is_semantic_version(text), valid, "{text}");
        }
    }
}
