//! Service accounts: the one every namespace has, and the long-lived tokens that Secrets can still hold.

mod cleaner;
mod default;
mod secret_token;
mod tokens;

pub(crate) use cleaner::build as build_cleaner;
pub(crate) use default::build;
pub(crate) use tokens::build as build_tokens;

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};

const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

fn annotation<'a>(secret: &'a Secret, key: &str) -> &'a str {
    secret.metadata.annotations.as_ref().and_then(|all| all.get(key)).map_or("", String::as_str)
}

/// Whether a token names this account; a token without a uid is satisfied with the name.
fn belongs_to(secret: &Secret, account: &ServiceAccount) -> bool {
    let uid = annotation(secret, ACCOUNT_UID);
    account.metadata.name.as_deref() == Some(annotation(secret, ACCOUNT_NAME))
        && (uid.is_empty() || account.metadata.uid.as_deref() == Some(uid))
}
