//! The backends of this moment: followed from the cache of registrations, found by requests and discovery.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::VIA;
use http::{HeaderMap, HeaderValue};
use parking_lot::{Mutex, RwLock};

use super::backend::Backend;
use crate::request_info::RequestInfo;

/// Who serves what this server does not. A request costs one look at a flag as long as nobody does.
pub(crate) struct Aggregation {
    has_backends: AtomicBool,
    backends: RwLock<Arc<[Arc<Backend>]>>,
    /// What this server calls itself to servers behind it, so that it knows its own requests when they come back.
    pseudonym: String,
    /// Held while the documents of discovery are made: the last ones made show the last state.
    pub(crate) publishing: Mutex<()>,
}

impl Default for Aggregation {
    fn default() -> Self {
        Self {
            has_backends: AtomicBool::new(false),
            backends: RwLock::new(Arc::new([])),
            pseudonym: format!("1.1 cox-{:016x}", rand::random::<u64>()),
            publishing: Mutex::new(()),
        }
    }
}

impl Aggregation {
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_backends.load(Ordering::Acquire)
    }

    pub(crate) fn backends(&self) -> Arc<[Arc<Backend>]> {
        self.backends.read().clone()
    }

    pub(crate) fn find(&self, group: &str, version: &str) -> Option<Arc<Backend>> {
        if self.is_idle() {
            return None;
        }
        self.backends.read().iter().find(|backend| backend.group == group && backend.version == version).cloned()
    }

    /// Replaces them; returns those before.
    pub(crate) fn set(&self, backends: Arc<[Arc<Backend>]>) -> Arc<[Arc<Backend>]> {
        let has_backends = !backends.is_empty();
        let before = std::mem::replace(&mut *self.backends.write(), backends);
        self.has_backends.store(has_backends, Ordering::Release);
        before
    }

    /// Who answers a request, if not this server.
    pub(crate) fn of(&self, info: &RequestInfo) -> Option<Arc<Backend>> {
        if self.is_idle() {
            return None;
        }
        if info.is_resource {
            return self.find(&info.group, &info.version);
        }
        match info.path.trim_matches('/').split('/').collect::<Vec<_>>().as_slice() {
            ["api", version] => self.find("", version),
            ["apis", group, version] => self.find(group, version),
            _ => None,
        }
    }

    /// Marks a request that leaves this server. `false` if it has been here before.
    pub(super) fn sign(&self, headers: &mut HeaderMap) -> bool {
        let seen =
            |value: &HeaderValue| value.to_str().is_ok_and(|via| via.split(',').any(|by| by.trim() == self.pseudonym));
        if headers.get_all(VIA).iter().any(seen) {
            return false;
        }
        if let Ok(value) = HeaderValue::from_str(&self.pseudonym) {
            headers.append(VIA, value);
        }
        true
    }
}
