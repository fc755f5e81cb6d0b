//! What is left of volumes that no pod uses: left by a kubelet that ended in between, by a driver that failed, or by a record that
//! cannot be read.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::attachable::CSI;
use futures_util::FutureExt;

use super::Csi;
use super::layout::{Known, Mode, Record};
use crate::volumes::blocking;
use crate::volumes::in_use::STAGING;

impl Csi {
    /// Records that cannot be read, each with what to do about it.
    pub(crate) fn unread(&self) -> BTreeSet<String> {
        self.unread.lock().clone()
    }

    /// Unstages what no pod uses any more. Does not wait for it; says whether there was nothing.
    pub(crate) async fn unstage_unused(self: &Arc<Self>) -> bool {
        let layout = self.layout.clone();
        let known = match blocking(move || layout.known()).await {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "staged volumes not looked at");
                *self.unread.lock() = Known::nothing(&error).unread;
                return false;
            }
        };
        self.unread.lock().clone_from(&known.unread);
        if known.unread.is_empty() {
            self.settle(&known).await;
        }
        // What may be used stays, and what is not is looked at again before anything is done to it.
        let unused = known.staged.iter().filter(|(record, _)| !known.seen.is_used(record, None).unwrap_or(true));
        let mut is_clean = true;
        for (record, mode) in unused {
            is_clean = false;
            self.begin_unstaging(record, *mode);
        }
        is_clean
    }

    fn begin_unstaging(self: &Arc<Self>, record: &Record, mode: Mode) {
        let volume = record.unique_name();
        if self.unstaging.remaining_since_update(&volume).is_some() {
            return;
        }
        let Some(held) = self.try_lock(&volume) else { return };
        let (this, record, stop) = (self.clone(), record.clone(), self.stop.clone());
        self.tasks.spawn(FutureExt::boxed(async move {
            let unstaged = tokio::select! {
                () = stop.cancelled() => return,
                unstaged = this.unstage_if_unused(&record, mode) => unstaged,
            };
            drop(held);
            match unstaged {
                Ok(()) => this.unstaging.forget(&volume),
                Err(error) => {
                    this.unstaging.next(&volume);
                    tracing::warn!(volume = record.spec_name, %error, "volume not unstaged, will retry");
                }
            }
        }));
    }

    /// Every record can be read. What was in use because of one that could not is so no longer, unless its record was mended: a
    /// volume that was unmounted by hand has none.
    async fn settle(&self, known: &Known) {
        let in_use = &self.attached.in_use;
        in_use.settle(CSI, |volume| known.has(volume));
        for volume in in_use.held_by(STAGING) {
            if known.has(&volume) {
                continue;
            }
            let Some(_held) = self.try_lock(&volume) else { continue };
            // Somebody may have come before the lock was ours.
            let layout = self.layout.clone();
            let now = blocking(move || layout.known()).await;
            if now.is_ok_and(|now| now.unread.is_empty() && !now.has(&volume)) {
                in_use.release(&volume, STAGING);
            }
        }
    }
}
