//! The schema as server-side apply reads it: which fields are owned one by one, and which as a whole. And as expressions
//! about the kind see it, to whom scalars matter too.

use api::schema::{Field, Merge, Struct, StructRef, Type};
use k8s_openapi::api::core::v1::ConfigMap;

use super::expressions;
use super::schema::{Additional, Kind, OBJECT_FIELDS, Schema};

/// The type of a whole object. Whether a scalar is the right one is for validation to say.
pub(super) fn root(name: &str, schema: &Schema) -> StructRef {
    resource(name, schema, |_| Type::Any).into()
}

/// The same with the types of scalars.
pub(super) fn typed_root(name: &str, schema: &Schema) -> StructRef {
    resource(name, schema, scalar).into()
}

fn scalar(schema: &Schema) -> Type {
    match schema.kind.filter(|_| !schema.int_or_string) {
        Some(Kind::Boolean) => Type::Bool,
        Some(Kind::Integer) => Type::Int64,
        Some(Kind::Number) => Type::Number,
        Some(Kind::String) => match expressions::format(schema) {
            "byte" => Type::Bytes,
            "date" | "date-time" | "datetime" => Type::Time,
            // There are no durations in objects of the server's own.
            "duration" => Type::Any,
            _ => Type::String,
        },
        Some(Kind::Array | Kind::Object) | None => Type::Any,
    }
}

/// What a scalar is.
type Scalar = fn(&Schema) -> Type;

/// An object with `apiVersion`, `kind` and `metadata`.
fn resource(name: &str, schema: &Schema, scalar: Scalar) -> Struct {
    let metadata = api::schema::of::<ConfigMap>().field("metadata").map_or(Type::Any, |field| field.ty.clone());
    let mut fields = fields(schema, scalar);
    for known in OBJECT_FIELDS {
        let ty = if known == "metadata" { metadata.clone() } else { Type::Any };
        fields.push(field(known, ty, None));
    }
    Struct::new(name, fields).open(schema.keeps_unknown)
}

fn fields(schema: &Schema, scalar: Scalar) -> Vec<Field> {
    let properties = schema.properties.iter();
    let mut fields: Vec<Field> =
        properties.map(|(name, property)| field(name, ty(property, scalar), merge(property))).collect();
    for (field, (_, property)) in fields.iter_mut().zip(&schema.properties) {
        let default = property.default.as_ref().and_then(serde_json::Value::as_str);
        field.key_default = default.map(api::schema::interned);
    }
    fields
}

fn field(name: &str, ty: Type, merge: Option<Merge>) -> Field {
    let zero = api::schema::Zero::Kept;
    Field { name: name.into(), ty, merge, key_default: None, granular: false, required: false, zero }
}

fn merge(schema: &Schema) -> Option<Merge> {
    if schema.is_atomic {
        return Some(Merge { atomic: true, ..Merge::ATOMIC_LIST });
    }
    schema.list.map(|list| Merge { list, ..Merge::ATOMIC_LIST })
}

fn ty(schema: &Schema, scalar: Scalar) -> Type {
    let is_object = matches!(schema.kind, Some(Kind::Object) | None);
    match (&schema.additional, &schema.items) {
        _ if schema.is_embedded => Type::Struct(resource("", schema, scalar).into()),
        (Additional::Like(element), _) if is_object => Type::Map(Box::new(ty(element, scalar))),
        _ if schema.kind == Some(Kind::Object) && !schema.properties.is_empty() => {
            let mut definition = Struct::new("", fields(schema, scalar)).open(schema.keeps_unknown);
            definition.atomic = schema.is_atomic;
            Type::Struct(definition.into())
        }
        (Additional::Anything, _) if is_object => Type::Deduced,
        _ if schema.keeps_unknown => Type::Deduced,
        (_, Some(element)) if schema.kind == Some(Kind::Array) => Type::List(Box::new(ty(element, scalar))),
        _ if schema.kind == Some(Kind::Object) => Type::Struct(Struct::new("", Vec::new()).into()),
        _ => scalar(schema),
    }
}

#[cfg(test)]
mod tests {
    use api::patch::apply::{Writer, apply};
    use serde_json::{Value, json};

    use super::*;

    fn applied(live: Option<&Value>, config: Value, manager: &str, force: bool) -> Result<Value, String> {
        let schema: Schema = Schema::root(
            &serde_json::from_value(json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "named": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "string"}}}},
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "list": {"type": "array", "items": {"type": "string"}},
                "atomic": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}))
            .unwrap(),
        );
        let now = jiff::Timestamp::UNIX_EPOCH;
        let writer = Writer { manager, api_version: "e.com/v1", versions: None, subresource: "", now };
        apply(live, &config, &root("K", &schema), &writer, force, &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn lists_and_maps_merge_as_they_say() {
        let config =
            |spec: Value| json!({"apiVersion": "e.com/v1", "kind": "K", "metadata": {"name": "n"}, "spec": spec});
        let first = applied(
            None,
            config(json!({"named": [{"name": "a", "v": "1"}], "set": ["x"], "open": {"p": {"q": 1}}, "atomic": {"k": "1"}})),
            "one",
            false,
        )
        .unwrap();
        let second = config(json!({"named": [{"name": "b", "v": "2"}], "set": ["y"], "open": {"r": 2}}));
        let merged = applied(Some(&first), second, "two", false).unwrap();
        assert_eq!(merged["spec"]["named"], json!([{"name": "a", "v": "1"}, {"name": "b", "v": "2"}]));
        assert_eq!(merged["spec"]["set"], json!(["x", "y"]));
        assert_eq!(merged["spec"]["open"], json!({"p": {"q": 1}, "r": 2}));
        let conflict = applied(Some(&merged), config(json!({"atomic": {"l": "2"}})), "two", false).unwrap_err();
        assert!(conflict.contains(".spec.atomic"), "{conflict}");
        let forced = applied(Some(&merged), config(json!({"atomic": {"l": "2"}})), "two", true).unwrap();
        assert_eq!(forced["spec"]["atomic"], json!({"l": "2"}));
    }
}
