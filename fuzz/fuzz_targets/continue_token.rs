//! Tokens that continue a list: they name a place below it or are refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| apiserver::fuzz::continue_token(text));
