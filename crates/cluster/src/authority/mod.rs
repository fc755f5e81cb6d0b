//! `cox cert rotate-ca`: another authority in the place of the cluster's, while everybody goes on trusting everybody.
//!
//! Flow: a new authority is trusted beside the old one -> it signs, and everything is signed anew -> the old one goes
//! ([`crate::ca_rotation`]: the phases and the files of each). The command (`command`) puts the phase and both keys, sealed, where every
//! server finds them (`shared`); each server puts the files of the phase in place while it runs and says so in an annotation of
//! its nodes (`server`), machines that have joined follow what the cluster publishes and say so too (`node`). The next phase
//! begins when everybody has come as far (`progress`, pure). Ended anywhere, the command goes on where it was, from any server.

mod command;
mod node;
mod progress;
mod server;
mod shared;

pub(crate) use command::{Args, rotate};
pub(crate) use node::follow;
pub(crate) use server::Server;
