//! Strategies of the certificates group.

pub mod certificate_signing_request;
pub mod pod_certificate;
pub mod rules;
