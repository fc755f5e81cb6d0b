//! The entries that plain writes leave, changed in their text: a write touches few fields, and taking all sets apart to put
//! them together again would cost more than the write itself. What a write leaves alone is copied, never read.

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::Writer;
use super::managed::{ANCIENT, MAX_UPDATERS};
use super::set::{FieldSet, write_string};
use super::versions::Elsewhere;
use crate::scan;
use crate::sort::CompactSort as _;

const UPDATE: &str = "Update";
const FIELDS_V1: &str = "FieldsV1";
/// More updaters than this are not merged one by one. Whoever writes in the ordinary way leaves one more than are kept.
const MANY_UPDATERS: usize = 100;

pub(super) struct ManagedText<'a> {
    entries: Vec<Entry<'a>>,
    is_changed: bool,
}

#[derive(Default)]
struct Entry<'a> {
    manager: Cow<'a, str>,
    operation: Cow<'a, str>,
    api_version: Cow<'a, str>,
    subresource: Cow<'a, str>,
    /// As this server writes times: their texts are in order, too.
    time: Cow<'a, str>,
    fields_type: Cow<'a, str>,
    fields: Cow<'a, str>,
    /// The entry as it was found, until it is changed.
    found: Option<&'a str>,
}

impl<'a> ManagedText<'a> {
    /// Entries that are none are left out: managed fields are a record, never a reason to refuse a write.
    pub(super) fn read(text: &'a str) -> Self {
        let (mut entries, mut is_changed) = (Vec::new(), false);
        for place in scan::items(text.as_bytes(), 0) {
            let entry = text.get(place).map(Entry::read).filter(Entry::is_known);
            is_changed |= entry.is_none();
            entries.extend(entry);
        }
        Self { entries, is_changed }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first entry: all that a new object has is its maker's.
    pub(super) fn begin(&mut self, writer: &Writer<'_>, fields: String) {
        if fields != "{}" {
            self.entries.push(Entry { time: time(writer.now), fields: fields.into(), ..Entry::new(writer) });
        }
    }

    /// The version of each entry.
    pub(super) fn versions(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| &*entry.api_version)
    }

    /// `changed` is the writer's from now on; nobody owns what is `removed` any more. What that is to those who wrote in other
    /// versions is said `elsewhere`.
    pub(super) fn keep(&mut self, writer: &Writer<'_>, changed: FieldSet, removed: &FieldSet, elsewhere: &Elsewhere) {
        let mine = self.entries.iter().position(|entry| entry.is_of(writer));
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let (changed, removed) = elsewhere.of(&entry.api_version).unwrap_or((&changed, removed));
            // What the writer owns and writes again it keeps.
            if Some(at) != mine {
                entry.withdraw(changed);
            }
            entry.withdraw(removed);
        }
        let mut changed = changed;
        changed.strip_metadata();
        if !changed.is_empty() {
            let mine = mine.unwrap_or_else(|| {
                self.entries.push(Entry::new(writer));
                self.entries.len() - 1
            });
            self.entries[mine].record(&changed, writer.now);
        }
        let before = self.entries.len();
        self.entries.retain(|entry| !matches!(&*entry.fields, "" | "{}"));
        self.is_changed |= self.entries.len() != before || self.entries.iter().any(|entry| entry.found.is_none());
        self.cap_updaters();
    }

    fn updaters(&self) -> usize {
        self.entries.iter().filter(|entry| entry.operation == UPDATE).count()
    }

    /// The oldest first.
    fn sort_by_age(&mut self) {
        self.entries.compact_sort_by(|a, b| (&a.time, &a.manager).cmp(&(&b.time, &b.manager)));
    }

    /// Merges the oldest updaters of a version, so that the list stays short.
    fn cap_updaters(&mut self) {
        if self.updaters() > MANY_UPDATERS {
            self.merge_updaters();
        }
        while self.updaters() > MAX_UPDATERS {
            self.sort_by_age();
            let mut old = self.entries.iter().enumerate().filter(|(_, entry)| entry.operation == UPDATE);
            let Some((first, version)) = old.next().map(|(at, entry)| (at, entry.api_version.clone())) else { return };
            let Some(second) = old.find(|(_, entry)| entry.api_version == version).map(|(at, _)| at) else { return };
            let absorbed = self.entries.remove(second);
            let bucket = &mut self.entries[first];
            bucket.manager = ANCIENT.into();
            bucket.subresource = "".into();
            bucket.time = absorbed.time.clone();
            bucket.change(|fields| FieldSet::from_json(Value::Object(absorbed.tree())).add_to(fields));
        }
    }

    /// Merges all updaters but the newest, those of each version into the oldest of them, in one walk: a client may send tens of
    /// thousands.
    fn merge_updaters(&mut self) {
        self.sort_by_age();
        let mut old = self.updaters().saturating_sub(MAX_UPDATERS);
        let mut merged: HashMap<String, (usize, FieldSet, Cow<'a, str>)> = HashMap::new();
        let mut kept: Vec<Entry<'a>> = Vec::new();
        for entry in std::mem::take(&mut self.entries) {
            if entry.operation != UPDATE || old == 0 {
                kept.push(entry);
                continue;
            }
            old -= 1;
            match merged.get_mut(&*entry.api_version) {
                Some((_, set, time)) => {
                    set.merge(FieldSet::from_json(Value::Object(entry.tree())));
                    *time = entry.time;
                }
                None => {
                    let of_version = (kept.len(), FieldSet::default(), "".into());
                    merged.insert(entry.api_version.clone().into_owned(), of_version);
                    kept.push(entry);
                }
            }
        }
        for (at, set, time) in merged.into_values().filter(|(_, set, _)| !set.is_empty()) {
            let bucket = &mut kept[at];
            bucket.manager = ANCIENT.into();
            bucket.subresource = "".into();
            bucket.time = time;
            bucket.change(|fields| set.add_to(fields));
        }
        self.entries = kept;
        self.is_changed = true;
    }

    /// The entries as JSON, in the order that upstream keeps them in; none if there are none.
    pub(super) fn close(mut self, text: Option<&'a str>) -> Option<Cow<'a, str>> {
        if self.entries.is_empty() {
            return None;
        }
        if let (false, Some(text)) = (self.is_changed, text) {
            return Some(Cow::Borrowed(text));
        }
        fn order<'b>(entry: &'b Entry<'_>) -> (bool, &'b str, &'b str, &'b str, &'b str) {
            (entry.operation == UPDATE, &entry.time, &entry.manager, &entry.api_version, &entry.subresource)
        }
        self.entries.compact_sort_by(|a, b| order(a).cmp(&order(b)));
        let mut out = String::with_capacity(self.entries.iter().map(|entry| entry.fields.len() + 180).sum());
        for entry in &self.entries {
            out.push(if out.is_empty() { '[' } else { ',' });
            entry.write(&mut out);
        }
        out.push(']');
        Some(Cow::Owned(out))
    }
}

impl<'a> Entry<'a> {
    fn read(found: &'a str) -> Self {
        let mut entry = Self { found: Some(found), ..Self::default() };
        for (name, place) in scan::members(found.as_bytes(), 0) {
            let value = &found.as_bytes()[place.clone()];
            match name {
                b"manager" => entry.manager = scan::text(value),
                b"operation" => entry.operation = scan::text(value),
                b"apiVersion" => entry.api_version = scan::text(value),
                b"subresource" => entry.subresource = scan::text(value),
                b"time" => entry.time = scan::text(value),
                b"fieldsType" => entry.fields_type = scan::text(value),
                b"fieldsV1" => entry.fields = found.get(place).unwrap_or_default().into(),
                _ => {}
            }
        }
        entry
    }

    fn is_known(&self) -> bool {
        matches!(&*self.operation, "Apply" | UPDATE) && self.fields_type == FIELDS_V1
    }

    fn new(writer: &Writer<'_>) -> Self {
        let own = |text: &str| Cow::Owned(text.to_owned());
        Self {
            manager: own(manager(writer)),
            operation: UPDATE.into(),
            api_version: own(writer.api_version),
            subresource: own(writer.subresource),
            time: "".into(),
            fields_type: FIELDS_V1.into(),
            fields: "{}".into(),
            found: None,
        }
    }

    fn is_of(&self, writer: &Writer<'_>) -> bool {
        self.operation == UPDATE
            && self.manager == manager(writer)
            && self.subresource == writer.subresource
            && self.api_version == writer.api_version
    }

    fn withdraw(&mut self, set: &FieldSet) {
        if set.meets(&self.fields) {
            self.change(|fields| set.take_from(fields));
        }
    }

    /// Adds fields, and remembers when.
    fn record(&mut self, set: &FieldSet, now: Timestamp) {
        if self.fields == "{}" {
            self.fields = set.to_text().into();
        } else if !set.is_within(&self.fields) {
            self.change(|fields| set.add_to(fields));
        }
        self.time = time(now);
        self.found = None;
    }

    fn change(&mut self, change: impl FnOnce(&mut Map<String, Value>)) {
        let mut fields = self.tree();
        change(&mut fields);
        self.fields = Value::Object(fields).to_string().into();
        self.found = None;
    }

    fn tree(&self) -> Map<String, Value> {
        serde_json::from_str(&self.fields).unwrap_or_default()
    }

    fn write(&self, out: &mut String) {
        if let Some(found) = self.found {
            out.push_str(found);
            return;
        }
        // In the order in which entries that clients send are written, so that the same entries are the same text.
        out.push('{');
        put("apiVersion", &self.api_version, out);
        put("fieldsType", &self.fields_type, out);
        out.extend(["\"fieldsV1\":", &self.fields, ","]);
        put("manager", &self.manager, out);
        put("operation", &self.operation, out);
        put("subresource", &self.subresource, out);
        put("time", &self.time, out);
        out.pop();
        out.push('}');
    }
}

/// In whole seconds.
fn time(now: Timestamp) -> Cow<'static, str> {
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string().into()
}

fn put(name: &str, value: &str, out: &mut String) {
    if !value.is_empty() {
        out.extend(["\"", name, "\":"]);
        write_string(value, out);
        out.push(',');
    }
}

fn manager<'a>(writer: &Writer<'a>) -> &'a str {
    if writer.manager.is_empty() { "unknown" } else { writer.manager }
}
