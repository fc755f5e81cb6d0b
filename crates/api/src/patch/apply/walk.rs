//! Walks over values by their schema: which fields a value has, how two differ, how they merge.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::ListError;
use super::set::FieldSet;
use crate::schema::{Field, ListType, Struct, Type};

type Fields = Map<String, Value>;

/// How two objects differ.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl Changes {
    /// What the newer object set or changed, and what it no longer has.
    pub(super) fn split(self) -> (FieldSet, FieldSet) {
        let mut changed = self.added;
        changed.merge(self.modified);
        (changed, self.removed)
    }

    /// Managed fields themselves are owned by nobody.
    pub(super) fn forget_managed_fields(&mut self) {
        for set in [&mut self.added, &mut self.modified, &mut self.removed] {
            set.remove_below("f:metadata", "f:managedFields");
        }
    }

    pub(super) fn ignore(&mut self, field: &str) {
        self.added.remove_field(field);
        self.modified.remove_field(field);
        self.removed.remove_field(field);
    }
}

/// How a value is taken apart.
#[derive(Clone, Copy)]
pub(super) enum Atom<'a> {
    /// Owned as a whole: scalars, atomic structures, maps and lists.
    Leaf,
    Struct(&'a Struct),
    Map(&'a Type),
    Keyed(&'a Type, &'static [&'static str]),
    Set,
}

impl<'a> Atom<'a> {
    fn of_field(field: &'a Field) -> Self {
        let atomic = field.merge.is_some_and(|merge| merge.atomic);
        match &field.ty {
            _ if atomic => Self::Leaf,
            Type::Struct(definition) if field.granular => Self::Struct(definition),
            Type::List(element) => match field.merge.map(|merge| merge.list) {
                Some(ListType::Map(keys)) => Self::Keyed(element, keys),
                Some(ListType::Set) => Self::Set,
                Some(ListType::Atomic) | None => Self::Leaf,
            },
            ty => Self::of(ty),
        }
    }

    fn of(ty: &'a Type) -> Self {
        match ty {
            Type::Struct(definition) if !definition.atomic => Self::Struct(definition),
            Type::Map(value) => Self::Map(value),
            // A value that turns out to be no object is a leaf to all who look at maps.
            Type::Deduced => Self::Map(&Type::Deduced),
            _ => Self::Leaf,
        }
    }

    /// The named field of a structure.
    pub(super) fn field(self, name: impl AsRef<[u8]>) -> Option<&'a Field> {
        match self {
            Self::Struct(definition) => definition.field(name),
            _ => None,
        }
    }

    /// Whether a new object has the named structure before anyone set a field of it.
    pub(super) fn has_from_start(self, name: &[u8]) -> bool {
        matches!(self, Self::Struct(definition) if super::has_from_start(definition, name))
    }

    /// As [`Self::has_from_start`], of a list.
    pub(super) fn has_list_from_start(self, name: &[u8]) -> bool {
        matches!(self, Self::Struct(definition) if super::has_list_from_start(definition, name))
    }

    /// The atom of a map's or structure's entry, and whether the entry is a named field.
    pub(super) fn entry(self, name: impl AsRef<[u8]>) -> (Self, bool) {
        match self {
            Self::Struct(definition) => {
                let unnamed = if definition.open { Self::of(&Type::Deduced) } else { Self::Leaf };
                definition.field(name).map_or((unnamed, false), |field| (Self::of_field(field), true))
            }
            Self::Map(value) => (Self::of(value), false),
            _ => (Self::Leaf, false),
        }
    }
}

pub(super) fn field_element(name: &str) -> String {
    ["f:", name].concat()
}

/// The path element of an element of a keyed list or a set.
pub(super) fn item_element(item: &Value, atom: Atom<'_>) -> String {
    let Atom::Keyed(element, keys) = atom else {
        return format!("v:{item}");
    };
    let mut named = Fields::new();
    for &key in keys {
        match item.get(key).filter(|value| !value.is_null()) {
            Some(value) => {
                named.insert(key.to_owned(), value.clone());
            }
            None => {
                let default = element.as_struct().and_then(|element| element.field(key)?.key_default);
                if let Some(default) = default {
                    named.insert(key.to_owned(), default.into());
                }
            }
        }
    }
    format!("k:{}", Value::Object(named))
}

pub(super) fn item_atom(atom: Atom<'_>) -> Atom<'_> {
    match atom {
        Atom::Keyed(element, _) => Atom::of(element),
        _ => Atom::Leaf,
    }
}

/// Elements of keyed lists in an apply must carry their keys, and only one element each.
pub(super) fn check_keys(config: &Fields, schema: &Struct) -> Result<(), ListError> {
    check(config, Atom::Struct(schema), &mut String::new())
}

fn check(fields: &Fields, atom: Atom<'_>, path: &mut String) -> Result<(), ListError> {
    let parent = path.len();
    for (name, value) in fields {
        let (inner, _) = atom.entry(name);
        path.push('.');
        path.push_str(name);
        match (value, inner) {
            (Value::Object(fields), Atom::Struct(_) | Atom::Map(_)) => check(fields, inner, path)?,
            (Value::Array(items), Atom::Keyed(_, keys)) => {
                let mut seen = HashSet::new();
                for (i, item) in items.iter().enumerate() {
                    let element = item_element(item, inner);
                    if element == "k:{}" {
                        let key = crate::field::quote(keys.first().copied().unwrap_or_default());
                        return Err(ListError::NoKey { path: path.clone(), index: i, key });
                    }
                    if seen.contains(&element) {
                        return Err(ListError::Duplicate { path: path.clone(), key: element[2..].to_owned() });
                    }
                    seen.insert(element);
                    if let Value::Object(fields) = item {
                        let list = path.len();
                        path.push_str(&format!("[{i}]"));
                        check(fields, item_atom(inner), path)?;
                        path.truncate(list);
                    }
                }
            }
            _ => {}
        }
        path.truncate(parent);
    }
    Ok(())
}

/// All fields that `object` sets.
pub(super) fn field_set(object: &Fields, schema: &Struct) -> FieldSet {
    fields_of(object, Atom::Struct(schema))
}

fn fields_of(fields: &Fields, atom: Atom<'_>) -> FieldSet {
    let mut set = FieldSet::default();
    for (name, value) in fields {
        let element = field_element(name);
        let (inner, named) = atom.entry(name);
        let empty_map = value.as_object().is_some_and(Map::is_empty);
        match (value, inner) {
            (_, Atom::Leaf) | (Value::Null, _) => set.insert(element.clone()),
            (Value::Object(fields), Atom::Struct(_) | Atom::Map(_)) => {
                set.insert_below(&element, fields_of(fields, inner));
            }
            (Value::Array(items), Atom::Keyed(..) | Atom::Set) => {
                set.insert_below(&element, items_of(items, inner));
            }
            // A value that does not fit its type will be refused later.
            _ => set.insert(element.clone()),
        }
        if empty_map || !named {
            set.insert(element);
        }
    }
    set
}

/// The paths of lists, maps and structures in `object` that are owned as a whole.
pub(super) fn atomics(object: &Fields, schema: &Struct) -> Vec<String> {
    let mut found = Vec::new();
    atomics_below(object, Atom::Struct(schema), "", &mut found);
    found
}

fn atomics_below(fields: &Fields, atom: Atom<'_>, path: &str, found: &mut Vec<String>) {
    for (name, value) in fields {
        let (inner, _) = atom.entry(name);
        let path = format!("{path}.{name}");
        match (value, inner) {
            (Value::Object(_) | Value::Array(_), Atom::Leaf) => found.push(path),
            // Nothing is known of the type but that lists have no keys.
            (Value::Array(_), Atom::Map(_)) => found.push(path),
            (Value::Object(fields), _) => atomics_below(fields, inner, &path, found),
            (Value::Array(items), Atom::Keyed(..)) => {
                for (i, item) in items.iter().enumerate() {
                    if let Value::Object(fields) = item {
                        atomics_below(fields, item_atom(inner), &format!("{path}[{i}]"), found);
                    }
                }
            }
            _ => {}
        }
    }
}

fn items_of(items: &[Value], atom: Atom<'_>) -> FieldSet {
    let mut set = FieldSet::default();
    for item in items {
        let element = item_element(item, atom);
        if let (Value::Object(fields), inner @ Atom::Struct(_)) = (item, item_atom(atom)) {
            set.insert_below(&element, fields_of(fields, inner));
        }
        set.insert(element);
    }
    set
}

/// How `new` differs from `old`. Null is the same as absent.
pub(super) fn compare(old: &Fields, new: &Fields, schema: &Struct) -> Changes {
    let mut changes = Changes::default();
    compare_fields(Some(old), Some(new), Atom::Struct(schema), &mut changes);
    changes
}

fn compare_fields(old: Option<&Fields>, new: Option<&Fields>, atom: Atom<'_>, changes: &mut Changes) {
    fn get<'a>(fields: Option<&'a Fields>, name: &str) -> Option<&'a Value> {
        fields?.get(name).filter(|value| !value.is_null())
    }
    let only_old = old.into_iter().flatten().filter(|(name, _)| new.is_none_or(|new| !new.contains_key(*name)));
    for name in new.into_iter().flatten().map(|(name, _)| name).chain(only_old.map(|(name, _)| name)) {
        let (before, after) = (get(old, name), get(new, name));
        // The common case: nothing changed below here.
        if before != after {
            let (inner, _) = atom.entry(name);
            compare_values(before, after, inner, field_element(name), changes);
        }
    }
}

fn compare_values(old: Option<&Value>, new: Option<&Value>, atom: Atom<'_>, element: String, changes: &mut Changes) {
    let empty = |value: Option<&Value>| match value {
        None => true,
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    };
    let is_container = match atom {
        Atom::Leaf => false,
        Atom::Struct(_) | Atom::Map(_) => old.is_none_or(Value::is_object) && new.is_none_or(Value::is_object),
        Atom::Keyed(..) | Atom::Set => old.is_none_or(Value::is_array) && new.is_none_or(Value::is_array),
    };
    if is_container && !(empty(old) && empty(new)) {
        let mut below = Changes::default();
        match atom {
            Atom::Keyed(..) | Atom::Set => {
                let old = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let new = new.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                compare_items(old, new, atom, &mut below);
            }
            _ => {
                compare_fields(old.and_then(Value::as_object), new.and_then(Value::as_object), atom, &mut below);
            }
        }
        changes.added.insert_below(&element, below.added);
        changes.modified.insert_below(&element, below.modified);
        changes.removed.insert_below(&element, below.removed);
    } else if old.is_some() && new.is_some() {
        if old != new {
            changes.modified.insert(element);
        }
        return;
    }
    if old.is_none() {
        changes.added.insert(element);
    } else if new.is_none() {
        changes.removed.insert(element);
    }
}

fn compare_items(old: &[Value], new: &[Value], atom: Atom<'_>, changes: &mut Changes) {
    let elements = |items: &[Value]| -> Vec<String> { items.iter().map(|item| item_element(item, atom)).collect() };
    let (before, after) = (elements(old), elements(new));
    let places = places(before.iter());
    let present: HashSet<&String> = after.iter().collect();
    for (item, element) in new.iter().zip(&after) {
        let old_item = places.get(element).map(|at| &old[*at]);
        if old_item != Some(item) {
            compare_values(old_item, Some(item), item_atom(atom), element.clone(), changes);
        }
    }
    for (item, element) in old.iter().zip(&before) {
        if !present.contains(element) {
            compare_values(Some(item), None, item_atom(atom), element.clone(), changes);
        }
    }
}

/// Where the elements of a list are; of several the first. Lists may be as long as a body has room for, so none is searched
/// for each element of another.
fn places<'e>(elements: impl Iterator<Item = &'e String>) -> HashMap<&'e String, usize> {
    let mut places = HashMap::new();
    for (at, element) in elements.enumerate() {
        places.entry(element).or_insert(at);
    }
    places
}

/// `live` with everything that `config` says.
pub(super) fn merge(live: &Fields, config: &Fields, schema: &Struct) -> Fields {
    merge_fields(live, config, Atom::Struct(schema))
}

fn merge_fields(live: &Fields, config: &Fields, atom: Atom<'_>) -> Fields {
    let mut merged = live.clone();
    for (name, value) in config {
        let (inner, _) = atom.entry(name);
        let value = merge_values(live.get(name), value, inner);
        merged.insert(name.clone(), value);
    }
    merged
}

fn merge_values(live: Option<&Value>, config: &Value, atom: Atom<'_>) -> Value {
    match (live, config, atom) {
        (Some(Value::Object(live)), Value::Object(config), Atom::Struct(_) | Atom::Map(_)) => {
            Value::Object(merge_fields(live, config, atom))
        }
        (Some(Value::Array(live)), Value::Array(config), Atom::Keyed(..) | Atom::Set) => {
            Value::Array(merge_items(live, config, atom))
        }
        _ => config.clone(),
    }
}

/// Elements that both have keep the order of `config`; the others stay near their neighbours.
fn merge_items(live: &[Value], config: &[Value], atom: Atom<'_>) -> Vec<Value> {
    let live: Vec<(String, &Value)> = live.iter().map(|item| (item_element(item, atom), item)).collect();
    let config: Vec<(String, &Value)> = config.iter().map(|item| (item_element(item, atom), item)).collect();
    let in_live = places(live.iter().map(|(element, _)| element));
    let in_config = places(config.iter().map(|(element, _)| element));
    let merged = |element: &String, item: &Value| {
        merge_values(in_live.get(element).map(|at| live[*at].1), item, item_atom(atom))
    };
    let mut shared = config.iter().map(|(element, _)| element).filter(|element| in_live.contains_key(element));
    let mut next_shared = shared.next();
    let (mut out, mut done): (Vec<Value>, HashSet<&str>) = (Vec::new(), HashSet::new());
    let (mut l, mut r) = (0, 0);
    while l < live.len() || r < config.len() {
        if l < live.len() && r < config.len() {
            let element = &live[l].0;
            if *element == config[r].0 {
                out.push(merged(element, config[r].1));
                done.insert(element);
                next_shared = shared.next();
                (l, r) = (l + 1, r + 1);
                continue;
            }
            if in_config.contains_key(element) && next_shared.is_some_and(|next| next != element) {
                l += 1;
                continue;
            }
        }
        if l < live.len() {
            let (element, item) = &live[l];
            if !in_config.contains_key(element) {
                out.push((*item).clone());
                l += 1;
                continue;
            }
            if done.contains(element.as_str()) {
                l += 1;
            }
        }
        if r < config.len() {
            let (element, item) = &config[r];
            out.push(merged(element, item));
            done.insert(element);
            r += 1;
            if next_shared.is_some_and(|next| next == element) {
                next_shared = shared.next();
            }
        }
    }
    out
}

/// What is left of a structure or list all of whose members go.
#[derive(Clone, Copy)]
pub(super) enum Emptied {
    /// Nothing.
    Gone,
    /// Null in its field, as upstream's walker leaves it: the field is still one that the object sets.
    Null,
}

/// `object` without the members of `unwanted`.
pub(super) fn remove(object: &Fields, unwanted: &FieldSet, schema: &Struct, emptied: Emptied) -> Fields {
    remove_fields(object, unwanted, Atom::Struct(schema), emptied)
}

fn remove_fields(fields: &Fields, unwanted: &FieldSet, atom: Atom<'_>, emptied: Emptied) -> Fields {
    let mut left = Fields::new();
    for (name, value) in fields {
        let element = field_element(name);
        if unwanted.has(&element) {
            continue;
        }
        let value = match unwanted.below(&element) {
            None => Some(value.clone()),
            Some(below) => remove_below(value, below, atom.entry(name).0, emptied).or(match emptied {
                Emptied::Gone => None,
                Emptied::Null => Some(Value::Null),
            }),
        };
        if let Some(value) = value {
            left.insert(name.clone(), value);
        }
    }
    left
}

fn remove_below(value: &Value, unwanted: &FieldSet, atom: Atom<'_>, emptied: Emptied) -> Option<Value> {
    match (value, atom) {
        (Value::Object(fields), Atom::Struct(_) | Atom::Map(_)) => {
            let left = remove_fields(fields, unwanted, atom, emptied);
            (!left.is_empty()).then_some(Value::Object(left))
        }
        (Value::Array(items), Atom::Keyed(..) | Atom::Set) => {
            let left: Vec<Value> = items
                .iter()
                .filter_map(|item| {
                    let element = item_element(item, atom);
                    if unwanted.has(&element) {
                        return None;
                    }
                    match unwanted.below(&element) {
                        None => Some(item.clone()),
                        Some(below) => remove_below(item, below, item_atom(atom), emptied),
                    }
                })
                .collect();
            (!left.is_empty()).then_some(Value::Array(left))
        }
        (value, _) => Some(value.clone()),
    }
}
