//! Paths and queries: what is decided on is what upstream decides on, or the request is refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| apiserver::fuzz::request_path(text));
