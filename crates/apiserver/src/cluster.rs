//! What decisions about a write may see of the cluster, and do in it.

use std::sync::{Arc, OnceLock};

use api::{Status, UserInfo};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use registry::{AnyObject, Object, Registry, Resource};
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::authz::Authorizers;
use crate::config::Config;
use crate::remote::Services;
use crate::seal::Sealed;
use crate::watch_cache::{Cache, Caches, Objects};

pub(crate) struct Cluster {
    pub(crate) config: Config,
    pub(crate) registry: Registry,
    pub(crate) caches: Arc<Caches>,
    /// The store of the caches, if it seals.
    pub(crate) sealed: Option<Sealed>,
    pub(crate) authz: Authorizers,
    pub(crate) services: Services,
    /// Fires when the server stops; open watches end.
    pub(crate) stop: CancellationToken,
    /// Set once there is a server that can carry them out.
    pub(crate) own: OnceLock<Box<dyn OwnRequests>>,
}

/// Builds the new object from the current one.
pub(crate) type Change<'a> = dyn Fn(&dyn Object) -> Result<AnyObject, Status> + Send + Sync + 'a;

/// Requests that the server makes of itself while it serves another one. They pass through admission as well.
pub(crate) trait OwnRequests: Send + Sync {
    fn create<'a>(&'a self, resource: &'a Arc<Resource>, object: AnyObject) -> BoxFuture<'a, Result<(), Status>>;

    fn delete<'a>(
        &'a self,
        resource: &'a Arc<Resource>,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<(), Status>>;

    /// Changes the status of an object, whatever it is by now. `manager` is who comes to own the fields, if it is not the
    /// server itself.
    fn modify_status<'a>(
        &'a self,
        resource: &'a Arc<Resource>,
        namespace: &'a str,
        name: &'a str,
        manager: Option<&'static str>,
        change: &'a Change<'a>,
    ) -> BoxFuture<'a, Result<(), Status>>;

    /// The page of a node's kubelet at a path.
    fn ask_kubelet<'a>(&'a self, node: &'a str, path: &'a str) -> BoxFuture<'a, Result<Bytes, Status>>;
}

impl Cluster {
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.caches.store
    }

    /// What is there, by type.
    pub(crate) fn objects(&self) -> Objects<'_> {
        self.caches.objects()
    }

    /// Whether what is stored under a key is to be written again though it does not change: it is sealed with a key that
    /// is no longer written with.
    pub(crate) async fn is_stale(&self, key: &str) -> Result<bool, Status> {
        match &self.sealed {
            Some(sealed) => sealed.is_stale(key).await.map_err(crate::status::from_store),
            None => Ok(false),
        }
    }

    pub(crate) fn cache(&self, resource: &Resource) -> Result<Arc<Cache>, Status> {
        self.caches
            .get(&resource.store_prefix)
            .ok_or_else(|| Status::internal(format!("no cache for {}", resource.store_prefix)))
    }

    pub(crate) fn own(&self) -> Result<&dyn OwnRequests, Status> {
        self.own.get().map(|own| &**own).ok_or_else(|| Status::internal("the server has not begun"))
    }
}

pub(crate) const OWN_USER: &str = "system:apiserver";

/// The identity under which the server acts for itself.
pub(crate) fn own_user() -> UserInfo {
    UserInfo::new(OWN_USER, &[api::user::MASTERS, api::user::AUTHENTICATED])
}
