//! W3C's context of traces: taken from those who may choose what is exported, and given to everybody we ask.

use api::UserInfo;
use http::{HeaderMap, HeaderName, HeaderValue};
use trace::{Exporting, TraceContext};

const TRACEPARENT: HeaderName = HeaderName::from_static(trace::TRACEPARENT);
/// Besides those who may do anything.
const MONITORING: &str = "system:monitoring";

/// The trace that a client names goes on here if the client is trusted to choose what is exported; else it is only named.
/// So it is with the commit that a client says it follows: components of the cluster say what is true.
pub(crate) fn join(headers: &HeaderMap, user: &UserInfo) {
    let is_trusted = user.in_group(api::user::MASTERS) || user.in_group(MONITORING);
    if !is_trusted && !is_component(user) {
        Exporting::alone();
    }
    let named = headers.get(TRACEPARENT).and_then(|text| text.to_str().ok()).and_then(TraceContext::parse);
    if let Some(context) = named {
        trace::follow(context, is_trusted);
    }
}

/// Names that begin with `system:` are the cluster's to give, but every namespace has service accounts.
fn is_component(user: &UserInfo) -> bool {
    match user.as_service_account() {
        Some((namespace, _)) => namespace == "kube-system",
        None => user.name.starts_with("system:") && user.name != api::user::ANONYMOUS,
    }
}

/// Says to whoever is asked next of which trace the present work is.
pub(crate) fn pass_on(headers: &mut HeaderMap) {
    if let Some(value) = trace::trace_context().and_then(|at| HeaderValue::from_str(&at.to_string()).ok()) {
        headers.insert(TRACEPARENT, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_components_are_told_from_other_users() {
        for (user, expected) in [
            (UserInfo::new("system:kube-scheduler", &[]), true),
            (UserInfo::new("system:node:a", &["system:nodes"]), true),
            (UserInfo::service_account("kube-system", "deployment-controller", ""), true),
            (UserInfo::service_account("default", "default", ""), false),
            (UserInfo::anonymous(), false),
            (UserInfo::new("ann", &["dev"]), false),
        ] {
            assert_eq!(is_component(&user), expected, "{}", user.name);
        }
    }
}
