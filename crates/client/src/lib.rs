//! The client library: how every component except the store talks to the API server.
//!
//! Flow: a typed call (`Api<K>`) or a dynamic one (`DynamicApi`) -> `Client::send` -> a transport, which is
//! either HTTPS from a kubeconfig or a plain function call on the server in the same process. On top of it,
//! informers keep one watch per type per process and feed handlers and work queues.
//! Not here: what the objects mean. Controllers, scheduler and kubelet decide; this crate carries.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod api_client;
pub mod backoff;
mod clock;
mod discovery;
mod dynamic;
mod error;
mod events;
mod expectations;
mod informer;
mod kinds;
pub mod kubeconfig;
mod leader;
mod params;
pub mod plain_http;
mod queue;
pub mod review;
mod room;
pub mod serving;
pub mod signals;
mod spans;
mod transport;
mod watch;

use std::sync::Arc;

use futures_util::future::BoxFuture;

pub use ::metrics;
pub use ::metrics::outlive_panics;
pub use answer::read_at_most;
pub use api_client::{Api, List, Resource, Written};
pub use clock::Clock;
pub use discovery::ApiResource;
pub use dynamic::{DynamicApi, Gvr, Owned, PartialObject};
pub use error::Error;
pub use events::{EventRecorder, reference};
pub use expectations::Expectations;
pub use informer::{
    AnyInformer, Event, Informer, InformerFactory, MetadataEvent, MetadataHandler, Object, object_key, split_key,
};
pub use leader::{Durations, Election, LeaderElector};
pub use params::{DeleteParams, ListParams, Patch, Propagation, WriteParams};
pub use queue::{RateLimiter, Taken, WorkQueue};
pub use spans::WalkStream;
pub use transport::{Client, Endpoint, Limit, Upgraded};
pub use watch::{WatchEvent, WatchStream};

/// What travels inside a streamed body when it breaks off.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// A response body: bytes in one piece or a stream that goes on (watch, logs).
pub type Body = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, BoxError>;
/// The server's door for callers in the same process.
pub type Handler = Arc<dyn Fn(http::Request<bytes::Bytes>) -> BoxFuture<'static, http::Response<Body>> + Send + Sync>;
