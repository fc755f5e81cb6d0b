//! Authentication: who a request comes from. A union of authenticators that stops at the first success.
//!
//! Order as upstream: front-proxy headers, client certificate, password, bearer tokens (static file, service account,
//! bootstrap, OIDC, webhook), and anonymous only when no credentials were given at all. Wrong credentials are an error,
//! never anonymous. Files behind the authenticators are read again when they change.

mod bootstrap;
mod certificates;
mod config_file;
mod error;
mod external_signer;
mod front_proxy;
mod oidc;
mod service_account;
mod static_files;
mod webhook;

use std::net::SocketAddr;
use std::sync::Arc;

use api::{Status, UserInfo};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header};
use tls::Reloading;

pub(crate) use certificates::{CertificateAuthority, PeerCertificates, not_after};
pub(crate) use config_file::Anonymous;
use error::AuthnError;
pub(crate) use external_signer::{ExternalSigner, is_endpoint};
pub(crate) use front_proxy::FrontProxy;
pub(crate) use oidc::Oidc;
pub(crate) use service_account::{LAST_USED, PublicKeys, TokenClaims, TokenIssuer, day, is_today};
pub(crate) use static_files::{BasicFile, TokenFile};
pub(crate) use webhook::TokenWebhook;

use crate::config::Config;
use crate::watch_cache::Caches;

/// What is known of the other end of a connection.
#[derive(Clone, Default)]
pub(crate) struct Peer {
    /// The request came through the in-process door, which attaches an identity.
    pub(crate) in_process: bool,
    pub(crate) address: Option<SocketAddr>,
    /// What the client showed during the TLS handshake, not yet judged.
    pub(crate) certificates: Option<Arc<PeerCertificates>>,
}

pub(crate) struct Authenticators {
    anonymous: Anonymous,
    client_ca: Option<CertificateAuthority>,
    front_proxy: Option<FrontProxy>,
    basic_file: Option<BasicFile>,
    token_file: Option<TokenFile>,
    pub(crate) service_accounts: Option<PublicKeys>,
    bootstrap_tokens: bool,
    oidc: Option<Oidc>,
    /// The issuers of `--authentication-config`, as its file is now.
    issuers: Option<Reloading<Vec<Oidc>>>,
    webhook: Option<TokenWebhook>,
    /// The audiences of this server.
    audiences: Vec<String>,
}

/// A user and the audiences of the token that were accepted.
pub(crate) type Accepted = (UserInfo, Vec<String>);

/// Browsers cannot set headers on WebSockets; they send the token as a protocol that nobody selects.
const WEBSOCKET_BEARER: &str = "base64url.bearer.authorization.k8s.io.";

impl Authenticators {
    /// How often the file of `--authentication-config` was read again; none without that flag.
    pub(crate) fn reloads(&self) -> Option<tls::Reloads> {
        self.issuers.as_ref().map(Reloading::reloads)
    }

    pub(crate) fn new(config: &Config, signer: Option<&Arc<ExternalSigner>>) -> anyhow::Result<Self> {
        let authority = |path: &Option<std::path::PathBuf>| path.as_deref().map(CertificateAuthority::load).transpose();
        let mut key_files = config.service_account_key_files.clone();
        if key_files.is_empty() {
            key_files.extend(config.service_account_signing_key_file.clone());
        }
        let (issuers, audiences) = (config.service_account_issuers.clone(), config.audiences());
        let service_accounts = match signer {
            Some(signer) => Some(PublicKeys::external(signer.clone(), issuers, audiences)),
            None if key_files.is_empty() => None,
            None => Some(PublicKeys::load(key_files, issuers, audiences)?),
        };
        let front_proxy = authority(&config.requestheader_client_ca_file)?.map(|authority| FrontProxy {
            authority,
            allowed_names: config.requestheader_allowed_names.clone(),
            username_headers: config.requestheader_username_headers.clone(),
            uid_headers: config.requestheader_uid_headers.clone(),
            group_headers: config.requestheader_group_headers.clone(),
            extra_prefixes: config.requestheader_extra_headers_prefix.clone(),
        });
        let webhook = config.token_webhook.as_ref();
        let by_flag = config.anonymous_auth.map(|on| if on { Anonymous::Anyone } else { Anonymous::Nobody });
        let mut anonymous = match by_flag.clone().unwrap_or(Anonymous::Anyone) {
            // Whoever reaches the port would rule the cluster.
            Anonymous::Anyone if config.allows_everything() => {
                tracing::warn!("with the authorizer AlwaysAllow, --anonymous-auth is off: use another authorizer");
                Anonymous::Nobody
            }
            anonymous => anonymous,
        };
        if let Some(file) = &config.authentication_config_file {
            let found = config_file::load(file, &config.service_account_issuers)?.anonymous;
            anyhow::ensure!(
                found.is_none() || by_flag.is_none(),
                "--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file"
            );
            anonymous = found.unwrap_or(anonymous);
        }
        let disallowed = config.service_account_issuers.clone();
        let load = move |files: &[std::path::PathBuf]| {
            let mut issuers = Vec::new();
            for file in files {
                issuers.extend(config_file::load(file, &disallowed)?.issuers);
            }
            issuers.into_iter().map(Oidc::structured).collect()
        };
        let issuers =
            config.authentication_config_file.clone().map(|file| Reloading::new(vec![file], load)).transpose()?;
        Ok(Self {
            anonymous,
            issuers,
            client_ca: authority(&config.client_ca_file)?,
            front_proxy,
            basic_file: config.basic_auth_file.as_deref().map(BasicFile::load).transpose()?,
            token_file: config.token_auth_file.as_deref().map(TokenFile::load).transpose()?,
            service_accounts,
            bootstrap_tokens: config.enable_bootstrap_token_auth,
            oidc: config.oidc.clone().map(Oidc::new).transpose()?,
            webhook: webhook
                .map(|webhook| {
                    let (file, version) = (&webhook.config_file, &webhook.version);
                    TokenWebhook::new(file, version, webhook.cache_ttl, config.audiences())
                })
                .transpose()?,
            audiences: config.audiences(),
        })
    }

    /// The user who asks for `path`, or 401, and for how many seconds the certificate holds that says so. Credentials are removed from the
    /// headers: nothing behind this sees them.
    pub(crate) async fn authenticate(
        &self,
        caches: &Caches,
        path: &str,
        headers: &mut HeaderMap,
        peer: &Peer,
    ) -> Result<(UserInfo, Option<i64>), Status> {
        let mut left = None;
        let given = Given::take(headers);
        let mut errors: Vec<AuthnError> = Vec::new();
        let mut found = None;
        if let Some(proxy) = &self.front_proxy {
            proxy.check(headers)?;
            match proxy.user(headers, peer) {
                Ok(user) => found = user,
                Err(error) => errors.push(error),
            }
            proxy.strip(headers);
        }
        if let (None, Some(certificates), Some(authority)) = (&found, &peer.certificates, &self.client_ca) {
            match authority.user_until(certificates) {
                Ok((user, seconds)) => (found, left) = (Some(user), Some(seconds)),
                Err(error) => errors.push(error.into()),
            }
        }
        if let (None, Some((name, password)), Some(file)) = (&found, &given.basic, &self.basic_file) {
            match file.find(name, password) {
                Some(user) => found = Some(user),
                None => errors.push(AuthnError::Password),
            }
        }
        if let (None, Some(token)) = (&found, &given.bearer) {
            match self.token(caches, token, &[]).await {
                Ok(Some((user, _))) => found = Some(user),
                Ok(None) => errors.push(AuthnError::NoToken),
                Err(error) => errors.push(error),
            }
        }
        if let Some(mut user) = found {
            if user.name != api::user::ANONYMOUS && !user.in_group(api::user::AUTHENTICATED) {
                user.groups.push(api::user::AUTHENTICATED.to_owned());
            }
            return Ok((user, left));
        }
        if errors.is_empty() && self.anonymous.allows(path) {
            return Ok((UserInfo::anonymous(), None));
        }
        if !errors.is_empty() {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            tracing::info!(errors = ?errors, "unable to authenticate the request");
        }
        // The reasons stay in the log: they would help an attacker more than a user.
        Err(Status::unauthorized("Unauthorized"))
    }

    /// Looks a bearer token up. `audiences` empty means the API server's own.
    pub(crate) async fn token(
        &self,
        caches: &Caches,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<Accepted>, AuthnError> {
        if token.is_empty() {
            return Ok(None);
        }
        let now = jiff::Timestamp::now();
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        // Tokens that know nothing of audiences are meant for this server.
        let common: Vec<String> = wanted.iter().filter(|wanted| self.audiences.contains(wanted)).cloned().collect();
        let is_ours = !common.is_empty() || wanted.is_empty();
        if is_ours && let Some(user) = self.token_file.as_ref().and_then(|file| file.find(token)) {
            return Ok(Some((user, common)));
        }
        let mut errors: Vec<AuthnError> = Vec::new();
        if let Some(keys) = &self.service_accounts {
            match Box::pin(keys.verify(caches, token, wanted, now)).await {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error) => errors.push(error.into()),
            }
        }
        if is_ours && self.bootstrap_tokens {
            match bootstrap::find(caches, token, now) {
                Ok(Some(user)) => return Ok(Some((user, common))),
                Ok(None) => {}
                Err(unreadable) => errors.push(AuthnError::Bootstrap(unreadable)),
            }
        }
        let issuers = self.issuers.as_ref().map(Reloading::get).unwrap_or_default();
        for oidc in self.oidc.iter().chain(issuers.iter()).filter(|_| is_ours) {
            match Box::pin(oidc.verify(token, now)).await {
                Ok(Some(user)) => return Ok(Some((user, common))),
                Ok(None) => {}
                Err(error) => errors.push(error.into()),
            }
        }
        if let Some(webhook) = &self.webhook {
            match Box::pin(webhook.verify(token, wanted)).await {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error) => errors.push(error.into()),
            }
        }
        match errors.len() {
            0 => Ok(None),
            1 => Err(errors.remove(0)),
            _ => Err(AuthnError::Several(errors)),
        }
    }
}

/// The credentials of a request, taken out of its headers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Given {
    bearer: Option<String>,
    basic: Option<(String, String)>,
}

impl Given {
    fn take(headers: &mut HeaderMap) -> Self {
        let mut given = Self::default();
        let authorization = headers.remove(header::AUTHORIZATION);
        // A token that is no text is a wrong one, and not none.
        let authorization = authorization.as_ref().map(|value| String::from_utf8_lossy(value.as_bytes()));
        if let Some((scheme, rest)) = authorization.as_deref().and_then(|value| value.split_once(' ')) {
            let rest = rest.trim();
            if scheme.eq_ignore_ascii_case("bearer") && !rest.is_empty() {
                given.bearer = Some(rest.to_owned());
            } else if scheme.eq_ignore_ascii_case("basic") {
                let decoded = STANDARD.decode(rest).ok().and_then(|bytes| String::from_utf8(bytes).ok());
                let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
                given.basic = pair.map(|(name, password)| (name.to_owned(), password.to_owned()));
            }
        }
        given.take_websocket(headers);
        given
    }

    /// A bearer token among the WebSocket protocols. It needs another protocol beside it that can be selected.
    fn take_websocket(&mut self, headers: &mut HeaderMap) {
        let offered: Vec<&str> = headers
            .get_all(header::SEC_WEBSOCKET_PROTOCOL)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(',').map(str::trim))
            .collect();
        let (tokens, rest): (Vec<&str>, Vec<&str>) =
            offered.iter().partition(|protocol| protocol.starts_with(WEBSOCKET_BEARER));
        let [token] = tokens.as_slice() else { return };
        let token = URL_SAFE_NO_PAD.decode(&token[WEBSOCKET_BEARER.len()..]).ok();
        let token = token.and_then(|bytes| String::from_utf8(bytes).ok()).filter(|token| !token.is_empty());
        let rest = HeaderValue::from_str(&rest.join(",")).ok().filter(|rest| !rest.is_empty());
        headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
        if let (Some(token), Some(rest)) = (token, rest) {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, rest);
            self.bearer = self.bearer.take().or(Some(token));
        }
    }
}

/// Compares digests, so timing says nothing about the secret itself.
fn same_secret(left: &[u8], right: &[u8]) -> bool {
    let digest = |bytes: &[u8]| ring::digest::digest(&ring::digest::SHA256, bytes);
    digest(left).as_ref() == digest(right).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_token_that_is_no_text_is_a_wrong_one_and_not_none() {
        for (value, expected) in [(&b"Bearer \xff"[..], "\u{fffd}"), ("Bearer t\u{e9}".as_bytes(), "t\u{e9}")] {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
            assert_eq!(Given::take(&mut headers).bearer.as_deref(), Some(expected), "{value:?}");
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn credentials_leave_the_headers() {
        let socket = |token: &str| format!("{WEBSOCKET_BEARER}{}", URL_SAFE_NO_PAD.encode(token));
        for (name, value, bearer, basic, left) in [
            ("authorization", "Bearer t".to_owned(), Some("t"), None, None),
            ("authorization", "bearer   t ".to_owned(), Some("t"), None, None),
            ("authorization", "Bearer".to_owned(), None, None, None),
            ("authorization", "Basic YW5uOm9uZTp0d28=".to_owned(), None, Some(("ann", "one:two")), None),
            ("authorization", "Basic !".to_owned(), None, None, None),
            ("authorization", "Digest x".to_owned(), None, None, None),
            ("sec-websocket-protocol", format!("{},v5", socket("t")), Some("t"), None, Some("v5")),
            ("sec-websocket-protocol", socket("t"), None, None, None),
            ("sec-websocket-protocol", "v4, v5".to_owned(), None, None, Some("v4, v5")),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HeaderName::from_static(name), value.parse().unwrap());
            let given = Given::take(&mut headers);
            let pair = |(name, password): (&str, &str)| (name.to_owned(), password.to_owned());
            assert_eq!(given, Given { bearer: bearer.map(str::to_owned), basic: basic.map(pair) }, "{value}");
            assert_eq!(headers.values().next().map(|value| value.to_str().unwrap()), left, "{value}");
        }
    }
}
