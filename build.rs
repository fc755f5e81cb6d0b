//! How the one binary is linked.

fn main() {
    // Position-independent code needs an address fixed up per pointer in its tables: packed, 3.5 MB become 0.1.
    // Only where size counts: not every linker that builds are hurried with says what such a program needs of the C library.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
