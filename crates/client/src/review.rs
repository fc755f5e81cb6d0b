//! Who calls a component's own port, and what they may do there: the API server is asked, and its answers are kept for a
//! while.
//!
//! Flow: a request on the port of the kubelet or of a `serving::Port` -> [`Reviews::user`] (TokenReview) ->
//! [`Reviews::allows`] (SubjectAccessReview) -> the port's routes.
//! Invariant: an answer that did not come is an error, never a yes or a no.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use http::HeaderMap;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{Client, Error};

/// How long upstream's components keep answers of the API server.
const TOKEN_TTL: Duration = Duration::from_secs(120);
const ALLOWED_TTL: Duration = Duration::from_secs(300);
const DENIED_TTL: Duration = Duration::from_secs(30);
/// A full cache is emptied: answers are only asked for again.
const CACHE_LIMIT: usize = 1024;
/// Longer tokens and questions are not kept: whoever asks chooses how long, and nobody has looked at them before (upstream's
/// `maxControlledAttrCacheSize`).
const MAX_KEPT: usize = 10_000;

/// Something that a caller wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A path of the port itself.
    Path { verb: String, path: String },
    /// A subresource of a node: how the kubelet's paths are permitted.
    Node { verb: &'static str, name: String, subresource: &'static str },
}

impl Access {
    /// The bytes of it that a caller chooses.
    fn length(&self) -> usize {
        match self {
            Access::Path { verb, path } => verb.len() + path.len(),
            Access::Node { name, .. } => name.len(),
        }
    }
}

/// Asks the API server, and remembers.
pub struct Reviews {
    client: Client,
    users: Cache<String, Option<api::UserInfo>>,
    allowed: Cache<(String, Access), bool>,
}

impl Reviews {
    pub fn new(client: Client) -> Self {
        Self { client, users: Cache::default(), allowed: Cache::default() }
    }

    /// Whose token it is; nobody's, if the API server does not know it.
    pub async fn user(&self, token: &str) -> Result<Option<api::UserInfo>, Error> {
        if let Some(user) = self.users.get(token, |_| TOKEN_TTL) {
            return Ok(user);
        }
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = self.client.all::<TokenReview>().create(&review).await?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| api::UserInfo {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        if token.len() <= MAX_KEPT {
            self.users.put(token.to_owned(), user.clone());
        }
        Ok(user)
    }

    /// Whether a user may do this.
    pub async fn allows(&self, user: &api::UserInfo, access: &Access) -> Result<bool, Error> {
        let key = (identity(user), access.clone());
        if let Some(allowed) = self.allowed.get(&key, |allowed| if *allowed { ALLOWED_TTL } else { DENIED_TTL }) {
            return Ok(allowed);
        }
        let mut spec = SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: (!user.uid.is_empty()).then(|| user.uid.clone()),
            groups: Some(user.groups.clone()),
            extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
            ..SubjectAccessReviewSpec::default()
        };
        match access {
            Access::Path { verb, path } => {
                spec.non_resource_attributes =
                    Some(NonResourceAttributes { path: Some(path.clone()), verb: Some(verb.clone()) });
            }
            Access::Node { verb, name, subresource } => {
                spec.resource_attributes = Some(ResourceAttributes {
                    verb: Some((*verb).into()),
                    group: Some(String::new()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some((*subresource).into()),
                    name: Some(name.clone()),
                    ..ResourceAttributes::default()
                });
            }
        }
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = self.client.all::<SubjectAccessReview>().create(&review).await?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        if key.0.len() + access.length() <= MAX_KEPT {
            self.allowed.put(key, allowed);
        }
        Ok(allowed)
    }
}

/// The bearer token of a request. One that is no text is a wrong one, and not none.
pub fn bearer_token(headers: &HeaderMap) -> Option<String> {
    let header = String::from_utf8_lossy(headers.get(http::header::AUTHORIZATION)?.as_bytes());
    header.strip_prefix("Bearer ").map(str::trim).filter(|token| !token.is_empty()).map(str::to_owned)
}

/// All of a user that permissions may depend on, in one text.
fn identity(user: &api::UserInfo) -> String {
    format!("{}\0{}\0{}\0{:?}", user.name, user.uid, user.groups.join("\0"), user.extra)
}

/// Answers with the time they came.
struct Cache<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q, good_for: impl Fn(&V) -> Duration) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
    {
        let entries = self.0.lock();
        let (at, value) = entries.get(key)?;
        (at.elapsed() < good_for(value)).then(|| value.clone())
    }

    fn put(&self, key: K, value: V) {
        let mut entries = self.0.lock();
        if entries.len() >= CACHE_LIMIT {
            entries.clear();
        }
        entries.insert(key, (Instant::now(), value));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use serde_json::json;

    use super::*;

    /// Somebody who sends long tokens, or asks for long paths, makes the port ask each time and fills no memory.
    #[tokio::test]
    async fn security_long_tokens_and_paths_are_not_kept() {
        let asked = Arc::new(AtomicUsize::default());
        let count = asked.clone();
        let handler: crate::Handler = Arc::new(move |request: Request<Bytes>| {
            count.fetch_add(1, Ordering::Relaxed);
            let is_token = request.uri().path().ends_with("/tokenreviews");
            let answer = match is_token {
                true => json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {},
                    "status": {"authenticated": false}}),
                false => json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {},
                    "status": {"allowed": false}}),
            };
            let body = Full::new(Bytes::from(answer.to_string()));
            let body: crate::Body = body.map_err(|never| match never {}).boxed_unsync();
            Box::pin(async move { Response::new(body) })
        });
        let reviews = Reviews::new(Client::in_process(handler, api::UserInfo::default()));
        let path = |length: usize| Access::Path { verb: "get".to_owned(), path: "/".repeat(length) };
        for (length, expected) in [(10, 1), (MAX_KEPT + 1, 2)] {
            for question in 0..2 {
                asked.store(0, Ordering::Relaxed);
                for _ in 0..2 {
                    match question {
                        0 => assert_eq!(reviews.user(&"t".repeat(length)).await.unwrap(), None),
                        _ => assert!(!reviews.allows(&api::UserInfo::anonymous(), &path(length)).await.unwrap()),
                    }
                }
                assert_eq!(asked.load(Ordering::Relaxed), expected, "{length} bytes");
            }
        }
        assert_eq!((reviews.users.0.lock().len(), reviews.allowed.0.lock().len()), (1, 1));
    }

    #[test]
    fn tokens_are_found_in_headers() {
        for (header, expected) in
            [(None, None), (Some("Bearer a"), Some("a")), (Some("Bearer  "), None), (Some("Basic a"), None)]
        {
            let mut headers = HeaderMap::new();
            if let Some(value) = header {
                headers.insert(http::header::AUTHORIZATION, value.parse().unwrap());
            }
            assert_eq!(bearer_token(&headers).as_deref(), expected, "{header:?}");
        }
    }

    #[test]
    fn security_a_token_of_other_bytes_is_not_taken_for_none() {
        for (header, expected) in [(&b"Bearer \xff"[..], "\u{fffd}"), ("Bearer t\u{e9}".as_bytes(), "t\u{e9}")] {
            let mut headers = HeaderMap::new();
            headers.insert(http::header::AUTHORIZATION, http::HeaderValue::from_bytes(header).unwrap());
            assert_eq!(bearer_token(&headers).as_deref(), Some(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_kept_for_their_time() {
        let cache: Cache<&str, bool> = Cache::default();
        cache.put("yes", true);
        cache.put("no", false);
        let good_for = |allowed: &bool| if *allowed { ALLOWED_TTL } else { DENIED_TTL };
        assert_eq!((cache.get("yes", good_for), cache.get("no", good_for)), (Some(true), Some(false)));
        tokio::time::advance(DENIED_TTL).await;
        assert_eq!((cache.get("yes", good_for), cache.get("no", good_for)), (Some(true), None));
        for number in 0..CACHE_LIMIT {
            cache.put(["a", "b"][number % 2], true);
        }
        assert!(cache.0.lock().len() <= CACHE_LIMIT);
    }
}
