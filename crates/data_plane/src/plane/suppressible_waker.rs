//! A waker that can be suppressed: a connection to an endpoint wakes the task that polls it, but not by that task's own steps.
//!
//! hyper has three parties to an exchange: one that reads and writes, one that waits for the answer, one that takes its body. Each step of
//! one wakes another. Here they are one task, which is awake when it takes a step: were it woken by that, it would
//! run once more for each request and for each answer, and find nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;

pub(super) struct SuppressibleWaker {
    shared: Arc<Shared>,
    /// Of `shared`, and the same for as long as the connection lasts.
    waker: Waker,
}

#[derive(Default)]
struct Shared {
    /// The task that polled last.
    task: Mutex<Option<Waker>>,
    is_suppressed: AtomicBool,
}

impl Default for SuppressibleWaker {
    fn default() -> Self {
        let shared = Arc::<Shared>::default();
        Self { waker: shared.clone().into(), shared }
    }
}

impl SuppressibleWaker {
    /// From now on it is this task that is woken.
    pub(super) fn register(&self, context: &Context<'_>) -> Context<'_> {
        match &mut *self.shared.task.lock() {
            Some(task) => task.clone_from(context.waker()),
            task => *task = Some(context.waker().clone()),
        }
        Context::from_waker(&self.waker)
    }

    /// No task is woken while the guard is held. Its holder must poll the connection afterwards, before it waits, and must not hold it while
    /// the connection is polled: a connection that has much to do asks to be polled again.
    pub(super) fn suppress(&self) -> Suppressed<'_> {
        self.shared.is_suppressed.store(true, Ordering::Relaxed);
        Suppressed(&self.shared)
    }
}

pub(super) struct Suppressed<'a>(&'a Shared);

impl Drop for Suppressed<'_> {
    fn drop(&mut self) {
        self.0.is_suppressed.store(false, Ordering::Relaxed);
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_suppressed.load(Ordering::Relaxed)
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
    fn the_task_that_polled_last_is_woken_unless_suppressed() {
        let suppressible = SuppressibleWaker::default();
        let tasks = [Arc::new(Count::default()), Arc::new(Count::default())];
        let woken = || tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        suppressible.waker.wake_by_ref();
        for (task, expected) in tasks.iter().zip([[1, 0], [1, 1]]) {
            let waker = Waker::from(task.clone());
            let registered = suppressible.register(&Context::from_waker(&waker)).waker().clone();
            let suppressed = suppressible.suppress();
            registered.wake_by_ref();
            drop(suppressed);
            registered.wake();
            assert_eq!(woken(), expected);
        }
    }
}
