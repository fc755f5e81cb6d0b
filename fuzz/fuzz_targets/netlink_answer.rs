//! Answers of a kernel: they are read as what they could be, or as nothing.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netlink::fuzz::answer(data));
