//! `cox upgrade`: another program runs the cluster on this machine, and the old one again if that does not fare well.
//!
//! Flow: a server waits for its turn, so that two are never away at once (`turn`) -> `command` says what is to be done, writes
//! down each step, and returns from what was begun -> `health` watches over what has come up. Containers run on: they belong to
//! processes of their own.

mod command;
mod health;
mod turn;

pub use command::{Args, main};
