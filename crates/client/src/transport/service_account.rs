//! Tokens of a service account, asked for with another client's rights and renewed before they end.

use std::time::Duration;

use http::HeaderValue;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::auth::bearer;
use crate::{Client, Error};

const LIFETIME: Duration = Duration::from_secs(60 * 60);

pub(super) struct TokenSource {
    /// May create service accounts and their tokens.
    base: Client,
    namespace: String,
    name: String,
    /// The token and when to ask for the next; held while asking, so that requests that meet ask once.
    cached: Mutex<Option<(Instant, HeaderValue)>>,
}

impl TokenSource {
    pub(super) fn new(base: Client, namespace: &str, name: &str) -> Self {
        Self { base, namespace: namespace.into(), name: name.into(), cached: Mutex::new(None) }
    }

    pub(super) async fn header(&self) -> Result<HeaderValue, Error> {
        let mut cached = self.cached.lock().await;
        if let Some((renew_at, value)) = &*cached
            && Instant::now() < *renew_at
        {
            return Ok(value.clone());
        }
        let answer = match self.request().await {
            Err(error) if error.is_not_found() => {
                self.create_account().await?;
                self.request().await?
            }
            answer => answer?,
        };
        let status = answer.status.unwrap_or_default();
        let left = status.expiration_timestamp.map(|end| end.0.duration_since(jiff::Timestamp::now()));
        let left = left.and_then(|left| Duration::try_from(left).ok()).unwrap_or(LIFETIME);
        let value = bearer(status.token.as_deref().unwrap_or_default())?;
        *cached = Some((Instant::now() + left.mul_f64(0.8), value.clone()));
        Ok(value)
    }

    pub(super) async fn forget(&self) -> bool {
        self.cached.lock().await.take().is_some()
    }

    async fn request(&self) -> Result<TokenRequest, Error> {
        let seconds = i64::try_from(LIFETIME.as_secs()).ok();
        let spec = TokenRequestSpec { expiration_seconds: seconds, ..TokenRequestSpec::default() };
        let body = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        self.base.namespaced::<ServiceAccount>(&self.namespace).create_subresource(&self.name, "token", &body).await
    }

    async fn create_account(&self) -> Result<(), Error> {
        let mut account = ServiceAccount::default();
        account.metadata.name = Some(self.name.clone());
        account.metadata.namespace = Some(self.namespace.clone());
        match self.base.namespaced::<ServiceAccount>(&self.namespace).create(&account).await {
            Err(error) if !error.is_already_exists() => Err(error),
            _ => Ok(()),
        }
    }
}
