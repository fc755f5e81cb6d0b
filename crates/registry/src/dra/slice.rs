//! ResourceSlice: some of the devices of one pool, as their driver publishes them.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::{device, rules};
use crate::column::Column;
use crate::core::pod_spec::placement;
use crate::unset::{items, items_mut, or_empty};
use crate::{Call, SelectableField, Strategy, cells};

const DEVICES: usize = 128;
/// With taints, counters or list attributes a device costs more to look at.
const ADVANCED_DEVICES: usize = 64;
const COUNTER_SETS: usize = 8;

pub struct ResourceSliceStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Node", "The node that has the devices."),
    Column::string("Driver", "The driver that manages the devices."),
    Column::string("Pool", "The pool the devices belong to."),
    Column::AGE,
];

const FIELDS: &[SelectableField] = &[
    SelectableField::new("spec.nodeName", &["spec", "nodeName"]),
    SelectableField::new("spec.driver", &["spec", "driver"]),
];

impl Strategy for ResourceSliceStrategy {
    type Object = ResourceSlice;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, slice: &mut ResourceSlice) {
        for device in items_mut(&mut slice.spec.devices) {
            device::apply_defaults(device);
        }
    }

    fn prepare_for_create(&self, call: &Call<'_>, slice: &mut ResourceSlice) {
        stamp_taints(&mut slice.spec, call.now);
    }

    fn validate_create(&self, slice: &ResourceSlice) -> FieldErrors {
        validate_spec(&slice.spec, None)
    }

    fn prepare_for_update(&self, call: &Call<'_>, new: &mut ResourceSlice, _: &ResourceSlice) {
        stamp_taints(&mut new.spec, call.now);
    }

    fn validate_update(&self, new: &ResourceSlice, old: &ResourceSlice) -> FieldErrors {
        validate_spec(&new.spec, Some(&old.spec))
    }

    fn warnings(&self, slice: &ResourceSlice, _: Option<&ResourceSlice>) -> Vec<String> {
        let driver = &slice.spec.driver;
        if *driver == driver.to_lowercase() {
            return Vec::new();
        }
        let quoted = api::field::quote(driver);
        vec![format!("spec.driver: driver names should be lowercase; {quoted} contains uppercase characters")]
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        FIELDS
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, slice: &ResourceSlice, now: Timestamp) -> Vec<Value> {
        let spec = &slice.spec;
        let (node, age) = (or_empty(&spec.node_name), cells::age(&slice.metadata, now));
        vec![cells::name(&slice.metadata), json!(node), json!(spec.driver), json!(spec.pool.name), age]
    }
}

/// A taint without a time was added now.
fn stamp_taints(spec: &mut ResourceSliceSpec, now: Timestamp) {
    for taint in items_mut(&mut spec.devices).iter_mut().flat_map(|device| items_mut(&mut device.taints)) {
        taint.time_added.get_or_insert(Time(now));
    }
}

fn validate_spec(spec: &ResourceSliceSpec, old: Option<&ResourceSliceSpec>) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let path = Path::new("spec");
    rules::driver_name(&mut errors, &path.child("driver"), &spec.driver);
    let pool = path.child("pool");
    rules::pool_name(&mut errors, &pool.child("name"), &spec.pool.name);
    if spec.pool.resource_slice_count <= 0 {
        errors.invalid(pool.child("resourceSliceCount"), spec.pool.resource_slice_count, "must be greater than zero");
    }
    if spec.pool.generation < 0 {
        errors.invalid(pool.child("generation"), spec.pool.generation, "must be greater than or equal to zero");
    }
    if let Some(old) = old {
        errors.immutable(pool.child("name"), &spec.pool.name, &old.pool.name);
        errors.immutable(path.child("driver"), &spec.driver, &old.driver);
        errors.immutable(path.child("nodeName"), &spec.node_name, &old.node_name);
    }
    validate_place(&mut errors, &path, spec);
    if spec.shared_counters.is_some() && spec.devices.is_some() {
        errors.invalid(path, "", "only one of `sharedCounters` or `devices` is allowed");
    }
    let devices = items(&spec.devices);
    let max = if devices.iter().any(device::is_advanced) { ADVANCED_DEVICES } else { DEVICES };
    let per_device = spec.per_device_node_selection == Some(true);
    let name = |device: &Device| device.name.clone();
    rules::each_once(&mut errors, &path.child("devices"), devices, max, name, |errors, path, device| {
        let old = old.and_then(|old| items(&old.devices).iter().find(|candidate| candidate.name == device.name));
        device::validate(errors, path, device, old, per_device);
    });
    let sets = items(&spec.shared_counters);
    let name = |set: &CounterSet| set.name.clone();
    rules::each_once(&mut errors, &path.child("sharedCounters"), sets, COUNTER_SETS, name, |errors, path, set| {
        device::counter_set(errors, path, ("name", &set.name), &set.counters);
    });
    errors
}

/// Where the devices are: on one node, on some, on all, or each device says so itself.
fn validate_place(errors: &mut FieldErrors, path: &Path<'_>, spec: &ResourceSliceSpec) {
    let mut set = Vec::new();
    match spec.node_name.as_deref() {
        Some("") => errors.invalid(path.child("nodeName"), "", "must be either unset or set to a non-empty string"),
        Some(name) => {
            set.push("`nodeName`");
            errors.invalid_each(path.child("nodeName"), name, api::validation::dns1123_subdomain(name));
        }
        None => {}
    }
    if let Some(selector) = &spec.node_selector {
        set.push("`nodeSelector`");
        let path = path.child("nodeSelector");
        placement::node_selector(errors, &path, selector);
        if selector.node_selector_terms.len() != 1 {
            let terms = &selector.node_selector_terms;
            errors.invalid(path.child("nodeSelectorTerms"), terms, "must have exactly one node selector term");
        }
    }
    for (field, value, quoted) in [
        ("allNodes", spec.all_nodes, "`allNodes`"),
        ("perDeviceNodeSelection", spec.per_device_node_selection, "`perDeviceNodeSelection`"),
    ] {
        match value {
            Some(true) => set.push(quoted),
            Some(false) => errors.invalid(path.child(field), false, "must be either unset or set to true"),
            None => {}
        }
    }
    let rule = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set.len() {
        0 => errors.required(path, rule),
        1 => {}
        _ => {
            errors.invalid(path, format!("{{{}}}", set.join(", ")), format!("{rule}, but multiple fields are set"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(change: impl FnOnce(&mut Value)) -> ResourceSlice {
        let mut value = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}]}});
        change(&mut value["spec"]);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn slices_are_checked() {
        type Change = fn(&mut Value);
        let rows: &[(Change, &str)] = &[
            (|_| {}, ""),
            (|spec| spec["allNodes"] = true.into(), "{`nodeName`, `allNodes`}"),
            (|spec| spec["nodeName"] = Value::Null, "spec: Required value: exactly one of"),
            (|spec| spec["pool"]["resourceSliceCount"] = 0.into(), "spec.pool.resourceSliceCount: Invalid value: 0"),
            (|spec| spec["driver"] = "".into(), "spec.driver: Required value"),
            (|spec| spec["devices"] = json!([{"name": "a"}, {"name": "a"}]), "spec.devices[1]: Duplicate value: \"a\""),
            (
                |spec| spec["devices"] = (0..129).map(|n| json!({"name": format!("d{n}")})).collect(),
                "spec.devices: Too many: 129: must have at most 128 items",
            ),
            (
                |spec| spec["devices"] = json!([{"name": "a", "attributes": {"x": {"int": 1, "bool": true}}}]),
                "spec.devices[0].attributes[x]: Invalid value",
            ),
            (
                |spec| spec["devices"] = json!([{"name": "a", "attributes": {"x": {"version": "1.0"}}}]),
                "must be a string compatible with semver.org spec 2.0.0",
            ),
            (
                |spec| spec["devices"] = json!([{"name": "a", "taints": [{"key": "k", "effect": "Never"}]}]),
                "spec.devices[0].taints[0].effect: Unsupported value: \"Never\"",
            ),
        ];
        for (change, expected) in rows {
            let errors = ResourceSliceStrategy.validate_create(&slice(change));
            let text = errors.to_string();
            assert_eq!(expected.is_empty(), errors.is_empty(), "{text}");
            assert!(errors.is_empty() || text.contains(expected), "{expected}: {text}");
        }
    }
}
