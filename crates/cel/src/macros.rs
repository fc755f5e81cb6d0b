//! Macros: calls whose arguments are not values but variables and expressions over them.

use std::sync::Arc;

use crate::ast::{Expr, Fold, FoldKind, How, Kind};
use crate::error::Issue;

type Parsed = Result<Expr, Issue>;

/// A call without a receiver.
pub(crate) fn global(at: u32, name: &str, mut arguments: Vec<Expr>) -> Parsed {
    if name != "has" || arguments.len() != 1 {
        return Ok(Expr::call(at, name, arguments));
    }
    let mut argument = arguments.remove(0);
    match &mut argument.kind {
        Kind::Select(select) if select.how == How::Plain => select.how = How::Has,
        _ => return Err(Issue::new(argument.at, "invalid argument to has() macro")),
    }
    argument.at = at;
    Ok(argument)
}

/// Names of macros: how many arguments they take, of which how many are variables, and whether the one before the last
/// is a filter.
const FOLDS: [(&str, usize, usize, bool, FoldKind); 20] = [
    ("all", 2, 1, false, FoldKind::All),
    ("all", 3, 2, false, FoldKind::All),
    ("exists", 2, 1, false, FoldKind::Exists),
    ("exists", 3, 2, false, FoldKind::Exists),
    ("exists_one", 2, 1, false, FoldKind::ExistsOne),
    ("existsOne", 2, 1, false, FoldKind::ExistsOne),
    ("exists_one", 3, 2, false, FoldKind::ExistsOne),
    ("existsOne", 3, 2, false, FoldKind::ExistsOne),
    ("filter", 2, 1, false, FoldKind::Filter),
    ("map", 2, 1, false, FoldKind::Map),
    ("map", 3, 1, true, FoldKind::Map),
    ("transformList", 3, 2, false, FoldKind::Map),
    ("transformList", 4, 2, true, FoldKind::Map),
    ("transformMap", 3, 2, false, FoldKind::TransformMap),
    ("transformMap", 4, 2, true, FoldKind::TransformMap),
    ("transformMapEntry", 3, 2, false, FoldKind::TransformMapEntry),
    ("transformMapEntry", 4, 2, true, FoldKind::TransformMapEntry),
    ("sortBy", 2, 1, false, FoldKind::SortBy),
    ("optMap", 2, 1, false, FoldKind::OptMap),
    ("optFlatMap", 2, 1, false, FoldKind::OptFlatMap),
];

/// A call of a method.
pub(crate) fn member(at: u32, receiver: Expr, name: &str, mut arguments: Vec<Expr>) -> Parsed {
    if name == "bind" && arguments.len() == 3 && matches!(&receiver.kind, Kind::Ident(name) if &**name == "cel") {
        let variable = variable(&arguments[0], "cel.bind() variable names must be simple identifiers")?;
        let body = arguments.remove(2);
        let value = arguments.remove(1);
        return Ok(Expr::new(at, Kind::Bind(variable, Box::new([value, body]))));
    }
    let count = arguments.len();
    let row = FOLDS.iter().find(|(known, arguments, ..)| *known == name && *arguments == count);
    let Some((_, _, variables, filters, kind)) = row else {
        arguments.insert(0, receiver);
        return Ok(Expr::of_call(at, name, true, arguments));
    };
    let mut arguments = arguments.into_iter();
    let mut next = || arguments.next().expect("the row counted the arguments");
    let first = variable(&next(), "argument must be a simple name")?;
    let second = match variables {
        2 => Some(variable(&next(), "argument must be a simple name")?),
        _ => None,
    };
    let filter = filters.then(&mut next);
    let body = next();
    let fold = Fold { kind: *kind, range: receiver, variable: first, second, filter, body };
    Ok(Expr::new(at, Kind::Fold(Box::new(fold))))
}

fn variable(argument: &Expr, refusal: &str) -> Result<Arc<str>, Issue> {
    match &argument.kind {
        Kind::Ident(name) => Ok(name.clone()),
        _ => Err(Issue::new(argument.at, refusal)),
    }
}
