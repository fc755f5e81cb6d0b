//! Groups, versions, kinds and resources: how the API names its types.

use std::borrow::Cow;
use std::fmt;

type Name = Cow<'static, str>;

/// `apps/v1, Kind=Deployment`: the type of an object as its body names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    pub group: Name,
    pub version: Name,
    pub kind: Name,
}

/// `apps/v1, Resource=deployments`: a collection as the URL names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    pub group: Name,
    pub version: Name,
    pub resource: Name,
}

/// A kind without its version; prints as `Deployment.apps`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    pub group: Name,
    pub kind: Name,
}

/// A resource without its version; prints as `deployments.apps`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    pub group: Name,
    pub resource: Name,
}

impl Gvk {
    pub const fn new(group: &'static str, version: &'static str, kind: &'static str) -> Self {
        Self { group: Cow::Borrowed(group), version: Cow::Borrowed(version), kind: Cow::Borrowed(kind) }
    }

    /// From the `apiVersion` and `kind` of an object. A version with more than one slash has no group.
    pub fn parse(api_version: &str, kind: &str) -> Option<Self> {
        let (group, version) = split_api_version(api_version)?;
        Some(Self { group: group.to_owned().into(), version: version.to_owned().into(), kind: kind.to_owned().into() })
    }

    /// The kind of a typed object.
    pub fn of<K: k8s_openapi::Resource>() -> Self {
        Self::new(K::GROUP, K::VERSION, K::KIND)
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        join_api_version(&self.group, &self.version)
    }

    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.kind.clone() }
    }
}

impl Gvr {
    pub const fn new(group: &'static str, version: &'static str, resource: &'static str) -> Self {
        Self { group: Cow::Borrowed(group), version: Cow::Borrowed(version), resource: Cow::Borrowed(resource) }
    }

    pub fn api_version(&self) -> String {
        join_api_version(&self.group, &self.version)
    }

    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.group.clone(), resource: self.resource.clone() }
    }

    /// `/api/v1` or `/apis/<group>/<version>`.
    pub fn url_prefix(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }
}

impl GroupKind {
    pub const fn new(group: &'static str, kind: &'static str) -> Self {
        Self { group: Cow::Borrowed(group), kind: Cow::Borrowed(kind) }
    }
}

impl GroupResource {
    pub const fn new(group: &'static str, resource: &'static str) -> Self {
        Self { group: Cow::Borrowed(group), resource: Cow::Borrowed(resource) }
    }

    pub fn is_empty(&self) -> bool {
        self.group.is_empty() && self.resource.is_empty()
    }
}

/// Splits `group/version`; a lone version belongs to the core group. `None` for more than one slash.
pub fn split_api_version(api_version: &str) -> Option<(&str, &str)> {
    match api_version.split_once('/') {
        None => Some(("", api_version)),
        Some((_, version)) if version.contains('/') => None,
        Some(pair) => Some(pair),
    }
}

/// The inverse of [`split_api_version`].
pub fn join_api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn qualified(f: &mut fmt::Formatter<'_>, name: &str, group: &str) -> fmt::Result {
    if group.is_empty() { f.write_str(name) } else { write!(f, "{name}.{group}") }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        qualified(f, &self.kind, &self.group)
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        qualified(f, &self.resource, &self.group)
    }
}

impl fmt::Display for Gvk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}

impl fmt::Display for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Resource={}", self.api_version(), self.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_as_upstream_prints_them() {
        assert_eq!(GroupResource::new("", "pods").to_string(), "pods");
        assert_eq!(GroupResource::new("apps", "deployments").to_string(), "deployments.apps");
        assert_eq!(Gvk::new("apps", "v1", "Deployment").to_string(), "apps/v1, Kind=Deployment");
        assert_eq!(Gvr::new("", "v1", "pods").url_prefix(), "/api/v1");
        assert_eq!(Gvk::of::<k8s_openapi::api::batch::v1::Job>(), Gvk::new("batch", "v1", "Job"));
    }

    #[test]
    fn api_versions_split() {
        for (text, expected) in [("v1", Some(("", "v1"))), ("apps/v1", Some(("apps", "v1"))), ("a/b/c", None)] {
            assert_eq!(split_api_version(text), expected, "{text}");
        }
    }
}
