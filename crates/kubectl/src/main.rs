//! kubectl alone, without the rest of `cox`: small to build, for the comparison tests and for trying things out.

fn main() -> std::process::ExitCode {
    kubectl::main(std::env::args_os())
}
