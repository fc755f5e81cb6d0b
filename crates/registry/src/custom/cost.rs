//! What rules of a definition may cost at most: how large values can be that its schema describes, and what a rule and all
//! rules together may take (`CELSchemaContext` and `SchemaDeclType` upstream).

use std::sync::Arc;

use api::field::{FieldErrors, Path};
use api::sort::CompactSort as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;

use super::expressions::{escaped, format, type_of};
use super::schema::{Additional, Kind, OBJECT_FIELDS, Rules, Schema};

/// Of one expression, for all values that it is asked about.
const RULE_LIMIT: u64 = 10_000_000;
/// Of all expressions of a schema.
const SCHEMA_LIMIT: u64 = 100_000_000;
/// So many of the dearest expressions are named.
const NAMED: usize = 4;
/// Nothing larger than a request can be written.
const REQUEST: u64 = 3 * 1024 * 1024;
/// The longest text that fits into a request, which is in quotes.
const LONGEST_TEXT: u64 = REQUEST - 2;

/// How large values are that a schema describes.
pub(super) struct Bounds<'a> {
    pub(super) schema: &'a Schema,
    pub(super) is_root: bool,
}

impl cel::Sizes for Bounds<'_> {
    fn largest(&self, path: &[Arc<str>]) -> Option<u64> {
        let (mut schema, mut is_root) = (self.schema, self.is_root);
        let mut steps = path.iter();
        while let Some(step) = steps.next() {
            schema = match &**step {
                "@items" => schema.items.as_deref()?,
                "@values" => additional(schema)?,
                // Names of properties have no bound of their own, which upstream takes for none at all.
                "@keys" => return additional(schema).filter(|_| steps.len() == 0).map(|_| 0),
                name if (is_root || schema.is_embedded) && OBJECT_FIELDS.contains(&name) => {
                    return match (name, steps.as_slice()) {
                        ("metadata", []) => Some(0),
                        ("metadata", [field]) => matches!(&**field, "name" | "generateName").then_some(LONGEST_TEXT),
                        (_, []) => Some(LONGEST_TEXT),
                        _ => None,
                    };
                }
                name => {
                    let mut properties = schema.properties.iter();
                    &properties.find(|(property, _)| escaped(property).as_deref() == Some(name))?.1
                }
            };
            is_root = false;
        }
        type_of(schema, is_root, "object").map(|_| most_elements(schema))
    }
}

fn additional(schema: &Schema) -> Option<&Schema> {
    match &schema.additional {
        Additional::Like(member) => Some(member),
        _ => None,
    }
}

fn limit(schema: &Schema, of: impl Fn(&Rules) -> Option<i64>) -> Option<u64> {
    schema.rules.as_deref().and_then(of).map(|limit| u64::try_from(limit).unwrap_or(0))
}

/// How many letters, elements or entries a value has at most.
fn most_elements(schema: &Schema) -> u64 {
    let length = || limit(schema, |rules| rules.length.1);
    // A letter takes up to four bytes.
    let letters = || length().map(|length| length.saturating_mul(4));
    if schema.int_or_string {
        return letters().unwrap_or(LONGEST_TEXT);
    }
    match schema.kind {
        Some(Kind::Array) => limit(schema, |rules| rules.count.1).unwrap_or_else(|| {
            let item = schema.items.as_deref().map_or(0, least_bytes);
            (REQUEST - 2) / (item + 1)
        }),
        Some(Kind::Object) => match additional(schema) {
            Some(member) => {
                limit(schema, |rules| rules.properties.1).unwrap_or_else(|| (REQUEST - 2) / (least_bytes(member) + 6))
            }
            None => 0,
        },
        Some(Kind::String) => match format(schema) {
            "byte" => length().unwrap_or(LONGEST_TEXT),
            "duration" | "date-time" | "datetime" => 32,
            "date" => 12,
            _ => letters().unwrap_or_else(|| {
                let choices = schema.rules.as_deref().map(|rules| rules.choices.as_slice()).unwrap_or_default();
                let lengths = choices.iter().filter_map(|choice| choice.as_str()).map(|choice| choice.len() as u64);
                if choices.is_empty() { LONGEST_TEXT } else { lengths.max().unwrap_or(0) }
            }),
        },
        _ => 0,
    }
}

/// How short a value can be written in JSON.
fn least_bytes(schema: &Schema) -> u64 {
    if schema.int_or_string {
        return 1;
    }
    match schema.kind {
        Some(Kind::Object) if additional(schema).is_none() => {
            let needed = schema.properties.iter().filter(|(name, member)| {
                member.default.is_none() && schema.required.contains(name) && type_of(member, false, "object").is_some()
            });
            needed.fold(2, |sum, (name, member)| sum + name.len() as u64 + 4 + least_bytes(member))
        }
        Some(Kind::String) => match format(schema) {
            "duration" => 3,
            "date" => 12,
            "date-time" | "datetime" => 21,
            _ => 2,
        },
        Some(Kind::Boolean) => 4,
        Some(Kind::Integer | Kind::Number) => 1,
        _ => 2,
    }
}

/// How many values of a schema fit into a request.
pub(super) fn most_values(schema: &Schema) -> u64 {
    REQUEST / (least_bytes(schema) + 1)
}

/// How many values of a schema's members there can be for each of its own; none if it does not say.
pub(super) fn declared_elements(schema: &JSONSchemaProps) -> Option<u64> {
    let limit = |limit: Option<i64>| limit.map(|limit| u64::try_from(limit).unwrap_or(0));
    match schema.type_.as_deref() {
        Some("object") if schema.additional_properties.is_some() => limit(schema.max_properties),
        Some("array") => limit(schema.max_items),
        _ => Some(1),
    }
}

/// The cost of all expressions of a schema.
#[derive(Default)]
pub(super) struct Total {
    sum: u64,
    /// Where the dearest are, the dearest first.
    dearest: Vec<(u64, String)>,
}

impl Total {
    pub(super) fn add(&mut self, errors: &mut FieldErrors, path: &Path<'_>, what: &str, cost: u64, is_unchanged: bool) {
        if cost > RULE_LIMIT && !is_unchanged {
            errors.forbidden(path, exceeded(what, cost, RULE_LIMIT));
        }
        self.sum = self.sum.saturating_add(cost);
        if cost >= SCHEMA_LIMIT / 100 {
            self.dearest.push((cost, path.to_string()));
            self.dearest.compact_sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            self.dearest.truncate(NAMED);
        }
    }

    pub(super) fn check(&self, errors: &mut FieldErrors, path: &Path<'_>) {
        if self.sum <= SCHEMA_LIMIT {
            return;
        }
        for (_, path) in &self.dearest {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.forbidden(path.as_str(), detail);
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.forbidden(path, exceeded(what, self.sum, SCHEMA_LIMIT));
    }
}

fn exceeded(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        _ if factor > 100.0 => "more than 100x".to_owned(),
        _ if factor < 1.5 => format!("{factor:.6}x"),
        _ => format!("{factor:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::custom::check_expressions;

    fn cost(schema: Value, rule: &str) -> u64 {
        let mut schema = schema;
        schema["x-kubernetes-validations"] = json!([{ "rule": rule }]);
        let schema: JSONSchemaProps = serde_json::from_value(schema).unwrap();
        let compiled = Schema::new(&schema);
        let rule = &compiled.expressions[0];
        assert!(rule.program.is_ok(), "{:?}", rule.program);
        rule.highest_cost
    }

    fn typed(kind: &str) -> Value {
        match kind {
            "int-or-string" => json!({"x-kubernetes-int-or-string": true}),
            "duration" | "date" | "date-time" | "byte" => json!({"type": "string", "format": kind}),
            kind => json!({ "type": kind }),
        }
    }

    fn array(of: Value) -> Value {
        json!({"type": "array", "items": of})
    }

    fn map(of: Value) -> Value {
        json!({"type": "object", "additionalProperties": of})
    }

    fn object() -> Value {
        let text = json!({"type": "string"});
        json!({"type": "object", "required": ["required"], "properties": {"required": text, "optional": text}})
    }

    /// The numbers are those of upstream's own estimator for the same schemas and rules.
    #[test]
    fn rules_cost_what_upstream_says() {
        let limited = |mut schema: Value, field: &str, limit: u64| {
            schema[field] = json!(limit);
            schema
        };
        for (schema, rule, expected) in [
            (array(typed("number")), "self.all(x, true)", 4_718_591),
            (limited(array(typed("number")), "maxItems", 10), "self.all(x, true)", 32),
            (array(typed("string")), "self.all(x, true)", 3_145_727),
            (array(typed("boolean")), "self.all(x, true)", 1_887_437),
            (array(array(typed("number"))), "self.all(x, true)", 3_145_727),
            (array(object()), "self.all(x, true)", 555_128),
            (map(typed("number")), "self.all(x, true)", 1_348_169),
            (map(typed("string")), "self.all(x, true)", 1_179_647),
            (map(typed("boolean")), "self.all(x, true)", 943_718),
            (limited(map(typed("boolean")), "maxProperties", 100), "self.all(x, true)", 302),
            (typed("string"), "self.contains('test')", 314_574),
            (limited(typed("string"), "maxLength", 10), "self.contains('test')", 5),
            (typed("string"), "self.startsWith('test')", 2),
            (typed("string"), "size(self + \"hello\") > size(\"hello\")", 314_578),
            (limited(typed("string"), "maxLength", 4), "size(self + \"hello\") > size(\"hello\")", 7),
            (array(typed("number")), "self[1] == 0.0", 2),
            (array(typed("string")), "self[1] == self[1]", 314_577),
            (limited(array(typed("number")), "maxItems", 10), "self.all(x, self.all(y, true))", 352),
            (limited(array(typed("number")), "maxItems", 10), "self.all(x, self.all(y, self.all(z, true)))", 3552),
            (typed("string"), "self.matches(\"x\")", 314_574),
            (limited(typed("string"), "maxLength", 50), "self.matches(\"x\")", 22),
            (typed("string"), "\"\".matches(\"(((((((((())))))))))[0-9]\")", 7),
            (typed("string"), "self.matches(\"\")", 1),
            (limited(typed("string"), "maxLength", 0), "self == \"x\"", 1),
            (typed("string"), "self == \"x\"", 2),
            (typed("byte"), "self == b\"x\"", 2),
            (array(typed("number")), "self.all(x, x == 0.0)", 6_291_454),
            (limited(array(typed("number")), "maxItems", 3 * 1024 * 2048), "self.all(x, x == 0.0)", 25_165_826),
            (array(map(object())), "self.all(x, x[\"y\"].required == \"z\")", 7_340_027),
            (array(typed("int-or-string")), "self[0] == 5", 3),
            (array(typed("boolean")), "self[0] == false", 2),
            (array(object()), "self[0] == null", 2),
            (array(array(typed("number"))), "self[0][0] == -1.0", 3),
            (array(map(typed("number"))), "self.all(x, x.y == 25.2)", 6_291_452),
            (array(map(typed("number"))), "self[0].x > 2.0", 4),
            (array(typed("duration")), "self.all(x, true)", 2_359_295),
            (array(typed("duration")), "self[0].getHours() == 2", 4),
            (array(typed("date")), "self.all(x, true)", 725_936),
            (array(typed("date-time")), "self.all(x, true)", 428_963),
            (map(object()), "self.all(x, true)", 428_963),
            (map(typed("duration")), "self.all(x, true)", 1_048_577),
        ] {
            assert_eq!(cost(schema.clone(), rule), expected, "{rule} of {schema}");
        }
    }

    fn refused(schema: Value, is_unchanged: bool) -> Vec<String> {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": schema}}}});
        let schema: JSONSchemaProps = serde_json::from_value(schema).unwrap();
        let mut errors = FieldErrors::default();
        check_expressions(&mut errors, &Path::new("schema"), &schema, is_unchanged);
        errors.into_iter().map(|error| error.to_string()).collect()
    }

    #[test]
    fn what_costs_too_much_is_refused() {
        let rules = |rules: &[&str]| rules.iter().map(|rule| json!({ "rule": rule })).collect::<Value>();
        let at = "schema.properties[spec].properties[a]";
        let advice = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, \
                      and strings are declared)";
        let mut nested = array(typed("number"));
        nested["x-kubernetes-validations"] = rules(&["self.all(x, self.all(y, x == y))"]);
        let refusals = refused(nested.clone(), false);
        assert_eq!(
            refusals,
            [
                format!(
                    "{at}.x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of \
                     more than 100x {advice}"
                ),
                format!(
                    "{at}.x-kubernetes-validations[0].rule: Forbidden: contributed to estimated rule cost total \
                     exceeding cost limit for entire OpenAPIv3 schema"
                ),
                format!(
                    "schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema \
                     exceeds budget by factor of more than 100x {advice}"
                ),
            ]
        );
        // What was taken before is judged as a whole only.
        assert_eq!(refused(nested.clone(), true).len(), 2);
        nested["maxItems"] = json!(10);
        assert_eq!(refused(nested, false), Vec::<String>::new());

        // A cheap rule for each of many values.
        let mut text = typed("string");
        text["x-kubernetes-validations"] = rules(&["self.contains('keyword')"]);
        assert!(refused(array(text.clone()), false)[0].contains("more than 100x"));
        text["maxLength"] = json!(64);
        let mut bounded = array(text.clone());
        bounded["maxItems"] = json!(1000);
        assert_eq!(refused(bounded, false), Vec::<String>::new());
        assert!(refused(array(text), false)[0].contains("exceeds budget by factor of 2.8x"), "too many for a request");

        // Many rules that are each within their limit.
        let mut many = typed("string");
        many["x-kubernetes-validations"] =
            rules(&vec!["self.matches('abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz')"; 30]);
        let refusals = refused(many, false);
        assert_eq!(refusals.len(), NAMED + 1, "{refusals:#?}");
        assert!(refusals[NAMED].contains("exceeds budget by factor of 1.2"), "{refusals:#?}");
    }
}
