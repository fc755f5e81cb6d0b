//! CEL, the Common Expression Language, with the libraries that Kubernetes adds to it. Pure: no I/O, no clock.
//!
//! Flow: text -> `lex` -> `parse` (macros become [`ast`] nodes) -> `check` (types, and which function a call means) ->
//! a [`Program`], compiled once and run often -> `eval` over [`Value`]s. `cost` says what a run can take at most.
//! Invariants: nothing that is written or computed can hang, overflow the stack or take unbounded memory: texts, nesting
//! and the cost of a run are bounded. An error is a value of its own that `&&` and `||` may absorb; running out of
//! budget is not.
//! Not here: where variables come from. Whoever runs a program hands in an [`Activation`].

mod ast;
mod budget;
mod check;
mod cost;
mod env;
mod error;
mod eval;
mod extension;
mod functions;
mod lex;
mod macros;
mod operators;
mod parse;
mod program;
pub mod regex;
mod stack;
mod time;
mod types;
mod value;

pub use budget::{Budget, PER_CALL_LIMIT};
pub use cost::Sizes;
pub use env::Env;
pub use error::{CompileError, Error, ErrorKind};
pub use eval::Activation;
pub use extension::Extension;
pub use lex::{is_identifier, is_reserved};
pub use program::Program;
pub use types::{Struct, Type};
pub use value::{Key, Map, Opaque, Value, typed_text};

#[cfg(test)]
mod tests;
