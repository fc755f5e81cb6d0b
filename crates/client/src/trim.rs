//! Cuts `metadata.managedFields` out of an object before it is decoded.
//!
//! Who manages which field is a third of a pod's text, a map in a map for every field, and no cache keeps it: reading past
//! it costs a fraction of building it up to throw it away.

use std::borrow::Cow;
use std::ops::Range;

/// The object without its managed fields. What is no object is returned as it is: decoding it says what is wrong.
pub(crate) fn without_managed_fields(object: &[u8]) -> Cow<'_, [u8]> {
    match managed_fields(object) {
        None => Cow::Borrowed(object),
        Some(cut) => Cow::Owned([&object[..cut.start], &object[cut.end..]].concat()),
    }
}

/// Where they are, with one of the commas around them.
fn managed_fields(object: &[u8]) -> Option<Range<usize>> {
    let mut reader = Reader { text: object, at: 0 };
    let metadata = reader.member(b"metadata")?;
    reader.at = metadata.value;
    let found = reader.member(b"managedFields")?;
    reader.at = found.value;
    reader.skip_value()?;
    let end = reader.at;
    match reader.peek()? {
        b',' => Some(found.key..reader.at + 1),
        _ => Some(found.comma.unwrap_or(found.key)..end),
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

/// Where a member of an object begins, its value, and the comma before it.
struct Member {
    comma: Option<usize>,
    key: usize,
    value: usize,
}

impl Reader<'_> {
    /// Finds a member of the object that begins here.
    fn member(&mut self, wanted: &[u8]) -> Option<Member> {
        self.expect(b'{')?;
        let mut comma = None;
        loop {
            self.peek().filter(|byte| *byte == b'"')?;
            let key = self.at;
            self.skip_string()?;
            let is_wanted = self.text[key + 1..self.at - 1] == *wanted;
            self.expect(b':')?;
            self.peek()?;
            if is_wanted {
                return Some(Member { comma, key, value: self.at });
            }
            self.skip_value()?;
            comma = Some(self.at).filter(|_| self.peek() == Some(b','));
            self.expect(b',')?;
        }
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.peek().filter(|found| *found == byte)?;
        self.at += 1;
        Some(())
    }

    fn skip_value(&mut self) -> Option<()> {
        match self.peek()? {
            b'"' => self.skip_string(),
            b'{' | b'[' => self.skip_nested(),
            _ => {
                let rest = &self.text[self.at..];
                self.at += rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']'))?;
                Some(())
            }
        }
    }

    fn skip_nested(&mut self) -> Option<()> {
        let mut depth = 0;
        loop {
            match *self.text.get(self.at)? {
                b'"' => {
                    self.skip_string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }

    fn skip_string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
            self.at += end + 1;
            if rest[end] == b'"' {
                return Some(());
            }
            // Whatever is escaped does not end the string.
            self.at += 1;
            self.text.get(self.at)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn managed_fields_are_cut_wherever_they_stand() {
        let fields = json!([{"manager": "m\"]},{\\", "fieldsV1": {"f:metadata": {"f:managedFields": {}, ".": {}}}}]);
        for (metadata, is_cut) in [
            (json!({"managedFields": fields}), true),
            (json!({"name": "a", "managedFields": fields}), true),
            (json!({"managedFields": fields, "uid": "u"}), true),
            (json!({"a": [{"managedFields": 1}], "managedFields": [], "uid": "\\"}), true),
            (json!({"labels": {"managedFields": "x"}, "name": "managedFields"}), false),
            (json!({}), false),
        ] {
            let object =
                json!({"kind": "Pod", "metadata": metadata, "spec": {"managedFields": fields, "n": -1.5e3, "b": null}});
            let mut expected = object.clone();
            expected["metadata"].as_object_mut().unwrap().remove("managedFields");
            for text in [object.to_string(), serde_json::to_string_pretty(&object).unwrap()] {
                let cut = without_managed_fields(text.as_bytes());
                assert_eq!(serde_json::from_slice::<Value>(&cut).unwrap(), expected, "{text}");
                assert_eq!(matches!(cut, Cow::Owned(_)), is_cut, "{text}");
            }
        }
    }

    #[test]
    fn what_is_no_object_stays_as_it_is() {
        for text in [
            "",
            "{",
            "[]",
            "nonsense",
            "{\"metadata\":",
            "{\"metadata\":{\"managedFields\":[",
            "{\"a\":\"\\",
            "{\"metadata\":7}",
        ] {
            assert_eq!(without_managed_fields(text.as_bytes()), text.as_bytes(), "{text}");
        }
    }
}
