//! Leader election by Lease: of several instances one acts, and another takes over when it is gone.
//!
//! Whether a lease has run out is judged by the local clock since the record was last seen to change, so clocks of
//! different machines need not agree.

use std::future::Future;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Api, Client, Error};

/// How long a lease lasts, how long a leader tries to renew it, and how often anyone asks.
#[derive(Debug, Clone, Copy)]
pub struct Durations {
    pub lease: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

impl Default for Durations {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Which Lease is held, as whom and for how long.
#[derive(Debug, Clone)]
pub struct Election {
    pub namespace: String,
    pub name: String,
    pub identity: String,
    pub durations: Durations,
}

pub struct LeaderElector {
    api: Api<Lease>,
    election: Election,
}

/// The record as last seen, and when it was seen to change.
struct Observed {
    spec: LeaseSpec,
    at: Instant,
}

impl LeaderElector {
    pub fn new(client: Client, election: Election) -> Self {
        Self { api: client.namespaced(&election.namespace), election }
    }

    /// Waits to become leader and then runs `on_leading`, whose token fires when the lead is lost or `stop` fires.
    /// Returns true if it ended because of `stop` or by itself, false if the lead was lost.
    pub async fn run<F, Fut>(&self, stop: CancellationToken, on_leading: F) -> bool
    where
        F: FnOnce(CancellationToken) -> Fut,
        Fut: Future<Output = ()>,
    {
        let mut observed = None;
        let until = loop {
            if let Some(until) = self.try_lead(&mut observed).await {
                break until;
            }
            // Spread candidates so that they do not all write at once.
            let pause = self.election.durations.retry_period.mul_f64(1.0 + 0.2 * rand::random::<f64>());
            tokio::select! {
                () = stop.cancelled() => return true,
                () = tokio::time::sleep(pause) => {}
            }
        };
        tracing::info!(lease = self.election.name, identity = self.election.identity, "became leader");
        let leading = stop.child_token();
        let work = on_leading(leading.clone());
        tokio::pin!(work);
        let end = tokio::select! {
            () = &mut work => End::Finished,
            () = stop.cancelled() => End::Stopped,
            () = self.keep(&mut observed, until) => End::Lost,
        };
        leading.cancel();
        match end {
            // The work is dropped: without the lead it must not do anything more.
            End::Lost => {
                tracing::warn!(lease = self.election.name, identity = self.election.identity, "lost the lead");
                return false;
            }
            End::Stopped => work.await,
            End::Finished => {}
        }
        self.release(&mut observed).await;
        true
    }

    /// Renews, until that was not done by the time that the lead lasts. An attempt that takes longer counts for nothing.
    async fn keep(&self, observed: &mut Option<Observed>, mut until: Instant) {
        loop {
            let renew = async {
                tokio::time::sleep(self.election.durations.retry_period).await;
                self.try_lead(observed).await
            };
            match tokio::time::timeout_at(until, renew).await {
                Ok(Some(renewed)) => until = renewed,
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    /// Acquires or renews, and says until when that is good without another renewal. A failure is logged and counts as "not
    /// now". Others wait from when they see the record for as long as it lasts, and it was written after this began.
    fn try_lead<'a>(&'a self, observed: &'a mut Option<Observed>) -> BoxFuture<'a, Option<Instant>> {
        // Boxed: what an `async fn` does is compiled again by every crate that waits for it.
        Box::pin(self.try_lead_now(observed))
    }

    async fn try_lead_now(&self, observed: &mut Option<Observed>) -> Option<Instant> {
        let Durations { lease, renew_deadline, .. } = self.election.durations;
        let began = Instant::now();
        match tokio::time::timeout(renew_deadline, self.acquire(observed)).await {
            Ok(Ok(leading)) => leading.then(|| (Instant::now() + renew_deadline).min(began + lease)),
            Ok(Err(error)) => {
                tracing::debug!(lease = self.election.name, %error, "lease not written");
                None
            }
            Err(_) => None,
        }
    }

    async fn acquire(&self, observed: &mut Option<Observed>) -> Result<bool, Error> {
        let now = Timestamp::now();
        let Some(mut lease) = self.api.get_opt(&self.election.name).await? else {
            let mut lease = Lease::default();
            lease.metadata.name = Some(self.election.name.clone());
            lease.metadata.namespace = Some(self.election.namespace.clone());
            lease.spec = Some(self.record(None, now));
            let created = self.api.create(&lease).await?;
            see(observed, created.spec.unwrap_or_default());
            return Ok(true);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        see(observed, spec.clone());
        let held_by_other = spec
            .holder_identity
            .as_deref()
            .is_some_and(|holder| !holder.is_empty() && holder != self.election.identity);
        let seen = observed.as_ref().map_or(Duration::ZERO, |observed| observed.at.elapsed());
        let lasts = Duration::from_secs(spec.lease_duration_seconds.unwrap_or_default().max(0).unsigned_abs().into());
        if held_by_other && seen < lasts {
            return Ok(false);
        }
        lease.spec = Some(self.record(Some(&spec), now));
        let updated = self.api.update(&lease).await?;
        see(observed, updated.spec.unwrap_or_default());
        Ok(true)
    }

    /// The record that says we lead; a change of holder is a transition.
    fn record(&self, old: Option<&LeaseSpec>, now: Timestamp) -> LeaseSpec {
        let same = old.is_some_and(|old| old.holder_identity.as_deref() == Some(&self.election.identity));
        let transitions = old.and_then(|old| old.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.election.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(self.election.durations.lease.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: old.filter(|_| same).and_then(|old| old.acquire_time.clone()).or(Some(MicroTime(now))),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(if same || old.is_none() { transitions } else { transitions + 1 }),
            ..LeaseSpec::default()
        }
    }

    /// Gives the lease back so that the next leader need not wait for it to run out.
    async fn release(&self, observed: &mut Option<Observed>) {
        let release = async {
            let Some(mut lease) = self.api.get_opt(&self.election.name).await? else { return Ok(()) };
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(&self.election.identity) {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
                self.api.update(&lease).await?;
            }
            Ok::<_, Error>(())
        };
        if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(2), release).await {
            tracing::debug!(lease = self.election.name, %error, "lease not released");
        }
        *observed = None;
    }
}

/// Why leading ended.
enum End {
    Finished,
    Stopped,
    Lost,
}

fn see(observed: &mut Option<Observed>, spec: LeaseSpec) {
    if observed.as_ref().is_none_or(|observed| observed.spec != spec) {
        *observed = Some(Observed { spec, at: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use parking_lot::Mutex;

    use super::*;
    use crate::Handler;

    /// A server with one Lease.
    struct Server {
        answers: Answers,
        lease: Option<Bytes>,
        written: Instant,
    }

    #[derive(Clone, Copy)]
    enum Answers {
        Well,
        WithErrors,
        Never,
    }

    impl Server {
        fn answer(&mut self, request: http::Request<Bytes>) -> (u16, Bytes) {
            if request.method() != http::Method::GET {
                (self.lease, self.written) = (Some(request.into_body()), Instant::now());
            }
            let absent = br#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#;
            self.lease.clone().map_or((404, Bytes::from_static(absent)), |lease| (200, lease))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_ends_before_others_may_begin() {
        let began = Instant::now();
        let server = Arc::new(Mutex::new(Server { answers: Answers::Well, lease: None, written: began }));
        let asked = server.clone();
        let handler: Handler = Arc::new(move |request| {
            let asked = asked.clone();
            Box::pin(async move {
                let answers = asked.lock().answers;
                let (status, text) = match answers {
                    Answers::Never => std::future::pending().await,
                    Answers::WithErrors => (500, Bytes::from_static(b"{}")),
                    Answers::Well => asked.lock().answer(request),
                };
                let body = Full::new(text).map_err(|never| match never {}).boxed_unsync();
                http::Response::builder().status(status).header("content-type", "application/json").body(body).unwrap()
            })
        });
        let durations = Durations::default();
        let election = Election { namespace: "n".into(), name: "l".into(), identity: "a".into(), durations };
        let elector = LeaderElector::new(Client::in_process(handler, api::UserInfo::default()), election);
        let of_test = server.clone();
        let leads_on = elector.run(CancellationToken::new(), |leading| async move {
            tokio::time::sleep(2 * durations.lease).await;
            // Errors that come at once, then no answer at all.
            of_test.lock().answers = Answers::WithErrors;
            tokio::time::sleep(durations.renew_deadline - durations.retry_period).await;
            of_test.lock().answers = Answers::Never;
            leading.cancelled().await;
        });
        assert!(!leads_on.await);
        let written = server.lock().written;
        assert!(written >= began + durations.lease, "it renewed while it could");
        assert!(written.elapsed() < durations.lease, "it led {:?} after the last renewal", written.elapsed());
    }
}
