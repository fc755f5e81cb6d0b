//! OpenID Connect: ID tokens of an issuer outside the cluster (`--oidc-*`).
//!
//! The issuer is asked for its keys when the first token comes, and again when a token names a key that is not known:
//! that is how rotation is noticed. Many tokens at once cost one question.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use api::UserInfo;
use jwt::{Key, Token};
use serde_json::Value;

use crate::config::OidcConfig;
use crate::remote::Remote;

/// How long the issuer may take to show its keys.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How far the issuer's clock may be ahead of ours.
const LEEWAY: i64 = 300;

pub(crate) struct Oidc {
    config: OidcConfig,
    remote: Remote,
    /// Empty until the first token.
    keys: parking_lot::RwLock<Arc<Vec<Key>>>,
    /// Held while the issuer is asked.
    asking: tokio::sync::Mutex<()>,
}

const ALGORITHMS: [&str; 8] = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "PS384", "PS512"];

impl Oidc {
    pub(crate) fn new(config: OidcConfig) -> anyhow::Result<Self> {
        anyhow::ensure!(config.issuer_url.starts_with("https://"), "--oidc-issuer-url must use the https scheme");
        anyhow::ensure!(!config.client_id.is_empty(), "--oidc-client-id is required with --oidc-issuer-url");
        for algorithm in &config.signing_algorithms {
            anyhow::ensure!(ALGORITHMS.contains(&algorithm.as_str()), "unsupported signing alg: {algorithm:?}");
        }
        let remote = Remote::from_url(&config.issuer_url, config.ca_file.as_deref()).context("--oidc-issuer-url")?;
        Ok(Self { config, remote, keys: Default::default(), asking: tokio::sync::Mutex::new(()) })
    }

    /// `Ok(None)` if the token is not of this issuer.
    pub(super) async fn verify(&self, text: &str) -> Result<Option<UserInfo>, String> {
        let Some(token) = Token::parse(text) else { return Ok(None) };
        if token.text("iss") != self.config.issuer_url {
            return Ok(None);
        }
        if !self.config.signing_algorithms.contains(&token.algorithm) {
            return Err(format!("oidc: id token signed with unsupported algorithm {:?}", token.algorithm));
        }
        let mut keys = self.keys.read().clone();
        if keys.is_empty() || !token.key_id.is_empty() && !token.key_is_known(&keys) {
            keys = self.refresh(&keys).await?;
        }
        if !token.is_signed_by(&keys) {
            return Err(
                "oidc: verify token: failed to verify signature: failed to verify id token signature".to_owned()
            );
        }
        check(&self.config, &token, jiff::Timestamp::now().as_second())?;
        user(&self.config, &token.claims).map(Some)
    }

    /// Asks for the keys, unless somebody else did so since `seen`.
    async fn refresh(&self, seen: &Arc<Vec<Key>>) -> Result<Arc<Vec<Key>>, String> {
        let _asking = self.asking.lock().await;
        let current = self.keys.read().clone();
        if !Arc::ptr_eq(&current, seen) {
            return Ok(current);
        }
        let failed = |error: &dyn std::fmt::Display| format!("oidc: fetching keys failed: {error}");
        let issuer = self.config.issuer_url.trim_end_matches('/');
        let base = path_of(issuer).unwrap_or_default();
        let document = self
            .remote
            .fetch(&format!("{base}/.well-known/openid-configuration"), REQUEST_TIMEOUT)
            .await
            .map_err(|error| failed(&error))?;
        if document["issuer"] != self.config.issuer_url.as_str() {
            return Err(failed(&format!("issuer did not match: {}", document["issuer"])));
        }
        let url = document["jwks_uri"].as_str().ok_or_else(|| failed(&"no jwks_uri"))?;
        // Keys may live on another host; the same authorities vouch for it.
        let set = match same_host(url, issuer).then(|| path_of(url)).flatten() {
            Some(path) => self.remote.fetch(&path, REQUEST_TIMEOUT).await,
            None => {
                let elsewhere =
                    Remote::from_url(url, self.config.ca_file.as_deref()).map_err(|error| failed(&error))?;
                elsewhere.fetch(&path_of(url).unwrap_or_else(|| "/".to_owned()), REQUEST_TIMEOUT).await
            }
        }
        .map_err(|error| failed(&error))?;
        let keys: Vec<Key> = set["keys"].as_array().into_iter().flatten().filter_map(Key::from_jwk).collect();
        if keys.is_empty() {
            return Err(failed(&"the key set holds no usable key"));
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
fn check(config: &OidcConfig, token: &Token<'_>, now: i64) -> Result<(), String> {
    let audiences = token.audiences();
    if !audiences.contains(&config.client_id.as_str()) {
        return Err(format!("oidc: verify token: expected audience {:?} got {audiences:?}", config.client_id));
    }
    match token.time("exp") {
        Some(expires) if now <= expires => {}
        _ => return Err("oidc: verify token: token is expired".to_owned()),
    }
    if token.time("nbf").is_some_and(|not_before| now + LEEWAY < not_before) {
        return Err("oidc: verify token: current time is before the nbf (not before) time".to_owned());
    }
    for (claim, wanted) in &config.required_claims {
        match &token.claims[claim.as_str()] {
            Value::String(found) if found == wanted => {}
            Value::Null => return Err(format!("oidc: required claim {claim} not present in ID token")),
            _ => return Err(format!("oidc: required claim {claim} value does not match")),
        }
    }
    Ok(())
}

fn user(config: &OidcConfig, claims: &Value) -> Result<UserInfo, String> {
    let claim = config.username_claim.as_str();
    let Some(name) = claims[claim].as_str().filter(|name| !name.is_empty()) else {
        return Err(format!("oidc: parse username claims {claim:?}: claim not present"));
    };
    // An address that the issuer did not check proves nothing.
    if claim == "email" && claims.get("email_verified").is_some_and(|verified| *verified != Value::Bool(true)) {
        return Err("oidc: email not verified".to_owned());
    }
    let prefix = match config.username_prefix.as_deref() {
        Some("-") => String::new(),
        Some(prefix) => prefix.to_owned(),
        // Names that anybody can choose must not be taken for names of this cluster.
        None if claim == "email" => String::new(),
        None => format!("{}#", config.issuer_url),
    };
    let mut user = UserInfo { name: format!("{prefix}{name}"), ..Default::default() };
    if let Some(claim) = &config.groups_claim {
        let groups: Vec<&str> = match &claims[claim.as_str()] {
            Value::Null => Vec::new(),
            Value::String(one) => vec![one],
            Value::Array(list) => list
                .iter()
                .map(|group| group.as_str().ok_or_else(|| format!("oidc: parse groups claim {claim:?}: not strings")))
                .collect::<Result<_, _>>()?,
            _ => return Err(format!("oidc: parse groups claim {claim:?}: not strings")),
        };
        user.groups = groups.iter().map(|group| format!("{}{group}", config.groups_prefix)).collect();
    }
    if let Some(id) = claims["jti"].as_str() {
        user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]);
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
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
            let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
            let text = format!("{}.{}.AAAA", encode(&json!({"alg": "ES256", "kid": "k"})), encode(&claims));
            let token = Token::parse(&text).unwrap();
            assert_eq!(check(&config, &token, 100).is_ok(), good, "{claims}");
        }
    }
}
