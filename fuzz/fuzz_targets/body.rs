//! Bodies of requests: decoding never panics, what fits a kind survives being written and read again, and a body that goes
//! the short way is read as on the long one.
#![no_main]

use api::codec::{self, Encoding};
use api::{read, schema};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    short_way(data);
    for encoding in [Encoding::Json, Encoding::Yaml] {
        let Ok(decoded) = codec::decode(data, encoding) else { continue };
        round_trip(&decoded.value, &schema::of::<Pod>(), |value| serde_json::from_value::<Pod>(value));
        round_trip(&decoded.value, &schema::of::<Deployment>(), |value| serde_json::from_value::<Deployment>(value));
        round_trip(&decoded.value, &schema::of::<Service>(), |value| serde_json::from_value::<Service>(value));
        let text = codec::to_yaml(&decoded.value).expect("a JSON value can be written as YAML");
        codec::from_yaml(text.as_bytes()).expect("our own YAML can be read");
    }
});

fn round_trip<K, E>(value: &Value, schema: &schema::StructRef, decode: impl Fn(Value) -> Result<K, E>)
where
    K: serde::Serialize + PartialEq + std::fmt::Debug,
    E: std::fmt::Debug,
{
    let mut value = value.clone();
    if schema::check(&mut value, schema).is_err() {
        return;
    }
    // What checks out may still lack what the type needs; what decodes must be stable.
    let Ok(object) = decode(value) else { return };
    let written = serde_json::to_value(&object).expect("an object can be written");
    assert_eq!(decode(written).expect("what was written can be read"), object);
}

fn short_way(data: &[u8]) {
    let schema = schema::of::<Pod>();
    let Some(text) = schema::fit(data, &schema) else { return };
    let Ok(decoded) = codec::from_json(data) else {
        // What is no JSON may seem to fit, and is found out when its typed form is read.
        assert!(read::from_slice::<Pod>(&text).is_err());
        return;
    };
    let mut value = decoded.value;
    assert_eq!(schema::normalize(&mut value, &schema).expect("what fits has the right types"), Vec::<String>::new());
    assert_eq!(read::from_slice::<Pod>(&text).ok(), codec::from_value::<Pod>(&value).ok());
}
