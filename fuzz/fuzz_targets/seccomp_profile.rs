//! Files with seccomp profiles: they are refused, or become programs that the kernel takes.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| runtime::fuzz::seccomp_profile(text));
