//! Field selectors: `metadata.name=a,status.phase!=Failed`.

use std::fmt;

use super::ParseError;
use crate::sort::CompactSort as _;

/// A conjunction of exact matches and mismatches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    pub field: String,
    pub equal: bool,
    pub value: String,
}

impl FieldSelector {
    pub fn everything() -> Self {
        Self::default()
    }

    pub fn equal(field: impl Into<String>, value: impl Into<String>) -> Self {
        Self { terms: vec![FieldTerm { field: field.into(), equal: true, value: value.into() }] }
    }

    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parts = split_terms(text);
        parts.compact_sort();
        let mut terms = Vec::with_capacity(parts.len());
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let Some((field, equal, value)) = split_term(part) else {
                return Err(ParseError(format!("invalid selector: '{text}'; can't understand '{part}'")));
            };
            terms.push(FieldTerm { field: field.to_owned(), equal, value: unescape(value)? });
        }
        Ok(Self { terms })
    }

    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// The terms may be renamed or refused here, as a resource's field labels demand.
    pub fn terms_mut(&mut self) -> &mut Vec<FieldTerm> {
        &mut self.terms
    }

    /// True when it selects everything; a term `x=` with an empty value still selects.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// `get` answers a field's value, `""` when it has none.
    pub fn matches<T: AsRef<str>>(&self, get: impl Fn(&str) -> T) -> bool {
        self.terms.iter().all(|term| (get(&term.field).as_ref() == term.value) == term.equal)
    }

    /// The value a field must have, if the selector pins it (lists by name or node use this).
    pub fn requires(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && term.field == field).map(|term| term.value.as_str())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(&term.field)?;
            f.write_str(if term.equal { "=" } else { "!=" })?;
            for c in term.value.chars() {
                if matches!(c, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for FieldSelector {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text)
    }
}

/// Splits at commas that no backslash escapes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at =
        term.char_indices().map(|(i, _)| i).find(|&i| term[i..].starts_with('=') || term[i..].starts_with("!="))?;
    let (field, rest) = term.split_at(at);
    let (equal, value) = if let Some(value) = rest.strip_prefix("!=") {
        (false, value)
    } else {
        (true, rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?)
    };
    Some((field, equal, value))
}

fn unescape(value: &str) -> Result<String, ParseError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    let sequence: String = std::iter::once('\\').chain(other).collect();
                    return Err(ParseError(format!("invalid field selector: invalid escape sequence: {sequence}")));
                }
            },
            // Upstream prints the number of the character.
            ',' | '=' => {
                return Err(ParseError(format!("invalid field selector: unescaped character in value: {}", c as u32)));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_operator_and_escape() {
        for (text, expected) in [
            ("", Ok("")),
            ("a=b", Ok("a=b")),
            ("a==b", Ok("a=b")),
            ("b=1,a!=2", Ok("a!=2,b=1")),
            ("a=", Ok("a=")),
            (r"a=x\,y\=z\\", Ok(r"a=x\,y\=z\\")),
            ("a", Err("invalid selector: 'a'; can't understand 'a'")),
            (r"a=\x", Err(r"invalid field selector: invalid escape sequence: \x")),
            ("a=b=c", Err("invalid field selector: unescaped character in value: 61")),
        ] {
            let parsed = FieldSelector::parse(text).map(|selector| selector.to_string()).map_err(|e| e.0);
            assert_eq!(parsed.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }

    #[test]
    fn matches_fields() {
        let selector = FieldSelector::parse("spec.nodeName=n1,status.phase!=Failed").unwrap();
        let pod = |node: &'static str, phase: &'static str| {
            move |field: &str| match field {
                "spec.nodeName" => node,
                "status.phase" => phase,
                _ => "",
            }
        };
        assert!(selector.matches(pod("n1", "Running")));
        assert!(selector.matches(pod("n1", "")));
        assert!(!selector.matches(pod("n1", "Failed")));
        assert!(!selector.matches(pod("", "Running")));
        assert_eq!(selector.requires("spec.nodeName"), Some("n1"));
        assert_eq!(selector.requires("status.phase"), None);
    }
}
