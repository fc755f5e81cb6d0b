//! What can be wrong with a text, and with a run of it.

use std::fmt;

use api::sort::CompactSort as _;

/// A failed evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The expression made no sense of its input; `&&` and `||` may absorb it.
    Evaluation,
    /// The budget is used up: the run is over.
    Cost,
    /// An object needs an answer from elsewhere before the run can be repeated.
    Pending,
}

impl Error {
    pub fn new(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Evaluation, message: message.into() }
    }

    pub fn cost() -> Self {
        Self { kind: ErrorKind::Cost, message: "operation cancelled: actual cost limit exceeded".to_owned() }
    }

    pub fn pending() -> Self {
        Self { kind: ErrorKind::Pending, message: "an answer is missing".to_owned() }
    }

    pub(crate) fn no_such_overload() -> Self {
        Self::new("no such overload")
    }

    pub(crate) fn is_absorbed(&self) -> bool {
        self.kind == ErrorKind::Evaluation
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// One mistake in a text, and the letter at which it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Issue {
    pub(crate) at: u32,
    pub(crate) message: String,
}

impl Issue {
    pub(crate) fn new(at: u32, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

/// All mistakes of a text, each shown with its line and a mark below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError(String);

impl CompileError {
    pub(crate) fn new(source: &str, mut issues: Vec<Issue>) -> Self {
        issues.compact_sort_by_key(|issue| issue.at);
        let shown: Vec<String> = issues.iter().map(|issue| shown(source, issue)).collect();
        Self(shown.join("\n"))
    }

    /// A mistake that is nowhere in the text.
    pub(crate) fn plain(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CompileError {}

/// The longest line that is shown.
const LONGEST_LINE: usize = 16384;

fn shown(source: &str, issue: &Issue) -> String {
    let at = issue.at as usize;
    let (mut line, mut column) = (1, 0);
    for letter in source.chars().take(at) {
        if letter == '\n' {
            line += 1;
            column = 0;
        } else {
            column += 1;
        }
    }
    let mut text = format!("ERROR: <input>:{line}:{}: {}", column + 1, issue.message);
    let Some(snippet) = source.split('\n').nth(line - 1).filter(|snippet| snippet.len() <= LONGEST_LINE) else {
        return text;
    };
    let snippet = snippet.replace('\t', " ");
    text.push_str("\n | ");
    text.push_str(&snippet);
    text.push_str("\n | ");
    let mut letters = snippet.chars();
    for letter in letters.by_ref().take(column) {
        text.push(if letter.is_ascii() { '.' } else { '\u{ff0e}' });
    }
    text.push(if letters.next().is_none_or(|letter| letter.is_ascii()) { '^' } else { '\u{ff3e}' });
    text
}
