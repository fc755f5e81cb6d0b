//! The kubelet on real runtimes: real containers, in network and mount namespaces of their own.
//!
//! Every test runs on our own runtime and on Debian's containerd. The test program is also our runtime (`… cri`), its
//! shims (`… shim`), the CNI plug-ins that containerd calls (by their names) and, where a test kills it, the kubelet
//! (`… kubelet`), as the `cox` binary is.
#![allow(clippy::unwrap_used, reason = "tests")]

mod api;
mod bus;
mod certificates;
mod containers;
mod csi;
mod csi_drivers;
mod csi_kills;
mod endings;
mod failures;
mod image;
mod lifecycle;
mod node;
mod pressure;
mod probes;
mod registry;
mod resize;
mod restarts;
mod runtime;
mod security;
mod server;
mod static_pods;
mod systemd;
mod tracing;
mod volumes;

use std::ffi::OsString;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, ExitCode};

use node::Node;
use runtime::Kind;
use testkit::suite::{self, Case};

type Test = (&'static str, for<'a> fn(&'a mut Node) -> Pin<Box<dyn Future<Output = ()> + 'a>>);

macro_rules! tests {
    ($($module:ident :: $name:ident),* $(,)?) => {
        &[$((concat!(stringify!($module), "::", stringify!($name)), |node| Box::pin($module::$name(node)))),*]
    };
}

#[rustfmt::skip]
const TESTS: &[Test] = tests![
    lifecycle::pod_runs_serves_and_is_deleted,
    lifecycle::restart_policies_decide_the_phase,
    lifecycle::init_containers_and_sidecars_run_in_order,
    lifecycle::specs_may_change_while_running,
    lifecycle::sidecars_end_last,
    lifecycle::resources_and_services_reach_containers,
    lifecycle::pods_that_do_not_fit_are_refused,
    resize::running_pods_get_more_and_less,
    resize::resizes_wait_for_room,
    resize::memory_in_use_is_not_taken_away,
    containers::last_words_are_told,
    containers::many_volumes_are_mounted_side_by_side,
    security::containers_are_who_they_should_be,
    security::host_namespaces_are_the_nodes,
    volumes::volumes_show_objects_and_follow_them,
    volumes::files_have_their_modes_and_follow_changes,
    volumes::directories_of_all_kinds,
    volumes::local_volumes_are_of_their_node_and_grow,
    volumes::sub_paths_are_expanded_at_each_try,
    volumes::full_directories_end_their_pod,
    volumes::sub_paths_stay_in_their_volume,
    volumes::races_for_a_sub_path_are_not_won,
    probes::probes_and_hooks_act,
    probes::grpc_probes_ask_for_their_service,
    probes::probes_end_in_time_and_hooks_call_out,
    failures::missing_things_are_told_and_waited_for,
    failures::a_missing_resolver_file_is_told_and_waited_for,
    failures::security_pods_that_ask_for_more_than_there_is_fail,
    restarts::pods_outlive_kubelet_and_runtime,
    restarts::pods_gone_meanwhile_are_ended,
    server::server_answers_logs_exec_and_stats,
    server::security_silent_connections_take_nothing_from_the_kubelet,
    certificates::nodes_get_and_renew_their_certificates,
    pressure::short_memory_ends_pods,
    pressure::whole_processors_are_given_away_once,
    pressure::resources_that_others_count_can_be_used,
    pressure::a_node_that_was_called_unknown_says_what_it_is,
    static_pods::static_pods_follow_their_manifests,
    registry::secrets_open_registries,
    systemd::pods_end_before_the_node,
    systemd::pods_are_slices,
    containers::commands_and_variables_are_put_together,
    endings::a_pod_that_never_started_ends_all_the_same,
    endings::a_critical_pod_makes_room,
    endings::a_draining_pod_turns_unready,
    endings::security_an_endless_grace_period_ends,
    endings::security_volumes_change_hands_once,
    endings::security_answers_to_hooks_stay_out_of_statuses,
    tracing::the_runtime_is_told_of_traces_and_no_collector_holds_up_pods,
    csi::volumes_are_staged_published_and_taken_down,
    csi::inline_volumes_hear_of_their_pod,
    csi::inline_disks_of_removed_drivers_are_their_successors,
    csi::devices_reach_containers,
    csi::attachments_are_waited_for,
    csi::volumes_grow_and_are_measured,
    csi::one_pod_has_a_volume_for_one_pod,
    csi_drivers::drivers_share_the_directory_under_its_usual_name,
    csi_drivers::drivers_come_and_go,
    csi_drivers::the_api_hears_of_drivers_in_the_end,
    csi_drivers::security_drivers_that_fail_hold_up_only_their_pods,
    csi_drivers::a_critical_pod_waits_for_no_volume,
    csi_drivers::security_volumes_published_late_hold_up_nobody,
    csi_drivers::volumes_staged_late_do_not_stay,
    csi_drivers::security_damaged_records_hold_up_their_own_pods,
    csi_drivers::security_plugins_that_lie_are_refused,
    csi_kills::a_kubelet_killed_between_any_two_calls_loses_nothing,
    csi_kills::a_runtime_killed_between_any_two_calls_loses_nothing,
    csi_kills::a_driver_killed_between_any_two_calls_loses_nothing,
];

/// Tests at once: they mostly wait.
const PARALLEL: usize = 4;

fn main() -> ExitCode {
    let mut argv: Vec<OsString> = std::env::args_os().collect();
    let called_as = argv.first().map(Path::new).and_then(Path::file_name).and_then(|name| name.to_str());
    if let Some(plugin) = called_as.and_then(cni::plugin) {
        return plugin.run();
    }
    let role = argv.get(1).and_then(|word| word.to_str()).unwrap_or_default().to_string();
    match role.as_str() {
        "shim" => {
            argv.remove(0);
            return ::runtime::shim::main(argv);
        }
        "cri" => return component(argv, ::runtime::main),
        "kubelet" => return component(argv, kubelet::main),
        _ => {}
    }
    if let Some(code) = suite::in_namespaces() {
        return code;
    }
    start_logging();
    let mut cases = Vec::new();
    for kind in [Kind::Cox, Kind::Containerd] {
        for (name, test) in TESTS {
            cases.push(Case { name: format!("{}::{name}", kind.name()), run: Box::new(move || run(kind, *test)) });
        }
    }
    suite::run(cases, PARALLEL)
}

/// Runs a test on threads that live in a new network namespace.
fn run(kind: Kind, test: for<'a> fn(&'a mut Node) -> Pin<Box<dyn Future<Output = ()> + 'a>>) {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("tests run as root");
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(up.success());
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        let mut node = Node::start(kind).await;
        test(&mut node).await;
        node.finish().await;
    });
}

/// `… cri --root …`, `… kubelet …`: a component by its command line.
fn component<A: clap::Args, F: Future<Output = anyhow::Result<()>>>(
    mut argv: Vec<OsString>,
    main: fn(A) -> F,
) -> ExitCode {
    argv.remove(0);
    start_logging();
    let matches = A::augment_args(clap::Command::new("test")).get_matches_from(argv);
    let args = A::from_arg_matches(&matches).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match tokio.block_on(main(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `RUST_LOG` chooses what is told.
fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
