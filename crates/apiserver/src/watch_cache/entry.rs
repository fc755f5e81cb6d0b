//! One version of one object, encoded once and shared by everyone who reads it.

use std::sync::{Arc, OnceLock};

use api::selector::{FieldSelector, Selector};
use bytes::Bytes;

use crate::json;
use crate::registry::SelectableField;

/// An object as served: JSON with its resource version, plus what selectors need, scanned when first asked for.
pub(crate) struct Entry {
    /// `<namespace>/<name>` or `<name>`.
    pub(crate) key: Arc<str>,
    pub(crate) revision: u64,
    pub(crate) json: Bytes,
    /// Where `"metadata"` begins: items of a list leave out what comes before.
    head: usize,
    digits: std::ops::Range<usize>,
    labels: OnceLock<Labels>,
    fields: OnceLock<Vec<Box<str>>>,
}

pub(crate) type Labels = std::collections::BTreeMap<String, String>;

impl Entry {
    /// `stored` is the value from the store, without a resource version. `None` if it is not an object with metadata.
    pub(crate) fn new(key: Arc<str>, stored: &[u8], revision: u64) -> Option<Self> {
        let (json, head, digits) = json::with_revision(stored, revision)?;
        Some(Self {
            key,
            revision,
            json: Bytes::from(json),
            head,
            digits,
            labels: OnceLock::new(),
            fields: OnceLock::new(),
        })
    }

    /// The same object with another resource version, as a DELETED event shows the last state.
    pub(crate) fn at_revision(&self, revision: u64) -> Bytes {
        let mut out = Vec::with_capacity(self.json.len() + 4);
        out.extend_from_slice(&self.json[..self.digits.start]);
        out.extend_from_slice(revision.to_string().as_bytes());
        out.extend_from_slice(&self.json[self.digits.end..]);
        Bytes::from(out)
    }

    /// The object without `kind` and `apiVersion`, as it stands in a list; the opening brace is left out.
    pub(crate) fn list_item(&self) -> &[u8] {
        &self.json[self.head..]
    }

    pub(crate) fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub(crate) fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    pub(crate) fn labels(&self) -> &Labels {
        self.labels.get_or_init(|| {
            let Some(range) = json::find(&self.json, &["metadata", "labels"]) else { return Labels::new() };
            json::members(&self.json, range.start)
                .map(|(key, value)| {
                    (String::from_utf8_lossy(key).into_owned(), json::text(&self.json[value]).into_owned())
                })
                .collect()
        })
    }

    /// The value of a selectable field; `fields` is the row's list.
    pub(crate) fn field(&self, fields: &[SelectableField], label: &str) -> Option<&str> {
        match label {
            "metadata.name" => return Some(self.name()),
            "metadata.namespace" => return Some(self.namespace()),
            _ => {}
        }
        let index = fields.iter().position(|field| field.label == label)?;
        let values = self.fields.get_or_init(|| {
            fields
                .iter()
                .map(|field| {
                    json::find(&self.json, field.path)
                        .map(|range| json::text(&self.json[range]).into())
                        .unwrap_or_else(|| field.default.into())
                })
                .collect()
        });
        values.get(index).map(AsRef::as_ref)
    }
}

/// What a list or watch wants to see.
#[derive(Clone, Default)]
pub(crate) struct Filter {
    /// `None` is all namespaces.
    pub(crate) namespace: Option<Arc<str>>,
    pub(crate) labels: Option<Selector>,
    pub(crate) fields: Option<FieldSelector>,
    pub(crate) selectable: &'static [SelectableField],
}

impl Filter {
    pub(crate) fn matches(&self, entry: &Entry) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| entry.namespace() == namespace) && self.selects(entry)
    }

    /// Label and field selectors only.
    pub(crate) fn selects(&self, entry: &Entry) -> bool {
        self.labels.as_ref().is_none_or(|selector| selector.matches(Some(entry.labels())))
            && self.fields.as_ref().is_none_or(|selector| {
                selector.matches(|label| entry.field(self.selectable, label).unwrap_or_default())
            })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_none() && self.fields.is_none()
    }
}
