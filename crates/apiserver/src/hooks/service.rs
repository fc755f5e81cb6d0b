//! Services claim their addresses and node ports before they are written.

use std::sync::Arc;

use api::Status;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Service;
use registry::Object;

use super::{Claimed, Hooks, Undo, Write};
use crate::allocation::{self, Taken};
use crate::cluster::Cluster;

pub(super) struct Addresses;

struct Claims {
    service: Service,
    taken: Taken,
    released: Taken,
}

impl Hooks for Addresses {
    fn claims(&self) -> bool {
        true
    }

    fn before_write<'a>(&'a self, write: Write<'a>) -> BoxFuture<'a, Result<Undo, Status>> {
        Box::pin(async move {
            let Write { operation, new, old, dry_run } = write;
            let Some(service) = new.downcast_mut::<Service>() else { return Ok(Undo::default()) };
            let old = old.and_then(|old| old.downcast_ref::<Service>());
            let taken = allocation::allocate(&operation.state.cluster, service, old, dry_run).await?;
            let released = old.map(|old| Taken::of(old).without(&Taken::of(service))).unwrap_or_default();
            Ok(Undo(Some(Box::new(Claims { service: service.clone(), taken, released }))))
        })
    }

    fn after_delete<'a>(&'a self, cluster: &'a Arc<Cluster>, old: &'a dyn Object) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(service) = old.downcast_ref::<Service>() {
                allocation::release(cluster, service, &Taken::of(service)).await;
            }
        })
    }
}

impl Claimed for Claims {
    fn give_back<'a>(self: Box<Self>, cluster: &'a Arc<Cluster>) -> BoxFuture<'a, ()> {
        Box::pin(async move { allocation::release(cluster, &self.service, &self.taken).await })
    }

    fn settle<'a>(self: Box<Self>, cluster: &'a Arc<Cluster>) -> BoxFuture<'a, ()> {
        Box::pin(async move { allocation::release(cluster, &self.service, &self.released).await })
    }
}
