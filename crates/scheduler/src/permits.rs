//! Pods that a permit plug-in holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::framework::Rejection;

/// Pods that wait for a permit, until somebody allows or rejects them.
#[derive(Default)]
pub(crate) struct Waiting {
    pods: Mutex<HashMap<Arc<str>, oneshot::Sender<Verdict>>>,
}

type Verdict = Result<(), Rejection>;

impl Waiting {
    /// Ends the wait of a pod; false if it does not wait.
    pub(crate) fn decide(&self, uid: &str, verdict: Verdict) -> bool {
        let waiter = self.pods.lock().remove(uid);
        waiter.is_some_and(|waiter| waiter.send(verdict).is_ok())
    }

    pub(crate) async fn wait(&self, uid: &Arc<str>, time: Duration) -> Verdict {
        let (sender, receiver) = oneshot::channel();
        self.pods.lock().insert(uid.clone(), sender);
        let verdict = tokio::time::timeout(time, receiver).await;
        self.pods.lock().remove(uid);
        match verdict {
            Ok(Ok(verdict)) => verdict,
            _ => {
                let reason = format!("rejected due to timeout after waiting {time:?} at plugin Permit");
                Err(Rejection::new("Permit", reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_given_refused_or_runs_out() {
        let waiting = Arc::new(Waiting::default());
        let refusal = Rejection::new("P", "no");
        for (verdict, expected) in [(Ok(()), Ok(())), (Err(refusal.clone()), Err(refusal))] {
            let (waiter, uid) = (waiting.clone(), Arc::<str>::from("u"));
            let wait = tokio::spawn(async move { waiter.wait(&uid, Duration::from_secs(60)).await });
            tokio::task::yield_now().await;
            assert!(waiting.decide("u", verdict));
            assert_eq!(wait.await.unwrap(), expected);
        }
        let late = waiting.wait(&Arc::from("u"), Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(late.reasons, ["rejected due to timeout after waiting 1s at plugin Permit"]);
        assert!(!waiting.decide("u", Ok(())), "nobody waits any more");
    }
}
