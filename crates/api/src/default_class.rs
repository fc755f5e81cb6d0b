//! Which of several classes marked as default is the default: of storage, of ingress.

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// What marks a StorageClass.
pub const STORAGE: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// Whether one of the annotations marks a class.
pub fn is_marked(class: &ObjectMeta, annotations: &[&str]) -> bool {
    let set = class.annotations.as_ref();
    set.is_some_and(|set| annotations.iter().any(|key| set.get(*key).is_some_and(|value| value == "true")))
}

/// Of those that are marked the first counts: the newest, and of two as new the one whose name comes first.
pub fn order(left: &ObjectMeta, right: &ObjectMeta) -> Ordering {
    right.creation_timestamp.cmp(&left.creation_timestamp).then_with(|| left.name.cmp(&right.name))
}
