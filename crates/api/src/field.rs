//! Validation errors that name the field they are about, in upstream's words.
//!
//! Flow: a strategy's `validate` fills [`FieldErrors`]; the apiserver turns a non-empty list into a
//! 422 with [`crate::Status::invalid`]. Paths are lazy: a [`Path`] is a chain of borrowed steps and
//! costs no allocation until an error prints it.

use std::fmt::{self, Display, Write as _};

use serde::Serialize;

use crate::first_paths::{MAX_SHOWN, MAX_SIZE};

/// A place in an object: `spec.containers[0].env[name]`.
///
/// `child` may be given several steps at once (`path.child("spec.template")`).
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The whole object; prints as nothing, and its children start the path.
    pub const ROOT: Path<'static> = Path { parent: None, step: Step::Root };

    pub const fn new(name: &'a str) -> Self {
        Self { parent: None, step: Step::Name(name) }
    }

    pub const fn child<'b>(&'b self, name: &'b str) -> Path<'b> {
        Path { parent: Some(self), step: Step::Name(name) }
    }

    pub const fn index<'b>(&'b self, index: usize) -> Path<'b> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// An entry of a map, or an element named by its key: `labels[app]`.
    pub const fn key<'b>(&'b self, key: &'b str) -> Path<'b> {
        Path { parent: Some(self), step: Step::Key(key) }
    }
}

impl Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parent_is_root = self.parent.is_none_or(|parent| matches!(parent.step, Step::Root));
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Name(name) if parent_is_root => f.write_str(name),
            Step::Name(name) => write!(f, ".{name}"),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{key}]"),
        }
    }
}

/// Why a field was refused; the wire name is the cause type of a Status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    TooFew,
    Internal,
    TypeInvalid,
    TooShort,
}

impl ErrorType {
    /// The machine-readable name, as in `details.causes[].reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TooFew => "FieldValueTooFew",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::TooShort => "FieldValueTooShort",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::TooFew => "Too few",
            Self::Internal => "Internal error",
            Self::TooShort => "Too short",
        }
    }
}

/// One refused field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub error_type: ErrorType,
    pub field: String,
    /// The offending value as it appears in the text; `None` for the types that never show it.
    pub value: Option<String>,
    pub detail: String,
}

impl FieldError {
    /// Not generic, and never inlined: validation names a field in a thousand places, and hardly ever gets there.
    #[cold]
    #[inline(never)]
    fn new(error_type: ErrorType, field: &dyn Display, value: Option<String>, detail: String) -> Self {
        Self { error_type, field: field.to_string(), value, detail }
    }

    pub fn invalid(field: impl Display, value: impl Serialize, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Invalid, &field, Some(show(&value)), detail.into())
    }

    pub fn type_invalid(field: impl Display, value: impl Serialize, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::TypeInvalid, &field, Some(show(&value)), detail.into())
    }

    pub fn required(field: impl Display, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Required, &field, None, detail.into())
    }

    pub fn duplicate(field: impl Display, value: impl Serialize) -> Self {
        Self::new(ErrorType::Duplicate, &field, Some(show(&value)), String::new())
    }

    pub fn not_found(field: impl Display, value: impl Serialize) -> Self {
        Self::new(ErrorType::NotFound, &field, Some(show(&value)), String::new())
    }

    /// `supported` is shown in the order given.
    pub fn not_supported(field: impl Display, value: impl Serialize, supported: &[&str]) -> Self {
        let mut detail = String::new();
        for (i, value) in supported.iter().enumerate() {
            detail.push_str(if i == 0 { "supported values: " } else { ", " });
            detail.push_str(&quote(value));
        }
        Self::new(ErrorType::NotSupported, &field, Some(show(&value)), detail)
    }

    pub fn forbidden(field: impl Display, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Forbidden, &field, None, detail.into())
    }

    pub fn too_long(field: impl Display, max: usize) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::new(ErrorType::TooLong, &field, None, format!("may not be more than {max} {unit}"))
    }

    pub fn too_many(field: impl Display, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::new(ErrorType::TooMany, &field, Some(actual.to_string()), format!("must have at most {max} {unit}"))
    }

    pub fn internal(field: impl Display, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Internal, &field, None, detail.into())
    }

    /// The text without the field name.
    pub fn body(&self) -> String {
        let mut text = self.error_type.text().to_owned();
        if let Some(value) = &self.value {
            let _ = write!(text, ": {value}");
        }
        if !self.detail.is_empty() {
            let _ = write!(text, ": {}", self.detail);
        }
        text
    }
}

impl Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// All refused fields of one object, in the order they were found. All are counted and the first are shown: a body has room
/// for a hundred thousand mistakes, each of which takes many times its size to be named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldErrors {
    shown: Vec<FieldError>,
    /// Bytes of those.
    size: usize,
    count: usize,
}

/// What upstream says about a field that must not change.
pub const IMMUTABLE: &str = "field is immutable";

impl FieldErrors {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Those that are shown.
    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.shown.iter()
    }

    /// Whether any more are only counted, so that whoever takes long to find or name them may stop.
    pub fn is_full(&self) -> bool {
        self.shown.len() >= MAX_SHOWN || self.size >= MAX_SIZE
    }

    pub fn push(&mut self, error: FieldError) {
        if !self.only_counts() {
            self.count += 1;
            self.size += error.field.len() + error.value.as_ref().map_or(0, String::len) + error.detail.len();
            self.shown.push(error);
        }
    }

    /// Counts one more that need not be named, if that is so.
    fn only_counts(&mut self) -> bool {
        let is_full = self.is_full();
        self.count += usize::from(is_full);
        is_full
    }

    pub fn extend(&mut self, other: impl IntoIterator<Item = FieldError>) {
        other.into_iter().for_each(|error| self.push(error));
    }

    pub fn invalid(&mut self, field: impl Display, value: impl Serialize, detail: impl Into<String>) {
        if !self.only_counts() {
            self.push(FieldError::invalid(field, value, detail));
        }
    }

    pub fn required(&mut self, field: impl Display, detail: impl Into<String>) {
        if !self.only_counts() {
            self.push(FieldError::required(field, detail));
        }
    }

    pub fn duplicate(&mut self, field: impl Display, value: impl Serialize) {
        if !self.only_counts() {
            self.push(FieldError::duplicate(field, value));
        }
    }

    pub fn not_found(&mut self, field: impl Display, value: impl Serialize) {
        if !self.only_counts() {
            self.push(FieldError::not_found(field, value));
        }
    }

    pub fn not_supported(&mut self, field: impl Display, value: impl Serialize, supported: &[&str]) {
        if !self.only_counts() {
            self.push(FieldError::not_supported(field, value, supported));
        }
    }

    pub fn forbidden(&mut self, field: impl Display, detail: impl Into<String>) {
        if !self.only_counts() {
            self.push(FieldError::forbidden(field, detail));
        }
    }

    pub fn too_long(&mut self, field: impl Display, max: usize) {
        if !self.only_counts() {
            self.push(FieldError::too_long(field, max));
        }
    }

    pub fn too_many(&mut self, field: impl Display, actual: usize, max: usize) {
        if !self.only_counts() {
            self.push(FieldError::too_many(field, actual, max));
        }
    }

    /// One `Invalid` per message, as the name rules of [`crate::validation`] return them.
    pub fn invalid_each(&mut self, field: impl Display, value: impl Serialize, messages: Vec<String>) {
        for message in messages {
            self.invalid(&field, &value, message);
        }
    }

    /// Refuses a change.
    pub fn immutable<T: PartialEq + Serialize>(&mut self, field: impl Display, new: &T, old: &T) {
        if new != old {
            self.invalid(field, new, IMMUTABLE);
        }
    }
}

impl IntoIterator for FieldErrors {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.shown.into_iter()
    }
}

impl FromIterator<FieldError> for FieldErrors {
    fn from_iter<I: IntoIterator<Item = FieldError>>(iter: I) -> Self {
        let mut errors = Self::default();
        errors.extend(iter);
        errors
    }
}

impl Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages: Vec<String> = self.shown.iter().map(ToString::to_string).collect();
        f.write_str(&aggregate(&messages))
    }
}

/// Several errors as one text, as upstream aggregates them: alone as it is, more as `[a, b]`, repeats once.
pub fn aggregate<S: AsRef<str>>(messages: &[S]) -> String {
    let mut seen = std::collections::HashSet::with_capacity(messages.len());
    let once: Vec<&str> = messages.iter().map(AsRef::as_ref).filter(|message| seen.insert(*message)).collect();
    match once.as_slice() {
        [only] => (*only).to_owned(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// A value as upstream shows it: strings quoted the way Go does, everything else as JSON.
fn show(value: &impl Serialize) -> String {
    show_json(crate::schema::encode_plain(value))
}

#[cold]
#[inline(never)]
fn show_json(json: serde_json::Result<Vec<u8>>) -> String {
    match json.and_then(|json| serde_json::from_slice(&json)) {
        Ok(serde_json::Value::String(text)) => quote(&text),
        Ok(other) => other.to_string(),
        Err(_) => "<unprintable>".to_owned(),
    }
}

/// Go's `%q`.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_hundred_thousand_mistakes_are_told_as_a_thousand() {
        let mut errors = FieldErrors::default();
        for number in 0..100_000 {
            errors.invalid(format!("spec.items[{number}]"), "=", "must be something else");
        }
        assert_eq!((errors.len(), errors.iter().count()), (100_000, MAX_SHOWN));
        assert!(errors.to_string().len() < 1 << 20);
        let again: FieldErrors = errors.into_iter().collect();
        assert!(!again.is_empty());
        // Whoever has that many things to say is done with it, too.
        let messages: Vec<String> =
            (0..300_000).map(|number| format!("spec.items[{number:06}]: Required value")).collect();
        assert!(aggregate(&messages).starts_with("[spec.items[000000]"));
    }

    /// A key may be a megabyte long, with a list below it of which each item is wrong; or each mistake shows all of a list.
    #[test]
    fn security_mistakes_with_long_names_are_told_within_a_limit() {
        let (key, list) = ("k".repeat(300_000), vec!["None"; 100_000]);
        let mut errors = FieldErrors::default();
        for _ in 0..100_000 {
            errors.invalid(&key, 1, "must be something else");
            errors.invalid("spec.list", &list, "must be alone");
        }
        assert_eq!(errors.len(), 200_000);
        assert!(errors.is_full() && errors.to_string().len() < 4 << 20);
    }

    #[test]
    fn paths_print_dotted() {
        let spec = Path::new("spec");
        let containers = spec.child("containers");
        assert_eq!(containers.index(0).child("env").key("A").to_string(), "spec.containers[0].env[A]");
        assert_eq!(Path::ROOT.child("spec").child("a.b").to_string(), "spec.a.b");
    }

    #[test]
    fn errors_read_like_upstream() {
        for (error, expected) in [
            (
                FieldError::invalid("spec.replicas", -1, "must be greater than or equal to 0"),
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                FieldError::not_supported("spec.type", "X", &["A", "B"]),
                "spec.type: Unsupported value: \"X\": supported values: \"A\", \"B\"",
            ),
            (FieldError::required("metadata.name", ""), "metadata.name: Required value"),
            (FieldError::too_long("a", 63), "a: Too long: may not be more than 63 bytes"),
            (FieldError::too_many("a", 5, 1), "a: Too many: 5: must have at most 1 item"),
            (FieldError::forbidden("a", "no"), "a: Forbidden: no"),
            (FieldError::duplicate("a[1]", "x\n"), "a[1]: Duplicate value: \"x\\n\""),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn several_errors_aggregate_without_repeats() {
        let mut errors = FieldErrors::default();
        errors.required("a", "");
        assert_eq!(errors.to_string(), "a: Required value");
        errors.required("a", "");
        errors.required("b", "");
        assert_eq!(errors.to_string(), "[a: Required value, b: Required value]");
    }
}
