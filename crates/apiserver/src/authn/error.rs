//! Why a credential is not accepted, by the authenticator that looked at it. Whoever asked is told "Unauthorized" and no more;
//! reviews of tokens and the log say why, in upstream's words.

use jwt::Token;
use serde_json::Value;

use crate::remote::RemoteError;
use crate::watch_cache::Unreadable;

#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthnError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The certificate of somebody who may not name others.
    #[error("x509: subject with cn={0} is not in the allowed list")]
    FrontProxy(String),
    #[error("invalid user name or password")]
    Password,
    #[error("invalid bearer token")]
    NoToken,
    #[error(transparent)]
    ServiceAccount(#[from] AccountTokenError),
    #[error(transparent)]
    Bootstrap(Unreadable),
    #[error("oidc: {0}")]
    Oidc(#[from] OidcError),
    #[error("token webhook: {0}")]
    Webhook(#[from] TokenWebhookError),
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<AuthnError>),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("no certificate")]
    None,
    #[error("verifying certificate failed: {0}")]
    Unverified(#[from] rustls::Error),
    #[error("{0}")]
    Unreadable(String),
    #[error("certificate has no common name")]
    NoName,
}

/// A token that one of our own keys signed, or should have.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccountTokenError {
    #[error("invalid signature, no keys found")]
    Signature,
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    TooEarly,
    #[error("service account token is issued in the future")]
    FromTheFuture,
    #[error("token audiences {given:?} is invalid for the target audiences {wanted:?}")]
    Audience { given: Vec<String>, wanted: Vec<String> },
    #[error("token subject does not match its service account")]
    Subject,
    #[error("serviceaccounts {0:?} not found")]
    NoAccount(String),
    #[error("service account UID ({found}) does not match claim ({claimed})")]
    AccountUid { found: String, claimed: String },
    #[error("service account {0} has been deleted")]
    AccountGone(String),
    /// What the token is bound to is gone.
    #[error("service account token has been invalidated")]
    BoundGone,
    #[error("{kind} UID ({found}) does not match service account {kind} ref claim ({claimed})")]
    BoundUid { kind: &'static str, found: String, claimed: String },
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error(transparent)]
    Legacy(#[from] LegacyTokenError),
}

impl AccountTokenError {
    /// Whether something that the token names was not found.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::NoAccount(_) | Self::BoundGone | Self::Legacy(LegacyTokenError::SecretGone))
    }
}

/// A token that lives in a Secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LegacyTokenError {
    #[error("sub claim is invalid")]
    Subject,
    #[error("Token has been invalidated")]
    SecretGone,
    #[error("Token does not match server's copy")]
    AnotherToken,
    #[error(
        "the token in secret {namespace}/{secret} for service account {namespace}/{account} has been marked invalid"
    )]
    Invalidated { namespace: String, secret: String, account: String },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OidcError {
    #[error("id token signed with unsupported algorithm {0:?}")]
    Algorithm(String),
    #[error("verify token: failed to verify signature: failed to verify id token signature")]
    Signature,
    #[error("fetching keys failed: {0}")]
    Keys(#[from] KeysError),
    /// One of several, or the one that the flags name.
    #[error("verify token: expected audience {expected} got {found:?}")]
    Audience { expected: String, found: Vec<String> },
    #[error("verify token: token is expired")]
    Expired,
    #[error("verify token: current time is before the nbf (not before) time")]
    TooEarly,
    #[error("required claim {0} not present in ID token")]
    NoClaim(String),
    #[error("required claim {0} value does not match")]
    Claim(String),
    #[error("parse username claims {0:?}: claim not present")]
    NoUsername(String),
    /// An address that the issuer did not check proves nothing.
    #[error("email not verified")]
    Email,
    #[error("parse groups claim {0:?}: not strings")]
    Groups(String),
    #[error("empty username via CEL expression is not allowed")]
    EmptyUsername,
    #[error("error evaluating {what} expression: {source}")]
    Evaluation { what: &'static str, source: cel::Error },
    #[error("error evaluating {what} expression: validation expression failed: {why}")]
    Rule { what: &'static str, why: String },
    #[error("{0} is not a string")]
    NotText(String),
}

impl OidcError {
    pub(super) fn audience(expected: impl std::fmt::Debug, token: &Token<'_>) -> Self {
        let found = token.audiences().into_iter().map(str::to_owned).collect();
        OidcError::Audience { expected: format!("{expected:?}"), found }
    }

    pub(super) fn audience_in(expected: &[String], token: &Token<'_>) -> Self {
        match Self::audience(expected, token) {
            OidcError::Audience { expected, found } => {
                OidcError::Audience { expected: format!("in {expected}"), found }
            }
            other => other,
        }
    }
}

/// Why an issuer's keys are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("issuer did not match: {0}")]
    Issuer(Value),
    #[error("no jwks_uri")]
    NoUri,
    #[error("{0}")]
    Uri(anyhow::Error),
    #[error("the key set holds no usable key")]
    NoKeys,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenWebhookError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("answered with a {0}")]
    Kind(Value),
    /// What it says itself.
    #[error("{0}")]
    Said(String),
    #[error("user is not readable: {0}")]
    User(serde_json::Error),
    #[error("audiences are not readable: {0}")]
    Audiences(serde_json::Error),
    #[error("authenticated nobody")]
    Nobody,
}
