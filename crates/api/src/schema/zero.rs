//! Zero values: what Go's encoder does with a field that has nothing in it.
//!
//! Upstream's types tell a field that is absent from one that is zero only where it is a pointer. Every other field is read
//! as its zero value when it is absent, and whether that value is written is a matter of the field's tag. Stored objects,
//! what clients and webhooks see, `has()` in expressions and managed fields all follow from it, so ours must be the same.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::{Field, Type};

/// The messages of the API, and what becomes of zero values; the text explains itself.
pub const MESSAGES: &str = include_str!("messages.txt");

/// What a field is when there is nothing in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zero {
    /// Absent and zero are two things, and both stay as they are.
    Kept,
    /// Left out.
    Omitted,
    /// Written as the zero value of its type.
    Written,
    /// Written as null; lists, maps and bytes with nothing in them, too.
    Null,
}

impl Field {
    /// Whether a value is one that this field's encoder leaves out.
    pub(super) fn omits(&self, value: &Value) -> bool {
        self.zero == Zero::Omitted && is_zero(value, &self.ty)
    }

    /// As [`Self::omits`], of the value's text.
    pub(super) fn omits_text(&self, text: &[u8]) -> bool {
        self.zero == Zero::Omitted && is_zero_text(text, &self.ty)
    }

    /// A list, map or text of bytes with nothing in it, which is the same as none.
    pub(super) fn is_empty_container(&self, value: &Value) -> bool {
        self.zero != Zero::Kept && is_container(&self.ty) && is_zero(value, &self.ty)
    }

    pub(super) fn is_empty_container_text(&self, text: &[u8]) -> bool {
        self.zero != Zero::Kept && is_container(&self.ty) && is_zero_text(text, &self.ty)
    }

    /// Whether this is the value that an object has before anyone sets the field.
    pub(crate) fn is_bare(&self, value: &Value) -> bool {
        self.zero == Zero::Written && is_zero(value, &self.ty)
    }

    /// As [`Self::is_bare`], of the value's text.
    pub(crate) fn is_bare_text(&self, text: &[u8]) -> bool {
        self.zero == Zero::Written && is_zero_text(text, &self.ty)
    }

    /// What is written where nothing is set.
    pub(super) fn written_text(&self) -> &'static str {
        match (self.zero, &self.ty) {
            (Zero::Written, Type::Bool) => "false",
            (Zero::Written, Type::Int32 | Type::Int64 | Type::Number | Type::IntOrString) => "0",
            (Zero::Written, Type::String) => "\"\"",
            (Zero::Written, Type::Quantity) => "\"0\"",
            (Zero::Written, Type::Struct(_)) => "{}",
            _ => "null",
        }
    }

    pub(super) fn written_value(&self) -> Value {
        match (self.zero, &self.ty) {
            (Zero::Written, Type::Bool) => false.into(),
            (Zero::Written, Type::Int32 | Type::Int64 | Type::Number | Type::IntOrString) => 0.into(),
            (Zero::Written, Type::String) => "".into(),
            (Zero::Written, Type::Quantity) => "0".into(),
            (Zero::Written, Type::Struct(_)) => Value::Object(Default::default()),
            _ => Value::Null,
        }
    }
}

fn is_container(ty: &Type) -> bool {
    matches!(ty, Type::List(_) | Type::Map(_) | Type::Bytes)
}

fn is_zero(value: &Value, ty: &Type) -> bool {
    match (value, ty) {
        (Value::Bool(is_set), Type::Bool) => !is_set,
        (Value::Number(number), Type::Int32 | Type::Int64 | Type::Number) => number.as_f64() == Some(0.0),
        (Value::String(text), Type::String | Type::Bytes) => text.is_empty(),
        (Value::Array(items), Type::List(_)) => items.is_empty(),
        (Value::Object(entries), Type::Map(_)) => entries.is_empty(),
        _ => false,
    }
}

fn is_zero_text(text: &[u8], ty: &Type) -> bool {
    match ty {
        Type::Bool => text == b"false",
        Type::Int32 | Type::Int64 => matches!(text, b"0" | b"-0"),
        Type::Number => matches!(text, b"0" | b"-0" | b"0.0" | b"-0.0"),
        Type::String | Type::Bytes => text == b"\"\"",
        Type::List(_) => matches!(text, [b'[', .., b']']) && is_space(&text[1..text.len() - 1]),
        Type::Map(_) => matches!(text, [b'{', .., b'}']) && is_space(&text[1..text.len() - 1]),
        _ => false,
    }
}

fn is_space(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_whitespace)
}

/// Messages by their names, each as the words of its line.
static LINES: LazyLock<HashMap<(&str, &str), &str>> = LazyLock::new(|| {
    let mut lines = HashMap::new();
    let mut package = "";
    for line in MESSAGES.lines().filter(|line| !line.starts_with('#')) {
        match (line.strip_prefix("package "), line.split_once(' ')) {
            (Some(name), _) => package = name,
            (None, Some((name, fields))) => drop(lines.insert((package, name), fields)),
            (None, None) => drop(lines.insert((package, line), "")),
        }
    }
    lines
});

/// The marks of one structure's fields.
pub(super) struct Marks(Option<HashMap<&'static str, u8>>);

impl Marks {
    /// Of a definition such as `io.k8s.api.core.v1.PodSpec`.
    pub(super) fn of(definition: &str) -> Self {
        let mut parts = definition.rsplitn(4, '.');
        let (name, version, group) = (parts.next(), parts.next(), parts.next());
        let (Some(name), Some(version), Some(group)) = (name, version, group) else { return Self(None) };
        let package = format!("{group}.{version}");
        let mut marks = HashMap::new();
        Self(collect(&package, name, &mut marks).map(|()| marks))
    }

    /// What becomes of a field with nothing in it. Structures that the table does not have are read from their schema alone.
    pub(super) fn zero(&self, field: &str, ty: &Type, required: bool) -> Zero {
        let mark = match &self.0 {
            Some(marks) => marks.get(field).copied(),
            None => required.then_some(b'!'),
        };
        match (mark, ty) {
            (Some(b'?'), _) => Zero::Null,
            (Some(b'!'), Type::List(_) | Type::Map(_) | Type::Bytes) => Zero::Null,
            (_, Type::List(_) | Type::Map(_) | Type::Bytes) => Zero::Omitted,
            (Some(b'!'), Type::Time | Type::Any | Type::Deduced) => Zero::Null,
            (Some(b'!'), _) if self.0.is_some() => Zero::Written,
            (Some(b'~'), Type::Bool | Type::Int32 | Type::Int64 | Type::Number | Type::String) => Zero::Omitted,
            _ => Zero::Kept,
        }
    }
}

/// Collects the marks of a message and of those that stand in it.
fn collect(package: &str, name: &str, marks: &mut HashMap<&'static str, u8>) -> Option<()> {
    let (package, name) = name.rsplit_once('.').unwrap_or((package, name));
    for word in LINES.get(&(package, name))?.split(' ').filter(|word| !word.is_empty()) {
        let Some(place) = word.find(['=', '~', '!', '?', '^']) else { continue };
        let (mark, field) = (word.as_bytes()[place], &word[place + 1..]);
        if mark == b'^' {
            let message = word[..place].trim_start_matches(|letter: char| letter.is_ascii_digit());
            collect(package, &message[1..], marks);
        } else {
            marks.insert(field, mark);
        }
    }
    Some(())
}
