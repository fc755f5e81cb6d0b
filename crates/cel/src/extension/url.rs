//! URLs, read as Go's `url.ParseRequestURI` reads them.

use std::collections::BTreeMap;

#[derive(Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    pub(crate) scheme: String,
    /// With brackets and port.
    pub(crate) host: String,
    pub(crate) path: String,
    query: String,
}

impl Url {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("parse {text:?}: {why}");
        if text.is_empty() {
            return Err("parse \"\": empty url".to_owned());
        }
        if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
            return Err(refused("net/url: invalid control character in URL"));
        }
        let (scheme, rest) = match text.find(|letter: char| !letter.is_ascii_alphanumeric() && !"+-.".contains(letter))
        {
            Some(0) if text.starts_with(':') => return Err(refused("missing protocol scheme")),
            Some(at)
                if text[at..].starts_with(':') && text.starts_with(|letter: char| letter.is_ascii_alphabetic()) =>
            {
                (text[..at].to_ascii_lowercase(), &text[at + 1..])
            }
            _ => (String::new(), text),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !rest.starts_with('/') {
            if !scheme.is_empty() {
                // Opaque: `mailto:a`.
                return Ok(Self {
                    text: text.to_owned(),
                    scheme,
                    host: String::new(),
                    path: String::new(),
                    query: query.to_owned(),
                });
            }
            return Err(refused("invalid URI for request"));
        }
        let (authority, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        check_host(host).map_err(|why| refused(&why))?;
        check_escapes(path).map_err(|escape| refused(&format!("invalid URL escape {escape:?}")))?;
        Ok(Self { text: text.to_owned(), scheme, host: host.to_owned(), path: escaped(path), query: query.to_owned() })
    }

    fn split_host(&self) -> (&str, &str) {
        if let Some(rest) = self.host.strip_prefix('[')
            && let Some((address, port)) = rest.split_once(']')
        {
            return (address, port.strip_prefix(':').unwrap_or(""));
        }
        self.host.rsplit_once(':').unwrap_or((&self.host, ""))
    }

    pub(crate) fn hostname(&self) -> &str {
        self.split_host().0
    }

    pub(crate) fn port(&self) -> &str {
        self.split_host().1
    }

    /// What follows the question mark, by key.
    pub(crate) fn query(&self) -> BTreeMap<String, Vec<String>> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Some(key), Some(value)) = (unescaped(key), unescaped(value)) {
                found.entry(key).or_default().push(value);
            }
        }
        found
    }
}

fn check_host(host: &str) -> Result<(), String> {
    let port = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((_, port)) => port,
            None => return Err("missing ']' in host".to_owned()),
        },
        None => &host[host.find(':').unwrap_or(host.len())..],
    };
    let is_port = port.is_empty() || port.starts_with(':') && port[1..].bytes().all(|byte| byte.is_ascii_digit());
    if !is_port {
        return Err(format!("invalid port {port:?} after host"));
    }
    match host.find([' ', '<', '>', '"', '\\', '^', '`', '{', '|', '}']) {
        Some(at) => Err(format!("invalid character {:?} in host name", &host[at..=at])),
        None => Ok(()),
    }
}

/// The first wrong escape, if there is one.
fn check_escapes(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        let escape: String = text[at..].chars().take(3).collect();
        if escape.len() != 3 || !escape[1..].bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(escape);
        }
    }
    Ok(())
}

/// The path as it is sent.
fn escaped(path: &str) -> String {
    api::percent::encode_except(path, |byte| api::percent::is_unreserved(byte) || b"$&+,/:;=@!'()*[]%".contains(&byte))
}

fn unescaped(text: &str) -> Option<String> {
    check_escapes(text).ok()?;
    Some(api::percent::decode(text, true).into_owned())
}
