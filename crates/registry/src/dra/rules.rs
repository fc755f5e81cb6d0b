//! Rules that several kinds of this group share: names, selectors, configurations, taints, conditions.

use api::field::{FieldErrors, Path};
use api::validation;
use k8s_openapi::api::resource::v1::{DeviceSelector, DeviceTaint, DeviceToleration, OpaqueDeviceConfiguration};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde::Serialize;
use serde_json::Value;

use crate::unset::{or_empty, text};

const DRIVER_NAME: usize = 63;
const POOL_NAME: usize = 253;
const IDENTIFIER: usize = 32;
const EXPRESSION: usize = 10 * 1024;
pub const SELECTORS: usize = 32;
pub const CONFIGURATIONS: usize = 32;
/// Requests of a claim, and results of its allocation.
pub const REQUESTS: usize = 32;
/// Opaque parameters and the data of a device, in bytes.
pub const RAW: usize = 10 * 1024;
const BINDING_CONDITIONS: usize = 4;
pub const CONDITIONS: usize = 8;

/// Checks every element of a list that may not be longer than `max`; one that is gets no further look.
pub fn each<T>(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    items: &[T],
    max: usize,
    mut check: impl FnMut(&mut FieldErrors, &Path<'_>, &T),
) {
    if items.len() > max {
        errors.too_many(path, items.len(), max);
        return;
    }
    for (i, item) in items.iter().enumerate() {
        check(errors, &path.index(i), item);
    }
}

/// As [`each`], and no two elements may have the same key.
pub fn each_once<T, K: PartialEq + Serialize>(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    items: &[T],
    max: usize,
    key: impl Fn(&T) -> K,
    check: impl FnMut(&mut FieldErrors, &Path<'_>, &T),
) {
    each(errors, path, items, max, check);
    if items.len() > max {
        return;
    }
    let mut seen: Vec<K> = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let key = key(item);
        if seen.contains(&key) {
            errors.duplicate(path.index(i), &key);
        } else {
            seen.push(key);
        }
    }
}

/// The name of a driver, spelled as that of a CSI driver.
pub fn driver_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
    }
    if name.len() > DRIVER_NAME {
        errors.too_long(path, DRIVER_NAME);
    }
    errors.invalid_each(path, name, validation::dns1123_subdomain(&name.to_lowercase()));
}

/// Subdomains with slashes between them.
pub fn pool_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name.len() > POOL_NAME {
        errors.too_long(path, POOL_NAME);
    }
    for part in name.split('/') {
        errors.invalid_each(path, part, validation::dns1123_subdomain(part));
    }
}

pub fn label(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    errors.invalid_each(path, name, validation::dns1123_label(name));
}

pub fn class_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
    } else {
        errors.invalid_each(path, name, validation::dns1123_subdomain(name));
    }
}

/// `[<domain>/]<C identifier>`: the name of an attribute or a capacity.
pub fn qualified_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    let identifier = |errors: &mut FieldErrors, id: &str| {
        if id.len() > IDENTIFIER {
            errors.too_long(path, IDENTIFIER);
        }
        errors.invalid_each(path, id, validation::c_identifier(id));
    };
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [id] => identifier(errors, id),
        [domain, id] => {
            if domain.is_empty() {
                errors.invalid(path, "", "the domain must not be empty");
            } else {
                driver_name(errors, path, domain);
            }
            if id.is_empty() {
                errors.invalid(path, "", "the name must not be empty");
            } else {
                identifier(errors, id);
            }
        }
        _ => {}
    }
}

pub fn fully_qualified_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    qualified_name(errors, path, name);
    if !name.contains('/') {
        errors.invalid(path, name, "a fully qualified name must be a domain and a name separated by a slash");
    }
}

pub fn selectors(errors: &mut FieldErrors, path: &Path<'_>, selectors: &[DeviceSelector]) {
    each(errors, path, selectors, SELECTORS, |errors, path, selector| match &selector.cel {
        None => errors.required(path.child("cel"), ""),
        Some(cel) if cel.expression.len() > EXPRESSION => {
            errors.too_long(path.child("cel").child("expression"), EXPRESSION);
        }
        Some(_) => {}
    });
}

/// The one form of configuration there is: parameters that only the driver understands.
pub fn configuration(errors: &mut FieldErrors, path: &Path<'_>, opaque: Option<&OpaqueDeviceConfiguration>) {
    let path = path.child("opaque");
    let Some(opaque) = opaque else {
        errors.required(path, "");
        return;
    };
    driver_name(errors, &path.child("driver"), &opaque.driver);
    raw(errors, &path.child("parameters"), &opaque.parameters);
}

/// A JSON object of limited size.
pub fn raw(errors: &mut FieldErrors, path: &Path<'_>, data: &RawExtension) {
    match &data.0 {
        Value::Null => errors.required(path, ""),
        value if value.to_string().len() > RAW => errors.too_long(path, RAW),
        Value::Object(_) => {}
        _ => errors.invalid(path, "<value omitted>", "must be a valid JSON object"),
    }
}

const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

/// `old_effect` is not looked at again.
pub fn taint(errors: &mut FieldErrors, path: &Path<'_>, taint: &DeviceTaint, old_effect: Option<&str>) {
    errors.invalid_each(path.child("key"), &taint.key, validation::qualified_name(&taint.key));
    if let Some(value) = text(&taint.value) {
        errors.invalid_each(path.child("value"), value, validation::label_value(value));
    }
    if old_effect == Some(taint.effect.as_str()) {
        return;
    }
    match taint.effect.as_str() {
        "" => errors.required(path.child("effect"), ""),
        effect if !EFFECTS.contains(&effect) => errors.not_supported(path.child("effect"), effect, EFFECTS),
        _ => {}
    }
}

pub fn tolerations(errors: &mut FieldErrors, path: &Path<'_>, tolerations: &[DeviceToleration]) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let path = path.index(i);
        if let Some(key) = text(&toleration.key) {
            errors.invalid_each(path.child("key"), key, validation::qualified_name(key));
        }
        let value = or_empty(&toleration.value);
        match or_empty(&toleration.operator) {
            "Exists" if !value.is_empty() => {
                errors.invalid(path.child("value"), value, "must be empty for operator `Exists`");
            }
            "Exists" => {}
            "Equal" => errors.invalid_each(path.child("value"), value, validation::label_value(value)),
            "" => errors.required(path.child("operator"), ""),
            other => errors.not_supported(path.child("operator"), other, &["Equal", "Exists"]),
        }
        if let Some(effect) = text(&toleration.effect).filter(|effect| !EFFECTS.contains(effect)) {
            errors.not_supported(path.child("effect"), effect, EFFECTS);
        }
    }
}

/// Conditions a device waits for, and those that end the waiting: either both lists or neither.
pub fn binding_conditions(errors: &mut FieldErrors, path: &Path<'_>, wanted: &[String], failed: &[String]) {
    let (wanted_path, failed_path) = (path.child("bindingConditions"), path.child("bindingFailureConditions"));
    let name = |errors: &mut FieldErrors, path: &Path<'_>, name: &String| {
        errors.invalid_each(path, name, validation::qualified_name(name));
    };
    each_once(errors, &wanted_path, wanted, BINDING_CONDITIONS, String::clone, name);
    each_once(errors, &failed_path, failed, BINDING_CONDITIONS, String::clone, name);
    for (i, condition) in failed.iter().enumerate().filter(|(_, condition)| wanted.contains(condition)) {
        errors.invalid(
            failed_path.index(i),
            condition,
            "bindingFailureConditions must not overlap with bindingConditions",
        );
    }
    if wanted.is_empty() && !failed.is_empty() {
        errors.invalid(wanted_path, wanted, "bindingConditions are required to use bindingFailureConditions");
    }
    if failed.is_empty() && !wanted.is_empty() {
        errors.invalid(failed_path, failed, "bindingFailureConditions are required to use bindingConditions");
    }
}
