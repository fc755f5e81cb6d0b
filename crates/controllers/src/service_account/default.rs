//! ServiceAccount: every namespace has one called `default`.

use std::sync::Arc;

use client::{Client, Event, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::namespace::is_active;

const DEFAULT: &str = "default";

struct Controller {
    client: Client,
    namespaces: Informer<Namespace>,
    accounts: Informer<ServiceAccount>,
}

/// Keys are namespaces.
pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let namespaces = context.on_self::<Namespace>();
    let accounts = context.on::<ServiceAccount, _>(|event| match event {
        Event::Deleted(account) => account.metadata.namespace.clone(),
        _ => None,
    });
    Arc::new(Controller { client: context.client.clone(), namespaces, accounts })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let active = self.namespaces.get(key).is_some_and(|namespace| is_active(&namespace));
            if !active || self.accounts.get(&format!("{key}/{DEFAULT}")).is_some() {
                return Ok(Requeue::Never);
            }
            let mut account = ServiceAccount::default();
            account.metadata.name = Some(DEFAULT.into());
            account.metadata.namespace = Some(key.into());
            match self.client.namespaced::<ServiceAccount>(key).create(&account).await {
                Ok(_) => Ok(Requeue::Never),
                Err(error) if error.is_already_exists() || error.is_namespace_terminating() || error.is_not_found() => {
                    Ok(Requeue::Never)
                }
                Err(error) => Err(error.into()),
            }
        })
    }
}
