//! Whether an object is as its schema says, in the words of upstream's validator.
//!
//! On an update, what did not change is not looked at again: an object that was stored under an older schema can still
//! be changed elsewhere.

use std::collections::{HashMap, HashSet};

use api::field::{FieldError, FieldErrors};
use api::schema::ListType;
use serde_json::{Map, Value};

use super::schema::{Additional, Kind, Rules, Schema};

/// Everything that is wrong with an object. `old` is what it was before.
pub(super) fn validate(schema: &Schema, object: &Map<String, Value>, old: Option<&Map<String, Value>>) -> FieldErrors {
    let mut validator = Validator::default();
    validator.object(schema, object, old);
    if let Some(rules) = &schema.rules {
        validator.logic(rules, &Value::Object(object.clone()));
    }
    validator.errors
}

#[derive(Default)]
struct Validator {
    errors: FieldErrors,
    path: String,
    /// Only whether anything is wrong matters.
    is_trial: bool,
}

/// The keys of an element by which it is told apart from the others of its list, where it is.
pub(super) fn element_key(list: Option<ListType>, item: &Value) -> Option<String> {
    match list {
        Some(ListType::Map(keys)) => {
            Some(Value::from_iter(keys.iter().map(|key| item.get(key).cloned().unwrap_or_default())).to_string())
        }
        _ => None,
    }
}

/// Elements that can be told apart, by their keys; of several with the same the first.
pub(super) fn by_key(list: Option<ListType>, items: Option<&Vec<Value>>) -> HashMap<String, &Value> {
    let mut known = HashMap::new();
    for item in items.into_iter().flatten() {
        if let Some(key) = element_key(list, item) {
            known.entry(key).or_insert(item);
        }
    }
    known
}

impl Validator {
    fn value(&mut self, schema: &Schema, value: &Value, old: Option<&Value>) {
        let is_over = self.errors.is_full() || self.is_trial && !self.errors.is_empty();
        if is_over || old == Some(value) {
            return;
        }
        if value.is_null() && schema.nullable {
            return;
        }
        if !self.has_type(schema, value) {
            return;
        }
        match value {
            Value::Object(object) => self.object(schema, object, old.and_then(Value::as_object)),
            Value::Array(items) => self.array(schema, items, old.and_then(Value::as_array)),
            _ => {}
        }
        if let Some(rules) = &schema.rules {
            self.rules(rules, value);
            self.logic(rules, value);
        }
    }

    fn below(&mut self, step: &str, visit: impl FnOnce(&mut Self)) {
        let end = self.path.len();
        if end > 0 && !step.starts_with('[') {
            self.path.push('.');
        }
        self.path.push_str(step);
        visit(self);
        self.path.truncate(end);
    }

    fn invalid(&mut self, value: impl serde::Serialize, rule: impl std::fmt::Display) {
        self.errors.invalid(&self.path, value, format!("{} in body {rule}", self.path));
    }

    fn has_type(&mut self, schema: &Schema, value: &Value) -> bool {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() && number.as_f64().is_some_and(|n| n.fract() != 0.0) => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let (wanted, fits) = match schema.kind {
            None if schema.int_or_string => ("integer,string", matches!(found, "integer" | "string")),
            // Without a type everything fits.
            None => return true,
            Some(Kind::Array) => ("array", found == "array"),
            Some(Kind::Boolean) => ("boolean", found == "boolean"),
            Some(Kind::Integer) => ("integer", found == "integer"),
            Some(Kind::Number) => ("number", matches!(found, "number" | "integer")),
            Some(Kind::Object) => ("object", found == "object"),
            Some(Kind::String) => ("string", found == "string"),
        };
        if !fits {
            let message = format!("{} in body must be of type {wanted}: {found:?}", self.path);
            self.errors.push(FieldError::type_invalid(&self.path, found, message));
        }
        fits
    }

    fn object(&mut self, schema: &Schema, object: &Map<String, Value>, old: Option<&Map<String, Value>>) {
        for (name, value) in object {
            if self.errors.is_full() {
                return;
            }
            match schema.member(name) {
                Some(member) => {
                    let old = old.and_then(|old| old.get(name));
                    self.below(name, |this| this.value(member, value, old));
                }
                None if matches!(schema.additional, Additional::Nothing) => {
                    let message = format!("{}.{name} in body is a forbidden property", self.path);
                    self.errors.invalid(&self.path, "", message);
                }
                None => {}
            }
        }
        for name in schema.required.iter().filter(|name| !object.contains_key(&***name)) {
            self.below(name, |this| this.errors.required(&this.path, ""));
        }
    }

    fn array(&mut self, schema: &Schema, items: &[Value], old: Option<&Vec<Value>>) {
        if let Some(element) = &schema.items {
            // Elements that can be told apart are compared with what they were.
            let known = by_key(schema.list, old);
            for (index, item) in items.iter().enumerate() {
                let before = element_key(schema.list, item).and_then(|key| known.get(&key).copied());
                self.below(&format!("[{index}]"), |this| this.value(element, item, before));
            }
        }
        match schema.list {
            Some(ListType::Set) => {
                let mut seen = HashSet::with_capacity(items.len());
                for (index, item) in items.iter().enumerate().filter(|(_, item)| !seen.insert(item.to_string())) {
                    self.below(&format!("[{index}]"), |this| this.errors.duplicate(&this.path, item));
                }
            }
            Some(ListType::Map(keys)) => {
                let key_of = |item: &Value| -> Map<String, Value> {
                    let named = keys.iter().filter_map(|key| Some(((*key).to_owned(), item.get(key)?.clone())));
                    named.collect()
                };
                let mut seen = HashSet::with_capacity(items.len());
                for (index, key) in items.iter().map(key_of).enumerate() {
                    if !seen.insert(Value::Object(key.clone()).to_string()) {
                        self.below(&format!("[{index}]"), |this| this.errors.duplicate(&this.path, &key));
                    }
                }
            }
            _ => {}
        }
    }

    fn rules(&mut self, rules: &Rules, value: &Value) {
        match value {
            Value::String(text) => self.string(rules, text),
            Value::Number(number) => self.number(rules, number),
            Value::Array(items) => {
                let count = items.len() as i64;
                match rules.count {
                    (_, Some(max)) if count > max => {
                        self.errors.too_many(&self.path, items.len(), max.max(0) as usize);
                    }
                    (Some(min), _) if count < min => self.invalid(count, format!("should have at least {min} items")),
                    _ => {}
                }
            }
            Value::Object(object) => {
                let count = object.len() as i64;
                match rules.properties {
                    (_, Some(max)) if count > max => {
                        self.errors.too_many(&self.path, object.len(), max.max(0) as usize);
                    }
                    (Some(min), _) if count < min => {
                        self.invalid(count, format!("should have at least {min} properties"));
                    }
                    _ => {}
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
        if !rules.choices.is_empty() && !rules.choices.contains(value) {
            let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let choices: Vec<String> = rules.choices.iter().map(shown).collect();
            let choices: Vec<&str> = choices.iter().map(String::as_str).collect();
            self.errors.not_supported(&self.path, value, &choices);
        }
    }

    fn string(&mut self, rules: &Rules, text: &str) {
        let length = text.chars().count() as i64;
        match rules.length {
            (_, Some(max)) if length > max => self.errors.too_long(&self.path, max.max(0) as usize),
            (Some(min), _) if length < min => self.invalid(text, format!("should be at least {min} chars long")),
            _ => {}
        }
        if let Some(pattern) = rules.pattern.as_ref().filter(|pattern| !pattern.matches(text)) {
            self.invalid(text, format!("should match '{}'", pattern.text));
        }
        if let Some(format) = rules.format.filter(|format| !(format.fits)(text)) {
            let message = format!("{} in body must be of type {}: {text:?}", self.path, format.name);
            self.errors.push(FieldError::type_invalid(&self.path, text, message));
        }
    }

    fn number(&mut self, rules: &Rules, number: &serde_json::Number) {
        let value = number.as_f64().unwrap_or_default();
        match rules.maximum {
            Some((max, true)) if value >= max => self.invalid(number, format!("should be less than {max}")),
            Some((max, false)) if value > max => {
                self.invalid(number, format!("should be less than or equal to {max}"));
            }
            _ => {}
        }
        match rules.minimum {
            Some((min, true)) if value <= min => self.invalid(number, format!("should be greater than {min}")),
            Some((min, false)) if value < min => {
                self.invalid(number, format!("should be greater than or equal to {min}"));
            }
            _ => {}
        }
        if let Some(factor) = rules.multiple_of.filter(|factor| *factor > 0.0) {
            let times = value / factor;
            if (times - times.round()).abs() > f64::EPSILON * times.abs().max(1.0) {
                self.invalid(number, format!("should be a multiple of {factor}"));
            }
        }
    }

    /// Alternatives and conditions. What they say is about the whole value, so upstream names no field.
    fn logic(&mut self, rules: &Rules, value: &Value) {
        let refuse = |this: &mut Self, rule: String| {
            let message = format!("{} must {rule}", api::field::quote(&this.path));
            this.errors.invalid("<nil>", "", message);
        };
        if !rules.any_of.is_empty() && !rules.any_of.iter().any(|schema| fits(schema, value)) {
            refuse(self, "validate at least one schema (anyOf)".to_owned());
            let outcomes = self.outcomes(&rules.any_of, value);
            self.errors.extend(nearest(outcomes));
        }
        if !rules.one_of.is_empty() {
            match rules.one_of.iter().filter(|schema| fits(schema, value)).count() {
                0 => {
                    refuse(self, "validate one and only one schema (oneOf). Found none valid".to_owned());
                    let outcomes = self.outcomes(&rules.one_of, value);
                    self.errors.extend(nearest(outcomes));
                }
                1 => {}
                many => {
                    refuse(self, format!("validate one and only one schema (oneOf). Found {many} valid alternatives"));
                }
            }
        }
        let failed = rules.all_of.iter().filter(|schema| !fits(schema, value)).count();
        if failed > 0 {
            let none = if failed == rules.all_of.len() { ". None validated" } else { "" };
            let outcomes = self.outcomes(&rules.all_of, value);
            outcomes.into_iter().for_each(|errors| self.errors.extend(errors));
            refuse(self, format!("validate all the schemas (allOf){none}"));
        }
        if let Some(not) = &rules.not
            && fits(not, value)
        {
            refuse(self, "not validate the schema (not)".to_owned());
        }
    }

    /// What is wrong by each; nothing in a trial, for which it is enough that something is.
    fn outcomes(&mut self, schemas: &[Schema], value: &Value) -> Vec<FieldErrors> {
        if self.is_trial {
            return Vec::new();
        }
        schemas.iter().map(|schema| self.outcome(schema, value)).collect()
    }

    fn outcome(&mut self, schema: &Schema, value: &Value) -> FieldErrors {
        let mut alone = Validator { path: std::mem::take(&mut self.path), ..Validator::default() };
        alone.value(schema, value, None);
        self.path = alone.path;
        alone.errors
    }
}

/// Whether nothing is wrong. Most values fit one alternative and not the others, about which nothing need be said: where the value
/// is does not matter, which may take a megabyte to name.
fn fits(schema: &Schema, value: &Value) -> bool {
    let mut trial = Validator { is_trial: true, ..Validator::default() };
    trial.value(schema, value, None);
    trial.errors.is_empty()
}

/// What is wrong by the alternative with the fewest complaints.
fn nearest(outcomes: Vec<FieldErrors>) -> FieldErrors {
    outcomes.into_iter().min_by_key(FieldErrors::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(property: Value, value: Value) -> Vec<String> {
        let schema = json!({"type": "object", "properties": {"s": property}});
        let schema = Schema::root(&serde_json::from_value(schema).unwrap());
        let object = Map::from_iter([("s".to_owned(), value)]);
        validate(&schema, &object, None).iter().map(ToString::to_string).collect()
    }

    /// Searched element by element, these would keep a thread busy for hours.
    #[test]
    fn security_long_lists_are_looked_through_once() {
        let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        let names: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
        assert!(problems(set.clone(), json!(names)).is_empty());
        assert_eq!(problems(set, json!(["a", "b", "a"])), [r#"s[2]: Duplicate value: "a""#]);
        let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}});
        let items: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        assert!(problems(map.clone(), json!(items)).is_empty());
        let again = problems(map, json!([{"name": "a"}, {"name": "b"}, {"name": "a"}]));
        assert_eq!(again, [r#"s[2]: Duplicate value: {"name":"a"}"#]);
    }

    /// A hundred thousand items, each of which would take a megabyte to be named: all wrong, or right by one of two alternatives.
    #[test]
    fn security_items_below_a_long_key_are_not_all_named() {
        let key = "k".repeat(1 << 20);
        let items = json!({key.as_str(): vec![1; 100_000]});
        let map =
            |element: Value| json!({"type": "object", "additionalProperties": {"type": "array", "items": element}});
        let found = problems(map(json!({"type": "string"})), items.clone());
        assert!(found.len() == 1 && found[0].starts_with("s.kkk"));
        let alternatives = json!({"anyOf": [{"type": "string"}, {"type": "integer"}]});
        assert!(problems(map(alternatives), items.clone()).is_empty());
        let neither = json!({"oneOf": [{"type": "string"}, {"type": "boolean"}]});
        assert_eq!(problems(map(neither), items).len(), 1);
    }

    #[test]
    fn mistakes_are_named_as_upstream_does() {
        for (schema, value, expected) in [
            (
                json!({"type": "integer"}),
                json!("x"),
                r#"s: Invalid value: "string": s in body must be of type integer: "string""#,
            ),
            (
                json!({"type": "string"}),
                json!(null),
                r#"s: Invalid value: "null": s in body must be of type string: "null""#,
            ),
            (
                json!({"x-kubernetes-int-or-string": true}),
                json!(true),
                r#"s: Invalid value: "boolean": s in body must be of type integer,string: "boolean""#,
            ),
            (
                json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}),
                json!({}),
                "s.a: Required value",
            ),
            (
                json!({"type": "string", "enum": ["a", "b"]}),
                json!("c"),
                r#"s: Unsupported value: "c": supported values: "a", "b""#,
            ),
            (
                json!({"type": "string", "pattern": "^a$"}),
                json!("b"),
                r#"s: Invalid value: "b": s in body should match '^a$'"#,
            ),
            (
                json!({"type": "string", "minLength": 2}),
                json!("b"),
                r#"s: Invalid value: "b": s in body should be at least 2 chars long"#,
            ),
            (json!({"type": "string", "maxLength": 2}), json!("bcd"), "s: Too long: may not be more than 2 bytes"),
            (
                json!({"type": "integer", "minimum": 1}),
                json!(0),
                "s: Invalid value: 0: s in body should be greater than or equal to 1",
            ),
            (
                json!({"type": "number", "maximum": 1.5, "exclusiveMaximum": true}),
                json!(1.5),
                "s: Invalid value: 1.5: s in body should be less than 1.5",
            ),
            (
                json!({"type": "integer", "multipleOf": 3}),
                json!(4),
                "s: Invalid value: 4: s in body should be a multiple of 3",
            ),
            (
                json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
                json!([]),
                "s: Invalid value: 0: s in body should have at least 1 items",
            ),
            (
                json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
                json!(["a", "b"]),
                "s: Too many: 2: must have at most 1 item",
            ),
            (
                json!({"type": "array", "items": {"type": "string"}}),
                json!(["a", 2]),
                r#"s[1]: Invalid value: "integer": s[1] in body must be of type string: "integer""#,
            ),
            (
                json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
                json!(["a", "a"]),
                r#"s[1]: Duplicate value: "a""#,
            ),
            (
                json!({"type": "string", "format": "ipv4"}),
                json!("x"),
                r#"s: Invalid value: "x": s in body must be of type ipv4: "x""#,
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "integer"}}),
                json!({"k": "v"}),
                r#"s.k: Invalid value: "string": s.k in body must be of type integer: "string""#,
            ),
            (
                json!({"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 1}]}),
                json!(3),
                r#"<nil>: Invalid value: "": "s" must validate at least one schema (anyOf)"#,
            ),
            (
                json!({"type": "integer", "oneOf": [{"minimum": 5}, {"minimum": 1}]}),
                json!(7),
                r#"<nil>: Invalid value: "": "s" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
            ),
            (
                json!({"type": "integer", "not": {"minimum": 5}}),
                json!(7),
                r#"<nil>: Invalid value: "": "s" must not validate the schema (not)"#,
            ),
            (
                json!({"type": "integer", "allOf": [{"minimum": 5}]}),
                json!(1),
                "s: Invalid value: 1: s in body should be greater than or equal to 5",
            ),
        ] {
            let found = problems(schema.clone(), value);
            assert!(found.iter().any(|problem| problem.starts_with(expected)), "{schema}: {found:?}");
        }
    }

    #[test]
    fn good_values_pass() {
        for (schema, value) in [
            (json!({"type": "integer"}), json!(3)),
            (json!({"type": "number"}), json!(3)),
            (json!({"type": "integer"}), json!(3.0)),
            (json!({"type": "string", "nullable": true}), json!(null)),
            (json!({"x-kubernetes-int-or-string": true}), json!("80%")),
            (json!({"x-kubernetes-preserve-unknown-fields": true}), json!({"any": [1, "thing"]})),
            (json!({"type": "string", "format": "no-such-format"}), json!("x")),
        ] {
            assert_eq!(problems(schema, value), Vec::<String>::new());
        }
    }

    #[test]
    fn what_did_not_change_is_not_looked_at_again() {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "integer", "minimum": 5}, "b": {"type": "integer", "minimum": 5}}});
        let schema = Schema::root(&serde_json::from_value(schema).unwrap());
        let object = |value: Value| value.as_object().cloned().unwrap();
        let old = object(json!({"a": 1, "b": 9}));
        assert!(validate(&schema, &object(json!({"a": 1, "b": 8})), Some(&old)).is_empty());
        assert_eq!(validate(&schema, &object(json!({"a": 2, "b": 8})), Some(&old)).len(), 1);
    }
}
