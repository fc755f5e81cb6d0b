//! Tree -> types. Finds what names mean and which functions are called, and refuses what cannot work.

use std::sync::Arc;

use crate::ast::{Call, Expr, Fold, FoldKind, How, Kind, Select};
use crate::env::Env;
use crate::error::Issue;
use crate::functions::{self, Overload};
use crate::types::{Known, Type};
use crate::value::Value;
use crate::{regex, time};

pub(crate) struct Checker<'a> {
    env: &'a Env,
    locals: Vec<(Arc<str>, Type)>,
    known: Known,
    issues: Vec<Issue>,
    /// What was found, by the numbers of expressions.
    types: Vec<Type>,
}

/// What the checker found.
pub(crate) struct Checked {
    pub(crate) result: Type,
    /// Of all expressions, by their numbers; what nobody found out is still a parameter.
    pub(crate) types: Vec<Type>,
}

/// The type of an expression; calls in it are bound to their functions.
pub(crate) fn check(env: &Env, expression: &mut Expr) -> Result<Checked, Vec<Issue>> {
    let mut checker =
        Checker { env, locals: Vec::new(), known: Known::default(), issues: Vec::new(), types: Vec::new() };
    let found = checker.check(expression);
    if !checker.issues.is_empty() {
        return Err(checker.issues);
    }
    let known = checker.known;
    let types = checker.types.iter().map(|of| known.resolve(of)).collect();
    Ok(Checked { result: settled(known.resolve(&found)), types })
}

/// What nobody found out may be anything.
fn settled(of: Type) -> Type {
    match of {
        Type::Param(_) => Type::Dyn,
        Type::List(inner) => Type::list(settled((*inner).clone())),
        Type::Optional(inner) => Type::optional(settled((*inner).clone())),
        Type::Map(key, value) => Type::map(settled((*key).clone()), settled((*value).clone())),
        other => other,
    }
}

impl Checker<'_> {
    fn issue(&mut self, at: u32, message: impl Into<String>) -> Type {
        self.issues.push(Issue::new(at, message));
        Type::Error
    }

    fn check(&mut self, expression: &mut Expr) -> Type {
        let found = self.find(expression);
        expression.id = self.types.len() as u32;
        self.types.push(found.clone());
        found
    }

    fn find(&mut self, expression: &mut Expr) -> Type {
        let at = expression.at;
        if let Some(name) = self.plain_name(expression) {
            if let Some(of) = self.variable(&name) {
                expression.kind = Kind::Ident(name.into());
                return of;
            }
            if let Some(of) = Type::named(&name).filter(|_| name != "dyn") {
                expression.kind = Kind::Constant(Value::Type(name.into()));
                return Type::Type(Arc::new(of));
            }
        }
        match &mut expression.kind {
            Kind::Constant(value) => of_constant(value),
            Kind::Ident(name) => {
                let message = format!("undeclared reference to '{name}' (in container '')");
                self.issue(at, message)
            }
            Kind::Select(select) => self.select(at, select),
            Kind::Call(call) => self.call(at, call),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct(name, fields) => {
                let name = name.clone();
                self.structure(at, &name, fields)
            }
            Kind::And(parts) => self.logic("_&&_", parts),
            Kind::Or(parts) => self.logic("_||_", parts),
            Kind::Conditional(parts) => self.conditional(at, parts),
            Kind::Fold(fold) => self.fold(fold),
            Kind::Bind(name, parts) => {
                let name = name.clone();
                let of = self.check(&mut parts[0]);
                self.locals.push((name, of));
                let found = self.check(&mut parts[1]);
                self.locals.pop();
                found
            }
        }
    }

    /// A name, with dots or without, that no local variable hides.
    fn plain_name(&self, expression: &Expr) -> Option<String> {
        let name = match &expression.kind {
            Kind::Ident(name) => return Some(name.to_string()),
            Kind::Select(_) => expression.qualified_name()?,
            _ => return None,
        };
        let first = name.split('.').next()?;
        self.locals.iter().all(|(local, _)| **local != *first).then_some(name)
    }

    fn variable(&self, name: &str) -> Option<Type> {
        let local = self.locals.iter().rev().find(|(local, _)| **local == *name);
        local.map(|(_, of)| of.clone()).or_else(|| self.env.variable(name))
    }

    fn select(&mut self, at: u32, select: &mut Select) -> Type {
        let operand = self.check(&mut select.operand);
        let operand = self.known.resolve(&operand);
        let (inner, is_optional) = match &operand {
            Type::Optional(inner) => (self.known.resolve(inner), true),
            other => (other.clone(), false),
        };
        let found = match &inner {
            Type::Dyn | Type::Error | Type::Param(_) => Type::Dyn,
            Type::Map(_, value) => (**value).clone(),
            Type::Struct(of) => match of.field(&select.field) {
                Some(found) => found,
                None => return self.issue(at, format!("undefined field '{}'", select.field)),
            },
            other => return self.issue(at, format!("type '{other}' does not support field selection")),
        };
        match select.how {
            How::Has => Type::Bool,
            How::Optional => optional(found),
            How::Plain if is_optional => optional(found),
            How::Plain => found,
        }
    }

    fn call(&mut self, at: u32, call: &mut Call) -> Type {
        if call.is_member
            && let Some(name) = call.arguments.first().and_then(Expr::qualified_name)
            && functions::find(&format!("{name}.{}", call.function)).is_some()
        {
            call.function = format!("{name}.{}", call.function).into();
            call.is_member = false;
            call.arguments.remove(0);
        }
        let is_format = &*call.function == "format";
        let types: Vec<Type> = call
            .arguments
            .iter_mut()
            .map(|argument| match &mut argument.kind {
                // The one list that may hold anything.
                Kind::List(items) if is_format => {
                    items.iter_mut().for_each(|(item, _)| _ = self.check(item));
                    Type::list(Type::Dyn)
                }
                _ => self.check(argument),
            })
            .collect();
        let Some(function) = functions::find(&call.function).filter(|_| self.env.allows(&call.function)) else {
            let message = format!("undeclared reference to '{}' (in container '')", call.function);
            return self.issue(at, message);
        };
        call.run = Some(function.run);
        self.literals(call);
        let overloads: Vec<&Overload> =
            function.overloads.iter().filter(|row| row.is_member == call.is_member).collect();
        self.overload(at, &call.function, call.is_member, &overloads, &types)
    }

    fn overload(&mut self, at: u32, name: &str, is_member: bool, overloads: &[&Overload], types: &[Type]) -> Type {
        let mut result: Option<Type> = None;
        let mut known = self.known.clone();
        for overload in overloads.iter().filter(|overload| overload.arguments.len() == types.len()) {
            let mut tried = self.known.clone();
            let parameters: Vec<Type> = (0..overload.parameters).map(|_| tried.fresh()).collect();
            let fits = overload
                .arguments
                .iter()
                .zip(types)
                .all(|(wanted, found)| tried.assign(found, &instantiate(wanted, &parameters)));
            if !fits {
                continue;
            }
            let found = tried.resolve(&instantiate(&overload.result, &parameters));
            result = Some(match result {
                None => {
                    known = tried;
                    found
                }
                // Several would do: nothing is learnt, and the result is known only if they agree.
                Some(before) => {
                    let next = known.clone();
                    known = self.known.clone();
                    known.skip_to(&next);
                    if same(&before, &found) { before } else { Type::Dyn }
                }
            });
        }
        match result {
            Some(result) => {
                self.known = known;
                result
            }
            None => {
                let mut shown: Vec<String> = types.iter().map(|of| self.known.resolve(of).to_string()).collect();
                let signature = match is_member {
                    true => format!("{}.({})", shown.remove(0), shown.join(", ")),
                    false => format!("({})", shown.join(", ")),
                };
                self.issue(at, format!("found no matching overload for '{name}' applied to '{signature}'"))
            }
        }
    }

    /// Constants that must have a form, looked at once and for all.
    fn literals(&mut self, call: &mut Call) {
        let text = |expression: Option<&Expr>| match expression {
            Some(Expr { at, kind: Kind::Constant(Value::String(text)), .. }) => Some((*at, text.clone())),
            _ => None,
        };
        match &*call.function {
            "matches" | "find" | "findAll" => {
                if let Some((at, pattern)) = text(call.arguments.get(1)) {
                    match regex::compile(&pattern) {
                        Ok(regex) => call.regex = Some(Arc::new(regex)),
                        Err(_) => _ = self.issue(at, format!("invalid {} argument", call.function)),
                    }
                }
            }
            "duration" | "timestamp" => {
                if let Some((at, literal)) = text(call.arguments.first()) {
                    let fits = match &*call.function {
                        "duration" => time::duration(&literal).is_some(),
                        _ => time::timestamp(&literal).is_some(),
                    };
                    if !fits {
                        self.issue(at, format!("invalid {} argument", call.function));
                    }
                }
            }
            _ => {}
        }
    }

    fn list(&mut self, items: &mut [(Expr, bool)]) -> Type {
        let mut element: Option<Type> = None;
        for (item, is_optional) in items {
            let found = self.check(item);
            let found = if *is_optional { self.unwrapped(item.at, found) } else { found };
            element = Some(self.joined(item.at, element, found));
        }
        let element = element.unwrap_or_else(|| self.known.fresh());
        Type::list(element)
    }

    fn map(&mut self, entries: &mut [(Expr, Expr, bool)]) -> Type {
        let (mut keys, mut values) = (None, None);
        for (key, value, is_optional) in entries {
            let found = self.check(key);
            keys = Some(self.joined(key.at, keys, found));
            let found = self.check(value);
            let found = if *is_optional { self.unwrapped(value.at, found) } else { found };
            values = Some(self.joined(value.at, values, found));
        }
        let key = keys.unwrap_or_else(|| self.known.fresh());
        let value = values.unwrap_or_else(|| self.known.fresh());
        Type::map(key, value)
    }

    /// Elements of one list have one type.
    fn joined(&mut self, at: u32, before: Option<Type>, found: Type) -> Type {
        let Some(before) = before else { return found };
        if !self.known.assign(&found, &before) {
            let (before, found) = (self.known.resolve(&before), self.known.resolve(&found));
            return self.issue(at, format!("expected type '{before}' but found '{found}'"));
        }
        let is_wider = self.known.resolve(&found).is_dyn() || matches!(self.known.resolve(&before), Type::Null);
        if is_wider { found } else { before }
    }

    fn unwrapped(&mut self, at: u32, found: Type) -> Type {
        match self.known.resolve(&found) {
            Type::Optional(inner) => (*inner).clone(),
            Type::Dyn | Type::Error | Type::Param(_) => Type::Dyn,
            other => self.issue(at, format!("expected type 'optional_type({other})' but found '{other}'")),
        }
    }

    fn structure(&mut self, at: u32, name: &str, fields: &mut [(Arc<str>, Expr, bool)]) -> Type {
        let Some(of) = self.env.structure(name) else {
            for (_, value, _) in fields {
                self.check(value);
            }
            return self.issue(at, format!("undeclared reference to '{name}' (in container '')"));
        };
        let Type::Struct(known) = &of else { return self.issue(at, format!("'{name}' is not a message type")) };
        for (field, value, is_optional) in fields {
            let found = self.check(value);
            let found = if *is_optional { self.unwrapped(value.at, found) } else { found };
            let Some(wanted) = known.field(field) else {
                self.issue(value.at, format!("undefined field '{field}'"));
                continue;
            };
            if !self.known.assign(&found, &wanted) {
                let found = self.known.resolve(&found);
                let message = format!("expected type of field '{field}' is '{wanted}' but provided type is '{found}'");
                self.issue(value.at, message);
            }
        }
        of
    }

    fn logic(&mut self, name: &str, parts: &mut [Expr]) -> Type {
        for (i, part) in parts.iter_mut().enumerate() {
            let found = self.check(part);
            if !self.known.assign(&found, &Type::Bool) {
                let found = self.known.resolve(&found);
                let signature = if i == 0 { format!("({found}, bool)") } else { format!("(bool, {found})") };
                self.issue(part.at, format!("found no matching overload for '{name}' applied to '{signature}'"));
            }
        }
        Type::Bool
    }

    fn conditional(&mut self, at: u32, parts: &mut [Expr; 3]) -> Type {
        let [condition, yes, no] = parts;
        let types = [self.check(condition), self.check(yes), self.check(no)];
        let fits = self.known.assign(&types[0], &Type::Bool) && self.known.assign(&types[2], &types[1]);
        if !fits {
            let shown = types.map(|of| self.known.resolve(&of).to_string()).join(", ");
            return self.issue(at, format!("found no matching overload for '_?_:_' applied to '({shown})'"));
        }
        let [_, yes, no] = types;
        if self.known.resolve(&no).is_dyn() || matches!(self.known.resolve(&yes), Type::Null) { no } else { yes }
    }

    fn fold(&mut self, fold: &mut Fold) -> Type {
        let range = self.check(&mut fold.range);
        let range = self.known.resolve(&range);
        if matches!(fold.kind, FoldKind::OptMap | FoldKind::OptFlatMap) {
            return self.optional_fold(fold, range);
        }
        let (key, value) = match &range {
            Type::List(element) => (Type::Int, (**element).clone()),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error | Type::Param(_) => (Type::Dyn, Type::Dyn),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                return self.issue(fold.range.at, message);
            }
        };
        let locals = self.locals.len();
        match &fold.second {
            Some(second) => {
                self.locals.push((fold.variable.clone(), key.clone()));
                self.locals.push((second.clone(), value.clone()));
            }
            None => {
                let element = if matches!(range, Type::Map(..)) { key.clone() } else { value.clone() };
                self.locals.push((fold.variable.clone(), element));
            }
        }
        if let Some(filter) = &mut fold.filter {
            self.must_be_bool(filter);
        }
        let element = if matches!(range, Type::Map(..)) && fold.second.is_none() { key.clone() } else { value };
        let found = match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => {
                self.must_be_bool(&mut fold.body);
                Type::Bool
            }
            FoldKind::Filter => {
                self.must_be_bool(&mut fold.body);
                Type::list(element)
            }
            FoldKind::Map => Type::list(self.check(&mut fold.body)),
            FoldKind::TransformMap => Type::map(key, self.check(&mut fold.body)),
            FoldKind::TransformMapEntry => {
                let found = self.check(&mut fold.body);
                match self.known.resolve(&found) {
                    found @ Type::Map(..) => found,
                    other if other.is_dyn() => Type::map(Type::Dyn, Type::Dyn),
                    other => self.issue(fold.body.at, format!("expected type 'map(dyn, dyn)' but found '{other}'")),
                }
            }
            FoldKind::SortBy => {
                self.check(&mut fold.body);
                Type::list(element)
            }
            FoldKind::OptMap | FoldKind::OptFlatMap => Type::Error,
        };
        self.locals.truncate(locals);
        found
    }

    fn optional_fold(&mut self, fold: &mut Fold, range: Type) -> Type {
        let inner = self.unwrapped(fold.range.at, range);
        self.locals.push((fold.variable.clone(), inner));
        let found = self.check(&mut fold.body);
        self.locals.pop();
        match fold.kind {
            FoldKind::OptMap => Type::optional(found),
            _ => Type::optional(self.unwrapped(fold.body.at, found)),
        }
    }

    fn must_be_bool(&mut self, expression: &mut Expr) {
        let found = self.check(expression);
        if !self.known.assign(&found, &Type::Bool) {
            let found = self.known.resolve(&found);
            self.issue(expression.at, format!("expected type 'bool' but found '{found}'"));
        }
    }
}

fn optional(of: Type) -> Type {
    match of {
        Type::Optional(_) => of,
        other => Type::optional(other),
    }
}

fn of_constant(value: &Value) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Int(_) => Type::Int,
        Value::Uint(_) => Type::Uint,
        Value::Double(_) => Type::Double,
        Value::String(_) => Type::String,
        Value::Bytes(_) => Type::Bytes,
        _ => Type::Dyn,
    }
}

/// A type of a table with fresh parameters for those of the table.
fn instantiate(of: &Type, parameters: &[Type]) -> Type {
    match of {
        Type::Param(number) => parameters.get(*number as usize).cloned().unwrap_or(Type::Dyn),
        Type::List(inner) => Type::list(instantiate(inner, parameters)),
        Type::Optional(inner) => Type::optional(instantiate(inner, parameters)),
        Type::Type(inner) => Type::Type(Arc::new(instantiate(inner, parameters))),
        Type::Map(key, value) => Type::map(instantiate(key, parameters), instantiate(value, parameters)),
        other => other.clone(),
    }
}

fn same(one: &Type, other: &Type) -> bool {
    one.to_string() == other.to_string()
}
