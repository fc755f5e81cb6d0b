//! What tests of several crates share: a real registry, real images, and test programs with a main of their own. A
//! dev-dependency only.
#![allow(clippy::unwrap_used, reason = "test support: a failure here is a failed test")]

pub mod images;
pub mod registry;
pub mod suite;
