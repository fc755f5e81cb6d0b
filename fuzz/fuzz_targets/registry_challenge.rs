//! Challenges of registries: a pull secret goes nowhere in plain text but to this machine.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| runtime::fuzz::challenge(text));
