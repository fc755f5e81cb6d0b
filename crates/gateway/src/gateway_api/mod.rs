//! The Gateway API: its kinds as far as they are read here, and the definitions that `cox up` installs.

mod definitions;
mod features;
mod kinds;

pub use definitions::definitions;
pub use features::{FEATURES, STATIC_ADDRESSES};
pub use kinds::*;

pub const GROUP: &str = "gateway.networking.k8s.io";
