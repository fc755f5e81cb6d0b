//! A cluster that has its own etcd: every server runs one member beside it and looks after it.
//!
//! Flow: `--ha` ([`Ha`](crate::ha::Ha)) -> what this server's member is to do first ([`plan`]) -> its process, kept running ([`Member`])
//! -> whatever the cluster needs from time to time ([`upkeep`]). `cox server` shows and changes who the members are.
//! Members and their clients prove who they are with certificates of an authority that signs nothing else: the cluster's
//! own would let every node in.

mod flags;
mod plan;

mod process;
mod state;
mod upkeep;

pub mod cli;

pub(crate) use flags::{PORTS, completed};
pub(crate) use process::{Member, end_orphan, forget};
pub(crate) use state::{leave, require_healthy};
pub(crate) use upkeep::{keep, snapshot};
