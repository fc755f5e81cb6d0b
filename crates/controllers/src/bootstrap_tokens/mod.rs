//! Bootstrap tokens, with which new nodes introduce themselves: `signer` lets them trust the cluster, `cleaner` ends them.

mod cleaner;
pub mod jws;
mod signer;

pub(crate) use cleaner::build as build_cleaner;
pub(crate) use signer::build as build_signer;

use client::ListParams;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

const NAMESPACE: &str = "kube-system";

fn selection() -> ListParams {
    ListParams::fields("type=bootstrap.kubernetes.io/token")
}

/// A text field of a token's Secret; empty if it is missing.
fn field<'a>(secret: &'a Secret, key: &str) -> &'a str {
    let value = secret.data.as_ref().and_then(|data| data.get(key));
    value.and_then(|value| std::str::from_utf8(&value.0).ok()).unwrap_or_default()
}

/// When a token ends: never, at a time, or (its time being unreadable) at once.
#[derive(Debug, PartialEq, Eq)]
enum Expiration {
    Never,
    At(Timestamp),
    Unreadable,
}

fn expiration(secret: &Secret) -> Expiration {
    match field(secret, "expiration") {
        "" => Expiration::Never,
        text => text.parse().map_or(Expiration::Unreadable, Expiration::At),
    }
}

fn has_expired(secret: &Secret, now: Timestamp) -> bool {
    match expiration(secret) {
        Expiration::Never => false,
        Expiration::At(end) => end <= now,
        Expiration::Unreadable => true,
    }
}
