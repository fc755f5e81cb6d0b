//! Headers of the trace: few causes are named, and what a command says of itself takes its place in the ring.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| trace::fuzz::headers(text));
