//! Admission: plug-ins that may change or refuse a write, after authorization and before validation.
//!
//! Mutating hooks run first, in table order, then strategies validate, then the validating hooks. One refusal ends the
//! request. Every plug-in is one file and one line in [`table`].

mod default_storage_class;
mod default_toleration_seconds;
mod limit_ranger;
mod namespace_lifecycle;
mod node_restriction;
mod priority;
mod resource_quota;
mod service_account;
mod taint_nodes;

use std::sync::Arc;

use api::{GroupResource, Status, UserInfo};
use futures_util::future::BoxFuture;

use crate::registry::{Object, Resource};
use crate::state::State;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Create,
    Update,
    Delete,
}

/// The write a plug-in is asked about.
pub(crate) struct Attributes<'a> {
    pub(crate) verb: Verb,
    pub(crate) resource: &'a Resource,
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) user: &'a UserInfo,
    pub(crate) dry_run: bool,
    /// The new state; none for a delete.
    pub(crate) object: Option<&'a mut dyn Object>,
    /// The state before; none for a create.
    pub(crate) old: Option<&'a dyn Object>,
}

impl Attributes<'_> {
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.resource.group == group && self.resource.plural == plural
    }

    /// A create of the main resource, where most plug-ins act.
    pub(crate) fn creates(&self, group: &str, plural: &str) -> bool {
        self.verb == Verb::Create && self.subresource.is_empty() && self.is(group, plural)
    }

    pub(crate) fn object_mut<K: crate::registry::Typed>(&mut self) -> Option<&mut K> {
        self.object.as_deref_mut()?.downcast_mut()
    }

    pub(crate) fn object_ref<K: crate::registry::Typed>(&self) -> Option<&K> {
        self.object.as_deref()?.downcast_ref()
    }

    /// The refusal of a plug-in.
    pub(crate) fn forbidden(&self, message: impl std::fmt::Display) -> Status {
        let resource = GroupResource { group: self.resource.group.clone(), resource: self.resource.plural.clone() };
        Status::forbidden(&resource, self.name, message)
    }
}

pub(crate) type Admitted<'a> = BoxFuture<'a, Result<(), Status>>;

fn admitted<'a>() -> Admitted<'a> {
    Box::pin(std::future::ready(Ok(())))
}

/// Both hooks admit by default; a plug-in writes the one it needs.
pub(crate) trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    /// May change the object.
    fn admit<'a>(&'a self, _state: &'a Arc<State>, _attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        admitted()
    }

    /// Sees the final object and may only refuse.
    fn validate<'a>(&'a self, _state: &'a Arc<State>, _attributes: &'a Attributes<'_>) -> Admitted<'a> {
        admitted()
    }
}

/// All plug-ins with upstream's names, in upstream's order, and whether each is on by default.
fn table() -> Vec<(bool, Box<dyn Plugin>)> {
    vec![
        (true, Box::new(namespace_lifecycle::NamespaceLifecycle)),
        (true, Box::new(limit_ranger::LimitRanger)),
        (true, Box::new(service_account::ServiceAccount)),
        (false, Box::new(node_restriction::NodeRestriction)),
        (true, Box::new(taint_nodes::TaintNodesByCondition)),
        (true, Box::new(priority::Priority)),
        (true, Box::new(default_toleration_seconds::DefaultTolerationSeconds)),
        (true, Box::new(default_storage_class::DefaultStorageClass)),
        // Last: it counts what the others made of the object.
        (true, Box::new(resource_quota::ResourceQuota)),
    ]
}

/// The plug-ins that are on.
pub(crate) struct Chain(Vec<Box<dyn Plugin>>);

impl Chain {
    /// Applies `--enable-admission-plugins` and `--disable-admission-plugins`.
    pub(crate) fn new(enabled: &[String], disabled: &[String]) -> anyhow::Result<Self> {
        let table = table();
        for name in enabled.iter().chain(disabled) {
            if !table.iter().any(|(_, plugin)| plugin.name() == name) {
                anyhow::bail!("enable-admission-plugins plugin \"{name}\" is unknown");
            }
        }
        let on = table.into_iter().filter(|(default, plugin)| {
            let named = |list: &[String]| list.iter().any(|name| name == plugin.name());
            (*default || named(enabled)) && !named(disabled)
        });
        Ok(Self(on.map(|(_, plugin)| plugin).collect()))
    }

    pub(crate) async fn admit(&self, state: &Arc<State>, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        for plugin in &self.0 {
            plugin.admit(state, attributes).await?;
        }
        Ok(())
    }

    pub(crate) async fn validate(&self, state: &Arc<State>, attributes: &Attributes<'_>) -> Result<(), Status> {
        for plugin in &self.0 {
            plugin.validate(state, attributes).await?;
        }
        Ok(())
    }
}
