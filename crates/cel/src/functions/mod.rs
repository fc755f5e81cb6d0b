//! The functions: one table per library, each row a name, its overloads and what runs.
//!
//! Overloads are written as `(int, A) list(A); .(string) int`: a dot marks a method, whose receiver comes first, and
//! single capitals are type parameters.

mod authorizer;
mod conversions;
pub(crate) mod formats;
mod kubernetes;
mod lists;
pub(crate) mod network;
mod optionals;
mod printing;
pub(crate) mod regex;
pub(crate) mod semver;
mod standard;
mod strings;
mod times;
pub(crate) mod urls;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::budget::Budget;
use crate::error::Error;
use crate::types::Type;
use crate::value::Value;

pub(crate) type Run = fn(&mut Budget, &[Value]) -> Result<Value, Error>;

/// A row of a library: name, overloads, what runs.
type Row = (&'static str, &'static str, Run);

const LIBRARIES: [&[Row]; 13] = [
    standard::TABLE,
    conversions::TABLE,
    times::TABLE,
    strings::TABLE,
    regex::TABLE,
    lists::TABLE,
    optionals::TABLE,
    urls::TABLE,
    network::TABLE,
    kubernetes::TABLE,
    semver::TABLE,
    formats::TABLE,
    authorizer::TABLE,
];

pub(crate) struct Function {
    pub(crate) overloads: Vec<Overload>,
    pub(crate) run: Run,
}

#[derive(Debug)]
pub(crate) struct Overload {
    pub(crate) is_member: bool,
    pub(crate) arguments: Vec<Type>,
    pub(crate) result: Type,
    /// How many type parameters there are.
    pub(crate) parameters: usize,
}

pub(crate) fn find(name: &str) -> Option<&'static Function> {
    static FUNCTIONS: OnceLock<HashMap<&'static str, Function>> = OnceLock::new();
    let functions = FUNCTIONS.get_or_init(|| {
        let rows = LIBRARIES.iter().flat_map(|library| library.iter());
        rows.map(|(name, overloads, run)| (*name, Function { overloads: read(overloads), run: *run })).collect()
    });
    functions.get(name)
}

fn read(overloads: &'static str) -> Vec<Overload> {
    overloads.split(';').map(|text| Reader { rest: text.trim(), parameters: Vec::new() }.overload()).collect()
}

/// Reads the notation of the tables.
struct Reader {
    rest: &'static str,
    parameters: Vec<&'static str>,
}

impl Reader {
    fn overload(mut self) -> Overload {
        let is_member = self.take(".");
        let mut arguments = Vec::new();
        self.take("(");
        while !self.take(")") {
            arguments.push(self.one());
            self.take(",");
        }
        let result = self.one();
        Overload { is_member, arguments, result, parameters: self.parameters.len() }
    }

    fn take(&mut self, sign: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(sign) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn one(&mut self) -> Type {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(['(', ')', ',', ' ']).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        let mut inner = Vec::new();
        if matches!(name, "list" | "map" | "optional" | "type") && self.take("(") {
            while !self.take(")") {
                inner.push(self.one());
                self.take(",");
            }
        }
        match (name, inner.as_slice()) {
            ("list", [of]) => Type::list(of.clone()),
            ("map", [key, value]) => Type::map(key.clone(), value.clone()),
            ("optional", [of]) => Type::optional(of.clone()),
            ("type", [of]) => Type::Type(Arc::new(of.clone())),
            ("timestamp", _) => Type::Timestamp,
            ("duration", _) => Type::Duration,
            ("null", _) => Type::Null,
            _ if name.len() == 1 => {
                let known = self.parameters.iter().position(|parameter| *parameter == name);
                let number = known.unwrap_or_else(|| {
                    self.parameters.push(name);
                    self.parameters.len() - 1
                });
                Type::Param(number as u32)
            }
            _ => Type::named(name).unwrap_or(Type::Opaque(name)),
        }
    }
}

fn no_such_overload() -> Result<Value, Error> {
    Err(Error::no_such_overload())
}

fn text(text: impl Into<Arc<str>>) -> Result<Value, Error> {
    Ok(Value::String(text.into()))
}

fn texts(items: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Value {
    Value::list(items.into_iter().map(|item| Value::String(item.into())).collect())
}
