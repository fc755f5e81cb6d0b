//! One version of one object, encoded once and shared by everyone who reads it.

use std::any::Any;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use api::selector::{FieldSelector, Selector};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::json;
use crate::registry::strategy::Selectable;

/// An object as the store has it, plus what is needed to serve and select it, scanned when first asked for.
pub(crate) struct Entry {
    /// `<namespace>/<name>` or `<name>`.
    pub(crate) key: Arc<str>,
    pub(crate) revision: u64,
    /// Without a resource version: these are the store's own bytes, shared with it.
    pub(crate) stored: Bytes,
    /// Where `"metadata"` begins: items of a list leave out what comes before.
    head: usize,
    /// Right after the brace that opens the metadata: the place of the resource version.
    open: usize,
    labels: OnceLock<Labels>,
    fields: OnceLock<Vec<Box<str>>>,
    read: OnceLock<Arc<dyn Any + Send + Sync>>,
}

pub(crate) type Labels = std::collections::BTreeMap<String, String>;

impl Entry {
    /// `stored` is the value from the store. `None` if it is not an object with metadata.
    pub(crate) fn new(key: Arc<str>, stored: &Bytes, revision: u64) -> Option<Self> {
        let metadata = json::find_start(stored, &["metadata"]).filter(|start| stored.get(*start) == Some(&b'{'))?;
        let colon = stored[..metadata].iter().rposition(|byte| *byte == b':')?;
        Some(Self {
            key,
            revision,
            stored: stored.clone(),
            head: colon.checked_sub("\"metadata\"".len())?,
            open: metadata + 1,
            labels: OnceLock::new(),
            fields: OnceLock::new(),
            read: OnceLock::new(),
        })
    }

    /// The resource version as it stands in the metadata.
    fn version(&self, revision: u64) -> Version {
        const KEY: &[u8] = b"\"resourceVersion\":\"";
        let mut version = Version { text: [0; 48], length: 0 };
        version.push(KEY);
        version.push(itoa::Buffer::new().format(revision).as_bytes());
        version.push(if self.stored.get(self.open) == Some(&b'}') { b"\"" } else { b"\"," });
        version
    }

    /// The object as clients see it.
    pub(crate) fn json(&self) -> Bytes {
        self.at_revision(self.revision)
    }

    /// The same object with another resource version, as a DELETED event shows the last state.
    pub(crate) fn at_revision(&self, revision: u64) -> Bytes {
        let version = self.version(revision);
        let mut out = Vec::with_capacity(self.stored.len() + version.length);
        self.write(&version, 0, &mut out);
        Bytes::from(out)
    }

    /// The typed form, kept with the object: for the few that decisions about others look at again and again.
    pub(crate) fn read<K: DeserializeOwned + Send + Sync + 'static>(&self) -> Option<Arc<K>> {
        let kept = self.read.get().and_then(|read| read.clone().downcast().ok());
        kept.or_else(|| {
            let read: Arc<K> = Arc::new(serde_json::from_slice(&self.json()).ok()?);
            // The first type that is asked for stays.
            let _ = self.read.set(read.clone());
            Some(read)
        })
    }

    /// About as many bytes as a client sees.
    pub(crate) fn size(&self) -> usize {
        self.stored.len()
    }

    fn write(&self, version: &Version, from: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.stored[from..self.open]);
        out.extend_from_slice(version.as_bytes());
        out.extend_from_slice(&self.stored[self.open..]);
    }

    /// The watch frame of this object, at `revision`.
    pub(crate) fn write_frame(&self, change: &str, revision: u64, out: &mut Vec<u8>) {
        let version = self.version(revision);
        out.reserve(self.stored.len() + version.length + 40);
        super::cache::open_frame(change, out);
        self.write(&version, 0, out);
        super::cache::close_frame(out);
    }

    /// The object without `kind` and `apiVersion`, as it stands in a list.
    pub(crate) fn write_list_item(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        self.write(&self.version(self.revision), self.head, out);
    }

    pub(crate) fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub(crate) fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// No initializers are left.
    pub(crate) fn is_finished(&self) -> bool {
        json::find(&self.stored, &["metadata", "initializers"]).is_none()
    }

    pub(crate) fn labels(&self) -> &Labels {
        self.labels.get_or_init(|| {
            let Some(range) = json::find(&self.stored, &["metadata", "labels"]) else { return Labels::new() };
            json::members(&self.stored, range.start)
                .map(|(key, value)| {
                    (String::from_utf8_lossy(key).into_owned(), json::text(&self.stored[value]).into_owned())
                })
                .collect()
        })
    }

    /// The value of a selectable field, if the row has it.
    pub(crate) fn field(&self, fields: &Selectable, label: &str) -> Option<Cow<'_, str>> {
        match label {
            "metadata.name" => return Some(self.name().into()),
            "metadata.namespace" => return Some(self.namespace().into()),
            _ => {}
        }
        let text = |range: Range<usize>| json::text(&self.stored[range]);
        let at = |path: &[&str]| json::find(&self.stored, path).map(text);
        let fields = match fields {
            Selectable::Fixed(fields) => fields,
            // Definitions change, so nothing is kept.
            Selectable::Custom(fields) => {
                let (_, path) = fields.iter().find(|(known, _)| known == label)?;
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                return Some(at(&path).unwrap_or_default());
            }
        };
        let index = fields.iter().position(|field| field.label == label)?;
        let values = self.fields.get_or_init(|| {
            let paths: Vec<_> = fields.iter().map(|field| field.path).collect();
            let found = json::find_all(&self.stored, &paths).into_iter().zip(fields.iter());
            found
                .map(|(range, field)| {
                    let value = range.map(text).filter(|value| field.instead.is_none() || !value.is_empty());
                    value.or_else(|| at(field.instead?)).map_or_else(|| field.default.into(), Into::into)
                })
                .collect()
        });
        values.get(index).map(|value| Cow::Borrowed(&**value))
    }
}

/// A resource version in JSON, written once per object of every list and so not worth an allocation.
struct Version {
    text: [u8; 48],
    length: usize,
}

impl Version {
    fn push(&mut self, part: &[u8]) {
        self.text[self.length..self.length + part.len()].copy_from_slice(part);
        self.length += part.len();
    }

    fn as_bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

/// What a list or watch wants to see.
#[derive(Clone, Default)]
pub(crate) struct Filter {
    /// `None` is all namespaces.
    pub(crate) namespace: Option<Arc<str>>,
    pub(crate) labels: Option<Selector>,
    pub(crate) fields: Option<FieldSelector>,
    pub(crate) selectable: Selectable,
    /// Leave out objects that still have initializers.
    pub(crate) finished_only: bool,
}

impl Filter {
    pub(crate) fn matches(&self, entry: &Entry) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| entry.namespace() == namespace) && self.selects(entry)
    }

    /// Everything but the namespace.
    pub(crate) fn selects(&self, entry: &Entry) -> bool {
        (!self.finished_only || entry.is_finished())
            && self.labels.as_ref().is_none_or(|selector| selector.matches(Some(entry.labels())))
            && self.fields.as_ref().is_none_or(|selector| {
                selector.matches(|label| entry.field(&self.selectable, label).unwrap_or_default())
            })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_none() && self.fields.is_none() && !self.finished_only
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_shows_its_version_in_every_form() {
        let stored = Bytes::from_static(br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{}}"#);
        let entry = Entry::new("a".into(), &stored, 7).unwrap();
        let expected = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7","name":"a"},"spec":{}}"#;
        assert_eq!(entry.json(), &expected[..]);
        let mut item = Vec::new();
        entry.write_list_item(&mut item);
        assert_eq!(item, br#"{"metadata":{"resourceVersion":"7","name":"a"},"spec":{}}"#);
        let mut frame = Vec::new();
        entry.write_frame("DELETED", 9, &mut frame);
        let frame: serde_json::Value = serde_json::from_slice(&frame).unwrap();
        assert_eq!((&frame["type"], &frame["object"]["metadata"]["resourceVersion"]), (&"DELETED".into(), &"9".into()));
        let read = entry.read::<serde_json::Value>().unwrap();
        assert_eq!(read["metadata"]["resourceVersion"], "7");
        assert!(Arc::ptr_eq(&read, &entry.read().unwrap()));
        assert!(entry.read::<k8s_openapi::api::core::v1::Pod>().is_some());
        let bare = Entry::new("a".into(), &Bytes::from_static(br#"{"metadata":{}}"#), 7).unwrap();
        assert_eq!(bare.json(), &br#"{"metadata":{"resourceVersion":"7"}}"#[..]);
        for damaged in [&b"{}"[..], b"[]", br#"{"metadata":5}"#, b""] {
            assert!(Entry::new("a".into(), &Bytes::from_static(damaged), 7).is_none());
        }
    }
}
