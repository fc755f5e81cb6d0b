//! The data plane: sockets, requests and connections to endpoints. It knows the routing table and nothing of the API.
//!
//! Flow: [`ports`] (a connection, TLS) -> one of the [`workers`] -> [`forward`]: [`request`] (is it sound) -> the table (its route) ->
//! [`headers`] -> [`pool`] -> the answer. Bodies stream both ways ([`body`]). Plain requests go the same way in the [`lane`], without
//! hyper. The table is loaded anew for each request and each handshake, so a change reaches open connections and ends none.

mod access_log;
mod backend_tls;
mod body;
mod forward;
mod headers;
mod lane;
mod pool;
mod ports;
mod request;
mod streams;
mod suppressible_waker;
mod workers;

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use client::metrics::Metrics;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics::{PoolMetrics, forget_route};
use crate::table::Table;
use access_log::AccessLog;
use pool::Pool;

pub use access_log::check as check_access_log;
pub use ports::Ports;
pub use workers::Workers;

/// How patient and how generous the gateway is.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's body. Without a limit they still only pass through.
    pub max_body: Option<u64>,
    /// A client that sends nothing of its body for so long is given up.
    pub body_silence: Duration,
    /// A backend that has not begun to answer by then is given up, where a route says nothing else.
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_body: None, body_silence: Duration::from_secs(60), answer: Duration::from_secs(300) }
    }
}

pub struct DataPlane {
    table: ArcSwap<Table>,
    /// One for each worker.
    pools: Vec<Pool>,
    metrics: Metrics,
    log: AccessLog,
    limits: Limits,
    /// Upgraded and passed-through connections, and those to endpoints.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl DataPlane {
    pub fn new(
        limits: Limits,
        access_log: Option<&PathBuf>,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> anyhow::Result<Arc<Self>> {
        let tasks = TaskTracker::new();
        let plane = Arc::new(Self {
            table: ArcSwap::default(),
            pools: (0..workers::count()).map(|_| Pool::new(PoolMetrics::new(&metrics), tasks.clone())).collect(),
            log: AccessLog::open(access_log.map(PathBuf::as_path), &metrics)?,
            metrics,
            limits,
            tasks,
            stop,
        });
        plane.tasks.spawn(FutureExt::boxed(sweep(Arc::downgrade(&plane), plane.stop.clone())));
        Ok(plane)
    }

    /// The connections to endpoints of one worker.
    fn pool(&self, worker: usize) -> &Pool {
        &self.pools[worker % self.pools.len()]
    }

    /// The routes that are served now.
    pub fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// From the next request on, this is what is.
    pub fn swap(&self, table: Arc<Table>) {
        for pool in &self.pools {
            pool.keep_only(&table);
        }
        let before = self.table.swap(table.clone());
        // Nobody asks for a route that is gone; its series would stay for ever.
        let names = table.route_names();
        for gone in before.route_names().difference(&names) {
            forget_route(&self.metrics, gone);
        }
    }
}

/// Closes idle connections to endpoints, for as long as there is somebody who has any.
async fn sweep(plane: Weak<DataPlane>, stop: CancellationToken) {
    let mut turns = tokio::time::interval(pool::IDLE_TIMEOUT / 2);
    while stop.run_until_cancelled(turns.tick()).await.is_some() {
        let Some(plane) = plane.upgrade() else { return };
        plane.pools.iter().for_each(Pool::sweep);
    }
}

impl DataPlane {
    /// Waits for upgraded connections to notice that all is over, though not for ever.
    pub fn finish(&self, timeout: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.swap(Arc::default());
            self.tasks.close();
            let _ = tokio::time::timeout(timeout, self.tasks.wait()).await;
        })
    }
}
