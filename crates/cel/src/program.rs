//! Compiled expressions, and the names they may use.

use std::fmt;
use std::sync::Arc;

use crate::ast::Expr;
use crate::budget::Budget;
use crate::check;
use crate::error::{CompileError, Error};
use crate::eval::{self, Activation};
use crate::parse;
use crate::stack;
use crate::types::Type;
use crate::value::Value;

/// What an expression may refer to.
#[derive(Clone, Default)]
pub struct Env {
    variables: Vec<(String, Type)>,
    /// Types that may be made with braces.
    structures: Option<fn(&str) -> Option<Type>>,
    patches: bool,
}

impl Env {
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, of: Type) -> Self {
        self.declare(name, of);
        self
    }

    pub fn declare(&mut self, name: impl Into<String>, of: Type) {
        self.variables.push((name.into(), of));
    }

    /// Lets expressions make objects, and use the functions for patches.
    #[must_use]
    pub fn with_structures(mut self, structures: fn(&str) -> Option<Type>) -> Self {
        self.structures = Some(structures);
        self.patches = true;
        self
    }

    pub(crate) fn variable(&self, name: &str) -> Option<Type> {
        self.variables.iter().rev().find(|(known, _)| known == name).map(|(_, of)| of.clone())
    }

    pub(crate) fn structure(&self, name: &str) -> Option<Type> {
        self.structures.and_then(|structures| structures(name))
    }

    /// Whether a function of the table is one here.
    pub(crate) fn allows(&self, function: &str) -> bool {
        self.patches || !function.starts_with("jsonpatch.")
    }

    pub fn compile(&self, source: &str) -> Result<Program, CompileError> {
        let compiled = stack::with_room(stack::depth_of(source), || self.compile_here(source));
        compiled.unwrap_or_else(|| Err(CompileError::plain("there is no room for the expression")))
    }

    fn compile_here(&self, source: &str) -> Result<Program, CompileError> {
        let refused = |issues| CompileError::new(source, issues);
        let (mut expression, depth) = parse::parse(source).map_err(refused)?;
        let result = check::check(self, &mut expression).map_err(refused)?;
        Ok(Program { expression: Arc::new(expression), depth, result, source: source.into() })
    }

    /// Compiles what must be of one of these types; an expression of unknown type is taken at its word.
    pub fn compile_as(&self, source: &str, wanted: &[Type]) -> Result<Program, CompileError> {
        let program = self.compile(source)?;
        let found = program.result.to_string();
        if program.result.is_dyn() || wanted.iter().any(|wanted| wanted.to_string() == found) {
            return Ok(program);
        }
        Err(CompileError::plain(match wanted {
            [only] => format!("must evaluate to {only}"),
            _ => {
                let names: Vec<String> = wanted.iter().map(ToString::to_string).collect();
                format!("must evaluate to one of {}", names.join(", "))
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
        let run = stack::with_room(self.depth, || eval::run(&self.expression, activation, budget));
        run.unwrap_or_else(|| Err(Error::new("there is no room for the expression")))
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
