//! Regular expressions of schemas. They are written for Go's engine, whose classes (`\d`, `\w`, `\s`) are ASCII.

use regex_automata::util::syntax;

/// A compiled pattern and how it was written.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) text: String,
    /// Absent if the pattern is not one: nothing matches it.
    regex: Option<regex_automata::meta::Regex>,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        let regex = regex_automata::meta::Builder::new().syntax(syntax::Config::new()).build(&spelled_out(text)).ok();
        Self { text: text.to_owned(), regex }
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        self.regex.as_ref().is_some_and(|regex| regex.is_match(text))
    }
}

/// The pattern with Go's classes written out; they may stand inside of brackets, too.
fn spelled_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
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
            // Go lets these be escaped although they mean nothing.
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
            (r"(", "(", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), expected, "{pattern} {text}");
        }
    }
}
