//! Reading JSON text without decoding it.
//!
//! Finding a member, a label or a field to select on needs a scan, not a parse, and cutting a field out or putting one in
//! is a splice. Nothing here allocates a tree. Malformed input gives `None`, never a panic.

use std::borrow::Cow;
use std::ops::Range;

/// The members of the object that starts at `at`: raw keys (without quotes) and the ranges of their values.
pub fn members(json: &[u8], at: usize) -> Members<'_> {
    let at = skip_space(json, at);
    Members { json, at: if json.get(at) == Some(&b'{') { Some(at + 1) } else { None }, is_first: true }
}

pub struct Members<'a> {
    json: &'a [u8],
    at: Option<usize>,
    is_first: bool,
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
    #[inline]
    pub(crate) fn enter(&mut self) -> Option<(&'a [u8], usize)> {
        let (key, start) = self.enter_at()?;
        Some((self.json.get(key)?, start))
    }

    /// As [`Self::enter`]: where the key is.
    pub(crate) fn enter_at(&mut self) -> Option<(Range<usize>, usize)> {
        let mut at = skip_space(self.json, self.at.take()?);
        match self.json.get(at)? {
            b',' if !self.is_first => at = skip_space(self.json, at + 1),
            b'"' if self.is_first => {}
            // `}` or damage: either way there are no more members.
            _ => {
                self.at = Some(at);
                return None;
            }
        }
        self.is_first = false;
        if self.json.get(at) != Some(&b'"') {
            return None;
        }
        let key_end = skip_string(self.json, at)?;
        let colon = skip_space(self.json, key_end);
        if self.json.get(colon) != Some(&b':') {
            return None;
        }
        Some((at + 1..key_end - 1, skip_space(self.json, colon + 1)))
    }

    /// Goes on after the value that ends at `end`.
    #[inline]
    pub(crate) fn leave(&mut self, end: usize) {
        self.at = Some(end);
    }

    /// Where the object ends, once there are no more members.
    #[inline]
    pub(crate) fn end(&self) -> Option<usize> {
        self.at.filter(|at| self.json.get(*at) == Some(&b'}')).map(|at| at + 1)
    }

    /// Where the value of a member begins. What comes after it is not looked at.
    pub(crate) fn start_of(mut self, wanted: &str) -> Option<usize> {
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
pub fn items(json: &[u8], at: usize) -> Items<'_> {
    Items { json, at: (json.get(at) == Some(&b'[')).then_some(at + 1) }
}

pub struct Items<'a> {
    json: &'a [u8],
    at: Option<usize>,
}

impl Iterator for Items<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.enter()?;
        let end = skip_value(self.json, start)?;
        self.leave(end);
        Some(start..end)
    }
}

impl Items<'_> {
    /// Where the next item begins. There is no next one until it is left.
    #[inline]
    pub(crate) fn enter(&mut self) -> Option<usize> {
        let mut at = skip_space(self.json, self.at.take()?);
        if self.json.get(at) == Some(&b',') {
            at = skip_space(self.json, at + 1);
        }
        if self.json.get(at) == Some(&b']') {
            self.at = Some(at);
            return None;
        }
        Some(at)
    }

    /// Goes on after the item that ends at `end`.
    #[inline]
    pub(crate) fn leave(&mut self, end: usize) {
        self.at = Some(end);
    }

    /// Where the list ends, once there are no more items.
    #[inline]
    pub(crate) fn end(&self) -> Option<usize> {
        self.at.map(|at| at + 1)
    }
}

/// The first place from `at` on that is no space.
#[inline]
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
        b'{' | b'[' => skip_container(json, at),
        _ => {
            let length =
                json[at..].iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\t' | b'\r'));
            Some(at + length.unwrap_or(json.len() - at))
        }
    }
}

/// The end of the object or list that starts at `at`.
fn skip_container(json: &[u8], at: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut rest = json.get(at..)?;
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'"' => rest = rest.get(string_end(rest)?..)?,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(json.len() - rest.len());
                }
            }
            _ => {}
        }
    }
    None
}

/// The end of the string that starts at `at`.
#[inline]
fn skip_string(json: &[u8], at: usize) -> Option<usize> {
    string_end(json.get(at + 1..)?).map(|end| at + 1 + end)
}

/// The end of the string whose opening quote is just before `text`: the next quote that is not escaped.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let quote = from + find_quote(&text[from..])?;
        let escapes = text[..quote].iter().rev().take_while(|byte| **byte == b'\\').count();
        if escapes.is_multiple_of(2) {
            return Some(quote + 1);
        }
        from = quote + 1;
    }
}

/// Most of a text is strings, and most of these are shorter than what a search for many bytes at a time takes to begin.
#[inline]
fn find_quote(text: &[u8]) -> Option<usize> {
    const SHORT: usize = 4;
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let (words, _) = text.as_chunks();
    for (at, word) in words.iter().take(SHORT).enumerate() {
        // A byte that is a quote becomes zero; of the high bits of zeros, the lowest is that of the first.
        let zeros = u64::from_le_bytes(*word) ^ (ONES * u64::from(b'"'));
        let found = zeros.wrapping_sub(ONES) & !zeros & HIGHS;
        if found != 0 {
            return Some(at * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let passed = words.len().min(SHORT) * 8;
    memchr::memchr(b'"', &text[passed..]).map(|found| passed + found)
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
    fn strings_end_where_they_end() {
        for length in 0..80 {
            for (tail, more) in [("\"", 1), ("\\\"\"x", 3), ("\\\\\"\"", 3), ("é\"\"", 3), ("\\\\", 0), ("", 0)] {
                let text = format!("\"{}{tail}", "a".repeat(length));
                let expected = (more > 0).then_some(1 + length + more);
                assert_eq!(skip_value(text.as_bytes(), 0), expected, "{text}");
            }
        }
    }

    #[test]
    fn items_are_entered_one_by_one() {
        let list = br#" [1, {"a":[2]} ,"]"] x"#;
        assert_eq!(
            items(list, 1).map(|place| &list[place]).collect::<Vec<_>>(),
            [&b"1"[..], br#"{"a":[2]}"#, br#""]""#]
        );
        let mut entered = items(list, 1);
        while let Some(start) = entered.enter() {
            entered.leave(skip_value(list, start).unwrap());
        }
        assert_eq!(entered.end(), Some(20));
        for damaged in ["[1,2", "[", "{}", "[1 "] {
            let mut damaged = items(damaged.as_bytes(), 0);
            while damaged.next().is_some() {}
            assert_eq!(damaged.end(), None);
        }
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
