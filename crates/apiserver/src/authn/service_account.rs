//! Service-account tokens: JWTs signed by this server (RS256 or ES256), bound to objects and audiences.
//!
//! A signature only says that we issued the token once. Whether it still counts is read from the caches at every use: the
//! account and the object it is bound to must be there, with the same uid.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::UserInfo;
use api::meta::Meta as _;
use api::sort::CompactCollect as _;
use jwt::{Key, SigningKey, Token, load_public};
use k8s_openapi::api::core::v1::{Node, Pod, Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tls::Reloading;
use tokio::sync::Notify;

use super::Accepted;
use super::error::{AccountTokenError, LegacyTokenError};
use super::external_signer::ExternalSigner;
use crate::expiring::Expiring;
use crate::watch_cache::Caches;

/// The issuer of tokens that live in secrets.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// The day on which the token in a secret was last used.
pub(crate) const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// How far clocks may differ, and how long a deleted object still counts (upstream's `jwt.DefaultLeeway`).
const LEEWAY: i64 = 60;

/// Issuer and signer of new tokens.
pub(crate) struct TokenIssuer {
    signer: Signer,
    issuer: String,
    audiences: Vec<String>,
}

enum Signer {
    Key(Reloading<SigningKey>),
    External(Arc<ExternalSigner>),
}

/// What a token says.
pub(crate) struct TokenClaims {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) audiences: Vec<String>,
    pub(crate) issued: i64,
    pub(crate) expires: i64,
    /// When a token that lives longer than was asked for should have been replaced.
    pub(crate) warn_after: Option<i64>,
    /// Name and uid of the object the token is bound to.
    pub(crate) pod: Option<(String, String)>,
    pub(crate) node: Option<(String, String)>,
    pub(crate) secret: Option<(String, String)>,
}

impl TokenIssuer {
    pub(crate) fn load(key: &Path, issuer: &str, audiences: Vec<String>) -> anyhow::Result<Self> {
        let load = |files: &[PathBuf]| Ok(SigningKey::load(&files[0])?);
        let signer = Signer::Key(Reloading::new(vec![key.to_owned()], load)?);
        Ok(Self { signer, issuer: issuer.to_owned(), audiences })
    }

    pub(crate) fn external(signer: Arc<ExternalSigner>, issuer: &str, audiences: Vec<String>) -> Self {
        Self { signer: Signer::External(signer), issuer: issuer.to_owned(), audiences }
    }

    /// The longest life of a token that the signer signs, if it has one.
    pub(crate) fn max_life(&self) -> Option<Duration> {
        match &self.signer {
            Signer::Key(_) => None,
            Signer::External(signer) => Some(signer.max_life()),
        }
    }

    pub(crate) fn audiences(&self) -> &[String] {
        &self.audiences
    }

    pub(crate) async fn sign(&self, claims: &TokenClaims) -> anyhow::Result<String> {
        let mut private = json!({
            "namespace": claims.namespace,
            "serviceaccount": {"name": claims.name, "uid": claims.uid},
        });
        for (kind, reference) in [("pod", &claims.pod), ("node", &claims.node), ("secret", &claims.secret)] {
            if let Some((name, uid)) = reference {
                private[kind] = json!({"name": name, "uid": uid});
            }
        }
        if let Some(time) = claims.warn_after {
            private["warnafter"] = time.into();
        }
        let body = json!({
            "aud": claims.audiences,
            "exp": claims.expires,
            "iat": claims.issued,
            "nbf": claims.issued,
            "iss": self.issuer,
            "jti": uuid::Uuid::new_v4().to_string(),
            "kubernetes.io": private,
            "sub": format!("system:serviceaccount:{}:{}", claims.namespace, claims.name),
        });
        Ok(match &self.signer {
            Signer::Key(key) => key.get().token(&body)?,
            Signer::External(signer) => signer.token(&body).await?,
        })
    }
}

/// Keys whose signatures are accepted, which may change.
pub(crate) struct PublicKeys {
    keys: Source,
    issuers: Vec<String>,
    audiences: Vec<String>,
    /// Digests of tokens whose signature was good, and the keys it was checked with: checking costs more than all the rest.
    checked: Expiring<Vec<u8>, Arc<Vec<Key>>>,
    pub(crate) legacy_uses: LegacyUses,
}

/// Secrets whose tokens were used today, and that do not say so yet.
#[derive(Default)]
pub(crate) struct LegacyUses {
    seen: Mutex<BTreeSet<(String, String)>>,
    changed: Notify,
}

impl LegacyUses {
    /// More than so many at a time wait until they are used again.
    const LARGEST: usize = 1000;

    fn note(&self, namespace: &str, secret: &str) {
        let mut seen = self.seen.lock();
        if seen.len() < Self::LARGEST && seen.insert((namespace.to_owned(), secret.to_owned())) {
            self.changed.notify_one();
        }
    }

    /// Waits for some, by namespace and name.
    pub(crate) async fn next(&self) -> BTreeSet<(String, String)> {
        self.changed.notified().await;
        std::mem::take(&mut *self.seen.lock())
    }
}

enum Source {
    Files(Reloading<Vec<Key>>),
    External(Arc<ExternalSigner>),
}

impl Source {
    fn get(&self) -> Arc<Vec<Key>> {
        match self {
            Source::Files(keys) => keys.get(),
            Source::External(signer) => signer.keys(),
        }
    }
}

/// As upstream: keys in files say nothing of when they change.
const FILES_MAX_AGE: Duration = Duration::from_secs(3600);
/// How long a good signature is remembered.
const SIGNATURE_TTL: Duration = Duration::from_secs(600);

impl PublicKeys {
    pub(crate) fn load(files: Vec<PathBuf>, issuers: Vec<String>, audiences: Vec<String>) -> anyhow::Result<Self> {
        let keys = Source::Files(Reloading::new(files, |files| Ok(load_public(files)?))?);
        Ok(Self { keys, issuers, audiences, checked: Expiring::new(), legacy_uses: LegacyUses::default() })
    }

    pub(crate) fn external(signer: Arc<ExternalSigner>, issuers: Vec<String>, audiences: Vec<String>) -> Self {
        let (keys, checked) = (Source::External(signer), Expiring::new());
        Self { keys, issuers, audiences, checked, legacy_uses: LegacyUses::default() }
    }

    /// The key set served at `/openid/v1/jwks`.
    pub(crate) fn jwks(&self) -> Value {
        let keys = match &self.keys {
            Source::Files(keys) => keys.get().iter().map(Key::jwk).collect::<Vec<_>>(),
            Source::External(signer) => signer.published().iter().map(Key::jwk).collect(),
        };
        json!({"keys": keys})
    }

    /// What those of the key set sign with, in order.
    pub(crate) fn algorithms(&self) -> Vec<String> {
        let keys = self.jwks();
        let names = keys["keys"].as_array().into_iter().flatten().filter_map(|key| key["alg"].as_str());
        let sorted: std::collections::BTreeSet<&str> = names.compact_collect();
        sorted.into_iter().map(str::to_owned).collect()
    }

    /// For how long others may keep the key set.
    pub(crate) fn max_age(&self) -> Duration {
        match &self.keys {
            Source::Files(_) => FILES_MAX_AGE,
            Source::External(signer) => signer.max_age(),
        }
    }

    /// `Ok(None)` if the token is not one of ours at all.
    pub(crate) async fn verify(
        &self,
        caches: &Caches,
        text: &str,
        wanted: &[String],
        now: jiff::Timestamp,
    ) -> Result<Option<Accepted>, AccountTokenError> {
        // A key that a signer has since the last time.
        if let Source::External(signer) = &self.keys
            && let Some(token) = Token::parse(text).filter(|token| self.is_of_ours(token))
        {
            signer.keys_for(&token.key_id).await;
        }
        let Some(token) = self.ours(text)? else { return Ok(None) };
        let now = now.as_second();
        check_times(&token, now)?;
        let legacy = token.text("iss") == LEGACY_ISSUER;
        let mut given = token.audiences();
        if legacy && given.is_empty() {
            // Legacy tokens name no audience and are meant for this server.
            given = self.audiences.iter().map(String::as_str).collect();
        }
        let accepted: Vec<String> = wanted.iter().filter(|wanted| given.contains(&wanted.as_str())).cloned().collect();
        if accepted.is_empty() {
            let given = given.into_iter().map(str::to_owned).collect();
            return Err(AccountTokenError::Audience { given, wanted: wanted.to_vec() });
        }
        let find = || match legacy {
            true => legacy_user(caches, &self.legacy_uses, &token, text, now),
            false => bound_user(caches, &token, now),
        };
        let mut found = find();
        // Another server may have made it a moment ago.
        if found.as_ref().is_err_and(AccountTokenError::is_absence) && caches.fresh().await.is_ok() {
            found = find();
        }
        Ok(Some((found?, accepted)))
    }

    /// Whether it says that it is of one of our issuers.
    fn is_of_ours(&self, token: &Token<'_>) -> bool {
        let issuer = token.text("iss");
        issuer == LEGACY_ISSUER || self.issuers.iter().any(|known| known == issuer)
    }

    /// A token of one of our issuers with a good signature.
    fn ours<'t>(&self, text: &'t str) -> Result<Option<Token<'t>>, AccountTokenError> {
        let Some(token) = Token::parse(text) else { return Ok(None) };
        if !self.is_of_ours(&token) {
            return Ok(None);
        }
        let keys = self.keys.get();
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref().to_vec();
        let is_known = self.checked.get(&digest).is_some_and(|with| Arc::ptr_eq(&with, &keys));
        if !is_known {
            if !token.is_signed_by(&keys) {
                return Err(AccountTokenError::Signature);
            }
            self.checked.put(digest, keys, SIGNATURE_TTL);
        }
        Ok(Some(token))
    }
}

fn check_times(token: &Token<'_>, now: i64) -> Result<(), AccountTokenError> {
    if token.time("exp").is_some_and(|expires| now > expires.saturating_add(LEEWAY)) {
        return Err(AccountTokenError::Expired);
    }
    if token.time("nbf").is_some_and(|not_before| now + LEEWAY < not_before) {
        return Err(AccountTokenError::TooEarly);
    }
    if token.time("iat").is_some_and(|issued| now + LEEWAY < issued) {
        return Err(AccountTokenError::FromTheFuture);
    }
    Ok(())
}

/// Whether an object is on its way out for longer than clocks may differ.
fn is_gone(metadata: &ObjectMeta, now: i64) -> bool {
    metadata.deletion_timestamp.as_ref().is_some_and(|deleted| deleted.0.as_second() + LEEWAY < now)
}

fn check_account(caches: &Caches, namespace: &str, name: &str, uid: &str, now: i64) -> Result<(), AccountTokenError> {
    let account = caches
        .objects()
        .get::<ServiceAccount>(namespace, name)?
        .ok_or_else(|| AccountTokenError::NoAccount(name.to_owned()))?;
    let found = account.metadata.uid();
    if found != uid {
        return Err(AccountTokenError::AccountUid { found: found.to_owned(), claimed: uid.to_owned() });
    }
    if is_gone(&account.metadata, now) {
        return Err(AccountTokenError::AccountGone(format!("{namespace}/{name}")));
    }
    Ok(())
}

fn bound_user(caches: &Caches, token: &Token<'_>, now: i64) -> Result<UserInfo, AccountTokenError> {
    let private = &token.claims["kubernetes.io"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let namespace = text(&private["namespace"]);
    let (name, uid) = (text(&private["serviceaccount"]["name"]), text(&private["serviceaccount"]["uid"]));
    if token.text("sub") != format!("system:serviceaccount:{namespace}:{name}") {
        return Err(AccountTokenError::Subject);
    }
    check_account(caches, &namespace, &name, &uid, now)?;
    let mut user = UserInfo::service_account(&namespace, &name, uid);
    for kind in ["pod", "secret", "node"] {
        if !private[kind].is_object() {
            continue;
        }
        let (name, uid) = (text(&private[kind]["name"]), text(&private[kind]["uid"]));
        // A token bound to a pod also names its node for information; only a direct binding must hold.
        if kind != "node" || !private["pod"].is_object() {
            let object = match kind {
                "pod" => caches.objects().metadata::<Pod>(&namespace, &name),
                "secret" => caches.objects().metadata::<Secret>(&namespace, &name),
                _ => caches.objects().metadata::<Node>("", &name),
            };
            let object = object?.ok_or(AccountTokenError::BoundGone)?;
            let found = object.uid.as_deref().unwrap_or_default();
            if found != uid {
                return Err(AccountTokenError::BoundUid { kind, found: found.to_owned(), claimed: uid });
            }
            if is_gone(&object, now) {
                return Err(AccountTokenError::BoundGone);
            }
        }
        if kind != "secret" {
            user.extra.insert(format!("authentication.kubernetes.io/{kind}-name"), vec![name]);
            user.extra.insert(format!("authentication.kubernetes.io/{kind}-uid"), vec![uid]);
        }
    }
    if let Some(late) = private["warnafter"].as_i64().map(|time| now.saturating_sub(time)).filter(|late| *late > 0) {
        let text = format!("subject: {}, seconds after warning threshold: {late}", token.text("sub"));
        crate::audit::annotate("authentication.k8s.io/stale-token", text);
    }
    if !token.text("jti").is_empty() {
        let id = format!("JTI={}", token.text("jti"));
        user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![id]);
    }
    Ok(user)
}

/// The day of a moment, as labels have it.
pub(crate) fn day(seconds: i64) -> Option<String> {
    let moment = jiff::Timestamp::from_second(seconds).ok()?;
    Some(moment.to_zoned(jiff::tz::TimeZone::UTC).date().to_string())
}

/// Whether a day in a label is that of a moment, or the next one: a server whose clock is ahead may have written that, and the
/// two would go on to write over each other.
pub(crate) fn is_today(label: &str, seconds: i64) -> bool {
    const DAY: i64 = 24 * 60 * 60;
    [seconds, seconds.saturating_add(DAY)].into_iter().filter_map(day).any(|day| day == label)
}

/// A token that lives in a secret: it counts as long as the secret holds it.
fn legacy_user(
    caches: &Caches,
    uses: &LegacyUses,
    token: &Token<'_>,
    text: &str,
    now: i64,
) -> Result<UserInfo, AccountTokenError> {
    let claim = |key: &str| token.text(&format!("kubernetes.io/serviceaccount/{key}")).to_owned();
    let (namespace, secret_name) = (claim("namespace"), claim("secret.name"));
    let (name, uid) = (claim("service-account.name"), claim("service-account.uid"));
    if token.text("sub") != format!("system:serviceaccount:{namespace}:{name}") {
        return Err(LegacyTokenError::Subject.into());
    }
    let secret = caches.objects().get::<Secret>(&namespace, &secret_name)?.ok_or(LegacyTokenError::SecretGone)?;
    if secret.metadata.deletion_timestamp.is_some() {
        return Err(LegacyTokenError::SecretGone.into());
    }
    let kept = secret.data.as_ref().and_then(|data| data.get("token"));
    if kept.is_none_or(|kept| !super::same_secret(&kept.0, text.as_bytes())) {
        return Err(LegacyTokenError::AnotherToken.into());
    }
    let labels = secret.metadata.labels.as_ref();
    check_account(caches, &namespace, &name, &uid, now)?;
    // Also of a token that does not count any more: the secret of one that somebody still uses is not deleted.
    if labels.and_then(|labels| labels.get(LAST_USED)).is_none_or(|label| !is_today(label, now)) {
        uses.note(&namespace, &secret_name);
    }
    let invalid_since = labels.and_then(|labels| labels.get("kubernetes.io/legacy-token-invalid-since"));
    if invalid_since.is_some_and(|since| !since.is_empty()) {
        let (secret, account) = (secret_name, name);
        return Err(LegacyTokenError::Invalidated { namespace, secret, account }.into());
    }
    crate::audit::annotate("authentication.k8s.io/legacy-token-manual-secret", &secret_name);
    Ok(UserInfo::service_account(&namespace, &name, uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    #[test]
    fn times_at_their_ends_are_told() {
        for (claims, good) in [
            (json!({"exp": i64::MAX, "nbf": i64::MIN, "iat": i64::MIN}), true),
            (json!({"exp": 1e300}), true),
            (json!({"exp": i64::MIN}), false),
            (json!({"nbf": i64::MAX}), false),
            (json!({"iat": i64::MAX}), false),
        ] {
            let text = format!("{}.AAAA", jwt::signing_input("ES256", "k", &claims));
            assert_eq!(check_times(&Token::parse(&text).unwrap(), 1000).is_ok(), good, "{claims}");
        }
    }

    #[test]
    fn a_day_is_written_once_where_clocks_differ() {
        let noon = "2026-01-01T12:00:00Z".parse::<jiff::Timestamp>().unwrap().as_second();
        assert_eq!(day(noon).as_deref(), Some("2026-01-01"));
        for (label, expected) in
            [("2025-12-31", false), ("2026-01-01", true), ("2026-01-02", true), ("2026-01-03", false), ("", false)]
        {
            assert_eq!(is_today(label, noon), expected, "{label}");
        }
    }

    fn issuer(dir: &Path, name: &str) -> (TokenIssuer, PublicKeys) {
        let file = dir.join(name);
        std::fs::write(&file, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let issuer = TokenIssuer::load(&file, "i", vec!["a".into()]).unwrap();
        (issuer, PublicKeys::load(vec![file], vec!["i".into()], vec!["a".into()]).unwrap())
    }

    fn claims(issued: i64, expires: i64) -> TokenClaims {
        TokenClaims {
            namespace: "n".into(),
            name: "s".into(),
            uid: "u".into(),
            audiences: vec!["a".into()],
            issued,
            expires,
            warn_after: None,
            pod: None,
            node: None,
            secret: None,
        }
    }

    #[tokio::test]
    async fn signatures_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let (issuer, keys) = issuer(dir.path(), "one");
        let (_, others) = self::issuer(dir.path(), "two");
        let token = issuer.sign(&claims(1, 2)).await.unwrap();
        assert!(keys.ours(&token).unwrap().is_some());
        let parts: Vec<&str> = token.split('.').collect();
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        assert!(others.ours(&token).is_err(), "another key");
        let forged = encode(r#"{"iss":"i","sub":"x"}"#);
        assert!(keys.ours(&format!("{}.{forged}.{}", parts[0], parts[2])).is_err(), "a changed body");
        assert!(keys.ours(&format!("{}.{}.", encode(r#"{"alg":"none"}"#), parts[1])).is_err(), "alg: none");
        let foreign = encode(r#"{"iss":"other"}"#);
        assert!(keys.ours(&format!("{}.{foreign}.{}", parts[0], parts[2])).unwrap().is_none(), "another issuer");
        assert!(keys.ours("opaque").unwrap().is_none(), "not a token");
        assert_eq!((keys.algorithms(), keys.max_age()), (vec!["ES256".to_owned()], FILES_MAX_AGE));
    }

    #[tokio::test]
    async fn times_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let (issuer, _) = issuer(dir.path(), "key");
        let text = issuer.sign(&claims(1000, 2000)).await.unwrap();
        let token = Token::parse(&text).unwrap();
        for (now, good) in [(900, false), (950, true), (1500, true), (2060, true), (2061, false)] {
            assert_eq!(check_times(&token, now).is_ok(), good, "{now}");
        }
    }

    #[tokio::test]
    async fn a_new_signing_key_is_used_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (issuer, keys) = issuer(dir.path(), "key");
        let before = issuer.sign(&claims(1, 2)).await.unwrap();
        std::fs::write(dir.path().join("new"), rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        std::fs::rename(dir.path().join("new"), dir.path().join("key")).unwrap();
        let after = issuer.sign(&claims(1, 2)).await.unwrap();
        assert!(keys.ours(&before).is_err() && keys.ours(&after).unwrap().is_some());
    }
}
