//! Checks a decoded object against its schema: unknown fields, wrong types, quantities.

use serde_json::{Map, Value};

use super::{Field, Struct, Type};
use crate::first_paths::FirstPaths;
use crate::go::{self, join_path};
use crate::quantity::Quantity;

/// What Go's clients read as no time; upstream writes null.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// A value of the wrong type, in the words of upstream's decoder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TypeError(pub String);

/// Checks `value` and makes it fit for its typed form: unknown fields are taken out, quantities become
/// canonical, null members of lists and maps become empty values. Returns the paths of unknown fields.
pub fn check(value: &mut Value, definition: &Struct) -> Result<Vec<String>, TypeError> {
    run(value, definition, false)
}

/// As [`check`]; lists and maps that upstream would not write, being empty, are taken out too.
pub fn normalize(value: &mut Value, definition: &Struct) -> Result<Vec<String>, TypeError> {
    run(value, definition, true)
}

fn run(value: &mut Value, definition: &Struct, drops_empty: bool) -> Result<Vec<String>, TypeError> {
    let mut checker = Checker { unknown: FirstPaths::default(), path: Vec::new(), drops_empty };
    match value {
        Value::Object(fields) => checker.fields(fields, definition)?,
        other => {
            return Err(TypeError(format!(
                "json: cannot unmarshal {} into Go value of type {}",
                go::kind(other),
                go_struct(definition)
            )));
        }
    }
    Ok(checker.unknown.named())
}

struct Checker<'a> {
    unknown: FirstPaths,
    path: Vec<Step<'a>>,
    drops_empty: bool,
}

/// A step of the way to a value. It costs nothing unless there is something to say about the value.
#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

impl<'a> Checker<'a> {
    fn fields(&mut self, fields: &'a mut Map<String, Value>, definition: &Struct) -> Result<(), TypeError> {
        fields.retain(|name, value| match definition.field(name) {
            Some(field) => !(self.drops_empty && (field.omits(value) || field.is_empty_container(value))),
            None if definition.open => true,
            None => {
                let path = &self.path;
                self.unknown.add(|| join_path(&place(path), name));
                false
            }
        });
        for field in definition.times() {
            if fields.get(&*field.name).is_none_or(Value::is_null) {
                fields.insert(field.name.to_string(), ZERO_TIME.into());
            }
        }
        for (name, value) in fields.iter_mut() {
            let Some(field) = definition.field(name) else { continue };
            self.path.push(Step::Field(name));
            self.value(value, &field.ty, Some((definition, field)))?;
            self.path.pop();
        }
        Ok(())
    }

    fn value(&mut self, value: &'a mut Value, ty: &Type, owner: Option<(&Struct, &Field)>) -> Result<(), TypeError> {
        if value.is_null() {
            return Ok(());
        }
        if matches!(ty, Type::Int32 | Type::Int64 | Type::IntOrString) {
            without_sign(value);
        }
        let fits = match ty {
            Type::Any | Type::Deduced => true,
            Type::Bool => value.is_boolean(),
            Type::Int32 => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            Type::Int64 => value.as_i64().is_some(),
            Type::Number => value.is_number(),
            Type::String => value.is_string(),
            Type::Bytes => match value {
                Value::String(text) => return base64(text),
                _ => false,
            },
            Type::Time => match value {
                Value::String(text) => return time(text),
                _ => false,
            },
            Type::IntOrString => match value {
                Value::String(_) => true,
                Value::Number(number) => number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
                _ => false,
            },
            Type::Quantity => return quantity(value),
            Type::List(item) => match value {
                Value::Array(items) => {
                    for (i, value) in items.iter_mut().enumerate() {
                        fill_null(value, item);
                        self.path.push(Step::Item(i));
                        self.value(value, item, owner)?;
                        self.path.pop();
                    }
                    return Ok(());
                }
                _ => false,
            },
            Type::Map(item) => match value {
                Value::Object(entries) => {
                    for (key, value) in entries.iter_mut() {
                        fill_null(value, item);
                        self.path.push(Step::Field(key));
                        self.value(value, item, owner)?;
                        self.path.pop();
                    }
                    return Ok(());
                }
                _ => false,
            },
            Type::Struct(definition) => match value {
                Value::Object(fields) => return self.fields(fields, definition),
                _ => false,
            },
        };
        if fits { Ok(()) } else { Err(self.mismatch(value, ty, owner)) }
    }

    /// Upstream names the innermost structure and the path without indexes.
    fn mismatch(&self, value: &Value, ty: &Type, owner: Option<(&Struct, &Field)>) -> TypeError {
        let fields = self.path.iter().filter_map(|step| match step {
            Step::Field(name) => Some(*name),
            Step::Item(_) => None,
        });
        let path: Vec<&str> = fields.collect();
        let structure = owner.map_or("", |(definition, _)| definition.short_name());
        let shown = match value {
            Value::Number(number) if matches!(ty, Type::Int32 | Type::Int64 | Type::IntOrString) => {
                format!("number {number}")
            }
            other => go::kind(other).to_owned(),
        };
        TypeError(format!(
            "json: cannot unmarshal {shown} into Go struct field {structure}.{} of type {}",
            path.join("."),
            go_type(ty)
        ))
    }
}

fn place(path: &[Step<'_>]) -> String {
    path.iter().fold(String::new(), |place, step| match step {
        Step::Field(name) => join_path(&place, name),
        Step::Item(index) => format!("{place}[{index}]"),
    })
}

/// `-0`, which is a whole number for Go and none for serde.
fn without_sign(value: &mut Value) {
    if value.as_f64().is_some_and(|number| number == 0.0 && number.is_sign_negative()) {
        *value = 0.into();
    }
}

/// In lists and maps, upstream reads null as the zero of the element's type.
fn fill_null(value: &mut Value, ty: &Type) {
    if value.is_null() {
        *value = match ty {
            Type::Any | Type::Deduced => return,
            Type::Bool => Value::Bool(false),
            Type::Int32 | Type::Int64 | Type::Number => 0.into(),
            Type::String | Type::Bytes | Type::IntOrString | Type::Quantity => Value::String(String::new()),
            Type::Time => return,
            Type::List(_) => Value::Array(Vec::new()),
            Type::Map(_) | Type::Struct(_) => Value::Object(Map::new()),
        };
        if matches!(ty, Type::Quantity) {
            *value = Value::String("0".to_owned());
        }
    }
}

fn go_struct(definition: &Struct) -> String {
    let mut parts = definition.name.rsplit('.');
    let (name, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    format!("{version}.{name}")
}

fn go_type(ty: &Type) -> String {
    match ty {
        Type::Any | Type::Deduced => "interface {}".to_owned(),
        Type::Bool => "bool".to_owned(),
        Type::Int32 => "int32".to_owned(),
        Type::Int64 => "int64".to_owned(),
        Type::Number => "float64".to_owned(),
        Type::String => "string".to_owned(),
        Type::Bytes => "[]uint8".to_owned(),
        Type::Time => "v1.Time".to_owned(),
        Type::IntOrString => "int32".to_owned(),
        Type::Quantity => "resource.Quantity".to_owned(),
        Type::List(item) => format!("[]{}", go_type(item)),
        Type::Map(item) => format!("map[string]{}", go_type(item)),
        Type::Struct(definition) => go_struct(definition),
    }
}

fn quantity(value: &mut Value) -> Result<(), TypeError> {
    let text = match &*value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => {
            return Err(TypeError(format!("json: cannot unmarshal {} into Go value of type string", go::kind(other))));
        }
    };
    let quantity = Quantity::parse(&text).map_err(|error| TypeError(error.to_string()))?;
    *value = Value::String(quantity.to_string());
    Ok(())
}

pub(super) fn base64(text: &str) -> Result<(), TypeError> {
    let illegal = |at: usize| Err(TypeError(format!("illegal base64 data at input byte {at}")));
    let bytes: Vec<u8> = text.bytes().filter(|c| !matches!(c, b'\n' | b'\r')).collect();
    let digits = bytes.iter().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/')).count();
    let padding = bytes.len() - digits;
    let well_padded = match digits % 4 {
        0 => padding == 0,
        2 => padding == 2,
        3 => padding == 1,
        _ => false,
    };
    if !well_padded || !bytes[digits..].iter().all(|&c| c == b'=') {
        return illegal(if padding == 0 { digits - digits % 4 } else { digits });
    }
    Ok(())
}

pub(super) fn time(text: &str) -> Result<(), TypeError> {
    if text.parse::<jiff::Timestamp>().is_ok() {
        return Ok(());
    }
    Err(TypeError(format!("parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\"")))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::{Pod, Secret, Service};
    use serde_json::json;

    use super::*;
    use crate::schema::of;

    #[test]
    fn unknown_fields_are_named_and_removed() {
        let mut pod = json!({
            "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "labels": {"any": "x"}, "zone": 1},
            "spec": {"foo": 1, "containers": [{"name": "a"}, {"name": "b", "imag": "x", "env": [{"nam": "A"}]}]}
        });
        let unknown = check(&mut pod, &of::<Pod>()).unwrap();
        assert_eq!(unknown, ["metadata.zone", "spec.foo", "spec.containers[1].imag", "spec.containers[1].env[0].nam"]);
        assert_eq!(pod["spec"], json!({"containers": [{"name": "a"}, {"name": "b", "env": [{}]}]}));
    }

    #[test]
    fn times_that_cannot_be_absent_become_gos_zero() {
        for condition in [json!({"type": "A", "lastTransitionTime": null}), json!({"type": "A"})] {
            let mut service = json!({"status": {"conditions": [condition]}});
            assert!(crate::schema::fit(service.to_string().as_bytes(), &of::<Service>()).is_none());
            check(&mut service, &of::<Service>()).unwrap();
            let typed: Service = serde_json::from_value(service.clone()).unwrap();
            assert_eq!(
                serde_json::to_value(typed).unwrap()["status"],
                json!({"conditions": [{
                    "type": "A", "lastTransitionTime": "0001-01-01T00:00:00Z", "message": "", "reason": "", "status": "",
                }]})
            );
        }
        let mut pod = json!({"status": {"conditions": [{"type": "A", "lastTransitionTime": null}]}});
        check(&mut pod, &of::<Pod>()).unwrap();
        assert_eq!(pod["status"]["conditions"][0]["lastTransitionTime"], json!(null));
    }

    #[test]
    fn empty_lists_and_maps_are_as_good_as_absent() {
        let given = json!({
            "metadata": {"annotations": {}, "labels": {"a": "b"}, "finalizers": []},
            "spec": {"containers": [], "nodeSelector": {}, "volumes": [{"emptyDir": {}}, {"projected": {"sources": []}}]}
        });
        let mut pod = given.clone();
        normalize(&mut pod, &of::<Pod>()).unwrap();
        assert_eq!(
            pod,
            json!({
                "metadata": {"labels": {"a": "b"}},
                "spec": {"volumes": [{"emptyDir": {}}, {"projected": {}}]}
            })
        );
        let mut pod = given.clone();
        check(&mut pod, &of::<Pod>()).unwrap();
        assert_eq!(pod, given, "what is applied is owned, empty or not");
    }

    #[test]
    fn wrong_types_read_like_upstream() {
        for (mut value, expected) in [
            (
                json!({"spec": {"replicas": "x"}}),
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!({"spec": {"replicas": 1.5}}),
                "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": [{"name": 1}]}}}}),
                "json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.name of type string",
            ),
            (
                json!({"spec": []}),
                "json: cannot unmarshal array into Go struct field Deployment.spec of type v1.DeploymentSpec",
            ),
            (json!([]), "json: cannot unmarshal array into Go value of type v1.Deployment"),
        ] {
            assert_eq!(check(&mut value, &of::<Deployment>()).unwrap_err().0, expected);
        }
    }

    #[test]
    fn quantities_become_canonical_and_bytes_are_base64() {
        let mut pod = json!({"spec": {"containers": [{"resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}}}]}});
        check(&mut pod, &of::<Pod>()).unwrap();
        let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(limits, &json!({"cpu": "500m", "memory": "1Gi"}));
        let mut secret = json!({"data": {"a": "%%%"}});
        assert_eq!(check(&mut secret, &of::<Secret>()).unwrap_err().0, "illegal base64 data at input byte 0");
        let mut secret = json!({"data": {"a": "YQ=="}});
        assert!(check(&mut secret, &of::<Secret>()).unwrap().is_empty());
    }
}
