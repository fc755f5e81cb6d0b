//! Authentication: who a request comes from. A union of authenticators that stops at the first success.
//!
//! Order as upstream: front-proxy headers, client certificate, bearer tokens (static file, service account, bootstrap),
//! and anonymous only when no credentials were given at all. Wrong credentials are an error, never anonymous.

mod bootstrap;
mod certificates;
mod pem;
mod service_account;
mod token_file;

use api::{Status, UserInfo};
use http::{HeaderMap, header};

pub(crate) use certificates::{AcceptAny, CertificateAuthority, NoVerification, load_certificates, load_key};
pub(crate) use service_account::{PublicKeys, TokenClaims, TokenIssuer};
pub(crate) use token_file::TokenFile;

use crate::state::State;

/// What is known of the other end of a connection.
#[derive(Clone, Default)]
pub(crate) struct Peer {
    /// The request came through the in-process door, which attaches an identity.
    pub(crate) in_process: bool,
    /// The client certificate, as the client CA sees it.
    pub(crate) client: Option<Result<UserInfo, String>>,
    /// The common name of a certificate that the front-proxy CA signed.
    pub(crate) proxy: Option<String>,
}

#[derive(Default)]
pub(crate) struct Authenticators {
    pub(crate) anonymous: bool,
    pub(crate) token_file: Option<TokenFile>,
    pub(crate) service_accounts: Option<PublicKeys>,
    pub(crate) bootstrap_tokens: bool,
    pub(crate) front_proxy: Option<FrontProxy>,
}

/// Which headers of a trusted proxy name the user.
pub(crate) struct FrontProxy {
    /// Empty allows every certificate of the CA.
    pub(crate) allowed_names: Vec<String>,
    pub(crate) username_headers: Vec<String>,
    pub(crate) group_headers: Vec<String>,
    pub(crate) extra_prefixes: Vec<String>,
}

/// A user and the audiences of the token that were accepted.
pub(crate) type Accepted = (UserInfo, Vec<String>);

impl Authenticators {
    /// The user, or 401. Credentials are removed from the headers: nothing behind this sees them.
    pub(crate) fn authenticate(&self, state: &State, headers: &mut HeaderMap, peer: &Peer) -> Result<UserInfo, Status> {
        let bearer = bearer(headers);
        headers.remove(header::AUTHORIZATION);
        let proxied = self.front_proxy.as_ref().and_then(|proxy| proxy.user(headers, peer));
        if let Some(proxy) = &self.front_proxy {
            proxy.strip(headers);
        }
        let mut errors: Vec<String> = Vec::new();
        let mut found = proxied;
        if found.is_none() {
            match &peer.client {
                Some(Ok(user)) => found = Some(user.clone()),
                Some(Err(error)) => errors.push(error.clone()),
                None => {}
            }
        }
        if let (None, Some(token)) = (&found, &bearer) {
            match self.token(state, token, &[]) {
                Ok(Some((user, _))) => found = Some(user),
                Ok(None) => errors.push("invalid bearer token".to_owned()),
                Err(error) => errors.push(error),
            }
        }
        if let Some(mut user) = found {
            if user.name != api::user::ANONYMOUS && !user.in_group(api::user::AUTHENTICATED) {
                user.groups.push(api::user::AUTHENTICATED.to_owned());
            }
            return Ok(user);
        }
        if errors.is_empty() && self.anonymous {
            return Ok(UserInfo::anonymous());
        }
        if !errors.is_empty() {
            tracing::info!(errors = ?errors, "unable to authenticate the request");
        }
        // The reasons stay in the log: they would help an attacker more than a user.
        Err(Status::unauthorized("Unauthorized"))
    }

    /// Looks a bearer token up. `audiences` empty means the API server's own.
    pub(crate) fn token(&self, state: &State, token: &str, audiences: &[String]) -> Result<Option<Accepted>, String> {
        if token.is_empty() {
            return Ok(None);
        }
        if let Some(user) = self.token_file.as_ref().and_then(|file| file.find(token)) {
            return Ok(Some((user, audiences.to_vec())));
        }
        let mut failure = None;
        if let Some(keys) = &self.service_accounts {
            match keys.verify(state, token, audiences) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error) => failure = Some(error),
            }
        }
        if self.bootstrap_tokens
            && let Some(user) = bootstrap::find(state, token)
        {
            return Ok(Some((user, audiences.to_vec())));
        }
        failure.map_or(Ok(None), Err)
    }
}

impl FrontProxy {
    fn user(&self, headers: &HeaderMap, peer: &Peer) -> Option<UserInfo> {
        let proxy = peer.proxy.as_ref()?;
        if !self.allowed_names.is_empty() && !self.allowed_names.contains(proxy) {
            return None;
        }
        let values = |names: &[String]| -> Vec<String> {
            names
                .iter()
                .flat_map(|name| headers.get_all(name.as_str()).iter())
                .filter_map(|value| value.to_str().ok().map(str::to_owned))
                .collect()
        };
        let name = values(&self.username_headers).into_iter().find(|name| !name.is_empty())?;
        let mut user = UserInfo { name, groups: values(&self.group_headers), ..Default::default() };
        for (key, value) in headers {
            for prefix in &self.extra_prefixes {
                if let (Some(key), Ok(value)) =
                    (key.as_str().strip_prefix(&prefix.to_ascii_lowercase()), value.to_str())
                {
                    user.extra.entry(key.to_owned()).or_default().push(value.to_owned());
                }
            }
        }
        Some(user)
    }

    /// Removes the headers, trusted or not.
    fn strip(&self, headers: &mut HeaderMap) {
        for name in self.username_headers.iter().chain(&self.group_headers) {
            headers.remove(name.as_str());
        }
        let extra: Vec<http::HeaderName> = headers
            .keys()
            .filter(|key| {
                self.extra_prefixes.iter().any(|prefix| key.as_str().starts_with(&prefix.to_ascii_lowercase()))
            })
            .cloned()
            .collect();
        extra.iter().for_each(|key| drop(headers.remove(key)));
    }
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned()).filter(|token| !token.is_empty())
}
