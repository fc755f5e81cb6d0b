//! Columns of the table representation (`kubectl get`): their definitions and the cells most kinds share.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};

/// One column definition, as sent in `columnDefinitions`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// OpenAPI type of the cells: `string`, `integer`, `number`, `boolean`.
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

    pub const fn string(name: &'static str, description: &'static str) -> Self {
        Self { name, r#type: "string", format: "", description, priority: 0 }
    }

    pub const fn integer(name: &'static str, description: &'static str) -> Self {
        Self { name, r#type: "integer", format: "", description, priority: 0 }
    }

    /// Shown only with `-o wide`.
    pub const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }
}

pub const NAME_AND_AGE: &[Column] = &[Column::NAME, Column::string("Created At", "Time the object was created.")];

pub fn name_and_age(meta: &ObjectMeta, _now: Timestamp) -> Vec<Value> {
    let created = meta.creation_timestamp.as_ref().map(|time| rfc3339(&time.0)).unwrap_or_default();
    vec![json!(meta.name.clone().unwrap_or_default()), json!(created)]
}

/// A timestamp as Kubernetes writes it: UTC, whole seconds.
pub fn rfc3339(time: &Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The age of an object as kubectl shows it, or `<unknown>`.
pub fn age(created: Option<&Time>, now: Timestamp) -> Value {
    match created {
        None => json!("<unknown>"),
        Some(created) => json!(human_duration(now.as_second() - created.0.as_second())),
    }
}

/// `HumanDuration` of apimachinery: two units at most, coarser as time goes on.
pub fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let pair = |high: i64, high_unit: &str, low: i64, low_unit: &str| {
        if low == 0 { format!("{high}{high_unit}") } else { format!("{high}{high_unit}{low}{low_unit}") }
    };
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => pair(seconds / HOUR, "h", (seconds / MINUTE) % 60, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => pair(seconds / DAY, "d", (seconds / HOUR) % 24, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => pair(seconds / YEAR, "y", (seconds / DAY) % 365, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_like_kubectl() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (3599, "59m"),
            (3 * 3600 + 60, "3h1m"),
            (9 * 3600, "9h"),
            (2 * 86400, "2d"),
            (2 * 86400 + 3600, "2d1h"),
            (9 * 86400, "9d"),
            (3 * 365 * 86400, "3y"),
        ] {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
    }
}
