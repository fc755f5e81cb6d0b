//! The entries that plain writes leave, changed where they stand: a write touches few fields, and taking all sets apart to
//! put them together again would cost more than the write itself.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, Time};
use serde_json::{Map, Value};

use super::Writer;
use super::managed::{ANCIENT, MAX_UPDATERS};
use super::set::FieldSet;

const UPDATE: &str = "Update";

pub(super) struct Books {
    entries: Vec<ManagedFieldsEntry>,
}

impl Books {
    /// Entries that do not parse are left out: the books are a record, never a reason to refuse a write.
    pub(super) fn new(mut entries: Vec<ManagedFieldsEntry>) -> Self {
        entries.retain(|entry| {
            matches!(text(&entry.operation), "Apply" | UPDATE) && text(&entry.fields_type) == "FieldsV1"
        });
        Self { entries }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Nobody owns these fields any more.
    pub(super) fn withdraw(&mut self, set: &FieldSet) {
        for entry in &mut self.entries {
            set.take_from(fields(entry));
        }
        self.entries.retain_mut(|entry| !fields(entry).is_empty());
    }

    /// Adds `set` to what an updater owns, and remembers when.
    pub(super) fn record(&mut self, writer: &Writer<'_>, set: FieldSet) {
        if set.is_empty() {
            return;
        }
        let manager = if writer.manager.is_empty() { "unknown" } else { writer.manager };
        let found = self.entries.iter().position(|entry| {
            text(&entry.manager) == manager
                && text(&entry.operation) == UPDATE
                && text(&entry.subresource) == writer.subresource
                && text(&entry.api_version) == writer.api_version
        });
        let time = Some(Time(writer.now));
        match found.map(|at| &mut self.entries[at]) {
            Some(entry) => {
                set.add_to(fields(entry));
                entry.time = time;
            }
            None => self.entries.push(ManagedFieldsEntry {
                manager: Some(manager.to_owned()),
                operation: Some(UPDATE.to_owned()),
                api_version: Some(writer.api_version.to_owned()),
                subresource: (!writer.subresource.is_empty()).then(|| writer.subresource.to_owned()),
                fields_type: Some("FieldsV1".to_owned()),
                fields_v1: Some(FieldsV1(set.into_json())),
                time,
            }),
        }
        self.cap_updaters();
    }

    /// Merges the oldest updaters of a version, so that the list stays short.
    fn cap_updaters(&mut self) {
        let is_update = |entry: &ManagedFieldsEntry| text(&entry.operation) == UPDATE;
        while self.entries.iter().filter(|entry| is_update(entry)).count() > MAX_UPDATERS {
            self.entries.sort_by(|a, b| (seconds(a), text(&a.manager)).cmp(&(seconds(b), text(&b.manager))));
            let mut old = self.entries.iter().enumerate().filter(|(_, entry)| is_update(entry));
            let Some((first, version)) = old.next().map(|(at, entry)| (at, entry.api_version.clone())) else { return };
            let Some(second) = old.find(|(_, entry)| entry.api_version == version).map(|(at, _)| at) else { return };
            let mut absorbed = self.entries.remove(second);
            let bucket = &mut self.entries[first];
            bucket.manager = Some(ANCIENT.to_owned());
            bucket.subresource = None;
            bucket.time = absorbed.time.clone();
            FieldSet::from_json(Value::Object(std::mem::take(fields(&mut absorbed)))).add_to(fields(bucket));
        }
    }

    /// In the order that upstream keeps them in.
    pub(super) fn close(mut self) -> Option<Vec<ManagedFieldsEntry>> {
        fn order(entry: &ManagedFieldsEntry) -> (bool, i64, &str, &str, &str) {
            let is_update = text(&entry.operation) == UPDATE;
            (is_update, seconds(entry), text(&entry.manager), text(&entry.api_version), text(&entry.subresource))
        }
        self.entries.sort_by(|a, b| order(a).cmp(&order(b)));
        (!self.entries.is_empty()).then_some(self.entries)
    }
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

fn seconds(entry: &ManagedFieldsEntry) -> i64 {
    entry.time.as_ref().map_or(0, |time| Timestamp::as_second(time.0))
}

fn fields(entry: &mut ManagedFieldsEntry) -> &mut Map<String, Value> {
    let FieldsV1(value) = entry.fields_v1.get_or_insert_with(|| FieldsV1(Value::Object(Map::new())));
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("an object: just made one")
}
