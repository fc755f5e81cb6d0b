//! Several changes of the packet filter that happen together or not at all.

use std::io;

use crate::Socket;
use crate::message::{NLM_F_ACK, Request};

pub(super) const SUBSYSTEM: u16 = 10;
const BEGIN: u16 = 0x10;
const END: u16 = 0x11;
/// Sequence numbers of statements begin here; lower ones are the batch's own.
const FIRST: u32 = 1;

/// One transaction, as `nft -f` would send it.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Where the last message begins.
    last: usize,
    sets: u32,
    /// The statement that messages belong to from now on.
    pub(super) statement: u32,
}

/// What the kernel did not like.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) statement: u32,
    pub(super) is_of_statement: bool,
    pub(super) source: io::Error,
}

impl Batch {
    /// A message of one of nftables' kinds.
    pub(super) fn push(&mut self, kind: u16, flags: u16, family: u8, fill: impl FnOnce(Request) -> Request) {
        let request = Request::new(SUBSYSTEM << 8 | kind, flags).body(&[family, 0, 0, 0]);
        self.last = self.bytes.len();
        self.bytes.extend(fill(request).finish(self.statement.saturating_add(FIRST)));
    }

    /// A number for a new set, by which the rest of the batch can name it.
    pub(super) fn next_set(&mut self) -> u32 {
        self.sets += 1;
        self.sets
    }

    /// Blocking, for as long as the kernel takes to commit.
    pub(super) fn commit(mut self) -> Result<(), Refusal> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        // Errors are told whoever asks; consent only of the last message, because thousands of answers would not fit.
        let flags = self.last + 6;
        if let Some(bytes) = self.bytes.get_mut(flags..flags + 2) {
            let asked = u16::from_ne_bytes([bytes[0], bytes[1]]) | NLM_F_ACK;
            bytes.copy_from_slice(&asked.to_ne_bytes());
        }
        let whole = [mark(BEGIN), self.bytes, mark(END)].concat();
        let kernel = |source| Refusal { statement: 0, is_of_statement: false, source };
        let socket = Socket::open_netfilter().map_err(kernel)?;
        socket.send_batch(&whole).map_err(kernel)?.map_err(|(sequence, source)| Refusal {
            statement: sequence.saturating_sub(FIRST),
            is_of_statement: sequence >= FIRST,
            source,
        })
    }
}

/// Where a transaction begins or ends.
fn mark(kind: u16) -> Vec<u8> {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    Request::new(kind, 0).body(&[0, 0, high, low]).finish(0)
}
