//! FlowSchema: which requests go to which priority level.

use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use serde_json::{Value, json};

use crate::registry::column::Column;
use crate::registry::unset::items;
use crate::registry::{Strategy, cells};

pub struct FlowSchemaStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("PriorityLevel", "Where the requests go."),
    Column::string("MatchingPrecedence", "Lower is asked first."),
    Column::string("DistinguisherMethod", "What makes a flow."),
    Column::AGE,
    Column::string("MissingPL", "Whether the priority level does not exist."),
];

const DEFAULT_PRECEDENCE: i32 = 1000;

impl Strategy for FlowSchemaStrategy {
    type Object = FlowSchema;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, schema: &mut FlowSchema) {
        if let Some(spec) = &mut schema.spec
            && spec.matching_precedence.unwrap_or(0) == 0
        {
            spec.matching_precedence = Some(DEFAULT_PRECEDENCE);
        }
    }

    fn validate_create(&self, schema: &FlowSchema) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = schema.spec.clone().unwrap_or_default();
        let precedence = spec.matching_precedence.unwrap_or(0);
        if precedence <= 0 {
            errors.invalid("spec.matchingPrecedence", precedence, "must be a positive value");
        }
        if precedence > 10_000 {
            errors.invalid("spec.matchingPrecedence", precedence, "must not be greater than 10000");
        }
        if let Some(method) = &spec.distinguisher_method
            && !matches!(method.type_.as_str(), "ByNamespace" | "ByUser")
        {
            errors.not_supported("spec.distinguisherMethod", method, &["ByNamespace", "ByUser"]);
        }
        if spec.priority_level_configuration.name.is_empty() {
            errors.required("spec.priorityLevelConfiguration.name", "must reference a priority level");
        }
        for (i, rule) in items(&spec.rules).iter().enumerate() {
            if rule.subjects.is_empty() {
                errors.required(format!("spec.rules[{i}].subjects"), "subjects must contain at least one value");
            }
            if items(&rule.resource_rules).is_empty() && items(&rule.non_resource_rules).is_empty() {
                errors.required(
                    format!("spec.rules[{i}]"),
                    "at least one of resourceRules and nonResourceRules has to be non-empty",
                );
            }
        }
        errors
    }

    fn validate_update(&self, new: &FlowSchema, _: &FlowSchema) -> FieldErrors {
        self.validate_create(new)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, schema: &FlowSchema, now: Timestamp) -> Vec<Value> {
        let spec = schema.spec.clone().unwrap_or_default();
        let status = schema.status.clone().unwrap_or_default();
        let dangling = items(&status.conditions).iter().find(|c| c.type_.as_deref() == Some("Dangling"));
        let dangling = dangling.and_then(|condition| condition.status.clone());
        vec![
            cells::name(&schema.metadata),
            json!(spec.priority_level_configuration.name),
            json!(spec.matching_precedence.unwrap_or(0)),
            json!(spec.distinguisher_method.as_ref().map_or("<none>", |method| method.type_.as_str())),
            cells::age(&schema.metadata, now),
            json!(dangling.as_deref().unwrap_or("?")),
        ]
    }
}
