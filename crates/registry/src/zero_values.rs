//! What holds for the zero values of every kind: stored objects have those that Go writes and no others, and a client that
//! sends what is stored anyway changes nothing.

use std::collections::BTreeSet;

use api::schema::{Struct, Type, Zero};
use serde_json::Value;

use super::table::resources;
use super::{Call, Serving, random};

const SEEDS: std::ops::Range<u64> = 0..40;

/// Names what should not be there, or should be.
fn check(value: &Value, ty: &Type, path: &str, problems: &mut BTreeSet<String>) {
    match (value, ty) {
        (Value::Object(fields), Type::Struct(definition)) => check_fields(fields, definition, path, problems),
        (Value::Object(entries), Type::Map(item)) => {
            entries.values().for_each(|value| check(value, item, &format!("{path}[]"), problems));
        }
        (Value::Array(items), Type::List(item)) => {
            items.iter().for_each(|value| check(value, item, &format!("{path}[]"), problems));
        }
        _ => {}
    }
}

fn check_fields(
    fields: &serde_json::Map<String, Value>,
    definition: &Struct,
    path: &str,
    problems: &mut BTreeSet<String>,
) {
    for field in definition.fields() {
        let path = format!("{path}.{}", field.name);
        let Some(value) = fields.get(&*field.name) else {
            let is_missing = matches!(field.zero, Zero::Written | Zero::Null)
                || (field.zero == Zero::Kept && field.required && !matches!(field.ty, Type::Struct(_)));
            if is_missing {
                problems.insert(format!("{path} is missing"));
            }
            continue;
        };
        let is_empty = match value {
            Value::Bool(value) => !value,
            Value::Number(number) => number.as_i64() == Some(0),
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(entries) => entries.is_empty() && matches!(field.ty, Type::Map(_)),
            Value::Null => false,
        };
        let is_list = matches!(field.ty, Type::List(_) | Type::Map(_) | Type::Bytes);
        if (is_empty && (field.zero == Zero::Omitted || is_list)) || (value.is_null() && field.zero != Zero::Null) {
            problems.insert(format!("{path} is {value}"));
        }
        check(value, &field.ty, &path, problems);
    }
}

/// Where two objects differ.
fn differences(a: &Value, b: &Value, path: &str, found: &mut BTreeSet<String>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()) {
                let none = Value::String("(absent)".to_owned());
                let (a, b) = (a.get(key).unwrap_or(&none), b.get(key).unwrap_or(&none));
                differences(a, b, &format!("{path}.{key}"), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).for_each(|(a, b)| differences(a, b, &format!("{path}[]"), found));
        }
        _ if a == b => {}
        _ => drop(found.insert(format!("{path}: {a} is stored as {b}"))),
    }
}

#[test]
fn stored_objects_of_every_kind_have_the_zero_values_that_go_writes() {
    let user = api::UserInfo::anonymous();
    let call = Call { user: &user, now: jiff::Timestamp::UNIX_EPOCH };
    let mut problems = BTreeSet::new();
    for row in resources().iter().filter(|row| row.serving == Serving::Stored) {
        let (strategy, schema) = (&row.strategy, row.strategy.schema());
        for seed in SEEDS {
            let given = random::object_with_zeros(&schema, seed);
            let mut value = given.clone();
            assert!(strategy.normalize(&mut value).unwrap().is_empty(), "{row:?} {seed}");
            let mut object = strategy.decode_value(value).unwrap();
            if let Some(fitting) = strategy.decode_fitting(given.to_string().as_bytes()) {
                assert!(fitting.same(&*object), "{row:?} {seed}: the short way reads something else");
            }
            strategy.apply_defaults(&mut *object);
            strategy.prepare_for_create(&call, &mut *object);
            object.fill_status();
            let text = object.to_json().unwrap();
            let stored: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(stored, object.to_value().unwrap(), "{row:?} {seed}");
            check_fields(stored.as_object().unwrap(), &schema, &format!("{row:?} "), &mut problems);
            // What is read back is compared with what clients send: nothing may have been lost or added on the way.
            let mut read = strategy.decode(&text).unwrap();
            read.meta_mut().managed_fields = object.meta().managed_fields.clone();
            if !read.same(&*object) {
                let plain = |object: &dyn super::Object| object.plain_value();
                let (before, after) = (plain(&*object), plain(&*read));
                differences(&before, &after, &format!("{row:?} "), &mut problems);
            }
        }
    }
    let problems: Vec<String> = problems.into_iter().collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Every structure that stored kinds are made of is in the table: one that is not would keep its zeros.
#[test]
fn the_table_has_every_structure_that_is_stored() {
    fn visit(ty: &Type, seen: &mut BTreeSet<String>) {
        match ty {
            Type::List(item) | Type::Map(item) => visit(item, seen),
            Type::Struct(definition) if seen.insert(definition.name.to_string()) => {
                definition.fields().iter().for_each(|field| visit(&field.ty, seen));
            }
            _ => {}
        }
    }
    let mut seen = BTreeSet::new();
    for row in resources().iter().filter(|row| row.serving == Serving::Stored) {
        visit(&Type::Struct(row.strategy.schema()), &mut seen);
    }
    let mut known = BTreeSet::new();
    let mut package = "";
    for line in api::schema::MESSAGES.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix("package ") {
            Some(name) => package = name,
            None => drop(known.insert(format!("{package}.{}", line.split(' ').next().unwrap()))),
        }
    }
    // Left Kubernetes with v1.14, and nothing in it is ever zero.
    seen.remove("io.k8s.api.admissionregistration.v1alpha1.InitializerConfiguration");
    let missing: Vec<&String> =
        seen.iter().filter(|name| !known.iter().any(|message| name.ends_with(&format!(".{message}")))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
