//! Reduces the schemas that `k8s-openapi` generates to [`super::Type`]s, and keeps them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

use super::{Field, Struct, StructRef, Type, table, zero};

/// Every definition met so far, by name. It only grows, and no further than the API has types.
static DEFINITIONS: LazyLock<Mutex<HashMap<String, StructRef>>> = LazyLock::new(Mutex::default);

/// The schema of a kind. The first call for a kind generates and reduces it; the full text with its
/// descriptions is dropped again.
pub fn of<K: JsonSchema>() -> StructRef {
    named(&K::schema_name(), |generator| drop(generator.subschema_for::<K>()))
}

fn named(name: &str, describe: fn(&mut SchemaGenerator)) -> StructRef {
    let mut known = DEFINITIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(definition) = known.get(name) {
        return definition.clone();
    }
    let mut generator = SchemaGenerator::default();
    describe(&mut generator);
    let definitions = generator.take_definitions(false);
    let mut builder = Builder { definitions: &definitions, known: &mut known };
    match builder.definition(name) {
        Type::Struct(definition) => definition,
        // Only aliases (Time, Quantity...) end here, and nobody decodes those alone.
        _ => StructRef::from(Struct::new(name, Vec::new())),
    }
}

struct Builder<'a> {
    definitions: &'a Map<String, Value>,
    known: &'a mut HashMap<String, StructRef>,
}

impl Builder<'_> {
    fn definition(&mut self, name: &str) -> Type {
        match name.rsplit('.').next().unwrap_or(name) {
            "IntOrString" => return Type::IntOrString,
            "Quantity" => return Type::Quantity,
            "Time" | "MicroTime" => return Type::Time,
            "RawExtension"
            | "FieldsV1"
            | "JSON"
            | "JSONSchemaPropsOrArray"
            | "JSONSchemaPropsOrBool"
            | "JSONSchemaPropsOrStringArray" => return Type::Any,
            _ => {}
        }
        if let Some(definition) = self.known.get(name) {
            return Type::Struct(definition.clone());
        }
        let Some(schema) = self.definitions.get(name) else {
            return Type::Any;
        };
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            // A structure without fields, such as an empty marker struct, still refuses unknown ones.
            return match schema.get("type").and_then(Value::as_str) {
                Some("object") if schema.get("additionalProperties").is_none() => {
                    let definition = StructRef::from(Struct::new(name, Vec::new()));
                    self.known.insert(name.to_owned(), definition.clone());
                    Type::Struct(definition)
                }
                _ => self.inline(schema),
            };
        };
        let definition = StructRef(Arc::new(OnceLock::new()));
        self.known.insert(name.to_owned(), definition.clone());
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |field: &String| required.is_some_and(|all| all.iter().any(|name| name == field));
        let marks = zero::Marks::of(name);
        let fields = properties
            .iter()
            .map(|(field, schema)| {
                let (ty, required) = (self.inline(schema), is_required(field));
                Field {
                    name: field.as_str().into(),
                    merge: table::merge(name, field),
                    key_default: table::key_default(name, field),
                    granular: table::is_granular(name, field),
                    zero: marks.zero(field, &ty, required),
                    required,
                    ty,
                }
            })
            .collect();
        // Set exactly once: the name was not known a moment ago, and the lock is held throughout.
        let _ = definition.0.set(Struct::new(name, fields));
        Type::Struct(definition)
    }

    fn inline(&mut self, schema: &Value) -> Type {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let name = reference.rsplit('/').next().unwrap_or(reference);
            return self.definition(name);
        }
        let text = |key: &str| schema.get(key).and_then(Value::as_str);
        match (text("type"), text("format")) {
            (Some("boolean"), _) => Type::Bool,
            (Some("integer"), Some("int32")) => Type::Int32,
            (Some("integer"), _) => Type::Int64,
            (Some("number"), _) => Type::Number,
            (Some("string"), Some("byte")) => Type::Bytes,
            (Some("string"), Some("date-time")) => Type::Time,
            (Some("string"), _) => Type::String,
            (Some("array"), _) => {
                Type::List(Box::new(schema.get("items").map_or(Type::Any, |items| self.inline(items))))
            }
            (Some("object"), _) => match schema.get("additionalProperties") {
                Some(values) => Type::Map(Box::new(self.inline(values))),
                None => Type::Any,
            },
            _ if schema.get("x-kubernetes-int-or-string").is_some() => Type::IntOrString,
            _ => Type::Any,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::{Pod, Service};
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

    use super::*;
    use crate::schema::ListType;

    #[test]
    fn kinds_have_types_and_merge_rules() {
        let pod = of::<Pod>();
        assert!(pod.field("apiVersion").is_some() && pod.field("kind").is_some());
        let spec = pod.field("spec").unwrap().ty.as_struct().unwrap();
        let containers = spec.field("containers").unwrap();
        assert_eq!(containers.merge.unwrap().list, ListType::Map(&["name"]));
        let Type::List(container) = &containers.ty else { panic!("not a list") };
        let ports = container.as_struct().unwrap().field("ports").unwrap();
        assert_eq!(ports.merge.unwrap().patch_key, Some("containerPort"));
        assert!(matches!(spec.field("nodeSelector").unwrap().ty, Type::Map(_)));
        let service = of::<Service>();
        let spec = service.field("spec").unwrap().ty.as_struct().unwrap();
        assert!(spec.field("selector").unwrap().merge.unwrap().atomic);
    }

    #[test]
    fn shared_definitions_exist_once() {
        let template = |kind: &StructRef| {
            let spec = kind.field("spec").unwrap().ty.as_struct().unwrap();
            let template = spec.field("template").unwrap().ty.as_struct().unwrap();
            std::ptr::from_ref(template)
        };
        let replica_set = of::<k8s_openapi::api::apps::v1::ReplicaSet>();
        assert_eq!(template(&of::<Deployment>()), template(&replica_set));
        assert_eq!(&*of::<Deployment>().name, "io.k8s.api.apps.v1.Deployment");
    }

    #[test]
    fn recursive_schemas_are_linked() {
        let definition = of::<CustomResourceDefinition>();
        assert_eq!(definition.short_name(), "CustomResourceDefinition");
        let known = DEFINITIONS.lock().unwrap();
        let props = known.values().find(|d| d.short_name() == "JSONSchemaProps").unwrap();
        let Type::Map(inner) = &props.field("properties").unwrap().ty else { panic!("not a map") };
        assert!(std::ptr::eq(inner.as_struct().unwrap(), &**props));
    }
}
