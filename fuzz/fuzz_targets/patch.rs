//! Patches: two JSON documents, the object and the patch, separated by a zero byte. Nothing panics, the short ways of
//! patches and of managed fields do what the long ones do, and an apply that succeeds changes nothing when it is repeated.
#![no_main]

use api::patch::{apply, json, merge, strategic, text};
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
    let written = object.to_string();
    let agrees = |short: Option<Vec<u8>>, long: &dyn Fn(&mut Value) -> bool| {
        let mut patched = object.clone();
        let succeeded = long(&mut patched);
        if let Some(short) = short {
            let short: Value = serde_json::from_slice(&short).expect("a patched text is JSON");
            assert_eq!((succeeded, short), (true, patched));
        }
    };
    agrees(text::apply_merge(written.as_bytes(), &patch), &|object| merge::apply(object, &patch).is_ok());
    agrees(text::apply_strategic(written.as_bytes(), &patch, &schema), &|object| {
        strategic::apply(object, &patch, &schema).is_ok()
    });
    let checked = |value: &Value| {
        let mut value = value.clone();
        schema::check(&mut value, &schema).is_ok().then_some(value)
    };
    let (Some(live), Some(config)) = (checked(&object), checked(&patch)) else { return };
    let now = jiff::Timestamp::UNIX_EPOCH;
    let writer = apply::Writer { manager: "fuzz", api_version: "v1", versions: None, subresource: "", now };
    let (old, new) = (live.to_string(), config.to_string());
    let create = apply::Write { live: None, new: old.as_bytes(), ignored: &[] };
    let recorded = apply::update(create, None, None, &schema, &writer);
    let update = apply::Write { live: Some(old.as_bytes()), new: new.as_bytes(), ignored: &["status"] };
    let _ = apply::update(update, recorded.as_deref(), None, &schema, &writer);
    if let Ok(once) = apply::apply(Some(&live), &config, &schema, &writer, true, &[]) {
        let twice = apply::apply(Some(&once), &config, &schema, &writer, true, &[]).expect("a repeated apply succeeds");
        // Who applies nothing but empty lists manages nothing: then the next apply takes the object for one that was found,
        // here as upstream. A server does not store such lists, so there it sees no difference.
        if once.pointer("/metadata/managedFields").is_some() {
            assert_eq!(once, twice);
        }
    }
});
