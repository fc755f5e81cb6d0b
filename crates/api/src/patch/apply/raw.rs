//! How two objects differ, read from their JSON: only what differs is taken apart. Every write records its owners by this, so
//! it must not cost more than the write.
//!
//! The result is that of [`walk::compare`](super::walk::compare) on the same objects (a property test says so). Both
//! texts come from the same serializer, so what is equal is nearly always equal byte by byte.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

use super::walk::{Atom, Changes, field_element, item_atom, item_element};
use crate::scan;
use crate::schema::{Struct, Type};

/// Lists are told apart by so many fields at most.
const MAX_KEYS: usize = 4;

/// One level of an object: names and the texts of their values, in the order of the names.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'a> Fields<'a> {
    /// `None` if the text is no object.
    fn read(text: &'a str) -> Option<Self> {
        let mut members = scan::members(text.as_bytes(), 0);
        let mut fields = Vec::with_capacity(16);
        while let Some((key, start)) = members.enter_at() {
            let end = scan::skip_value(text.as_bytes(), start)?;
            members.leave(end);
            fields.push((name(text.get(key)?), text.get(start..end)?));
        }
        members.end()?;
        if !fields.is_sorted_by(|(a, _), (b, _)| a < b) {
            // Of several by the same name, the last counts.
            fields.reverse();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            fields.dedup_by(|(later, _), (first, _)| later == first);
        }
        Some(Self(fields))
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok().map(|at| self.0[at].1)
    }
}

/// A name from the text between its quotes.
fn name(text: &str) -> Cow<'_, str> {
    match text.contains('\\') {
        true => Cow::Owned(serde_json::from_str(&format!("\"{text}\"")).unwrap_or_default()),
        false => Cow::Borrowed(text),
    }
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// The older one of two values.
#[derive(Clone, Copy)]
enum Old<'a> {
    Absent,
    Given(&'a str),
    /// Of an object that is just being made: there, with nothing set in it.
    Bare,
}

/// What `new` sets or changes, compared with `old`, or with nothing if it is new. `None` if a text is no JSON object.
pub(super) fn compare(old: Option<&[u8]>, new: &[u8], schema: &Struct, skip: &[&str]) -> Option<Changes> {
    let mut changes = Changes::default();
    let parse = |text| Fields::read(std::str::from_utf8(text).ok()?);
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
    let present = |text: &&str| *text != "null";
    for (name, after) in &new.0 {
        let before = match old.and_then(|old| old.get(name)).filter(present) {
            Some(before) => Old::Given(before),
            None if bare => bare_field(name, after, atom),
            None => Old::Absent,
        };
        let after = Some(*after).filter(present);
        let same = match (before, after) {
            (Old::Given(before), Some(after)) => before == after,
            (Old::Absent, None) => true,
            _ => false,
        };
        if !same && !skip.contains(&&**name) {
            compare_values(before, after, atom.entry(&**name).0, field_element(name), changes);
        }
    }
    let Some(old) = old else { return };
    for (name, before) in old.0.iter().filter(|(name, _)| new.get(name).is_none()) {
        if present(before) && !skip.contains(&&**name) {
            compare_values(Old::Given(before), None, atom.entry(&**name).0, field_element(name), changes);
        }
    }
}

/// What of a new object counts as there before anyone set it (`skeleton`).
fn bare_field<'a>(name: &str, after: &'a str, atom: Atom<'_>) -> Old<'a> {
    match after.as_bytes().first() {
        Some(b'0' | b'f' | b'"') if atom.field(name).is_some_and(|field| field.is_bare_text(after.as_bytes())) => {
            Old::Given(after)
        }
        Some(b'{') if atom.has_from_start(name.as_bytes()) => Old::Bare,
        Some(b'[') if atom.has_list_from_start(name.as_bytes()) => Old::Bare,
        _ => Old::Absent,
    }
}

fn compare_values(old: Old<'_>, new: Option<&str>, atom: Atom<'_>, element: String, changes: &mut Changes) {
    let fits = |with: char| match old {
        Old::Given(old) => old.starts_with(with) && new.is_none_or(|new| new.starts_with(with)),
        Old::Absent | Old::Bare => new.is_none_or(|new| new.starts_with(with)),
    };
    let is_container = match atom {
        Atom::Leaf => false,
        Atom::Struct(_) | Atom::Map(_) => fits('{'),
        Atom::Keyed(..) | Atom::Set => fits('['),
    };
    let empty = |text: &str| matches!(text, "{}" | "[]");
    let nothing_old = match old {
        Old::Given(old) => empty(old),
        Old::Absent | Old::Bare => true,
    };
    if is_container && !(nothing_old && new.is_none_or(empty)) {
        let mut below = Changes::default();
        if matches!(atom, Atom::Keyed(..) | Atom::Set) {
            let old = match old {
                Old::Given(old) => items(old, atom),
                Old::Absent | Old::Bare => Vec::new(),
            };
            compare_items(&old, &new.map(|new| items(new, atom)).unwrap_or_default(), atom, &mut below);
        } else {
            let (parsed, bare) = match old {
                Old::Given(old) => (Fields::read(old), false),
                Old::Absent => (None, false),
                Old::Bare => (None, true),
            };
            let new = new.and_then(Fields::read).unwrap_or(Fields(Vec::new()));
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
fn items<'a>(list: &'a str, atom: Atom<'_>) -> Vec<(String, &'a str)> {
    let items = scan::items(list.as_bytes(), 0).filter_map(|place| list.get(place));
    let element = |item: &str| String::from_utf8(known_by(item.as_bytes(), 0, atom)?).ok();
    items.map(|item| (element(item).unwrap_or_else(|| item_element(&value(item), atom)), item)).collect()
}

/// The path element of the item at `at`, from its text. `None` where more than a look is needed.
pub(super) fn known_by(json: &[u8], at: usize, atom: Atom<'_>) -> Option<Vec<u8>> {
    let Atom::Keyed(element, keys) = atom else {
        return plain(json.get(at..scan::skip_value(json, at)?)?).map(|item| [b"v:", item].concat());
    };
    let mut sorted = [""; MAX_KEYS];
    let sorted = sorted.get_mut(..keys.len())?;
    sorted.copy_from_slice(keys);
    sorted.sort_unstable();
    if json.get(at) != Some(&b'{') {
        return None;
    }
    let mut text = Vec::with_capacity(48);
    text.extend_from_slice(b"k:{");
    for &key in &*sorted {
        let start = scan::members(json, at).start_of(key);
        let given = start.and_then(|start| json.get(start..scan::skip_value(json, start)?)).filter(|it| *it != b"null");
        let given = match (given, default(element, key)) {
            (Some(given), _) => Cow::Borrowed(plain(given)?),
            (None, Some(default)) => Cow::Owned([b"\"", default.as_bytes(), b"\""].concat()),
            (None, None) => continue,
        };
        text.extend_from_slice(if text.ends_with(b"{") { b"\"" } else { b",\"" });
        text.extend_from_slice(key.as_bytes());
        text.extend_from_slice(b"\":");
        text.extend_from_slice(&given);
    }
    text.push(b'}');
    Some(text)
}

/// A string or whole number that is written in one way only.
fn plain(text: &[u8]) -> Option<&[u8]> {
    let is_string = text.starts_with(b"\"") && !text.contains(&b'\\');
    let is_number = || !text.is_empty() && text.len() < 16 && text.iter().all(u8::is_ascii_digit);
    (is_string || is_number()).then_some(text)
}

fn default(element: &Type, key: &str) -> Option<&'static str> {
    element.as_struct()?.field(key)?.key_default
}

fn compare_items(old: &[(String, &str)], new: &[(String, &str)], atom: Atom<'_>, changes: &mut Changes) {
    // Of several that are known by the same, the first counts.
    let before: BTreeMap<&str, &str> = old.iter().rev().map(|(element, item)| (element.as_str(), *item)).collect();
    let after: BTreeMap<&str, &str> = new.iter().map(|(element, item)| (element.as_str(), *item)).collect();
    for (element, item) in new {
        let old = before.get(element.as_str()).map_or(Old::Absent, |item| Old::Given(item));
        let same = matches!(old, Old::Given(old) if old == *item);
        if !same {
            compare_values(old, Some(item), item_atom(atom), element.clone(), changes);
        }
    }
    for (element, item) in old.iter().filter(|(element, _)| !after.contains_key(element.as_str())) {
        compare_values(Old::Given(item), None, item_atom(atom), element.clone(), changes);
    }
}
