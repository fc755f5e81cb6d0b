//! Addresses of pods and nodes: unique, and made of nothing but numbers.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use parking_lot::Mutex;

/// How many pods can have an address at once.
const SIZE: u32 = 1 << 22;

/// Which pod has which address. A pod keeps its address until it is gone.
pub(crate) struct Addresses {
    first: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u32,
    taken: HashMap<u32, String>,
}

impl Addresses {
    pub(crate) fn new(first: Ipv4Addr) -> Self {
        Self { first: first.into(), state: Mutex::default() }
    }

    /// A pod that had an address before we knew it.
    pub(crate) fn keep(&self, address: &str, uid: &str) {
        if let Some(offset) = self.offset(address) {
            self.state.lock().taken.insert(offset, uid.to_owned());
        }
    }

    /// A free address for the pod `uid`; the last one in the range is reused only when all are taken.
    pub(crate) fn take(&self, uid: &str) -> Ipv4Addr {
        let mut state = self.state.lock();
        let mut offset = state.next;
        for _ in 0..SIZE {
            // The network's own address is nobody's.
            offset = (offset + 1) % SIZE;
            if offset != 0 && !state.taken.contains_key(&offset) {
                break;
            }
        }
        state.next = offset;
        state.taken.insert(offset, uid.to_owned());
        Ipv4Addr::from(self.first.wrapping_add(offset))
    }

    /// The pod `uid` is gone.
    pub(crate) fn release(&self, address: &str, uid: &str) {
        if let Some(offset) = self.offset(address) {
            let mut state = self.state.lock();
            if state.taken.get(&offset).is_some_and(|holder| holder == uid) {
                state.taken.remove(&offset);
            }
        }
    }

    fn offset(&self, address: &str) -> Option<u32> {
        let address: u32 = address.parse::<Ipv4Addr>().ok()?.into();
        address.checked_sub(self.first).filter(|offset| *offset < SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_and_come_back() {
        let addresses = Addresses::new(Ipv4Addr::new(10, 64, 0, 0));
        addresses.keep("10.64.0.2", "old");
        assert_eq!(addresses.take("a").to_string(), "10.64.0.1");
        assert_eq!(addresses.take("b").to_string(), "10.64.0.3", "the second is taken");
        addresses.release("10.64.0.1", "somebody else");
        addresses.release("10.64.0.3", "b");
        addresses.state.lock().next = 0;
        assert_eq!(addresses.take("c").to_string(), "10.64.0.3", "the first is still a's");
        addresses.release("192.0.2.1", "a");
    }
}
