//! What a request is about, read from its method and URL as upstream's `RequestInfoFactory` does.
//!
//! Authorization decides on this value and the verbs act on the same one, so the two can never disagree.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue, Method, Uri};
use parking_lot::Mutex;
use registry::Verb;

/// Parsed request line. For non-resource requests (`/healthz`) only `verb` and `path` are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestInfo {
    pub(crate) is_resource: bool,
    pub(crate) path: String,
    /// Kubernetes verb, or the lower-case method of a non-resource request.
    pub(crate) verb: Verb,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: String,
    /// The path leads through a namespace to the resource (`namespaces/<name>/<resource>`).
    pub(crate) is_in_namespace: bool,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) name: String,
    /// The name is part of the path: a field selector may name one as well.
    pub(crate) is_named: bool,
    /// What follows the subresource (`pods/x/proxy/<rest>`), with a leading slash, not decoded.
    pub(crate) rest: String,
    pub(crate) query: Query,
    /// The query as written, for requests that are passed on.
    pub(crate) raw_query: String,
}

/// Decoded query parameters, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key, true).into_owned(), decode(value, true).into_owned())
        });
        Self(pairs.collect())
    }

    /// The first value of a parameter; empty counts as absent, as upstream's converters treat it.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A boolean as upstream parses it: present and not `0` or `false`.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .is_some_and(|(_, value)| !matches!(value.to_ascii_lowercase().as_str(), "0" | "false"))
    }
}

use api::percent::decode;

/// What the client is told beside the answer, in `Warning` headers.
#[derive(Default)]
pub(crate) struct Warnings(Mutex<Vec<String>>);

/// Of all warnings together. A body has room for more than any client takes in its headers.
const MAX_WARNINGS: usize = 16 << 10;

impl Warnings {
    /// Once is enough.
    pub(crate) fn add(&self, message: String) {
        let mut all = self.0.lock();
        let length: usize = all.iter().map(String::len).sum();
        if length + message.len() <= MAX_WARNINGS && !all.contains(&message) {
            all.push(message);
        }
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// Subresources of a namespace that would otherwise read as resources inside it.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    pub(crate) fn new(method: &Method, uri: &Uri) -> Self {
        let path = uri.path().to_owned();
        let query = Query::parse(uri.query().unwrap_or_default());
        let raw_query = uri.query().unwrap_or_default().to_owned();
        let mut info = RequestInfo { verb: method_verb(method), path, query, raw_query, ..Default::default() };
        let raw: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
        let parts: Vec<Cow<'_, str>> = raw.iter().map(|part| decode(part, false)).collect();
        let (prefix, rest) = match parts.as_slice() {
            [api, version, rest @ ..] if api == "api" => (("", version), rest),
            [apis, group, version, rest @ ..] if apis == "apis" => ((&**group, version), rest),
            _ => return info,
        };
        if rest.is_empty() || rest[0].is_empty() {
            return info;
        }
        info.group = prefix.0.to_owned();
        info.version = prefix.1.to_string();
        info.is_resource = true;
        let mut verb = match *method {
            Method::POST => Verb::Create,
            Method::GET | Method::HEAD => Verb::Get,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ => Verb::NONE,
        };
        let mut at = 0;
        if rest[0] == "watch" && rest.len() > 1 {
            verb = Verb::Watch;
            at = 1;
        }
        if rest[at] == "namespaces" && rest.len() > at + 1 {
            info.namespace = rest[at + 1].to_string();
            let inside =
                rest.get(at + 2).is_some_and(|next| !next.is_empty() && !NAMESPACE_SUBRESOURCES.contains(&&**next));
            if inside {
                info.is_in_namespace = true;
                at += 2;
            }
        }
        let tail = &rest[at..];
        info.resource = tail[0].to_string();
        info.name = tail.get(1).map(|part| part.to_string()).unwrap_or_default();
        info.is_named = !info.name.is_empty();
        info.subresource = tail.get(2).map(|part| part.to_string()).unwrap_or_default();
        if tail.len() > 3 {
            let raw_tail = &raw[raw.len() - (tail.len() - 3)..];
            info.rest = format!("/{}", raw_tail.join("/"));
        }
        if !info.subresource.is_empty() && uri.path().ends_with('/') && info.subresource == "proxy" {
            info.rest.push('/');
        }
        if info.name.is_empty() {
            // A list that can only hold one object is a request for that object, for authorization as well.
            if verb == Verb::Get
                && info.subresource.is_empty()
                && let Some(name) = single_name(info.query.get("fieldSelector").unwrap_or_default())
            {
                info.name = name;
            }
            verb = match verb {
                Verb::Get if info.query.flag("watch") => Verb::Watch,
                Verb::Get => Verb::List,
                Verb::Delete => Verb::DeleteCollection,
                other => other,
            };
        }
        info.verb = verb;
        info
    }

    /// Refuses names that would mean something else further on: a part of a path must stay one part of it.
    pub(crate) fn check(&self) -> Result<(), api::Status> {
        let parts = [&self.group, &self.version, &self.namespace, &self.resource, &self.subresource, &self.name];
        for part in parts {
            if part.contains(['/', '\0']) || matches!(part.as_str(), "." | "..") {
                let part = api::field::quote(part);
                return Err(api::Status::bad_request(format!("invalid path segment {part}")));
            }
        }
        Ok(())
    }

    /// Whether a resource of this scope has such a path. A right in a namespace is a right to what is in it: a
    /// resource of the whole cluster is not found there (CVE-2019-11247).
    pub(crate) fn fits_scope(&self, is_namespaced: bool) -> bool {
        !self.is_in_namespace || is_namespaced && !self.namespace.is_empty()
    }

    /// A path that only servers behind this one may have: something follows the subresource, which here only proxies
    /// have, or the subresource is of no object.
    pub(crate) fn goes_beyond(&self) -> bool {
        let is_of_none = !self.subresource.is_empty() && self.name.is_empty();
        is_of_none || !self.rest.is_empty() && self.subresource != "proxy"
    }

    /// Requests that may stay open: not limited in time, counted apart.
    pub(crate) fn is_long_running(&self) -> bool {
        self.verb == Verb::Watch
            || matches!(&*self.subresource, "proxy" | "attach" | "exec" | "log" | "portforward")
            || (self.is_resource && self.verb == Verb::NONE)
            || (!self.is_resource && self.path.starts_with("/debug/pprof/"))
    }

    pub(crate) fn is_mutating(&self) -> bool {
        !self.verb.is_read() && !matches!(self.verb, Verb::Head | Verb::Options)
    }
}

/// The name when a field selector asks for exactly one that an object can have.
fn single_name(selector: &str) -> Option<String> {
    let selector = api::selector::FieldSelector::parse(selector).ok()?;
    let can_be_named = |name: &&str| !name.contains(['/', '%']) && !matches!(*name, "" | "." | "..");
    selector.requires("metadata.name").filter(can_be_named).map(str::to_owned)
}

fn method_verb(method: &Method) -> Verb {
    match *method {
        Method::GET => Verb::Get,
        Method::HEAD => Verb::Head,
        Method::POST => Verb::Post,
        Method::PUT => Verb::Put,
        Method::PATCH => Verb::Patch,
        Method::DELETE => Verb::Delete,
        Method::OPTIONS => Verb::Options,
        _ => Verb::custom("other"),
    }
}

/// The value of a header that says who somebody is, as text: UTF-8 like all names here.
pub(crate) fn readable<'v>(name: &HeaderName, value: &'v HeaderValue) -> Result<&'v str, api::Status> {
    std::str::from_utf8(value.as_bytes())
        .map_err(|_| api::Status::bad_request(format!("the value of header {name} is not valid UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_warnings_fit_into_headers() {
        let warnings = Warnings::default();
        (0..100_000).for_each(|number| warnings.add(format!("unknown field \"spec.f{number}\"")));
        warnings.add("unknown field \"spec.f0\"".to_owned());
        let all = warnings.all();
        assert!((100..5_000).contains(&all.len()), "{}", all.len());
        assert!(all.iter().map(String::len).sum::<usize>() <= MAX_WARNINGS);
    }

    #[test]
    fn tricks_with_paths_are_refused_or_mean_what_they_say() {
        // url -> whether it passes the check, and the resource, namespace and name that authorization sees
        for (url, good, expected) in [
            ("/api/v1/namespaces/a/secrets/s", true, ("secrets", "a", "s")),
            ("//api/v1/namespaces/a/secrets/s", true, ("secrets", "a", "s")),
            ("/api/v1/namespaces/a//secrets/s", false, ("namespaces", "a", "a")),
            ("/api/v1/namespaces/a/pods/p/log/x", false, ("pods", "a", "p")),
            ("/api/v1//namespaces/a/secrets", true, ("", "", "")),
            ("/healthz/../api/v1/secrets", true, ("", "", "")),
            ("/api/v1/namespaces/a/../b/secrets", false, ("..", "a", "b")),
            ("/api/v1/namespaces/../secrets", false, ("secrets", "..", "")),
            ("/api/v1/namespaces/a/secrets/..", false, ("secrets", "a", "..")),
            ("/api/v1/namespaces/%2e%2e/secrets/s", false, ("secrets", "..", "s")),
            ("/api/v1/namespaces/a%2Fb/secrets/s", false, ("secrets", "a/b", "s")),
            ("/api/v1/namespaces/a/secrets/x%2Fy", false, ("secrets", "a", "x/y")),
            ("/api/v1/namespaces/a/%73ecrets/s", true, ("secrets", "a", "s")),
            ("/api/v1/namespaces/a/namespaces/b", true, ("namespaces", "a", "b")),
            ("/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx%2Fy", true, ("pods", "a", "")),
            ("/api/v1/namespaces/a/pods//log", false, ("pods", "a", "")),
            ("/api/v1/namespaces/a/pods//log?fieldSelector=metadata.name%3Dp", false, ("pods", "a", "")),
            ("/api/v1/namespaces/a/services//proxy/x", false, ("services", "a", "")),
        ] {
            let info = RequestInfo::new(&Method::GET, &url.parse().unwrap());
            assert_eq!((&*info.resource, &*info.namespace, &*info.name), expected, "{url}");
            assert_eq!(info.check().is_ok() && !info.goes_beyond(), good, "{url}");
        }
    }

    #[test]
    fn security_what_belongs_to_the_cluster_is_in_no_namespace() {
        for (url, namespaced, in_cluster) in [
            ("/api/v1/namespaces/a/nodes", true, false),
            ("/api/v1/namespaces/a/nodes/n/proxy/x", true, false),
            ("/api/v1/watch/namespaces/a/nodes", true, false),
            ("/apis/rbac.authorization.k8s.io/v1/namespaces/a/clusterroles/r", true, false),
            ("/api/v1/namespaces/a/namespaces/a", true, false),
            ("/api/v1/namespaces/a/namespaces/a/finalize", true, false),
            ("/api/v1/namespaces//nodes", false, false),
            ("/api/v1/namespaces/a", true, true),
            ("/api/v1/namespaces/a/status", true, true),
            ("/api/v1/namespaces", true, true),
            ("/api/v1/nodes/n", true, true),
        ] {
            let info = RequestInfo::new(&Method::GET, &url.parse().unwrap());
            assert_eq!((info.fits_scope(true), info.fits_scope(false)), (namespaced, in_cluster), "{url}");
        }
    }

    #[test]
    fn urls_become_verbs_and_resources() {
        // method, url -> verb, group, namespace, resource, name, subresource, rest
        for (method, url, expected) in [
            ("GET", "/api/v1/pods", ("list", "", "", "pods", "", "", "")),
            ("GET", "/api/v1/namespaces/a/pods?watch=true", ("watch", "", "a", "pods", "", "", "")),
            ("GET", "/api/v1/namespaces/a", ("get", "", "a", "namespaces", "a", "", "")),
            ("PUT", "/api/v1/namespaces/a/finalize", ("update", "", "a", "namespaces", "a", "finalize", "")),
            (
                "GET",
                "/apis/apps/v1/namespaces/a/deployments/d/scale",
                ("get", "apps", "a", "deployments", "d", "scale", ""),
            ),
            ("DELETE", "/api/v1/namespaces/a/pods", ("deletecollection", "", "a", "pods", "", "", "")),
            ("GET", "/api/v1/watch/namespaces/a/pods", ("watch", "", "a", "pods", "", "", "")),
            ("GET", "/api/v1/namespaces/a/pods/p/proxy/x/y%2F", ("get", "", "a", "pods", "p", "proxy", "/x/y%2F")),
            ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn", ("list", "", "", "nodes", "n", "", "")),
            ("GET", "/api/v1/watch/nodes?fieldSelector=metadata.name%3Dn", ("watch", "", "", "nodes", "", "", "")),
            (
                "DELETE",
                "/api/v1/nodes?fieldSelector=metadata.name%3Dn",
                ("deletecollection", "", "", "nodes", "", "", ""),
            ),
            ("GET", "/api/v1/nodes/n?watch=1", ("get", "", "", "nodes", "n", "", "")),
            ("GET", "/healthz", ("get", "", "", "", "", "", "")),
            ("GET", "/apis/apps/v1", ("get", "", "", "", "", "", "")),
        ] {
            let info = RequestInfo::new(&method.parse().unwrap(), &url.parse().unwrap());
            let found = (
                info.verb.as_str(),
                &*info.group,
                &*info.namespace,
                &*info.resource,
                &*info.name,
                &*info.subresource,
                &*info.rest,
            );
            assert_eq!(found, expected, "{method} {url}");
        }
    }
}
