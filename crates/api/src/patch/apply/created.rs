//! The fields of an object that is just being made, written in one walk over its JSON.
//!
//! Most of what clusters write is new, and its maker owns every field of it: there is nothing to compare with. The result
//! is that of [`raw::compare`](super::raw::compare) with nothing, as text (a property test says so). Whatever would need
//! more than a look at the text (escaped names, repeated ones, names out of order) is left to that.

use std::ops::Range;

use super::PRESENT;
use super::raw::known_by;
use super::set::SERVER_SET;
use super::walk::{Atom, item_atom};
use crate::scan;
use crate::schema::Struct;

/// `fieldsV1` of all that `json` sets, but for the top-level fields in `skip`, identity and what the server sets.
pub(super) fn fields(json: &[u8], schema: &Struct, skip: &[&str]) -> Option<String> {
    let mut walk = Walk { json, out: String::with_capacity(json.len() / 2) };
    walk.out.push('{');
    walk.object(0, true, Atom::Struct(schema), Level::Top(skip))?;
    walk.out.push('}');
    Some(walk.out)
}

struct Walk<'a> {
    json: &'a [u8],
    out: String,
}

/// Where in the object we are: some fields are nobody's.
#[derive(Clone, Copy)]
enum Level<'a> {
    Top(&'a [&'a str]),
    Metadata,
    Below,
}

impl Level<'_> {
    fn leaves_out(self, name: &str) -> bool {
        match self {
            Self::Top(skip) => matches!(name, "apiVersion" | "kind") || skip.contains(&name),
            Self::Metadata => SERVER_SET.contains(&name),
            Self::Below => false,
        }
    }

    fn inside(self, name: &str) -> Self {
        if matches!(self, Self::Top(_)) && name == "metadata" { Self::Metadata } else { Self::Below }
    }
}

/// What is known by the element: a field, or an item of a list.
#[derive(Clone, Copy)]
enum Element<'a> {
    Field(&'a str),
    Item(&'a str),
}

impl Walk<'_> {
    /// Writes the fields of the object at `at`, and returns where it ends. `bare`: some of them count as there already.
    fn object(&mut self, at: usize, bare: bool, atom: Atom<'_>, level: Level<'_>) -> Option<usize> {
        let mut members = scan::members(self.json, at);
        let mut last: Option<&[u8]> = None;
        while let Some((key, start)) = members.enter() {
            let name = std::str::from_utf8(key).ok().filter(|name| !name.contains('\\'))?;
            let first = self.json.get(start)?;
            let end = if *first == b'n' || level.leaves_out(name) {
                scan::skip_value(self.json, start)?
            } else {
                let (inner, level) = (atom.entry(name).0, level.inside(name));
                let is_damaged = matches!(level, Level::Metadata) && *first != b'{';
                if is_damaged || last.is_some_and(|last| last >= key) {
                    return None;
                }
                last = Some(key);
                let is_there = match first {
                    b'{' => PRESENT.contains(&name),
                    b'[' => name == "containers",
                    _ => false,
                };
                self.value(start, bare && is_there, inner, Element::Field(name), level)?
            };
            members.leave(end);
        }
        members.end()
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
                self.out.push_str("\".\":{},");
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
            true => self.out.push('}'),
            false => self.out.truncate(before),
        }
        Some(end)
    }

    fn open(&mut self, element: Element<'_>) {
        self.out.push_str(if self.out.ends_with(['{', ',']) { "\"" } else { ",\"" });
        match element {
            Element::Field(name) => self.out.extend(["f:", name]),
            Element::Item(text) => {
                for (at, part) in text.split('"').enumerate() {
                    self.out.push_str(if at == 0 { "" } else { "\\\"" });
                    self.out.push_str(part);
                }
            }
        }
        self.out.push_str("\":{");
    }

    /// Writes the items of the list at `at` in the order of what they are known by.
    fn items(&mut self, at: usize, atom: Atom<'_>) -> Option<usize> {
        let mut written: Vec<(String, Range<usize>)> = Vec::new();
        let start = self.out.len();
        let mut end = at + 1;
        for place in scan::items(self.json, at) {
            end = place.end;
            let item = std::str::from_utf8(&self.json[place.clone()]).ok()?;
            let (element, from) = (known_by(item, atom)?, self.out.len());
            self.value(place.start, false, item_atom(atom), Element::Item(&element), Level::Below)?;
            written.push((element, from..self.out.len()));
        }
        end = scan::skip_space(self.json, end);
        if self.json.get(end) != Some(&b']') {
            return None;
        }
        if !written.is_sorted_by(|(a, _), (b, _)| a < b) {
            written.sort_by(|(a, _), (b, _)| a.cmp(b));
            if written.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return None;
            }
            let unordered = self.out.split_off(start);
            for (at, (_, place)) in written.iter().enumerate() {
                self.out.push_str(if at == 0 { "" } else { "," });
                self.out.push_str(unordered[place.start - start..place.end - start].trim_start_matches(','));
            }
        }
        Some(end + 1)
    }
}
