//! What every request shares: the rows, the caches, the store and the decisions made at start.

use std::net::IpAddr;
use std::sync::Arc;

use api::{GroupKind, GroupResource, Status, UserInfo};
use bytes::Bytes;
use jiff::Timestamp;
use registry::{Resource, Verb};
use tokio_util::task::TaskTracker;

use crate::admission;
use crate::authn;
use crate::cluster::{Cluster, own_user};
use crate::request_info::Warnings;

pub(crate) struct State {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) authn: authn::Authenticators,
    pub(crate) admission: admission::Chain,
    pub(crate) tokens: Option<authn::TokenIssuer>,
    pub(crate) in_flight: crate::in_flight::InFlight,
    pub(crate) flow_control: Arc<crate::flow_control::FlowControl>,
    pub(crate) metrics: crate::metrics::RequestMetrics,
    pub(crate) started: jiff::Timestamp,
    /// Tells this server from others of its host, and from those before it.
    pub(crate) holder: String,
    pub(crate) history: crate::history::History,
    pub(crate) cors: crate::cors::Cors,
    /// `None` if nothing is recorded.
    pub(crate) audit: Option<Arc<crate::audit::Audit>>,
    pub(crate) kubelet: crate::remote::KubeletClient,
    pub(crate) documents: parking_lot::RwLock<Arc<crate::discovery::Documents>>,
    /// Definitions of custom resources up to this revision have their rows; none until those of the start do.
    pub(crate) definitions: tokio::sync::watch::Sender<Option<u64>>,
    /// Definitions up to this revision have their status, and discovery shows their kinds.
    pub(crate) published: tokio::sync::watch::Sender<Option<u64>>,
    pub(crate) aggregation: crate::aggregation::Aggregation,
    pub(crate) resource_metrics: crate::node_usage::Sampler,
    pub(crate) event_leases: crate::event_leases::EventLeases,
    /// The last spans of the cluster.
    pub(crate) trace: Arc<trace::Recorder>,
    pub(crate) bootstrapped: std::sync::atomic::AtomicBool,
    /// Writes that run to their end whatever happens to their clients.
    pub(crate) writes: TaskTracker,
}

impl std::ops::Deref for State {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl State {
    /// The address of this server that pods can reach: never loopback or the wildcard, which mean something else to them.
    pub(crate) fn endpoint(&self) -> Option<IpAddr> {
        let address = self.config.advertise_address.unwrap_or(self.config.bind.ip());
        (!address.is_unspecified() && !address.is_loopback()).then_some(address)
    }

    /// What passing on a request to another server takes.
    pub(crate) fn forwarding(&self) -> crate::aggregation::Forwarding<'_> {
        let Cluster { services, caches, config, stop, .. } = &*self.cluster;
        crate::aggregation::Forwarding { aggregation: &self.aggregation, services, caches, config, stop }
    }

    /// Makes the documents of discovery anew, when kinds or backends came or went.
    pub(crate) fn publish(&self) {
        let _publishing = self.aggregation.publishing.lock();
        let documents = crate::discovery::Documents::new(self.registry.table(), self.aggregation.backends());
        *self.documents.write() = Arc::new(documents);
    }

    /// Whether the objects that every cluster has are there.
    pub(crate) fn is_bootstrapped(&self) -> bool {
        self.bootstrapped.load(std::sync::atomic::Ordering::Acquire)
    }
}

/// An operation of the server itself, for writes that follow from another request.
pub(crate) fn own_operation(
    state: &Arc<State>,
    verb: Verb,
    resource: &Arc<Resource>,
    namespace: &str,
    name: &str,
    subresource: &str,
) -> Operation {
    let info = crate::request_info::RequestInfo {
        is_resource: true,
        verb,
        group: resource.group.to_string(),
        version: resource.version.to_string(),
        namespace: namespace.to_owned(),
        resource: resource.plural.to_string(),
        subresource: subresource.to_owned(),
        name: name.to_owned(),
        is_named: !name.is_empty(),
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
        now: crate::stamp::now(),
        accept: crate::accept::Accept::default(),
        warnings: Arc::default(),
        _place: None,
    }
}

/// One request to one resource, past the chain: what the verbs work on.
pub(crate) struct Operation {
    pub(crate) state: Arc<State>,
    pub(crate) info: crate::request_info::RequestInfo,
    pub(crate) resource: Arc<Resource>,
    pub(crate) user: UserInfo,
    pub(crate) method: http::Method,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) now: Timestamp,
    pub(crate) accept: crate::accept::Accept,
    /// Shown to the client in `Warning` headers.
    pub(crate) warnings: Arc<Warnings>,
    /// Here, so that it is held by the work and not by the client: a write may go on when its client has left.
    pub(crate) _place: Option<Place>,
}

/// What a request holds while it is served.
pub(crate) struct Place {
    /// Held on by what stays open.
    pub(crate) open: crate::in_flight::Place,
    pub(crate) _seat: Option<crate::flow_control::Seat>,
}

impl Operation {
    pub(crate) fn call(&self) -> registry::Call<'_> {
        registry::Call { user: &self.user, now: self.now }
    }

    /// The attributes of this request for admission, without objects: the caller sets those.
    pub(crate) fn attributes(&self, verb: admission::Verb, dry_run: bool) -> admission::Attributes<'_> {
        admission::Attributes {
            verb,
            resource: &self.resource,
            subresource: &self.info.subresource,
            namespace: &self.info.namespace,
            name: &self.info.name,
            dry_run,
            object: None,
            old: None,
            managed_fields: None,
            old_entry: None,
            delete: None,
            user: &self.user,
            query: &self.info.query,
            warnings: &self.warnings,
            reinvocation: Default::default(),
        }
    }

    pub(crate) fn warn(&self, message: impl Into<String>) {
        self.warnings.add(message.into());
    }

    pub(crate) fn group_resource(&self) -> GroupResource {
        self.resource.group_resource()
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
            _place: None,
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
                    return Err(self.refused_options(errors));
                }
            }
        }
        Ok(dry_run)
    }

    /// What is wrong with the query, as upstream's object for it.
    pub(crate) fn refused_options(&self, errors: api::field::FieldErrors) -> Status {
        let kind = match self.info.verb {
            registry::Verb::Update => "UpdateOptions",
            registry::Verb::Patch => "PatchOptions",
            registry::Verb::Delete | registry::Verb::DeleteCollection => "DeleteOptions",
            _ => "CreateOptions",
        };
        Status::invalid(&GroupKind::new("meta.k8s.io", kind), "", errors)
    }
}
