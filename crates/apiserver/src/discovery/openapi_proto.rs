//! The protobuf form of an OpenAPI v2 document (gnostic's `openapi.v2.Document`), which older kubectl insists on.
//!
//! Only what clients read is encoded: info, definitions, and of each path its operations with their kind and query
//! parameters (kubectl looks there whether the server knows `dryRun` and `fieldValidation`).

use serde_json::{Map, Value};

/// Field numbers of `openapi.v2.Schema`.
mod schema {
    pub(super) const REF: u32 = 1;
    pub(super) const FORMAT: u32 = 2;
    pub(super) const DESCRIPTION: u32 = 4;
    pub(super) const REQUIRED: u32 = 19;
    pub(super) const ADDITIONAL_PROPERTIES: u32 = 21;
    pub(super) const TYPE: u32 = 22;
    pub(super) const ITEMS: u32 = 23;
    pub(super) const PROPERTIES: u32 = 25;
    pub(super) const VENDOR_EXTENSION: u32 = 31;
}

/// The operations of `openapi.v2.PathItem` with their field numbers.
const METHODS: &[(&str, u32)] = &[("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("patch", 8)];

/// Field numbers of `openapi.v2.Operation`.
mod operation {
    pub(super) const ID: u32 = 5;
    pub(super) const PARAMETERS: u32 = 8;
    pub(super) const VENDOR_EXTENSION: u32 = 13;
}

pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, document["swagger"].as_str().unwrap_or_default());
    let mut info = Message::default();
    info.text(1, document["info"]["title"].as_str().unwrap_or_default());
    info.text(2, document["info"]["version"].as_str().unwrap_or_default());
    out.message(2, info);
    let mut paths = Message::default();
    for (name, value) in document["paths"].as_object().into_iter().flatten() {
        paths.message(2, named(name, path(value)));
    }
    out.message(8, paths);
    let mut definitions = Message::default();
    for (name, value) in document["definitions"].as_object().into_iter().flatten() {
        definitions.message(1, named(name, schema(value)));
    }
    out.message(9, definitions);
    out.0
}

#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u32, text: &str) {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn message(&mut self, field: u32, message: Message) {
        self.bytes(field, &message.0);
    }

    fn flag(&mut self, field: u32, value: bool) {
        self.varint(u64::from(field) << 3);
        self.varint(u64::from(value));
    }
}

fn named(name: &str, value: Message) -> Message {
    let mut pair = Message::default();
    pair.text(1, name);
    pair.message(2, value);
    pair
}

fn path(value: &Value) -> Message {
    let mut out = Message::default();
    for (method, field) in METHODS {
        if let Some(operation) = value.get(method).and_then(Value::as_object) {
            out.message(*field, self::operation(operation));
        }
    }
    out
}

fn operation(value: &Map<String, Value>) -> Message {
    let mut out = Message::default();
    out.text(operation::ID, value.get("operationId").and_then(Value::as_str).unwrap_or_default());
    let parameters = value.get("parameters").and_then(Value::as_array).into_iter().flatten();
    for parameter in parameters.filter(|parameter| parameter["in"] == "query") {
        out.message(operation::PARAMETERS, query_parameter(parameter));
    }
    extensions(value, operation::VENDOR_EXTENSION, &mut out);
    out
}

/// A `QueryParameterSubSchema` in what it is wrapped in: ParametersItem, Parameter, NonBodyParameter.
fn query_parameter(value: &Value) -> Message {
    let mut query = Message::default();
    query.text(2, "query");
    query.text(4, value["name"].as_str().unwrap_or_default());
    query.text(6, value["type"].as_str().unwrap_or_default());
    [3, 2, 1].into_iter().fold(query, |inner, field| {
        let mut outer = Message::default();
        outer.message(field, inner);
        outer
    })
}

fn schema(value: &Value) -> Message {
    let mut out = Message::default();
    let Some(object) = value.as_object() else { return out };
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let reference = text("$ref");
    out.text(schema::REF, reference);
    out.text(schema::FORMAT, text("format"));
    out.text(schema::DESCRIPTION, text("description"));
    for required in object.get("required").and_then(Value::as_array).into_iter().flatten() {
        out.text(schema::REQUIRED, required.as_str().unwrap_or_default());
    }
    match object.get("additionalProperties") {
        Some(Value::Bool(allowed)) => {
            let mut item = Message::default();
            item.flag(2, *allowed);
            out.message(schema::ADDITIONAL_PROPERTIES, item);
        }
        Some(value) => {
            let mut item = Message::default();
            item.message(1, self::schema(value));
            out.message(schema::ADDITIONAL_PROPERTIES, item);
        }
        None => {}
    }
    if !text("type").is_empty() {
        let mut item = Message::default();
        item.text(1, text("type"));
        out.message(schema::TYPE, item);
    }
    if let Some(items) = object.get("items") {
        let mut item = Message::default();
        item.message(1, self::schema(items));
        out.message(schema::ITEMS, item);
    }
    // Generated schemas wrap a reference in `allOf` to attach a description: the reference is what matters.
    if let Some(only) = object.get("allOf").and_then(Value::as_array).and_then(|list| list.first()) {
        out.text(schema::REF, only["$ref"].as_str().unwrap_or_default());
    }
    if let Some(properties) = object.get("properties").and_then(Value::as_object) {
        let mut list = Message::default();
        for (name, value) in properties {
            list.message(1, named(name, self::schema(value)));
        }
        out.message(schema::PROPERTIES, list);
    }
    extensions(object, schema::VENDOR_EXTENSION, &mut out);
    out
}

fn extensions(object: &Map<String, Value>, field: u32, out: &mut Message) {
    for (name, value) in object.iter().filter(|(name, _)| name.starts_with("x-")) {
        let mut any = Message::default();
        any.text(2, &api::codec::to_yaml(value).unwrap_or_default());
        out.message(field, named(name, any));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_nesting_are_encoded() {
        let document = serde_json::json!({"swagger": "2.0", "info": {"title": "T", "version": "v"}, "definitions": {"A": {"type": "string"}}});
        let expected: &[u8] = &[
            0x0a, 3, b'2', b'.', b'0', // swagger
            0x12, 6, 0x0a, 1, b'T', 0x12, 1, b'v', // info
            0x42, 0, // paths
            0x4a, 18, 0x0a, 16, 0x0a, 1, b'A', 0x12, 11, 0xb2, 0x01, 8, 0x0a, 6, b's', b't', b'r', b'i', b'n', b'g',
        ];
        assert_eq!(encode(&document), expected);
    }

    #[test]
    fn operations_keep_their_kind_and_query() {
        let path = path(&serde_json::json!({"patch": {"operationId": "p", "parameters": [
            {"name": "body", "in": "body"}, {"name": "dryRun", "in": "query", "type": "string"}],
            "x-kubernetes-action": "patch"}, "parameters": []}));
        let yaml = api::codec::to_yaml(&"patch").unwrap();
        let (text, any, pair) = (yaml.len() as u8, yaml.len() as u8 + 2, yaml.len() as u8 + 25);
        let mut expected = vec![0x42, 36 + pair, 0x2a, 1, b'p', 0x42, 29, 0x0a, 27, 0x12, 25, 0x1a, 23];
        expected.extend(b"\x12\x05query\x22\x06dryRun\x32\x06string");
        expected.extend([0x6a, pair, 0x0a, 19]);
        expected.extend(b"x-kubernetes-action");
        expected.extend([0x12, any, 0x12, text]);
        expected.extend(yaml.bytes());
        assert_eq!(path.0, expected);
    }
}
