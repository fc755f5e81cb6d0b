//! What tests of several crates share: a real registry, real images, real runtimes, a CSI driver, peers to compare with, keys, and test programs with
//! a main of their own. For tests and benchmarks only.
#![allow(clippy::unwrap_used, reason = "test support: a failure here is a failed test")]

pub mod csi_driver;
pub mod host;
pub mod images;
pub mod keys;
pub mod messages;
pub mod mutate;
pub mod netns;
pub mod peers;
pub mod registry;
pub mod runtimes;
pub mod s3;
pub mod silent;
pub mod suite;
