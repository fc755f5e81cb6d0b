//! A set of fields of an object, as `fieldsV1` writes it.
//!
//! A path is a chain of elements: `f:<name>` for a field or map entry, `k:{...}` for an element of a keyed
//! list, `v:<value>` for an element of a set, `i:<index>` otherwise. A node may be in the set itself,
//! hold members below it, or both; in JSON the former is an empty object, the latter has a `.` entry.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

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

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        self.nodes.values().all(|node| !node.member && node.below.is_empty())
    }

    /// Adds `element` itself.
    pub(super) fn insert(&mut self, element: String) {
        self.nodes.entry(element).or_default().member = true;
    }

    /// Adds everything of `below` under `element`.
    pub(super) fn insert_below(&mut self, element: &str, below: Self) {
        if !below.is_empty() {
            let node = self.nodes.entry(element.to_owned()).or_default();
            node.below = std::mem::take(&mut node.below).union(&below);
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
        self.nodes.remove(&format!("f:{name}"));
    }

    pub(super) fn union(mut self, other: &Self) -> Self {
        for (element, node) in &other.nodes {
            let mine = self.nodes.entry(element.clone()).or_default();
            mine.member |= node.member;
            if !node.below.nodes.is_empty() {
                mine.below = std::mem::take(&mut mine.below).union(&node.below);
            }
        }
        self
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.combine(|element, node| {
            let theirs = other.nodes.get(element)?;
            Some(Node { member: node.member && theirs.member, below: node.below.intersection(&theirs.below) })
        })
    }

    pub(super) fn difference(&self, other: &Self) -> Self {
        self.combine(|element, node| {
            Some(match other.nodes.get(element) {
                None => node.clone(),
                Some(theirs) => {
                    Node { member: node.member && !theirs.member, below: node.below.difference(&theirs.below) }
                }
            })
        })
    }

    fn combine(&self, combine: impl Fn(&str, &Node) -> Option<Node>) -> Self {
        let nodes = self
            .nodes
            .iter()
            .filter_map(|(element, node)| {
                let node = combine(element, node)?;
                (node.member || !node.below.is_empty()).then(|| (element.clone(), node))
            })
            .collect();
        Self { nodes }
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
        const SERVER_SET: &[&str] = &[
            "f:name",
            "f:namespace",
            "f:creationTimestamp",
            "f:selfLink",
            "f:uid",
            "f:clusterName",
            "f:generation",
            "f:managedFields",
            "f:resourceVersion",
        ];
        self.nodes.remove("f:apiVersion");
        self.nodes.remove("f:kind");
        if let Some(metadata) = self.nodes.get_mut("f:metadata") {
            metadata.member = false;
            for name in SERVER_SET {
                metadata.below.nodes.remove(*name);
            }
            if metadata.below.is_empty() {
                self.nodes.remove("f:metadata");
            }
        }
    }

    /// Every member as messages print it: `.spec.containers[name="a"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        for (element, node) in &self.nodes {
            let path = format!("{prefix}{}", show(element));
            if node.member {
                paths.push(path.clone());
            }
            node.below.collect_paths(&path, paths);
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let mut fields = Map::new();
        for (element, node) in &self.nodes {
            let mut below = match node.below.to_json() {
                Value::Object(below) => below,
                _ => Map::new(),
            };
            if node.member && !below.is_empty() {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            fields.insert(element.clone(), Value::Object(below));
        }
        Value::Object(fields)
    }

    pub(super) fn from_json(json: &Value) -> Self {
        let mut set = Self::default();
        for (element, below) in json.as_object().into_iter().flatten().filter(|(element, _)| *element != ".") {
            let empty = below.as_object().is_none_or(Map::is_empty);
            let member = empty || below.get(".").is_some();
            set.nodes.insert(element.clone(), Node { member, below: Self::from_json(below) });
        }
        set
    }
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
