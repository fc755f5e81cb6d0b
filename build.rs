//! How the one binary is linked.

use std::path::{Path, PathBuf};

fn main() {
    let says = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    // Position-independent code needs an address fixed up per pointer in its tables: packed, 3.5 MB become 0.1.
    // Only where size counts: not every linker that builds are hurried with says what such a program needs of the C library.
    if says("PROFILE", "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // Functions that turned out the same, as those that drop like structures do, become one. Nothing here compares addresses of
    // functions. An option of lld, which rustc uses for this target.
    let is_ours = says("CARGO_CFG_TARGET_ARCH", "x86_64") && says("CARGO_CFG_TARGET_ENV", "gnu");
    if is_ours && profile().is_some_and(|profile| profile == Path::new("dist")) {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
    println!("cargo::rerun-if-changed=build.rs");
}

/// The folder of the profile, in which `build/<package>/out` is ours: `PROFILE` says no more than which one it inherits from.
fn profile() -> Option<PathBuf> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR")?);
    out.ancestors().nth(3)?.file_name().map(PathBuf::from)
}
