//! Query parameters and bodies of the verbs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use serde::Serialize;

/// Parameters of list and watch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ListParams {
    pub label_selector: Option<String>,
    pub field_selector: Option<String>,
    pub limit: Option<u32>,
    pub continue_token: Option<String>,
    pub resource_version: Option<String>,
    pub resource_version_match: Option<String>,
    /// Seconds after which the server ends a watch (or gives up on a list).
    pub timeout_seconds: Option<u32>,
    pub allow_bookmarks: bool,
    /// Watch-list: the watch begins with the present objects and a marked bookmark.
    pub send_initial_events: bool,
    /// Also objects that still have initializers.
    pub include_uninitialized: bool,
}

impl ListParams {
    pub fn labels(selector: impl Into<String>) -> Self {
        Self { label_selector: Some(selector.into()), ..Self::default() }
    }

    pub fn fields(selector: impl Into<String>) -> Self {
        Self { field_selector: Some(selector.into()), ..Self::default() }
    }

    pub(crate) fn query(&self, query: &mut Query) {
        query.optional("labelSelector", self.label_selector.as_deref());
        query.optional("fieldSelector", self.field_selector.as_deref());
        if let Some(limit) = self.limit {
            query.pair("limit", &limit.to_string());
        }
        query.optional("continue", self.continue_token.as_deref());
        query.optional("resourceVersion", self.resource_version.as_deref());
        query.optional("resourceVersionMatch", self.resource_version_match.as_deref());
        if let Some(seconds) = self.timeout_seconds {
            query.pair("timeoutSeconds", &seconds.to_string());
        }
        if self.allow_bookmarks {
            query.pair("allowWatchBookmarks", "true");
        }
        if self.send_initial_events {
            query.pair("sendInitialEvents", "true");
        }
        if self.include_uninitialized {
            query.pair("includeUninitialized", "true");
        }
    }
}

/// Parameters of create, update and patch.
#[derive(Debug, Clone, Default)]
pub struct WriteParams {
    /// `dryRun=All`: everything but the write itself.
    pub dry_run: bool,
    pub field_manager: Option<String>,
    /// `Strict`, `Warn` or `Ignore`.
    pub field_validation: Option<String>,
    /// Server-side apply only: take over fields that others own.
    pub force: bool,
}

impl WriteParams {
    pub(crate) fn query(&self, query: &mut Query) {
        if self.dry_run {
            query.pair("dryRun", "All");
        }
        query.optional("fieldManager", self.field_manager.as_deref());
        query.optional("fieldValidation", self.field_validation.as_deref());
        if self.force {
            query.pair("force", "true");
        }
    }
}

/// What happens to the dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// The body of a delete.
#[derive(Debug, Clone, Default)]
pub struct DeleteParams {
    pub grace_period_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    /// Delete only if the object still is this one.
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub dry_run: bool,
}

impl DeleteParams {
    pub fn background() -> Self {
        Self { propagation: Some(Propagation::Background), ..Self::default() }
    }

    pub fn foreground() -> Self {
        Self { propagation: Some(Propagation::Foreground), ..Self::default() }
    }

    pub fn orphan() -> Self {
        Self { propagation: Some(Propagation::Orphan), ..Self::default() }
    }

    /// Guards against deleting a newer object of the same name.
    pub fn with_uid(mut self, uid: impl Into<String>) -> Self {
        self.uid = Some(uid.into());
        self
    }

    pub fn with_grace_period(mut self, seconds: i64) -> Self {
        self.grace_period_seconds = Some(seconds);
        self
    }

    pub(crate) fn options(&self) -> DeleteOptions {
        let preconditions = (self.uid.is_some() || self.resource_version.is_some())
            .then(|| Preconditions { uid: self.uid.clone(), resource_version: self.resource_version.clone() });
        DeleteOptions {
            api_version: Some("v1".into()),
            kind: Some("DeleteOptions".into()),
            grace_period_seconds: self.grace_period_seconds,
            propagation_policy: self.propagation.map(|propagation| format!("{propagation:?}")),
            preconditions,
            dry_run: self.dry_run.then(|| vec!["All".into()]),
            ..DeleteOptions::default()
        }
    }
}

/// A patch with its content type.
#[derive(Debug, Clone)]
pub struct Patch {
    pub(crate) content_type: &'static str,
    pub(crate) body: serde_json::Value,
    pub params: WriteParams,
}

impl Patch {
    fn new(content_type: &'static str, body: impl Serialize) -> Self {
        // Patches are built from plain values and API types, whose keys are always strings.
        let body = serde_json::to_value(body).unwrap_or_default();
        Self { content_type, body, params: WriteParams::default() }
    }

    /// RFC 6902: a list of operations.
    pub fn json(body: impl Serialize) -> Self {
        Self::new("application/json-patch+json", body)
    }

    /// RFC 7386: objects merge, everything else is replaced.
    pub fn merge(body: impl Serialize) -> Self {
        Self::new("application/merge-patch+json", body)
    }

    /// Kubernetes's own: lists merge by their keys.
    pub fn strategic(body: impl Serialize) -> Self {
        Self::new("application/strategic-merge-patch+json", body)
    }

    /// Server-side apply by `field_manager`.
    pub fn apply(field_manager: impl Into<String>, body: impl Serialize) -> Self {
        let mut patch = Self::new("application/apply-patch+yaml", body);
        patch.params.field_manager = Some(field_manager.into());
        patch
    }

    pub fn with_params(mut self, params: WriteParams) -> Self {
        self.params = params;
        self
    }

    /// Server-side apply: take over fields that others own.
    pub fn force(mut self) -> Self {
        self.params.force = true;
        self
    }
}

/// A path with its query, each value percent-encoded.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    text: String,
    separator: char,
}

impl Query {
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self { text: path.into(), separator: '?' }
    }

    pub(crate) fn pair(&mut self, name: &str, value: &str) {
        self.text.push(self.separator);
        self.separator = '&';
        self.text.push_str(name);
        self.text.push('=');
        percent_encode(&mut self.text, value);
    }

    fn optional(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.pair(name, value);
        }
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

pub(crate) use api::percent::encode as percent_encode;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_params_become_a_query() {
        for (params, expected) in [
            (ListParams::default(), "/x"),
            (ListParams::labels("app in (a,b),!c"), "/x?labelSelector=app%20in%20%28a%2Cb%29%2C%21c"),
            (
                ListParams {
                    limit: Some(5),
                    continue_token: Some("a+b/=".into()),
                    ..ListParams::fields("spec.nodeName=n")
                },
                "/x?fieldSelector=spec.nodeName%3Dn&limit=5&continue=a%2Bb%2F%3D",
            ),
            (
                ListParams { send_initial_events: true, allow_bookmarks: true, ..ListParams::default() },
                "/x?allowWatchBookmarks=true&sendInitialEvents=true",
            ),
        ] {
            let mut query = Query::new("/x");
            params.query(&mut query);
            assert_eq!(query.finish(), expected);
        }
    }

    #[test]
    fn delete_params_carry_preconditions_only_when_asked() {
        assert_eq!(DeleteParams::default().options().preconditions, None);
        let options = DeleteParams::foreground().with_uid("u").with_grace_period(0).options();
        assert_eq!(options.propagation_policy.as_deref(), Some("Foreground"));
        assert_eq!(options.grace_period_seconds, Some(0));
        assert_eq!(options.preconditions.unwrap().uid.as_deref(), Some("u"));
    }
}
