//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: rules about writes that are objects themselves.
//!
//! Flow of one write: `source` (policies with their bindings, compiled once per change) -> `dispatch` (which policy and
//! binding mean this write, with which parameters) -> `validating` or `mutating` (conditions, then the rules; a mutation
//! is a patch that `patch` reads and merges). Without bound policies the plug-ins return at once.
//! `status` writes what expressions get wrong about the kinds that they are meant for.

mod dispatch;
mod mutating;
mod params;
mod patch;
mod source;
mod status;
mod validating;

pub(super) use mutating::MutatingPolicy;
pub(crate) use status::run as check_types;
pub(super) use validating::ValidatingPolicy;
