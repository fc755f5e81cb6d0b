//! `volumesInUse` of the node's status: a volume is told there before it is used and until it is not, so that nobody detaches
//! what this node may still write to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

/// What holds a volume that is staged, besides the pods that use it or wait for it.
pub(super) const STAGING: &str = "";

pub(crate) struct InUse {
    /// Names of volumes, with the uids of those who hold them.
    held: Mutex<BTreeMap<String, BTreeSet<String>>>,
    reported: watch::Sender<BTreeSet<String>>,
    /// Has the status written soon.
    changed: Arc<Notify>,
}

impl InUse {
    /// Each volume with one that holds it.
    pub(super) fn new(at_start: impl IntoIterator<Item = (String, String)>, changed: Arc<Notify>) -> Self {
        let mut held: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, uid) in at_start {
            held.entry(name).or_default().insert(uid);
        }
        InUse { held: Mutex::new(held), reported: Default::default(), changed }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.held.lock().keys().cloned().collect()
    }

    /// The API has a status with these.
    pub(crate) fn reported(&self, names: &[String]) {
        self.reported.send_replace(names.iter().cloned().collect());
    }

    /// Returns when the API shows the volume as used. The pod holds it from the beginning, and until it is released: also if
    /// nobody waits for the end of this.
    pub(super) async fn add(&self, name: &str, uid: &str) {
        self.keep(name, uid);
        // The sender lives as long as this.
        let _ = self.reported.subscribe().wait_for(|reported| reported.contains(name)).await;
    }

    /// One more holds a volume that is in use; says whether it was.
    pub(super) fn hold(&self, name: &str, uid: &str) -> bool {
        let mut held = self.held.lock();
        let Some(holders) = held.get_mut(name) else { return false };
        holders.insert(uid.to_string());
        true
    }

    /// As [`InUse::hold`], for what is held on behalf of somebody; says whether they hold it still.
    pub(super) fn hold_for(&self, name: &str, uid: &str, holder: &str) -> bool {
        let mut held = self.held.lock();
        let Some(holders) = held.get_mut(name).filter(|holders| holders.contains(uid)) else { return false };
        holders.insert(holder.to_string());
        true
    }

    /// The volume is in use already, whether the API shows that or not.
    pub(super) fn keep(&self, name: &str, uid: &str) {
        let mut held = self.held.lock();
        let is_new = !held.contains_key(name);
        held.entry(name.to_string()).or_default().insert(uid.to_string());
        drop(held);
        if is_new {
            self.changed.notify_one();
        }
    }

    pub(super) fn is_held_by(&self, name: &str, uid: &str) -> bool {
        self.held.lock().get(name).is_some_and(|holders| holders.contains(uid))
    }

    pub(super) fn release(&self, name: &str, uid: &str) {
        self.release_where(uid, |held| held == name);
    }

    /// Everything that a pod still holds: it may have waited for volumes that it never got.
    pub(super) fn release_all(&self, uid: &str) {
        self.release_where(uid, |_| true);
    }

    fn release_where(&self, uid: &str, is_meant: impl Fn(&str) -> bool) {
        let mut left = Vec::new();
        let mut held = self.held.lock();
        held.retain(|name, holders| {
            if is_meant(name) && holders.remove(uid) && holders.is_empty() {
                left.push(name.clone());
                return false;
            }
            true
        });
        if left.is_empty() {
            return;
        }
        // Who comes next waits until the API shows it anew.
        self.reported.send_modify(|reported| reported.retain(|name| !left.contains(name)));
        drop(held);
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_volume_is_in_use_as_long_as_anybody_holds_it() {
        let in_use = InUse::new([("old".to_string(), STAGING.to_string())], Arc::default());
        assert_eq!(in_use.names(), ["old"]);
        assert!(in_use.add("v", "a").now_or_never().is_none(), "not before it is reported");
        in_use.reported(&in_use.names());
        assert!(in_use.add("v", "b").now_or_never().is_some());
        // A is done with it while B is about to begin.
        in_use.hold("v", STAGING);
        in_use.release("v", "a");
        in_use.release("v", STAGING);
        assert_eq!(in_use.names(), ["old", "v"]);
        in_use.release("v", "b");
        assert_eq!(in_use.names(), ["old"]);
        assert!(in_use.add("v", "c").now_or_never().is_none(), "an earlier status says nothing");
        // Its pod goes without ever having had it.
        in_use.release_all("c");
        assert!(!in_use.hold("v", STAGING), "nobody has it");
        assert_eq!(in_use.names(), ["old"]);
        in_use.release("old", STAGING);
        assert!(in_use.names().is_empty());
        // What an earlier kubelet has mounted.
        in_use.keep("v", "place");
        assert_eq!(in_use.names(), ["v"]);
        assert!(!in_use.hold_for("v", "gone", "other place"), "others have it, and not the one that asked");
        in_use.release("v", "place");
        assert!(in_use.names().is_empty());
        in_use.keep("v", "place");
        assert!(in_use.hold_for("v", "place", "other place"));
        assert!(in_use.hold("v", STAGING));
    }
}
