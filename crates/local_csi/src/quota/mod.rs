//! Project quotas: where the file system of the volumes has them, the kernel counts what a folder holds and lets in no more
//! than the volume's capacity. Elsewhere capacity is a promise of the node, and nothing stops a pod from writing more.
//!
//! A folder is given a project before anything is in it, and whatever is made in it inherits that. Blocking.
//!
//! The kernel lets whoever owns a file give it to another project, unless they are in a user namespace of their own, and ext4
//! lets whoever has `CAP_SYS_RESOURCE` there write beyond any limit.

mod kernel;
mod projects;

pub(crate) use kernel::Kernel;
#[cfg(test)]
pub(crate) use projects::tests::Recorded;
pub(crate) use projects::{Projects, Quotas, Usage};
