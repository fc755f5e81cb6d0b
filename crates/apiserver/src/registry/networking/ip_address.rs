//! IPAddress: one allocated address and the service that has it.

use jiff::Timestamp;
use k8s_openapi::api::networking::v1::IPAddress;
use serde_json::{Value, json};

use crate::registry::column::Column;
use crate::registry::unset::{or_empty, text};
use crate::registry::{NameRule, SelectableField, Strategy, cells};

pub struct IpAddressStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::string("ParentRef", "What the address belongs to."), Column::AGE];

impl Strategy for IpAddressStrategy {
    type Object = IPAddress;
    const COUNTS_GENERATIONS: bool = true;

    fn name_rule(&self) -> NameRule {
        NameRule::IpAddress
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        &[]
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
