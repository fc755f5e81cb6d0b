//! The documents of a text: YAML separated by `---`, or JSON values one after another.

use serde_json::Value;

use crate::codec::DecodeError;
use crate::yaml::Rules;

/// Why a document cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// A JSON value without its end.
    #[error("unexpected EOF")]
    UnexpectedEnd,
    #[error("json: line {}: {}", .0.line(), .0)]
    Json(serde_json::Error),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// The documents up to the first that cannot be read, and why it cannot. Empty ones are left out.
pub fn read_all(text: &str, rules: Rules) -> (Vec<Value>, Option<DocumentError>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut values = Vec::new();
    if text.trim_start().starts_with('{') {
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let failed = loop {
            match stream.next() {
                Some(Ok(v)) => values.push(v),
                Some(Err(e)) => break Some(e),
                None => break None,
            }
        };
        match failed {
            None => return (values, None),
            Some(e) if e.is_eof() => return (values, Some(DocumentError::UnexpectedEnd)),
            // YAML's flow style also begins with a brace.
            Some(e) if !values.is_empty() || read_one(text, rules).is_err() => {
                return (values, Some(DocumentError::Json(e)));
            }
            Some(_) => {}
        }
    }
    for part in split(text) {
        if part.lines().all(|l| l.trim().is_empty() || l.trim_start().starts_with('#')) {
            continue;
        }
        match read_one(&part, rules) {
            Ok(Value::Null) => {}
            Ok(value) => values.push(value),
            Err(e) => return (values, Some(e.into())),
        }
    }
    (values, None)
}

/// The one document of a text.
pub fn read_one(text: &str, rules: Rules) -> Result<Value, DecodeError> {
    crate::codec::from_yaml_by(text.as_bytes(), rules).map(|decoded| decoded.value)
}

fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line.starts_with("---") && line[3..].trim_start_matches([' ', '\t']).chars().next().is_none_or(|c| c == '#')
        {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push_str(line.strip_prefix("--- ").unwrap_or(line));
            last.push('\n');
        }
    }
    parts
}
