//! RuntimeClass: which runtime configuration a pod runs with.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::node::v1::RuntimeClass;
use serde_json::{Value, json};

use crate::column::Column;
use crate::core::pod_spec::placement;
use crate::unset::items;
use crate::{Strategy, cells, metadata};

pub struct RuntimeClassStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::string("Handler", "The runtime's name for it."), Column::AGE];

impl Strategy for RuntimeClassStrategy {
    type Object = RuntimeClass;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn validate_create(&self, class: &RuntimeClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        errors.invalid_each("handler", &class.handler, api::validation::dns1123_label(&class.handler));
        if let Some(scheduling) = &class.scheduling {
            let path = Path::new("scheduling");
            metadata::labels(&mut errors, &path.child("nodeSelector"), scheduling.node_selector.as_ref());
            placement::tolerations(&mut errors, &path.child("tolerations"), items(&scheduling.tolerations));
        }
        errors
    }

    fn validate_update(&self, new: &RuntimeClass, old: &RuntimeClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        errors.immutable("handler", &new.handler, &old.handler);
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, class: &RuntimeClass, now: Timestamp) -> Vec<Value> {
        vec![cells::name(&class.metadata), json!(class.handler), cells::age(&class.metadata, now)]
    }
}
