//! VolumeAttachment: a wish to have a volume on a node.

use api::field::{FieldErrors, IMMUTABLE};
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::or_empty;
use crate::{Strategy, cells};

pub struct VolumeAttachmentStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column { format: "name", ..Column::string("Attacher", "Who attaches it.") },
    Column::string("PV", "The volume."),
    Column::string("Node", "The node."),
    Column { r#type: "boolean", ..Column::string("Attached", "Whether it is there.") },
    Column::AGE,
];

impl Strategy for VolumeAttachmentStrategy {
    type Object = VolumeAttachment;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn validate_create(&self, attachment: &VolumeAttachment) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = &attachment.spec;
        if spec.attacher.is_empty() {
            errors.required("spec.attacher", "");
        }
        let source = &spec.source;
        match (&source.persistent_volume_name, &source.inline_volume_spec) {
            (None, None) => {
                errors.required("spec.source", "must specify exactly one of inlineVolumeSpec and persistentVolumeName")
            }
            (Some(_), Some(_)) => {
                errors.forbidden("spec.source", "must specify exactly one of inlineVolumeSpec and persistentVolumeName")
            }
            (Some(name), None) if name.is_empty() => {
                errors.required("spec.source.persistentVolumeName", "must specify non empty persistentVolumeName");
            }
            _ => {}
        }
        errors.invalid_each("spec.nodeName", &spec.node_name, api::validation::dns1123_subdomain(&spec.node_name));
        errors
    }

    fn validate_update(&self, new: &VolumeAttachment, old: &VolumeAttachment) -> FieldErrors {
        let mut errors = self.validate_create(new);
        if new.spec != old.spec {
            errors.invalid("spec", &new.spec, IMMUTABLE);
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, attachment: &VolumeAttachment, now: Timestamp) -> Vec<Value> {
        let spec = &attachment.spec;
        vec![
            cells::name(&attachment.metadata),
            json!(spec.attacher),
            json!(or_empty(&spec.source.persistent_volume_name)),
            json!(spec.node_name),
            json!(attachment.status.as_ref().is_some_and(|status| status.attached)),
            cells::age(&attachment.metadata, now),
        ]
    }
}
