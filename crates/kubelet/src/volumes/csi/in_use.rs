//! `volumesInUse` of the node's status: a volume is told there before it is used and until it is not, so that nobody detaches
//! what this node may still write to.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

pub(crate) struct InUse {
    wanted: Mutex<BTreeSet<String>>,
    told: watch::Sender<BTreeSet<String>>,
    /// Has the status written soon.
    changed: Arc<Notify>,
}

impl InUse {
    pub(crate) fn new(at_start: impl IntoIterator<Item = String>, changed: Arc<Notify>) -> Self {
        InUse { wanted: Mutex::new(at_start.into_iter().collect()), told: Default::default(), changed }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.wanted.lock().iter().cloned().collect()
    }

    /// The API has a status with these.
    pub(crate) fn told(&self, names: &[String]) {
        self.told.send_replace(names.iter().cloned().collect());
    }

    /// Returns when the API shows the volume as used.
    pub(crate) async fn add(&self, name: &str) {
        if self.wanted.lock().insert(name.to_string()) {
            self.changed.notify_one();
        }
        // The sender lives as long as this.
        let _ = self.told.subscribe().wait_for(|told| told.contains(name)).await;
    }

    pub(crate) fn remove(&self, name: &str) {
        if self.wanted.lock().remove(name) {
            self.changed.notify_one();
        }
    }
}
