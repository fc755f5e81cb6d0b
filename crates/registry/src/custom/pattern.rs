//! Regular expressions of schemas. They are written for Go's engine.

/// A compiled pattern and how it was written.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) text: String,
    /// Absent if the pattern is not one: nothing matches it.
    regex: Option<cel::regex::Regex>,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        Self { text: text.to_owned(), regex: cel::regex::compile(text).ok() }
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        self.regex.as_ref().is_some_and(|regex| regex.is_match(text))
    }
}
