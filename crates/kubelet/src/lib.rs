//! The kubelet: makes the pods that are bound to this node run, and tells the API how they fare.
//!
//! Flow: pod sources (API watch, static files, a URL) -> `worker` per pod -> `plan` (pure: what to kill, what to
//! start) -> `sync` (volumes, sandbox, containers through CRI) -> `status` (pure) -> `status_writer` -> API.
//! Runtime events (`pleg`), probes and timers wake workers; nothing polls where an event exists. All
//! state lives in the API, in the runtime's labels and in pod directories, so a new kubelet goes on where
//! the old one stopped and disturbs nothing that runs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admit;
mod apply_resize;
mod backoff;
mod certificates;
mod cgroups;
mod config;
mod containers;
mod cpu_manager;
mod cpu_sets;
mod dns;
mod env;
mod error;
mod eviction;
mod exchange;
mod file_watch;
mod gc;
mod hooks;
mod housekeeping;
mod huge_pages;
mod images;
mod kubelet;
mod logs;
mod metrics;
mod names;
mod node;
mod objects;
mod parts;
mod pass;
mod plan;
mod pleg;
mod plugins;
mod pod_fields;
mod pod_source;
mod preemption;
mod probes;
mod process;
mod qos;
mod resize;
mod resources;
mod run;
mod runtime;
mod server;
mod shutdown;
mod shutdown_state;
mod state;
mod static_pods;
mod status;
mod status_writer;
mod sync;
mod terminate;
mod thresholds;
mod usage;
mod volumes;
mod worker;

pub use certificates::{ask_renewal, bootstrap, client_certificate_end, client_of, renewed};
pub use config::{
    Args, CgroupDriver, Config, CpuManagerPolicy, Settings, ShutdownPeriod, Summaries, SummarySlot, USUAL_ROOT,
};
pub use file_watch::{Change, FileWatch};
pub use run::{main, run};
