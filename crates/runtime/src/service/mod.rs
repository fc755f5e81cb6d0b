//! The two gRPC services of CRI v1, on top of the engine: translation and filters, nothing else.

mod images;
mod runtime;

pub(crate) use images::Images;
pub(crate) use runtime::Runtime;
