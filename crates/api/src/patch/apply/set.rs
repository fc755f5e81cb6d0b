//! A set of fields of an object, as `fieldsV1` writes it.
//!
//! A path is a chain of elements: `f:<name>` for a field or map entry, `k:{...}` for an element of a keyed
//! list, `v:<value>` for an element of a set, `i:<index>` otherwise. A node may be in the set itself,
//! hold members below it, or both; in JSON the former is an empty object, the latter has a `.` entry.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};

use serde_json::{Map, Value};

use super::walk::field_element;
use crate::first_paths::FirstPaths;
use crate::patch::text::{Fields, Name};
use crate::scan;
use crate::schema::{Struct, Type};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    nodes: BTreeMap<String, Node>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    member: bool,
    below: FieldSet,
}

/// Invariant: every node is a member or has members below it.
impl FieldSet {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds `element` itself.
    pub(super) fn insert(&mut self, element: String) {
        self.nodes.entry(element).or_default().member = true;
    }

    /// Adds everything of `below` under `element`.
    pub(super) fn insert_below(&mut self, element: &str, below: Self) {
        if !below.is_empty() {
            self.nodes.entry(element.to_owned()).or_default().below.merge(below);
        }
    }

    pub(super) fn has(&self, element: &str) -> bool {
        self.nodes.get(element).is_some_and(|node| node.member)
    }

    pub(super) fn below(&self, element: &str) -> Option<&Self> {
        self.nodes.get(element).map(|node| &node.below).filter(|below| !below.is_empty())
    }

    /// Forgets a top-level field and all below it.
    pub(super) fn remove_field(&mut self, name: &str) {
        if !self.nodes.is_empty() {
            self.nodes.remove(&field_element(name));
        }
    }

    /// Forgets an element and all below it, and the one that it is in if nothing else is there.
    pub(super) fn remove_below(&mut self, element: &str, inner: &str) {
        if let Some(node) = self.nodes.get_mut(element) {
            node.below.nodes.remove(inner);
            if !node.member && node.below.is_empty() {
                self.nodes.remove(element);
            }
        }
    }

    /// Adds all of `other`.
    pub(super) fn merge(&mut self, other: Self) {
        if self.nodes.is_empty() {
            self.nodes = other.nodes;
            return;
        }
        for (element, node) in other.nodes {
            match self.nodes.entry(element) {
                Occupied(mut mine) => {
                    mine.get_mut().member |= node.member;
                    mine.get_mut().below.merge(node.below);
                }
                Vacant(place) => drop(place.insert(node)),
            }
        }
    }

    /// Takes out whatever `other` has.
    pub(super) fn subtract(&mut self, other: &Self) {
        if other.nodes.is_empty() {
            return;
        }
        self.nodes.retain(|element, node| {
            if let Some(theirs) = other.nodes.get(element) {
                node.member &= !theirs.member;
                node.below.subtract(&theirs.below);
            }
            node.member || !node.below.is_empty()
        });
    }

    pub(super) fn difference(mut self, other: &Self) -> Self {
        self.subtract(other);
        self
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        let shared = self.nodes.iter().filter_map(|(element, node)| {
            let theirs = other.nodes.get(element)?;
            let member = node.member && theirs.member;
            let below = node.below.intersection(&theirs.below);
            (member || !below.is_empty()).then(|| (element.clone(), Node { member, below }))
        });
        Self { nodes: shared.collect() }
    }

    /// Also holds every named field on the way to a member (not list elements, not map entries).
    pub(super) fn with_named_fields(&self, schema: &Struct) -> Self {
        self.with_named(Some(Named::Struct(schema)))
    }

    fn with_named(&self, shape: Option<Named<'_>>) -> Self {
        let nodes = self
            .nodes
            .iter()
            .map(|(element, node)| {
                let field = match (shape, element.strip_prefix("f:")) {
                    (Some(Named::Struct(definition)), Some(name)) => definition.field(name),
                    _ => None,
                };
                let inner = match (shape, field) {
                    (_, Some(field)) => Named::of(&field.ty),
                    (Some(Named::Other(ty)), None) => Named::of(ty),
                    _ => None,
                };
                let node = Node { member: node.member || field.is_some(), below: node.below.with_named(inner) };
                (element.clone(), node)
            })
            .collect();
        Self { nodes }
    }

    /// What no manager ever owns: identity and what the server sets.
    pub(super) fn strip_metadata(&mut self) {
        self.nodes.remove("f:apiVersion");
        self.nodes.remove("f:kind");
        if let Some(metadata) = self.nodes.get_mut("f:metadata") {
            metadata.member = false;
            let is_set_by_server =
                |element: &str| element.strip_prefix("f:").is_some_and(|name| SERVER_SET.contains(&name));
            metadata.below.nodes.retain(|element, _| !is_set_by_server(element));
            if metadata.below.is_empty() {
                self.nodes.remove("f:metadata");
            }
        }
    }

    /// Every member as messages print it: `.spec.containers[name="a"].image`.
    pub(super) fn add_paths(&self, paths: &mut FirstPaths) {
        self.add_paths_below(&mut String::new(), paths);
    }

    fn add_paths_below(&self, path: &mut String, paths: &mut FirstPaths) {
        let parent = path.len();
        for (element, node) in &self.nodes {
            if paths.is_full() {
                return;
            }
            path.push_str(&show(element));
            if node.member {
                paths.add(|| path.clone());
            }
            node.below.add_paths_below(path, paths);
            path.truncate(parent);
        }
    }

    pub(super) fn into_json(self) -> Value {
        let fields = self.nodes.into_iter().map(|(element, node)| {
            let mut below = node.below.into_json();
            if let (true, Value::Object(fields)) = (node.member, &mut below)
                && !fields.is_empty()
            {
                fields.insert(SELF.to_owned(), Value::Object(Map::new()));
            }
            (element, below)
        });
        Value::Object(fields.collect())
    }

    /// As [`Self::into_json`], written.
    pub(super) fn to_text(&self) -> String {
        let mut out = String::from("{");
        self.write(&mut out);
        out.push('}');
        out
    }

    fn write(&self, out: &mut String) {
        for (at, (element, node)) in self.nodes.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            write_string(element, out);
            let is_both = node.member && !node.below.is_empty();
            out.push_str(if is_both { ":{\".\":{}," } else { ":{" });
            node.below.write(out);
            out.push('}');
        }
    }

    /// Whether another set, written as JSON, has a member of this one.
    pub(super) fn meets(&self, written: &str) -> bool {
        let Some(fields) = self.open(written) else { return false };
        self.nodes.iter().any(|(element, node)| {
            let below = fields.get(element);
            below.is_some_and(|below| (node.member && is_member_text(below)) || node.below.meets(below))
        })
    }

    /// Whether another set, written as JSON, has every member of this one.
    pub(super) fn is_within(&self, written: &str) -> bool {
        let Some(fields) = self.open(written) else { return self.is_empty() };
        self.nodes.iter().all(|(element, node)| {
            let below = fields.get(element);
            below.is_some_and(|below| (!node.member || is_member_text(below)) && node.below.is_within(below))
        })
    }

    /// One level of a written set, if there is anything to look for.
    fn open<'a>(&self, written: &'a str) -> Option<Written<'a>> {
        const FEW: usize = 8;
        match self.nodes.len() {
            _ if written == "{}" => None,
            0 => None,
            1..=FEW => Some(Written::Text(written)),
            _ => serde_json::from_str(written).ok().map(Written::Level),
        }
    }

    /// Takes this set out of another one that is written as JSON.
    pub(super) fn take_from(&self, fields: &mut Map<String, Value>) {
        for (element, node) in &self.nodes {
            let Some(written) = fields.get_mut(element) else { continue };
            let member = is_member(written) && !node.member;
            if let Some(below) = written.as_object_mut() {
                below.remove(SELF);
                node.below.take_from(below);
            }
            if !mark(written, member) {
                fields.remove(element);
            }
        }
    }

    /// Adds this set to another one that is written as JSON.
    pub(super) fn add_to(&self, fields: &mut Map<String, Value>) {
        for (element, node) in &self.nodes {
            match fields.get_mut(element) {
                None => {
                    let mut below = Map::new();
                    node.below.add_to(&mut below);
                    let mut written = Value::Object(below);
                    if mark(&mut written, node.member) {
                        fields.insert(element.clone(), written);
                    }
                }
                Some(written) => {
                    let member = is_member(written) || node.member;
                    if let Some(below) = written.as_object_mut() {
                        node.below.add_to(below);
                    }
                    mark(written, member);
                }
            }
        }
    }

    pub(super) fn from_json(json: Value) -> Self {
        let Value::Object(fields) = json else { return Self::default() };
        let nodes = fields
            .into_iter()
            .filter(|(element, _)| element != SELF)
            .map(|(element, below)| (element, Node { member: is_member(&below), below: Self::from_json(below) }));
        Self { nodes: nodes.collect() }
    }
}

/// Fields of the metadata that the server sets.
pub(super) const SERVER_SET: &[&str] = &[
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// The entry of a node that is in the set itself and holds others as well.
const SELF: &str = ".";

fn is_member(written: &Value) -> bool {
    written.as_object().is_none_or(|below| below.is_empty() || below.contains_key(SELF))
}

fn is_member_text(written: &str) -> bool {
    // In the order of names it is the first one.
    let mut names = scan::members(written.as_bytes(), 0).map(|(name, _)| name).peekable();
    names.peek().is_none() || names.any(|name| name == SELF.as_bytes())
}

/// One level of a written set, as it is or taken apart: a few elements are found faster than all are read.
enum Written<'a> {
    Text(&'a str),
    Level(Fields<'a>),
}

impl<'a> Written<'a> {
    fn get(&self, element: &str) -> Option<&'a str> {
        let text = match self {
            Self::Level(fields) => return fields.get(&Name::from(element)).map(|below| below.get()),
            Self::Text(text) => *text,
        };
        let mut members = scan::members(text.as_bytes(), 0);
        let (_, place) = members.find(|(name, _)| match name.contains(&b'\\') {
            true => serde_json::from_slice::<String>(&[b"\"", *name, b"\""].concat()).is_ok_and(|name| name == element),
            false => *name == element.as_bytes(),
        })?;
        text.get(place)
    }
}

/// Writes a JSON string.
pub(super) fn write_string(text: &str, out: &mut String) {
    let is_plain = |byte: u8| byte >= b' ' && !matches!(byte, b'"' | b'\\');
    if text.bytes().all(is_plain) {
        out.extend(["\"", text, "\""]);
    } else {
        out.push_str(&Value::from(text).to_string());
    }
}

/// Writes whether a node is in the set itself; false if then nothing is left of it.
fn mark(written: &mut Value, member: bool) -> bool {
    let Some(below) = written.as_object_mut() else { return member };
    below.remove(SELF);
    if below.is_empty() {
        return member;
    }
    if member {
        below.insert(SELF.to_owned(), Value::Object(Map::new()));
    }
    true
}

#[derive(Clone, Copy)]
enum Named<'a> {
    Struct(&'a Struct),
    /// Elements of a list or map.
    Other(&'a Type),
}

impl<'a> Named<'a> {
    fn of(ty: &'a Type) -> Option<Self> {
        match ty {
            Type::Struct(definition) => Some(Self::Struct(definition)),
            Type::List(element) | Type::Map(element) => Some(Self::Other(element)),
            _ => None,
        }
    }
}

fn show(element: &str) -> String {
    match element.split_at_checked(2) {
        Some(("f:", name)) => format!(".{name}"),
        Some(("v:", value)) => format!("[={value}]"),
        Some(("k:", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        Some((_, index)) => format!("[{index}]"),
        None => element.to_owned(),
    }
}
