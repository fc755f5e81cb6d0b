//! How the one binary is linked.

fn main() {
    // Position-independent code needs an address fixed up per pointer in its tables: packed, 3.5 MB become 0.1.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    println!("cargo::rerun-if-changed=build.rs");
}
