//! ServiceAccount: the identity of pods.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::Value;

use crate::column::Column;
use crate::{Strategy, cells};

pub struct ServiceAccountStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::AGE];

impl Strategy for ServiceAccountStrategy {
    type Object = ServiceAccount;

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, account: &ServiceAccount, now: Timestamp) -> Vec<Value> {
        vec![cells::name(&account.metadata), cells::age(&account.metadata, now)]
    }
}
