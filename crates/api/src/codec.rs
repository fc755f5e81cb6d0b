//! Bytes to values and back: JSON and YAML, with every duplicate field noticed.
//!
//! Flow: request body -> [`Decoded`] (a dynamic value plus the paths of repeated fields) ->
//! `schema` checks fields and types -> typed object. The last of repeated fields wins, as upstream;
//! whether that is an error, a warning or nothing is the request's `fieldValidation`.

use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::go::join_path;
use crate::read::{self, Read};
use crate::yaml::{self, EXCESSIVE, Expansion, Meaning, PlainWords, Rules};

/// A decoded body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// Paths of fields that were given more than once, each time after the first.
    pub duplicates: Vec<String>,
}

/// A body that is not JSON or not YAML.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("error converting YAML to JSON: yaml: {}", go_words(.0))]
    Yaml(#[from] yaml_serde::Error),
}

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
}

/// Decodes a body. Nesting deeper than 128 is refused, so a hostile body cannot exhaust the stack, and aliases of YAML that
/// would expand to much more than the body, so that it cannot exhaust memory.
pub fn decode(bytes: &[u8], encoding: Encoding) -> Result<Decoded, DecodeError> {
    match encoding {
        Encoding::Json => from_json(bytes),
        Encoding::Yaml => from_yaml(bytes),
    }
}

pub fn from_json(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Seed { duplicates: &mut duplicates, meaning: Literal }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Decoded { value, duplicates })
}

/// Decodes the one document of a YAML body.
pub fn from_yaml(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    from_yaml_by(bytes, Rules::Full)
}

/// The same by other rules.
pub fn from_yaml_by(bytes: &[u8], rules: Rules) -> Result<Decoded, DecodeError> {
    let mut duplicates = Vec::new();
    let expansion = Expansion::of(bytes);
    let meaning = PlainWords { source: bytes, rules, expansion: &expansion };
    let seed = Seed { duplicates: &mut duplicates, meaning };
    let value = seed.deserialize(yaml_serde::Deserializer::from_slice(bytes))?;
    Ok(Decoded { value, duplicates })
}

/// Repeated fields beyond so many are not told, as upstream (`saveStrictError` of sigs.k8s.io/json): each has a path of its own.
const MAX_DUPLICATES: usize = 100;

const NO_MERGE: &str = "map merge requires map or sequence of maps as the value";

/// A parser's error as upstream's library puts it: the place first.
fn go_words(error: &yaml_serde::Error) -> String {
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    // What Go's library does not place at all. The second is the parser's own limit, on the number of aliases.
    for (ours, theirs) in [(EXCESSIVE, EXCESSIVE), ("repetition limit exceeded", EXCESSIVE), (NO_MERGE, NO_MERGE)] {
        if message.ends_with(ours) {
            return theirs.to_owned();
        }
    }
    // Go's library counts lines of the parser from zero and lines of the scanner from one.
    let early = usize::from(message.starts_with("did not find expected"));
    let place = error.location().map(|place| format!("line {}: ", (place.line() - early).max(1)));
    place.unwrap_or_default() + message
}

/// The line on which a key stands for the second time, in block style, where lines have meaning.
pub fn line_of_repeated_key(yaml: &[u8], path: &str) -> Option<usize> {
    line_of_key(yaml, path, 2)
}

/// What is decoded is not nested deeper; in a text of several lines anything may look as if it were.
const DEEPEST: usize = 256;

/// The line on which a key stands for the n-th time.
pub fn line_of_key(yaml: &[u8], path: &str, time: usize) -> Option<usize> {
    // The path to the current line: indentation and what it adds to the path.
    let mut stack: Vec<(usize, String)> = Vec::new();
    let mut seen = 0;
    let text = String::from_utf8_lossy(yaml);
    for (number, line) in text.lines().enumerate() {
        let mut rest = line.trim_start();
        let mut indent = line.len() - rest.len();
        if rest.is_empty() || rest.starts_with('#') || rest.starts_with("---") {
            continue;
        }
        while let Some(item) = rest.strip_prefix("- ").filter(|_| stack.len() < DEEPEST) {
            let before = stack.iter().rev().find(|(at, part)| *at == indent && part.starts_with('['));
            let index = before.and_then(|(_, part)| part.trim_matches(['[', ']']).parse::<usize>().ok());
            // A list may stand at the indentation of its own key.
            stack.retain(|(at, part)| *at < indent || (*at == indent && !part.starts_with('[')));
            stack.push((indent, format!("[{}]", index.map_or(0, |index| index + 1))));
            let trimmed = item.trim_start();
            indent += rest.len() - trimmed.len();
            rest = trimmed;
        }
        let Some((key, _)) = rest.split_once(':') else { continue };
        let key = key.trim().trim_matches(['"', '\'']);
        stack.retain(|(at, _)| *at < indent);
        if stack.len() == DEEPEST {
            continue;
        }
        stack.push((indent, key.to_owned()));
        if leads_to(&stack, path) {
            seen += 1;
            if seen == time {
                return Some(number + 1);
            }
        }
    }
    None
}

/// Whether the parts, joined by [`join_path`], are this path. They are held against its end, so that a long one that many lines stand
/// below is not put together for each.
fn leads_to(parts: &[(usize, String)], path: &str) -> bool {
    let (mut rest, mut below) = (path, "[");
    for (_, part) in parts.iter().rev().filter(|(_, part)| !part.is_empty()) {
        let dot = if below.starts_with('[') { "" } else { "." };
        let Some(before) = rest.strip_suffix(dot).and_then(|rest| rest.strip_suffix(part.as_str())) else {
            return false;
        };
        (rest, below) = (before, part);
    }
    rest.is_empty()
}

/// Encodes as YAML, keys sorted, as upstream prints it.
pub fn to_yaml(value: &impl Serialize) -> Result<String, DecodeError> {
    // By way of a JSON value: struct order would differ from upstream's sorted keys.
    Ok(yaml::to_string(&serde_json::to_value(value)?))
}

/// The typed form of a value, by way of its text: kinds have one reader, for text.
pub fn from_value<T: Read>(value: &Value) -> serde_json::Result<T> {
    let without_place = |error| serde::de::Error::custom(read::without_place(&error));
    // Nobody has seen the text that a place in it would be of.
    read::from_slice(&serde_json::to_vec(value)?).map_err(without_place)
}

/// The value of a typed object, by way of its text, for the same reason.
pub fn to_value<T: Serialize + ?Sized>(object: &T) -> serde_json::Result<Value> {
    serde_json::from_slice(&crate::schema::encode_plain(object)?)
}

/// In JSON every string is itself.
#[derive(Clone, Copy)]
struct Literal;

impl Meaning for Literal {
    fn of(self, _: &str) -> Option<Value> {
        None
    }

    fn merges(self, _: &str) -> bool {
        false
    }

    fn charge<E: serde::de::Error>(self, _: usize) -> Result<(), E> {
        Ok(())
    }
}

struct Seed<'a, M> {
    duplicates: &'a mut Vec<String>,
    meaning: M,
}

impl<M: Meaning> Seed<'_, M> {
    /// Decodes one member and puts `head` before the paths of the duplicates found in it.
    fn inside<T, E>(
        &mut self,
        decode: impl FnOnce(Seed<'_, M>) -> Result<T, E>,
        head: impl FnOnce(&T) -> String,
    ) -> Result<T, E> {
        let before = self.duplicates.len();
        let decoded = decode(Seed { duplicates: self.duplicates, meaning: self.meaning })?;
        if self.duplicates.len() > before {
            let head = head(&decoded);
            for path in &mut self.duplicates[before..] {
                *path = join_path(&head, path);
            }
        }
        Ok(decoded)
    }
}

impl<'de, M: Meaning> DeserializeSeed<'de> for Seed<'_, M> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, M: Meaning> Visitor<'de> for Seed<'_, M> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        self.meaning.charge(0)?;
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        self.meaning.charge(0)?;
        Ok(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        self.meaning.charge(0)?;
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        self.meaning.charge(0)?;
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.meaning.charge(value.len())?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, value: &'de str) -> Result<Value, E> {
        self.meaning.charge(value.len())?;
        Ok(self.meaning.of(value).unwrap_or_else(|| Value::String(value.to_owned())))
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        self.meaning.charge(value.len())?;
        Ok(Value::String(value))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        self.meaning.charge(0)?;
        Ok(Value::Null)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Value, E> {
        self.meaning.charge(0)?;
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut sequence: A) -> Result<Value, A::Error> {
        self.meaning.charge(0)?;
        let mut items = Vec::new();
        loop {
            let index = items.len();
            let item = self.inside(|seed| sequence.next_element_seed(seed), |_| format!("[{index}]"))?;
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Value, A::Error> {
        self.meaning.charge(0)?;
        let mut map = Map::new();
        let mut merged = Vec::new();
        let mut merges = false;
        while let Some(key) = entries.next_key_seed(Key { meaning: self.meaning, merges: &mut merges })? {
            let value = self.inside(|seed| entries.next_value_seed(seed), |_| key.clone())?;
            if std::mem::take(&mut merges) && (value.is_object() || value.is_array()) {
                merged.push(value);
                continue;
            }
            if map.contains_key(&key) && self.duplicates.len() < MAX_DUPLICATES {
                self.duplicates.push(key.clone());
            }
            map.insert(key, value);
        }
        // What is said here wins over what is merged in.
        for value in merged {
            let maps = if let Value::Array(maps) = value { maps } else { vec![value] };
            for other in maps {
                let Value::Object(other) = other else { return Err(serde::de::Error::custom(NO_MERGE)) };
                for (key, value) in other {
                    map.entry(key).or_insert(value);
                }
            }
        }
        Ok(Value::Object(map))
    }

    fn visit_enum<A: serde::de::EnumAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        Err(serde::de::Error::custom("unknown tag"))
    }
}

/// A field name. YAML allows numbers and booleans here; upstream turns them into strings.
struct Key<'a, M> {
    meaning: M,
    /// Set when the value becomes part of the map around it.
    merges: &'a mut bool,
}

impl<'de, M: Meaning> DeserializeSeed<'de> for Key<'_, M> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, M: Meaning> Visitor<'de> for Key<'_, M> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<String, E> {
        self.meaning.charge(value.len())?;
        Ok(value.to_owned())
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, value: &'de str) -> Result<String, E> {
        self.meaning.charge(value.len())?;
        *self.merges = self.meaning.merges(value);
        Ok(self.meaning.of(value).map_or_else(|| value.to_owned(), |meant| meant.to_string()))
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<String, E> {
        self.meaning.charge(value.len())?;
        Ok(value)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<String, E> {
        self.meaning.charge(0)?;
        Ok(value.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<String, E> {
        self.meaning.charge(0)?;
        Ok(value.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<String, E> {
        self.meaning.charge(0)?;
        Ok(value.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<String, E> {
        self.meaning.charge(0)?;
        Ok(value.to_string())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<String, E> {
        self.meaning.charge(0)?;
        Ok("null".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn duplicates_are_named_by_path_and_the_last_wins() {
        let body = br#"{"a":1,"spec":{"x":1,"x":2,"list":[{"y":1,"y":2}]},"a":3}"#;
        let decoded = from_json(body).unwrap();
        assert_eq!(decoded.value, json!({"a": 3, "spec": {"x": 2, "list": [{"y": 2}]}}));
        assert_eq!(decoded.duplicates, ["spec.x", "spec.list[0].y", "a"]);
    }

    #[test]
    fn the_way_through_text_is_not_seen() {
        use k8s_openapi::api::core::v1::Pod;
        let value = json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}], "activeDeadlineSeconds": 7},
        });
        let pod: Pod = from_value(&value).unwrap();
        assert_eq!(pod, serde_json::from_value(value).unwrap());
        assert_eq!(to_value(&pod).unwrap(), serde_json::to_value(&pod).unwrap());
        for wrong in [json!(5), json!({"metadata": {"creationTimestamp": "soon"}}), json!({"spec": {"containers": 5}})]
        {
            let error = from_value::<Pod>(&wrong).unwrap_err();
            assert_eq!(error.to_string(), serde_json::from_value::<Pod>(wrong).unwrap_err().to_string());
        }
    }

    #[test]
    fn yaml_reads_like_json() {
        let decoded = from_yaml(b"a: 1\nb:\n- x: yes please\n  8080: true\nb2: \"1\"\nc: null\n").unwrap();
        assert_eq!(decoded.value, json!({"a": 1, "b": [{"x": "yes please", "8080": true}], "b2": "1", "c": null}));
        let merged = from_yaml(b"a: &a {mode: 0644, on: off}\nb:\n  <<: *a\n  mode: 1\n").unwrap();
        assert_eq!(merged.value, json!({"a": {"mode": 420, "true": false}, "b": {"mode": 1, "true": false}}));
        assert_eq!(from_json(br#"{"<<": {"a": "on"}}"#).unwrap().value, json!({"<<": {"a": "on"}}));
        let refused = from_yaml(b"a: 1\n<<: [{b: 2}, 3]\n").unwrap_err().to_string();
        assert_eq!(refused, format!("error converting YAML to JSON: yaml: {NO_MERGE}"));
        let broken = from_yaml(b"a: 1\nb: [\n").unwrap_err().to_string();
        assert!(broken.starts_with("error converting YAML to JSON: yaml: line "), "{broken}");
    }

    #[test]
    fn hostile_bodies_are_refused() {
        let deep = "[".repeat(100_000);
        assert!(from_json(deep.as_bytes()).is_err());
        assert!(from_yaml(deep.as_bytes()).is_err());
        assert!(from_json(b"{\"a\":\"\xff\"}").is_err());
        assert!(from_json(b"{} {}").is_err());
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for i in 1..12 {
            let previous = format!("*a{}", i - 1);
            let items = [previous.as_str(); 9].join(",");
            bomb.push_str(&format!("a{i}: &a{i} [{items}]\n"));
        }
        assert!(from_yaml(bomb.as_bytes()).is_err());
    }

    const REFUSED: &str = "error converting YAML to JSON: yaml: document contains excessive aliasing";

    #[test]
    fn security_aliases_are_refused_by_what_they_expand_to() {
        // Each far below the limits on bodies and on the number of aliases.
        let wide = format!("a: &a [{}]\nb: [{}]\n", "x,".repeat(30_000), "*a,".repeat(25_000));
        let maps = format!("a: &a {{{}}}\nb: [{}]\n", "x: {}", "*a,".repeat(45_000));
        let deep =
            format!("a: &a [{}]\nb: &b [{}]\nc: [{}]\n", "x,".repeat(1000), "*a,".repeat(1000), "*b,".repeat(1000));
        let long = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(1 << 20), "*a,".repeat(10_000));
        let keys = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), "{*a : 1},".repeat(10_000));
        let merged = format!("a: &a {{b: [{}]}}\nc: [{}]\n", "1,".repeat(20_000), "{<<: *a},".repeat(10_000));
        for bomb in [wide, deep, long, keys, merged] {
            let refused = from_yaml(bomb.as_bytes()).unwrap_err().to_string();
            assert_eq!(refused, REFUSED, "{} bytes", bomb.len());
        }
        assert!(from_yaml(maps.as_bytes()).is_ok());
        // The parser's own limit says the same.
        let many = format!("a: &a []\nb: &b [{}]\nc: [{}]\n", "*a,".repeat(2000), "*b,".repeat(2000));
        assert_eq!(from_yaml(many.as_bytes()).unwrap_err().to_string(), REFUSED);
    }

    #[test]
    fn large_honest_documents_are_read() {
        let lines: String = (0..100_000).map(|i| format!("  key-{i}: value {i}\n")).collect();
        let decoded = from_yaml(format!("data:\n{lines}").as_bytes()).unwrap();
        assert_eq!(decoded.value["data"].as_object().unwrap().len(), 100_000);
        let dense = format!("[{}]", "{a},".repeat(200_000));
        assert_eq!(from_yaml(dense.as_bytes()).unwrap().value.as_array().unwrap().len(), 200_000);
        let script = "x".repeat(500_000);
        let shared = format!("a: &a {script}\nb: [{}]\n", "*a,".repeat(20));
        assert_eq!(from_yaml(shared.as_bytes()).unwrap().value["b"].as_array().unwrap().len(), 20);
        let defaults = "x: &x {cpu: 1, memory: 2, labels: {a: b, c: d}}\n".to_owned();
        let users: String = (0..5_000).map(|i| format!("u{i}: {{<<: *x, name: u{i}, also: *x}}\n")).collect();
        assert!(from_yaml((defaults + &users).as_bytes()).is_ok());
    }

    #[test]
    fn security_repeated_fields_are_told_up_to_a_number() {
        let body = format!("{{\"{}\":{{{}\"a\":1}}}}", "k".repeat(10_000), "\"a\":1,".repeat(100_000));
        assert_eq!(from_json(body.as_bytes()).unwrap().duplicates.len(), MAX_DUPLICATES);
    }

    #[test]
    fn repeated_keys_are_found_by_line() {
        let yaml = b"kind: A\n# a comment\nspec:\n  foo: 1\n  list:\n  - a: 1\n  - a: 2\n    b: 1\n    b: 2\n  foo: 2\nkind: B\n";
        let decoded = from_yaml(yaml).unwrap();
        assert_eq!(decoded.duplicates, ["spec.list[1].b", "spec.foo", "kind"]);
        let lines: Vec<_> = decoded.duplicates.iter().map(|path| line_of_repeated_key(yaml, path)).collect();
        assert_eq!(lines, [Some(9), Some(10), Some(11)]);
        assert_eq!(line_of_repeated_key(b"\xff: 1", "a"), None);
    }

    /// Each line was put together with all that it stands below, and each dash looked for among all before it.
    #[test]
    fn security_lines_of_hostile_texts_are_found_in_one_walk() {
        let (key, text) = ("k".repeat(1_000), "- ".repeat(300_000));
        let below: String = (0..50_000).map(|number| format!("  f{number:05}: 1\n")).collect();
        let yaml = format!("a: |\n  {text}\n{key}:\n{below}  f00000: 2\n");
        let decoded = from_yaml(yaml.as_bytes()).unwrap();
        assert_eq!(decoded.duplicates, [format!("{key}.f00000")]);
        assert_eq!(line_of_repeated_key(yaml.as_bytes(), &decoded.duplicates[0]), Some(50_004));
    }

    #[test]
    fn numbers_come_back_as_they_were() {
        for text in ["8.08888888e+31", "0.1", "123456789.12345679", "1e+21", "9007199254740993"] {
            let decoded = from_json(text.as_bytes()).unwrap().value;
            assert_eq!(decoded.to_string(), text);
            assert_eq!(from_json(decoded.to_string().as_bytes()).unwrap().value, decoded);
        }
        let long = from_json(b"80888888800000000000001364244264").unwrap().value;
        assert_eq!(from_json(long.to_string().as_bytes()).unwrap().value, long);
    }

    #[test]
    fn yaml_is_printed_with_sorted_keys() {
        assert_eq!(to_yaml(&json!({"b": 1, "a": ["x", "true"]})).unwrap(), "a:\n- x\n- \"true\"\nb: 1\n");
    }
}
