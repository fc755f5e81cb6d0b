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

    pub(super) fn accepts(&self, method: &str, path: &str, host: &str) -> bool {
        let any = |list: &[Pattern], text: &str| list.iter().any(|r| r.is_match(text));
        !any(&self.reject_paths, path)
            && !any(&self.reject_methods, method)
            && any(&self.accept_paths, path)
            && any(&self.accept_hosts, host)
    }
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
