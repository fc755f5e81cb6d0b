//! What can be wrong with a path, and with an object that it is used on.

/// Why a path cannot be read, or does not fit the object; in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JsonPathError {
    #[error("unclosed action")]
    UnclosedAction,
    #[error("unexpected end")]
    UnexpectedEnd,
    #[error("unterminated {0}")]
    Unterminated(&'static str),
    #[error("unrecognized identifier {0}")]
    UnknownIdentifier(String),
    #[error("unrecognized character in action: U+{:04X} '{}'", *.0 as u32, .0)]
    UnknownCharacter(char),
    #[error("cannot parse number {0}")]
    BadNumber(String),
    #[error("invalid array index {0}")]
    BadIndex(String),
    #[error(
        "unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{{name1.name2}}' or '{{.name1.name2}}'"
    )]
    BadRelaxedPath,
    #[error("range without an expression")]
    EmptyRange,
    #[error("unclosed range")]
    UnclosedRange,
    #[error("range inside an expression")]
    MisplacedRange,
    #[error("not in range, nothing to end")]
    MisplacedEnd,
    #[error("unexpected Node {0}")]
    MisplacedNode(String),
    #[error("{0} is not found")]
    NotFound(String),
    #[error("{0} is not array or slice")]
    NotArray(String),
    #[error("array index out of bounds: index {index}, length {length}")]
    OutOfBounds { index: i64, length: i64 },
    #[error("step must be > 0")]
    BadStep,
    #[error("can only compare one element at a time")]
    ManyElements,
    #[error("unrecognized filter operator {0}")]
    UnknownOperator(String),
}
