//! Patches: two JSON documents, the object and the patch, separated by a zero byte. Nothing panics, and an apply that
//! succeeds changes nothing when it is repeated.
#![no_main]

use api::patch::{apply, json, merge, strategic};
use api::schema;
use k8s_openapi::api::core::v1::Pod;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let mut document = || api::codec::from_json(parts.next()?).ok().map(|decoded| decoded.value);
    let (Some(object), Some(patch)) = (document(), document()) else { return };
    let schema = schema::of::<Pod>();
    let _ = json::apply(&mut object.clone(), &patch);
    let _ = merge::apply(&mut object.clone(), &patch);
    let _ = strategic::apply(&mut object.clone(), &patch, &schema);
    let checked = |value: &Value| {
        let mut value = value.clone();
        schema::check(&mut value, &schema).is_ok().then_some(value)
    };
    let (Some(live), Some(config)) = (checked(&object), checked(&patch)) else { return };
    let now = jiff::Timestamp::UNIX_EPOCH;
    let writer = apply::Writer { manager: "fuzz", api_version: "v1", subresource: "", now };
    let mut updated = live.clone();
    apply::update(None, &mut updated, &schema, &writer, &[]);
    if let Ok(once) = apply::apply(Some(&live), &config, &schema, &writer, true, &[]) {
        let twice = apply::apply(Some(&once), &config, &schema, &writer, true, &[]).expect("a repeated apply succeeds");
        assert_eq!(once, twice);
    }
});
