//! One version of one object, encoded once and shared by everyone who reads it.

use std::any::Any;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use api::selector::{FieldSelector, Selector};
use bytes::Bytes;
use registry::parts::Parts;
use registry::strategy::Selectable;
use serde::de::DeserializeOwned;

use super::labels::{LabelSet, Labels};
use super::unreadable::{Prefix, Unreadable};
use crate::json;

/// An object as the store has it, plus what is needed to serve and select it, scanned when first asked for.
pub(crate) struct Entry {
    pub(crate) prefix: Arc<Prefix>,
    /// `<namespace>/<name>` or `<name>`.
    pub(crate) key: Arc<str>,
    pub(crate) revision: u64,
    /// Without a resource version: these are the store's own bytes, shared with it.
    pub(crate) stored: Bytes,
    /// Where `"metadata"` begins: items of a list leave out what comes before.
    head: usize,
    /// Right after the brace that opens the metadata: the place of the resource version.
    open: usize,
    /// Nobody may take this for an object, nor for the absence of one.
    is_unreadable: AtomicBool,
    labels: OnceLock<Arc<LabelSet>>,
    fields: OnceLock<Vec<Box<str>>>,
    read: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Entry {
    /// `stored` is the value from the store. What is not an object with metadata becomes an unreadable entry.
    pub(crate) fn new(prefix: &Arc<Prefix>, key: Arc<str>, stored: &Bytes, revision: u64) -> Self {
        let place = place_of_metadata(stored);
        let (head, open) = place.unwrap_or((stored.len(), stored.len()));
        let entry = Self {
            prefix: prefix.clone(),
            key,
            revision,
            stored: stored.clone(),
            head,
            open,
            is_unreadable: AtomicBool::new(false),
            labels: OnceLock::new(),
            fields: OnceLock::new(),
            read: OnceLock::new(),
        };
        if place.is_none() {
            entry.refuse(&"not an object with metadata");
        }
        entry
    }

    /// Notes that this cannot be read, for everybody who looks at it from now on.
    pub(crate) fn refuse(&self, reason: &dyn std::fmt::Display) -> Unreadable {
        self.is_unreadable.store(true, Ordering::Release);
        self.prefix.note(&self.key, self.revision, reason)
    }

    pub(crate) fn is_unreadable(&self) -> bool {
        self.is_unreadable.load(Ordering::Acquire)
    }

    /// Fails if this is known to be unreadable: whoever looks at the stored bytes themselves asks first.
    pub(crate) fn readable(&self) -> Result<&Self, Unreadable> {
        if self.is_unreadable() { Err(self.prefix.unreadable(&self.key)) } else { Ok(self) }
    }

    /// The typed form, by the one reader of its kind.
    pub(crate) fn object<K: Parts>(&self) -> Result<K, Unreadable> {
        self.decode_by(api::read::from_slice)
    }

    /// As much of it as another type takes.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, Unreadable> {
        self.decode_by(|json| serde_json::from_slice(json))
    }

    pub(super) fn decode_by<T>(&self, read: impl FnOnce(&[u8]) -> serde_json::Result<T>) -> Result<T, Unreadable> {
        let json = self.readable()?.json();
        read(&json).map_err(|error| self.refuse(&error))
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
    pub(crate) fn read<K: Parts + Send + Sync + 'static>(&self) -> Result<Arc<K>, Unreadable> {
        self.kept(|| self.object())
    }

    /// As [`Self::read`], of a part of the object.
    pub(crate) fn read_part<P: DeserializeOwned + Send + Sync + 'static>(&self) -> Result<Arc<P>, Unreadable> {
        self.kept(|| self.decode())
    }

    fn kept<T: Send + Sync + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, Unreadable>,
    ) -> Result<Arc<T>, Unreadable> {
        if let Some(kept) = self.read.get().and_then(|read| read.clone().downcast().ok()) {
            return Ok(kept);
        }
        let read: Arc<T> = Arc::new(read()?);
        // The first type that is asked for stays.
        let _ = self.read.set(read.clone());
        Ok(read)
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

    /// The labels as a map: for those that are looked at again and again.
    pub(crate) fn labels(&self) -> &Labels {
        self.label_set().map()
    }

    /// Whether a selector takes the labels.
    pub(crate) fn is_labelled(&self, selector: &Selector) -> bool {
        self.label_set().matches(selector)
    }

    fn label_set(&self) -> &LabelSet {
        self.labels.get_or_init(|| self.prefix.labels.of(&self.stored))
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

/// Where `"metadata"` begins, and the place right after the brace that opens it.
fn place_of_metadata(stored: &[u8]) -> Option<(usize, usize)> {
    let metadata = json::find_start(stored, &["metadata"]).filter(|start| stored.get(*start) == Some(&b'{'))?;
    let colon = stored[..metadata].iter().rposition(|byte| *byte == b':')?;
    Some((colon.checked_sub("\"metadata\"".len())?, metadata + 1))
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

    /// As much as the key tells, even when nothing else can be read: the namespace, and the name if one is required.
    pub(crate) fn covers(&self, entry: &Entry) -> bool {
        let name = self.fields.as_ref().and_then(|fields| fields.requires("metadata.name"));
        self.namespace.as_deref().is_none_or(|namespace| entry.namespace() == namespace)
            && name.is_none_or(|name| entry.name() == name)
    }

    /// As [`Self::selects`]; fails at what cannot be read, since nobody knows whether it is selected.
    pub(crate) fn takes(&self, entry: &Entry) -> Result<bool, Unreadable> {
        if entry.is_unreadable() && !self.covers(entry) {
            return Ok(false);
        }
        entry.readable().map(|entry| self.selects(entry))
    }

    /// Everything but the namespace.
    pub(crate) fn selects(&self, entry: &Entry) -> bool {
        self.selects_by(entry, |selector| entry.is_labelled(selector))
    }

    /// As [`Self::selects`], for one object after the other: those in a row mostly share their labels, which are then looked
    /// at once.
    pub(crate) fn selects_each<'e>(&'e self) -> impl FnMut(&'e Entry) -> bool {
        let mut last: Option<(&'e LabelSet, bool)> = None;
        move |entry: &'e Entry| {
            self.selects_by(entry, |selector| {
                let labels = entry.label_set();
                match last {
                    Some((known, is_labelled)) if std::ptr::eq(known, labels) => is_labelled,
                    _ => last.insert((labels, labels.matches(selector))).1,
                }
            })
        }
    }

    fn selects_by(&self, entry: &Entry, is_labelled: impl FnOnce(&Selector) -> bool) -> bool {
        (!self.finished_only || entry.is_finished())
            && self.labels.as_ref().is_none_or(is_labelled)
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
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn an_entry_shows_its_version_in_every_form() {
        let stored = Bytes::from_static(br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{}}"#);
        let prefix = Prefix::new("pods");
        let entry = Entry::new(&prefix, "a".into(), &stored, 7);
        let expected = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7","name":"a"},"spec":{}}"#;
        assert_eq!(entry.json(), &expected[..]);
        let mut item = Vec::new();
        entry.write_list_item(&mut item);
        assert_eq!(item, br#"{"metadata":{"resourceVersion":"7","name":"a"},"spec":{}}"#);
        let mut frame = Vec::new();
        entry.write_frame("DELETED", 9, &mut frame);
        let frame: serde_json::Value = serde_json::from_slice(&frame).unwrap();
        assert_eq!((&frame["type"], &frame["object"]["metadata"]["resourceVersion"]), (&"DELETED".into(), &"9".into()));
        let read = entry.read::<Pod>().unwrap();
        assert_eq!(read.metadata.resource_version.as_deref(), Some("7"));
        assert!(Arc::ptr_eq(&read, &entry.read().unwrap()));
        assert_eq!(entry.read_part::<serde_json::Value>().unwrap()["metadata"]["name"], "a");
        let bare = Entry::new(&prefix, "a".into(), &Bytes::from_static(br#"{"metadata":{}}"#), 7);
        assert_eq!(bare.json(), &br#"{"metadata":{"resourceVersion":"7"}}"#[..]);
    }

    #[test]
    fn objects_in_a_row_are_selected_as_each_by_itself() {
        let prefix = Prefix::new("pods");
        let labelled = |labels: &str| {
            let stored = Bytes::from(format!(r#"{{"metadata":{{"labels":{labels}}}}}"#));
            Entry::new(&prefix, "a".into(), &stored, 1)
        };
        let (web, both, none) = (r#"{"app":"web"}"#, r#"{"app":"web","tier":"a"}"#, "{}");
        let entries = [web, web, none, both, both, web, none, none, web].map(labelled);
        for selector in ["app=web", "!app", "tier", "app!=web"] {
            let filter = Filter { labels: Some(selector.parse().unwrap()), ..Filter::default() };
            let mut selects = filter.selects_each();
            for (at, entry) in entries.iter().enumerate() {
                assert_eq!(selects(entry), filter.selects(entry), "{selector} {at}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_in_every_form() {
        for damaged in [&b"{}"[..], b"[]", br#"{"metadata":5}"#, b""] {
            let entry = Entry::new(&Prefix::new("pods"), "a/b".into(), &Bytes::from_static(damaged), 7);
            assert!(entry.is_unreadable() && entry.readable().is_err());
            let error = entry.read::<Pod>().unwrap_err().to_string();
            assert_eq!(error, "stored object /registry/pods/a/b cannot be read");
        }
        // Objects to the eye, which only their type shows to be none: known to all once one has tried.
        for damaged in [&br#"{"metadata":{"name":"b"},"spec":5}"#[..], br#"{"metadata":{"name":"b"},"spec":{"#] {
            let entry = Entry::new(&Prefix::new("pods"), "a/b".into(), &Bytes::from_static(damaged), 7);
            assert!(!entry.is_unreadable());
            let error = entry.object::<Pod>().unwrap_err().to_string();
            assert_eq!(error, "stored object /registry/pods/a/b cannot be read");
            assert!(entry.is_unreadable() && entry.decode::<serde_json::Value>().is_err());
        }
    }
}
