//! Regular expressions as Go has them: linear time, ASCII classes (`\d`, `\w`, `\s`), bounded size. Schemas use them, too.

pub use regex_automata::meta::Regex;
use regex_automata::util::syntax;

/// The largest program a pattern may become, in bytes.
const LARGEST: usize = 1 << 20;

/// A pattern that is none, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPattern {
    why: String,
    /// It would become more than [`LARGEST`].
    is_too_large: bool,
}

impl BadPattern {
    /// The program that was made before that was known, in bytes.
    pub fn size(&self) -> usize {
        if self.is_too_large { LARGEST } else { 0 }
    }
}

impl std::fmt::Display for BadPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "error parsing regexp: {}", self.why)
    }
}

impl std::error::Error for BadPattern {}

pub fn compile(pattern: &str) -> Result<Regex, BadPattern> {
    let config = Regex::config().nfa_size_limit(Some(LARGEST)).hybrid_cache_capacity(LARGEST);
    Regex::builder()
        .configure(config)
        .syntax(syntax::Config::new().nest_limit(100))
        .build(&spelled_out(pattern))
        .map_err(|error| BadPattern {
            why: error.to_string().lines().last().unwrap_or_default().to_owned(),
            is_too_large: error.size_limit().is_some(),
        })
}

/// The pattern with the ASCII classes written out; they may stand inside of brackets, too.
fn spelled_out(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('d') => out.push_str("[0-9]"),
            Some('D') => out.push_str("[^0-9]"),
            Some('w') => out.push_str("[0-9A-Za-z_]"),
            Some('W') => out.push_str("[^0-9A-Za-z_]"),
            Some('s') => out.push_str("[\\t\\n\\x0C\\r ]"),
            Some('S') => out.push_str("[^\\t\\n\\x0C\\r ]"),
            Some('b') => out.push_str("(?-u:\\b)"),
            Some('B') => out.push_str("(?-u:\\B)"),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, text, expected) in [
            (r"^\d+$", "123", true),
            (r"^\d+$", "٣", false),
            (r"^[\w.-]+$", "a_b.c-d", true),
            (r"^[a-z]{2,3}$", "abcd", false),
            (r"^.{2}$", "äö", true),
            (r"bar", "a bar b", true),
            (r"^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$", "* * * * */5", true),
        ] {
            let regex = compile(pattern).expect("a pattern");
            assert_eq!(regex.is_match(text), expected, "{pattern} {text}");
        }
        assert!(compile("(").is_err());
    }
}
