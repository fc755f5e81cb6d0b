//! What is left of volumes that no pod uses: left by a kubelet that ended in between, by a driver that failed or was late, or by a
//! record that cannot be read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::attachable::CSI;
use futures_util::FutureExt;

use super::Csi;
use super::layout::{Asked, Known};
use crate::backoff::{Backoff, HOUSEKEEPING_INTERVAL, IDLE_HOUSEKEEPING_INTERVAL};
use crate::volumes::in_use::STAGING;
use crate::volumes::{VolumeError, blocking};

/// How long a volume may be staged after its driver was asked for that. What cannot be seen is unstaged again and again meanwhile,
/// later and later.
const LATE_ANSWERS: Duration = Duration::from_secs(24 * 3600);
const MIN_LATE_INTERVAL: Duration = Duration::from_secs(10);
const MAX_LATE_INTERVAL: Duration = Duration::from_secs(3600);

pub(super) fn backoff() -> Backoff {
    Backoff::new(MIN_LATE_INTERVAL, MAX_LATE_INTERVAL)
}

impl Csi {
    /// Records that cannot be read, each with what to do about it.
    pub(crate) fn unread(&self) -> BTreeSet<String> {
        self.unread.lock().clone()
    }

    /// Unstages what no pod uses any more. Does not wait for it; says when to look again.
    pub(crate) async fn unstage_unused(self: &Arc<Self>) -> Duration {
        let layout = self.layout.clone();
        let known = match blocking(move || layout.known()).await {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "staged volumes not looked at");
                *self.unread.lock() = Known::nothing(&error).unread;
                return HOUSEKEEPING_INTERVAL;
            }
        };
        self.unread.lock().clone_from(&known.unread);
        if known.unread.is_empty() {
            self.settle(&known).await;
        }
        // What may be used stays, and what is not is looked at again before anything is done to it.
        let unused = known.staged.iter().filter(|(record, _)| !known.seen.is_used(record, None).unwrap_or(true));
        let mut next = IDLE_HOUSEKEEPING_INTERVAL;
        for (record, mode) in unused {
            let (this, record, mode) = (self.clone(), record.clone(), *mode);
            let volume = record.unique_name();
            next = next.min(self.unstaging.next_look(&volume));
            self.begin_unstaging(volume, async move { this.unstage_if_unused(&record, mode).await });
        }
        next.min(self.unstage_all_late(&known).await)
    }

    /// Unstages what drivers may have staged after all else of it was undone. Says when to look again.
    async fn unstage_all_late(self: &Arc<Self>, known: &Known) -> Duration {
        let layout = self.layout.clone();
        let asked = match blocking(move || layout.asked()).await {
            Ok(asked) => asked,
            Err(error) => {
                tracing::warn!(%error, "what drivers were asked to stage is not known");
                return HOUSEKEEPING_INTERVAL;
            }
        };
        let now = self.clock.now();
        let mut next = IDLE_HOUSEKEEPING_INTERVAL;
        for Asked { record, mode, since, is_mounted } in asked {
            let volume = record.unique_name();
            // Whoever has it unstages it in the end.
            let is_staged = known.staged.iter().any(|(other, how)| *how == mode && other.unique_name() == volume);
            if is_staged || known.seen.is_used(&record, None).unwrap_or(true) {
                continue;
            }
            if is_mounted {
                next = next.min(self.unstaging.next_look(&volume));
            }
            let is_over = Duration::try_from(now.duration_since(since)).is_ok_and(|age| age > LATE_ANSWERS);
            if is_over && !is_mounted {
                let Some(_held) = self.try_lock(&volume) else { continue };
                let layout = self.layout.clone();
                match blocking(move || layout.give_up(&record, mode, since)).await {
                    Ok(()) => self.late.forget(&volume),
                    Err(error) => tracing::warn!(volume, %error, "note of a staging not removed"),
                }
            } else if is_mounted || self.late.remaining_since_update(&volume).is_none() {
                let this = self.clone();
                self.begin_unstaging(volume.clone(), async move {
                    let unstaged = this.unstage_late(&record, mode).await;
                    this.late.next(&volume);
                    unstaged
                });
            }
        }
        next
    }

    /// Does it unless something else is done to the volume, or it is too early to try again. The volume is locked meanwhile.
    fn begin_unstaging(
        self: &Arc<Self>,
        volume: String,
        unstaging: impl Future<Output = Result<(), VolumeError>> + Send + 'static,
    ) {
        if self.unstaging.remaining_since_update(&volume).is_some() {
            return;
        }
        let Some(held) = self.try_lock(&volume) else { return };
        let (this, stop) = (self.clone(), self.stop.clone());
        self.tasks.spawn(FutureExt::boxed(async move {
            let unstaged = tokio::select! {
                () = stop.cancelled() => return,
                unstaged = unstaging => unstaged,
            };
            drop(held);
            match unstaged {
                Ok(()) => this.unstaging.forget(&volume),
                Err(error) => {
                    this.unstaging.next(&volume);
                    tracing::warn!(volume, %error, "volume not unstaged, will retry");
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
