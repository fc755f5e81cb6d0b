//! Real containers: images made from Debian's busybox and nginx, pulled from Debian's docker-registry, run by the runtime
//! in a process of its own that tests kill and start again.
//!
//! The test program is also the runtime (`… cri`) and its shims (`… shim`), as the `cox` binary is. Everything happens
//! in network and mount namespaces of this process, so that no address or mount reaches the machine.
#![allow(clippy::unwrap_used, reason = "tests")]

mod containers;
mod images;
mod node;
mod restarts;
mod streaming;

use std::ffi::OsString;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;

use node::World;

type Test = (&'static str, fn(Arc<World>) -> Pin<Box<dyn Future<Output = ()>>>);

macro_rules! tests {
    ($($module:ident :: $name:ident),* $(,)?) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), |world| Box::pin($module::$name(world)))),*]
    };
}

#[rustfmt::skip]
const TESTS: &[Test] = tests![
    containers::nginx_answers,
    containers::exec_sees_the_container,
    containers::logs_and_exit_codes,
    containers::security_contexts_hold,
    containers::the_runtime_is_out_of_reach,
    containers::limits_and_oom,
    images::images_are_listed_and_removed,
    images::missing_images_and_bad_names,
    images::passwords_are_sent_where_asked_for,
    images::an_index_is_followed,
    images::layers_lie_over_each_other,
    images::layers_cannot_escape,
    images::wrong_content_is_refused,
    images::archives_go_in_and_out,
    streaming::exec_over_websocket,
    streaming::exec_over_spdy,
    streaming::attach_follows_a_container,
    streaming::ports_are_forwarded,
    restarts::containers_outlive_the_runtime,
    restarts::an_exit_while_down_is_reported,
    restarts::pods_leave_nothing_behind,
    restarts::a_dead_shim_takes_its_pod_along,
    containers::host_namespaces_and_mounts,
];

fn main() -> ExitCode {
    let mut argv: Vec<OsString> = std::env::args_os().collect();
    match argv.get(1).and_then(|a| a.to_str()) {
        Some("shim") => {
            argv.remove(0);
            return runtime::shim::main(argv);
        }
        Some("image") => {
            argv.remove(0);
            return images(argv);
        }
        Some("cri") => {
            argv.remove(0);
            return serve(argv);
        }
        _ => {}
    }
    if std::env::var_os("COX_TEST_NAMESPACES").is_none() {
        return in_namespaces(&argv);
    }
    let filters: Vec<String> =
        argv.iter().skip(1).filter_map(|a| a.to_str()).filter(|a| !a.starts_with('-')).map(Into::into).collect();
    let chosen: Vec<&Test> =
        TESTS.iter().filter(|(name, _)| filters.is_empty() || filters.iter().any(|f| name.contains(f))).collect();
    if argv.iter().any(|a| a == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if chosen.is_empty() {
        return ExitCode::SUCCESS;
    }
    run(&chosen)
}

/// The same program again, where no network and no mount is shared with the machine.
fn in_namespaces(argv: &[OsString]) -> ExitCode {
    let program = std::env::current_exe().unwrap();
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private", "--"])
        .arg(program)
        .args(&argv[1..])
        .env("COX_TEST_NAMESPACES", "1")
        .status();
    match status {
        Ok(status) => ExitCode::from(status.code().unwrap_or(1) as u8),
        Err(error) => {
            eprintln!("unshare: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `… cri --root …`: the runtime.
fn serve(argv: Vec<OsString>) -> ExitCode {
    use clap::{Args, Command, FromArgMatches};
    let matches = runtime::Args::augment_args(Command::new("cri")).get_matches_from(argv);
    let args = runtime::Args::from_arg_matches(&matches).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match tokio.block_on(runtime::main(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `… image …`: the command line of images.
fn images(argv: Vec<OsString>) -> ExitCode {
    use clap::{Args, Command, FromArgMatches};
    let matches = runtime::image_cli::Args::augment_args(Command::new("image")).get_matches_from(argv);
    let args = runtime::image_cli::Args::from_arg_matches(&matches).unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match tokio.block_on(runtime::image_cli::main(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(tests: &[&Test]) -> ExitCode {
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let world = Arc::new(World::new());
    let mut failed = Vec::new();
    for (name, test) in tests {
        let start = Instant::now();
        let result = tokio.block_on(AssertUnwindSafe(test(world.clone())).catch_unwind());
        println!("test {name} ... {} ({:?})", if result.is_ok() { "ok" } else { "FAILED" }, start.elapsed());
        if result.is_err() {
            failed.push(*name);
        }
    }
    world.close();
    println!("\n{} passed, {} failed {failed:?}", tests.len() - failed.len(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
