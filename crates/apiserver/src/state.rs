//! What every request shares: the rows, the caches, the store and the decisions made at start.

use std::net::IpAddr;
use std::sync::Arc;

use api::{GroupKind, GroupResource, Status, UserInfo};
use bytes::Bytes;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission;
use crate::authn;
use crate::authz;
use crate::config::Config;
use crate::registry::{Registry, Resource};
use crate::watch_cache::{Cache, Caches, Entry, ROOT, Unreadable};

pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) registry: Registry,
    pub(crate) caches: Arc<Caches>,
    /// The store of the caches, if it seals.
    pub(crate) sealed: Option<crate::seal::Sealed>,
    pub(crate) authn: authn::Authenticators,
    pub(crate) authz: authz::Authorizers,
    pub(crate) admission: admission::Chain,
    pub(crate) tokens: Option<authn::TokenIssuer>,
    pub(crate) in_flight: crate::chain::InFlight,
    pub(crate) flow_control: Arc<crate::flow_control::FlowControl>,
    pub(crate) metrics: crate::metrics::RequestMetrics,
    pub(crate) cors: crate::chain::Cors,
    /// `None` if nothing is recorded.
    pub(crate) audit: Option<Arc<crate::audit::Audit>>,
    pub(crate) kubelet: crate::verbs::KubeletClient,
    pub(crate) documents: parking_lot::RwLock<Arc<crate::discovery::Documents>>,
    pub(crate) definitions: crate::custom::Definitions,
    pub(crate) aggregation: crate::aggregation::Aggregation,
    pub(crate) resource_metrics: crate::resource_metrics::Sampler,
    pub(crate) event_leases: crate::verbs::EventLeases,
    /// The last spans of the cluster.
    pub(crate) trace: Arc<trace::Recorder>,
    pub(crate) bootstrapped: std::sync::atomic::AtomicBool,
    /// Writes that run to their end whatever happens to their clients.
    pub(crate) writes: TaskTracker,
    /// Fires when the server stops; open watches end.
    pub(crate) stop: CancellationToken,
}

impl State {
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.caches.store
    }

    /// Whether what is stored under a key is to be written again though it does not change: it is sealed with a key that
    /// is no longer written with.
    pub(crate) async fn is_stale(&self, key: &str) -> Result<bool, Status> {
        match &self.sealed {
            Some(sealed) => sealed.is_stale(key).await.map_err(crate::status::from_store),
            None => Ok(false),
        }
    }

    /// The address of this server that pods can reach: never loopback or the wildcard, which mean something else to them.
    pub(crate) fn endpoint(&self) -> Option<IpAddr> {
        let address = self.config.advertise_address.unwrap_or(self.config.bind.ip());
        (!address.is_unspecified() && !address.is_loopback()).then_some(address)
    }

    /// Whether the objects that every cluster has are there.
    pub(crate) fn bootstrapped(&self) -> Result<(), String> {
        if self.bootstrapped.load(std::sync::atomic::Ordering::Acquire) {
            Ok(())
        } else {
            Err("not finished".to_owned())
        }
    }

    pub(crate) fn cache(&self, resource: &Resource) -> Result<Arc<Cache>, Status> {
        self.caches
            .get(&resource.store_prefix)
            .ok_or_else(|| Status::internal(format!("no cache for {}", resource.store_prefix)))
    }

    /// An object of another resource from the cache, for decisions that may lag a little behind. `key` is
    /// `<namespace>/<name>` or `<name>`. One that cannot be read is an error, here and below: a decision about others
    /// must not be made as if it were not there.
    pub(crate) fn peek_entry(&self, prefix: &str, key: &str) -> Result<Option<Arc<Entry>>, Unreadable> {
        let entry = self.caches.get(prefix).and_then(|cache| cache.get(key));
        entry.as_deref().map(Entry::readable).transpose()?;
        Ok(entry)
    }

    /// As [`Self::peek_entry`], in its typed form.
    pub(crate) fn peek<K: DeserializeOwned>(&self, prefix: &str, key: &str) -> Result<Option<K>, Unreadable> {
        self.peek_entry(prefix, key)?.map(|entry| entry.decode()).transpose()
    }

    /// As [`Self::peek`], read once for all who look at the same version.
    pub(crate) fn peek_shared<K>(&self, prefix: &str, key: &str) -> Result<Option<Arc<K>>, Unreadable>
    where
        K: DeserializeOwned + Send + Sync + 'static,
    {
        self.peek_entry(prefix, key)?.map(|entry| entry.read()).transpose()
    }

    /// All objects under a prefix, of one namespace if given.
    pub(crate) fn peek_all<K: DeserializeOwned>(
        &self,
        prefix: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<K>, Unreadable> {
        let Some(cache) = self.caches.get(prefix) else { return Ok(Vec::new()) };
        let snapshot = cache.snapshot();
        if snapshot.objects.is_empty() {
            return Ok(Vec::new());
        }
        snapshot.range(namespace, None).map(|entry| entry.decode()).collect()
    }
}

/// An operation of the server itself, for writes that follow from another request.
pub(crate) fn own_operation(
    state: &Arc<State>,
    verb: &'static str,
    resource: &Arc<Resource>,
    namespace: &str,
    name: &str,
    subresource: &str,
) -> Operation {
    let info = crate::chain::RequestInfo {
        is_resource: true,
        verb,
        group: resource.group.to_string(),
        version: resource.version.to_string(),
        namespace: namespace.to_owned(),
        resource: resource.plural.to_string(),
        subresource: subresource.to_owned(),
        name: name.to_owned(),
        ..Default::default()
    };
    Operation {
        state: state.clone(),
        info,
        resource: resource.clone(),
        user: own_user(),
        method: http::Method::PUT,
        headers: http::HeaderMap::new(),
        body: Bytes::new(),
        now: now(),
        accept: crate::verbs::Accept::default(),
        warnings: Arc::default(),
    }
}

pub(crate) const OWN_USER: &str = "system:apiserver";

/// The identity under which the server acts for itself.
pub(crate) fn own_user() -> UserInfo {
    UserInfo::new(OWN_USER, &[api::user::MASTERS, api::user::AUTHENTICATED])
}

/// The key of an object within its cache.
pub(crate) fn inner_key(resource: &Resource, namespace: &str, name: &str) -> String {
    if resource.is_namespaced() { [namespace, "/", name].concat() } else { name.to_owned() }
}

/// The key of an object in the store.
pub(crate) fn store_key(resource: &Resource, inner: &str) -> String {
    [ROOT, &resource.store_prefix, "/", inner].concat()
}

/// Now, in whole seconds: the precision of Kubernetes timestamps.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// A name that nothing else has. Made of what this thread has at hand: the system would have to be asked for each one.
pub(crate) fn unique_id() -> String {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string()
}

pub(crate) fn group_resource(resource: &Resource) -> GroupResource {
    GroupResource { group: resource.group.clone(), resource: resource.plural.clone() }
}

pub(crate) fn group_kind(resource: &Resource) -> GroupKind {
    GroupKind { group: resource.group.clone(), kind: resource.kind.clone() }
}

/// One request to one resource, past the chain: what the verbs work on.
pub(crate) struct Operation {
    pub(crate) state: Arc<State>,
    pub(crate) info: crate::chain::RequestInfo,
    pub(crate) resource: Arc<Resource>,
    pub(crate) user: UserInfo,
    pub(crate) method: http::Method,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) now: Timestamp,
    pub(crate) accept: crate::verbs::Accept,
    /// Shown to the client in `Warning` headers.
    pub(crate) warnings: Arc<parking_lot::Mutex<Vec<String>>>,
}

impl Operation {
    pub(crate) fn call(&self) -> crate::registry::Call<'_> {
        crate::registry::Call { user: &self.user, now: self.now }
    }

    pub(crate) fn warn(&self, message: impl Into<String>) {
        let message = message.into();
        let mut warnings = self.warnings.lock();
        if !warnings.contains(&message) {
            warnings.push(message);
        }
    }

    pub(crate) fn group_resource(&self) -> GroupResource {
        group_resource(&self.resource)
    }

    pub(crate) fn not_found(&self, name: &str) -> Status {
        Status::not_found(&self.group_resource(), name)
    }

    /// The same request turned to another object, for verbs that write more than one.
    pub(crate) fn on(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
        subresource: &str,
    ) -> Result<Operation, Status> {
        let resource = self.state.registry.find_any(group, plural);
        let resource = resource.ok_or_else(|| Status::internal(format!("{plural} are not served")))?;
        let mut info = self.info.clone();
        info.group = group.to_owned();
        info.resource = plural.to_owned();
        info.namespace = namespace.to_owned();
        info.name = name.to_owned();
        info.subresource = subresource.to_owned();
        Ok(Operation {
            state: self.state.clone(),
            info,
            resource,
            user: self.user.clone(),
            method: self.method.clone(),
            headers: self.headers.clone(),
            body: Bytes::new(),
            now: self.now,
            accept: self.accept.clone(),
            warnings: self.warnings.clone(),
        })
    }

    /// `dryRun=All`; anything else is refused.
    pub(crate) fn dry_run(&self) -> Result<bool, Status> {
        let mut dry_run = false;
        for value in self.info.query.all("dryRun") {
            match value {
                "All" => dry_run = true,
                "" => {}
                other => {
                    let mut errors = api::field::FieldErrors::default();
                    errors.not_supported("dryRun", vec![other], &["All"]);
                    let kind = GroupKind::new("meta.k8s.io", "CreateOptions");
                    return Err(Status::invalid(&kind, "", errors));
                }
            }
        }
        Ok(dry_run)
    }
}
