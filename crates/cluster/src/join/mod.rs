//! Machines that join a cluster, and what the cluster does for them. kubeadm's conventions throughout.
//!
//! On a server: `enrolment` publishes where the cluster is (`cluster-info`, signed for every token), what its nodes must know,
//! and the rights of those who come with a token; `approval` lets nodes that have joined serve under their own addresses.
//! On the machine: `cox join` ([`crate::join_command`]) -> `discovery` finds out, with token and hash, that it talks to the right cluster
//! -> a bootstrap kubeconfig and a `membership` on disk -> the process that gets a certificate and runs the node.
//! A machine that is to be a server gets `server_keys` instead, and goes on as `cox up` does.
//! Invariant: the token is in no log, in no argument of a process that stays, and on disk only until the certificate is there.

mod approval;
pub(crate) mod discovery;
pub(crate) mod enrolment;
pub(crate) mod membership;
pub(crate) mod server_keys;
pub(crate) mod token;
pub mod token_cli;

pub(crate) use approval::{Reserved, run as approve};
pub(crate) use enrolment::{AUTHORITY_KEY, SETTINGS_NAME, SETTINGS_NAMESPACE, allow_reading, publish};
pub(crate) use membership::{Membership, clients, leave};
pub(crate) use server_keys::{ServerKey, withdraw_offers};
pub(crate) use token_cli::remaining;
