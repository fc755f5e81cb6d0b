//! Real containers: images made from Debian's busybox and nginx, pulled from Debian's docker-registry, run by the runtime
//! in a process of its own that tests kill and start again.
//!
//! The test program is also the runtime (`… cri`) and its shims (`… shim`), as the `cox` binary is. Everything happens
//! in network and mount namespaces of this process, so that no address or mount reaches the machine.
#![allow(clippy::unwrap_used, reason = "tests")]

mod attacks;
mod containers;
mod handlers;
mod images;
mod node;
mod restarts;
mod streaming;

use std::ffi::OsString;
use std::future::Future;
use std::pin::Pin;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use node::World;
use testkit::suite::{self, Case};

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
    streaming::security_what_a_command_leaves_behind_does_not_hold_its_session,
    streaming::exec_over_spdy,
    streaming::attach_follows_a_container,
    streaming::attach_ends_with_its_input_where_stdin_stays_open,
    streaming::ports_are_forwarded,
    restarts::containers_outlive_the_runtime,
    restarts::an_exit_while_down_is_reported,
    restarts::pods_leave_nothing_behind,
    restarts::a_dead_shim_takes_its_pod_along,
    restarts::a_shim_killed_in_the_middle_leaves_no_pause,
    restarts::a_caller_that_leaves_leaves_no_half_sandbox,
    handlers::external_runtimes_run_containers,
    containers::host_namespaces_and_mounts,
    attacks::security_names_lead_nowhere,
    attacks::security_planted_devices_are_left_alone,
    attacks::security_the_null_device_of_the_node_is_not_lent,
    attacks::security_nothing_hides_proc,
    attacks::security_planted_terminals_are_not_taken,
    attacks::security_output_of_commands_is_bounded,
    attacks::security_layers_are_unpacked_with_so_much_memory,
    attacks::a_group_without_a_user_is_refused,
    attacks::mounts_propagate_as_asked,
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
    if let Some(code) = suite::in_namespaces() {
        return code;
    }
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
    let world = Arc::new(World::new());
    let case = |(name, test): &Test| {
        let (world, test) = (world.clone(), *test);
        let run = move || {
            let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            tokio.block_on(test(world));
        };
        Case { name: (*name).into(), run: Box::new(run) }
    };
    // One at a time: they look at what the machine as a whole has left.
    let code = suite::run(TESTS.iter().map(case).collect(), 1);
    world.close();
    code
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
