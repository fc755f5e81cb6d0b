//! Random objects that fit a schema, to hold every strategy to rules that no example covers.

use api::schema::{Struct, Type};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value};

/// The same object for the same seed.
pub(super) fn object(schema: &Struct, seed: u64) -> Value {
    let mut random = StdRng::seed_from_u64(seed);
    let mut value = Value::Object(fields(schema, &mut random, 0));
    value["metadata"]["name"] = "a".into();
    value["metadata"]["uid"] = "u".into();
    value
}

/// As [`object`], with a good part of its fields set to what Go's types have before anyone sets them.
pub(super) fn object_with_zeros(schema: &Struct, seed: u64) -> Value {
    let mut value = object(schema, seed);
    if let Value::Object(fields) = &mut value {
        zero_some(fields, schema, &mut StdRng::seed_from_u64(!seed));
    }
    value["metadata"]["name"] = "a".into();
    value["metadata"]["uid"] = "u".into();
    value
}

fn zero_some(fields: &mut Map<String, Value>, schema: &Struct, random: &mut StdRng) {
    for (name, value) in fields {
        let Some(field) = schema.field(name) else { continue };
        if random.random_bool(0.4) {
            let zero = match field.ty {
                Type::Bool => false.into(),
                Type::Int32 | Type::Int64 => 0.into(),
                Type::String | Type::Bytes => "".into(),
                Type::List(_) => Value::Array(Vec::new()),
                Type::Map(_) => Value::Object(Map::new()),
                _ => value.clone(),
            };
            *value = zero;
        }
        match (value, &field.ty) {
            (Value::Object(fields), Type::Struct(definition)) => zero_some(fields, definition, random),
            (Value::Array(items), Type::List(item)) => {
                for item_fields in items.iter_mut().filter_map(Value::as_object_mut) {
                    if let Type::Struct(definition) = &**item {
                        zero_some(item_fields, definition, random);
                    }
                }
            }
            _ => {}
        }
    }
}

fn fields(schema: &Struct, random: &mut StdRng, depth: usize) -> Map<String, Value> {
    let mut fields = Map::new();
    // The decoder knows what kind it decodes and refuses any other name.
    let is_object = schema.field("metadata").is_some();
    for field in schema.fields().iter().filter(|field| !is_object || !matches!(&*field.name, "apiVersion" | "kind")) {
        // Sparser with depth, or a pod would be a megabyte.
        // A time that must be set has no other way to be absent.
        let keep = matches!(&*field.name, "spec" | "metadata" | "template")
            || matches!(field.ty, Type::Time)
            || random.random_ratio(3, 3 + 2 * depth as u32);
        if keep && depth < 12 {
            fields.insert(field.name.to_string(), value(&field.ty, random, depth + 1));
        }
    }
    fields
}

fn value(ty: &Type, random: &mut StdRng, depth: usize) -> Value {
    const WORDS: &[&str] =
        &["", "a", "Always", "TCP", "RollingUpdate", "-x", "10.0.0.1", "80%", "é/ü", "None", "Indexed"];
    match ty {
        Type::Any | Type::Deduced => Value::Object(Map::new()),
        Type::Bool => random.random_bool(0.5).into(),
        Type::Int32 => random.random_range(-2..70_000).into(),
        Type::Int64 => random.random_range(-2i64..70_000).into(),
        Type::Number => 1.5.into(),
        Type::String => pick(random, WORDS),
        Type::Bytes => pick(random, &["", "YQ=="]),
        Type::Time => pick(random, &["2026-01-01T00:00:00Z"]),
        Type::IntOrString if random.random_bool(0.5) => random.random_range(-2..200).into(),
        Type::IntOrString => pick(random, &["", "25%", "http"]),
        Type::Quantity => pick(random, &["0", "1500m", "-1", "1Gi", "1n"]),
        Type::List(item) => (0..random.random_range(0..3)).map(|_| value(item, random, depth + 1)).collect(),
        Type::Map(item) => {
            let count = random.random_range(0..3);
            (0..count).map(|i| (["a", "b/c", ""][i].to_owned(), value(item, random, depth + 1))).collect()
        }
        Type::Struct(definition) => Value::Object(fields(definition, random, depth)),
    }
}

fn pick(random: &mut StdRng, words: &[&str]) -> Value {
    words[random.random_range(0..words.len())].into()
}
