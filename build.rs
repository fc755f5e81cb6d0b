//! How the one binary is linked.

use std::path::{Path, PathBuf};

fn main() {
    let says = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    // Position-independent code needs a relocation for each pointer in its tables: packed, 3.5 MB become 0.1.
    // Not in debug builds: some of the fast linkers used for those do not record which C library this needs.
    if says("PROFILE", "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // Folds functions with identical code, mostly those that drop similar structures, into one. This is safe because
    // nothing here compares addresses of functions. It is an option of lld, which rustc uses for this target.
    let is_ours = says("CARGO_CFG_TARGET_ARCH", "x86_64") && says("CARGO_CFG_TARGET_ENV", "gnu");
    if is_ours && profile().is_some_and(|profile| profile == Path::new("dist")) {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
    println!("cargo::rerun-if-changed=build.rs");
}

/// The folder of the profile, three above `OUT_DIR` (`<profile>/build/<package>/out`): `PROFILE` names only the
/// built-in profile that it inherits from.
fn profile() -> Option<PathBuf> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR")?);
    out.ancestors().nth(3)?.file_name().map(PathBuf::from)
}
