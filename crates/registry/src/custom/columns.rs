//! Columns of the table representation: `additionalPrinterColumns`, by JSON path.

use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceColumnDefinition;
use serde_json::{Value, json};

use super::object::CustomObject;
use crate::Object;
use crate::column::Column;

pub(super) struct Columns(Vec<Printed>);

struct Printed {
    definition: Value,
    kind: String,
    path: Path,
}

impl Columns {
    pub(super) fn new(columns: &[CustomResourceColumnDefinition]) -> Self {
        if columns.is_empty() {
            let definition = json!({"name": "Age", "type": "date", "format": "", "priority": 0,
                "description": "CreationTimestamp is a timestamp representing the server time when this object was created."});
            let path = Path::new(".metadata.creationTimestamp");
            return Self(vec![Printed { definition, kind: "date".to_owned(), path }]);
        }
        let printed = |column: &CustomResourceColumnDefinition| {
            let described = column.description.clone().filter(|text| !text.is_empty());
            let described = described.unwrap_or_else(|| {
                format!("Custom resource definition column (in JSONPath format): {}", column.json_path)
            });
            Printed {
                definition: json!({"name": column.name, "type": column.type_,
                    "format": column.format.as_deref().unwrap_or_default(), "description": described,
                    "priority": column.priority.unwrap_or(0)}),
                kind: column.type_.clone(),
                path: Path::new(&column.json_path),
            }
        };
        Self(columns.iter().map(printed).collect())
    }

    pub(super) fn definitions(&self) -> Vec<Value> {
        let columns = self.0.iter().map(|column| column.definition.clone());
        std::iter::once(Column::NAME.definition()).chain(columns).collect()
    }

    pub(super) fn cells(&self, object: &CustomObject, now: Timestamp) -> Vec<Value> {
        let mut cells = vec![json!(object.meta.name())];
        let value = object.to_value().unwrap_or_default();
        cells.extend(
            self.0
                .iter()
                .map(|column| column.path.find(&value).map_or(Value::Null, |found| cell(&column.kind, found, now))),
        );
        cells
    }
}

fn cell(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        ("integer", Value::Number(number)) => {
            number.as_i64().or_else(|| number.as_f64().map(|number| number as i64)).into()
        }
        ("number", Value::Number(number)) => number.as_f64().into(),
        ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => match text.parse::<Timestamp>() {
            Ok(time) => json!(api::duration::human(now.as_second() - time.as_second())),
            Err(_) => json!("<invalid>"),
        },
        ("string", Value::String(_)) => value.clone(),
        ("string", Value::Null) => Value::Null,
        ("string", other) => json!(other.to_string()),
        _ => Value::Null,
    }
}

/// A simple JSON path: fields, indexes, `[*]` and `[?(@.field=="value")]`. Only its first result counts.
struct Path(Vec<Step>);

enum Step {
    Field(String),
    Index(i64),
    Each,
    /// Elements of which a field has a value, or has another one.
    Where {
        field: Path,
        value: String,
        is: bool,
    },
}

impl Path {
    fn new(text: &str) -> Self {
        let mut steps = Vec::new();
        let mut letters = text.trim_start_matches('$').chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '.' => {}
                '[' => {
                    let mut inside = String::new();
                    let mut quote = None;
                    for letter in letters.by_ref() {
                        match (quote, letter) {
                            (None, ']') => break,
                            (None, '"' | '\'') => quote = Some(letter),
                            (Some(open), _) if open == letter => quote = None,
                            _ => {}
                        }
                        inside.push(letter);
                    }
                    steps.push(Step::bracket(inside.trim()));
                }
                first => {
                    let mut name = String::new();
                    let mut next = Some(first);
                    while let Some(letter) = next {
                        match letter {
                            '\\' => name.extend(letters.next()),
                            other => name.push(other),
                        }
                        next = letters.next_if(|letter| !matches!(letter, '.' | '['));
                    }
                    steps.push(if name == "*" { Step::Each } else { Step::Field(name) });
                }
            }
        }
        Self(steps)
    }

    fn find<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        let mut found = vec![value];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.select(value)).collect();
        }
        found.first().copied()
    }
}

impl Step {
    fn bracket(text: &str) -> Self {
        let unquoted = |text: &str| text.trim().trim_matches(['"', '\'']).to_owned();
        if text == "*" {
            return Self::Each;
        }
        if let Ok(index) = text.parse() {
            return Self::Index(index);
        }
        let condition = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')'));
        for (operator, is) in [("==", true), ("!=", false)] {
            if let Some((field, value)) = condition.and_then(|text| text.split_once(operator)) {
                let field = Path::new(field.trim().trim_start_matches('@'));
                return Self::Where { field, value: unquoted(value), is };
            }
        }
        Self::Field(unquoted(text))
    }

    fn select<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let items = || value.as_array().into_iter().flatten();
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::Index(index) => {
                let list = value.as_array().map_or(&[][..], Vec::as_slice);
                let at = if *index < 0 { list.len() as i64 + index } else { *index };
                usize::try_from(at).ok().and_then(|at| list.get(at)).into_iter().collect()
            }
            Self::Each => match value {
                Value::Object(object) => object.values().collect(),
                _ => items().collect(),
            },
            Self::Where { field, value, is } => {
                let text = |found: &Value| found.as_str().map_or_else(|| found.to_string(), str::to_owned);
                let meant = |item: &&Value| field.find(item).is_some_and(|found| (text(found) == *value) == *is);
                items().filter(meant).collect()
            }
        }
    }
}

/// The keys of a plain path (`.spec.replicas`).
pub(super) fn keys(path: &str) -> Vec<String> {
    let steps = Path::new(path).0.into_iter();
    steps.filter_map(|step| if let Step::Field(name) = step { Some(name) } else { None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_find_the_first_result() {
        let value = json!({"spec": {"a": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "b.c": "dot"}});
        for (path, expected) in [
            (".spec.a[0].v", json!(1)),
            (".spec.a[-1].v", json!(2)),
            (".spec.a[?(@.n==\"y\")].v", json!(2)),
            (".spec.a[?(@.n!='x')].v", json!(2)),
            (".spec.a[*].n", json!("x")),
            (r".spec.b\.c", json!("dot")),
            (".spec['b.c']", json!("dot")),
            (".spec.none.deeper", Value::Null),
        ] {
            assert_eq!(Path::new(path).find(&value).cloned().unwrap_or_default(), expected, "{path}");
        }
        assert_eq!(keys(".spec.replicas"), ["spec", "replicas"]);
    }

    #[test]
    fn cells_have_the_type_of_their_column() {
        let now = "2024-01-01T01:00:00Z".parse().unwrap();
        for (kind, value, expected) in [
            ("integer", json!(3.7), json!(3)),
            ("integer", json!("3"), Value::Null),
            ("number", json!(3), json!(3.0)),
            ("boolean", json!(true), json!(true)),
            ("string", json!({"a": 1}), json!("{\"a\":1}")),
            ("string", json!(5), json!("5")),
            ("date", json!("2024-01-01T00:00:00Z"), json!("60m")),
            ("date", json!("soon"), json!("<invalid>")),
        ] {
            assert_eq!(cell(kind, &value, now), expected, "{kind} {value}");
        }
    }
}
