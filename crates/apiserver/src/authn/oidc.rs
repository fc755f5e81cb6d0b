//! OpenID Connect: ID tokens of an issuer outside the cluster (`--oidc-*`, or one of `--authentication-config`).
//!
//! The issuer is asked for its keys when the first token comes, and again when a token names a key that is not known:
//! that is how rotation is noticed. Many tokens at once cost one question.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use api::UserInfo;
use jwt::{Key, Token};
use serde_json::Value;

use super::config_file::{Issuer, Rules};
use super::error::{KeysError, OidcError};
use crate::config::OidcConfig;
use crate::remote::{Remote, Trust};

/// How long the issuer may take to show its keys.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How far the issuer's clock may be ahead of ours.
const LEEWAY: i64 = 300;

pub(crate) struct Oidc {
    issuer: String,
    /// Where the issuer describes itself.
    discovery: String,
    algorithms: Vec<String>,
    ca: Option<Trust>,
    means: Means,
    remote: Remote,
    /// Empty until the first token.
    keys: parking_lot::RwLock<Arc<Vec<Key>>>,
    /// Held while the issuer is asked.
    asking: tokio::sync::Mutex<()>,
}

/// What claims mean.
enum Means {
    Flags(Box<OidcConfig>),
    Rules(Box<Rules>),
}

const ALGORITHMS: [&str; 8] = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "PS384", "PS512"];

impl Oidc {
    pub(crate) fn new(config: OidcConfig) -> anyhow::Result<Self> {
        anyhow::ensure!(config.issuer_url.starts_with("https://"), "--oidc-issuer-url must use the https scheme");
        anyhow::ensure!(!config.client_id.is_empty(), "--oidc-client-id is required with --oidc-issuer-url");
        for algorithm in &config.signing_algorithms {
            anyhow::ensure!(ALGORITHMS.contains(&algorithm.as_str()), "unsupported signing alg: {algorithm:?}");
        }
        let (issuer, algorithms) = (config.issuer_url.clone(), config.signing_algorithms.clone());
        let ca = config.ca_file.clone().map(Trust::File);
        Self::at(issuer, None, algorithms, ca, Means::Flags(Box::new(config))).context("--oidc-issuer-url")
    }

    /// One of the issuers of a file.
    pub(super) fn structured(issuer: Issuer) -> anyhow::Result<Self> {
        let (url, ca) = (issuer.url, issuer.authority.map(Trust::Pem));
        let algorithms = ALGORITHMS.map(str::to_owned).into();
        Self::at(url, issuer.discovery_url, algorithms, ca, Means::Rules(Box::new(issuer.rules)))
    }

    fn at(
        issuer: String,
        discovery: Option<String>,
        algorithms: Vec<String>,
        ca: Option<Trust>,
        means: Means,
    ) -> anyhow::Result<Self> {
        let usual = || format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let discovery = discovery.unwrap_or_else(usual);
        let remote = Remote::from_url(&discovery, ca.as_ref())?;
        let (keys, asking) = (Default::default(), tokio::sync::Mutex::new(()));
        Ok(Self { issuer, discovery, algorithms, ca, means, remote, keys, asking })
    }

    /// `Ok(None)` if the token is not of this issuer.
    pub(super) async fn verify(&self, text: &str, now: jiff::Timestamp) -> Result<Option<UserInfo>, OidcError> {
        let Some(token) = Token::parse(text) else { return Ok(None) };
        if token.text("iss") != self.issuer {
            return Ok(None);
        }
        if !self.algorithms.contains(&token.algorithm) {
            return Err(OidcError::Algorithm(token.algorithm));
        }
        let mut keys = self.keys.read().clone();
        if keys.is_empty() || !token.key_id.is_empty() && !token.key_is_known(&keys) {
            keys = self.refresh(&keys).await?;
        }
        if !token.is_signed_by(&keys) {
            return Err(OidcError::Signature);
        }
        let now = now.as_second();
        match &self.means {
            Means::Flags(config) => {
                check(config, &token, now)?;
                user(config, &token.claims).map(Some)
            }
            Means::Rules(rules) => rules.user(&token, now).map(Some),
        }
    }

    /// Asks for the keys, unless somebody else did so since `seen`.
    async fn refresh(&self, seen: &Arc<Vec<Key>>) -> Result<Arc<Vec<Key>>, KeysError> {
        let _asking = self.asking.lock().await;
        let current = self.keys.read().clone();
        if !Arc::ptr_eq(&current, seen) {
            return Ok(current);
        }
        let path = path_of(&self.discovery).unwrap_or_default();
        let document = self.remote.fetch(&path, REQUEST_TIMEOUT).await?;
        if document["issuer"] != self.issuer.as_str() {
            return Err(KeysError::Issuer(document["issuer"].clone()));
        }
        let url = document["jwks_uri"].as_str().ok_or(KeysError::NoUri)?;
        // Keys may live on another host; the same authorities vouch for it.
        let set = match same_host(url, &self.discovery).then(|| path_of(url)).flatten() {
            Some(path) => self.remote.fetch(&path, REQUEST_TIMEOUT).await,
            None => {
                let elsewhere = Remote::from_url(url, self.ca.as_ref()).map_err(KeysError::Uri)?;
                elsewhere.fetch(&path_of(url).unwrap_or_else(|| "/".to_owned()), REQUEST_TIMEOUT).await
            }
        }?;
        let keys: Vec<Key> = set["keys"].as_array().into_iter().flatten().filter_map(Key::from_jwk).collect();
        if keys.is_empty() {
            return Err(KeysError::NoKeys);
        }
        let keys = Arc::new(keys);
        *self.keys.write() = keys.clone();
        Ok(keys)
    }
}

fn path_of(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    let path = uri.path_and_query()?.as_str();
    Some(if path == "/" { String::new() } else { path.to_owned() })
}

fn same_host(left: &str, right: &str) -> bool {
    let parts = |url: &str| {
        let uri: http::Uri = url.parse().ok()?;
        Some((uri.scheme()?.clone(), uri.authority()?.clone()))
    };
    parts(left).is_some_and(|left| Some(left) == parts(right))
}

/// Audience, times and required claims.
fn check(config: &OidcConfig, token: &Token<'_>, now: i64) -> Result<(), OidcError> {
    if !token.audiences().contains(&config.client_id.as_str()) {
        return Err(OidcError::audience(&config.client_id, token));
    }
    check_times(token, now)?;
    check_required(&config.required_claims, &token.claims)
}

pub(super) fn check_times(token: &Token<'_>, now: i64) -> Result<(), OidcError> {
    match token.time("exp") {
        Some(expires) if now <= expires => {}
        _ => return Err(OidcError::Expired),
    }
    if token.time("nbf").is_some_and(|not_before| now + LEEWAY < not_before) {
        return Err(OidcError::TooEarly);
    }
    Ok(())
}

pub(super) fn check_required(required: &[(String, String)], claims: &Value) -> Result<(), OidcError> {
    for (claim, wanted) in required {
        match &claims[claim.as_str()] {
            Value::String(found) if found == wanted => {}
            Value::Null => return Err(OidcError::NoClaim(claim.clone())),
            _ => return Err(OidcError::Claim(claim.clone())),
        }
    }
    Ok(())
}

/// The name in a claim, without a prefix.
pub(super) fn username<'c>(claims: &'c Value, claim: &str) -> Result<&'c str, OidcError> {
    let Some(name) = claims[claim].as_str().filter(|name| !name.is_empty()) else {
        return Err(OidcError::NoUsername(claim.to_owned()));
    };
    if claim == "email" && claims.get("email_verified").is_some_and(|verified| *verified != Value::Bool(true)) {
        return Err(OidcError::Email);
    }
    Ok(name)
}

/// The groups in a claim: one, several or none.
pub(super) fn groups(claims: &Value, claim: &str, prefix: &str) -> Result<Vec<String>, OidcError> {
    let groups: Vec<&str> = match &claims[claim] {
        Value::Null => Vec::new(),
        Value::String(one) => vec![one],
        Value::Array(list) => list
            .iter()
            .map(|group| group.as_str().ok_or_else(|| OidcError::Groups(claim.to_owned())))
            .collect::<Result<_, _>>()?,
        _ => return Err(OidcError::Groups(claim.to_owned())),
    };
    Ok(groups.iter().map(|group| format!("{prefix}{group}")).collect())
}

/// What tells one token of a user from another, as an extra of the user.
pub(super) fn credential_id(claims: &Value) -> Option<(String, Vec<String>)> {
    let id = claims["jti"].as_str()?;
    Some(("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]))
}

fn user(config: &OidcConfig, claims: &Value) -> Result<UserInfo, OidcError> {
    let claim = config.username_claim.as_str();
    let name = username(claims, claim)?;
    let prefix = match config.username_prefix.as_deref() {
        Some("-") => String::new(),
        Some(prefix) => prefix.to_owned(),
        // Names that anybody can choose must not be taken for names of this cluster.
        None if claim == "email" => String::new(),
        None => format!("{}#", config.issuer_url),
    };
    let mut user = UserInfo { name: format!("{prefix}{name}"), ..Default::default() };
    if let Some(claim) = &config.groups_claim {
        user.groups = groups(claims, claim, &config.groups_prefix)?;
    }
    user.extra.extend(credential_id(claims));
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> OidcConfig {
        OidcConfig { issuer_url: "https://i".into(), client_id: "c".into(), ..Default::default() }
    }

    #[test]
    fn claims_become_users() {
        let groups = OidcConfig { groups_claim: Some("groups".into()), groups_prefix: "o:".into(), ..config() };
        let email = OidcConfig { username_claim: "email".into(), ..config() };
        let plain = OidcConfig { username_prefix: Some("-".into()), ..config() };
        let prefixed = OidcConfig { username_prefix: Some("x:".into()), ..config() };
        for (config, claims, expected) in [
            (config(), json!({"sub": "ann"}), Some(("https://i#ann", vec![]))),
            (plain, json!({"sub": "ann"}), Some(("ann", vec![]))),
            (prefixed, json!({"sub": "ann"}), Some(("x:ann", vec![]))),
            (config(), json!({"sub": ""}), None),
            (config(), json!({"sub": ["a"]}), None),
            (email.clone(), json!({"email": "a@b"}), Some(("a@b", vec![]))),
            (email.clone(), json!({"email": "a@b", "email_verified": true}), Some(("a@b", vec![]))),
            (email.clone(), json!({"email": "a@b", "email_verified": false}), None),
            (email, json!({"email": "a@b", "email_verified": "true"}), None),
            (groups.clone(), json!({"sub": "a", "groups": ["x", "y"]}), Some(("https://i#a", vec!["o:x", "o:y"]))),
            (groups.clone(), json!({"sub": "a", "groups": "x"}), Some(("https://i#a", vec!["o:x"]))),
            (groups, json!({"sub": "a", "groups": [1]}), None),
        ] {
            let found = user(&config, &claims).ok();
            let found =
                found.as_ref().map(|user| (user.name.as_str(), user.groups.iter().map(String::as_str).collect()));
            assert_eq!(found, expected, "{claims}");
        }
    }

    #[test]
    fn audience_times_and_required_claims_are_checked() {
        let required = OidcConfig { required_claims: vec![("tenant".into(), "t".into())], ..config() };
        for (config, claims, good) in [
            (config(), json!({"aud": "c", "exp": 100}), true),
            (config(), json!({"aud": ["x", "c"], "exp": 100}), true),
            (config(), json!({"aud": "x", "exp": 100}), false),
            (config(), json!({"exp": 100}), false),
            (config(), json!({"aud": "c", "exp": 99}), false),
            (config(), json!({"aud": "c"}), false),
            (config(), json!({"aud": "c", "exp": 1000, "nbf": 401}), false),
            (required.clone(), json!({"aud": "c", "exp": 100, "tenant": "t"}), true),
            (required.clone(), json!({"aud": "c", "exp": 100, "tenant": "u"}), false),
            (required, json!({"aud": "c", "exp": 100}), false),
        ] {
            let text = format!("{}.AAAA", jwt::signing_input("ES256", "k", &claims));
            let token = Token::parse(&text).unwrap();
            assert_eq!(check(&config, &token, 100).is_ok(), good, "{claims}");
        }
    }
}
