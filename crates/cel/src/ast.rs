//! The tree of an expression, macros already understood.

use std::sync::Arc;

use crate::functions::Run;
use crate::value::Value;

#[derive(Debug)]
pub(crate) struct Expr {
    /// The letter that errors point to.
    pub(crate) at: u32,
    /// Counted by the checker: where its types have this one's.
    pub(crate) id: u32,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Constant(Value),
    Ident(Arc<str>),
    Select(Box<Select>),
    Call(Box<Call>),
    /// An element with a `?` is left out when it is none.
    List(Vec<(Expr, bool)>),
    Map(Vec<(Expr, Expr, bool)>),
    Struct(Arc<str>, Vec<(Arc<str>, Expr, bool)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Conditional(Box<[Expr; 3]>),
    Fold(Box<Fold>),
    /// `cel.bind(name, value, expression)`.
    Bind(Arc<str>, Box<[Expr; 2]>),
}

#[derive(Debug)]
pub(crate) struct Select {
    pub(crate) operand: Expr,
    pub(crate) field: Arc<str>,
    pub(crate) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Plain,
    /// `has(a.b)`.
    Has,
    /// `a.?b`.
    Optional,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) function: Arc<str>,
    pub(crate) is_member: bool,
    /// The receiver of a method comes first.
    pub(crate) arguments: Vec<Expr>,
    /// Found by the checker.
    pub(crate) run: Option<Run>,
    /// The pattern of a regular expression that is a constant, compiled once.
    pub(crate) regex: Option<Arc<regex_automata::meta::Regex>>,
}

/// A macro that looks at each element of a list or map.
#[derive(Debug)]
pub(crate) struct Fold {
    pub(crate) kind: FoldKind,
    pub(crate) range: Expr,
    pub(crate) variable: Arc<str>,
    /// With two variables the first is the index or key.
    pub(crate) second: Option<Arc<str>>,
    pub(crate) filter: Option<Expr>,
    pub(crate) body: Expr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    Filter,
    /// `map` and `transformList`.
    Map,
    TransformMap,
    TransformMapEntry,
    SortBy,
    /// Of an optional value.
    OptMap,
    OptFlatMap,
}

impl Expr {
    pub(crate) fn new(at: u32, kind: Kind) -> Self {
        Self { at, id: u32::MAX, kind }
    }

    pub(crate) fn call(at: u32, function: &str, arguments: Vec<Expr>) -> Self {
        Self::of_call(at, function, false, arguments)
    }

    pub(crate) fn of_call(at: u32, function: &str, is_member: bool, arguments: Vec<Expr>) -> Self {
        let call = Call { function: function.into(), is_member, arguments, run: None, regex: None };
        Self::new(at, Kind::Call(Box::new(call)))
    }

    /// `a.b.c`, if the expression is nothing else.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.to_string()),
            Kind::Select(select) if select.how == How::Plain => {
                Some(format!("{}.{}", select.operand.qualified_name()?, select.field))
            }
            _ => None,
        }
    }
}

impl Expr {
    /// Whether a variable of this name is used anywhere below.
    pub(crate) fn mentions(&self, variable: &str) -> bool {
        let any = |parts: &[Expr]| parts.iter().any(|part| part.mentions(variable));
        match &self.kind {
            Kind::Constant(_) => false,
            Kind::Ident(name) => &**name == variable,
            Kind::Select(select) => select.operand.mentions(variable),
            Kind::Call(call) => any(&call.arguments),
            Kind::List(items) => items.iter().any(|(item, _)| item.mentions(variable)),
            Kind::Map(entries) => {
                entries.iter().any(|(key, value, _)| key.mentions(variable) || value.mentions(variable))
            }
            Kind::Struct(_, fields) => fields.iter().any(|(_, value, _)| value.mentions(variable)),
            Kind::And(parts) | Kind::Or(parts) => any(parts),
            Kind::Conditional(parts) => any(&**parts),
            Kind::Bind(_, parts) => any(&**parts),
            Kind::Fold(fold) => {
                fold.range.mentions(variable)
                    || fold.filter.as_ref().is_some_and(|filter| filter.mentions(variable))
                    || fold.body.mentions(variable)
            }
        }
    }
}
