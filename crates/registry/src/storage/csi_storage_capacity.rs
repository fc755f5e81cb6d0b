//! CSIStorageCapacity: how much a driver can still make somewhere.

use api::field::{FieldErrors, IMMUTABLE, Path};
use api::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use serde_json::{Value, json};

use crate::column::Column;
use crate::core::pod_spec::node_label;
use crate::metadata::{label_selector, same};
use crate::unset::items;
use crate::{Strategy, cells};

pub struct CsiStorageCapacityStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("StorageClassName", "Of which kind of storage."),
    Column::string("Capacity", "How much there is."),
];

impl Strategy for CsiStorageCapacityStrategy {
    type Object = CSIStorageCapacity;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn validate_create(&self, capacity: &CSIStorageCapacity) -> FieldErrors {
        check(capacity, None)
    }

    fn validate_update(&self, new: &CSIStorageCapacity, old: &CSIStorageCapacity) -> FieldErrors {
        let mut errors = check(new, Some(old));
        if !same(&new.node_topology, &old.node_topology) {
            errors.invalid("nodeTopology", &new.node_topology, IMMUTABLE);
        }
        errors.immutable("storageClassName", &new.storage_class_name, &old.storage_class_name);
        errors
    }

    fn warnings(&self, capacity: &CSIStorageCapacity, _: Option<&CSIStorageCapacity>) -> Vec<String> {
        let Some(topology) = &capacity.node_topology else { return Vec::new() };
        let expressions = items(&topology.match_expressions).iter().enumerate();
        let of_expressions = expressions.filter_map(|(i, expression)| {
            let (key, message) = (&expression.key, node_label(&expression.key)?);
            Some(format!("nodeTopology.matchExpressions[{i}].key: {key} is {message}"))
        });
        let labels = topology.match_labels.iter().flatten();
        let of_labels =
            labels.filter_map(|(key, _)| Some(format!("nodeTopology.matchLabels.{key}: {}", node_label(key)?)));
        of_expressions.chain(of_labels).collect()
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, capacity: &CSIStorageCapacity, _: Timestamp) -> Vec<Value> {
        let size = capacity.capacity.as_ref().map_or("<unset>", |size| size.0.as_str());
        vec![cells::name(&capacity.metadata), json!(capacity.storage_class_name), json!(size)]
    }
}

/// What is as it was stored is not looked at again.
fn check(capacity: &CSIStorageCapacity, old: Option<&CSIStorageCapacity>) -> FieldErrors {
    let mut errors = FieldErrors::default();
    if old.is_none_or(|old| !same(&capacity.node_topology, &old.node_topology)) {
        label_selector(&mut errors, &Path::new("nodeTopology"), capacity.node_topology.as_ref());
    }
    let class = &capacity.storage_class_name;
    if old.is_none_or(|old| *class != old.storage_class_name) {
        errors.invalid_each("storageClassName", class, api::validation::dns1123_subdomain(class));
    }
    if let Some(size) = capacity.capacity.as_ref().filter(|_| old.is_none_or(|old| capacity.capacity != old.capacity))
        && let Ok(size) = size.0.parse::<Quantity>()
        && size.is_negative()
    {
        errors.invalid("capacity", size, "must be greater than or equal to 0");
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_of_a_class_somewhere() {
        for (capacity, expected) in [
            (json!({"storageClassName": "fast"}), vec![]),
            (
                json!({"storageClassName": "fast", "capacity": "0", "maximumVolumeSize": "1Gi",
                    "nodeTopology": {"matchLabels": {"zone": "a"}}}),
                vec![],
            ),
            (
                json!({"storageClassName": "fast", "capacity": "-1024Mi"}),
                vec!["capacity: Invalid value: \"-1Gi\": must be greater than or equal to 0"],
            ),
            (
                json!({"storageClassName": "fast",
                    "nodeTopology": {"matchExpressions": [{"key": "zone", "operator": "In"}]}}),
                vec![
                    "nodeTopology.matchExpressions[0].values: Required value: \
                     must be specified when `operator` is 'In' or 'NotIn'",
                ],
            ),
        ] {
            let object = serde_json::from_value(capacity.clone()).unwrap();
            let errors = CsiStorageCapacityStrategy.validate_create(&object);
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said, expected, "{capacity}");
        }
    }

    #[test]
    fn labels_that_have_other_names_now_are_named() {
        let key = "beta.kubernetes.io/os";
        let topology = json!({"matchLabels": {key: "a"}, "matchExpressions": [{"key": key, "operator": "Exists"}]});
        let capacity = json!({"storageClassName": "fast", "nodeTopology": topology});
        let said = CsiStorageCapacityStrategy.warnings(&serde_json::from_value(capacity).unwrap(), None);
        let message = "deprecated since v1.14; use \"kubernetes.io/os\" instead";
        let expected = [
            format!("nodeTopology.matchExpressions[0].key: {key} is {message}"),
            format!("nodeTopology.matchLabels.{key}: {message}"),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn what_is_stored_is_not_looked_at_again() {
        let capacity = |zone: &str, size: &str| -> CSIStorageCapacity {
            let topology = json!({"matchLabels": {"zone": zone}});
            let capacity = json!({"storageClassName": "fast", "capacity": size, "nodeTopology": topology});
            serde_json::from_value(capacity).unwrap()
        };
        let refused = |new: &CSIStorageCapacity, old| CsiStorageCapacityStrategy.validate_update(new, old).len();
        let old = capacity("a b", "1Gi");
        assert_eq!(CsiStorageCapacityStrategy.validate_create(&old).len(), 1);
        assert_eq!(refused(&capacity("a b", "2Gi"), &old), 0);
        assert_eq!(refused(&capacity("a b", "-2Gi"), &old), 1);
        assert_eq!(refused(&capacity("c d", "1Gi"), &old), 2, "not valid, and not to be changed");
    }
}
