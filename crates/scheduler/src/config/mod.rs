//! Configuration: `KubeSchedulerConfiguration` v1, the legacy `Policy`, and the profiles that come of them.

mod file;
mod legacy;
mod profiles;

pub use file::{Configuration, ConfigurationError};
pub(crate) use file::{Extender, ExtenderTls, GoDuration, PluginRef, PluginSet, Plugins, SchedulerProfile};
pub(crate) use profiles::{Profiles, build};
