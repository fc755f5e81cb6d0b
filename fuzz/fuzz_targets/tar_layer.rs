//! Layers of images, plain or compressed: nothing is made outside of the layer's own directory, and bounds hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let directory = tempfile::tempdir().expect("a directory");
    runtime::fuzz::layer(data, directory.path());
});
