//! Reading JSON text without decoding it.
//!
//! Finding a member, a label or a field to select on needs a scan, not a parse, and cutting a field out or putting one in
//! is a splice. Nothing here allocates a tree. Malformed input gives `None`, never a panic.

use std::borrow::Cow;
use std::ops::Range;

/// The members of the object that starts at `at`: raw keys (without quotes) and the ranges of their values.
pub fn members(json: &[u8], at: usize) -> Members<'_> {
    let at = skip_space(json, at);
    Members { json, at: if json.get(at) == Some(&b'{') { Some(at + 1) } else { None } }
}

pub struct Members<'a> {
    json: &'a [u8],
    at: Option<usize>,
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, start) = self.enter()?;
        let end = skip_value(self.json, start)?;
        self.at = Some(end);
        Some((key, start..end))
    }
}

impl<'a> Members<'a> {
    /// The next key, and where its value begins. There is no next one until the value is left.
    pub(crate) fn enter(&mut self) -> Option<(&'a [u8], usize)> {
        let mut at = skip_space(self.json, self.at.take()?);
        if self.json.get(at) == Some(&b',') {
            at = skip_space(self.json, at + 1);
        }
        if self.json.get(at) != Some(&b'"') {
            self.at = Some(at);
            return None; // `}` or damage: either way there are no more members
        }
        let key_end = skip_value(self.json, at)?;
        let key = self.json.get(at + 1..key_end - 1)?;
        let colon = skip_space(self.json, key_end);
        if self.json.get(colon) != Some(&b':') {
            return None;
        }
        Some((key, skip_space(self.json, colon + 1)))
    }

    /// Goes on after the value that ends at `end`.
    pub(crate) fn leave(&mut self, end: usize) {
        self.at = Some(end);
    }

    /// Where the object ends, once there are no more members.
    pub(crate) fn end(&self) -> Option<usize> {
        self.at.filter(|at| self.json.get(*at) == Some(&b'}')).map(|at| at + 1)
    }

    /// Where the value of a member begins. What comes after it is not looked at.
    fn start_of(mut self, wanted: &str) -> Option<usize> {
        while let Some((key, start)) = self.enter() {
            if key == wanted.as_bytes() {
                return Some(start);
            }
            self.at = Some(skip_value(self.json, start)?);
        }
        None
    }
}

/// The items of the list that starts at `at`, each with its range.
pub(crate) fn items(json: &[u8], at: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = (json.get(at) == Some(&b'[')).then_some(at + 1);
    std::iter::from_fn(move || {
        let mut start = skip_space(json, at.take()?);
        if json.get(start) == Some(&b',') {
            start = skip_space(json, start + 1);
        }
        if json.get(start) == Some(&b']') {
            return None;
        }
        let end = skip_value(json, start)?;
        at = Some(end);
        Some(start..end)
    })
}

/// The first place from `at` on that is no space.
pub fn skip_space(json: &[u8], mut at: usize) -> usize {
    while matches!(json.get(at), Some(b' ' | b'\n' | b'\t' | b'\r')) {
        at += 1;
    }
    at
}

/// The end of the value that starts at `at`.
pub(crate) fn skip_value(json: &[u8], at: usize) -> Option<usize> {
    match json.get(at)? {
        b'"' => skip_string(json, at),
        b'{' | b'[' => {
            let mut depth = 0usize;
            let mut at = at;
            loop {
                match json.get(at)? {
                    b'"' => {
                        at = skip_string(json, at)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
                at += 1;
            }
        }
        _ => {
            let length =
                json[at..].iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\t' | b'\r'));
            Some(at + length.unwrap_or(json.len() - at))
        }
    }
}

/// Most of a text is strings, so these are passed many bytes at a time.
fn skip_string(json: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', json.get(at..)?)?;
        if json[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The raw value at a path of object keys.
pub fn find(json: &[u8], path: &[&str]) -> Option<Range<usize>> {
    let start = find_start(json, path)?;
    Some(start..skip_value(json, start)?)
}

/// Where the value at a path begins: how long it is need not be found out.
pub fn find_start(json: &[u8], path: &[&str]) -> Option<usize> {
    path.iter().try_fold(0, |at, key| members(json, at).start_of(key))
}

/// The raw values at several paths, found in one walk; a path that leads nowhere has none.
pub fn find_all(json: &[u8], paths: &[&[&str]]) -> Vec<Option<Range<usize>>> {
    let mut found = vec![None; paths.len()];
    walk(json, 0, 0, paths, &|_| true, &mut found);
    found
}

/// Looks for the paths that led to the object at `at`, `depth` keys long so far, and returns where the object ends.
fn walk(
    json: &[u8],
    at: usize,
    depth: usize,
    paths: &[&[&str]],
    leads_here: &dyn Fn(usize) -> bool,
    found: &mut [Option<Range<usize>>],
) -> Option<usize> {
    let mut members = members(json, at);
    while let Some((key, start)) = members.enter() {
        let leads_on =
            |path: usize| leads_here(path) && paths[path].get(depth).is_some_and(|wanted| wanted.as_bytes() == key);
        let goes_deeper = |path: usize| leads_on(path) && paths[path].len() > depth + 1;
        let end = match json.get(start) == Some(&b'{') && (0..paths.len()).any(goes_deeper) {
            true => walk(json, start, depth + 1, paths, &goes_deeper, found)?,
            false => skip_value(json, start)?,
        };
        for (path, place) in found.iter_mut().enumerate() {
            if leads_on(path) && paths[path].len() == depth + 1 {
                *place = Some(start..end);
            }
        }
        members.at = Some(end);
    }
    let end = members.at?;
    (json.get(end) == Some(&b'}')).then_some(end + 1)
}

/// The text of a raw scalar: a string without quotes and escapes, or a number or boolean as written.
pub fn text(raw: &[u8]) -> Cow<'_, str> {
    match raw {
        [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => String::from_utf8_lossy(inner),
        [b'"', ..] => Cow::Owned(serde_json::from_slice::<String>(raw).unwrap_or_default()),
        b"null" => Cow::Borrowed(""),
        _ => String::from_utf8_lossy(raw),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &[u8] = br#"{"apiVersion":"v1","kind":"Pod","spec":{"nodeName":"a\"b","list":[{"x":"]}"}],"n":5},"metadata":{"name":"p"}}"#;

    #[test]
    fn finds_values_by_path() {
        for (path, expected) in [
            (&["spec", "nodeName"][..], Some("a\"b")),
            (&["spec", "n"][..], Some("5")),
            (&["metadata", "name"][..], Some("p")),
            (&["metadata", "namespace"][..], None),
            (&["spec", "n", "deeper"][..], None),
        ] {
            let found = find(POD, path).map(|range| text(&POD[range]).into_owned());
            assert_eq!(found.as_deref(), expected, "{path:?}");
        }
    }

    #[test]
    fn one_walk_finds_what_single_searches_find() {
        let paths: [&[&str]; 9] = [
            &["metadata", "name"],
            &["spec", "n"],
            &["spec"],
            &["spec", "list"],
            &["spec", "nodeName"],
            &["spec", "nodeName"],
            &["spec", "n", "deeper"],
            &["status", "phase"],
            &["kind"],
        ];
        let expected: Vec<_> = paths.iter().map(|path| find(POD, path)).collect();
        assert_eq!(find_all(POD, &paths), expected);
        assert_eq!(expected.iter().flatten().count(), 7);
        assert_eq!(find_all(br#" { "a" : { } , "b" : 1 } "#, &[&["b"], &["a", "x"]]), [Some(21..22), None]);
    }

    #[test]
    fn damage_is_not_a_panic() {
        for end in 0..POD.len() {
            let cut = &POD[..end];
            let _ = find(cut, &["metadata", "name"]);
            let _ = find_all(cut, &[&["metadata", "name"], &["spec", "n"]]);
        }
    }
}
