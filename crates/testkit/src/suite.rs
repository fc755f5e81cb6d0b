//! Test programs with a `main` of their own, for tests whose program is also the component under test (a runtime, its
//! shims): cases run in threads, chosen by the arguments that `cargo test` passes on.

use std::collections::VecDeque;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::Instant;

/// One test: its name and what it does; a panic fails it.
pub struct Case {
    pub name: String,
    pub run: Box<dyn FnOnce() + Send>,
}

/// Set in the program that [`in_namespaces`] starts.
const INSIDE: &str = "COX_TEST_NAMESPACES";

/// Runs this program again where no network and no mount is shared with the machine, and returns how that ended; none
/// when this is that program already.
pub fn in_namespaces() -> Option<ExitCode> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    // What containerd leaves behind of its pods' networks goes with the mount.
    let own_networks = "mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns && exec \"$0\" \"$@\"";
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private", "--", "sh", "-c", own_networks])
        .arg(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .status()
        .unwrap();
    Some(ExitCode::from(status.code().unwrap_or(1) as u8))
}

/// Runs the cases that the arguments name (all without a name), `parallel` at once, each in a thread of its own.
/// `--list` and `--test-threads` mean what they mean to every test program.
pub fn run(cases: Vec<Case>, parallel: usize) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.iter().position(|argument| argument == "--test-threads");
    let parallel =
        threads.and_then(|at| arguments.get(at + 1)).and_then(|count| count.parse().ok()).unwrap_or(parallel);
    let is_filter = |at: usize| !arguments[at].starts_with('-') && threads.is_none_or(|threads| at != threads + 1);
    let filters: Vec<&String> = (0..arguments.len()).filter(|at| is_filter(*at)).map(|at| &arguments[at]).collect();
    let chosen: VecDeque<Case> = cases
        .into_iter()
        .filter(|case| filters.is_empty() || filters.iter().any(|filter| case.name.contains(*filter)))
        .collect();
    if arguments.iter().any(|argument| argument == "--list") {
        chosen.iter().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    let total = chosen.len();
    let (waiting, failed) = (Mutex::new(chosen), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..parallel.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(case) = waiting.lock().unwrap().pop_front() else { return };
                    let started = Instant::now();
                    let ended = std::thread::Builder::new().name(case.name.clone()).spawn(case.run).unwrap().join();
                    let word = if ended.is_ok() { "ok" } else { "FAILED" };
                    println!("test {} ... {word} ({:.1?})", case.name, started.elapsed());
                    if ended.is_err() {
                        failed.lock().unwrap().push(case.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("\n{} passed, {} failed {failed:?}", total - failed.len(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
