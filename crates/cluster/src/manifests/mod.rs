//! A directory of manifests that the cluster keeps applied (`<data dir>/manifests`).
//!
//! Flow: `directory` reads the files that can be trusted and are whole -> `objects` makes objects of them -> `plan` says what is
//! to be applied and what has left -> `keep` does it, again whenever a file changes, and now and then to undo what others did.
//! Invariant: what is about to be applied is written down before (`record`), so that it is found again when it leaves.
//! Invariant: nothing is removed while a file cannot be read, and nothing that was not applied from here.

mod directory;
mod keep;
mod objects;
mod plan;
mod record;

pub(crate) use keep::keep;
pub(crate) use record::Record;
