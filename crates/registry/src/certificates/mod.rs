//! Strategies of the certificates group.

pub mod certificate_signing_request;
pub mod pod_certificate;
mod pod_request;
mod public_key;
pub mod rules;
