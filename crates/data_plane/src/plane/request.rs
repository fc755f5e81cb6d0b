//! What a request must be like before anybody looks for its route.
//!
//! Whatever two servers might read differently is refused here: then nothing that a backend sees depends on who reads it.
//! hyper has refused folded headers, spaces before colons and lengths that contradict each other before we see a request.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Version, header};

use super::headers::unclear_end;
use crate::hostname;

pub(super) const MAX_HEADER_COUNT: usize = 100;
const MAX_HEADER_BYTES: usize = 32 << 10;
pub(super) const MAX_TARGET: usize = 8 << 10;

/// What routes are looked up by.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Empty where the client, of HTTP/1.0, named none.
    pub(crate) host: String,
    /// The host as the client wrote it, for the backend; empty where a header says it, which goes there as it is.
    pub(crate) authority: String,
    pub(crate) path: String,
}

pub(crate) type Refusal = (StatusCode, &'static str);

pub(crate) fn check(parts: &Parts) -> Result<Target, Refusal> {
    const BAD: StatusCode = StatusCode::BAD_REQUEST;
    if matches!(parts.method, Method::CONNECT | Method::TRACE) {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "method not allowed"));
    }
    let bytes = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
    if parts.headers.len() > MAX_HEADER_COUNT || bytes > MAX_HEADER_BYTES {
        return Err((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "request header fields too large"));
    }
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if target > MAX_TARGET {
        return Err((StatusCode::URI_TOO_LONG, "URI too long"));
    }
    if let Some(why) = unclear_end(&parts.headers) {
        return Err((BAD, why));
    }
    let authority = authority(parts)?;
    let host = match authority {
        "" => String::new(),
        authority => hostname::of_authority(authority).ok_or((BAD, "invalid host"))?.into_owned(),
    };
    let path = normalized(parts.uri.path()).ok_or((BAD, "invalid path"))?;
    let authority = parts.uri.authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
    Ok(Target { host, authority, path: path.into_owned() })
}

/// The host as the client wrote it. One that is given twice must be given alike.
fn authority(parts: &Parts) -> Result<&str, Refusal> {
    const BAD: StatusCode = StatusCode::BAD_REQUEST;
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let given = hosts.next().map(HeaderValue::to_str).transpose().map_err(|_| (BAD, "invalid host"))?;
    if hosts.next().is_some() {
        return Err((BAD, "more than one host"));
    }
    let of_uri = parts.uri.authority().map(http::uri::Authority::as_str);
    match (of_uri, given) {
        (Some(one), Some(other)) if !one.eq_ignore_ascii_case(other) => Err((BAD, "more than one host")),
        (Some(host), _) | (None, Some(host)) if !host.is_empty() => Ok(host),
        (None, None) if parts.version == Version::HTTP_10 => Ok(""),
        _ => Err((BAD, "missing host")),
    }
}

/// The path with escapes resolved that mean nothing (RFC 3986, 6.2.2.2); none if it is none, or climbs.
pub(super) fn normalized(path: &str) -> Option<Cow<'_, str>> {
    if !path.starts_with('/') {
        return None;
    }
    let path = match path.contains('%') {
        true => Cow::Owned(unescaped(path)?),
        false => Cow::Borrowed(path),
    };
    (!climbs(&path)).then_some(path)
}

/// Whether some server would read an element as `.` or `..`: some take escaped and backward slashes for slashes, and some drop what
/// follows a semicolon.
fn climbs(path: &str) -> bool {
    let separated = match path.contains('%') {
        true => Cow::Owned(path.replace("%2F", "/").replace("%5C", "/").replace("%3B", ";")),
        false => Cow::Borrowed(path),
    };
    let mut elements = separated.split(['/', '\\']).map(|element| element.split(';').next());
    elements.any(|element| matches!(element, Some("." | "..")))
}

fn unescaped(path: &str) -> Option<String> {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let digits = rest.get(at + 1..at + 3)?;
        let byte = u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?;
        match byte {
            0 => return None,
            b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            _ => out.extend(['%'].into_iter().chain(digits.chars().map(|digit| digit.to_ascii_uppercase()))),
        }
        rest = &rest[at + 3..];
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn asked(uri: &str, headers: &[(&str, &str)]) -> Result<Target, Refusal> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn security_what_could_be_read_in_two_ways_is_refused() {
        let host = ("host", "a.test");
        for (uri, headers, expected) in [
            ("/", &[host][..], 200),
            ("/", &[][..], 400),
            ("/", &[host, host][..], 400),
            ("/", &[("host", "a.test, b.test")][..], 400),
            ("/", &[("host", "a.test@b.test")][..], 400),
            ("http://b.test/", &[host][..], 400),
            ("http://A.test/", &[host][..], 200),
            ("/", &[host, ("transfer-encoding", "chunked")][..], 200),
            ("/", &[host, ("transfer-encoding", "gzip, chunked")][..], 400),
            ("/", &[host, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")][..], 400),
            ("/", &[host, ("transfer-encoding", "chunked"), ("content-length", "3")][..], 400),
            ("/a/../b", &[host][..], 400),
            ("/a/%2e%2E/b", &[host][..], 400),
            ("/a/./b", &[host][..], 400),
            ("/a%00", &[host][..], 400),
            ("/a%zz", &[host][..], 400),
            ("/a%+1", &[host][..], 400),
            ("/..a/b..", &[host][..], 200),
            ("*", &[host][..], 400),
        ] {
            let found = asked(uri, headers);
            assert_eq!(found.as_ref().map_or_else(|(code, _)| code.as_u16(), |_| 200), expected, "{uri} {headers:?}");
        }
        let many: Vec<(String, String)> = (0..101).map(|i| (format!("x-{i}"), "1".to_owned())).collect();
        let mut many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        many.push(host);
        assert_eq!(asked("/", &many).unwrap_err().0.as_u16(), 431);
        let long = "x".repeat(MAX_HEADER_BYTES);
        assert_eq!(asked("/", &[host, ("x", &long)]).unwrap_err().0.as_u16(), 431);
        assert_eq!(asked(&format!("/{long}"), &[host]).unwrap_err().0.as_u16(), 414);
    }

    #[test]
    fn security_a_path_does_not_climb_in_disguise() {
        for path in
            ["/a/..%2fb", "/a%2F..%2fb", "/a/..;/b", "/a/..;x=1/b", "/a/..%3b/b", "/a\\..\\b", "/a%5c..%5Cb", "/a/.;"]
        {
            assert_eq!(asked(path, &[("host", "a")]).unwrap_err().0.as_u16(), 400, "{path}");
        }
        for path in ["/@scope%2fname", "/a;v=1/b", "/a/..b%2f", "/a%5cb"] {
            assert!(asked(path, &[("host", "a")]).is_ok(), "{path}");
        }
    }

    #[test]
    fn security_escapes_do_not_lead_around_a_rule() {
        for (path, expected) in [
            ("/%61dmin", "/admin"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2Fb", "/a%2Fb"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/%7Eme", "/~me"),
        ] {
            assert_eq!(asked(path, &[("host", "a")]).unwrap().path, expected, "{path}");
        }
    }
}
