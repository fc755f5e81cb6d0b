//! Columns of the table representation (`kubectl get`): their definitions and the cells most kinds share.

use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};

/// One column definition, as sent in `columnDefinitions`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// OpenAPI type of the cells: `string`, `integer`, `number`, `boolean`, `date`.
    pub r#type: &'static str,
    pub format: &'static str,
    pub description: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
}

impl Column {
    pub const NAME: Column = Column {
        format: "name",
        ..Column::string("Name", "Name must be unique within a namespace. Is required when creating resources.")
    };
    pub const AGE: Column = Column::string("Age", "Time since the object was created.");
    pub const CREATED: Column =
        Column { r#type: "date", ..Column::string("Created At", "When the object was created.") };

    pub const fn string(name: &'static str, description: &'static str) -> Self {
        Self { name, r#type: "string", format: "", description, priority: 0 }
    }

    pub const fn integer(name: &'static str, description: &'static str) -> Self {
        Self { name, r#type: "integer", format: "", description, priority: 0 }
    }

    /// As it is sent.
    pub fn definition(&self) -> Value {
        json!({"name": self.name, "type": self.r#type, "format": self.format, "description": self.description,
            "priority": self.priority})
    }

    /// Shown only with `-o wide`.
    pub const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }
}

pub const NAME_AND_AGE: &[Column] = &[Column::NAME, Column::CREATED];

pub fn name_and_age(meta: &ObjectMeta, _now: Timestamp) -> Vec<Value> {
    let created = meta.creation_timestamp.as_ref().map(|time| api::time::rfc3339(time.0)).unwrap_or_default();
    vec![json!(meta.name()), json!(created)]
}

/// The age of an object as kubectl shows it, or `<unknown>`.
pub fn age(created: Option<&Time>, now: Timestamp) -> Value {
    match created {
        None => json!("<unknown>"),
        Some(created) => json!(api::duration::human(now.as_second() - created.0.as_second())),
    }
}
