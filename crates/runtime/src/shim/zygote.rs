//! The process that shims are forked from.
//!
//! Starting our program anew for each pod would make every shim relocate and keep its own copy of the same data. A
//! process that does nothing but fork shares those pages among all shims, and a fork is also faster than an exec.
//! It is started by the runtime (`starter`), ends with it, and leaves the shims it made behind. Layers of images are read by
//! children of it, too, each with so much memory and no more; they end with it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::ExitCode;

use super::{Paths, Request};
use crate::sys::{self, Fork, Poll};
use crate::unpack;

/// Forks a shim per request on standard input, until that is closed.
pub(super) fn serve() -> ExitCode {
    // Whatever the runtime was started with is not for shims, which outlive it.
    sys::close_from(3);
    tls::descriptors::restore();
    // Nobody who shares a namespace with our children may look into them before they have become the container.
    let _ = sys::prctl(libc::PR_SET_DUMPABLE, 0, 0);
    sys::set_process_name("cox-shims");
    for signal in [libc::SIGPIPE, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        sys::ignore_signal(signal);
    }
    let signals = match sys::signal_fd(&[libc::SIGCHLD]) {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("signalfd: {error}");
            return ExitCode::FAILURE;
        }
    };
    let requests = std::io::stdin();
    loop {
        let wait = |fd| Poll { fd, read: true, write: false, ready: false };
        let mut entries = [wait(requests.as_fd().as_raw_fd()), wait(signals.as_raw_fd())];
        if sys::poll(&mut entries, -1).is_err() {
            return ExitCode::FAILURE;
        }
        if entries[1].ready {
            let mut buffer = [0u8; 1024];
            while sys::read(signals.as_fd(), &mut buffer).is_ok_and(|n| n > 0) {}
            while sys::reap().is_some() {}
        }
        if !entries[0].ready {
            continue;
        }
        let (mut buffer, mut fds) = ([0u8; 16 * 1024], Vec::new());
        match sys::receive_with_fds(requests.as_fd(), &mut buffer, &mut fds) {
            Ok(0) | Err(_) => return ExitCode::SUCCESS,
            Ok(length) => match (serde_json::from_slice(&buffer[..length]), fds.pop()) {
                (Ok(Request::Shim(paths)), Some(answer)) => fork_shim(&paths, answer),
                (Ok(Request::Unpack(layer)), Some(answer)) => fork_unpacker(&layer, answer),
                _ => {}
            },
        }
    }
}

/// Twice: the shim belongs to nobody, and its parent in between is ours to reap at once.
fn fork_shim(paths: &Paths, answer: OwnedFd) {
    match sys::clone_process(0) {
        Ok(Fork::Child) => {}
        Ok(Fork::Parent(_)) => return,
        Err(error) => return say(&answer, &format!("fork: {error}")),
    }
    match sys::clone_process(0) {
        Ok(Fork::Parent(_)) => sys::exit_now(0),
        Ok(Fork::Child) => {}
        Err(error) => {
            say(&answer, &format!("fork: {error}"));
            sys::exit_now(1);
        }
    }
    sys::set_process_name("cox-shim");
    sys::set_command_line(&["cox", "shim", &paths.sandbox.to_string_lossy()]);
    match super::begin(paths) {
        Ok(server) => {
            say(&answer, "ok");
            drop(answer);
            server.serve();
            sys::exit_now(0)
        }
        Err(error) => {
            say(&answer, &error.to_string());
            sys::exit_now(1)
        }
    }
}

/// Answers with the digest or the refusal as JSON; with nothing if memory does not suffice.
fn fork_unpacker(layer: &unpack::Request, answer: OwnedFd) {
    let reply = |outcome: &unpack::Outcome| say(&answer, &serde_json::to_string(outcome).unwrap_or_default());
    match sys::clone_process(0) {
        Ok(Fork::Child) => {}
        Ok(Fork::Parent(_)) => return,
        Err(error) => return reply(&unpack::Outcome::Refused { why: format!("fork: {error}") }),
    }
    let _ = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64, 0);
    sys::set_process_name("cox-unpack");
    sys::set_command_line(&["cox", "unpack", &layer.target.to_string_lossy()]);
    let mut outcome = layer.run();
    if let unpack::Outcome::Refused { why } = &mut outcome {
        why.truncate(why.floor_char_boundary(LONGEST_REFUSAL));
    }
    reply(&outcome);
    sys::exit_now(0)
}

/// Names of files are in it, which may be long.
const LONGEST_REFUSAL: usize = 1024;

/// Whoever asked may be gone: then there is nobody to tell.
fn say(answer: &OwnedFd, text: &str) {
    let _ = sys::write(answer.as_fd(), text.as_bytes());
}
