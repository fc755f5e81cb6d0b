//! Expressions in CEL about a write: what they may name, and what those names stand for.
//!
//! Flow: `registry::admissionregistration::environment` says which variables there are and compiles (also for the checks
//! of objects that carry expressions) -> `Input` holds a request's values -> `Run` evaluates with upstream's budgets. Whether someone may do
//! something is not known while an expression runs: `authorizer` notes the question, `Answers::ask` puts it, and
//! the expressions are run again.

mod authorizer;
mod conditions;
mod input;
mod run;

pub(in crate::admission) use authorizer::Answers;
pub(in crate::admission) use conditions::Conditions;
pub(in crate::admission) use input::{Input, Scope, Shown, Variable, namespace_object};
pub(in crate::admission) use run::{Failure, Run};

/// An expression, or why it is none.
pub(in crate::admission) type Compiled = Result<cel::Program, cel::CompileError>;
