//! The proxy's own health: it is well as long as what it was told is programmed within two resync periods.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;

/// A cluster autoscaler's mark on a node that is about to go: load balancers should leave it.
pub(crate) const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

pub(crate) struct OwnHealth {
    state: Mutex<State>,
    /// A change that waits for longer means that we are stuck.
    timeout: Duration,
}

#[derive(Default)]
struct State {
    /// Since when the oldest change waits.
    pending: Option<Instant>,
    updated: Option<Timestamp>,
    is_leaving: bool,
}

impl OwnHealth {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { state: Mutex::default(), timeout }
    }

    /// A change came that has to be programmed.
    pub(crate) fn queued(&self) {
        self.state.lock().pending.get_or_insert_with(Instant::now);
    }

    /// Everything that came before is programmed.
    pub(crate) fn updated(&self) {
        let mut state = self.state.lock();
        state.pending = None;
        state.updated = Some(Timestamp::now());
    }

    /// The node is about to be deleted, or not any more.
    pub(crate) fn set_leaving(&self, is_leaving: bool) {
        self.state.lock().is_leaving = is_leaving;
    }

    /// Whether rules are there and follow what changes.
    pub(crate) fn is_serving(&self) -> bool {
        let state = self.state.lock();
        state.updated.is_some() && self.is_live(&state)
    }

    fn is_live(&self, state: &State) -> bool {
        state.pending.is_none_or(|since| since.elapsed() < self.timeout)
    }

    /// `/livez`, and `/healthz`, by which load balancers also notice that the node is about to go.
    pub(crate) fn answer(&self, path: &str) -> (u16, String) {
        let state = self.state.lock();
        let is_live = self.is_live(&state);
        let is_healthy = match path {
            "/healthz" => is_live && !state.is_leaving && state.updated.is_some(),
            "/livez" => is_live,
            _ => return (404, "404 page not found\n".into()),
        };
        let now = Timestamp::now();
        let updated = if is_healthy { Some(now) } else { state.updated };
        let mut body = json!({
            "lastUpdated": updated.map(|at| at.to_string()),
            "currentTime": now.to_string(),
            "healthy": is_live,
        });
        if path == "/healthz" {
            body["nodeEligible"] = json!(!state.is_leaving);
        }
        (if is_healthy { 200 } else { 503 }, body.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn healthy_once_programmed_and_while_not_stuck() {
        let health = OwnHealth::new(Duration::from_secs(3600));
        let codes = |health: &OwnHealth| ["/healthz", "/livez", "/other"].map(|path| health.answer(path).0);
        assert_eq!(codes(&health), [503, 200, 404]);
        assert!(!health.is_serving(), "no rules yet");
        health.queued();
        health.updated();
        assert_eq!(codes(&health), [200, 200, 404]);
        assert!(health.is_serving());
        health.set_leaving(true);
        assert_eq!(codes(&health), [503, 200, 404]);
        assert!(health.is_serving(), "endpoints that are there are served until the node goes");
        health.set_leaving(false);
        let stuck = OwnHealth { timeout: Duration::ZERO, ..health };
        stuck.queued();
        assert_eq!(codes(&stuck), [503, 503, 404]);
        assert!(!stuck.is_serving());
        stuck.updated();
        assert_eq!(codes(&stuck), [200, 200, 404]);
    }
}
