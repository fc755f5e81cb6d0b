//! DeviceClass: devices that are alike, and how they are configured.

use api::field::{FieldErrors, Path};
use api::pod::resources::is_extended;
use k8s_openapi::api::resource::v1::DeviceClass;

use super::rules;
use crate::Strategy;
use crate::column::Column;
use crate::unset::items;

pub struct DeviceClassStrategy;

impl Strategy for DeviceClassStrategy {
    type Object = DeviceClass;
    const COUNTS_GENERATIONS: bool = true;

    fn validate_create(&self, class: &DeviceClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let path = Path::new("spec");
        rules::selectors(&mut errors, &path.child("selectors"), items(&class.spec.selectors));
        let configurations = items(&class.spec.config);
        rules::each(
            &mut errors,
            &path.child("config"),
            configurations,
            rules::CONFIGURATIONS,
            |errors, path, config| {
                rules::configuration(errors, path, config.opaque.as_ref());
            },
        );
        if let Some(name) = &class.spec.extended_resource_name
            && !is_extended(name)
        {
            errors.invalid(path.child("extendedResourceName"), name, "must be a valid extended resource name");
        }
        errors
    }

    fn validate_update(&self, new: &DeviceClass, _: &DeviceClass) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        &[Column::NAME, Column::AGE]
    }

    fn cells(&self, class: &DeviceClass, now: jiff::Timestamp) -> Vec<serde_json::Value> {
        crate::cells::name_and_age(&class.metadata, now)
    }
}
