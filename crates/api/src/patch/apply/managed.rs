//! The entries of `metadata.managedFields`.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::Writer;
use super::set::FieldSet;
use crate::sort::CompactSort as _;

/// Older updaters beyond this many are merged into one entry.
pub(super) const MAX_UPDATERS: usize = 10;
pub(super) const ANCIENT: &str = "ancient-changes";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) manager: String,
    pub(super) operation: Operation,
    pub(super) api_version: String,
    pub(super) subresource: String,
    pub(super) time: Option<Timestamp>,
    pub(super) set: FieldSet,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Managed {
    pub(super) entries: Vec<Entry>,
}

impl Entry {
    pub(super) fn new(writer: &Writer<'_>, operation: Operation) -> Self {
        let manager = if writer.manager.is_empty() { "unknown" } else { writer.manager };
        Self {
            manager: manager.to_owned(),
            operation,
            api_version: writer.api_version.to_owned(),
            subresource: writer.subresource.to_owned(),
            time: None,
            set: FieldSet::default(),
        }
    }

    /// Appliers are known by name; updaters also by the version they wrote.
    fn is(&self, writer: &Writer<'_>, operation: Operation) -> bool {
        let manager = if writer.manager.is_empty() { "unknown" } else { writer.manager };
        self.manager == manager
            && self.operation == operation
            && self.subresource == writer.subresource
            && (operation == Operation::Apply || self.api_version == writer.api_version)
    }

    fn seconds(&self) -> i64 {
        self.time.map_or(0, Timestamp::as_second)
    }
}

impl Managed {
    /// Entries that do not parse are left out: managed fields are a record, never a reason to refuse a write.
    pub(super) fn decode(json: Option<Value>) -> Self {
        let mut managed = Self::default();
        let Some(Value::Array(entries)) = json else { return managed };
        for mut entry in entries {
            let fields = entry.get_mut("fieldsV1").map(Value::take);
            let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => continue,
            };
            if text("fieldsType") != "FieldsV1" {
                continue;
            }
            managed.entries.push(Entry {
                manager: text("manager").to_owned(),
                operation,
                api_version: text("apiVersion").to_owned(),
                subresource: text("subresource").to_owned(),
                time: text("time").parse().ok(),
                set: fields.map(FieldSet::from_json).unwrap_or_default(),
            });
        }
        managed
    }

    /// `None` when there is nothing to write.
    pub(super) fn encode(mut self) -> Option<Value> {
        if self.entries.is_empty() {
            return None;
        }
        self.entries.compact_sort_by(|a, b| {
            (a.operation, a.seconds(), &a.manager, &a.api_version, &a.subresource).cmp(&(
                b.operation,
                b.seconds(),
                &b.manager,
                &b.api_version,
                &b.subresource,
            ))
        });
        Some(self.entries.into_iter().map(encode_entry).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn position(&self, writer: &Writer<'_>, operation: Operation) -> Option<usize> {
        self.entries.iter().position(|entry| entry.is(writer, operation))
    }

    /// Adds `set` to what an updater owns, and remembers when.
    pub(super) fn record(&mut self, writer: &Writer<'_>, mut set: FieldSet) {
        set.strip_metadata();
        if set.is_empty() {
            return;
        }
        let at = self.position(writer, Operation::Update).unwrap_or_else(|| {
            self.entries.push(Entry::new(writer, Operation::Update));
            self.entries.len() - 1
        });
        let entry = &mut self.entries[at];
        entry.set.merge(set);
        entry.time = Some(writer.now);
    }

    pub(super) fn drop_empty(&mut self) {
        self.entries.retain(|entry| !entry.set.is_empty());
    }
}

fn encode_entry(entry: Entry) -> Value {
    let operation = match entry.operation {
        Operation::Apply => "Apply",
        Operation::Update => "Update",
    };
    let mut fields = Map::new();
    let mut put = |key: &str, value: Value| drop(fields.insert(key.to_owned(), value));
    put("manager", entry.manager.into());
    put("operation", operation.into());
    put("apiVersion", entry.api_version.into());
    put("fieldsType", "FieldsV1".into());
    put("fieldsV1", entry.set.into_json());
    if let Some(time) = entry.time {
        put("time", crate::time::rfc3339(time).into());
    }
    if !entry.subresource.is_empty() {
        put("subresource", entry.subresource.into());
    }
    Value::Object(fields)
}
