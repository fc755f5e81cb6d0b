//! Token cleaner: a bootstrap token is removed when its time is over.

use std::sync::Arc;
use std::time::Duration;

use api::meta::Meta as _;
use client::{Client, Clock, DeleteParams, Event, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;

use super::{Expiration, NAMESPACE, expiration, has_expired, selection};
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::pods::key;

struct Controller {
    client: Client,
    clock: Clock,
    tokens: Informer<Secret>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let tokens = context.namespaced::<Secret>(NAMESPACE, selection());
    let queue = context.queue.clone();
    let tokens = tokens.wakes(move |event| {
        if !matches!(event, Event::Deleted(_)) {
            queue.add(key(&**event.object()));
        }
    });
    Arc::new(Controller { clock: context.config.clock.clone(), client: context.client.clone(), tokens })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(secret) = self.tokens.get(key) else { return Ok(Requeue::Never) };
            let now = self.clock.now();
            if !has_expired(&secret, now) {
                let Expiration::At(end) = expiration(&secret) else { return Ok(Requeue::Never) };
                return Ok(Requeue::After(Duration::try_from(end.duration_since(now)).unwrap_or_default()));
            }
            let params = DeleteParams { uid: secret.metadata.uid.clone(), ..DeleteParams::default() };
            let api = self.client.namespaced::<Secret>(NAMESPACE);
            if_unchanged(api.delete(secret.metadata.name(), &params).await)?;
            Ok(Requeue::Never)
        })
    }
}
