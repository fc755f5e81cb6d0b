//! Compiles the program of the image `cox.local/hello` (see `hello/main.rs`), which the runtime carries.

use std::env;
use std::path::Path;
use std::process::{Command, exit};

fn main() {
    println!("cargo:rerun-if-changed=hello/main.rs");
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let program = Path::new(&variable("OUT_DIR")).join("hello");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-name=hello", "--crate-type=bin", "--target", &variable("TARGET")]);
    rustc.args(["-Cpanic=abort", "-Copt-level=s", "-Cstrip=symbols", "-Crelocation-model=static"]);
    // Nothing of the host's: neither libc nor its start code.
    rustc.args(["-Clink-arg=-nostartfiles", "-Clink-arg=-nostdlib", "-Clink-arg=-static"]);
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let compiled = rustc.arg("-o").arg(&program).arg("hello/main.rs").status();
    if !compiled.as_ref().is_ok_and(|status| status.success()) {
        eprintln!("compiling hello/main.rs: {compiled:?}");
        exit(1);
    }
}
