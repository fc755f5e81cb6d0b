//! IPAddress: one allocated address and the service that has it.

use api::field::{FieldErrors, Path};
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::IPAddress;
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::{or_empty, text};
use crate::{NameRule, Strategy, cells};

pub struct IpAddressStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::string("ParentRef", "What the address belongs to."), Column::AGE];

impl Strategy for IpAddressStrategy {
    type Object = IPAddress;
    const COUNTS_GENERATIONS: bool = true;

    fn name_rule(&self) -> NameRule {
        NameRule::IpAddress
    }

    fn validate_create(&self, address: &IPAddress) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let parent = &address.spec.parent_ref;
        let path = Path::new("spec");
        let path = path.child("parentRef");
        if let Some(group) = text(&parent.group) {
            errors.invalid_each(path.child("group"), group, validation::dns1123_subdomain(group));
        }
        for (field, value) in [("resource", &parent.resource), ("name", &parent.name)] {
            if value.is_empty() {
                errors.required(path.child(field), "");
            } else {
                errors.invalid_each(path.child(field), value, validation::path_segment_name(value));
            }
        }
        if let Some(namespace) = text(&parent.namespace) {
            errors.invalid_each(path.child("namespace"), namespace, validation::path_segment_name(namespace));
        }
        errors
    }

    fn validate_update(&self, new: &IPAddress, old: &IPAddress) -> FieldErrors {
        let mut errors = FieldErrors::default();
        errors.immutable("spec.parentRef", &new.spec.parent_ref, &old.spec.parent_ref);
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, address: &IPAddress, now: Timestamp) -> Vec<Value> {
        let parent = &address.spec.parent_ref;
        let resource = match text(&parent.group) {
            Some(group) => format!("{}.{group}", parent.resource),
            None => parent.resource.clone(),
        };
        let parent = format!("{resource}/{}/{}", or_empty(&parent.namespace), parent.name);
        vec![cells::name(&address.metadata), json!(parent), cells::age(&address.metadata, now)]
    }
}
