//! PodTemplate: a pod template that stands alone.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplate;
use serde_json::Value;

use super::pod_spec;
use crate::column::Column;
use crate::{Strategy, cells};

pub struct PodTemplateStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Containers", "Names of the containers in the template."),
    Column::string("Images", "Images of the containers in the template."),
    Column::string("Pod Labels", "Labels of the template."),
];

impl Strategy for PodTemplateStrategy {
    type Object = PodTemplate;
    const COUNTS_GENERATIONS: bool = true;
    const CREATES_ON_UPDATE: bool = true;

    fn apply_defaults(&self, object: &mut PodTemplate) {
        if let Some(pod) = object.template.as_mut().and_then(|template| template.spec.as_mut()) {
            pod_spec::defaults::template(pod);
        }
    }

    fn validate_create(&self, object: &PodTemplate) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let template = object.template.clone().unwrap_or_default();
        pod_spec::template::validate(&mut errors, &Path::new("template"), &template);
        errors
    }

    fn validate_update(&self, new: &PodTemplate, _: &PodTemplate) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &PodTemplate, _: Timestamp) -> Vec<Value> {
        let [containers, images] = cells::template(object.template.as_ref());
        let labels = object.template.as_ref().and_then(|template| template.metadata.as_ref()?.labels.as_ref());
        vec![cells::name(&object.metadata), containers, images, cells::labels(labels)]
    }
}
