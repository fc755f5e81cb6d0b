//! DefaultStorageClass: a claim that names no class gets the default one, if there is one.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use super::{Admitted, Attributes, Plugin};
use crate::state::State;

pub(super) struct DefaultStorageClass;

const DEFAULT: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn admit<'a>(&'a self, state: &'a Arc<State>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let creates = attributes.creates("", "persistentvolumeclaims");
        if let Some(claim) = attributes.object_mut::<PersistentVolumeClaim>().filter(|_| creates) {
            let annotated = claim
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|annotations| annotations.contains_key(CLASS_ANNOTATION));
            let spec = claim.spec.get_or_insert_default();
            if spec.storage_class_name.is_none() && !annotated {
                spec.storage_class_name = default_class(state);
            }
        }
        super::admitted()
    }
}

/// The newest of the default classes, then the first by name.
fn default_class(state: &State) -> Option<String> {
    let mut classes: Vec<StorageClass> = state.peek_all("storageclasses", None);
    classes.retain(|class| {
        let annotations = class.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| {
            DEFAULT.iter().any(|key| annotations.get(*key).is_some_and(|value| value == "true"))
        })
    });
    classes.sort_by(|a, b| {
        let (a, b) = (&a.metadata, &b.metadata);
        b.creation_timestamp.cmp(&a.creation_timestamp).then_with(|| a.name.cmp(&b.name))
    });
    classes.into_iter().next().and_then(|class| class.metadata.name)
}
