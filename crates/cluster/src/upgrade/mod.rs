//! `cox upgrade`: another program runs the cluster on this machine, and the old one again if that does not fare well.
//!
//! Flow: a server waits for its turn, so that two are never away at once (`turn`), and looks at the versions of the others
//! (`skew`, pure) -> `command` says what is to be done, writes down each step, and returns from what was begun -> `health` watches
//! over what has come up. Containers run on: they belong to processes of their own.
//! For all machines (`all`): this server first, then one order (`order`) after the other, to which a machine fetches the program
//! from a server (`program`) and does the same by itself (`machine`). Where it is asked for, pods leave each machine before
//! (`drain`).

mod all;
mod command;
mod drain;
mod health;
mod machine;
mod order;
mod program;
mod skew;
mod turn;

pub use command::{Args, main};
pub(crate) use machine::{Machine, ensure_role};
