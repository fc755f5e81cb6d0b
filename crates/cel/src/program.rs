//! Compiled expressions.

use std::fmt;
use std::sync::Arc;

use crate::ast::Expr;
use crate::budget::Budget;
use crate::check;
use crate::cost::{self, Sizes};
use crate::env::Env;
use crate::error::{CompileError, Error};
use crate::eval::{self, Activation};
use crate::parse;
use crate::stack;
use crate::types::Type;
use crate::value::Value;

impl Env {
    pub fn compile(&self, source: &str) -> Result<Program, CompileError> {
        self.compile_with(source, None).map(|(program, _)| program)
    }

    /// Compiles an expression and says what a run of it may cost at most, if its variables are no larger than that.
    pub fn compile_costed(&self, source: &str, sizes: &dyn Sizes) -> Result<(Program, u64), CompileError> {
        self.compile_with(source, Some(sizes))
    }

    fn compile_with(&self, source: &str, sizes: Option<&dyn Sizes>) -> Result<(Program, u64), CompileError> {
        if stack::depth_of(source) <= stack::SHALLOW {
            return self.compile_here(source, sizes);
        }
        stack::with_room(|| self.compile_here(source, sizes))
            .unwrap_or_else(|| Err(CompileError::plain("there is no room for the expression")))
    }

    fn compile_here(&self, source: &str, sizes: Option<&dyn Sizes>) -> Result<(Program, u64), CompileError> {
        let refused = |issues| CompileError::new(source, issues);
        let (mut expression, depth) = parse::parse(source).map_err(refused)?;
        let check::Checked { result, types } = check::check(self, &mut expression).map_err(refused)?;
        let cost = sizes.map_or(0, |sizes| cost::highest(&expression, &types, sizes));
        Ok((Program { expression: Arc::new(expression), depth, result, source: source.into() }, cost))
    }

    /// Compiles what must be of one of these types, or of any if there are none, and says in upstream's words why it is not.
    pub fn compile_as(&self, source: &str, wanted: &[Type]) -> Result<Program, CompileError> {
        let program =
            self.compile(source).map_err(|error| CompileError::plain(format!("compilation failed: {error}")))?;
        let found = program.result.name();
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted.name() == found) {
            return Ok(program);
        }
        Err(CompileError::plain(match wanted {
            [only] => format!("must evaluate to {} but got {found}", only.name()),
            _ => {
                let names: Vec<String> = wanted.iter().map(Type::name).collect();
                format!("must evaluate to one of [{}] but got {found}", names.join(" "))
            }
        }))
    }
}

/// An expression that can be run.
#[derive(Clone)]
pub struct Program {
    expression: Arc<Expr>,
    depth: u32,
    pub(crate) result: Type,
    source: Arc<str>,
}

impl Program {
    pub fn result(&self) -> &Type {
        &self.result
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn run(&self, activation: &dyn Activation, budget: &mut Budget) -> Result<Value, Error> {
        let room = budget.room;
        let needed = self.depth + 1;
        let result = match room.checked_sub(needed) {
            Some(left) => {
                budget.room = left;
                eval::run(&self.expression, activation, budget)
            }
            None => {
                budget.room = stack::DEEP - needed;
                let result = stack::with_room(|| eval::run(&self.expression, activation, budget));
                result.unwrap_or_else(|| Err(Error::new("there is no room for the expression")))
            }
        };
        budget.room = room;
        result
    }

    /// Whether the expression names a variable.
    pub fn mentions(&self, variable: &str) -> bool {
        self.expression.mentions(variable)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Program").field(&self.source).finish()
    }
}
