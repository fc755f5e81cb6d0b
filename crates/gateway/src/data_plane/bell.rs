//! Who is woken for a connection to an endpoint: the task that drives it, but not by its own doing.
//!
//! hyper has three parties to an exchange: one that reads and writes, one that waits for the answer, one that takes its body. Each step of
//! one wakes another. Here they are one task, which is awake when it takes a step: were it woken by that, it would
//! run once more for each request and for each answer, and find nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;

pub(super) struct Bell {
    ring: Arc<Ring>,
    /// Of `ring`, and the same for as long as the connection lasts.
    waker: Waker,
}

#[derive(Default)]
struct Ring {
    /// Whoever drove last.
    task: Mutex<Option<Waker>>,
    is_muted: AtomicBool,
}

impl Default for Bell {
    fn default() -> Self {
        let ring = Arc::<Ring>::default();
        Self { waker: ring.clone().into(), ring }
    }
}

impl Bell {
    /// From now on it is this task that is woken.
    pub(super) fn answered_by(&self, context: &Context<'_>) -> Context<'_> {
        match &mut *self.ring.task.lock() {
            Some(task) => task.clone_from(context.waker()),
            task => *task = Some(context.waker().clone()),
        }
        Context::from_waker(&self.waker)
    }

    /// Nobody is woken for as long as what comes back is held. Whoever holds it has to drive afterwards before it waits. Never held while
    /// the connection is driven: a connection that has much to do asks to be driven again.
    pub(super) fn mute(&self) -> Muted<'_> {
        self.ring.is_muted.store(true, Ordering::Relaxed);
        Muted(&self.ring)
    }
}

pub(super) struct Muted<'a>(&'a Ring);

impl Drop for Muted<'_> {
    fn drop(&mut self) {
        self.0.is_muted.store(false, Ordering::Relaxed);
    }
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_muted.load(Ordering::Relaxed)
            && let Some(task) = &*self.task.lock()
        {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn whoever_drove_last_is_woken_unless_it_rings_itself() {
        let (bell, tasks) = (Bell::default(), [Arc::new(Count::default()), Arc::new(Count::default())]);
        let woken = || tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        bell.waker.wake_by_ref();
        for (task, expected) in tasks.iter().zip([[1, 0], [1, 1]]) {
            let waker = Waker::from(task.clone());
            let rings = bell.answered_by(&Context::from_waker(&waker)).waker().clone();
            let muted = bell.mute();
            rings.wake_by_ref();
            drop(muted);
            rings.wake();
            assert_eq!(woken(), expected);
        }
    }
}
