//! Schemas of custom kinds: what OpenAPI v3 allows them, and that they are structural (every field that is spoken of has
//! a type, and no logic says what a type is).

use api::field::{FieldErrors, Path};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, JSONSchemaPropsOrStringArray,
};

use crate::unset::{items, or_empty, text};

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
/// What objects may be selected by, at most.
const MAX_SELECTABLE: usize = 8;
/// Formats with a meaning; others are only hints.
const FORMATS: &[&str] = &[
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "date-time",
    "double",
    "duration",
    "email",
    "float",
    "hexcolor",
    "hostname",
    "int32",
    "int64",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8s-long-name",
    "k8s-short-name",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
];

/// Where in a schema something stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Checks the schema of a version. `old` is what it was, if the version was there before.
pub(super) fn check(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    schema: &JSONSchemaProps,
    old: Option<&JSONSchemaProps>,
    has_status: bool,
) {
    if has_status && text(&schema.type_).is_some_and(|kind| kind != "object") {
        let rule =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.invalid(path.child("type"), &schema.type_, rule);
    }
    if schema.nullable == Some(true) {
        errors.forbidden(path.child("nullable"), "nullable cannot be true at the root");
    }
    let before = errors.len();
    structural(errors, path, schema, Level::Root);
    openapi(errors, path, schema, &Context { is_root: true, ..Default::default() });
    // Of a schema that is wrong, expressions cannot be judged.
    if errors.len() == before {
        crate::custom::check_expressions(errors, path, schema, old == Some(schema));
    }
}

/// Formats that nobody knows.
pub(super) fn unknown_formats(schema: &JSONSchemaProps) -> Vec<String> {
    let mut found: Vec<String> = text(&schema.format)
        .filter(|format| !FORMATS.contains(&format.replace('-', "").as_str()) && !FORMATS.contains(format))
        .map(str::to_owned)
        .into_iter()
        .collect();
    for_each_child(schema, &mut |child| found.extend(unknown_formats(child)));
    found
}

fn for_each_child(schema: &JSONSchemaProps, visit: &mut dyn FnMut(&JSONSchemaProps)) {
    schema.properties.iter().flatten().for_each(|(_, child)| visit(child));
    for list in [&schema.all_of, &schema.any_of, &schema.one_of] {
        list.iter().flatten().for_each(&mut *visit);
    }
    if let Some(not) = &schema.not {
        visit(not);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(child)) = &schema.additional_properties {
        visit(child);
    }
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(child)) => visit(child),
        Some(JSONSchemaPropsOrArray::Schemas(children)) => children.iter().for_each(visit),
        None => {}
    }
}

#[derive(Clone, Copy, Default)]
struct Context<'a> {
    is_root: bool,
    in_metadata: bool,
    /// Why there may be no defaults here.
    no_defaults: Option<&'a str>,
}

/// What a schema may say at all.
fn openapi(errors: &mut FieldErrors, path: &Path<'_>, schema: &JSONSchemaProps, context: &Context<'_>) {
    let below = Context { is_root: false, ..*context };
    let kind = or_empty(&schema.type_);
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.not_supported(path.child("type"), kind, TYPES);
    }
    if let Some(reason) = context.no_defaults.filter(|_| schema.default.is_some()) {
        errors.forbidden(path.child("default"), format!("must not be set {reason}"));
    }
    for (field, is_set) in [
        ("id", text(&schema.id).is_some()),
        ("additionalItems", schema.additional_items.is_some()),
        ("patternProperties", schema.pattern_properties.as_ref().is_some_and(|map| !map.is_empty())),
        ("definitions", schema.definitions.as_ref().is_some_and(|map| !map.is_empty())),
        ("dependencies", schema.dependencies.is_some()),
        ("$ref", schema.ref_path.is_some()),
    ] {
        if is_set {
            errors.forbidden(path.child(field), format!("{field} is not supported"));
        }
    }
    if kind == "null" {
        errors.forbidden(path.child("type"), "type cannot be set to null, use nullable as an alternative");
    }
    if context.in_metadata && schema.x_kubernetes_embedded_resource == Some(true) {
        errors.forbidden(path.child("x-kubernetes-embedded-resource"), "must not be used inside of resource meta");
    }
    if schema.unique_items == Some(true) {
        let rule = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(path.child("uniqueItems"), rule);
    }
    if let Some(additional) = &schema.additional_properties {
        let says_little = matches!(additional, JSONSchemaPropsOrBool::Bool(true));
        if schema.properties.as_ref().is_some_and(|map| !map.is_empty()) && !says_little {
            let rule = "additionalProperties and properties are mutual exclusive";
            errors.forbidden(path.child("additionalProperties"), rule);
        }
        if let JSONSchemaPropsOrBool::Schema(child) = additional {
            let reason = Some("inside additionalProperties applying to object metadata");
            let below = if context.in_metadata { Context { no_defaults: reason, ..below } } else { below };
            openapi(errors, &path.child("additionalProperties"), child, &below);
        }
    }
    for (name, child) in schema.properties.iter().flatten() {
        let is_resource = context.is_root || schema.x_kubernetes_embedded_resource == Some(true);
        let in_metadata = is_resource && matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
        let reason = format!("in top-level {name}");
        let below = Context {
            is_root: false,
            in_metadata: in_metadata || context.in_metadata,
            no_defaults: if in_metadata && context.is_root { Some(&reason) } else { context.no_defaults },
        };
        openapi(errors, &path.child("properties").key(name), child, &below);
    }
    if let Some(not) = &schema.not {
        openapi(errors, &path.child("not"), not, &below);
    }
    for (field, list) in [("allOf", &schema.all_of), ("oneOf", &schema.one_of), ("anyOf", &schema.any_of)] {
        for (index, child) in items(list).iter().enumerate() {
            openapi(errors, &path.child(field).index(index), child, &below);
        }
    }
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(child)) => openapi(errors, &path.child("items"), child, &below),
        Some(JSONSchemaPropsOrArray::Schemas(children)) => {
            errors.forbidden(path.child("items"), "items must be a schema object and not an array");
            for (index, child) in children.iter().enumerate() {
                openapi(errors, &path.child("items").index(index), child, &below);
            }
        }
        None => {}
    }
    for (name, dependency) in schema.dependencies.iter().flatten() {
        if let JSONSchemaPropsOrStringArray::Schema(child) = dependency {
            openapi(errors, &path.child("dependencies").key(name), child, &below);
        }
    }
    extensions(errors, path, schema);
}

/// The `x-kubernetes-*` fields that say how lists and maps merge.
fn extensions(errors: &mut FieldErrors, path: &Path<'_>, schema: &JSONSchemaProps) {
    let kind = or_empty(&schema.type_);
    if schema.x_kubernetes_preserve_unknown_fields == Some(false) {
        errors.invalid(path.child("x-kubernetes-preserve-unknown-fields"), false, "must be true or undefined");
    }
    for (field, value, wanted, supported) in [
        ("x-kubernetes-map-type", &schema.x_kubernetes_map_type, "object", &["atomic", "granular"][..]),
        ("x-kubernetes-list-type", &schema.x_kubernetes_list_type, "array", &["atomic", "set", "map"][..]),
    ] {
        let Some(value) = value else { continue };
        if kind != wanted {
            let rule = format!("must be {wanted} if {field} is specified");
            match kind {
                "" => errors.required(path.child("type"), rule),
                kind => errors.invalid(path.child("type"), kind, rule),
            }
        }
        if !supported.contains(&value.as_str()) {
            errors.not_supported(path.child(field), value, supported);
        }
    }
    let keys = items(&schema.x_kubernetes_list_map_keys);
    let list_type = or_empty(&schema.x_kubernetes_list_type);
    let at = path.child("x-kubernetes-list-map-keys");
    if list_type != "map" && !keys.is_empty() {
        if list_type.is_empty() {
            let rule = "must be map if x-kubernetes-list-map-keys is non-empty";
            errors.required(path.child("x-kubernetes-list-type"), rule);
        } else {
            let rule = "must be map if x-kubernetes-list-map-keys is non-empty";
            errors.invalid(path.child("x-kubernetes-list-type"), list_type, rule);
        }
    }
    let Some(JSONSchemaPropsOrArray::Schema(element)) = &schema.items else {
        if list_type == "map" {
            errors.required(path.child("items"), "must have a schema if x-kubernetes-list-type is map");
        }
        return;
    };
    let below = path.child("items");
    if matches!(list_type, "set" | "map") && element.nullable == Some(true) {
        let rule = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.forbidden(below.child("nullable"), rule);
    }
    let element_type = or_empty(&element.type_);
    if list_type == "set" {
        let rule = "must be atomic as item of a list with x-kubernetes-list-type=set";
        if element_type == "array" && text(&element.x_kubernetes_list_type).is_some_and(|list| list != "atomic") {
            errors.invalid(below.child("x-kubernetes-list-type"), &element.x_kubernetes_list_type, rule);
        }
        if element_type == "object" && element.x_kubernetes_map_type.as_deref() != Some("atomic") {
            errors.invalid(below.child("x-kubernetes-map-type"), &element.x_kubernetes_map_type, rule);
        }
    }
    if list_type != "map" {
        return;
    }
    if element_type != "object" {
        let rule = "must be object if parent array's x-kubernetes-list-type is map";
        errors.invalid(below.child("type"), element_type, rule);
    }
    if keys.is_empty() {
        errors.required(at, "must not be empty if x-kubernetes-list-type is map");
    }
    for (index, key) in keys.iter().enumerate() {
        let at = at.index(index);
        let Some(property) = element.properties.as_ref().and_then(|properties| properties.get(key)) else {
            errors.invalid(at, key, "entries must all be names of item properties");
            continue;
        };
        if keys[..index].contains(key) {
            errors.duplicate(at, key);
        }
        if matches!(property.type_.as_deref(), Some("array" | "object")) {
            let rule = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            errors.invalid(below.child("properties").key(key).child("type"), &property.type_, rule);
        }
        let is_required = items(&element.required).contains(key);
        if !is_required && property.default.is_none() {
            let rule =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.required(below.child("properties").key(key).child("default"), rule);
        }
        if property.nullable == Some(true) {
            let rule = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.forbidden(below.child("properties").key(key).child("nullable"), rule);
        }
    }
}

/// Whether the schema is structural (`ValidateStructural`).
fn structural(errors: &mut FieldErrors, path: &Path<'_>, schema: &JSONSchemaProps, level: Level) {
    let kind = or_empty(&schema.type_);
    let is_embedded = schema.x_kubernetes_embedded_resource == Some(true);
    let keeps_unknown = schema.x_kubernetes_preserve_unknown_fields == Some(true);
    let is_int_or_string = schema.x_kubernetes_int_or_string == Some(true);
    if kind == "array" && schema.items.is_none() {
        errors.required(path.child("items"), "must be specified");
    }
    if let Some(JSONSchemaPropsOrArray::Schema(element)) = &schema.items {
        structural(errors, &path.child("items"), element, Level::Item);
    }
    for (name, child) in schema.properties.iter().flatten() {
        structural(errors, &path.child("properties").key(name), child, Level::Field);
    }
    if let Some(additional) = &schema.additional_properties {
        let at = path.child("additionalProperties");
        if level == Level::Root {
            errors.forbidden(at, "must not be used at the root");
        }
        if let JSONSchemaPropsOrBool::Schema(child) = additional {
            structural(errors, &at, child, Level::Field);
        }
        if is_embedded {
            errors.forbidden(at, "must not be used if x-kubernetes-embedded-resource is set");
        }
    }
    if is_int_or_string && keeps_unknown {
        let rule = "must be false if x-kubernetes-int-or-string is true";
        errors.invalid(path.child("x-kubernetes-preserve-unknown-fields"), true, rule);
    }
    if is_int_or_string && is_embedded {
        let rule = "must be false if x-kubernetes-int-or-string is true";
        errors.invalid(path.child("x-kubernetes-embedded-resource"), true, rule);
    }
    logic(errors, path, schema, is_int_or_string);
    if is_embedded && kind != "object" {
        let rule = "must be object if x-kubernetes-embedded-resource is true";
        match kind {
            "" => errors.required(path.child("type"), rule),
            kind => errors.invalid(path.child("type"), kind, rule),
        }
    } else if kind.is_empty() && !is_int_or_string && !keeps_unknown {
        let place = match level {
            Level::Root => "at the root",
            Level::Item => "for specified array items",
            Level::Field => "for specified object fields",
        };
        errors.required(path.child("type"), format!("must not be empty {place}"));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.invalid(path.child("type"), kind, "must be object at the root");
    }
    let property = |name: &str| schema.properties.as_ref().and_then(|properties| properties.get(name));
    if level == Level::Root || is_embedded {
        for (name, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
            let found = property(name).map(|child| or_empty(&child.type_)).filter(|found| *found != wanted);
            if let Some(found) = found {
                let at = path.child("properties");
                errors.invalid(at.key(name).child("type"), found, format!("must be {wanted}"));
            }
        }
    }
    if level == Level::Root
        && let Some(metadata) = property("metadata")
        && metadata.properties.iter().flatten().any(|(name, _)| name != "name" && name != "generateName")
    {
        let rule = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.forbidden(path.child("properties").key("metadata"), rule);
    }
    if is_embedded && !keeps_unknown && schema.properties.as_ref().is_none_or(|properties| properties.is_empty()) {
        let rule = "must not be empty if x-kubernetes-embedded-resource is true without \
                    x-kubernetes-preserve-unknown-fields";
        errors.required(path.child("properties"), rule);
    }
    complete(errors, path, schema, schema);
}

/// Alternatives and conditions: they may restrict values, not say what a type is.
fn logic(errors: &mut FieldErrors, path: &Path<'_>, schema: &JSONSchemaProps, is_int_or_string: bool) {
    let is_integer_or_string = |list: &Option<Vec<JSONSchemaProps>>| {
        let types: Vec<&str> = items(list).iter().map(|schema| or_empty(&schema.type_)).collect();
        is_int_or_string && types == ["integer", "string"]
    };
    if !is_integer_or_string(&schema.any_of) {
        for (index, child) in items(&schema.any_of).iter().enumerate() {
            nested(errors, &path.child("anyOf").index(index), child, false);
        }
    }
    for (index, child) in items(&schema.all_of).iter().enumerate() {
        let skip = index == 0 && is_integer_or_string(&child.any_of);
        nested(errors, &path.child("allOf").index(index), child, skip);
    }
    for (index, child) in items(&schema.one_of).iter().enumerate() {
        nested(errors, &path.child("oneOf").index(index), child, false);
    }
    if let Some(not) = &schema.not {
        nested(errors, &path.child("not"), not, false);
    }
}

fn nested(errors: &mut FieldErrors, path: &Path<'_>, schema: &JSONSchemaProps, skip_any_of: bool) {
    logic(errors, path, schema, skip_any_of);
    if let Some(JSONSchemaPropsOrArray::Schema(element)) = &schema.items {
        nested(errors, &path.child("items"), element, false);
    }
    for (name, child) in schema.properties.iter().flatten() {
        nested(errors, &path.child("properties").key(name), child, false);
    }
    for (field, is_set) in [
        ("type", text(&schema.type_).is_some()),
        ("additionalProperties", schema.additional_properties.is_some()),
        ("title", text(&schema.title).is_some()),
        ("description", text(&schema.description).is_some()),
        ("default", schema.default.is_some()),
        ("nullable", schema.nullable == Some(true)),
    ] {
        if is_set {
            let word = match field {
                "additionalProperties" | "default" => "undefined",
                "nullable" => "false",
                _ => "empty",
            };
            errors.forbidden(path.child(field), format!("must be {word} to be structural"));
        }
    }
    for (field, value) in [
        ("x-kubernetes-preserve-unknown-fields", schema.x_kubernetes_preserve_unknown_fields),
        ("x-kubernetes-embedded-resource", schema.x_kubernetes_embedded_resource),
        ("x-kubernetes-int-or-string", schema.x_kubernetes_int_or_string),
    ] {
        if value == Some(true) {
            errors.forbidden(path.child(field), "must be false to be structural");
        }
    }
}

/// Every field that alternatives and conditions speak of must be specified outside of them.
fn complete(errors: &mut FieldErrors, path: &Path<'_>, schema: &JSONSchemaProps, outside: &JSONSchemaProps) {
    for list in [&schema.all_of, &schema.any_of, &schema.one_of] {
        items(list).iter().for_each(|child| specified(errors, path, child, outside));
    }
    if let Some(not) = &schema.not {
        specified(errors, path, not, outside);
    }
}

fn specified(errors: &mut FieldErrors, path: &Path<'_>, schema: &JSONSchemaProps, outside: &JSONSchemaProps) {
    for (name, child) in schema.properties.iter().flatten() {
        let at = path.child("properties");
        match outside.properties.as_ref().and_then(|properties| properties.get(name)) {
            Some(property) => specified(errors, &at.key(name), child, property),
            None if outside.x_kubernetes_preserve_unknown_fields == Some(true) => {}
            None => errors.required(at.key(name), "because it is defined in a logical constraint"),
        }
    }
    if let Some(JSONSchemaPropsOrArray::Schema(child)) = &schema.items {
        match &outside.items {
            Some(JSONSchemaPropsOrArray::Schema(element)) => specified(errors, &path.child("items"), child, element),
            _ => errors.required(path.child("items"), "because it is defined in a logical constraint"),
        }
    }
    complete(errors, path, schema, outside);
}

/// The fields that objects may be selected by: paths to single values outside of the metadata.
pub(super) fn check_selectable<'a>(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    schema: &JSONSchemaProps,
    fields: impl Iterator<Item = &'a str>,
) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, field) in fields.enumerate() {
        let element = path.index(index);
        let at = element.child("jsonPath");
        if field.is_empty() {
            errors.required(at, "");
            continue;
        }
        let mut place = Some(schema);
        for step in field.trim_start_matches('.').split('.') {
            place = place.and_then(|schema| schema.properties.as_ref()?.get(step));
        }
        let Some(place) = place.filter(|_| field.starts_with('.')) else {
            errors.invalid(at, field, "is an invalid path: does not refer to a valid field");
            continue;
        };
        if field.starts_with(".metadata.") || field == ".metadata" {
            errors.invalid(at, field, "must not point to fields in metadata");
        }
        if !matches!(place.type_.as_deref(), Some("string" | "boolean" | "integer")) {
            let rule = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                        formats are allowed.";
            errors.invalid(at, field, rule);
        }
        if seen.contains(&field) {
            errors.duplicate(at, field);
        } else {
            seen.push(field);
        }
    }
    if seen.len() > MAX_SELECTABLE {
        errors.too_many(path, seen.len(), MAX_SELECTABLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn problems(schema: Value) -> Vec<String> {
        let schema: JSONSchemaProps = serde_json::from_value(schema).unwrap();
        let mut errors = FieldErrors::default();
        check(&mut errors, &Path::new("s"), &schema, None, false);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn structural_schemas_pass() {
        for schema in [
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                "list": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
                "named": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}}},
                "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}},
                "oneOf": [{"properties": {"spec": {"properties": {"list": {"minItems": 1}}}}}]}),
        ] {
            assert!(problems(schema.clone()).is_empty(), "{schema}: {:?}", problems(schema.clone()));
        }
    }

    #[test]
    fn others_are_refused_with_the_place() {
        let with = |property: Value| json!({"type": "object", "properties": {"a": property}});
        for (schema, expected) in [
            (json!({}), "s.type: Required value: must not be empty at the root"),
            (json!({"type": "string"}), "s.type: Invalid value: \"string\": must be object at the root"),
            (with(json!({})), "s.properties[a].type: Required value: must not be empty for specified object fields"),
            (with(json!({"type": "array"})), "s.properties[a].items: Required value: must be specified"),
            (with(json!({"type": "strng"})), "s.properties[a].type: Unsupported value: \"strng\""),
            (with(json!({"type": "object", "$ref": "#/x"})), "s.properties[a].$ref: Forbidden: $ref is not supported"),
            (
                with(json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}})),
                "s.properties[a].uniqueItems: Forbidden",
            ),
            (
                with(json!({"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": false})),
                "additionalProperties and properties are mutual exclusive",
            ),
            (
                with(json!({"type": "string", "anyOf": [{"type": "string"}]})),
                "s.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
            ),
            (
                with(json!({"type": "object", "anyOf": [{"properties": {"b": {"minimum": 1}}}]})),
                "s.properties[a].properties[b]: Required value: because it is defined in a logical constraint",
            ),
            (
                with(json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}})),
                "s.properties[a].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
            ),
            (
                with(json!({"type": "string", "x-kubernetes-map-type": "atomic"})),
                "must be object if x-kubernetes-map-type is specified",
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
                "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName",
            ),
        ] {
            let found = problems(schema.clone());
            assert!(found.iter().any(|problem| problem.contains(expected)), "{schema}: {found:?}");
        }
        let schema: JSONSchemaProps =
            serde_json::from_value(with(json!({"type": "string", "format": "colour"}))).unwrap();
        assert_eq!(unknown_formats(&schema), ["colour"]);
    }
}
