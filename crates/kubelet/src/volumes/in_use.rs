//! `volumesInUse` of the node's status: a volume is told there before it is used and until it is not, so that nobody detaches
//! what this node may still write to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::sort::CompactCollect as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

/// What holds a volume that is staged, besides the pods that use it or wait for it.
pub(super) const STAGING: &str = "";

pub(crate) struct InUse {
    held: Mutex<Held>,
    /// Taken after `held`, if at all.
    doubt: Mutex<Doubt>,
    reported: watch::Sender<Reported>,
    /// Has the status written soon.
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Held {
    /// By name of the volume.
    uses: BTreeMap<String, Use>,
    /// How many uses have begun.
    begun: u64,
}

/// A volume is in use without a break, by one or the other.
struct Use {
    /// Which one it is, of all uses of all volumes.
    number: u64,
    /// The uids of those who hold it.
    holders: BTreeSet<String>,
}

impl Held {
    /// Says whether that is a use of its own.
    fn add(&mut self, name: &str, uid: &str) -> bool {
        let is_new = !self.uses.contains_key(name);
        self.begun += u64::from(is_new);
        let number = self.begun;
        let found = self.uses.entry(name.to_owned()).or_insert_with(|| Use { number, holders: BTreeSet::new() });
        found.holders.insert(uid.to_owned());
        is_new
    }
}

/// Records that could not be read when the kubelet started: a volume that the API showed then, and that nobody here is known to
/// hold, may be theirs.
#[derive(Default)]
struct Doubt {
    /// How the names of volumes begin that have such records.
    prefixes: BTreeSet<&'static str>,
    /// What the API showed; none until that is known.
    kept: Option<BTreeSet<String>>,
}

/// What the API shows. It says nothing of a use that began after the status was put together: what it shows may be an earlier one,
/// which is over, and the next status says so.
#[derive(Default)]
struct Reported {
    names: BTreeSet<String>,
    /// The last use that was looked at.
    until: u64,
}

impl InUse {
    /// Each volume with one that holds it.
    pub(super) fn new(at_start: impl IntoIterator<Item = (String, String)>, changed: Arc<Notify>) -> Self {
        let mut held = Held::default();
        for (name, uid) in at_start {
            held.add(&name, &uid);
        }
        InUse { held: Mutex::new(held), doubt: Mutex::default(), reported: Default::default(), changed }
    }

    /// What is in use, or may be.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut all: BTreeSet<String> = self.held.lock().uses.keys().cloned().compact_collect();
        all.extend(self.doubt.lock().kept.iter().flatten().cloned());
        Vec::from_iter(all)
    }

    /// What the node's status says from now on; none while it is not known what it must not leave out.
    pub(crate) fn to_tell(&self) -> Option<Vec<String>> {
        let is_known = {
            let doubt = self.doubt.lock();
            doubt.prefixes.is_empty() || doubt.kept.is_some()
        };
        is_known.then(|| self.names())
    }

    /// At the start: not all records of such volumes can be read. What the API shows of them stays, until [`InUse::settle`] says
    /// otherwise.
    pub(super) fn doubt(&self, prefix: &'static str) {
        self.doubt.lock().prefixes.insert(prefix);
    }

    #[cfg(test)]
    fn is_in_doubt(&self, prefix: &str) -> bool {
        self.doubt.lock().prefixes.contains(prefix)
    }

    /// What the API shows. The first time that is what the kubelet before this one has told.
    pub(super) fn seen(&self, shown: &[String]) {
        let held: BTreeSet<String> = self.held.lock().uses.keys().cloned().collect();
        let mut doubt = self.doubt.lock();
        if doubt.prefixes.is_empty() || doubt.kept.is_some() {
            return;
        }
        let is_meant = |name: &&String| {
            !held.contains(name.as_str()) && doubt.prefixes.iter().any(|prefix| name.starts_with(*prefix))
        };
        let kept = shown.iter().filter(is_meant).cloned().collect();
        doubt.kept = Some(kept);
        self.changed.notify_one();
    }

    /// All records of such volumes can be read. Of what was kept for those that could not, these have some still, and nobody has
    /// the others.
    pub(super) fn settle(&self, prefix: &str, is_recorded: impl Fn(&str) -> bool) {
        let mut doubt = self.doubt.lock();
        let Some(mut kept) = doubt.kept.take() else { return };
        let before = kept.len();
        kept.retain(|name| !name.starts_with(prefix) || is_recorded(name));
        if !kept.iter().any(|name| name.starts_with(prefix)) {
            doubt.prefixes.remove(prefix);
        }
        if kept.len() < before {
            self.changed.notify_one();
        }
        doubt.kept = Some(kept);
    }

    /// The volume was let go after nobody was found to have it: it is that of no record that cannot be read.
    pub(super) fn let_go(&self, name: &str) {
        let was_kept = self.doubt.lock().kept.as_mut().is_some_and(|kept| kept.remove(name));
        if was_kept {
            self.changed.notify_one();
        }
    }

    /// The last use that has begun. To be asked before the names that go into a status.
    pub(crate) fn begun(&self) -> u64 {
        self.held.lock().begun
    }

    /// The API has a status with these, put together when no use had begun after `until`.
    pub(crate) fn reported(&self, names: &[String], until: u64) {
        self.reported.send_replace(Reported { names: names.iter().cloned().collect(), until });
    }

    /// Returns when the API shows the volume as used. The pod holds it from the beginning, and until it is released: also if
    /// nobody waits for the end of this.
    pub(super) async fn add(&self, name: &str, uid: &str) {
        self.keep(name, uid);
        let number = || self.held.lock().uses.get(name).map(|found| found.number);
        let is_shown = |reported: &Reported| {
            reported.names.contains(name) && number().is_some_and(|number| number <= reported.until)
        };
        // The sender lives as long as this.
        let _ = self.reported.subscribe().wait_for(is_shown).await;
    }

    /// One more holds a volume that is in use; says whether it was.
    pub(super) fn hold(&self, name: &str, uid: &str) -> bool {
        let mut held = self.held.lock();
        let Some(found) = held.uses.get_mut(name) else { return false };
        found.holders.insert(uid.to_string());
        true
    }

    /// As [`InUse::hold`], for what is held on behalf of somebody; says whether they hold it still.
    pub(super) fn hold_for(&self, name: &str, uid: &str, holder: &str) -> bool {
        let mut held = self.held.lock();
        let Some(found) = held.uses.get_mut(name).filter(|found| found.holders.contains(uid)) else { return false };
        found.holders.insert(holder.to_string());
        true
    }

    /// The volume is in use already, whether the API shows that or not.
    pub(super) fn keep(&self, name: &str, uid: &str) {
        let is_new = self.held.lock().add(name, uid);
        if is_new {
            self.changed.notify_one();
        }
    }

    /// All that somebody holds.
    pub(super) fn held_by(&self, uid: &str) -> Vec<String> {
        let held = self.held.lock();
        held.uses.iter().filter(|(_, found)| found.holders.contains(uid)).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn is_held_by(&self, name: &str, uid: &str) -> bool {
        self.held.lock().uses.get(name).is_some_and(|found| found.holders.contains(uid))
    }

    pub(super) fn release(&self, name: &str, uid: &str) {
        self.release_where(uid, |held| held == name);
    }

    /// Everything that a pod still holds: it may have waited for volumes that it never got.
    pub(super) fn release_all(&self, uid: &str) {
        self.release_where(uid, |_| true);
    }

    fn release_where(&self, uid: &str, is_meant: impl Fn(&str) -> bool) {
        let mut is_over = false;
        self.held.lock().uses.retain(|name, found| {
            let is_last = is_meant(name) && found.holders.remove(uid) && found.holders.is_empty();
            is_over |= is_last;
            !is_last
        });
        if is_over {
            self.changed.notify_one();
        }
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
        in_use.reported(&in_use.names(), in_use.begun());
        assert!(in_use.add("v", "b").now_or_never().is_some());
        // A is done with it while B is about to begin.
        in_use.hold("v", STAGING);
        assert_eq!(in_use.held_by(STAGING), ["old", "v"]);
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

    /// Some records could not be read when the kubelet started: what the API shows of such volumes may be theirs.
    #[test]
    fn what_may_be_in_use_is_told_until_every_record_is_read() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let in_use = InUse::new([("k/csi/known".to_string(), STAGING.to_string())], Arc::default());
        assert_eq!(in_use.to_tell(), Some(names(&["k/csi/known"])));
        in_use.doubt("k/csi/");
        assert_eq!(in_use.to_tell(), None, "nothing is taken back that may be");
        in_use.settle("k/csi/", |_| false);
        assert!(in_use.is_in_doubt("k/csi/"), "not before it is known what is shown");
        in_use.seen(&names(&["k/csi/a", "k/csi/b", "k/csi/known", "k/iscsi/c"]));
        in_use.seen(&names(&["k/csi/later"]));
        let all = names(&["k/csi/a", "k/csi/b", "k/csi/known"]);
        assert_eq!((in_use.to_tell(), in_use.names()), (Some(all.clone()), all));
        in_use.release("k/csi/known", STAGING);
        // A pod that waited for its volume when the kubelet ended has got it since, and is gone.
        in_use.keep("k/csi/a", "pod");
        in_use.release("k/csi/a", "pod");
        assert_eq!(in_use.names(), names(&["k/csi/a", "k/csi/b"]));
        in_use.let_go("k/csi/a");
        assert_eq!(in_use.names(), names(&["k/csi/b"]), "whatever becomes of the record");
        in_use.settle("k/iscsi/", |_| false);
        in_use.settle("k/csi/", |name| name == "k/csi/b");
        assert_eq!((in_use.names(), in_use.is_in_doubt("k/csi/")), (names(&["k/csi/b"]), true));
        in_use.settle("k/csi/", |_| false);
        assert_eq!((in_use.to_tell(), in_use.is_in_doubt("k/csi/")), (Some(Vec::new()), false));
        in_use.seen(&names(&["k/csi/a"]));
        assert!(in_use.names().is_empty());
    }

    /// A status is put together and written, and meanwhile the volume changes hands.
    #[test]
    fn security_a_status_says_nothing_of_uses_that_began_after_it() {
        let in_use = InUse::new([], Arc::default());
        in_use.keep("v", "a");
        let (until, names) = (in_use.begun(), in_use.names());
        in_use.release_all("a");
        in_use.keep("v", "b");
        in_use.reported(&names, until);
        assert!(in_use.add("v", "b").now_or_never().is_none(), "what is shown is the use of another, and may go");
        in_use.reported(&in_use.names(), in_use.begun());
        assert!(in_use.add("v", "b").now_or_never().is_some());
        // Nor does it when nobody had it in between.
        let (until, names) = (in_use.begun(), in_use.names());
        in_use.release_all("b");
        in_use.reported(&names, until);
        assert!(in_use.add("v", "c").now_or_never().is_none());
        in_use.keep("w", "c");
        in_use.reported(&in_use.names(), in_use.begun());
        assert!(in_use.add("v", "d").now_or_never().is_some(), "it is shown, and held still");
    }
}
