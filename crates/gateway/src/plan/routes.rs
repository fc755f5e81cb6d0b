//! From routes of the Gateway API to rules, whatever they are attached to.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cel::regex::{BadPattern, Regex};
use http::{Method, StatusCode};

use super::backends::{Backends, Missing, PortRef, Use};
use super::filters;
use super::grants::{self, Reference};
use crate::gateway_api::{
    BackendRef, GRPCRoute, GrpcMatch, HTTPRoute, HttpMatch, NamedMatch, RouteFilter, RuleTimeouts, TLSRoute,
};
use crate::table::{Action, Backend, PathMatch, Rank, Route, Rule, TextMatch, Weighted, pattern};
use crate::world::World;

/// As good as none, where a route asks for no limit.
const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 3600);

/// Regular expressions of one route. They are read for every plan, and everybody waits for that.
const MAX_PATTERNS: usize = 64;

/// What those of all routes of a namespace may take, in bytes. A short one may become a megabyte, and routes are many.
const MAX_PATTERN_BYTES: usize = 32 << 20;

/// What regular expressions take, by the namespace of their routes.
#[derive(Default)]
pub(super) struct Patterns(HashMap<String, usize>);

impl Patterns {
    /// Reads one, unless those before it have used up what its namespace has.
    fn read(&mut self, namespace: &str, text: &str) -> Result<Regex, Problem> {
        let taken = self.0.entry(namespace.to_owned()).or_default();
        if *taken <= MAX_PATTERN_BYTES {
            let regex = pattern(text);
            // Also what was made of one that turned out to be too large: it takes as long, for every plan.
            *taken = taken.saturating_add(regex.as_ref().map_or_else(BadPattern::size, Regex::memory_usage));
            if *taken <= MAX_PATTERN_BYTES {
                return regex.map_err(|error| Problem::unsupported(format!("{text:?}: {error}")));
            }
        }
        let message = format!("the regular expressions of the namespace take more than {MAX_PATTERN_BYTES} bytes");
        Err(Problem::unsupported(message))
    }
}

/// Why a route, or a reference of it, cannot be followed: reason and message of a condition.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Problem {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Problem {
    pub(super) fn unsupported(message: String) -> Self {
        Self { reason: "UnsupportedValue", message }
    }
}

/// What becomes of a route, wherever it is attached.
pub(super) struct Converted {
    /// Empty if the route cannot be accepted.
    pub(super) rules: Vec<Rule>,
    pub(super) accepted: Result<(), Problem>,
    pub(super) resolved: Result<(), Problem>,
}

/// Looks up what a route refers to, and remembers the first that leads nowhere.
pub(super) struct Resolver<'p, 'w> {
    pub(super) world: &'w World,
    pub(super) backends: &'p mut Backends<'w>,
    pub(super) patterns: &'p mut Patterns,
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    pub(super) problem: Option<Problem>,
}

impl Resolver<'_, '_> {
    pub(super) fn backend(&mut self, reference: &BackendRef) -> Option<Arc<Backend>> {
        let found = self.find(reference);
        found.map_err(|problem| self.problem.get_or_insert(problem).clone()).ok()
    }

    fn find(&mut self, reference: &BackendRef) -> Result<Arc<Backend>, Problem> {
        let (group, kind) = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Service"));
        if (group, kind) != ("", "Service") {
            let message = format!("backends of kind {kind:?} in group {group:?} are not supported");
            return Err(Problem { reason: "InvalidKind", message });
        }
        let namespace = reference.namespace.as_deref().unwrap_or(&self.namespace);
        let asked = Reference {
            from_kind: self.kind,
            from_namespace: &self.namespace,
            to_group: "",
            to_kind: "Service",
            to_namespace: namespace,
            to_name: &reference.name,
        };
        if !grants::is_permitted(self.world, &asked) {
            let message = format!("no ReferenceGrant in {namespace:?} permits service {:?}", reference.name);
            return Err(Problem { reason: "RefNotPermitted", message });
        }
        let Some(port) = reference.port else {
            return Err(Problem::unsupported(format!("backend {:?} names no port", reference.name)));
        };
        let key = format!("{namespace}/{}", reference.name);
        let used = match self.kind {
            "GRPCRoute" => Use::Grpc,
            "TLSRoute" => Use::Stream,
            _ => Use::Http,
        };
        self.backends.find(&key, &PortRef::Number(port), used).map_err(|missing| match missing {
            Missing::NotFound(message) => Problem { reason: "BackendNotFound", message },
            Missing::Unsupported(message) => Problem { reason: "UnsupportedProtocol", message },
        })
    }

    fn regex(&mut self, text: &str) -> Result<Regex, Problem> {
        self.patterns.read(&self.namespace, text)
    }

    fn weighted(&mut self, references: &[BackendRef]) -> Result<Vec<Weighted>, Problem> {
        let one = |reference: &BackendRef| {
            let backend = self.backend(reference);
            let filters = filters::read(&reference.filters, self)?;
            if filters.redirect.is_some() || filters.filters.iter().any(|filter| filter.cors().is_some()) {
                return Err(Problem::unsupported("a redirect or CORS of a single backend".into()));
            }
            Ok(Weighted { weight: reference.weight.unwrap_or(1), backend, filters: filters.filters })
        };
        references.iter().map(one).collect()
    }

    /// The route of one rule.
    fn route(
        &mut self,
        name: &str,
        filters: &[RouteFilter],
        references: &[BackendRef],
        timeouts: &RuleTimeouts,
    ) -> Result<Arc<Route>, Problem> {
        let filters = filters::read(filters, self)?;
        let backends = self.weighted(references)?;
        let action = match (filters.redirect, backends.is_empty()) {
            (Some(redirect), _) => Action::Redirect(redirect),
            (None, false) => Action::Forward(backends),
            (None, true) => Action::Refuse(StatusCode::INTERNAL_SERVER_ERROR),
        };
        let timeout = |text: &Option<String>| {
            let Some(text) = text else { return Ok(None) };
            let parsed = api::duration::parse(text).map_err(|why| Problem::unsupported(why.to_string()))?;
            Ok(Some(if parsed.is_zero() { UNLIMITED } else { parsed }))
        };
        let (request, backend) = (timeout(&timeouts.request)?, timeout(&timeouts.backend_request)?);
        Ok(Arc::new(Route {
            name: name.to_owned(),
            filters: filters.filters,
            action,
            timeout: request,
            // A route that gives the whole exchange longer than is usual means the backend, too.
            backend_timeout: backend.or(request),
            metrics: Default::default(),
        }))
    }

    fn converted(self, rules: Result<Vec<Rule>, Problem>) -> Converted {
        let resolved = self.problem.map_or(Ok(()), Err);
        match rules {
            Ok(rules) => Converted { rules, accepted: Ok(()), resolved },
            Err(problem) => Converted { rules: Vec::new(), accepted: Err(problem), resolved },
        }
    }
}

/// What decides between routes that ask for the same.
pub(super) fn rank<K: client::Object>(route: &K, place: (usize, usize)) -> Rank {
    let created = route.meta().creation_timestamp.as_ref().map(|time| time.0);
    Rank { is_default: false, created, name: client::object_key(route), place }
}

pub(super) fn http(route: &HTTPRoute, mut resolver: Resolver<'_, '_>) -> Converted {
    let name = format!("httproute {}", client::object_key(route));
    let mut read = || {
        let asked = route.spec.rules.iter().flat_map(|rule| &rule.matches);
        let kinds = asked.flat_map(|asked| {
            let named = asked.headers.iter().chain(&asked.query_params).map(|asked| &asked.r#type);
            named.chain(asked.path.iter().map(|path| &path.r#type))
        });
        check_patterns(kinds)?;
        let mut rules = Vec::new();
        for (at, rule) in route.spec.rules.iter().enumerate() {
            refuse("retry", &rule.retry)?;
            refuse("sessionPersistence", &rule.session_persistence)?;
            let to = resolver.route(&name, &rule.filters, &rule.backend_refs, &rule.timeouts)?;
            let everything = [HttpMatch::default()];
            let matches = if rule.matches.is_empty() { &everything[..] } else { &rule.matches };
            for (match_at, asked) in matches.iter().enumerate() {
                rules.push(http_rule(asked, rank(route, (at, match_at)), to.clone(), &mut resolver)?);
            }
        }
        Ok(rules)
    };
    let rules = read();
    resolver.converted(rules)
}

/// A field that is understood by others.
fn refuse(field: &str, value: &Option<serde_json::Value>) -> Result<(), Problem> {
    value.is_none().then_some(()).ok_or_else(|| Problem::unsupported(format!("{field} is not supported")))
}

fn check_patterns<'r>(kinds: impl Iterator<Item = &'r Option<String>>) -> Result<(), Problem> {
    let count = kinds.filter(|kind| kind.as_deref() == Some("RegularExpression")).count();
    let problem = || Problem::unsupported(format!("more than {MAX_PATTERNS} regular expressions"));
    (count <= MAX_PATTERNS).then_some(()).ok_or_else(problem)
}

fn http_rule(
    asked: &HttpMatch,
    rank: Rank,
    route: Arc<Route>,
    resolver: &mut Resolver<'_, '_>,
) -> Result<Rule, Problem> {
    let path = asked.path.clone().unwrap_or_default();
    let value = path.value.unwrap_or_else(|| "/".to_owned());
    let path = match path.r#type.as_deref().unwrap_or("PathPrefix") {
        "RegularExpression" => PathMatch::Regex(resolver.regex(&value)?),
        _ if !value.starts_with('/') => {
            return Err(Problem::unsupported(format!("path {value:?} does not begin with a slash")));
        }
        "Exact" => PathMatch::Exact(value),
        "PathPrefix" => PathMatch::Prefix(value),
        other => return Err(Problem::unsupported(format!("path match {other:?}"))),
    };
    let method = asked.method.as_ref().map(|method| method.parse::<Method>()).transpose();
    let method = method.map_err(|_| Problem::unsupported("method".into()))?;
    let mut query: Vec<(String, TextMatch)> = Vec::new();
    for parameter in &asked.query_params {
        // Of several with one name the first counts.
        if !query.iter().any(|(name, _)| *name == parameter.name) {
            query.push((parameter.name.clone(), text_match(parameter, resolver)?));
        }
    }
    Ok(Rule { path, method, headers: headers(&asked.headers, resolver)?, query, rank, route })
}

fn headers(
    matches: &[NamedMatch],
    resolver: &mut Resolver<'_, '_>,
) -> Result<Vec<(http::HeaderName, TextMatch)>, Problem> {
    let mut headers: Vec<(http::HeaderName, TextMatch)> = Vec::new();
    for header in matches {
        let unknown = |_| Problem::unsupported(format!("{:?} is no name of a header", header.name));
        let name: http::HeaderName = header.name.parse().map_err(unknown)?;
        if !headers.iter().any(|(known, _)| *known == name) {
            headers.push((name, text_match(header, resolver)?));
        }
    }
    Ok(headers)
}

fn text_match(asked: &NamedMatch, resolver: &mut Resolver<'_, '_>) -> Result<TextMatch, Problem> {
    match asked.r#type.as_deref().unwrap_or("Exact") {
        "Exact" => Ok(TextMatch::Exact(asked.value.clone())),
        "RegularExpression" => Ok(TextMatch::Regex(resolver.regex(&asked.value)?)),
        other => Err(Problem::unsupported(format!("match {other:?}"))),
    }
}

pub(super) fn grpc(route: &GRPCRoute, mut resolver: Resolver<'_, '_>) -> Converted {
    let name = format!("grpcroute {}", client::object_key(route));
    let mut read = || {
        let asked = route.spec.rules.iter().flat_map(|rule| &rule.matches);
        let kinds = asked.flat_map(|asked| {
            let named = asked.headers.iter().map(|asked| &asked.r#type);
            named.chain(asked.method.iter().map(|method| &method.r#type))
        });
        check_patterns(kinds)?;
        let mut rules = Vec::new();
        for (at, rule) in route.spec.rules.iter().enumerate() {
            refuse("sessionPersistence", &rule.session_persistence)?;
            let to = resolver.route(&name, &rule.filters, &rule.backend_refs, &RuleTimeouts::default())?;
            let everything = [GrpcMatch::default()];
            let matches = if rule.matches.is_empty() { &everything[..] } else { &rule.matches };
            for (match_at, asked) in matches.iter().enumerate() {
                rules.push(Rule {
                    path: grpc_path(asked, &mut resolver)?,
                    method: None,
                    headers: headers(&asked.headers, &mut resolver)?,
                    query: Vec::new(),
                    rank: rank(route, (at, match_at)),
                    route: to.clone(),
                });
            }
        }
        Ok(rules)
    };
    let rules = read();
    resolver.converted(rules)
}

fn grpc_path(asked: &GrpcMatch, resolver: &mut Resolver<'_, '_>) -> Result<PathMatch, Problem> {
    let method = asked.method.clone().unwrap_or_default();
    let (service, name) = (method.service.as_deref(), method.method.as_deref());
    match (method.r#type.as_deref().unwrap_or("Exact"), service, name) {
        (_, None, None) => Ok(PathMatch::Prefix("/".into())),
        ("Exact", Some(service), Some(name)) => Ok(PathMatch::Exact(format!("/{service}/{name}"))),
        ("Exact", Some(service), None) => Ok(PathMatch::Prefix(format!("/{service}"))),
        ("Exact", None, Some(name)) => {
            // A name of a method has no letters with a meaning in patterns.
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            match is_name {
                true => Ok(PathMatch::Regex(resolver.regex(&format!("/[^/]+/{name}"))?)),
                false => Err(Problem::unsupported(format!("method {name:?}"))),
            }
        }
        ("RegularExpression", service, name) => {
            let part = |text: Option<&str>| text.map_or_else(|| "[^/]+".to_owned(), |text| format!("(?:{text})"));
            for text in [service, name].into_iter().flatten() {
                resolver.regex(text)?;
            }
            Ok(PathMatch::Regex(resolver.regex(&format!("/{}/{}", part(service), part(name)))?))
        }
        (other, ..) => Err(Problem::unsupported(format!("method match {other:?}"))),
    }
}

/// Such a route has one rule, and nothing of a connection is seen but the name.
pub(super) fn tls(route: &TLSRoute, mut resolver: Resolver<'_, '_>) -> Converted {
    let name = format!("tlsroute {}", client::object_key(route));
    let references = route.spec.rules.first().map(|rule| rule.backend_refs.as_slice()).unwrap_or_default();
    let made = resolver.route(&name, &[], references, &RuleTimeouts::default()).map(|route_to| {
        let (path, rank) = (PathMatch::Prefix("/".into()), rank(route, (0, 0)));
        vec![Rule { path, method: None, headers: Vec::new(), query: Vec::new(), rank, route: route_to }]
    });
    resolver.converted(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each is short and becomes some ten or hundred kilobytes, or is found to be more than one may be.
    #[test]
    fn security_regular_expressions_of_a_namespace_take_so_much() {
        let mut patterns = Patterns::default();
        let refused = (0..2000).find_map(|at| patterns.read("red", &format!("{at}.{{200}}")).err());
        let message = refused.map(|problem| problem.message).unwrap_or_default();
        assert!(message.starts_with("the regular expressions of the namespace take more than"), "{message:?}");
        assert!(patterns.read("red", "a").is_err());
        assert!(patterns.read("blue", "a").is_ok());
        let mut too_large = (0..40).filter_map(|at| patterns.read("green", &format!("{at}.{{5000}}")).err());
        assert!(too_large.any(|problem| problem.message == message));
    }
}
