//! A whole cluster: `cox up`, `down`, `delete`, `status`, `logs`, `check`, `systemd-unit`, `why`, `trace`, `top`; `node` for
//! further nodes; `token`, `join` and `server` for further machines; `cert` for certificates; `import` for clusters of others; `support` for whoever is asked for
//! help.
//!
//! Flow: `up` (the user's command) starts `server` (the process that stays), which prepares keys (`pki`), starts the
//! components in order and reports each phase (`progress`) until the node is Ready and DNS answers; then the context
//! goes into the user's kubeconfig. Components get a client each and meet only through the API.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod authority;
mod background;
mod backups;
mod balancer;
mod ca_hash;
mod ca_rotation;
pub mod certificates;
mod cidr_list;
mod cluster_file;
mod component_configs;
mod components;
mod connection;
pub mod delete;
mod dns_service;
mod encryption;
mod etcd;
mod flag_paths;
mod ha;
mod history;
pub mod import;
mod ingress;
pub mod join;
pub mod join_command;
mod key_rotation;
mod kubeconfig;
mod kubelet_access;
mod leftovers;
mod local_volumes;
mod lock;
pub mod manage;
mod manifests;
pub mod members;
mod metrics_reader;
mod network_policy;
mod node_address;
mod node_network;
mod node_roles;
pub mod nodes;
mod options;
mod path_value;
mod pki;
pub mod preflight;
mod progress;
mod redact;
mod remote_write;
mod role;
mod s3;
mod server;
mod server_pki;
mod settings;
mod shape;
pub mod store_command;
mod store_move;
pub mod support;
pub mod systemd;
#[cfg(test)]
mod test_server;
pub mod top;
mod turns;
pub mod up;
pub mod upgrade;
mod usual_place;
pub mod walk;
pub mod why;
mod wireguard_keys;

pub use api::version::GIT as VERSION;
pub use api::zpages::remember_flags;
pub use background::leave_no_core;
pub use options::Options;
