//! Strategies of the certificates group.

pub mod certificate_signing_request;
pub mod rules;
