//! Who asks, whether they may, and for how long their certificates still hold.

use std::time::Duration;

use ::metrics::{Counter, Histogram, Metrics, exponential};
use parking_lot::RwLock;
use std::collections::HashMap;

static BOUNDS: [f64; 15] = exponential(0.001, 2.0);
/// From what has ended to a year, as upstream.
const LEFT_BOUNDS: [f64; 14] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

struct Outcome {
    count: Counter,
    durations: Histogram,
}

impl Outcome {
    fn observe(&self, took: Duration) {
        self.count.inc();
        self.durations.observe_duration(took);
    }
}

pub(crate) struct Access {
    all: Metrics,
    known: Outcome,
    unknown: Outcome,
    allowed: Outcome,
    refused: Outcome,
    certificates: Histogram,
    /// By name as it is shown, and by what decided.
    users: RwLock<HashMap<&'static str, Counter>>,
    decisions: RwLock<HashMap<(&'static str, &'static str), Counter>>,
}

impl Access {
    pub(crate) fn new(all: &Metrics) -> Self {
        let authentication = |result| Outcome {
            count: all.counter("authentication_attempts", "Attempts to say who one is.", &[("result", result)]),
            durations: all.histogram(
                "authentication_duration_seconds",
                "How long it takes to find out who asks.",
                &BOUNDS,
                &[("result", result)],
            ),
        };
        let authorization = |result| Outcome {
            count: all.counter("authorization_attempts_total", "Decisions about requests.", &[("result", result)]),
            durations: all.histogram(
                "authorization_duration_seconds",
                "How long it takes to decide whether a request may pass.",
                &BOUNDS,
                &[("result", result)],
            ),
        };
        Self {
            known: authentication("success"),
            unknown: authentication("failure"),
            allowed: authorization("allowed"),
            refused: authorization("no-opinion"),
            certificates: all.histogram(
                "apiserver_client_certificate_expiration_seconds",
                "How long the certificates of clients still hold when they are shown.",
                &LEFT_BOUNDS,
                &[],
            ),
            users: Default::default(),
            decisions: Default::default(),
            all: all.clone(),
        }
    }

    /// `user` is who it was found to be; `left`, of a certificate, how many seconds it holds.
    pub(crate) fn authenticated(&self, user: Option<&str>, left: Option<i64>, took: Duration) {
        let Some(user) = user else { return self.unknown.observe(took) };
        self.known.observe(took);
        if let Some(left) = left {
            self.certificates.observe(left as f64);
        }
        let shown = shown_name(user);
        let known = self.users.read().get(shown).cloned();
        let count = known.unwrap_or_else(|| {
            let help = "Requests by who sent them, where that is somebody whom every cluster knows.";
            let made = self.all.counter("authenticated_user_requests", help, &[("username", shown)]);
            self.users.write().entry(shown).or_insert(made).clone()
        });
        count.inc();
    }

    /// `by` is the authorizer that decided, if one did, and how upstream names its kind.
    pub(crate) fn authorized(&self, allowed: bool, by: Option<&'static str>, took: Duration) {
        if allowed { &self.allowed } else { &self.refused }.observe(took);
        let Some(by) = by else { return };
        let decision = if allowed { "allowed" } else { "denied" };
        let known = self.decisions.read().get(&(decision, by)).cloned();
        let count = known.unwrap_or_else(|| {
            let labels = [("decision", decision), ("name", &*by.to_lowercase()), ("type", by)];
            let help = "Decisions by the authorizer that made them.";
            let made = self.all.counter("apiserver_authorization_decisions_total", help, &labels);
            self.decisions.write().entry((decision, by)).or_insert(made).clone()
        });
        count.inc();
    }
}

/// Nobody shall fill the memory with names: upstream's short list, and what all others are.
fn shown_name(user: &str) -> &'static str {
    const KNOWN: [&str; 5] = ["admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default"];
    match KNOWN.into_iter().find(|known| *known == user) {
        Some(known) => known,
        None if user.contains('@') => "email_id",
        None => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_invented_names_make_no_series() {
        let all = Metrics::new();
        let access = Access::new(&all);
        access.authenticated(None, None, Duration::ZERO);
        for name in ["admin", "a@b.c", "d@e.f", "made-up-1", "made-up-2"] {
            access.authenticated(Some(name), Some(3600), Duration::from_millis(3));
        }
        access.authorized(true, Some("RBAC"), Duration::ZERO);
        access.authorized(false, None, Duration::ZERO);
        let text = all.render();
        for line in [
            "authentication_attempts{result=\"failure\"} 1\n",
            "authentication_attempts{result=\"success\"} 5\n",
            "authenticated_user_requests{username=\"admin\"} 1\n",
            "authenticated_user_requests{username=\"email_id\"} 2\n",
            "authenticated_user_requests{username=\"other\"} 2\n",
            "apiserver_client_certificate_expiration_seconds_bucket{le=\"1800\"} 0\n",
            "apiserver_client_certificate_expiration_seconds_bucket{le=\"3600\"} 5\n",
            "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"rbac\",type=\"RBAC\"} 1\n",
            "authorization_attempts_total{result=\"no-opinion\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(!text.contains("made-up"));
    }
}
