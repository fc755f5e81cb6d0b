//! The API server: every resource through one generic REST implementation over the store.
//!
//! Flow of a request: `chain` (who asks for what, and may they) -> `verbs` (generic REST) -> `registry` (what makes each
//! resource itself) and `admission` -> `store`. Reads are answered from `watch_cache`.
#![cfg_attr(test, allow(clippy::unwrap_used))]
// A `Status` is the answer itself: it is moved out once, to the client.
#![allow(clippy::result_large_err)]

mod accept;
mod admission;
mod aggregation;
mod allocation;
mod answers;
mod api_services;
mod args;
mod audit;
mod authn;
mod authz;
mod body;
mod bootstrap;
mod chain;
mod cluster;
mod config;
mod cors;
mod custom;
mod delete_options;
mod discovery;
mod elsewhere;
mod endpoints;
mod event_leases;
mod expiring;
mod flow_control;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod health;
mod history;
mod hooks;
mod identity_lease;
mod in_flight;
mod initializers;
mod integrity;
mod json;
mod loopback;
mod metrics;
mod metrics_page;
mod node_summary;
mod node_usage;
mod programs;
mod protobuf;
mod remote;
mod request_info;
mod resource_metrics;
mod sampler;
mod seal;
mod server;
mod server_leases;
mod serving_certificate;
mod stamp;
mod state;
mod status;
mod subresources;
mod trace_context;
mod verbs;
mod versions;
mod walk;
mod watch_cache;

pub use admission::labels_not_for_nodes;
pub use args::Args;
pub use authz::Attributes;
pub use body::{Body, BodyError};
pub use config::{
    AuditConfig, Authorizer, Batching, Config, EncryptionFile, FailurePolicy, LocalKubelet, LogConfig, Mode,
    OidcConfig, RemoteWrite, Storage, Summaries, Throttle, TokenWebhookConfig, Truncation, WebhookConfig, etcd_root,
};
pub use otlp::TracingConfiguration;
pub use registry::RuntimeConfig;
pub use seal::{
    EncryptionConfiguration, Key, Keys, KmsConfiguration, ProviderConfiguration, ResourceConfiguration, Unreadable,
    first_sealed, open_others, rewrite_store, seal_values,
};
pub use server::{Handler, Server};

/// The index behind RBAC decisions, for those who measure it.
pub mod rbac {
    pub use crate::authz::rbac::{Index, NotAllowed, allows};
}

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// `cox apiserver`: serves until the process is told to stop.
pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let signals = stop.clone();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let waiter = tokio::spawn(FutureExt::boxed(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        signals.cancel();
    }));
    let outcome = run(Config::try_from(args)?, stop).await;
    waiter.abort();
    outcome
}

/// Runs a server until `stop` fires.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let server = Server::new(config).await?;
    tracing::info!(address = %server.address(), "serving");
    server.serve(stop).await
}
