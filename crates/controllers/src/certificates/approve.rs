//! Approver: a kubelet's request for a client certificate is approved if whoever asks has the right to ask for it.

use std::sync::Arc;

use client::{Client, Clock, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::request::{is_kubelet_client, parse};
use super::{KUBELET_CLIENT, has_condition, is_issued};
use crate::controller::{Context, Outcome, Reconcile, Requeue};

struct Controller {
    client: Client,
    clock: Clock,
    requests: Informer<CertificateSigningRequest>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let requests = context.on_self::<CertificateSigningRequest>();
    Arc::new(Controller { clock: context.config.clock.clone(), client: context.client.clone(), requests })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(request) = self.requests.get(key) else { return Ok(Requeue::Never) };
        let decided = has_condition(&request, "Approved") || has_condition(&request, "Denied") || is_issued(&request);
        if decided || request.spec.signer_name != KUBELET_CLIENT {
            return Ok(Requeue::Never);
        }
        let Ok(params) = parse(&request.spec) else { return Ok(Requeue::Never) };
        if !is_kubelet_client(&request.spec, &params) {
            return Ok(Requeue::Never);
        }
        let own = request.spec.username.as_deref() == Some(params.subject.common_name.as_str());
        let ways = [
            ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."),
            ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."),
        ];
        for (subresource, message) in ways.into_iter().filter(|(subresource, _)| own || *subresource == "nodeclient") {
            if !self.may(&request, subresource).await? {
                continue;
            }
            let mut approved = CertificateSigningRequest::clone(&request);
            let now = Some(Time(self.clock.now()));
            approved.status.get_or_insert_default().conditions.get_or_insert_default().push(
                CertificateSigningRequestCondition {
                    type_: "Approved".into(),
                    status: "True".into(),
                    reason: Some("AutoApproved".into()),
                    message: Some(message.into()),
                    last_update_time: now.clone(),
                    last_transition_time: now,
                },
            );
            let api = self.client.all::<CertificateSigningRequest>();
            api.update_subresource::<_, CertificateSigningRequest>(key, "approval", &approved).await?;
            return Ok(Requeue::Never);
        }
        Ok(Requeue::Never)
    }

    async fn may(&self, request: &CertificateSigningRequest, subresource: &str) -> Result<bool, client::Error> {
        let spec = &request.spec;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: spec.username.clone(),
                uid: spec.uid.clone(),
                groups: spec.groups.clone(),
                extra: spec.extra.clone(),
                resource_attributes: Some(ResourceAttributes {
                    group: Some("certificates.k8s.io".into()),
                    resource: Some("certificatesigningrequests".into()),
                    subresource: Some(subresource.into()),
                    verb: Some("create".into()),
                    version: Some("*".into()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer = self.client.all::<SubjectAccessReview>().create(&review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}
