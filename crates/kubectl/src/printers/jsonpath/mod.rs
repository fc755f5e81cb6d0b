//! kubectl's JSONPath: text with `{…}` expressions over an object (client-go's util/jsonpath, v1.36).
//!
//! `{.items[*].metadata.name}`, `{range .items[*]}{.metadata.name}{"\n"}{end}`, filters `[?(@.a=="b")]`, slices with
//! negative ends, unions `['a','b']`, recursive descent `..`. Also the engine of `--sort-by` and custom columns.

mod error;
mod parse;

pub(crate) use error::JsonPathError;
pub(crate) use parse::relaxed;

use std::borrow::Cow;

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Text(String),
    Field(String),
    Slice { start: Option<i64>, end: Option<i64>, step: Option<i64>, single: bool },
    Filter { left: Vec<Node>, operator: String, right: Vec<Node> },
    Number(serde_json::Number),
    Bool(bool),
    Wildcard,
    Recursive,
    Union(Vec<Vec<Node>>),
    Root,
    Current,
    List(Vec<Node>),
    Range,
    End,
}

/// A parsed template.
#[derive(Debug)]
pub(crate) struct JsonPath {
    nodes: Vec<Node>,
    allow_missing: bool,
}

type Found<'a> = Vec<Cow<'a, Value>>;

type Result<T, E = JsonPathError> = std::result::Result<T, E>;

impl JsonPath {
    pub(crate) fn parse(template: &str) -> Result<JsonPath> {
        Ok(JsonPath { nodes: parse::template(template)?, allow_missing: false })
    }

    /// `metadata.name`, `.metadata.name`, `{.metadata.name}`: what `--sort-by` and custom columns accept.
    pub(crate) fn parse_relaxed(spec: &str) -> Result<JsonPath> {
        JsonPath::parse(&relaxed(spec)?)
    }

    pub(crate) fn allow_missing(mut self, allow: bool) -> JsonPath {
        self.allow_missing = allow;
        self
    }

    /// Renders the whole template.
    pub(crate) fn render(&self, data: &Value) -> Result<String> {
        let mut out = String::new();
        self.render_nodes(&self.nodes, data, data, &mut out)?;
        Ok(out)
    }

    /// The values of the first expression; for sorting and columns.
    pub(crate) fn find<'a>(&self, data: &'a Value) -> Result<Found<'a>> {
        let mut results = Vec::new();
        for node in &self.nodes {
            if let Node::List(list) = node {
                results.extend(self.eval(list, data, vec![Cow::Borrowed(data)])?);
            }
        }
        Ok(results)
    }

    fn render_nodes(&self, nodes: &[Node], root: &Value, current: &Value, out: &mut String) -> Result<()> {
        let mut i = 0;
        while i < nodes.len() {
            match &nodes[i] {
                Node::Text(t) => out.push_str(t),
                Node::Range => {
                    let Some(Node::List(list)) = nodes.get(i + 1) else {
                        return Err(JsonPathError::EmptyRange);
                    };
                    let body_start = i + 2;
                    let body_end = matching_end(nodes, body_start).ok_or(JsonPathError::UnclosedRange)?;
                    for item in self.eval(list, root, vec![Cow::Borrowed(current)])? {
                        self.render_nodes(&nodes[body_start..body_end], root, &item, out)?;
                    }
                    i = body_end;
                }
                Node::End => return Err(JsonPathError::MisplacedEnd),
                Node::List(list) => {
                    let values = self.eval(list, root, vec![Cow::Borrowed(current)])?;
                    for (n, value) in values.iter().enumerate() {
                        if n > 0 {
                            out.push(' ');
                        }
                        out.push_str(&text_of(value));
                    }
                }
                other => return Err(JsonPathError::MisplacedNode(format!("{other:?}"))),
            }
            i += 1;
        }
        Ok(())
    }

    fn eval<'a>(&self, nodes: &[Node], root: &'a Value, start: Found<'a>) -> Result<Found<'a>> {
        let mut current = start;
        for node in nodes {
            current = self.step(node, root, current)?;
        }
        Ok(current)
    }

    fn step<'a>(&self, node: &Node, root: &'a Value, input: Found<'a>) -> Result<Found<'a>> {
        Ok(match node {
            Node::Text(t) => vec![Cow::Owned(Value::String(t.clone()))],
            Node::Number(n) => vec![Cow::Owned(Value::Number(n.clone()))],
            Node::Bool(b) => vec![Cow::Owned(Value::Bool(*b))],
            Node::Root => vec![Cow::Borrowed(root)],
            Node::Current => input,
            Node::Field(name) => self.field(name, input)?,
            Node::Wildcard => input.into_iter().flat_map(children).collect(),
            Node::Recursive => {
                let mut out = Vec::new();
                for value in input {
                    descend(value, &mut out);
                }
                out
            }
            Node::Slice { start, end, step, single } => {
                let mut out = Vec::new();
                for value in input {
                    self.slice(value, *start, *end, *step, *single, &mut out)?;
                }
                out
            }
            Node::Filter { left, operator, right } => {
                let mut out = Vec::new();
                for value in input {
                    if !value.is_array() && !value.is_object() {
                        continue;
                    }
                    for item in children(value) {
                        if self.matches(&item, root, left, operator, right)? {
                            out.push(item);
                        }
                    }
                }
                out
            }
            Node::Union(lists) => {
                let mut out = Vec::new();
                for list in lists {
                    out.extend(self.eval(list, root, input.clone())?);
                }
                out
            }
            Node::List(list) => self.eval(list, root, input)?,
            Node::Range | Node::End => return Err(JsonPathError::MisplacedRange),
        })
    }

    fn field<'a>(&self, name: &str, input: Found<'a>) -> Result<Found<'a>> {
        // Nothing in, nothing out: an earlier part already came up empty.
        if input.is_empty() {
            return Ok(input);
        }
        let mut out = Vec::new();
        for value in input {
            match value {
                Cow::Borrowed(v) => {
                    if let Some(found) = v.get(name) {
                        out.push(Cow::Borrowed(found));
                    }
                }
                Cow::Owned(v) => {
                    if let Some(found) = v.get(name) {
                        out.push(Cow::Owned(found.clone()));
                    }
                }
            }
        }
        if out.is_empty() && !self.allow_missing {
            return Err(JsonPathError::NotFound(name.to_owned()));
        }
        Ok(out)
    }

    fn slice<'a>(
        &self,
        value: Cow<'a, Value>,
        start: Option<i64>,
        end: Option<i64>,
        step: Option<i64>,
        single: bool,
        out: &mut Found<'a>,
    ) -> Result<()> {
        let Some(array) = value.as_array() else {
            if value.is_null() {
                return Ok(());
            }
            return Err(JsonPathError::NotArray(go_value(&value)));
        };
        let len = array.len() as i64;
        let mut from = start.unwrap_or(0);
        if from < 0 {
            from += len;
        }
        let mut to = if single { from + 1 } else { end.unwrap_or(len) };
        if to < 0 {
            to += len;
        }
        if single && (from < 0 || from >= len) {
            return Err(JsonPathError::OutOfBounds { index: from, length: len });
        }
        from = from.clamp(0, len);
        to = to.clamp(0, len);
        let step = step.unwrap_or(1);
        if step <= 0 {
            return Err(JsonPathError::BadStep);
        }
        let mut i = from;
        while i < to {
            match &value {
                Cow::Borrowed(v) => {
                    if let Some(item) = v.get(i as usize) {
                        out.push(Cow::Borrowed(item));
                    }
                }
                Cow::Owned(v) => out.push(Cow::Owned(v[i as usize].clone())),
            }
            i += step;
        }
        Ok(())
    }

    fn matches(&self, item: &Value, root: &Value, left: &[Node], operator: &str, right: &[Node]) -> Result<bool> {
        // Inside a filter a missing field only means "does not match".
        let quiet = JsonPath { nodes: Vec::new(), allow_missing: true };
        let lefts = quiet.eval(left, root, vec![Cow::Borrowed(item)])?;
        if operator == "exists" {
            return Ok(!lefts.is_empty());
        }
        if lefts.is_empty() {
            return Ok(false);
        }
        if lefts.len() > 1 {
            return Err(JsonPathError::ManyElements);
        }
        let rights = quiet.eval(right, root, vec![Cow::Borrowed(item)])?;
        if rights.is_empty() {
            return Ok(false);
        }
        if rights.len() > 1 {
            return Err(JsonPathError::ManyElements);
        }
        let ordering = compare(&lefts[0], &rights[0]);
        Ok(match operator {
            "==" => lefts[0] == rights[0] || ordering == Some(std::cmp::Ordering::Equal),
            "!=" => !(lefts[0] == rights[0] || ordering == Some(std::cmp::Ordering::Equal)),
            "<" => ordering.is_some_and(std::cmp::Ordering::is_lt),
            ">" => ordering.is_some_and(std::cmp::Ordering::is_gt),
            "<=" => ordering.is_some_and(std::cmp::Ordering::is_le),
            ">=" => ordering.is_some_and(std::cmp::Ordering::is_ge),
            other => return Err(JsonPathError::UnknownOperator(other.to_owned())),
        })
    }
}

fn matching_end(nodes: &[Node], from: usize) -> Option<usize> {
    let mut depth = 0;
    for (i, node) in nodes.iter().enumerate().skip(from) {
        match node {
            Node::Range => depth += 1,
            Node::End if depth == 0 => return Some(i),
            Node::End => depth -= 1,
            _ => {}
        }
    }
    None
}

fn children(value: Cow<'_, Value>) -> Found<'_> {
    match value {
        Cow::Borrowed(Value::Array(a)) => a.iter().map(Cow::Borrowed).collect(),
        Cow::Borrowed(Value::Object(m)) => m.values().map(Cow::Borrowed).collect(),
        Cow::Owned(Value::Array(a)) => a.into_iter().map(Cow::Owned).collect(),
        Cow::Owned(Value::Object(m)) => m.into_iter().map(|(_, v)| Cow::Owned(v)).collect(),
        _ => Vec::new(),
    }
}

fn descend<'a>(value: Cow<'a, Value>, out: &mut Found<'a>) {
    out.push(value.clone());
    for child in children(value) {
        if child.is_array() || child.is_object() {
            descend(child, out);
        }
    }
}

fn compare(a: &Value, b: &Value) -> Option<std::cmp::Ordering> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64()?.partial_cmp(&b.as_f64()?),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

/// How one result prints: strings bare, everything with structure as compact JSON.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Null => String::new(),
        Value::Array(_) | Value::Object(_) => super::json::compact(value),
        other => other.to_string(),
    }
}

/// `%#v` of a decoded object, for the debugging help that follows an error.
pub(crate) fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(s) => serde_json::to_string(s).unwrap_or_default(),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let pairs: Vec<String> = map
                .iter()
                .map(|(k, v)| format!("{}:{}", serde_json::to_string(k).unwrap_or_default(), go_syntax(v)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", pairs.join(", "))
        }
        other => other.to_string(),
    }
}

fn go_value(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => super::go_template::print_value(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn data() -> Value {
        json!({"kind": "List", "items": [
            {"kind": "None", "metadata": {"name": "127.0.0.1", "labels": {"kubernetes.io/hostname": "a"}},
             "status": {"capacity": {"cpu": "4"}, "addresses": [{"type": "LegacyHostIP", "address": "127.0.0.1"}]}},
            {"kind": "None", "metadata": {"name": "127.0.0.2"},
             "status": {"capacity": {"cpu": "8"}, "n": 3,
                        "addresses": [{"type": "LegacyHostIP", "address": "127.0.0.2"}, {"type": "another", "address": "127.0.0.3"}]}}],
            "users": [{"name": "myself", "user": {}}, {"name": "e2e", "user": {"username": "admin", "password": "secret"}}]})
    }

    #[test]
    fn templates_render() {
        for (template, expected) in [
            ("kind is {.kind}", "kind is List"),
            ("{@.kind}", "List"),
            ("{.kind}{\"\\n\"}", "List\n"),
            ("{['kind']}", "List"),
            ("{.users[0].name}", "myself"),
            ("{.items[*].metadata.name}", "127.0.0.1 127.0.0.2"),
            ("{.items[*]['metadata.name', 'status.capacity']}", ""),
            ("{.users[?(@.name==\"e2e\")].user.password}", "secret"),
            ("{.items[?(@.status.n>2)].metadata.name}", "127.0.0.2"),
            ("{.items[?(@.metadata.labels)].metadata.name}", "127.0.0.1"),
            ("{range .items[*]}[{.metadata.name}, {.status.capacity.cpu}] {end}", "[127.0.0.1, 4] [127.0.0.2, 8] "),
            ("{.items[-1].metadata.name}", "127.0.0.2"),
            ("{.items[0:1].metadata.name}", "127.0.0.1"),
            ("{.items[:].kind}", "None None"),
            ("{..name}", "127.0.0.1 127.0.0.2 myself e2e"),
            ("{.users[1].user}", "{\"password\":\"secret\",\"username\":\"admin\"}"),
            ("{.items[0].metadata.labels.kubernetes\\.io/hostname}", "a"),
            ("{.nothing}", ""),
            ("{.users[*].name}{'\\t'}x", "myself e2e\tx"),
            ("{range .items[*]}{range .status.addresses[*]}{.address},{end}{end}", "127.0.0.1,127.0.0.2,127.0.0.3,"),
        ] {
            let path = JsonPath::parse(template).unwrap().allow_missing(true);
            assert_eq!(path.render(&data()).unwrap(), expected, "{template}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (template, expected) in [
            ("{.nothing}", "nothing is not found"),
            ("{.users[7].name}", "array index out of bounds: index 7, length 2"),
        ] {
            assert_eq!(JsonPath::parse(template).unwrap().render(&data()).unwrap_err().to_string(), expected);
        }
        for (template, expected) in
            [("{.x", "unclosed action"), ("{foo}", "unrecognized identifier foo"), ("{.a[1", "unterminated array")]
        {
            assert_eq!(JsonPath::parse(template).unwrap_err().to_string(), expected, "{template}");
        }
    }

    #[test]
    fn relaxed_spellings_are_one() {
        for spec in ["a.b", ".a.b", "{a.b}", "{.a.b}"] {
            assert_eq!(relaxed(spec).unwrap(), "{.a.b}");
        }
        assert!(relaxed("{a.b").is_err());
    }
}
