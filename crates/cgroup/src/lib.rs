//! Control groups, version 1 (one tree per controller) and version 2 (one tree), and systemd where it makes them.
//!
//! Flow: a kubelet (pods) or a runtime (containers) finds the mounted trees ([`Hierarchies::detect`]), makes a cgroup, and
//! writes its [`Limits`]: `limits` and `systemd` decide which files and properties say them, `hierarchies` writes the files.
//! A cgroup is named by its path below the root of every tree, e.g. `/kubepods/besteffort/pod1/ab12`. All calls can be
//! repeated: what is there already, or gone already, is fine.
//! Not here: what pods and containers are called, and which devices they may use.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cpu_rates;
mod hierarchies;
mod limits;
pub mod systemd;

pub use cpu_rates::CpuRates;
pub use hierarchies::{Hierarchies, Hierarchy, Missing, keyed};
pub use limits::{Limits, Setting, shares_to_weight};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}
