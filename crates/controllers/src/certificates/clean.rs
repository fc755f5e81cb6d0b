//! Cleaner: requests that nobody needs any more are deleted.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, Clock, DeleteParams, Event, Informer};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use super::is_issued;
use crate::controller::{Context, Outcome, Reconcile, Requeue};

const MAX_DECIDED_AGE: Duration = Duration::from_secs(3600);
const MAX_PENDING_AGE: Duration = Duration::from_secs(24 * 3600);

struct Controller {
    client: Client,
    clock: Clock,
    requests: Informer<CertificateSigningRequest>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let requests = context.on::<CertificateSigningRequest, _>(|event| match event {
        Event::Deleted(_) => None,
        _ => event.object().metadata.name.clone(),
    });
    Arc::new(Controller { clock: context.config.clock.clone(), client: context.client.clone(), requests })
}

/// How long a request still has: an hour after it was issued, denied or failed, a day while nobody decides.
fn time_left(request: &CertificateSigningRequest, now: Timestamp) -> Duration {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    let time = |kind: &str| {
        let condition = conditions.into_iter().flatten().find(|condition| condition.type_ == kind)?;
        condition.last_update_time.as_ref().or(condition.last_transition_time.as_ref()).map(|time| time.0)
    };
    let decided = time("Denied").or(time("Failed")).or_else(|| time("Approved").filter(|_| is_issued(request)));
    let created = request.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let (since, limit) = decided.map_or((created, MAX_PENDING_AGE), |decided| (decided, MAX_DECIDED_AGE));
    limit.saturating_sub(Duration::try_from(now.duration_since(since)).unwrap_or_default())
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(request) = self.requests.get(key) else { return Ok(Requeue::Never) };
            let left = time_left(&request, self.clock.now());
            if !left.is_zero() {
                return Ok(Requeue::After(left + Duration::from_secs(1)));
            }
            match self.client.all::<CertificateSigningRequest>().delete(key, &DeleteParams::default()).await {
                Err(error) if !error.is_not_found() => Err(error.into()),
                _ => Ok(Requeue::Never),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::certificates::v1::{CertificateSigningRequestCondition, CertificateSigningRequestStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::pods::tests::at;

    #[test]
    fn decided_requests_stay_an_hour_others_a_day() {
        for (condition, issued, now, expected) in [
            (None, false, 3600, 23 * 3600),
            (Some("Denied"), false, 600, 3000),
            (Some("Approved"), true, 600, 3000),
            (Some("Approved"), false, 600, 85_800),
            (Some("Failed"), false, 7200, 0),
        ] {
            let mut request = CertificateSigningRequest::default();
            request.metadata.creation_timestamp = Some(Time(at(0)));
            let condition = condition.map(|kind| CertificateSigningRequestCondition {
                type_: kind.into(),
                last_update_time: Some(Time(at(0))),
                ..Default::default()
            });
            request.status = Some(CertificateSigningRequestStatus {
                conditions: condition.map(|condition| vec![condition]),
                certificate: issued.then(|| ByteString(vec![1])),
            });
            assert_eq!(time_left(&request, at(now)).as_secs(), expected, "{issued} {now}");
        }
    }
}
