//! W3C's context of traces: taken from those who may choose what is exported, and given to everybody we ask.

use api::UserInfo;
use http::{HeaderMap, HeaderValue};
use trace::TraceContext;

/// Besides those who may do anything.
const MONITORING: &str = "system:monitoring";

/// The trace that a client names goes on here if the client is trusted to choose what is exported; else it is only named.
pub(crate) fn join(headers: &HeaderMap, user: &UserInfo) {
    let named = headers.get(trace::TRACEPARENT).and_then(|text| text.to_str().ok()).and_then(TraceContext::parse);
    if let Some(context) = named {
        trace::follow(context, user.in_group(api::user::MASTERS) || user.in_group(MONITORING));
    }
}

/// Says to whoever is asked next of which trace the present work is.
pub(crate) fn pass_on(headers: &mut HeaderMap) {
    if let Some(value) = trace::trace_context().and_then(|at| HeaderValue::from_str(&at.to_string()).ok()) {
        headers.insert(trace::TRACEPARENT, value);
    }
}
