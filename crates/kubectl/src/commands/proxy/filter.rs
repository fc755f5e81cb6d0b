//! Which requests the proxy lets through: four lists of regular expressions, as upstream's `FilterServer`.

use crate::failure::{Failure, Result};
use crate::pattern::Pattern;

pub(super) struct Filter {
    accept_paths: Vec<Pattern>,
    reject_paths: Vec<Pattern>,
    accept_hosts: Vec<Pattern>,
    reject_methods: Vec<Pattern>,
}

impl Filter {
    /// Each argument is a list separated by commas.
    pub(super) fn new(
        accept_paths: &str,
        reject_paths: &str,
        accept_hosts: &str,
        reject_methods: &str,
    ) -> Result<Filter> {
        Ok(Filter {
            accept_paths: expressions(accept_paths)?,
            reject_paths: expressions(reject_paths)?,
            accept_hosts: expressions(accept_hosts)?,
            reject_methods: expressions(reject_methods)?,
        })
    }

    /// `path` is as it was sent; what the expressions are compared with is what the server will make of it.
    pub(super) fn accepts(&self, method: &str, path: &str, host: &str) -> bool {
        let any = |list: &[Pattern], text: &str| list.iter().any(|r| r.is_match(text));
        let Some(path) = decoded(path) else { return false };
        let clean = super::clean(&path);
        let clean = clean.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(&clean);
        !any(&self.reject_paths, &path)
            && !any(&self.reject_paths, clean)
            && !any(&self.reject_methods, method)
            && any(&self.accept_paths, &path)
            && any(&self.accept_hosts, host)
    }
}

/// None if something in it is no encoding, or does not encode text.
pub(super) fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
                value(digits[0])? * 16 + value(digits[1])?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

fn expressions(list: &str) -> Result<Vec<Pattern>> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    list.split(',')
        .map(|e| Pattern::new(e).map_err(|error| Failure::message(format!("Error compiling re: {error}"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_rejected_paths_stay_rejected_however_they_are_spelled() {
        let filter = Filter::new("^.*", "^/api/.*/pods/.*/exec", "^localhost$", "^$").unwrap();
        for (path, expected) in [
            ("/api/v1/namespaces/a/pods/b/%65xec", false),
            ("/api/v1/namespaces/a/p%6Fds/b/exec", false),
            ("/%61pi/v1/namespaces/a/pods/b/exec", false),
            ("/api/v1/namespaces/a/pods%2Fb%2Fexec", false),
            ("//api/v1/namespaces/a/pods/b/exec", false),
            ("/./api/v1/namespaces/a/pods/b/exec", false),
            ("/x/../api/v1/namespaces/a/pods/b/exec", false),
            ("/api/v1/namespaces/a/pods/b/%zz", false),
            ("/api/v1/namespaces/a/pods/b/%ff", false),
            ("/api/v1/namespaces/a/pods/b/%6cog", true),
        ] {
            assert_eq!(filter.accepts("GET", path, "localhost"), expected, "{path}");
        }
    }

    #[test]
    fn rejections_win() {
        let filter = Filter::new(
            "^.*",
            "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach",
            "^localhost$,^127\\.0\\.0\\.1$,^\\[::1\\]$",
            "^(DELETE)$",
        )
        .unwrap();
        for (method, path, host, expected) in [
            ("GET", "/api/v1/pods", "localhost", true),
            ("GET", "/api/v1/pods", "127.0.0.1", true),
            ("GET", "/api/v1/pods", "[::1]", true),
            ("GET", "/api/v1/pods", "evil.example.com", false),
            ("GET", "/api/v1/namespaces/a/pods/b/exec", "localhost", false),
            ("GET", "/api/v1/namespaces/a/pods/b/log", "localhost", true),
            ("DELETE", "/api/v1/namespaces/a/pods/b", "localhost", false),
        ] {
            assert_eq!(filter.accepts(method, path, host), expected, "{method} {path} {host}");
        }
        assert!(Filter::new("(", "", "", "").is_err());
    }
}
