//! Which pages of other origins may use a route (CORS, of the Fetch standard).

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

/// What a filter of a route allows.
#[derive(Clone, Debug)]
pub struct Cors {
    pub origins: Vec<Origin>,
    /// Whether browsers may send cookies and the like.
    pub has_credentials: bool,
    pub methods: Listed,
    pub headers: Listed,
    /// Headers of an answer that a page may read.
    pub exposed: Listed,
    pub max_age: HeaderValue,
}

/// Names that are allowed.
#[derive(Clone, Debug, PartialEq)]
pub enum Listed {
    /// None is named.
    Nothing,
    Any,
    These(HeaderValue),
}

/// Where a page may come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    Any,
    Of {
        scheme: String,
        host: String,
        /// Whether the host is only the end of a longer name.
        is_suffix: bool,
        port: Option<u16>,
    },
}

/// What a filter decides alone.
const OF_CORS: [HeaderName; 6] = [
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_EXPOSE_HEADERS,
    header::ACCESS_CONTROL_MAX_AGE,
];

impl Origin {
    /// `*`, or a scheme and a host that may begin with `*`, and perhaps a port; none if it is neither.
    pub fn new(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Any);
        }
        let (scheme, host, port) = parts(text)?;
        let (is_suffix, host) = match host.strip_prefix('*') {
            Some(suffix) => (true, suffix.to_owned()),
            None => (false, host),
        };
        (!host.contains('*')).then_some(Self::Of { scheme, host, is_suffix, port })
    }

    fn matches(&self, origin: &str) -> bool {
        let Self::Of { scheme, host, is_suffix, port } = self else { return true };
        let Some((their_scheme, their_host, their_port)) = parts(origin) else { return false };
        let is_host = match is_suffix {
            true => their_host.len() > host.len() && their_host.ends_with(host.as_str()),
            false => their_host == *host,
        };
        is_host && their_scheme == *scheme && their_port == *port
    }
}

/// Scheme, host and port, the usual one where none is written.
fn parts(origin: &str) -> Option<(String, String, Option<u16>)> {
    let (scheme, rest) = origin.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let (host, port) = match rest.rsplit_once(':') {
        // Those of an address of IPv6 stand in brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse::<u16>().ok()?)),
        _ => (rest, None),
    };
    let usual = match scheme.as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    (!host.is_empty()).then(|| (scheme, host.to_ascii_lowercase(), port.or(usual)))
}

impl Cors {
    /// Whether a browser only asks what a page may ask.
    pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
        method == Method::OPTIONS
            && headers.contains_key(header::ORIGIN)
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// The headers that answer such a question; without those of CORS, the page may ask nothing.
    pub fn preflight(&self, asked: &HeaderMap) -> HeaderMap {
        let mut answer = HeaderMap::new();
        if !self.apply(asked.get(header::ORIGIN), &mut answer) {
            return answer;
        }
        for (name, allowed, named) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, &self.methods, header::ACCESS_CONTROL_REQUEST_METHOD),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, &self.headers, header::ACCESS_CONTROL_REQUEST_HEADERS),
        ] {
            let value = match allowed {
                Listed::Nothing => None,
                Listed::Any => asked.get(named),
                Listed::These(names) => Some(names),
            };
            if let Some(value) = value {
                answer.insert(name, value.clone());
            }
        }
        answer.insert(header::ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
        answer
    }

    /// Says in an answer what a page may do with it, whatever the backend says about that; whether the page is allowed at all.
    pub fn apply(&self, origin: Option<&HeaderValue>, answer: &mut HeaderMap) -> bool {
        for name in &OF_CORS {
            answer.remove(name);
        }
        // No cache hands the answer of one origin to another.
        answer.append(header::VARY, HeaderValue::from_static("Origin"));
        let is_allowed = |origin: &&HeaderValue| {
            origin.to_str().is_ok_and(|origin| self.origins.iter().any(|allowed| allowed.matches(origin)))
        };
        let Some(origin) = origin.filter(is_allowed) else { return false };
        answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        if self.has_credentials {
            answer.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        let exposed = match (&self.exposed, self.has_credentials) {
            (Listed::These(names), _) => Some(names.clone()),
            (Listed::Any, false) => Some(HeaderValue::from_static("*")),
            // With credentials, browsers take the asterisk for a name.
            (Listed::Any, true) | (Listed::Nothing, _) => None,
        };
        if let Some(exposed) = exposed {
            answer.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    fn text(headers: &HeaderMap) -> Vec<String> {
        let line = |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
        let mut lines: Vec<String> = headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    fn cors(origin: &str, has_credentials: bool, listed: &Listed) -> Cors {
        Cors {
            origins: vec![Origin::new(origin).unwrap()],
            has_credentials,
            methods: listed.clone(),
            headers: listed.clone(),
            exposed: listed.clone(),
            max_age: HeaderValue::from(60),
        }
    }

    #[test]
    fn security_an_origin_is_a_scheme_a_host_and_a_port() {
        for (allowed, origin, expected) in [
            ("*", "https://a.test:8443", true),
            ("*", "null", true),
            ("https://a.test", "https://a.test", true),
            ("https://a.test", "HTTPS://A.test:443", true),
            ("https://a.test", "http://a.test", false),
            ("https://a.test", "https://a.test:8443", false),
            ("https://a.test", "https://a.test.evil.test", false),
            ("https://a.test", "https://evila.test", false),
            ("https://a.test", "null", false),
            ("https://*.a.test", "https://x.a.test", true),
            ("https://*.a.test", "https://x.y.a.test", true),
            ("https://*.a.test", "https://a.test", false),
            ("https://*.a.test", "https://xa.test", false),
            ("https://*", "https://any.test", true),
            ("https://*", "https://any.test:8443", false),
            ("http://[::1]:8080", "http://[::1]:8080", true),
            ("http://[::1]", "http://[::1]:80", true),
        ] {
            assert_eq!(Origin::new(allowed).unwrap().matches(origin), expected, "{allowed} {origin}");
        }
        for text in ["a.test", "https://", "https://a.*.test", "https://a.test:port", ""] {
            assert_eq!(Origin::new(text), None, "{text}");
        }
    }

    #[test]
    fn a_browser_is_told_what_a_page_may_ask() {
        let asked = headers(&[
            (header::ORIGIN, "https://a.test"),
            (header::ACCESS_CONTROL_REQUEST_METHOD, "PUT"),
            (header::ACCESS_CONTROL_REQUEST_HEADERS, "x-one"),
        ]);
        assert!(Cors::is_preflight(&Method::OPTIONS, &asked));
        assert!(!Cors::is_preflight(&Method::GET, &asked));
        assert!(!Cors::is_preflight(&Method::OPTIONS, &headers(&[(header::ORIGIN, "https://a.test")])));
        let these = Listed::These(HeaderValue::from_static("GET, PUT"));
        let expected = [
            "access-control-allow-credentials: true",
            "access-control-allow-headers: GET, PUT",
            "access-control-allow-methods: GET, PUT",
            "access-control-allow-origin: https://a.test",
            "access-control-expose-headers: GET, PUT",
            "access-control-max-age: 60",
            "vary: Origin",
        ];
        assert_eq!(text(&cors("https://a.test", true, &these).preflight(&asked)), expected);
        // What is asked for is named, never an asterisk, since credentials may come with it.
        let expected = [
            "access-control-allow-credentials: true",
            "access-control-allow-headers: x-one",
            "access-control-allow-methods: PUT",
            "access-control-allow-origin: https://a.test",
            "access-control-max-age: 60",
            "vary: Origin",
        ];
        assert_eq!(text(&cors("*", true, &Listed::Any).preflight(&asked)), expected);
        assert_eq!(text(&cors("https://b.test", true, &these).preflight(&asked)), ["vary: Origin"]);
    }

    #[test]
    fn security_a_backend_does_not_open_what_the_route_keeps_closed() {
        let origin = HeaderValue::from_static("https://a.test");
        let said = [(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"), (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true")];
        for (allowed, expected) in [
            ("https://a.test", &["access-control-allow-origin: https://a.test", "vary: Origin"][..]),
            ("https://b.test", &["vary: Origin"][..]),
        ] {
            let mut answer = headers(&said);
            assert_eq!(cors(allowed, false, &Listed::Nothing).apply(Some(&origin), &mut answer), expected.len() > 1);
            assert_eq!(text(&answer), expected);
        }
    }
}
