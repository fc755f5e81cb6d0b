//! How two objects differ, read from their JSON: only what differs is taken apart. Every write keeps its books by this, so
//! it must not cost more than the write.
//!
//! The result is that of [`walk::compare`](super::walk::compare) on the same objects (a property test says so). Both
//! texts come from the same serializer, so what is equal is nearly always equal byte by byte.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::PRESENT;
use super::walk::{Atom, Changes, field_element, item_atom, item_element};
use crate::patch::text::{Fields, Name, parse, value};
use crate::schema::Struct;

/// The older one of two values.
#[derive(Clone, Copy)]
enum Old<'a> {
    Absent,
    Given(&'a RawValue),
    /// Of an object that is just being made: there, with nothing set in it.
    Bare,
}

/// What `new` sets or changes, compared with `old`, or with nothing if it is new. `None` if a text is no JSON object.
pub(super) fn compare(old: Option<&[u8]>, new: &[u8], schema: &Struct, skip: &[&str]) -> Option<Changes> {
    let mut changes = Changes::default();
    let parse = |text| serde_json::from_slice::<Fields<'_>>(text).ok();
    let old = match old {
        Some(old) => Some(parse(old)?),
        None => None,
    };
    compare_fields(old.as_ref(), old.is_none(), &parse(new)?, Atom::Struct(schema), skip, &mut changes);
    Some(changes)
}

fn compare_fields(
    old: Option<&Fields<'_>>,
    bare: bool,
    new: &Fields<'_>,
    atom: Atom<'_>,
    skip: &[&str],
    changes: &mut Changes,
) {
    let present = |raw: &&&RawValue| raw.get() != "null";
    for (name, after) in new {
        let before = match old.and_then(|old| old.get(name)).filter(present) {
            Some(before) => Old::Given(before),
            None if bare => bare_field(&name.0, after),
            None => Old::Absent,
        };
        let after = Some(*after).filter(|after| present(&after));
        let same = match (before, after) {
            (Old::Given(before), Some(after)) => before.get() == after.get(),
            (Old::Absent, None) => true,
            _ => false,
        };
        if !same && !skip.contains(&&*name.0) {
            compare_values(before, after, atom.entry(&name.0).0, field_element(&name.0), changes);
        }
    }
    for (name, before) in old.into_iter().flatten().filter(|(name, _)| !new.contains_key(name)) {
        if present(&before) && !skip.contains(&&*name.0) {
            compare_values(Old::Given(before), None, atom.entry(&name.0).0, field_element(&name.0), changes);
        }
    }
}

/// What of a new object counts as there before anyone set it (`skeleton`).
fn bare_field<'a>(name: &str, after: &RawValue) -> Old<'a> {
    match after.get().as_bytes().first() {
        Some(b'{') if PRESENT.contains(&name) => Old::Bare,
        Some(b'[') if name == "containers" => Old::Bare,
        _ => Old::Absent,
    }
}

fn compare_values(old: Old<'_>, new: Option<&RawValue>, atom: Atom<'_>, element: String, changes: &mut Changes) {
    let opens = |raw: &RawValue, with: char| raw.get().starts_with(with);
    let fits = |with: char| match old {
        Old::Given(old) => opens(old, with) && new.is_none_or(|new| opens(new, with)),
        Old::Absent | Old::Bare => new.is_none_or(|new| opens(new, with)),
    };
    let is_container = match atom {
        Atom::Leaf => false,
        Atom::Struct(_) | Atom::Map(_) => fits('{'),
        Atom::Keyed(..) | Atom::Set => fits('['),
    };
    let empty = |raw: &RawValue| matches!(raw.get(), "{}" | "[]");
    let nothing_old = match old {
        Old::Given(old) => empty(old),
        Old::Absent | Old::Bare => true,
    };
    if is_container && !(nothing_old && new.is_none_or(empty)) {
        let mut below = Changes::default();
        if matches!(atom, Atom::Keyed(..) | Atom::Set) {
            let old = match old {
                Old::Given(old) => items(Some(old), atom),
                Old::Absent | Old::Bare => Vec::new(),
            };
            compare_items(&old, &items(new, atom), atom, &mut below);
        } else {
            let (parsed, bare) = match old {
                Old::Given(old) => (Some(parse(old)), false),
                Old::Absent => (None, false),
                Old::Bare => (None, true),
            };
            let new = new.map(parse).unwrap_or_default();
            compare_fields(parsed.as_ref(), bare, &new, atom, &[], &mut below);
        }
        changes.added.insert_below(&element, below.added);
        changes.modified.insert_below(&element, below.modified);
        changes.removed.insert_below(&element, below.removed);
    } else if let (Old::Given(_) | Old::Bare, Some(new)) = (old, new) {
        let is_same = match old {
            Old::Given(old) => value(old) == value(new),
            _ => empty(new),
        };
        if !is_same {
            changes.modified.insert(element);
        }
        return;
    }
    match (old, new) {
        (Old::Absent, _) => changes.added.insert(element),
        (_, None) => changes.removed.insert(element),
        _ => {}
    }
}

/// The elements of a list with what they are known by.
fn items<'a>(list: Option<&'a RawValue>, atom: Atom<'_>) -> Vec<(String, &'a RawValue)> {
    let items: Vec<&RawValue> = list.and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default();
    items.into_iter().map(|item| (known_by(item, atom), item)).collect()
}

fn known_by(item: &RawValue, atom: Atom<'_>) -> String {
    let Atom::Keyed(_, keys) = atom else { return item_element(&value(item), atom) };
    let fields = parse(item);
    let named = keys.iter().filter_map(|key| {
        let raw = fields.get(&Name::from(*key))?;
        Some(((*key).to_owned(), value(raw)))
    });
    item_element(&Value::Object(named.collect::<Map<_, _>>()), atom)
}

fn compare_items(old: &[(String, &RawValue)], new: &[(String, &RawValue)], atom: Atom<'_>, changes: &mut Changes) {
    // Of several that are known by the same, the first counts.
    let before: BTreeMap<&str, &RawValue> = old.iter().rev().map(|(element, item)| (element.as_str(), *item)).collect();
    let after: BTreeMap<&str, &RawValue> = new.iter().map(|(element, item)| (element.as_str(), *item)).collect();
    for (element, item) in new {
        let old = before.get(element.as_str()).map_or(Old::Absent, |item| Old::Given(item));
        let same = matches!(old, Old::Given(old) if old.get() == item.get());
        if !same {
            compare_values(old, Some(item), item_atom(atom), element.clone(), changes);
        }
    }
    for (element, item) in old.iter().filter(|(element, _)| !after.contains_key(element.as_str())) {
        compare_values(Old::Given(item), None, item_atom(atom), element.clone(), changes);
    }
}
