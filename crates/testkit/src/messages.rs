//! Programs that take requests with descriptors on their standard input, as the process that shims are forked from does.

use std::io::{IoSlice, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};

/// Starts the program, sends one request with an end of a pair of sockets, and gives back what is said on the other.
pub fn ask(program: &mut Command, request: &str) -> String {
    let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("sockets");
    let ((requests, stdin), (ours, theirs)) = (pair(), pair());
    let mut process = program.stdin(Stdio::from(stdin)).stdout(Stdio::null()).spawn().expect("the program starts");
    send(&requests, request, theirs);
    let mut answer = vec![0; 1 << 14];
    let length = std::fs::File::from(ours).read(&mut answer).expect("an answer");
    answer.truncate(length);
    drop(requests);
    assert!(process.wait().expect("the program ends").success());
    String::from_utf8(answer).expect("a text")
}

fn send(to: &OwnedFd, text: &str, with: OwnedFd) {
    let descriptors = [with.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(text.as_bytes())], &control, MsgFlags::empty(), None).expect("sent");
}
