//! Rules in CEL (`x-kubernetes-validations`): compiled with their schema, evaluated on every write.
//!
//! `self` is the value at the rule's place, typed by its schema; a rule that names `oldSelf` is one about changes and is
//! evaluated only where there is a value before that can be told to be the same one. What did not change need not fulfil
//! a rule that is newer than it.

use std::sync::Arc;

use api::field::{FieldError, FieldErrors, Path};
use api::schema::ListType;
use cel::{Budget, CompileError, Env, ErrorKind, Key, PER_CALL_LIMIT, Program, Struct, Type, Value};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};

use super::cost::{self, Total};
use super::schema::{Additional, Kind, OBJECT_FIELDS, Schema};
use super::validate::{by_key, element_key};

type Json = serde_json::Value;

/// What all rules of an object may cost.
const BUDGET: u64 = 10_000_000;
/// The longest message that an expression may make.
const LONGEST_MESSAGE: usize = 5 * 1024;

/// Why an expression is no rule, and none that makes a message.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuleError {
    #[error("compilation failed: {0}")]
    Compilation(CompileError),
    #[error("cel expression must evaluate to a bool")]
    NotBool,
    #[error("messageExpression compilation failed: {0}")]
    MessageCompilation(CompileError),
    #[error("messageExpression must evaluate to a string")]
    MessageNotString,
}

/// A rule, or why it is none.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) program: Result<Program, RuleError>,
    pub(super) message_program: Option<Result<Program, RuleError>>,
    pub(super) uses_old: bool,
    /// What a run may cost at most, and what making its message may.
    pub(super) highest_cost: u64,
    pub(super) highest_message_cost: u64,
    text: String,
    message: Option<String>,
    reason: Option<String>,
    /// Below the value that the rule is about.
    field: Option<String>,
    optional_old: bool,
}

impl Rule {
    pub(super) fn new(rule: &ValidationRule, of: &Type, sizes: &dyn cel::Sizes) -> Self {
        let (mut highest_cost, mut highest_message_cost) = (0, 0);
        let optional_old = rule.optional_old_self == Some(true);
        let old = if optional_old { Type::optional(of.clone()) } else { of.clone() };
        let env = Env::default().with("self", of.clone()).with("oldSelf", old);
        let compiled = env.compile_costed(&rule.rule, sizes).map_err(RuleError::Compilation);
        let program = compiled.and_then(|(program, cost)| match program.result() {
            Type::Bool => {
                highest_cost = cost;
                Ok(program)
            }
            _ => Err(RuleError::NotBool),
        });
        let message_program = rule.message_expression.as_deref().filter(|text| !text.is_empty()).map(|text| {
            let compiled = env.compile_costed(text, sizes).map_err(RuleError::MessageCompilation);
            compiled.and_then(|(program, cost)| match program.result() {
                Type::String => {
                    highest_message_cost = cost;
                    Ok(program)
                }
                _ => Err(RuleError::MessageNotString),
            })
        });
        let uses_old = program.as_ref().is_ok_and(|program| program.mentions("oldSelf"));
        Self {
            program,
            message_program,
            uses_old,
            highest_cost,
            highest_message_cost,
            text: rule.rule.trim().to_owned(),
            message: rule.message.clone().filter(|message| !message.is_empty()),
            reason: rule.reason.clone(),
            field: rule.field_path.clone().filter(|path| !path.is_empty()),
            optional_old,
        }
    }

    /// How messages about the rule itself call it.
    fn shown(&self) -> &str {
        self.message.as_deref().map_or(&self.text, str::trim)
    }
}

/// The type of what a schema describes; none if it does not say.
pub(super) fn type_of(schema: &Schema, is_root: bool, name: &str) -> Option<Type> {
    if schema.int_or_string {
        return Some(Type::Dyn);
    }
    Some(match schema.kind? {
        Kind::Array => Type::list(type_of(schema.items.as_deref()?, false, &format!("{name}.@idx"))?),
        Kind::Boolean => Type::Bool,
        Kind::Integer => Type::Int,
        Kind::Number => Type::Double,
        Kind::String => match format(schema) {
            "byte" => Type::Bytes,
            "date" | "date-time" | "datetime" => Type::Timestamp,
            "duration" => Type::Duration,
            _ => Type::String,
        },
        Kind::Object => match &schema.additional {
            Additional::Like(member) => Type::map(Type::String, type_of(member, false, &format!("{name}.@elem"))?),
            _ => Type::Struct(Arc::new(Object::new(schema, is_root, name))),
        },
    })
}

pub(super) fn format(schema: &Schema) -> &'static str {
    schema.rules.as_ref().and_then(|rules| rules.format.as_ref()).map_or("", |format| format.name)
}

/// An object with properties.
#[derive(Debug)]
struct Object {
    name: String,
    fields: Vec<(String, Type)>,
}

impl Object {
    fn new(schema: &Schema, is_root: bool, name: &str) -> Self {
        let below = |field: &str| format!("{name}.{field}");
        let properties = schema.properties.iter();
        let mut fields: Vec<(String, Type)> = properties
            .filter_map(|(field, child)| Some((escaped(field)?, type_of(child, false, &below(field))?)))
            .collect();
        if is_root || schema.is_embedded {
            let named = vec![("name".to_owned(), Type::String), ("generateName".to_owned(), Type::String)];
            let metadata = Object { name: below("metadata"), fields: named };
            fields.push(("apiVersion".to_owned(), Type::String));
            fields.push(("kind".to_owned(), Type::String));
            fields.push(("metadata".to_owned(), Type::Struct(Arc::new(metadata))));
        }
        Self { name: name.to_owned(), fields }
    }
}

impl Struct for Object {
    fn name(&self) -> &str {
        &self.name
    }

    fn field(&self, name: &str) -> Option<Type> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, of)| of.clone())
    }
}

/// The name of a property in expressions, where letters must not stand for anything else.
pub(super) fn escaped(name: &str) -> Option<String> {
    if matches!(name, "true" | "false" | "null" | "in") || cel::is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let escaped = name
        .replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__");
    cel::is_identifier(&escaped).then_some(escaped)
}

/// A value as its schema types it.
fn value_of(schema: &Schema, json: &Json) -> Value {
    match (json, schema.kind) {
        (Json::Number(number), Some(Kind::Number)) => Value::Double(number.as_f64().unwrap_or_default()),
        (Json::Number(number), Some(Kind::Integer)) => {
            Value::Int(number.as_i64().unwrap_or_else(|| number.as_f64().unwrap_or_default() as i64))
        }
        (Json::String(text), Some(Kind::String)) => match format(schema) {
            "byte" | "date" | "date-time" | "datetime" | "duration" => {
                cel::typed_text(format(schema), text).unwrap_or_else(|| Value::from_json(json))
            }
            _ => Value::from_json(json),
        },
        (Json::Array(items), Some(Kind::Array)) => match &schema.items {
            Some(element) => Value::list(items.iter().map(|item| value_of(element, item)).collect()),
            None => Value::from_json(json),
        },
        (Json::Object(object), Some(Kind::Object)) => {
            let is_map = matches!(schema.additional, Additional::Like(_));
            let entries = object.iter().filter_map(|(name, value)| {
                let key = if is_map { name.clone() } else { escaped(name)? };
                let value = match schema.member(name) {
                    Some(member) => value_of(member, value),
                    None if is_map || OBJECT_FIELDS.contains(&name.as_str()) => Value::from_json(value),
                    None => return None,
                };
                Some((Key::from(key.as_str()), value))
            });
            Value::map(entries.collect())
        }
        _ => Value::from_json(json),
    }
}

/// What is wrong with the rules of a schema that is written, which is otherwise as it should be. A schema that has not
/// changed was taken before, whatever single rules of it cost.
pub(crate) fn check(errors: &mut FieldErrors, path: &Path<'_>, schema: &JSONSchemaProps, is_unchanged: bool) {
    let mut total = Total::default();
    let place = Place { uncorrelated: None, cardinality: Some(1), is_unchanged };
    check_below(errors, path, schema, &Schema::root(schema), &place, &mut total);
    total.check(errors, path);
}

/// What is around a schema.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// The list around here whose elements cannot be told to be the same as before.
    uncorrelated: Option<&'a str>,
    /// How many values there can be here, if lists and maps around say so.
    cardinality: Option<u64>,
    is_unchanged: bool,
}

fn check_below(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    schema: &JSONSchemaProps,
    compiled: &Schema,
    place: &Place<'_>,
    total: &mut Total,
) {
    let declared = schema.x_kubernetes_validations.as_deref().unwrap_or_default();
    for (i, rule) in declared.iter().enumerate() {
        let list = path.child("x-kubernetes-validations");
        let at = list.index(i);
        if let Some(rule) = compiled.expressions.get(i) {
            let count = place.cardinality.unwrap_or_else(|| cost::most_values(compiled));
            let cost = rule.highest_cost.saturating_mul(count);
            total.add(errors, &at.child("rule"), "estimated rule cost", cost, place.is_unchanged);
            if matches!(rule.message_program, Some(Ok(_))) {
                let (at, cost) = (at.child("messageExpression"), rule.highest_message_cost);
                total.add(errors, &at, "estimated messageExpression cost", cost, place.is_unchanged);
            }
        }
        check_rule(errors, &at, rule, compiled.expressions.get(i), place.uncorrelated);
    }
    let factor = cost::declared_elements(schema);
    let cardinality = place.cardinality.and_then(|count| Some(count.saturating_mul(factor?)));
    let below = Place { cardinality, ..*place };
    for (name, child) in schema.properties.iter().flatten() {
        if let Some(member) = compiled.property(name) {
            check_below(errors, &path.child("properties").key(name), child, member, &below, total);
        }
    }
    if let (Some(JSONSchemaPropsOrBool::Schema(child)), Additional::Like(member)) =
        (&schema.additional_properties, &compiled.additional)
    {
        check_below(errors, &path.child("additionalProperties"), child, member, &below, total);
    }
    if let (Some(JSONSchemaPropsOrArray::Schema(child)), Some(element)) = (&schema.items, &compiled.items) {
        let own = path.to_string();
        let is_keyed = matches!(compiled.list, Some(ListType::Map(_)));
        let uncorrelated = if is_keyed { place.uncorrelated } else { place.uncorrelated.or(Some(&own)) };
        check_below(errors, &path.child("items"), child, element, &Place { uncorrelated, ..below }, total);
    }
}

fn check_rule(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    rule: &ValidationRule,
    compiled: Option<&Rule>,
    uncorrelated: Option<&str>,
) {
    const REASONS: [&str; 4] =
        ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
    let is_blank =
        |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty() && text.trim().is_empty());
    let message = rule.message.as_deref().unwrap_or_default().trim();
    if rule.rule.trim().is_empty() {
        return errors.required(path.child("rule"), "rule is not specified");
    }
    if is_blank(&rule.message) {
        errors.invalid(path.child("message"), &rule.message, "must be non-empty if specified");
    } else if message.contains(['\n', '\r']) {
        errors.invalid(path.child("message"), &rule.message, "must not contain line breaks");
    } else if rule.rule.trim().contains(['\n', '\r']) && message.is_empty() {
        errors.required(path.child("message"), "message must be specified if rule contains line breaks");
    }
    if is_blank(&rule.message_expression) {
        errors.required(path.child("messageExpression"), "messageExpression must be non-empty if specified");
    }
    if let Some(reason) = rule.reason.as_deref().filter(|reason| !REASONS.contains(reason)) {
        errors.not_supported(path.child("reason"), reason, &REASONS);
    }
    if is_blank(&rule.field_path) {
        errors.invalid(path.child("fieldPath"), &rule.field_path, "must be non-empty if specified");
    }
    let Some(compiled) = compiled else { return };
    if let Err(problem) = &compiled.program {
        errors.invalid(path.child("rule"), rule, problem.to_string());
    }
    if let Some(Err(problem)) = &compiled.message_program {
        errors.invalid(path.child("messageExpression"), rule, problem.to_string());
    }
    match (compiled.uses_old, uncorrelated) {
        (true, Some(within)) => {
            let detail = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {within}");
            errors.invalid(path.child("rule"), &rule.rule, detail);
        }
        (false, _) if rule.optional_old_self.is_some() && compiled.program.is_ok() => {
            let detail = "may not be set if oldSelf is not used in rule";
            errors.invalid(path.child("optionalOldSelf"), rule.optional_old_self, detail);
        }
        _ => {}
    }
}

/// Everything that breaks a rule. `old` is the object before.
pub(super) fn validate(schema: &Schema, object: &Json, old: Option<&Json>) -> FieldErrors {
    let mut walk = Walk { errors: FieldErrors::default(), left: BUDGET };
    walk.value(schema, object, old, &mut String::new());
    walk.errors
}

struct Walk {
    errors: FieldErrors,
    left: u64,
}

impl Walk {
    fn value(&mut self, schema: &Schema, value: &Json, old: Option<&Json>, path: &mut String) {
        if !schema.has_expressions || value.is_null() || self.left == 0 || self.errors.is_full() {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        self.rules(schema, value, old, path);
        let parent = path.len();
        match value {
            Json::Object(object) => {
                for (name, child) in object {
                    let Some(member) = schema.member(name).filter(|member| member.has_expressions) else { continue };
                    if schema.property(name).is_none() {
                        path.extend(["[", name.as_str(), "]"]);
                    } else {
                        path.extend([if parent > 0 { "." } else { "" }, name.as_str()]);
                    }
                    self.value(member, child, old.and_then(|old| old.get(name)), path);
                    path.truncate(parent);
                }
            }
            Json::Array(items) => {
                let Some(element) = schema.items.as_ref().filter(|element| element.has_expressions) else { return };
                let known = by_key(schema.list, old.and_then(Json::as_array));
                for (i, item) in items.iter().enumerate() {
                    let before = element_key(schema.list, item).and_then(|key| known.get(&key).copied());
                    path.push_str(&format!("[{i}]"));
                    self.value(element, item, before, path);
                    path.truncate(parent);
                }
            }
            _ => {}
        }
    }

    fn rules(&mut self, schema: &Schema, value: &Json, old: Option<&Json>, path: &str) {
        let is_same = old == Some(value);
        let mut values: Option<(Value, Option<Value>)> = None;
        for rule in &schema.expressions {
            // What did not change may stay as it is; a rule about changes needs something to compare with.
            if is_same && !rule.uses_old || rule.uses_old && old.is_none() && !rule.optional_old {
                continue;
            }
            let (this, before) =
                values.get_or_insert_with(|| (value_of(schema, value), old.map(|old| value_of(schema, old))));
            let before = match rule.optional_old {
                true => before.clone().map_or(Value::NONE, Value::some),
                false => before.clone().unwrap_or(Value::Null),
            };
            let this = this.clone();
            let names = move |name: &str| match name {
                "self" => Some(this.clone()),
                "oldSelf" => Some(before.clone()),
                _ => None,
            };
            self.rule(schema, rule, value, path, &names);
            if self.left == 0 {
                return;
            }
        }
    }

    fn run(&mut self, program: &Program, names: &dyn cel::Activation) -> Result<Value, cel::Error> {
        let mut budget = Budget::new(PER_CALL_LIMIT.min(self.left));
        let result = program.run(names, &mut budget);
        self.left = self.left.saturating_sub(budget.used());
        result
    }

    fn rule(&mut self, schema: &Schema, rule: &Rule, value: &Json, path: &str, names: &dyn cel::Activation) {
        let kind = schema.kind.map_or("", Kind::as_str);
        let program = match &rule.program {
            Ok(program) => program,
            Err(problem) => return self.errors.invalid(path, kind, format!("rule compile error: {problem}")),
        };
        let shown = rule.shown();
        match self.run(program, names) {
            Ok(Value::Bool(true)) => {}
            Ok(_) => self.broken(rule, value, path, names),
            Err(error) if error.kind == ErrorKind::Cost => {
                let detail = format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
                );
                self.errors.invalid(path, kind, detail);
                self.left = 0;
            }
            Err(error) if error.message.starts_with("no such overload") => {
                let detail = format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
                );
                self.errors.invalid(path, kind, detail);
            }
            Err(error) => self.errors.invalid(path, kind, format!("{error} evaluating rule: {shown}")),
        }
        if self.left == 0 && self.errors.is_empty() {
            let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
            self.errors.invalid(path, kind, detail);
        }
    }

    fn broken(&mut self, rule: &Rule, value: &Json, path: &str, names: &dyn cel::Activation) {
        let made = match &rule.message_program {
            Some(Ok(program)) => self.run(program, names).ok(),
            _ => None,
        };
        let made = match made {
            Some(Value::String(text)) => Some(text.trim().to_owned()),
            _ => None,
        };
        let made = made.filter(|text| !text.is_empty() && text.len() <= LONGEST_MESSAGE && !text.contains('\n'));
        let detail = made.unwrap_or_else(|| match &rule.message {
            Some(message) => message.trim().to_owned(),
            None => format!("failed rule: {}", rule.text),
        });
        let field = rule.field.as_deref().unwrap_or_default();
        let path = format!("{path}{}", if path.is_empty() { field.trim_start_matches('.') } else { field });
        let mut error = match rule.reason.as_deref() {
            Some("FieldValueForbidden") => FieldError::forbidden(&path, detail),
            Some("FieldValueRequired") => FieldError::required(&path, detail),
            Some("FieldValueDuplicate") => FieldError::duplicate(&path, value),
            _ => FieldError::invalid(&path, value, detail),
        };
        if matches!(value, Json::Object(_) | Json::Array(_)) {
            error.value = None;
        }
        self.errors.push(error);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with_rule(rule: Json) -> JSONSchemaProps {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
            "x-kubernetes-validations": [rule], "properties": {
                "x": {"type": "integer"}, "ratio": {"type": "number"}, "any": {"x-kubernetes-int-or-string": true},
                "names": {"type": "array", "items": {"type": "string"}}, "at": {"type": "string", "format": "date-time"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "a-b": {"type": "string"}, "namespace": {"type": "string"}}}}});
        serde_json::from_value(schema).unwrap()
    }

    #[test]
    fn rules_must_compile() {
        for (rule, expected) in [
            (json!({"rule": "self.x > 1 && self.ratio < 2.0 && self.names.all(n, n != '')"}), ""),
            (json!({"rule": "self.a__dash__b == self.__namespace__"}), ""),
            (json!({"rule": "self.at < timestamp('2030-01-01T00:00:00Z') && 'k' in self.labels"}), ""),
            (json!({"rule": "self.z == 100"}), "undefined field 'z'"),
            (
                json!({"rule": "self = 42"}),
                "compilation failed: ERROR: <input>:1:6: Syntax error: token recognition error at: '= '",
            ),
            (json!({"rule": "self.x"}), "cel expression must evaluate to a bool"),
            (json!({"rule": "self.x > '1'"}), "found no matching overload for '_>_' applied to '(int, string)'"),
            (json!({"rule": " "}), "rule is not specified"),
            (json!({"rule": "true", "messageExpression": "1"}), "messageExpression must evaluate to a string"),
            (json!({"rule": "true", "optionalOldSelf": true}), "may not be set if oldSelf is not used in rule"),
            (json!({"rule": "true", "reason": "Other"}), "Unsupported value: \"Other\""),
        ] {
            let mut errors = FieldErrors::default();
            check(&mut errors, &Path::new("spec"), &with_rule(rule.clone()), false);
            assert_eq!(errors.is_empty(), expected.is_empty(), "{rule}: {errors}");
            assert!(errors.to_string().contains(expected), "{rule}: {errors}");
        }
    }

    #[test]
    fn rules_are_evaluated() {
        for (rule, spec, old, expected) in [
            (json!({"rule": "self.x > 1"}), json!({"x": 2}), None, ""),
            (json!({"rule": "self.x > 1"}), json!({"x": 1}), None, "spec: Invalid value: failed rule: self.x > 1"),
            (json!({"rule": "self.x > 1", "message": "too few"}), json!({"x": 1}), None, "too few"),
            (
                json!({"rule": "self.x > 1", "messageExpression": "'not ' + string(self.x)", "fieldPath": ".x",
                    "reason": "FieldValueForbidden"}),
                json!({"x": 1}),
                None,
                "spec.x: Forbidden: not 1",
            ),
            (json!({"rule": "self.x > 1"}), json!({}), None, "no such key: x evaluating rule: self.x > 1"),
            (json!({"rule": "self.ratio == 1.0"}), json!({"ratio": 1}), None, ""),
            (json!({"rule": "self.any > 1"}), json!({"any": "a"}), None, "call arguments did not match"),
            (json!({"rule": "self.at.getFullYear() == 2020"}), json!({"at": "2020-01-01T00:00:00Z"}), None, ""),
            // Rules about changes need something to compare with, and hold for what stays the same, too.
            (json!({"rule": "self.x > oldSelf.x"}), json!({"x": 1}), None, ""),
            (json!({"rule": "self.x > oldSelf.x"}), json!({"x": 1}), Some(json!({"x": 1})), "failed rule"),
            (json!({"rule": "self.x > oldSelf.x"}), json!({"x": 2}), Some(json!({"x": 1})), ""),
            (
                json!({"rule": "oldSelf.hasValue() || self.x == 0", "optionalOldSelf": true}),
                json!({"x": 1}),
                None,
                "failed rule",
            ),
            // What did not change need not fulfil a newer rule.
            (json!({"rule": "self.x > 1"}), json!({"x": 1}), Some(json!({"x": 1})), ""),
            (
                json!({"rule": "self.names.all(a, self.names.all(b, a == b))"}),
                json!({"names": vec!["a"; 800]}),
                None,
                "call cost exceeds limit",
            ),
        ] {
            let schema = Schema::root(&with_rule(rule.clone()));
            let old = old.map(|old| json!({"spec": old}));
            let found = validate(&schema, &json!({"spec": spec}), old.as_ref());
            assert_eq!(found.is_empty(), expected.is_empty(), "{rule}: {found}");
            assert!(found.to_string().contains(expected), "{rule}: {found}");
        }
    }

    /// Each item is compared with the one that it was, which is not searched for among all.
    #[test]
    fn security_items_of_long_lists_find_what_they_were() {
        let schema = json!({"type": "object", "properties": {"list": {"type": "array",
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "integer"}, "x": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.x >= oldSelf.x"}]}}}});
        let schema = Schema::root(&serde_json::from_value(schema).unwrap());
        let list = |last: i64| {
            let items = (0..50_000).map(|name| json!({"name": name, "x": if name == 49_999 { last } else { 5 }}));
            json!({"list": items.collect::<Vec<Json>>()})
        };
        assert!(validate(&schema, &list(5), Some(&list(5))).is_empty());
        let found = validate(&schema, &list(4), Some(&list(5)));
        assert!(found.to_string().starts_with("list[49999]: Invalid value: "), "{found}");
    }
}
