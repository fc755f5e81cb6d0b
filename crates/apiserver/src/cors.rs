//! CORS: browsers of the allowed origins may read answers (`--cors-allowed-origins`).

use anyhow::Context;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use regex_automata::dfa::Automaton;
use regex_automata::dfa::dense::DFA;
use regex_automata::util::syntax;

/// Which origins are allowed: regular expressions that match anywhere in the `Origin` header.
pub(crate) struct Cors(Vec<DFA<Vec<u32>>>);

const HEADERS: [(HeaderName, &str); 4] = [
    (header::ACCESS_CONTROL_ALLOW_METHODS, "POST, GET, OPTIONS, PUT, DELETE, PATCH"),
    (
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since",
    ),
    (header::ACCESS_CONTROL_EXPOSE_HEADERS, "Date"),
    (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
];

impl Cors {
    pub(crate) fn new(patterns: &[String]) -> anyhow::Result<Self> {
        let compile = |pattern: &String| {
            // An expression that floats would match a hostile host that merely contains a good one (CVE-2022-1996).
            let has_one = |marks: [&str; 2]| marks.iter().any(|mark| pattern.contains(mark));
            anyhow::ensure!(
                has_one(["^", "//"]) && has_one(["$", ":"]),
                "--cors-allowed-origins {pattern:?}: regular expression does not pin to start/end of host in the origin header"
            );
            DFA::builder()
                .syntax(syntax::Config::new().unicode(false).utf8(false))
                .build(pattern)
                .with_context(|| format!("invalid regular expression in --cors-allowed-origins: {pattern}"))
        };
        Ok(Self(patterns.iter().map(compile).collect::<Result<_, _>>()?))
    }

    /// The headers for the answer, if the request comes from an allowed origin.
    pub(crate) fn headers(&self, request: &HeaderMap) -> Option<HeaderMap> {
        let origin = request.get(header::ORIGIN)?;
        if !self.0.iter().any(|pattern| matches(pattern, origin.as_bytes())) {
            return None;
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Some(headers)
    }
}

/// Whether a browser only asks what it may send. It does so without credentials, so it is answered before anybody looks
/// for them.
pub(crate) fn is_preflight(method: &Method) -> bool {
    method == Method::OPTIONS
}

fn matches(pattern: &DFA<Vec<u32>>, text: &[u8]) -> bool {
    pattern.try_search_fwd(&regex_automata::Input::new(text)).is_ok_and(|found| found.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowed_origins_are_told_so() {
        let cors = Cors::new(&["^https://good[.]example(:|$)".to_owned()]).unwrap();
        for (origin, allowed) in [
            ("https://good.example", true),
            ("https://good.example:8443", true),
            ("https://good.example.evil", false),
            ("https://evil/?https://good.example", false),
            ("http://good.example", false),
            ("null", false),
        ] {
            let mut request = HeaderMap::new();
            request.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
            let found = cors.headers(&request);
            assert_eq!(found.is_some(), allowed, "{origin}");
            assert!(found.is_none_or(|headers| headers[header::ACCESS_CONTROL_ALLOW_ORIGIN] == origin));
        }
        assert!(cors.headers(&HeaderMap::new()).is_none());
        for mistake in ["good", "^https://(", "//good"] {
            assert!(Cors::new(&[mistake.to_owned()]).is_err(), "{mistake}");
        }
    }
}
