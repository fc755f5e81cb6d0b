//! Objects of JSON: our reader accepts what serde's does, and both make the same of it.
#![no_main]

use std::fmt::Debug;

use api::read::{self, Read};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use libfuzzer_sys::fuzz_target;
use serde::de::DeserializeOwned;

fuzz_target!(|data: &[u8]| {
    compare::<Pod>(data);
    compare::<CronJob>(data);
    compare::<CustomResourceDefinition>(data);
    compare::<Event>(data);
    compare::<Secret>(data);
});

fn compare<T: Read + DeserializeOwned + PartialEq + Debug>(data: &[u8]) {
    let ours = read::from_slice::<T>(data).ok();
    // For serde, `-0` is no whole number.
    if !data.windows(2).any(|pair| pair == b"-0") {
        assert_eq!(ours, serde_json::from_slice::<T>(data).ok());
    }
}
