//! Regular expressions that people write: for the paths a proxy serves, for the targets of a kustomization's patches.

use regex_automata::dfa::Automaton;
use regex_automata::dfa::dense::{BuildError, Config, DFA};
use regex_automata::util::syntax;

/// An expression whose automaton would need more is a mistake.
const MAX_BYTES: usize = 16 << 20;

/// An expression that is none, or one whose automaton would be too large.
#[derive(Debug, thiserror::Error)]
#[error("{}", cause(.0))]
pub(crate) struct PatternError(Box<BuildError>);

/// The outer error only says that there is one.
fn cause(error: &BuildError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

pub(crate) struct Pattern(DFA<Vec<u32>>);

impl Pattern {
    pub(crate) fn new(expression: &str) -> Result<Pattern, PatternError> {
        let limits = Config::new().dfa_size_limit(Some(MAX_BYTES)).determinize_size_limit(Some(MAX_BYTES));
        let syntax = syntax::Config::new().unicode(false).utf8(false);
        let built = DFA::builder().configure(limits).syntax(syntax).build(expression);
        built.map(Pattern).map_err(|error| PatternError(Box::new(error)))
    }

    /// Whether it matches anywhere in the text.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.0.try_search_fwd(&regex_automata::Input::new(text)).is_ok_and(|found| found.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_anywhere_unless_they_say_where() {
        for (expression, text, expected) in [
            ("b", "abc", true),
            ("^b", "abc", false),
            ("^(?:a|ab)$", "ab", true),
            ("^/api/.*/exec", "/api/v1/pods/x/exec?a", true),
            ("[0-9]{2}$", "a12", true),
            ("", "", true),
        ] {
            assert_eq!(Pattern::new(expression).unwrap().is_match(text), expected, "{expression} {text}");
        }
        assert!(Pattern::new("(").is_err());
    }
}
