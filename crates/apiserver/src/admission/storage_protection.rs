//! StorageObjectInUseProtection: volumes, claims and classes of attributes get a finalizer, so that they outlive those who use them.

use std::sync::Arc;

use super::{Admitted, Attributes, Plugin, admitted};
use crate::cluster::Cluster;

pub(super) struct StorageObjectInUseProtection;

impl Plugin for StorageObjectInUseProtection {
    fn admit<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let finalizer = if attributes.creates("", "persistentvolumeclaims") {
            "kubernetes.io/pvc-protection"
        } else if attributes.creates("", "persistentvolumes") {
            "kubernetes.io/pv-protection"
        } else if attributes.creates("storage.k8s.io", "volumeattributesclasses") {
            "kubernetes.io/vac-protection"
        } else {
            return admitted();
        };
        if let Some(object) = attributes.object.as_deref_mut() {
            let finalizers = object.meta_mut().finalizers.get_or_insert_default();
            if !finalizers.iter().any(|present| present == finalizer) {
                finalizers.push(finalizer.to_owned());
            }
        }
        admitted()
    }
}
