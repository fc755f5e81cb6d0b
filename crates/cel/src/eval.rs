//! Tree -> value. Each step costs; errors are values that logic may absorb.

use std::sync::Arc;

use crate::ast::{Call, Expr, Fold, FoldKind, How, Kind, Select};
use crate::budget::Budget;
use crate::error::Error;
use crate::functions::regex as patterns;
use crate::operators;
use crate::value::{Key, Map, Value};

/// Where the values of variables come from.
pub trait Activation: Sync {
    fn variable(&self, name: &str) -> Option<Value>;
}

impl<F: Fn(&str) -> Option<Value> + Sync> Activation for F {
    fn variable(&self, name: &str) -> Option<Value> {
        self(name)
    }
}

/// What making a list, a map or a structure costs before its elements.
const LIST: u64 = 10;
const MAP: u64 = 30;
const STRUCT: u64 = 40;

type Evaluated = Result<Value, Error>;

pub(crate) fn run(expression: &Expr, activation: &dyn Activation, budget: &mut Budget) -> Evaluated {
    Machine { activation, locals: Vec::new(), budget }.eval(expression)
}

struct Machine<'a> {
    activation: &'a dyn Activation,
    locals: Vec<(Arc<str>, Value)>,
    budget: &'a mut Budget,
}

impl Machine<'_> {
    fn eval(&mut self, expression: &Expr) -> Evaluated {
        match &expression.kind {
            Kind::Constant(value) => Ok(value.clone()),
            Kind::Ident(name) => self.variable(name),
            Kind::Select(select) => self.select(select),
            Kind::Call(call) => self.call(call),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct(name, fields) => self.structure(name, fields),
            Kind::And(parts) => self.logic(parts, false),
            Kind::Or(parts) => self.logic(parts, true),
            Kind::Conditional(parts) => self.conditional(parts),
            Kind::Fold(fold) => self.fold(fold),
            Kind::Bind(name, parts) => self.bind(name, parts),
        }
    }

    fn variable(&mut self, name: &str) -> Evaluated {
        self.budget.spend(1)?;
        if let Some((_, value)) = self.locals.iter().rev().find(|(local, _)| **local == *name) {
            return Ok(value.clone());
        }
        self.activation.variable(name).ok_or_else(|| Error::new(format!("no such attribute(s): {name}")))
    }

    fn bind(&mut self, name: &Arc<str>, parts: &[Expr; 2]) -> Evaluated {
        let value = self.eval(&parts[0])?;
        self.locals.push((name.clone(), value));
        let found = self.eval(&parts[1]);
        self.locals.pop();
        found
    }

    #[inline(never)]
    fn select(&mut self, select: &Select) -> Evaluated {
        let operand = self.eval(&select.operand)?;
        self.budget.spend(1)?;
        let (operand, is_optional) = match &operand {
            Value::Optional(None) => {
                return Ok(if select.how == How::Has { Value::Bool(false) } else { Value::NONE });
            }
            Value::Optional(Some(inner)) => ((**inner).clone(), true),
            other => (other.clone(), false),
        };
        let found = match &operand {
            Value::Map(map) | Value::Struct(_, map) => map.get(&Key::String(select.field.clone())).cloned(),
            Value::Opaque(object) => object.field(&select.field, self.budget).transpose()?,
            _ if select.how == How::Has => return Err(Error::no_such_overload()),
            _ => return Err(Error::new(format!("no such key: {}", select.field))),
        };
        match (select.how, found) {
            (How::Has, found) => Ok(Value::Bool(found.is_some())),
            (How::Optional, found) => Ok(operators::optional(found)),
            (How::Plain, found) if is_optional => Ok(operators::optional(found)),
            (How::Plain, Some(found)) => Ok(found),
            (How::Plain, None) => Err(Error::new(format!("no such key: {}", select.field))),
        }
    }

    #[inline(never)]
    fn call(&mut self, call: &Call) -> Evaluated {
        let mut values = Vec::with_capacity(call.arguments.len());
        // An alternative that is not needed is not looked at.
        let is_lazy = matches!(&*call.function, "or" | "orValue") && call.is_member;
        for argument in &call.arguments {
            values.push(self.eval(argument)?);
            if is_lazy && let [Value::Optional(Some(found))] = values.as_slice() {
                return Ok(if &*call.function == "or" { values[0].clone() } else { (**found).clone() });
            }
        }
        self.budget.spend(1)?;
        if let Some(regex) = &call.regex {
            return patterns::with(regex, self.budget, &call.function, &values);
        }
        match call.run {
            Some(run) => run(self.budget, &values),
            None => Err(Error::new(format!("no such overload: {}", call.function))),
        }
    }

    #[inline(never)]
    fn list(&mut self, parts: &[(Expr, bool)]) -> Evaluated {
        self.budget.spend(LIST)?;
        let mut items = Vec::with_capacity(parts.len());
        for (part, is_optional) in parts {
            let value = self.eval(part)?;
            match is_optional {
                false => items.push(value),
                true => items.extend(unwrapped(value)?),
            }
        }
        Ok(Value::list(items))
    }

    #[inline(never)]
    fn map(&mut self, entries: &[(Expr, Expr, bool)]) -> Evaluated {
        self.budget.spend(MAP)?;
        let mut map = Map::new();
        for (key, value, is_optional) in entries {
            let key = self.eval(key)?;
            let value = self.eval(value)?;
            let value = if *is_optional { unwrapped(value)? } else { Some(value) };
            let key = map_key(&key)?;
            if let Some(value) = value
                && map.insert(key, value).is_some()
            {
                return Err(Error::new("Failed with repeated key"));
            }
        }
        Ok(Value::map(map))
    }

    #[inline(never)]
    fn structure(&mut self, name: &Arc<str>, fields: &[(Arc<str>, Expr, bool)]) -> Evaluated {
        self.budget.spend(STRUCT)?;
        let mut map = Map::new();
        for (field, value, is_optional) in fields {
            let value = self.eval(value)?;
            let value = if *is_optional { unwrapped(value)? } else { Some(value) };
            if let Some(value) = value {
                map.insert(Key::String(field.clone()), value);
            }
        }
        Ok(Value::Struct(name.clone(), Arc::new(map)))
    }

    /// `&&` and `||`: a part that decides, decides, whatever error another part has.
    #[inline(never)]
    fn logic(&mut self, parts: &[Expr], decisive: bool) -> Evaluated {
        let mut failure = None;
        for part in parts {
            match self.eval(part) {
                Ok(Value::Bool(value)) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => _ = failure.get_or_insert_with(Error::no_such_overload),
                Err(error) if error.is_absorbed() => _ = failure.get_or_insert(error),
                Err(error) => return Err(error),
            }
        }
        failure.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    fn conditional(&mut self, parts: &[Expr; 3]) -> Evaluated {
        match self.eval(&parts[0])? {
            Value::Bool(true) => self.eval(&parts[1]),
            Value::Bool(false) => self.eval(&parts[2]),
            _ => Err(Error::no_such_overload()),
        }
    }

    #[inline(never)]
    fn fold(&mut self, fold: &Fold) -> Evaluated {
        let range = self.eval(&fold.range)?;
        if matches!(fold.kind, FoldKind::OptMap | FoldKind::OptFlatMap) {
            return self.optional_fold(fold, range);
        }
        let mut gathered = Gathered::default();
        let locals = self.locals.len();
        let done = self.each(fold, &range, &mut gathered);
        self.locals.truncate(locals);
        done?;
        gathered.finish(fold.kind)
    }

    fn each(&mut self, fold: &Fold, range: &Value, gathered: &mut Gathered) -> Result<(), Error> {
        match range {
            Value::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    let key = Value::Int(i as i64);
                    if self.step(fold, key, item.clone(), gathered, false)? {
                        break;
                    }
                }
            }
            Value::Map(map) | Value::Struct(_, map) => {
                for (key, value) in map.iter() {
                    if self.step(fold, key.value(), value.clone(), gathered, true)? {
                        break;
                    }
                }
            }
            _ => return Err(Error::new(format!("got '{}', expected iterable type", range.type_name()))),
        }
        Ok(())
    }

    /// One element; true if the rest does not matter.
    fn step(&mut self, fold: &Fold, key: Value, value: Value, to: &mut Gathered, is_map: bool) -> Result<bool, Error> {
        self.budget.spend(2)?;
        let locals = self.locals.len();
        let element = match (&fold.second, is_map) {
            (Some(second), _) => {
                self.locals.push((fold.variable.clone(), key.clone()));
                self.locals.push((second.clone(), value.clone()));
                value
            }
            (None, is_map) => {
                let element = if is_map { key.clone() } else { value };
                self.locals.push((fold.variable.clone(), element.clone()));
                element
            }
        };
        let passes = match &fold.filter {
            None => true,
            Some(filter) => match self.eval(filter)? {
                Value::Bool(passes) => passes,
                _ => return Err(Error::no_such_overload()),
            },
        };
        let mut is_over = false;
        if passes {
            let found = self.eval(&fold.body);
            is_over = to.take(fold.kind, key, element, found)?;
        }
        self.locals.truncate(locals);
        Ok(is_over)
    }

    fn optional_fold(&mut self, fold: &Fold, range: Value) -> Evaluated {
        let Value::Optional(inner) = range else { return Err(Error::no_such_overload()) };
        let Some(inner) = inner else { return Ok(Value::NONE) };
        self.locals.push((fold.variable.clone(), (*inner).clone()));
        let found = self.eval(&fold.body);
        self.locals.pop();
        match (fold.kind, found?) {
            (FoldKind::OptMap, found) => Ok(Value::some(found)),
            (_, found @ Value::Optional(_)) => Ok(found),
            _ => Err(Error::no_such_overload()),
        }
    }
}

/// What a macro has gathered so far.
#[derive(Default)]
struct Gathered {
    items: Vec<Value>,
    keys: Vec<Value>,
    map: Map,
    count: usize,
    decided: bool,
    failure: Option<Error>,
}

impl Gathered {
    fn take(&mut self, kind: FoldKind, key: Value, element: Value, found: Evaluated) -> Result<bool, Error> {
        match kind {
            FoldKind::All | FoldKind::Exists => match found {
                Ok(Value::Bool(found)) => self.decided = found == (kind == FoldKind::Exists),
                Ok(_) => _ = self.failure.get_or_insert_with(Error::no_such_overload),
                Err(error) if error.is_absorbed() => _ = self.failure.get_or_insert(error),
                Err(error) => return Err(error),
            },
            FoldKind::ExistsOne | FoldKind::Filter => match found? {
                Value::Bool(true) if kind == FoldKind::Filter => self.items.push(element),
                Value::Bool(found) => self.count += usize::from(found),
                _ => return Err(Error::no_such_overload()),
            },
            FoldKind::Map => self.items.push(found?),
            FoldKind::SortBy => {
                self.keys.push(found?);
                self.items.push(element);
            }
            FoldKind::TransformMap => {
                self.map.insert(map_key(&key)?, found?);
            }
            FoldKind::TransformMapEntry => match found? {
                Value::Map(entries) => {
                    for (key, value) in entries.iter() {
                        if self.map.insert(key.clone(), value.clone()).is_some() {
                            let shown = key.value().text()?;
                            return Err(Error::new(format!("insert failed: key {shown} already exists")));
                        }
                    }
                }
                _ => return Err(Error::no_such_overload()),
            },
            FoldKind::OptMap | FoldKind::OptFlatMap => return Err(Error::no_such_overload()),
        }
        Ok(self.decided)
    }

    fn finish(self, kind: FoldKind) -> Evaluated {
        match kind {
            FoldKind::All | FoldKind::Exists => match (self.decided, self.failure) {
                (true, _) => Ok(Value::Bool(kind == FoldKind::Exists)),
                (false, Some(failure)) => Err(failure),
                (false, None) => Ok(Value::Bool(kind == FoldKind::All)),
            },
            FoldKind::ExistsOne => Ok(Value::Bool(self.count == 1)),
            FoldKind::TransformMap | FoldKind::TransformMapEntry => Ok(Value::map(self.map)),
            FoldKind::SortBy => operators::sorted_by(self.items, self.keys),
            _ => Ok(Value::list(self.items)),
        }
    }
}

/// The value of an element with a `?`.
fn unwrapped(value: Value) -> Result<Option<Value>, Error> {
    match value {
        Value::Optional(inner) => Ok(inner.map(|inner| (*inner).clone())),
        _ => Err(Error::new("cannot initialize optional entry from non-optional value")),
    }
}

fn map_key(value: &Value) -> Result<Key, Error> {
    match value {
        Value::Double(_) => Err(Error::new("unsupported key type: double")),
        _ => value.key().ok_or_else(|| Error::new(format!("unsupported key type: {}", value.type_name()))),
    }
}
