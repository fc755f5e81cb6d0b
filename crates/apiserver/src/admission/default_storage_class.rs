//! DefaultStorageClass: a claim that names no class gets the default one, if there is one.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use super::default_class::newest_default;
use super::{Admitted, Attributes, Plugin, admitted};
use crate::cluster::Cluster;

pub(super) struct DefaultStorageClass;

impl Plugin for DefaultStorageClass {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let creates = attributes.creates("", "persistentvolumeclaims");
        if let Some(claim) = attributes.object_mut::<PersistentVolumeClaim>().filter(|_| creates)
            && api::beta_annotations::claim_class(claim).is_none()
        {
            match newest_default::<StorageClass>(cluster, &api::default_class::STORAGE) {
                Ok(default) => claim.spec.get_or_insert_default().storage_class_name = default,
                Err(unreadable) => return Err(unreadable.into()).into(),
            }
        }
        admitted()
    }
}
