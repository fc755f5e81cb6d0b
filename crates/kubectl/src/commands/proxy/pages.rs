//! What pages in a browser may ask of the proxy: whoever opens a page of somebody else's must not lend it the cluster.
//!
//! Any page can make a browser send requests to this port. What it cannot do is hide where it comes from (`Sec-Fetch-Site`,
//! `Origin`), read answers without our leave, or know the secret that `cox ui` prints.

use std::sync::Mutex;

use bytes::Bytes;
use client::Body;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};

use super::filter::decoded;
use super::{plain, text};

/// Whether a page of another origin wants to change something, to open a connection whose answers it could read, or to have
/// the browser show what somebody's pod answers: that would be a page of this origin, and could do all that the proxy may.
pub(super) fn is_foreign(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    let reads = matches!(*method, Method::GET | Method::HEAD) && !headers.contains_key(header::UPGRADE);
    (!reads || leads_to_others(path)) && comes_from_elsewhere(headers)
}

/// Whether the server passes the request on to a pod, a service or a node.
fn leads_to_others(path: &str) -> bool {
    decoded(path).is_none_or(|path| path.split('/').any(|part| part == "proxy"))
}

/// What cannot be read counts as coming from elsewhere.
fn comes_from_elsewhere(headers: &HeaderMap) -> bool {
    let site = headers.get_all("sec-fetch-site");
    if site.iter().any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none")) {
        return true;
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    headers.get_all(header::ORIGIN).iter().any(|origin| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, origin)| origin);
        origin.is_none() || origin != host
    })
}

/// All that the page asks for, and how: with these methods, at these paths and below `/cox/ui/`.
const METHODS: [Method; 2] = [Method::GET, Method::HEAD];
const PATHS: [&str; 10] = [
    "/cox/ui",
    "/cox/trace",
    "/cox/history",
    "/version",
    "/api/v1/nodes",
    "/api/v1/pods",
    "/api/v1/services",
    "/api/v1/events",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
];
const PAGE: &str = "/cox/ui/";

/// The way to the cluster's page: a secret in the address opens it once and becomes a cookie, which no script can read and
/// no other site can make a browser send.
pub(super) struct Entrance {
    secret: Mutex<Option<String>>,
    cookie: String,
}

impl Entrance {
    pub(super) fn new() -> Entrance {
        let secret = || api::hex::encode(rand::random::<[u8; 32]>());
        // Cookies of all ports of a host share their names.
        let name: u32 = rand::random();
        Entrance { secret: Mutex::new(Some(secret())), cookie: format!("cox-ui-{name:08x}={}", secret()) }
    }

    /// Where to begin, below the address.
    pub(super) fn path(&self) -> String {
        let secret = self.secret.lock().map(|secret| secret.clone()).ok().flatten().unwrap_or_default();
        format!("{PAGE}?secret={secret}")
    }

    /// The answer to a request that does not get through.
    pub(super) fn refuse(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Response<Body>> {
        if let Some(given) = uri.query().and_then(|query| query.strip_prefix("secret=")).filter(|_| uri.path() == PAGE)
        {
            return Some(self.enter(given));
        }
        let has_cookie = headers
            .get_all(header::COOKIE)
            .iter()
            .filter_map(|cookies| cookies.to_str().ok())
            .any(|all| all.split(';').any(|cookie| is_same(cookie.trim(), &self.cookie)));
        if !has_cookie {
            return Some(text(StatusCode::FORBIDDEN, "Open the address that `cox ui` prints.\n"));
        }
        let wanted = METHODS.contains(method) && (PATHS.contains(&uri.path()) || is_file(uri.path()));
        // Whatever a page of another port of this host has, is not enough.
        if !wanted || comes_from_elsewhere(headers) {
            return Some(text(StatusCode::FORBIDDEN, "Forbidden\n"));
        }
        None
    }

    fn enter(&self, given: &str) -> Response<Body> {
        let Ok(mut secret) = self.secret.lock() else { return text(StatusCode::FORBIDDEN, "Forbidden\n") };
        if !secret.as_deref().is_some_and(|secret| is_same(given, secret)) {
            let why = "This address has been used, or is not the one that `cox ui` prints. Start `cox ui` again.\n";
            return text(StatusCode::FORBIDDEN, why);
        }
        *secret = None;
        let mut response = plain(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", Bytes::new());
        let headers = response.headers_mut();
        headers.insert(header::LOCATION, HeaderValue::from_static(PAGE));
        if let Ok(cookie) = format!("{}; Path=/; HttpOnly; SameSite=Strict", self.cookie).parse() {
            headers.insert(header::SET_COOKIE, cookie);
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    }
}

/// A file of the page: one name, nothing encoded.
fn is_file(path: &str) -> bool {
    path.strip_prefix(PAGE).is_some_and(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.'))
}

/// Takes as long for a good guess as for a bad one.
fn is_same(given: &str, secret: &str) -> bool {
    given.len() == secret.len() && given.bytes().zip(secret.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn security_pages_of_others_change_nothing() {
        let host = ("host", "127.0.0.1:8001");
        for (method, given, expected) in [
            (Method::GET, vec![host], false),
            (Method::GET, vec![host, ("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")], false),
            (Method::GET, vec![host, ("upgrade", "websocket"), ("origin", "http://evil.example")], true),
            (Method::GET, vec![host, ("upgrade", "websocket"), ("origin", "http://127.0.0.1:8001")], false),
            (Method::GET, vec![host, ("upgrade", "SPDY/3.1")], false),
            (Method::POST, vec![host], false),
            (Method::POST, vec![host, ("origin", "http://127.0.0.1:8001")], false),
            (Method::POST, vec![host, ("origin", "http://127.0.0.1:9999")], true),
            (Method::POST, vec![host, ("origin", "null")], true),
            (Method::POST, vec![host, ("sec-fetch-site", "cross-site")], true),
            (Method::DELETE, vec![host, ("sec-fetch-site", "same-site")], true),
            (Method::PUT, vec![host, ("sec-fetch-site", "same-origin")], false),
        ] {
            assert_eq!(is_foreign(&method, "/api/v1/pods", &headers(&given)), expected, "{method} {given:?}");
        }
        let (elsewhere, typed) =
            (headers(&[host, ("sec-fetch-site", "cross-site")]), headers(&[host, ("sec-fetch-site", "none")]));
        for (path, expected) in [
            ("/api/v1/namespaces/a/pods/p/proxy/", true),
            ("/api/v1/namespaces/a/services/s/pro%78y/x", true),
            ("/api/v1/nodes/n/proxy", true),
            ("/api/v1/namespaces/a/pods/p%", true),
            ("/api/v1/namespaces/a/pods/proxy-1/log", false),
        ] {
            assert_eq!(is_foreign(&Method::GET, path, &elsewhere), expected, "{path}");
            assert!(!is_foreign(&Method::GET, path, &typed), "{path}");
        }
    }

    #[test]
    fn security_the_cluster_s_page_needs_its_secret() {
        let entrance = Entrance::new();
        let status = |method: Method, path: &str, given: &[(&'static str, &str)]| {
            let refused = entrance.refuse(&method, &path.parse().unwrap(), &headers(given));
            refused.map(|response| response.status().as_u16())
        };
        assert_eq!(status(Method::GET, "/cox/ui/", &[]), Some(403));
        assert_eq!(status(Method::GET, "/cox/ui/?secret=", &[]), Some(403));
        assert_eq!(status(Method::GET, "/api/v1/pods?secret=x", &[]), Some(403));
        let first = entrance.path();
        let opened = entrance.refuse(&Method::GET, &first.parse().unwrap(), &HeaderMap::new()).unwrap();
        assert_eq!(opened.status(), StatusCode::SEE_OTHER);
        let cookie = opened.headers()[header::SET_COOKIE].to_str().unwrap();
        let (cookie, attributes) = cookie.split_once("; ").unwrap();
        assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict");
        assert!(!cookie.contains(first.split_once('=').unwrap().1), "the cookie is not what was in the address");
        assert_eq!(status(Method::GET, &first, &[]), Some(403), "an address works once");

        let both = format!("other=1; {cookie}");
        for (method, path, more, expected) in [
            (Method::GET, "/cox/ui/", None, None),
            (Method::GET, "/cox/ui/app.js", None, None),
            (Method::GET, "/api/v1/pods?watch=true", Some(("sec-fetch-site", "same-origin")), None),
            (Method::GET, "/api/v1/pods?watch=true", Some(("sec-fetch-site", "same-site")), Some(403)),
            (Method::GET, "/api/v1/secrets", None, Some(403)),
            (Method::GET, "/api/v1/namespaces/a/pods/b/exec", None, Some(403)),
            (Method::GET, "/cox/ui/../../api/v1/secrets", None, Some(403)),
            (Method::GET, "/cox/ui/..%2f..%2fapi/v1/secrets", None, Some(403)),
            (Method::POST, "/api/v1/pods", None, Some(403)),
            (Method::DELETE, "/api/v1/nodes", None, Some(403)),
        ] {
            let given: Vec<_> = [Some(("cookie", both.as_str())), more].into_iter().flatten().collect();
            assert_eq!(status(method.clone(), path, &given), expected, "{method} {path} {more:?}");
        }
        let guess = format!("{}0", &cookie[..cookie.len() - 1]);
        let guess = if guess == cookie { format!("{}1", &cookie[..cookie.len() - 1]) } else { guess };
        assert_eq!(status(Method::GET, "/cox/ui/", &[("cookie", &guess)]), Some(403));
    }
}
