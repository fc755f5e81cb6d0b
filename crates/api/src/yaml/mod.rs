//! YAML as upstream has it: what its plain words mean, and how values are written.
//!
//! Place in the flow: `codec` asks here what the words of a document mean; kubectl and the API server print with [`to_string`].

mod expansion;
mod words;
mod write;

pub(crate) use expansion::{EXCESSIVE, Expansion};
pub use words::Rules;
pub(crate) use words::{Meaning, PlainWords};
pub use write::to_string;
