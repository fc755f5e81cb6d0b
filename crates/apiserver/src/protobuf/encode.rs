//! JSON values as Kubernetes protobuf, for clients that accept nothing else.
//!
//! The way back of `decode`, over the same table. Every client reads what is left out as zero, so only what a value says is
//! written.

use base64::Engine;
use serde_json::{Map, Value};

use super::{Field, Kind, Label, MAGIC, MESSAGES, Message, message_name};

/// An object, a list or a status in its envelope. None if its kind has no protobuf form, as custom kinds and tables do not.
pub(crate) fn encode(value: &Value) -> Option<Vec<u8>> {
    let object = value.as_object()?;
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let (api_version, kind) = (text("apiVersion")?, text("kind")?);
    let mut raw = Vec::new();
    if let Some(message) = MESSAGES.get(&message_name(api_version, kind)) {
        message.write(object, &mut raw)?;
    } else {
        let item = MESSAGES.get(&message_name(api_version, kind.strip_suffix("List")?))?;
        write_list(object, item, &mut raw)?;
    }
    let mut meta = Vec::new();
    put_bytes(1, api_version.as_bytes(), &mut meta);
    put_bytes(2, kind.as_bytes(), &mut meta);
    let mut out = MAGIC.to_vec();
    put_bytes(1, &meta, &mut out);
    put_bytes(2, &raw, &mut out);
    put_bytes(3, b"", &mut out);
    put_bytes(4, b"", &mut out);
    Some(out)
}

/// One event of a watch: its length, and the event around the object in its envelope.
pub(crate) fn frame(change: &str, object: &[u8]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(object.len() + 8);
    put_bytes(1, object, &mut raw);
    let mut event = Vec::with_capacity(raw.len() + 32);
    put_bytes(1, change.as_bytes(), &mut event);
    put_bytes(2, &raw, &mut event);
    let mut out = Vec::with_capacity(event.len() + 4);
    out.extend_from_slice(&(event.len() as u32).to_be_bytes());
    out.append(&mut event);
    out
}

/// All lists are alike: their metadata, and the items.
fn write_list(object: &Map<String, Value>, item: &Message, out: &mut Vec<u8>) -> Option<()> {
    let metadata = MESSAGES.get("meta.v1.ListMeta")?;
    let mut bytes = Vec::new();
    if let Some(Value::Object(fields)) = object.get("metadata") {
        metadata.write(fields, &mut bytes)?;
    }
    put_bytes(1, &bytes, out);
    for value in object.get("items").and_then(Value::as_array)? {
        bytes.clear();
        item.write(value.as_object()?, &mut bytes)?;
        put_bytes(2, &bytes, out);
    }
    Some(())
}

impl Message {
    /// Writes the fields of an object. None if one of them is not of its type.
    fn write(&self, object: &Map<String, Value>, out: &mut Vec<u8>) -> Option<()> {
        for (number, field) in &self.fields {
            if field.inline {
                let Kind::Message(name) = field.kind else { continue };
                let mut bytes = Vec::new();
                self.message(name)?.write(object, &mut bytes)?;
                if !bytes.is_empty() {
                    put_bytes(*number, &bytes, out);
                }
                continue;
            }
            let value = match object.get(field.name) {
                None | Some(Value::Null) => continue,
                Some(value) => value,
            };
            match field.label {
                Label::Single => self.put(*number, field, value, out)?,
                Label::Repeated => value.as_array()?.iter().try_for_each(|item| self.put(*number, field, item, out))?,
                Label::Map => {
                    for (key, value) in value.as_object()? {
                        let mut entry = Vec::new();
                        put_bytes(1, key.as_bytes(), &mut entry);
                        self.put(2, field, value, &mut entry)?;
                        put_bytes(*number, &entry, out);
                    }
                }
            }
        }
        Some(())
    }

    fn put(&self, number: u32, field: &Field, value: &Value, out: &mut Vec<u8>) -> Option<()> {
        match field.kind {
            Kind::Text => put_bytes(number, value.as_str()?.as_bytes(), out),
            Kind::Bool => put_number(number, u64::from(value.as_bool()?), out),
            Kind::Integer => put_number(number, integer(value)? as u64, out),
            Kind::Double => {
                put_varint(u64::from(number) << 3 | 1, out);
                out.extend_from_slice(&value.as_f64()?.to_bits().to_le_bytes());
            }
            Kind::Bytes => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str()?).ok()?;
                put_bytes(number, &bytes, out);
            }
            Kind::Message(name) => {
                let mut bytes = Vec::new();
                if !special(name.rsplit('.').next().unwrap_or(name), value, &mut bytes)? {
                    let message = self.message(name)?;
                    match wrapped(name, value) {
                        Some(wrapped) => message.write(&wrapped, &mut bytes)?,
                        None => message.write(value.as_object()?, &mut bytes)?,
                    }
                }
                put_bytes(number, &bytes, out);
            }
        }
        Some(())
    }
}

/// Types whose JSON form is not an object of their fields. Returns whether it is one of them.
fn special(name: &str, value: &Value, out: &mut Vec<u8>) -> Option<bool> {
    match name {
        // The zero time.
        "Time" | "MicroTime" if value.is_null() => {}
        "Time" | "MicroTime" => {
            let time: jiff::Timestamp = value.as_str()?.parse().ok()?;
            put_number(1, time.as_second() as u64, out);
            put_number(2, i64::from(time.subsec_nanosecond()) as u64, out);
        }
        "Duration" => put_number(1, api::duration::parse_signed(value.as_str()?).ok()? as u64, out),
        "Quantity" => match value {
            Value::String(text) => put_bytes(1, text.as_bytes(), out),
            other => put_bytes(1, other.to_string().as_bytes(), out),
        },
        "IntOrString" => match value {
            Value::String(text) => {
                put_number(1, 1, out);
                put_number(2, 0, out);
                put_bytes(3, text.as_bytes(), out);
            }
            number => {
                put_number(1, 0, out);
                put_number(2, integer(number)? as u64, out);
                put_bytes(3, b"", out);
            }
        },
        "RawExtension" | "FieldsV1" | "JSON" => {
            if !value.is_null() {
                put_bytes(1, value.to_string().as_bytes(), out);
            }
        }
        _ => return Some(false),
    }
    Some(true)
}

/// The fields of a message that exists only because protobuf has no lists of lists or unions.
fn wrapped(name: &str, value: &Value) -> Option<Map<String, Value>> {
    let of = |key: &str| Map::from_iter([(key.to_owned(), value.clone())]);
    Some(match (name, value) {
        ("ExtraValue" | "AttestationValue", Value::Array(_)) => of("items"),
        ("JSONSchemaPropsOrArray", Value::Array(_)) => of("jSONSchemas"),
        ("JSONSchemaPropsOrBool", Value::Bool(_)) => of("allows"),
        ("JSONSchemaPropsOrStringArray", Value::Array(_)) => of("property"),
        ("JSONSchemaPropsOrBool", _) => {
            let mut fields = of("schema");
            fields.insert("allows".to_owned(), true.into());
            fields
        }
        ("JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray", _) => of("schema"),
        _ => return None,
    })
}

fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_u64().map(|number| number as i64))
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_number(number: u32, value: u64, out: &mut Vec<u8>) {
    put_varint(u64::from(number) << 3, out);
    put_varint(value, out);
}

fn put_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(u64::from(number) << 3 | 2, out);
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::decode;
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for object in [
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "labels": {"a": "b"},
                "creationTimestamp": "2026-01-02T03:04:05Z", "managedFields": [{"manager": "m", "operation": "Update",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:x": {}}}}]},
                "spec": {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "w", "emptyDir": {}}],
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "c", "resources": {"limits": {"cpu": "500m"}}, "livenessProbe":
                        {"httpGet": {"port": "web"}}, "readinessProbe": {"tcpSocket": {"port": 80}}}]}}),
            json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}, "data": {"k": "AAECAw=="}}),
            json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "l"},
                "spec": {"renewTime": "2026-01-02T03:04:05.000006Z"}}),
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "m",
                "reason": "NotFound", "details": {"name": "p", "kind": "pods", "causes": [{"reason": "r"}]}, "code": 404}),
            json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "metadata": {"name": "d"}, "spec":
                {"group": "g", "scope": "Cluster", "names": {"plural": "p", "kind": "K"}, "versions": [{"name": "v1",
                "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "default": {"a": [1]},
                "properties": {"a": {"items": {"type": "string"}}, "b": {"additionalProperties": true},
                "c": {"additionalProperties": {"type": "number", "maximum": 1.5}}}}}}]}}),
        ] {
            let bytes = encode(&object).unwrap_or_else(|| panic!("{object}"));
            assert_eq!(decode(&bytes).unwrap(), object);
        }
    }

    #[test]
    fn custom_kinds_and_tables_have_no_such_form() {
        for object in [
            json!({"kind": "Thing", "apiVersion": "example.com/v1", "metadata": {}}),
            json!({"kind": "ThingList", "apiVersion": "example.com/v1", "metadata": {}, "items": []}),
            json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": []}),
            json!({"kind": "Pod", "apiVersion": "v1", "spec": []}),
            json!([]),
        ] {
            assert_eq!(encode(&object), None, "{object}");
        }
    }

    /// Objects of every kind that we serve, with every field set, come back as they were.
    #[test]
    fn every_kind_comes_back() {
        let mut kinds = 0;
        for resource in registry::table::resources() {
            let (api_version, kind) = (resource.api_version(), &resource.kind);
            if !MESSAGES.contains_key(&message_name(&api_version, kind)) {
                continue;
            }
            let mut object = filled(&resource.strategy.schema(), 0);
            object.insert("kind".to_owned(), kind.as_ref().into());
            object.insert("apiVersion".to_owned(), api_version.into());
            let object = Value::Object(object);
            let bytes = encode(&object).unwrap_or_else(|| panic!("{kind}: {object}"));
            let back = decode(&bytes).unwrap();
            let mut lost = Vec::new();
            differences("", &object, &back, &mut lost);
            assert_eq!(lost, Vec::<String>::new(), "{kind}");
            kinds += 1;
        }
        assert!(kinds > 60, "{kinds} kinds");
    }

    /// What one has and the other has not. Fields that the table does not know are of versions that it is older than.
    fn differences(path: &str, one: &Value, other: &Value, lost: &mut Vec<String>) {
        match (one, other) {
            (Value::Object(one), Value::Object(other)) => {
                for (name, value) in other {
                    match one.get(name) {
                        Some(known) => differences(&format!("{path}.{name}"), known, value, lost),
                        None => lost.push(format!("{path}.{name} came from nowhere")),
                    }
                }
                if other.is_empty() && one.keys().any(|name| name == "name") {
                    lost.push(format!("{path} lost everything"));
                }
            }
            (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
                one.iter().zip(other).for_each(|(one, other)| differences(path, one, other, lost));
            }
            (one, other) if one == other => {}
            // Times in microseconds are written with all their digits.
            (Value::String(one), Value::String(other)) if other.replace(".000000", "") == *one => {}
            (one, other) => lost.push(format!("{path}: {one} became {other}")),
        }
    }

    fn filled(schema: &api::schema::Struct, depth: usize) -> Map<String, Value> {
        use api::schema::Type;
        fn value(ty: &Type, depth: usize) -> Value {
            match ty {
                Type::Any | Type::Deduced => json!({"type": "object"}),
                Type::Bool => true.into(),
                Type::Int32 | Type::Int64 => 7.into(),
                Type::Number => 1.5.into(),
                Type::String => "text".into(),
                Type::Bytes => "Ynl0ZXM=".into(),
                Type::Time => "2026-01-02T03:04:05Z".into(),
                Type::IntOrString => 8080.into(),
                Type::Quantity => "10m".into(),
                Type::List(item) => json!([value(item, depth)]),
                Type::Map(item) => json!({"key": value(item, depth)}),
                Type::Struct(definition) => Value::Object(filled(definition, depth + 1)),
            }
        }
        let is_deep = |ty: &Type| depth > 8 && !matches!(ty, Type::Bool | Type::Int32 | Type::Int64 | Type::String);
        let fields = schema.fields().iter().filter(|field| !is_deep(&field.ty));
        fields.map(|field| (field.name.to_string(), value(&field.ty, depth))).collect()
    }
}
