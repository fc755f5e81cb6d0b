//! Walks a template's tree with an object as dot.

use serde_json::Value;

use super::error::ExecuteError;
use super::functions::{self, truth};
use super::{Failed, Node, Operand, Pipeline, Template};

type Result<T, E = ExecuteError> = std::result::Result<T, E>;

/// A template value; `None` is Go's missing map entry, printed as `<no value>`.
pub(super) type Val = Option<Value>;

enum Flow {
    Next,
    Break,
    Continue,
}

struct State<'t> {
    template: &'t Template,
    variables: Vec<(String, Val)>,
    allow_missing: bool,
    out: String,
    depth: usize,
}

/// A template that calls itself this deep is an endless one.
const MAX_DEPTH: usize = 1000;

pub(super) fn execute(template: &Template, data: &Value, allow_missing: bool) -> Result<String, Failed> {
    let mut state = State {
        template,
        variables: vec![("$".to_owned(), Some(data.clone()))],
        allow_missing,
        out: String::new(),
        depth: 0,
    };
    match state.list(&template.main, &Some(data.clone())) {
        Ok(_) => Ok(state.out),
        Err(why) => Err(Failed { output: state.out, why }),
    }
}

impl State<'_> {
    fn list(&mut self, nodes: &[Node], dot: &Val) -> Result<Flow> {
        for node in nodes {
            match self.node(node, dot)? {
                Flow::Next => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::Next)
    }

    fn node(&mut self, node: &Node, dot: &Val) -> Result<Flow> {
        match node {
            Node::Text(t) => self.out.push_str(t),
            Node::Action(p) => {
                let value = self.pipeline(p, dot)?;
                if p.variables.is_empty() {
                    match value {
                        Some(v) => self.out.push_str(&functions::print_value(&v)),
                        None => self.out.push_str("<no value>"),
                    }
                }
            }
            Node::If { condition, then, otherwise } => {
                return self.scoped(|s| {
                    let value = s.pipeline(condition, dot)?;
                    s.list(if truth(&value) { then } else { otherwise }, dot)
                });
            }
            Node::With { value, then, otherwise } => {
                return self.scoped(|s| {
                    let value = s.pipeline(value, dot)?;
                    if truth(&value) { s.list(then, &value) } else { s.list(otherwise, dot) }
                });
            }
            Node::Range { over, body, otherwise } => return self.scoped(|s| s.range(over, body, otherwise, dot)),
            Node::Template { name, data } => {
                let data = match data {
                    Some(p) => self.pipeline(p, dot)?,
                    None => None,
                };
                let Some(body) = self.template.defined.get(name) else {
                    return Err(ExecuteError::UndefinedTemplate(name.clone()));
                };
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(ExecuteError::TooDeep(MAX_DEPTH));
                }
                let outer = std::mem::replace(&mut self.variables, vec![("$".to_owned(), data.clone())]);
                let result = self.list(body, &data);
                self.variables = outer;
                self.depth -= 1;
                result?;
            }
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn scoped(&mut self, f: impl FnOnce(&mut Self) -> Result<Flow>) -> Result<Flow> {
        let mark = self.variables.len();
        let result = f(self);
        self.variables.truncate(mark);
        result
    }

    fn range(&mut self, over: &Pipeline, body: &[Node], otherwise: &[Node], dot: &Val) -> Result<Flow> {
        let value = self.commands(over, dot)?;
        let items: Vec<(Value, Value)> = match &value {
            Some(Value::Array(a)) => a.iter().enumerate().map(|(i, v)| (Value::from(i), v.clone())).collect(),
            Some(Value::Object(m)) => m.iter().map(|(k, v)| (Value::from(k.as_str()), v.clone())).collect(),
            Some(Value::Number(n)) if n.is_i64() || n.is_u64() => {
                (0..n.as_i64().unwrap_or(0)).map(|i| (Value::from(i), Value::from(i))).collect()
            }
            None | Some(Value::Null) => Vec::new(),
            Some(other) => return Err(ExecuteError::NotIterable(functions::print_value(other))),
        };
        if items.is_empty() {
            return self.list(otherwise, dot);
        }
        for (key, item) in items {
            let mark = self.variables.len();
            match over.variables.as_slice() {
                [v] => self.variables.push((v.clone(), Some(item.clone()))),
                [k, v] => {
                    self.variables.push((k.clone(), Some(key)));
                    self.variables.push((v.clone(), Some(item.clone())));
                }
                _ => {}
            }
            let flow = self.list(body, &Some(item))?;
            self.variables.truncate(mark);
            if matches!(flow, Flow::Break) {
                break;
            }
        }
        Ok(Flow::Next)
    }

    fn pipeline(&mut self, p: &Pipeline, dot: &Val) -> Result<Val> {
        let value = self.commands(p, dot)?;
        for name in &p.variables {
            if p.assigns {
                if let Some(slot) = self.variables.iter_mut().rev().find(|(n, _)| n == name) {
                    slot.1 = value.clone();
                }
            } else {
                self.variables.push((name.clone(), value.clone()));
            }
        }
        Ok(value)
    }

    fn commands(&mut self, p: &Pipeline, dot: &Val) -> Result<Val> {
        let mut value = None;
        for (i, command) in p.commands.iter().enumerate() {
            let piped = if i > 0 { Some(value.take()) } else { None };
            value = self.command(command, dot, piped)?;
        }
        Ok(value)
    }

    fn command(&mut self, command: &[Operand], dot: &Val, piped: Option<Val>) -> Result<Val> {
        if let Some(Operand::Function(name)) = command.first() {
            // `and` and `or` stop at the first operand that decides.
            if (name == "and" || name == "or") && piped.is_none() {
                let mut last = None;
                for operand in &command[1..] {
                    last = self.operand(operand, dot)?;
                    if truth(&last) == (name == "or") {
                        break;
                    }
                }
                return Ok(last);
            }
            let mut args = Vec::new();
            for operand in &command[1..] {
                args.push(self.operand(operand, dot)?);
            }
            args.extend(piped);
            return functions::call(name, args)
                .map_err(|source| ExecuteError::Calling { function: name.clone(), source });
        }
        match command {
            [one] if piped.is_none() => self.operand(one, dot),
            [one, ..] => Err(ExecuteError::NotFunction(shown(one))),
            [] => Err(ExecuteError::MissingValue),
        }
    }

    fn operand(&mut self, operand: &Operand, dot: &Val) -> Result<Val> {
        match operand {
            Operand::Dot => Ok(dot.clone()),
            Operand::Nil => Ok(Some(Value::Null)),
            Operand::Constant(v) => Ok(Some(v.clone())),
            Operand::Field(names) => self.fields(dot.clone(), names),
            Operand::Variable(name, names) => {
                let value = self.variables.iter().rev().find(|(n, _)| n == name).and_then(|(_, v)| v.clone());
                self.fields(value, names)
            }
            Operand::Function(name) => functions::call(name, Vec::new()).map_err(ExecuteError::Operand),
            Operand::Paren(p, names) => {
                let value = self.pipeline(p, dot)?;
                self.fields(value, names)
            }
        }
    }

    fn fields(&self, mut value: Val, names: &[String]) -> Result<Val> {
        for name in names {
            value = match value {
                Some(Value::Object(mut m)) => match m.remove(name) {
                    Some(v) => Some(v),
                    None if self.allow_missing => None,
                    None => return Err(ExecuteError::NoEntry(name.clone())),
                },
                None | Some(Value::Null) if self.allow_missing => None,
                None | Some(Value::Null) => return Err(ExecuteError::NilData(name.clone())),
                Some(other) => {
                    return Err(ExecuteError::NoField { field: name.clone(), of: functions::type_name(&other) });
                }
            };
        }
        Ok(value)
    }
}

fn shown(operand: &Operand) -> String {
    match operand {
        Operand::Dot => ".".to_owned(),
        Operand::Field(names) => format!(".{}", names.join(".")),
        Operand::Variable(name, _) => name.clone(),
        Operand::Constant(v) => v.to_string(),
        Operand::Function(name) => name.clone(),
        Operand::Nil => "nil".to_owned(),
        Operand::Paren(..) => "(...)".to_owned(),
    }
}
