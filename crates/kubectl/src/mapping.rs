//! Resource types: where their objects live, what they are called, and which of them are known already.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::escape::path_escape;

/// A resource type: where its objects live and what they are called.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mapping {
    pub(crate) group: String,
    pub(crate) version: String,
    /// Plural, as in URLs.
    pub(crate) resource: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
}

impl Mapping {
    pub(crate) fn api_version(&self) -> String {
        group_version(&self.group, &self.version)
    }

    /// `deployments.apps`
    pub(crate) fn group_resource(&self) -> String {
        if self.group.is_empty() { self.resource.clone() } else { format!("{}.{}", self.resource, self.group) }
    }

    /// `deployment.apps`, as printed before a slash and a name.
    pub(crate) fn kind_group(&self) -> String {
        let kind = self.kind.to_lowercase();
        if self.group.is_empty() { kind } else { format!("{kind}.{}", self.group) }
    }

    /// `Deployment.apps`, as messages name a kind.
    pub(crate) fn group_kind(&self) -> String {
        if self.group.is_empty() { self.kind.clone() } else { format!("{}.{}", self.kind, self.group) }
    }

    /// `apps/v1, Resource=deployments`, `/v1, Resource=pods`: Go's text of a type.
    pub(crate) fn resource_text(&self) -> String {
        format!("{}/{}, Resource={}", self.group, self.version, self.resource)
    }

    /// The same by kind.
    pub(crate) fn kind_text(&self) -> String {
        format!("{}/{}, Kind={}", self.group, self.version, self.kind)
    }

    /// The collection's path.
    pub(crate) fn path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let version = self.api_version();
        if self.namespaced && !namespace.is_empty() {
            format!("{root}/{version}/namespaces/{}/{}", path_escape(namespace), self.resource)
        } else {
            format!("{root}/{version}/{}", self.resource)
        }
    }

    pub(crate) fn object_path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.path(namespace), path_escape(name))
    }

    pub(crate) fn supports(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// Preferred first.
    pub(crate) versions: Vec<String>,
}

/// What is known of the server's types; `discovery` asks for the rest.
pub(crate) struct Discovery {
    pub(crate) dir: PathBuf,
    pub(crate) groups: RefCell<Option<Rc<Vec<Group>>>>,
    pub(crate) resources: RefCell<HashMap<String, Rc<Vec<Mapping>>>>,
    /// Set once the server itself was asked in this run.
    pub(crate) fresh: Cell<bool>,
}

impl Discovery {
    pub(crate) fn new(cache: &Path, server: &str) -> Discovery {
        Discovery {
            dir: cache.join("discovery").join(host_dir(server)),
            groups: RefCell::new(None),
            resources: RefCell::new(HashMap::new()),
            fresh: Cell::new(false),
        }
    }
}

/// A type known without asking the server.
pub(crate) fn known(api_version: &str, resource: &str, kind: &str, namespaced: bool) -> Mapping {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Mapping {
        group: group.to_owned(),
        version: version.to_owned(),
        resource: resource.to_owned(),
        singular: kind.to_lowercase(),
        kind: kind.to_owned(),
        namespaced,
        verbs: Vec::new(),
        short_names: Vec::new(),
        categories: Vec::new(),
    }
}

pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Upstream's `computeDiscoverCacheDir`.
fn host_dir(server: &str) -> String {
    let host = server.strip_prefix("https://").or_else(|| server.strip_prefix("http://")).unwrap_or(server);
    host.trim_end_matches('/')
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.' | '(' | ')') { c } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_and_names_are_one_segment_each() {
        let pods = Mapping {
            group: String::new(),
            version: "v1".to_owned(),
            resource: "pods".to_owned(),
            singular: "pod".to_owned(),
            kind: "Pod".to_owned(),
            namespaced: true,
            verbs: Vec::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
        };
        assert_eq!(pods.object_path("default", "web-0"), "/api/v1/namespaces/default/pods/web-0");
        assert_eq!(pods.object_path("a/secrets", "../b"), "/api/v1/namespaces/a%2Fsecrets/pods/..%2Fb");
    }

    #[test]
    fn cache_directories_are_upstreams() {
        for (server, expected) in [
            ("https://127.0.0.1:6443", "127.0.0.1_6443"),
            ("https://k8s.example.com/prefix/", "k8s.example.com/prefix"),
            ("http://[::1]:80", "_::1__80"),
        ] {
            assert_eq!(host_dir(server), expected.replace("_::1__80", "___1__80"), "{server}");
        }
    }
}
