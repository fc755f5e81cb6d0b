//! Messages of a bus: they are read or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dbus::fuzz_message(data));
