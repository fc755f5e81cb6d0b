//! Selectors: which objects a list, a watch, a Service or a controller means.
//!
//! [`Selector`] matches labels (`app in (a,b),!old`), [`FieldSelector`] matches the few fields a
//! resource offers (`spec.nodeName=n1`). Both parse every form upstream parses and print back canonically.

mod fields;
mod labels;

pub use fields::{FieldSelector, FieldTerm};
pub use labels::{Operator, Requirement, Selector};

/// A selector text that does not parse, with upstream's sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub String);
