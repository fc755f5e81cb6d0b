//! The write a plug-in is asked about, and what it may say back besides yes and no.

use api::{GroupResource, Status, UserInfo};
use registry::{AnyObject, Object, Resource, Typed};

use super::managed_fields::RecordedFields;
use super::reinvocation::Reinvocation;
use crate::delete_options::DeleteOptions;
use crate::request_info::{Query, Warnings};
use crate::watch_cache::Entry;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Create,
    Update,
    Delete,
    /// A stream through a subresource: exec, attach, port-forward, proxy.
    Connect,
}

impl Verb {
    /// As rules of webhooks and reviews spell it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verb::Create => "CREATE",
            Verb::Update => "UPDATE",
            Verb::Delete => "DELETE",
            Verb::Connect => "CONNECT",
        }
    }
}

pub(crate) struct Attributes<'a> {
    pub(crate) verb: Verb,
    pub(crate) resource: &'a Resource,
    pub(crate) subresource: &'a str,
    /// The namespace of the object; for a Namespace its own name.
    pub(crate) namespace: &'a str,
    /// Empty while a name is still to be generated.
    pub(crate) name: &'a str,
    pub(crate) dry_run: bool,
    /// The new state; none for a delete. For a subresource with a kind of its own, an object of that kind.
    pub(crate) object: Option<&'a mut AnyObject>,
    /// The state before; none for a create.
    pub(crate) old: Option<&'a dyn Object>,
    /// The managed fields of both: objects do not carry them on their way.
    pub(crate) managed_fields: Option<&'a RecordedFields>,
    pub(crate) old_entry: Option<&'a Entry>,
    /// What a delete was asked with.
    pub(crate) delete: Option<&'a DeleteOptions>,
    pub(crate) user: &'a UserInfo,
    /// The parameters of the request.
    pub(crate) query: &'a Query,
    pub(crate) warnings: &'a Warnings,
    pub(crate) reinvocation: Reinvocation,
}

impl Attributes<'_> {
    pub(crate) fn user(&self) -> &UserInfo {
        self.user
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.resource.plural == plural && self.resource.group == group
    }

    /// A create of the main resource, where most plug-ins act.
    pub(crate) fn creates(&self, group: &str, plural: &str) -> bool {
        self.verb == Verb::Create && self.subresource.is_empty() && self.is(group, plural)
    }

    /// A create or update of the main resource.
    pub(crate) fn writes(&self, group: &str, plural: &str) -> bool {
        matches!(self.verb, Verb::Create | Verb::Update) && self.subresource.is_empty() && self.is(group, plural)
    }

    pub(crate) fn object_mut<K: Typed>(&mut self) -> Option<&mut K> {
        self.object.as_deref_mut()?.downcast_mut()
    }

    pub(crate) fn object_ref<K: Typed>(&self) -> Option<&K> {
        self.object.as_deref()?.downcast_ref()
    }

    pub(crate) fn old_ref<K: Typed>(&self) -> Option<&K> {
        self.old?.downcast_ref()
    }

    /// Whether the object is of another kind than its resource, as the body of some subresources is.
    pub(crate) fn has_own_kind(&self) -> bool {
        self.resource.subresource(self.subresource).is_some_and(|row| row.kind.is_some())
    }

    /// Group, version and kind of the request's object.
    pub(crate) fn kind(&self) -> (&str, &str, &str) {
        match self.resource.subresource(self.subresource).and_then(|row| row.kind) {
            Some(kind) => kind,
            None => (&self.resource.group, &self.resource.version, &self.resource.kind),
        }
    }

    /// The name to show people: the object's own, or what it will begin with.
    fn shown_name(&self) -> String {
        if !self.name.is_empty() {
            return self.name.to_owned();
        }
        let meta = self.object.as_deref().map(|object| object.meta());
        let named = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
        meta.and_then(|meta| named(meta.name.as_ref()).or_else(|| named(meta.generate_name.as_ref())))
            .unwrap_or_else(|| "Unknown".to_owned())
    }

    pub(crate) fn group_resource(&self) -> GroupResource {
        self.resource.group_resource()
    }

    /// The refusal of a plug-in.
    pub(crate) fn forbidden(&self, message: impl std::fmt::Display) -> Status {
        Status::forbidden(&self.group_resource(), &self.shown_name(), message)
    }

    /// Shows the client a warning.
    pub(crate) fn warn(&self, message: impl Into<String>) {
        self.warnings.add(message.into());
    }

    /// Adds a fact to the request's audit event. The first value of a key stays.
    pub(crate) fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        crate::audit::annotate(&key.into(), value.into());
    }
}
