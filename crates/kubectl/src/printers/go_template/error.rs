//! What can be wrong with a template, and with running it; in the words of Go's text/template.

/// A template that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("template: output:{line}: {mistake}")]
pub(crate) struct ParseError {
    pub(super) line: usize,
    pub(super) mistake: Mistake,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Mistake {
    #[error("unclosed comment")]
    UnclosedComment,
    #[error("comment ends before closing delimiter")]
    CommentNotAlone,
    #[error("unclosed action")]
    UnclosedAction,
    #[error("unterminated {0}")]
    Unterminated(&'static str),
    #[error("bad number syntax: \"{0}\"")]
    BadNumber(String),
    #[error("unexpected {0:?} in command")]
    UnknownCharacter(char),
    #[error("unexpected {{{{{0}}}}}")]
    UnexpectedAction(String),
    #[error("unexpected EOF")]
    UnexpectedEnd,
    #[error("{{{{{0}}}}} outside {{{{range}}}}")]
    OutsideRange(String),
    #[error("unexpected {{{{{0}}}}} clause: a name is needed")]
    NameNeeded(String),
    #[error("missing value for {0}")]
    MissingValue(String),
    #[error("undefined variable \"{0}\"")]
    UndefinedVariable(String),
    #[error("function \"{0}\" not defined")]
    UndefinedFunction(String),
    #[error("unclosed left paren")]
    UnclosedParen,
    #[error("unexpected right paren")]
    UnexpectedParen,
    #[error("unexpected token in operand")]
    UnexpectedToken,
}

impl Mistake {
    pub(super) fn at(self, line: usize) -> ParseError {
        ParseError { line, mistake: self }
    }
}

/// Why a template does not fit its object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecuteError {
    #[error("template \"{0}\" not defined")]
    UndefinedTemplate(String),
    #[error("exceeded maximum template depth ({0})")]
    TooDeep(usize),
    #[error("range can't iterate over {0}")]
    NotIterable(String),
    #[error("can't give argument to non-function {0}")]
    NotFunction(String),
    #[error("missing value for command")]
    MissingValue,
    #[error("map has no entry for key \"{0}\"")]
    NoEntry(String),
    #[error("nil data; no entry for key \"{0}\"")]
    NilData(String),
    #[error("can't evaluate field {field} in type {of}")]
    NoField { field: String, of: &'static str },
    #[error("error calling {function}: {source}")]
    Calling { function: String, source: CallError },
    /// Of a function that stands where a value is wanted.
    #[error(transparent)]
    Operand(CallError),
}

/// Why a function gives no value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("function \"{0}\" not defined")]
    Undefined(String),
    #[error("wrong number of args: want at least 1 got 0")]
    NoArguments,
    #[error("missing argument for comparison")]
    NothingToCompare,
    #[error("invalid type for comparison")]
    Incomparable,
    #[error("incompatible types for comparison")]
    DifferentTypes,
    #[error("len of nil pointer")]
    LengthOfNil,
    #[error("len of type {0}")]
    NoLength(&'static str),
    #[error("wrong type for value; expected string")]
    NotString,
    #[error("base64 decode failed: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("index out of range: {0}")]
    OutOfRange(i64),
    #[error("index of untyped nil")]
    IndexOfNil,
    #[error("can't index item of type {0}")]
    NotIndexable(&'static str),
    #[error("can't slice item")]
    NotSliceable,
}
