//! What tests of several crates share: a real registry and real images. A dev-dependency only.
#![allow(clippy::unwrap_used, reason = "test support: a failure here is a failed test")]

pub mod images;
pub mod registry;
