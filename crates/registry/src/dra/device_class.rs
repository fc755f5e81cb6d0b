//! DeviceClass: devices that are alike, and how they are configured.

use api::field::{FieldErrors, Path};
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
            && !is_extended_resource(name)
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

/// A name with a domain that is not Kubernetes' own, and that quotas can name too.
fn is_extended_resource(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native && !name.starts_with("requests.") && api::validation::qualified_name(&format!("requests.{name}")).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_resources_have_a_domain_of_their_own() {
        for (name, extended) in [
            ("example.com/gpu", true),
            ("gpu", false),
            ("kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/", false),
        ] {
            assert_eq!(is_extended_resource(name), extended, "{name}");
        }
    }
}
