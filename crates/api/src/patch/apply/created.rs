//! The fields of an object that is just being made, written in one walk over its JSON.
//!
//! Most of what clusters write is new, and its maker owns every field of it: there is nothing to compare with. The result
//! is that of [`raw::compare`](super::raw::compare) with nothing, as text (a property test says so). Whatever would need
//! more than a look at the text (escaped names, repeated ones, names out of order) is left to that.

use std::ops::Range;

use super::raw::known_by;
use super::set::SERVER_SET;
use super::walk::{Atom, item_atom};
use crate::scan;
use crate::schema::Struct;
use crate::sort::CompactSort as _;

/// `fieldsV1` of all that `json` sets, but for the top-level fields in `skip`, identity and what the server sets.
pub(super) fn fields(json: &[u8], schema: &Struct, skip: &[&str]) -> Option<String> {
    let mut walk = Walk { json, out: Vec::with_capacity(json.len()) };
    walk.out.push(b'{');
    walk.object(0, true, Atom::Struct(schema), Level::Top(skip))?;
    walk.out.push(b'}');
    String::from_utf8(walk.out).ok()
}

struct Walk<'a> {
    json: &'a [u8],
    out: Vec<u8>,
}

/// Where in the object we are: some fields are nobody's.
#[derive(Clone, Copy)]
enum Level<'a> {
    Top(&'a [&'a str]),
    Metadata,
    Below,
}

impl Level<'_> {
    fn leaves_out(self, name: &[u8]) -> bool {
        match self {
            Self::Top(skip) => matches!(name, b"apiVersion" | b"kind") || is_among(skip, name),
            Self::Metadata => is_among(SERVER_SET, name),
            Self::Below => false,
        }
    }

    fn inside(self, name: &[u8]) -> Self {
        if matches!(self, Self::Top(_)) && name == b"metadata" { Self::Metadata } else { Self::Below }
    }
}

fn is_among(names: &[&str], name: &[u8]) -> bool {
    names.iter().any(|known| known.as_bytes() == name)
}

/// What is known by the element: a field, or an item of a list.
#[derive(Clone, Copy)]
enum Element<'a> {
    Field(&'a [u8]),
    Item(&'a [u8]),
}

impl Walk<'_> {
    /// Writes the fields of the object at `at`, and returns where it ends. `bare`: some of them count as there already.
    fn object(&mut self, at: usize, bare: bool, atom: Atom<'_>, level: Level<'_>) -> Option<usize> {
        let mut members = scan::members(self.json, at);
        let mut last: Option<&[u8]> = None;
        while let Some((name, start)) = members.enter() {
            if name.contains(&b'\\') {
                return None;
            }
            let first = self.json.get(start)?;
            let is_nobodys = *first == b'n' || level.leaves_out(name) || (bare && self.is_bare(start, name, atom));
            let end = if is_nobodys {
                scan::skip_value(self.json, start)?
            } else {
                let (inner, level) = (atom.entry(name).0, level.inside(name));
                let is_damaged = matches!(level, Level::Metadata) && *first != b'{';
                if is_damaged || last.is_some_and(|last| last >= name) {
                    return None;
                }
                last = Some(name);
                let is_there = bare
                    && match first {
                        b'{' => atom.has_from_start(name),
                        b'[' => atom.has_list_from_start(name),
                        _ => false,
                    };
                self.value(start, is_there, inner, Element::Field(name), level)?
            };
            members.leave(end);
        }
        members.end()
    }

    /// Whether the value at `start` is what the field has before anyone sets it.
    fn is_bare(&self, start: usize, name: &[u8], atom: Atom<'_>) -> bool {
        let may_be_zero = match self.json.get(start..start + 2) {
            Some(text) => text == b"\"\"" || matches!(text[0], b'0' | b'f'),
            None => false,
        };
        let text = || self.json.get(start..scan::skip_value(self.json, start)?);
        may_be_zero && atom.field(name).zip(text()).is_some_and(|(field, text)| field.is_bare_text(text))
    }

    /// Writes an element and what is below it. One that is `there` already belongs to nobody by itself.
    fn value(
        &mut self,
        at: usize,
        there: bool,
        atom: Atom<'_>,
        element: Element<'_>,
        level: Level<'_>,
    ) -> Option<usize> {
        let first = self.json.get(at)?;
        let is_empty = matches!(self.json.get(at..at + 2)?, b"{}" | b"[]");
        let is_container = match atom {
            Atom::Leaf => false,
            Atom::Struct(_) | Atom::Map(_) => *first == b'{',
            Atom::Keyed(..) | Atom::Set => *first == b'[',
        };
        let before = self.out.len();
        self.open(element);
        let inside = self.out.len();
        let mut is_kept = !there;
        let end = if is_container && !is_empty {
            if !there {
                self.out.extend_from_slice(b"\".\":{},");
            }
            let below = self.out.len();
            let end = match atom {
                Atom::Keyed(..) | Atom::Set => self.items(at, atom)?,
                _ => self.object(at, there, atom, level)?,
            };
            if self.out.len() == below {
                self.out.truncate(inside);
            } else {
                is_kept = true;
            }
            end
        } else {
            // What was there with nothing in it has become something.
            is_kept |= !is_empty;
            scan::skip_value(self.json, at)?
        };
        match is_kept {
            true => self.out.push(b'}'),
            false => self.out.truncate(before),
        }
        Some(end)
    }

    fn open(&mut self, element: Element<'_>) {
        let out = &mut self.out;
        if !matches!(out.last(), Some(b'{' | b',')) {
            out.push(b',');
        }
        match element {
            Element::Field(name) => {
                out.extend_from_slice(b"\"f:");
                out.extend_from_slice(name);
            }
            Element::Item(text) => {
                out.push(b'"');
                for &byte in text {
                    if byte == b'"' {
                        out.push(b'\\');
                    }
                    out.push(byte);
                }
            }
        }
        out.extend_from_slice(b"\":{");
    }

    /// Writes the items of the list at `at` in the order of what they are known by.
    fn items(&mut self, at: usize, atom: Atom<'_>) -> Option<usize> {
        let mut written: Vec<(Vec<u8>, Range<usize>)> = Vec::new();
        let start = self.out.len();
        let mut items = scan::items(self.json, at);
        while let Some(item) = items.enter() {
            let (element, from) = (known_by(self.json, item, atom)?, self.out.len());
            let end = self.value(item, false, item_atom(atom), Element::Item(&element), Level::Below)?;
            written.push((element, from..self.out.len()));
            items.leave(end);
        }
        let end = items.end()?;
        if !written.is_sorted_by(|(a, _), (b, _)| a < b) {
            written.compact_sort_by(|(a, _), (b, _)| a.cmp(b));
            if written.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return None;
            }
            let unordered = self.out.split_off(start);
            for (at, (_, place)) in written.iter().enumerate() {
                if at > 0 {
                    self.out.push(b',');
                }
                let item = &unordered[place.start - start..place.end - start];
                self.out.extend_from_slice(item.strip_prefix(b",").unwrap_or(item));
            }
        }
        Some(end)
    }
}
