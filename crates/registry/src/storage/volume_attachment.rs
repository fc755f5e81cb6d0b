//! VolumeAttachment: a wish to have a volume on a node.

use api::field::{FieldErrors, IMMUTABLE, Path};
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentStatus};
use serde_json::{Value, json};

use crate::column::Column;
use crate::core::persistent_volume::{Context, validate_spec};
use crate::core::volume_sources::csi_driver_name;
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
        csi_driver_name(&mut errors, &Path::new("spec.attacher"), &spec.attacher);
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
            (None, Some(inline)) => {
                validate_spec(&mut errors, &Path::new("spec.source.inlineVolumeSpec"), inline, Context::Inline);
            }
            (Some(_), None) => {}
        }
        errors.invalid_each("spec.nodeName", &spec.node_name, api::validation::dns1123_subdomain(&spec.node_name));
        validate_status(&mut errors, attachment.status.as_ref());
        if let Some(name) = &source.persistent_volume_name {
            errors.invalid_each("spec.source.persistentVolumeName", name, api::validation::dns1123_subdomain(name));
        }
        errors
    }

    fn validate_update(&self, new: &VolumeAttachment, old: &VolumeAttachment) -> FieldErrors {
        // What was stored under other rules can still be detached and deleted.
        if new.spec == old.spec {
            return FieldErrors::default();
        }
        let mut errors = self.validate_create(new);
        errors.invalid("spec", &new.spec, IMMUTABLE);
        errors
    }

    /// Drivers write here, and nowhere else.
    fn validate_status_update(&self, new: &VolumeAttachment, old: &VolumeAttachment) -> FieldErrors {
        let mut errors = FieldErrors::default();
        validate_status(&mut errors, new.status.as_ref().filter(|status| old.status.as_ref() != Some(*status)));
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

/// What drivers say about an attachment has an end.
fn validate_status(errors: &mut FieldErrors, status: Option<&VolumeAttachmentStatus>) {
    const MAX_METADATA: usize = 256 * (1 << 10);
    const MAX_MESSAGE: usize = 1024;
    let Some(status) = status else { return };
    let metadata = status.attachment_metadata.iter().flatten();
    if metadata.map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_METADATA {
        errors.too_long("status.attachmentMetadata", MAX_METADATA);
    }
    for (field, error) in [("attachError", &status.attach_error), ("detachError", &status.detach_error)] {
        let Some(error) = error else { continue };
        if error.message.as_ref().is_some_and(|message| message.len() > MAX_MESSAGE) {
            errors.too_long(format!("status.{field}.message"), MAX_METADATA);
        }
        if let Some(code) = error.error_code.filter(|code| *code < 0) {
            let range = api::validation::in_range(i64::from(code), 0, i64::from(i32::MAX));
            errors.invalid_each(format!("status.{field}.errorCode"), code, range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drivers_say_has_an_end() {
        let with = |length: usize| -> VolumeAttachment {
            let spec = json!({"attacher": "d", "nodeName": "a", "source": {"persistentVolumeName": "v"}});
            let status = json!({"attached": false, "attachError": {"message": "x".repeat(length)}});
            serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec, "status": status})).unwrap()
        };
        let said = |old: usize, new: usize| {
            VolumeAttachmentStrategy.validate_status_update(&with(new), &with(old)).iter().count()
        };
        assert_eq!((said(0, 1024), said(0, 1025), said(1025, 1025)), (0, 1, 0));
    }

    #[test]
    fn security_inline_volumes_are_checked_like_others() {
        let said = |attacher: &str, source: Value| -> Vec<String> {
            let spec = json!({"attacher": attacher, "nodeName": "a", "source": source});
            let attachment = serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec})).unwrap();
            VolumeAttachmentStrategy.validate_create(&attachment).iter().map(ToString::to_string).collect()
        };
        let inline = |more: Value| {
            let mut spec = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "1"}});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"inlineVolumeSpec": spec})
        };
        let path = "spec.source.inlineVolumeSpec";
        const CONTEXT: &str = "in the context of inline volumes";
        assert_eq!(said("d.example.com", inline(json!({}))), Vec::<String>::new());
        assert_eq!(said("d", json!({"persistentVolumeName": "v"})), Vec::<String>::new());
        for (attacher, source, expected) in [
            (
                "d",
                inline(json!({"csi": null, "hostPath": {"path": "/"}})),
                format!("{path}.csi: Required value: has to be specified {CONTEXT}"),
            ),
            (
                "d",
                inline(json!({"claimRef": {}})),
                format!("{path}.claimRef: Forbidden: may not be specified {CONTEXT}"),
            ),
            (
                "d",
                inline(json!({"capacity": {"storage": "1"}})),
                format!("{path}.capacity: Forbidden: may not be specified {CONTEXT}"),
            ),
            (
                "d",
                inline(json!({"persistentVolumeReclaimPolicy": "Delete"})),
                format!("{path}.persistentVolumeReclaimPolicy: Forbidden: may only be Retain {CONTEXT}"),
            ),
            (
                "d",
                inline(json!({"nodeAffinity": {}})),
                format!("{path}.nodeAffinity: Forbidden: may not be specified {CONTEXT}"),
            ),
            (
                "d",
                inline(json!({"storageClassName": "a"})),
                format!("{path}.storageClassName: Forbidden: may not be specified {CONTEXT}"),
            ),
            (
                "d",
                inline(json!({"volumeMode": "Block"})),
                format!("{path}.volumeMode: Forbidden: may not specify volumeMode other than Filesystem {CONTEXT}"),
            ),
            (
                "d",
                inline(json!({"csi": {"driver": "../d", "volumeHandle": "1"}})),
                format!("{path}.csi.driver: Invalid value: \"../d\""),
            ),
            ("../d", inline(json!({})), "spec.attacher: Invalid value: \"../d\"".to_owned()),
            (
                "d",
                json!({"persistentVolumeName": "../v"}),
                "spec.source.persistentVolumeName: Invalid value: \"../v\"".to_owned(),
            ),
        ] {
            let said = said(attacher, source.clone());
            assert!(said.len() == 1 && said[0].starts_with(&expected), "{source}: {said:?}");
        }
    }
}
