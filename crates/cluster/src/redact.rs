//! Takes secrets out of a text: those that are known, and whatever looks like one.
//!
//! Pure. Known are the values of all Secrets, as text and in base64; what looks like one are private keys, tokens of service
//! accounts and of bootstrap, bearer headers and credentials in URLs.

use std::collections::HashMap;

use api::sort::CompactSort as _;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Shorter values are words of the language.
const SHORTEST: usize = 6;
const GONE: &str = "[redacted]";

#[derive(Default)]
pub(crate) struct Redactor {
    /// Values by how they begin, the longest first.
    known: HashMap<[u8; SHORTEST], Vec<Vec<u8>>>,
}

impl Redactor {
    /// Makes it know a value: whole, each of its longer lines, and in base64.
    pub(crate) fn add(&mut self, value: &[u8]) {
        let lines = value.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| line.len() >= 16);
        for plain in [value.trim_ascii()].into_iter().chain(lines) {
            self.add_word(plain.to_vec());
        }
        self.add_word(STANDARD.encode(value).into_bytes());
        self.add_word(URL_SAFE_NO_PAD.encode(value).into_bytes());
    }

    fn add_word(&mut self, word: Vec<u8>) {
        let Some(start) = word.first_chunk::<SHORTEST>() else { return };
        let words = self.known.entry(*start).or_default();
        if !words.contains(&word) {
            words.push(word);
            words.compact_sort_by_key(|word| std::cmp::Reverse(word.len()));
        }
    }

    pub(crate) fn clean(&self, text: &str) -> String {
        patterns(&self.without_known(text))
    }

    fn without_known(&self, text: &str) -> String {
        if self.known.is_empty() {
            return text.to_owned();
        }
        let bytes = text.as_bytes();
        let mut out = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let words = rest.first_chunk::<SHORTEST>().and_then(|start| self.known.get(start));
            match words.and_then(|words| words.iter().find(|word| rest.starts_with(word))) {
                Some(word) => {
                    out.extend_from_slice(GONE.as_bytes());
                    at += word.len();
                }
                None => {
                    out.push(bytes[at]);
                    at += 1;
                }
            }
        }
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// Without what looks like a secret.
fn patterns(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        if in_key {
            in_key = !line.contains("-----END ") || opens_key(line);
            continue;
        }
        // In a JSON text, a whole key may be in one line.
        if line.contains("-----BEGIN ") && line.contains("PRIVATE KEY-----") {
            in_key = opens_key(line);
            out.push_str(GONE);
            out.push('\n');
            continue;
        }
        words(line, &mut out);
    }
    out
}

/// Whether a private key begins here and goes on in the next line; before it, something else may end.
fn opens_key(line: &str) -> bool {
    let last = line.rfind("-----BEGIN ").map_or("", |at| &line[at..]);
    last.contains("PRIVATE KEY-----") && !last.contains("-----END ")
}

fn words(line: &str, out: &mut String) {
    let is_word = |c: char| {
        c.is_ascii_alphanumeric()
            || matches!(c, '.' | '_' | '-' | '+' | '/' | '=' | '@' | ':' | '%' | '~' | '!' | '$' | '&' | '*' | ';')
    };
    let mut after_bearer = false;
    let mut rest = line;
    while !rest.is_empty() {
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if length == 0 {
            let next = rest.chars().next().map_or(1, char::len_utf8);
            out.push_str(&rest[..next]);
            rest = &rest[next..];
            continue;
        }
        let word = &rest[..length];
        match (after_bearer, credentials(word)) {
            (true, _) => out.push_str(GONE),
            (false, Some((scheme, host))) => out.extend([scheme, GONE, host]),
            (false, None) if is_token(word) => out.push_str(GONE),
            (false, None) => out.push_str(word),
        }
        after_bearer = word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic");
        rest = &rest[length..];
    }
}

/// What is before and after the credentials in a URL.
fn credentials(word: &str) -> Option<(&str, &str)> {
    let start = word.find("://")? + 3;
    let authority = word[start..].split('/').next()?;
    let at = authority.rfind('@')?;
    (at > 0).then(|| (&word[..start], &word[start + at..]))
}

/// A JSON web token, or a bootstrap token, possibly after a name (`token=…`).
fn is_token(word: &str) -> bool {
    word.split(['=', ':', '/', '&', ';', '!', '*', '~', '$']).map(|part| part.trim_matches('.')).any(is_bare_token)
}

fn is_bare_token(word: &str) -> bool {
    let mut parts = word.split('.');
    let (first, second, third, more) = (parts.next(), parts.next(), parts.next(), parts.next());
    let is_short = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    match (first, second, third, more) {
        (Some(id), Some(secret), None, _) => is_short(id, 6) && is_short(secret, 16),
        (Some(header), Some(claims), Some(_), None) => header.starts_with("eyJ") && claims.starts_with("eyJ"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_secrets_leave_a_text() {
        let mut redactor = Redactor::default();
        redactor.add(b"correct horse\n");
        redactor.add(b"tiny");
        redactor.add("first line of a key\nsecond line of it\n".as_bytes());
        for (text, expected) in [
            ("password: correct horse!", "password: [redacted]!"),
            ("data: Y29ycmVjdCBob3JzZQo= end", "data: [redacted] end"),
            ("tiny is a word", "tiny is a word"),
            ("x second line of it y", "x [redacted] y"),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nabc\ndef\n-----END RSA PRIVATE KEY-----\nafter\n",
                "[redacted]\nafter\n",
            ),
            ("\"-----BEGIN PRIVATE KEY-----\\nabc\\n-----END PRIVATE KEY-----\"\n", "[redacted]\n"),
            ("-----BEGIN CERTIFICATE-----\nabc\n", "-----BEGIN CERTIFICATE-----\nabc\n"),
            ("token=eyJhbGciOi.eyJpc3MiOi.c2ln-_ next", "[redacted] next"),
            ("use 8ewxnm.g5sjw8ub4pbjzv7g now", "use [redacted] now"),
            ("pods.apps v1.36.0 10.42.0.1:80 a.b", "pods.apps v1.36.0 10.42.0.1:80 a.b"),
            ("Authorization: Bearer abc", "Authorization: Bearer [redacted]"),
            ("at https://root:pw@etcd:2379/v3", "at https://[redacted]@etcd:2379/v3"),
            ("at https://etcd:2379/a@b:c", "at https://etcd:2379/a@b:c"),
            ("at https://root:p%40ss!@etcd:2379", "at https://[redacted]@etcd:2379"),
            ("at https://t0ken@etcd:2379", "at https://[redacted]@etcd:2379"),
            ("it is eyJhbGciOi.eyJpc3MiOi.c2ln.", "it is [redacted]"),
            ("?token=eyJhbGciOi.eyJpc3MiOi.c2ln&x=1", "?[redacted]"),
            (
                "-----END CERTIFICATE----------BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\nafter\n",
                "[redacted]\nafter\n",
            ),
            ("käse — ✓", "käse — ✓"),
        ] {
            assert_eq!(redactor.clean(text), expected, "{text}");
        }
    }
}
