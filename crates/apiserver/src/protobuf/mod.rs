//! Kubernetes protobuf bodies, as typed Go clients and newer kubectl send them, turned into JSON values, and back.
//!
//! Answers are JSON for all who accept that, which nearly every client does: objects lie ready in it. Who accepts nothing
//! but protobuf gets it (`encode`). A body is the magic `k8s\0` and a `runtime.Unknown` that names the type and holds the
//! object; [`api::schema::MESSAGES`] says what the numbers mean.

mod encode;

pub(crate) use encode::{encode, frame};

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use base64::Engine;
use serde_json::{Map, Number, Value};

pub(crate) const MAGIC: &[u8] = b"k8s\0";
pub(crate) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";
pub(crate) const WATCH_CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// As deep as JSON bodies may be nested.
const MAX_DEPTH: usize = 64;

/// Why bytes are no object.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoMagic,
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    Kind { api_version: String, kind: String },
    #[error("message is nested too deeply")]
    Deep,
    #[error("field has the wrong wire type")]
    Mismatch,
    #[error("string is not valid UTF-8")]
    Text,
    #[error("unexpected EOF")]
    Cut,
    #[error("integer overflow")]
    Overflow,
    #[error("invalid field number")]
    Number,
    #[error("invalid length")]
    Length,
    #[error("wire type {0} is not known")]
    WireType(u64),
    #[error(transparent)]
    Time(#[from] jiff::Error),
    #[error(transparent)]
    Json(Arc<serde_json::Error>),
}

/// Decodes a body into the JSON value that the same client would have sent.
pub(crate) fn decode(body: &[u8]) -> Result<Value, DecodeError> {
    let envelope = body.strip_prefix(MAGIC).ok_or(DecodeError::NoMagic)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Reader(envelope) {
        match field? {
            (1, Wire::Bytes(bytes)) => {
                for field in Reader(bytes) {
                    match field? {
                        (1, Wire::Bytes(bytes)) => api_version = text(bytes)?,
                        (2, Wire::Bytes(bytes)) => kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let Some(message) = MESSAGES.get(&message_name(&api_version, &kind)) else {
        return Err(DecodeError::Kind { api_version, kind });
    };
    let mut object = Map::new();
    object.insert("kind".to_owned(), kind.into());
    object.insert("apiVersion".to_owned(), api_version.into());
    message.read(raw, &mut object, 0)?;
    Ok(Value::Object(object))
}

/// What the table calls a kind.
fn message_name(api_version: &str, kind: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    // Groups of others may begin with the same word and are no messages of ours.
    let package = match group.split_once('.') {
        Some((first, _)) if group.ends_with(".k8s.io") => first,
        _ => group,
    };
    match (kind, package) {
        // Of no group, and of all.
        ("DeleteOptions" | "Status", _) | (_, "meta") => format!("meta.v1.{kind}"),
        (_, "") => format!("core.{version}.{kind}"),
        (_, package) => format!("{package}.{version}.{kind}"),
    }
}

struct Message {
    package: &'static str,
    fields: BTreeMap<u32, Field>,
}

struct Field {
    name: &'static str,
    label: Label,
    kind: Kind,
    omit_zero: bool,
    inline: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Single,
    Repeated,
    Map,
}

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Bool,
    Integer,
    Double,
    Bytes,
    Message(&'static str),
}

static MESSAGES: LazyLock<HashMap<String, Message>> = LazyLock::new(|| {
    let mut messages = HashMap::new();
    let mut package = "";
    for line in api::schema::MESSAGES.lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("package ") {
            package = name;
            continue;
        }
        let mut words = line.split(' ');
        let Some(name) = words.next() else { continue };
        let fields = words.filter_map(field).collect();
        messages.insert(format!("{package}.{name}"), Message { package, fields });
    }
    messages
});

/// Parses `3*s~ports`.
fn field(word: &'static str) -> Option<(u32, Field)> {
    let digits = word.find(|character: char| !character.is_ascii_digit())?;
    let number = word[..digits].parse().ok()?;
    let label = match word.as_bytes().get(digits)? {
        b'*' => Label::Repeated,
        b'%' => Label::Map,
        _ => Label::Single,
    };
    let rest = &word[digits + 1..];
    let mark = rest.find(['=', '~', '!', '?', '^'])?;
    let kind = match &rest[..mark] {
        "s" => Kind::Text,
        "b" => Kind::Bool,
        "i" => Kind::Integer,
        "d" => Kind::Double,
        "y" => Kind::Bytes,
        message => Kind::Message(message),
    };
    // A zero structure is an empty message, whether JSON has it or not.
    let omit_zero = match &rest[mark..=mark] {
        "~" => true,
        "!" => matches!(kind, Kind::Message(_)),
        _ => false,
    };
    let inline = rest[mark..].starts_with('^');
    Some((number, Field { name: &rest[mark + 1..], label, kind, omit_zero, inline }))
}

impl Message {
    fn read(&self, bytes: &[u8], object: &mut Map<String, Value>, depth: usize) -> Result<(), DecodeError> {
        if depth > MAX_DEPTH {
            return Err(DecodeError::Deep);
        }
        for item in Reader(bytes) {
            let (number, wire) = item?;
            let Some(field) = self.fields.get(&number) else { continue };
            if field.inline {
                if let (Kind::Message(name), Wire::Bytes(bytes)) = (field.kind, wire)
                    && let Some(message) = self.message(name)
                {
                    message.read(bytes, object, depth + 1)?;
                }
                continue;
            }
            match field.label {
                Label::Single => {
                    let value = self.value(field.kind, wire, depth)?;
                    if !(field.omit_zero && is_zero(&value)) {
                        object.insert(field.name.to_owned(), value);
                    }
                }
                Label::Repeated => {
                    let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                    let Some(list) = list.as_array_mut() else { continue };
                    match (field.kind, wire) {
                        // Packed numbers.
                        (Kind::Integer, Wire::Bytes(mut bytes)) => {
                            while !bytes.is_empty() {
                                list.push(Value::from(varint(&mut bytes)? as i64));
                            }
                        }
                        (kind, wire) => list.push(self.value(kind, wire, depth)?),
                    }
                }
                Label::Map => {
                    let Wire::Bytes(entry) = wire else { continue };
                    let (mut key, mut value) = (String::new(), None);
                    for part in Reader(entry) {
                        match part? {
                            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
                            (2, wire) => value = Some(self.value(field.kind, wire, depth)?),
                            _ => {}
                        }
                    }
                    let value = value.unwrap_or_else(|| match field.kind {
                        Kind::Text | Kind::Bytes => "".into(),
                        _ => Value::Null,
                    });
                    let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                    if let Some(map) = map.as_object_mut() {
                        map.insert(key, value);
                    }
                }
            }
        }
        Ok(())
    }

    fn message(&self, name: &str) -> Option<&'static Message> {
        if name.contains('.') { MESSAGES.get(name) } else { MESSAGES.get(&format!("{}.{name}", self.package)) }
    }

    fn value(&self, kind: Kind, wire: Wire<'_>, depth: usize) -> Result<Value, DecodeError> {
        Ok(match (kind, wire) {
            (Kind::Text, Wire::Bytes(bytes)) => text(bytes)?.into(),
            (Kind::Bytes, Wire::Bytes(bytes)) => base64::engine::general_purpose::STANDARD.encode(bytes).into(),
            (Kind::Bool, Wire::Varint(value)) => (value != 0).into(),
            (Kind::Integer, Wire::Varint(value)) => (value as i64).into(),
            (Kind::Double, Wire::Fixed64(value)) => {
                Number::from_f64(f64::from_bits(value)).map_or(Value::Null, Value::Number)
            }
            (Kind::Message(name), Wire::Bytes(bytes)) => match special(name.rsplit('.').next().unwrap_or(name), bytes)?
            {
                Some(value) => value,
                None => {
                    let mut object = Map::new();
                    if let Some(message) = self.message(name) {
                        message.read(bytes, &mut object, depth + 1)?;
                    }
                    unwrap(name, object)
                }
            },
            _ => return Err(DecodeError::Mismatch),
        })
    }
}

/// Types whose JSON form is not an object of their fields.
fn special(name: &str, bytes: &[u8]) -> Result<Option<Value>, DecodeError> {
    let numbers = || -> Result<(i64, i64), DecodeError> {
        let mut pair = (0, 0);
        for field in Reader(bytes) {
            match field? {
                (1, Wire::Varint(value)) => pair.0 = value as i64,
                (2, Wire::Varint(value)) => pair.1 = value as i64,
                _ => {}
            }
        }
        Ok(pair)
    };
    let first = || -> Result<&[u8], DecodeError> {
        let mut found = &[][..];
        for field in Reader(bytes) {
            if let (1, Wire::Bytes(bytes)) = field? {
                found = bytes;
            }
        }
        Ok(found)
    };
    Ok(Some(match name {
        // Go writes the zero time as an empty message; JSON has null.
        "Time" | "MicroTime" if bytes.is_empty() => Value::Null,
        "Time" | "MicroTime" => {
            let (seconds, nanos) = numbers()?;
            let time = jiff::Timestamp::new(seconds, i32::try_from(nanos).unwrap_or(0))?;
            let format = if name == "Time" { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%.6fZ" };
            time.strftime(format).to_string().into()
        }
        "Duration" => format!("{}ns", numbers()?.0).into(),
        "Quantity" => text(first()?)?.into(),
        "IntOrString" => {
            let (mut kind, mut number, mut string) = (0, 0, String::new());
            for field in Reader(bytes) {
                match field? {
                    (1, Wire::Varint(value)) => kind = value,
                    (2, Wire::Varint(value)) => number = value as i32,
                    (3, Wire::Bytes(bytes)) => string = text(bytes)?,
                    _ => {}
                }
            }
            if kind == 0 { number.into() } else { string.into() }
        }
        "RawExtension" | "FieldsV1" | "JSON" => {
            let raw = first()?;
            if raw.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(raw).map_err(|error| DecodeError::Json(Arc::new(error)))?
            }
        }
        _ => return Ok(None),
    }))
}

/// Messages that exist only because protobuf has no lists of lists or unions.
fn unwrap(name: &str, mut object: Map<String, Value>) -> Value {
    let mut take = |key: &str| object.remove(key);
    match name {
        "ExtraValue" | "AttestationValue" => take("items").unwrap_or_else(|| Value::Array(Vec::new())),
        "JSONSchemaPropsOrArray" => take("schema").or_else(|| take("jSONSchemas")).unwrap_or_default(),
        "JSONSchemaPropsOrBool" => take("schema").or_else(|| take("allows")).unwrap_or_default(),
        "JSONSchemaPropsOrStringArray" => take("schema").or_else(|| take("property")).unwrap_or_default(),
        _ => Value::Object(object),
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Text)
}

enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(DecodeError::Cut)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::Overflow)
}

/// Iterates over the fields of a message. Ends after the first error.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn field(&mut self) -> Result<(u32, Wire<'a>), DecodeError> {
        let tag = varint(&mut self.0)?;
        let number = u32::try_from(tag >> 3).map_err(|_| DecodeError::Number)?;
        let mut take = |length: usize| -> Result<&'a [u8], DecodeError> {
            if length > self.0.len() {
                return Err(DecodeError::Cut);
            }
            let (bytes, rest) = self.0.split_at(length);
            self.0 = rest;
            Ok(bytes)
        };
        let wire = match tag & 7 {
            0 => Wire::Varint(varint(&mut self.0)?),
            1 => Wire::Fixed64(u64::from_le_bytes(take(8)?.try_into().map_err(|_| DecodeError::Cut)?)),
            2 => {
                let length = varint(&mut self.0)?;
                let length = usize::try_from(length).map_err(|_| DecodeError::Length)?;
                if length > self.0.len() {
                    return Err(DecodeError::Cut);
                }
                let (bytes, rest) = self.0.split_at(length);
                self.0 = rest;
                Wire::Bytes(bytes)
            }
            5 => {
                take(4)?;
                Wire::Fixed32
            }
            other => return Err(DecodeError::WireType(other)),
        };
        Ok((number, wire))
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<(u32, Wire<'a>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use api::schema::{Struct, Type};

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, bytes.len() as u8];
        out.extend_from_slice(bytes);
        out
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &meta), field(2, raw)].concat()
    }

    #[test]
    fn a_config_map_is_decoded() {
        let meta = [field(1, b"c"), field(2, b"")].concat();
        let data = [field(1, b"k"), field(2, b"v")].concat();
        let body = envelope("v1", "ConfigMap", &[field(1, &meta), field(2, &data)].concat());
        let expected =
            serde_json::json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}, "data": {"k": "v"}});
        assert_eq!(decode(&body).unwrap(), expected);
    }

    #[test]
    fn inlined_and_special_fields() {
        // A volume whose source is inlined: name=v, emptyDir={sizeLimit: 1Gi}.
        let source = field(2, &field(2, &field(1, b"1Gi")));
        let volume = [field(1, b"v"), field(2, &source)].concat();
        let pod = field(2, &field(1, &volume));
        let value = decode(&envelope("v1", "Pod", &pod)).unwrap();
        assert_eq!(value["spec"]["volumes"][0], serde_json::json!({"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}));
    }

    /// Walks a message beside the schema of what it becomes; returns the fields that the schema spells otherwise.
    /// (Fields that it lacks altogether are of later versions.)
    fn misspelt(name: &str, definition: &Struct, seen: &mut HashSet<String>) -> Vec<String> {
        let Some(message) = MESSAGES.get(name).filter(|_| seen.insert(name.to_owned())) else { return Vec::new() };
        let letters = |name: &str| name.replace(['-', '$'], "").to_ascii_lowercase();
        let mut unknown = Vec::new();
        for field in message.fields.values() {
            let below = match field.kind {
                Kind::Message(name) if name.contains('.') => Some(name.to_owned()),
                Kind::Message(name) => Some(format!("{}.{name}", message.package)),
                _ => None,
            };
            let inner = match definition.field(field.name).map(|known| &known.ty) {
                _ if field.inline => Some(definition),
                Some(Type::List(inner) | Type::Map(inner)) => inner.as_struct(),
                Some(known) => known.as_struct(),
                None => {
                    let like = |other: &api::schema::Field| letters(&other.name) == letters(field.name);
                    unknown.extend(definition.fields().iter().any(like).then(|| format!("{name}.{}", field.name)));
                    None
                }
            };
            if let (Some(below), Some(inner)) = (below, inner) {
                unknown.extend(misspelt(&below, inner, seen));
            }
        }
        unknown
    }

    #[test]
    fn messages_name_their_fields_as_json_does() {
        let mut seen = HashSet::new();
        let unknown: Vec<String> = registry::table::resources()
            .iter()
            .flat_map(|resource| {
                let group = match resource.group.split('.').next().unwrap() {
                    "" => "core",
                    group => group,
                };
                let name = format!("{group}.{}.{}", resource.version, resource.kind);
                misspelt(&name, &resource.strategy.schema(), &mut seen)
            })
            .collect();
        assert_eq!(unknown, Vec::<String>::new());
        assert!(seen.len() > 400, "{} messages", seen.len());
    }

    #[test]
    fn damage_is_an_error_not_a_panic() {
        let body = envelope("v1", "ConfigMap", &field(1, &field(1, b"c")));
        for end in 0..body.len() {
            let _ = decode(&body[..end]);
        }
        for byte in 0..body.len() {
            let mut copy = body.clone();
            copy[byte] ^= 0xff;
            let _ = decode(&copy);
        }
        assert!(decode(b"{}").is_err());
        assert!(decode(&envelope("v1", "Nothing", b"")).is_err());
    }
}
