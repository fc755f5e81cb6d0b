//! The trace: every stage of the walk from a command to a packet, recorded with its cause.
//!
//! Flow: whoever works on something opens a [`Work`] -> while it runs, its [`Id`] is the cause of everything that is done
//! ([`context`]) -> a request carries it in a header -> the commit's span is named by the resource version it made, which
//! every watch event brings along -> the informer makes it the cause of what its handlers do -> a work queue keeps it with
//! the key -> the next [`Work`]. So causality is exact, also between processes, and nothing but resource versions is shared.
//! Spans end in a [`Recorder`], a ring of a fixed number of bytes; [`walk`] puts together what followed from what.
//! Not here: who serves, sends or asks for spans. This crate knows neither HTTP nor the API.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod causes;
mod clock;
mod context;
mod critical;
mod export;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod id;
mod laps;
pub mod log;
mod name;
pub mod otlp;
mod reader;
mod record;
mod recorder;
mod ring;
mod span;
mod stage;
pub mod text;
pub mod ui;
pub mod walk;
mod work;

pub use causes::Causes;
pub use clock::now;
pub use context::{
    Context, Detached, current, deliver, detached, follow, lap, lap_at, lap_failed, lap_named, laps_of, mark, mark_at,
    part, set_object, take_laps, trace_context,
};
pub use export::{Exported, Exporting, Place, TRACEPARENT, TraceContext};
pub use id::Id;
pub use laps::Lap;
pub use name::Name;
pub use recorder::Recorder;
pub use span::{Outcome, Span};
pub use stage::Stage;
pub use walk::Walk;
pub use work::Work;

/// The header in which a request names its causes: ids, separated by commas.
pub const CAUSE_HEADER: &str = "x-cox-cause";
/// The header in which a command tells about itself: a [`Span`] as JSON.
pub const CLIENT_HEADER: &str = "x-cox-client";
/// Where spans are asked for and sent to.
pub const PATH: &str = "/cox/trace";
