//! Several changes of the packet filter that happen together or not at all.

use std::io;

use crate::Socket;
use crate::message::{NLM_F_ACK, NLM_F_CREATE, Request};

const NFTABLES: u16 = 10;
const BEGIN: u16 = 0x10;
const END: u16 = 0x11;
const NEW_ELEMENT: u16 = NFTABLES << 8 | 12;
const DELETE_ELEMENT: u16 = NFTABLES << 8 | 14;

/// One transaction of nftables, as `nft -f` would send it.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    bytes: Vec<u8>,
    /// As many are answered.
    changes: usize,
}

impl Batch {
    pub fn new() -> Self {
        Self { bytes: mark(BEGIN), changes: 0 }
    }

    /// An element that comes; `fill` says which.
    pub fn add_element(&mut self, v6: bool, fill: impl FnOnce(Request) -> Request) {
        self.change(Request::new(NEW_ELEMENT, NLM_F_ACK | NLM_F_CREATE), v6, fill);
    }

    /// An element that goes; `fill` says which.
    pub fn delete_element(&mut self, v6: bool, fill: impl FnOnce(Request) -> Request) {
        self.change(Request::new(DELETE_ELEMENT, NLM_F_ACK), v6, fill);
    }

    fn change(&mut self, request: Request, v6: bool, fill: impl FnOnce(Request) -> Request) {
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        self.bytes.extend(fill(request.body(&[family as u8, 0, 0, 0])).finish(0));
        self.changes += 1;
    }

    /// Blocking, for as long as the kernel takes to commit.
    pub fn commit(&self) -> io::Result<()> {
        let whole = [self.bytes.as_slice(), &mark(END)].concat();
        Socket::open_netfilter()?.send_changes(&whole, self.changes)
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// Where a transaction begins or ends.
fn mark(kind: u16) -> Vec<u8> {
    let [high, low] = NFTABLES.to_be_bytes();
    Request::new(kind, 0).body(&[0, 0, high, low]).finish(0)
}
