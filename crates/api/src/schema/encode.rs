//! Writes typed objects as Go would: zero values are left out, or written, as the fields' tags upstream say.
//!
//! A typed object is written once, by serde, and looked at while it is written: a value that is short enough to be a zero
//! is held against its field and taken back if need be. All other values cost a comparison of lengths.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter};
use serde_json::{Map, Value};

use super::{Field, Struct, Type};

/// Most objects are written in so many bytes, and then in one piece.
const USUAL_SIZE: usize = 2048;
/// No zero value is longer than this (`false`).
const LONGEST_ZERO: usize = 5;

/// What writes a kind, compiled here: a generic function is compiled again by every crate that uses it, for speed or for size
/// as that crate is.
pub trait Encode {
    /// The object as JSON.
    fn encode(&self) -> serde_json::Result<Vec<u8>>;
}

/// The object as JSON.
pub fn encode<T: Serialize>(object: &T, schema: &Struct) -> serde_json::Result<Vec<u8>> {
    write(object, Some(schema))
}

/// The object as serde writes it, by the same code: what writes a kind is large, and a binary needs it once.
pub fn encode_plain<T: Serialize + ?Sized>(object: &T) -> serde_json::Result<Vec<u8>> {
    write(object, None)
}

fn write<T: Serialize + ?Sized>(object: &T, root: Option<&Struct>) -> serde_json::Result<Vec<u8>> {
    let mut writer = Text { out: Vec::with_capacity(USUAL_SIZE), stack: Vec::with_capacity(16), root };
    object.serialize(&mut serde_json::Serializer::with_formatter(io::sink(), &mut writer))?;
    Ok(writer.out)
}

/// Brings the fields of an object into the form in which they are written.
pub fn tidy_fields(fields: &mut Map<String, Value>, definition: &Struct) {
    fields.retain(|name, value| {
        let Some(field) = definition.field(name) else { return true };
        if field.omits(value) {
            return false;
        }
        match field.is_empty_container(value) {
            true => *value = Value::Null,
            false => tidy(value, &field.ty),
        }
        true
    });
    for field in definition.written() {
        if !fields.contains_key(&*field.name) {
            fields.insert(field.name.to_string(), field.written_value());
        }
    }
}

fn tidy(value: &mut Value, ty: &Type) {
    match (value, ty) {
        (Value::Object(fields), Type::Struct(definition)) => tidy_fields(fields, definition),
        (Value::Object(entries), Type::Map(item)) => entries.values_mut().for_each(|value| tidy(value, item)),
        (Value::Array(items), Type::List(item)) => items.iter_mut().for_each(|value| tidy(value, item)),
        _ => {}
    }
}

/// The text that is being written, and where in it we are.
struct Text<'a> {
    out: Vec<u8>,
    stack: Vec<Level<'a>>,
    /// The structure that is about to begin.
    root: Option<&'a Struct>,
}

/// A list or an object that has not ended yet.
struct Level<'a> {
    inside: Inside<'a>,
    /// Where the last member begins, comma included, and where its key and value do.
    member: usize,
    key: usize,
    value: usize,
    /// How many of the structure's `written` fields have been passed.
    passed: usize,
}

#[derive(Clone, Copy)]
enum Inside<'a> {
    Struct(&'a Struct),
    /// The items of a list or the entries of a map.
    All(&'a Type),
    /// Nothing is known of what is in it.
    Unknown,
}

impl<'a> Inside<'a> {
    fn of(ty: &'a Type) -> Self {
        match ty {
            Type::Struct(definition) => Self::Struct(definition),
            Type::List(item) | Type::Map(item) => Self::All(item),
            _ => Self::Unknown,
        }
    }
}

impl<'a> Text<'a> {
    fn begin(&mut self, with: u8) {
        let inside = match self.stack.last() {
            None => self.root.take().map_or(Inside::Unknown, Inside::Struct),
            Some(level) => match level.inside {
                Inside::Struct(definition) => {
                    self.field(level, definition).map_or(Inside::Unknown, |field| Inside::of(&field.ty))
                }
                Inside::All(item) => Inside::of(item),
                Inside::Unknown => Inside::Unknown,
            },
        };
        self.out.push(with);
        self.stack.push(Level { inside, member: 0, key: 0, value: 0, passed: 0 });
    }

    /// The field whose value is being written.
    fn field(&self, level: &Level<'_>, definition: &'a Struct) -> Option<&'a Field> {
        definition.field(self.out.get(level.key + 1..level.value.checked_sub(2)?)?)
    }

    /// Takes the value back that was just written, if it is one that is not written.
    fn end_value(&mut self) {
        let Some(level) = self.stack.last() else { return };
        let Inside::Struct(definition) = level.inside else { return };
        if self.out.len() - level.value > LONGEST_ZERO {
            return;
        }
        let text = &self.out[level.value..];
        if !matches!(text, b"0" | b"\"\"" | b"false" | b"[]" | b"{}" | b"0.0") {
            return;
        }
        let Some(field) = self.field(level, definition) else { return };
        if field.omits_text(text) {
            self.out.truncate(level.member);
        } else if field.is_empty_container_text(text) {
            self.out.truncate(level.value);
            self.out.extend_from_slice(b"null");
        }
    }

    /// Writes fields that are not set and are written all the same: those that come before the key that was just written,
    /// or all that are left.
    fn write_zeros(&mut self, is_end: bool) {
        let Some(level) = self.stack.last_mut() else { return };
        let Inside::Struct(definition) = level.inside else { return };
        if level.passed == definition.written.len() {
            return;
        }
        if is_end {
            for field in definition.written().skip(level.passed) {
                write_zero(&mut self.out, field);
            }
            return;
        }
        let name = &self.out[level.key + 1..self.out.len() - 1];
        let next = definition.written().nth(level.passed).map_or("", |field| &field.name).as_bytes();
        // Which kind it is comes first.
        if next > name || matches!(name, b"apiVersion" | b"kind") {
            return;
        }
        if next == name {
            // It is set, and none before it is missing.
            level.passed += 1;
            return;
        }
        let key = self.out.split_off(level.key);
        self.out.truncate(level.member);
        let name = &key[1..key.len() - 1];
        for field in definition.written().skip(level.passed).take_while(|field| field.name.as_bytes() <= name) {
            level.passed += 1;
            if field.name.as_bytes() < name {
                write_zero(&mut self.out, field);
            }
        }
        level.member = self.out.len();
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
        level.key = self.out.len();
        self.out.extend_from_slice(&key);
    }
}

fn write_zero(out: &mut Vec<u8>, field: &Field) {
    let comma = if out.last() == Some(&b'{') { "" } else { "," };
    for part in [comma, "\"", &field.name, "\":", field.written_text()] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Passes on what needs no look.
macro_rules! plain {
    ($($name:ident($($argument:ident: $ty:ty)?);)*) => {$(
        fn $name<W: ?Sized + Write>(&mut self, _: &mut W $(, $argument: $ty)?) -> io::Result<()> {
            CompactFormatter.$name(&mut self.out $(, $argument)?)
        }
    )*};
}

impl Formatter for &mut Text<'_> {
    plain! {
        write_null(); write_bool(value: bool);
        write_i8(value: i8); write_i16(value: i16); write_i32(value: i32); write_i64(value: i64); write_i128(value: i128);
        write_u8(value: u8); write_u16(value: u16); write_u32(value: u32); write_u64(value: u64); write_u128(value: u128);
        write_f32(value: f32); write_f64(value: f64); write_number_str(value: &str);
        begin_string(); end_string(); write_string_fragment(fragment: &str); write_char_escape(escape: CharEscape);
        write_byte_array(value: &[u8]); write_raw_fragment(fragment: &str);
    }

    fn begin_array<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.begin(b'[');
        Ok(())
    }

    fn end_array<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.stack.pop();
        self.out.push(b']');
        Ok(())
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, _: &mut W, first: bool) -> io::Result<()> {
        if !first {
            self.out.push(b',');
        }
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.begin(b'{');
        Ok(())
    }

    fn end_object<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.write_zeros(true);
        self.stack.pop();
        self.out.push(b'}');
        Ok(())
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, _: &mut W, _: bool) -> io::Result<()> {
        let member = self.out.len();
        // What came before may have been taken back.
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
        if let Some(level) = self.stack.last_mut() {
            (level.member, level.key) = (member, self.out.len());
        }
        Ok(())
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.write_zeros(false);
        Ok(())
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.out.push(b':');
        if let Some(level) = self.stack.last_mut() {
            level.value = self.out.len();
        }
        Ok(())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.end_value();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
    use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolumeClaim, Pod, Secret};
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
    use k8s_openapi::api::scheduling::v1::PriorityClass;
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;
    use crate::schema::of;

    /// What becomes of an object that is read and written again.
    fn written<K: k8s_openapi::Resource + Serialize + DeserializeOwned>(given: Value) -> Value {
        let typed: K = serde_json::from_value(given).unwrap();
        let text = encode(&typed, &of::<K>()).unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        let mut tidied = serde_json::to_value(&typed).unwrap();
        tidy_fields(tidied.as_object_mut().unwrap(), &of::<K>());
        assert_eq!(value, tidied, "text and value differ");
        let again: K = serde_json::from_slice(&text).unwrap();
        assert_eq!(encode(&again, &of::<K>()).unwrap(), text, "not stable");
        value
    }

    #[test]
    fn zero_values_are_left_out_where_go_leaves_them_out() {
        let pod = written::<Pod>(json!({
            "metadata": {"name": "p", "generateName": "", "generation": 0, "labels": {}, "annotations": {"a": ""}},
            "spec": {
                "hostNetwork": false, "hostPID": false, "nodeName": "", "priority": 0, "hostUsers": false,
                "enableServiceLinks": false, "terminationGracePeriodSeconds": 0, "tolerations": [],
                "containers": [{
                    "name": "", "image": "", "stdin": false, "imagePullPolicy": "",
                    "env": [{"name": "A", "value": ""}, {"name": "B", "value": "0"}],
                    "ports": [{"containerPort": 0, "hostPort": 0, "protocol": ""}],
                    "volumeMounts": [{"name": "v", "mountPath": "/", "readOnly": false, "subPath": ""}],
                    "livenessProbe": {"initialDelaySeconds": 0, "periodSeconds": 10, "grpc": {"port": 1}},
                    "securityContext": {"privileged": false, "runAsUser": 0},
                }],
                "volumes": [{"name": "v", "hostPath": {"path": "", "type": ""}}, {"name": "e", "emptyDir": {"medium": ""}}],
            },
        }));
        assert_eq!(
            pod,
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {"a": ""}},
                "spec": {
                    "priority": 0, "hostUsers": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "",
                        "env": [{"name": "A"}, {"name": "B", "value": "0"}],
                        "ports": [{"containerPort": 0}],
                        "volumeMounts": [{"name": "v", "mountPath": "/"}],
                        "livenessProbe": {"periodSeconds": 10, "grpc": {"port": 1, "service": null}},
                        "securityContext": {"privileged": false, "runAsUser": 0},
                    }],
                    "volumes": [{"name": "v", "hostPath": {"path": "", "type": ""}}, {"name": "e", "emptyDir": {}}],
                },
            })
        );
        let spec = |value: Value| value["spec"].clone();
        let given =
            json!({"spec": {"minReadySeconds": 0, "replicas": 0, "paused": false, "selector": {}, "template": {}}});
        assert_eq!(spec(written::<Deployment>(given)), json!({"replicas": 0, "selector": {}, "template": {}}));
        let class = written::<PriorityClass>(json!({"value": 0, "globalDefault": false, "description": ""}));
        assert_eq!(
            class,
            json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {}, "value": 0})
        );
    }

    #[test]
    fn what_go_writes_all_the_same_is_written() {
        let kind = |api: &str, kind: &str| json!({"apiVersion": api, "kind": kind, "metadata": {}});
        let with = |mut object: Value, fields: Value| {
            object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            object
        };
        let role = with(kind("rbac.authorization.k8s.io/v1", "Role"), json!({"rules": null}));
        assert_eq!(written::<Role>(json!({})), role);
        assert_eq!(written::<Role>(json!({"rules": []})), role);
        assert_eq!(written::<ClusterRole>(json!({"rules": [{"verbs": []}]}))["rules"], json!([{"verbs": null}]));
        let slice = written::<EndpointSlice>(json!({"addressType": "IPv4", "endpoints": []}));
        let nothing = json!({"addressType": "IPv4", "endpoints": null, "ports": null});
        assert_eq!(slice, with(kind("discovery.k8s.io/v1", "EndpointSlice"), nothing));
        let event =
            written::<Event>(json!({"involvedObject": {}, "message": "", "count": 0, "metadata": {"name": "e"}}));
        assert_eq!(
            event,
            json!({
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {}, "source": {},
                "eventTime": null, "firstTimestamp": null, "lastTimestamp": null,
                "reportingComponent": "", "reportingInstance": "",
            })
        );
        let status = json!({
            "conditions": [{"type": "Ready", "status": "True", "reason": ""}],
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0}],
        });
        assert_eq!(
            written::<Pod>(json!({"status": status}))["status"],
            json!({
                "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null}],
                "containerStatuses": [{
                    "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {}, "lastState": {},
                }],
            })
        );
        let set =
            written::<StatefulSet>(json!({"spec": {"selector": {}, "template": {}, "ordinals": {}}}))["spec"].clone();
        assert_eq!(set, json!({"selector": {}, "template": {}, "serviceName": "", "ordinals": {"start": 0}}));
        let claim = json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}, "volumeName": ""}});
        assert_eq!(
            written::<PersistentVolumeClaim>(claim)["spec"],
            json!({"dataSource": {"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "a"}})
        );
        let names = json!({"kind": "", "plural": ""});
        let status = json!({"status": {"acceptedNames": names}});
        assert_eq!(
            written::<CustomResourceDefinition>(status)["status"],
            json!({"acceptedNames": names, "conditions": null, "storedVersions": null})
        );
        // Entries of maps are nobody's fields.
        assert_eq!(written::<ConfigMap>(json!({"data": {"a": ""}}))["data"], json!({"a": ""}));
        assert_eq!(
            written::<Secret>(json!({"data": {"a": ""}, "type": ""})),
            with(kind("v1", "Secret"), json!({"data": {"a": ""}}))
        );
    }

    #[test]
    fn members_stay_in_order() {
        let event: Event =
            serde_json::from_value(json!({"metadata": {}, "involvedObject": {}, "type": "Normal"})).unwrap();
        let text = String::from_utf8(encode(&event, &of::<Event>()).unwrap()).unwrap();
        let names: Vec<&[u8]> = crate::scan::members(text.as_bytes(), 0).map(|(name, _)| name).collect();
        assert_eq!(names[..2], [&b"apiVersion"[..], b"kind"]);
        assert!(names[2..].is_sorted() && names.len() == 11, "{text}");
    }
}
