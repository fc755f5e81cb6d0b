//! Filters of routes, as the data plane applies them.

use http::{HeaderName, HeaderValue, StatusCode};

use super::routes::{Problem, Resolver};
use crate::gateway_api::{CorsFilter, HeaderModifier, NamedValue, PathModifier, RequestRedirect, RouteFilter};
use crate::table::{Cors, Filter, HeaderEdits, Listed, Origin, PathEdit, Redirect};

/// What a list of filters amounts to.
#[derive(Default)]
pub(super) struct Filters {
    pub(super) filters: Vec<Filter>,
    pub(super) redirect: Option<Redirect>,
}

/// Reads filters. A problem with a reference of a mirror leaves out the mirror.
pub(super) fn read(filters: &[RouteFilter], resolver: &mut Resolver<'_, '_>) -> Result<Filters, Problem> {
    let mut found = Filters::default();
    for filter in filters {
        let missing = || Problem::unsupported(format!("filter {:?} without its part", filter.r#type));
        match filter.r#type.as_str() {
            "RequestHeaderModifier" => {
                let edits = filter.request_header_modifier.as_ref().ok_or_else(missing)?;
                found.filters.push(Filter::RequestHeaders(header_edits(edits)?));
            }
            "ResponseHeaderModifier" => {
                let edits = filter.response_header_modifier.as_ref().ok_or_else(missing)?;
                found.filters.push(Filter::ResponseHeaders(header_edits(edits)?));
            }
            "RequestRedirect" => {
                found.redirect = Some(redirect(filter.request_redirect.as_ref().ok_or_else(missing)?)?);
            }
            "URLRewrite" => {
                let rewrite = filter.url_rewrite.as_ref().ok_or_else(missing)?;
                let hostname = rewrite.hostname.as_deref().map(HeaderValue::from_str).transpose();
                let hostname = hostname.map_err(|_| Problem::unsupported("hostname of a rewrite".into()))?;
                let path = rewrite.path.as_ref().map(path_edit).transpose()?;
                found.filters.push(Filter::Rewrite { hostname, path });
            }
            "RequestMirror" => {
                let mirror = filter.request_mirror.as_ref().ok_or_else(missing)?;
                let share = match (&mirror.fraction, mirror.percent) {
                    (Some(fraction), _) => (fraction.numerator, fraction.denominator.unwrap_or(100)),
                    (None, percent) => (percent.unwrap_or(100), 100),
                };
                if let Some(backend) = resolver.backend(&mirror.backend_ref) {
                    found.filters.push(Filter::Mirror { backend, share });
                }
            }
            "CORS" => found.filters.push(Filter::Cors(cors(filter.cors.as_ref().ok_or_else(missing)?)?)),
            other => return Err(Problem::unsupported(format!("filter {other:?} is not supported"))),
        }
    }
    Ok(found)
}

fn header_edits(modifier: &HeaderModifier) -> Result<HeaderEdits, Problem> {
    let pairs = |values: &[NamedValue]| {
        let pair = |value: &NamedValue| Ok((name(&value.name)?, text(&value.value)?));
        values.iter().map(pair).collect::<Result<Vec<_>, Problem>>()
    };
    let remove = modifier.remove.iter().map(|header| name(header)).collect::<Result<_, _>>()?;
    Ok(HeaderEdits { set: pairs(&modifier.set)?, add: pairs(&modifier.add)?, remove })
}

/// Not those by which messages are told apart.
pub(super) fn name(text: &str) -> Result<HeaderName, Problem> {
    let name: HeaderName =
        text.parse().map_err(|_| Problem::unsupported(format!("{text:?} is no name of a header")))?;
    let frames =
        ["host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "keep-alive"];
    match frames.contains(&name.as_str()) {
        true => Err(Problem::unsupported(format!("header {text:?} is not a route's to change"))),
        false => Ok(name),
    }
}

fn text(text: &str) -> Result<HeaderValue, Problem> {
    HeaderValue::from_str(text).map_err(|_| Problem::unsupported(format!("{text:?} is no value of a header")))
}

/// The standard's default of how many seconds a browser remembers what it was told.
const MAX_AGE: u32 = 5;

fn cors(filter: &CorsFilter) -> Result<Cors, Problem> {
    let origin = |text: &String| {
        Origin::new(text).ok_or_else(|| Problem::unsupported(format!("{text:?} is no origin of a page")))
    };
    Ok(Cors {
        origins: filter.allow_origins.iter().map(origin).collect::<Result<_, _>>()?,
        has_credentials: filter.allow_credentials.unwrap_or(false),
        methods: listed(&filter.allow_methods)?,
        headers: listed(&filter.allow_headers)?,
        exposed: listed(&filter.expose_headers)?,
        max_age: filter.max_age.unwrap_or(MAX_AGE).into(),
    })
}

fn listed(names: &[String]) -> Result<Listed, Problem> {
    match names {
        [] => Ok(Listed::Nothing),
        names if names.iter().any(|name| name == "*") => Ok(Listed::Any),
        names => Ok(Listed::These(text(&names.join(", "))?)),
    }
}

fn redirect(redirect: &RequestRedirect) -> Result<Redirect, Problem> {
    let scheme = match redirect.scheme.as_deref() {
        None => None,
        Some("http") => Some("http"),
        Some("https") => Some("https"),
        Some(other) => return Err(Problem::unsupported(format!("scheme {other:?} of a redirect"))),
    };
    let code = match redirect.status_code {
        None => StatusCode::FOUND,
        Some(code @ (301 | 302 | 303 | 307 | 308)) => StatusCode::from_u16(code).unwrap_or(StatusCode::FOUND),
        Some(code) => return Err(Problem::unsupported(format!("code {code} of a redirect"))),
    };
    let path = redirect.path.as_ref().map(path_edit).transpose()?;
    Ok(Redirect { scheme, hostname: redirect.hostname.clone(), path, port: redirect.port, code })
}

fn path_edit(modifier: &PathModifier) -> Result<PathEdit, Problem> {
    match (modifier.r#type.as_str(), &modifier.replace_full_path, &modifier.replace_prefix_match) {
        ("ReplaceFullPath", Some(path), _) => Ok(PathEdit::Full(path.clone())),
        ("ReplacePrefixMatch", _, Some(path)) => Ok(PathEdit::Prefix(path.clone())),
        (other, ..) => Err(Problem::unsupported(format!("path modifier {other:?}"))),
    }
}
