//! What the table must hold for the pods of one node. Pure.
//!
//! A packet's source is looked up among the pods that are isolated in sending, its destination among those isolated in
//! receiving; the verdict leads to a chain that all pods with the same policies share. The chain looks the peer up in a few
//! sets, and drops what is in none: a packet costs the same however many policies and pods there are.
//!
//! ClusterNetworkPolicies come before that (tier Admin) and in its place (tier Baseline, for pods that no policy selects): their
//! rules in order, where neighbours that say the same are one, with sets like those.
//!
//! Flow: a change of an object -> [`planner`] (which pods it concerns, and which chains they share) -> [`meaning`] (what the
//! rules of a chain mean) -> [`peers`] (sets of peers, kept by counting) -> [`contents`] (what is planned, and which of it was
//! touched). What a change costs depends on what it concerns, not on what else there is.
//!
//! A pod of this node has its address as soon as the plug-in announces it, as a subject and as a peer. A peer on another
//! node is known when its address reaches this node through the API: until then no rule that means pods means it.

mod contents;
mod meaning;
mod peers;
mod planner;

pub(crate) use contents::{Element, Plan, SUBJECTS, Touched, Was};
pub(crate) use meaning::next_of;
pub(crate) use planner::{Announced, CLOSED, Planner, self_sets};
