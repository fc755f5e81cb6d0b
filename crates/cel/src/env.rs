//! The names that an expression may use.

use crate::types::Type;

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
}
