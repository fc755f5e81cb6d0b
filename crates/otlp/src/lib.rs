//! Traces for collectors of OpenTelemetry: upstream's `TracingConfiguration`, and the task that sends spans by OTLP over gRPC.
//!
//! Flow: `trace::Exporting` (which trace a span belongs to, a bounded queue) -> [`run`] -> [`messages`] -> the collector.
//! Invariant: a collector that is slow, absent or hostile costs nobody anything but the spans, which are counted.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(any(test, feature = "collector"))]
pub mod collector;
mod config;
mod convert;
mod exporter;
pub mod messages;

pub use config::{ConfigError, TracingConfiguration};
pub use exporter::run;
