//! Bodies in protobuf: they are read or refused, and what was read can be written.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| apiserver::fuzz::protobuf_body(data));
