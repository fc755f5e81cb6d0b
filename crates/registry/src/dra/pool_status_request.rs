//! ResourcePoolStatusRequest: a question about pools that a controller answers once, in the status.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::resource::v1alpha3::{PoolStatus, ResourcePoolStatusRequest};
use serde_json::{Value, json};

use super::rules;
use crate::column::{Column, age};
use crate::unset::items;
use crate::{Strategy, cells};

pub struct ResourcePoolStatusRequestStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Driver", "The driver to query pools for."),
    Column::string("Total", "Total number of devices across all pools."),
    Column::string("Available", "Number of available devices across all pools."),
    Column::string("Allocated", "Number of allocated devices across all pools."),
    Column::string("Unavailable", "Number of unavailable devices across all pools."),
    Column::string("Errors", "Number of pools with validation errors."),
    Column::integer("Pools", "Total number of matching pools."),
    Column::string("Status", "Processing status."),
    Column::string("Completed", "Time since the observation completed."),
];

impl Strategy for ResourcePoolStatusRequestStrategy {
    type Object = ResourcePoolStatusRequest;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn validate_create(&self, request: &ResourcePoolStatusRequest) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let path = Path::new("spec");
        rules::driver_name(&mut errors, &path.child("driver"), &request.spec.driver);
        if let Some(pool) = &request.spec.pool_name {
            rules::pool_name(&mut errors, &path.child("poolName"), pool);
        }
        if request.spec.limit.is_some_and(|limit| limit < 1) {
            errors.invalid(path.child("limit"), request.spec.limit, "must be greater than or equal to 1");
        }
        errors
    }

    fn validate_update(&self, new: &ResourcePoolStatusRequest, old: &ResourcePoolStatusRequest) -> FieldErrors {
        let mut errors = FieldErrors::default();
        errors.immutable("spec", &new.spec, &old.spec);
        errors
    }

    fn validate_status_update(&self, new: &ResourcePoolStatusRequest, old: &ResourcePoolStatusRequest) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if old.status.is_some() {
            errors.immutable("status", &new.status, &old.status);
        } else if let Some(status) = &new.status {
            crate::metadata::conditions(
                &mut errors,
                &Path::new("status").child("conditions"),
                items(&status.conditions),
            );
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, request: &ResourcePoolStatusRequest, now: Timestamp) -> Vec<Value> {
        let Some(status) = &request.status else {
            let dash = || json!("-");
            let (name, driver) = (cells::name(&request.metadata), json!(request.spec.driver));
            return vec![
                name,
                driver,
                dash(),
                dash(),
                dash(),
                dash(),
                dash(),
                json!(0),
                json!("Pending"),
                json!("<none>"),
            ];
        };
        let holds = |kind: &str| items(&status.conditions).iter().find(|c| c.type_ == kind && c.status == "True");
        let (complete, failed) = (holds("Complete"), holds("Failed").is_some());
        let pools = items(&status.pools);
        let sum = |count: fn(&PoolStatus) -> i32| match failed && complete.is_none() {
            true => json!("-"),
            false => json!(pools.iter().map(count).sum::<i32>().to_string()),
        };
        let word = match complete {
            Some(_) if status.pool_count as usize > pools.len() => {
                format!("Complete ({}/{} pools)", pools.len(), status.pool_count)
            }
            Some(_) => "Complete".to_owned(),
            None if failed => "Failed".to_owned(),
            None => "Pending".to_owned(),
        };
        vec![
            cells::name(&request.metadata),
            json!(request.spec.driver),
            sum(|pool| pool.total_devices.unwrap_or(0)),
            sum(|pool| pool.available_devices.unwrap_or(0)),
            sum(|pool| pool.allocated_devices.unwrap_or(0)),
            sum(|pool| pool.unavailable_devices.unwrap_or(0)),
            sum(|pool| i32::from(pool.validation_error.is_some())),
            json!(status.pool_count),
            json!(word),
            complete.map_or(json!("<none>"), |condition| age(Some(&condition.last_transition_time), now)),
        ]
    }
}
