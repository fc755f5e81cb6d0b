//! Steps of a write that reach beyond its object, by kind: allocators, and checks of rights that need other objects.
//!
//! Flow: `verbs` ask for the hooks of a row and call them before and after a write, whatever its kind is. Strategies are
//! pure; what must look or act elsewhere is here, so the list of such exceptions stays short.

mod rights;
mod service;

use std::sync::Arc;

use api::Status;
use futures_util::future::BoxFuture;
use registry::{Object, Resource};
use store::StoreError;

use crate::cluster::Cluster;
use crate::state::Operation;

/// Group, plural (empty: every kind of the group) and hooks.
const TABLE: &[(&str, &str, &dyn Hooks)] = &[
    ("", "services", &service::Addresses),
    ("rbac.authorization.k8s.io", "", &rights::Escalation),
    ("resource.k8s.io", "", &rights::Claims),
    ("admissionregistration.k8s.io", "", &rights::Parameters),
];

/// What a kind does besides writing its object.
pub(crate) trait Hooks: Send + Sync {
    /// Whether its writes claim or free something else, so that they must run to their end.
    fn claims(&self) -> bool {
        false
    }

    /// Checks the object, or claims what it needs and completes it.
    fn before_write<'a>(&'a self, write: Write<'a>) -> BoxFuture<'a, Result<Undo, Status>>;

    /// Frees what a deleted object had.
    fn after_delete<'a>(&'a self, _cluster: &'a Arc<Cluster>, _old: &'a dyn Object) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// An object that is about to be written.
pub(crate) struct Write<'a> {
    pub(crate) operation: &'a Operation,
    pub(crate) new: &'a mut dyn Object,
    /// None for a create.
    pub(crate) old: Option<&'a dyn Object>,
    pub(crate) dry_run: bool,
}

/// What a write has claimed: given back when it fails, and what it replaces is freed when it succeeds.
pub(crate) trait Claimed: Send {
    fn give_back<'a>(self: Box<Self>, cluster: &'a Arc<Cluster>) -> BoxFuture<'a, ()>;
    fn settle<'a>(self: Box<Self>, cluster: &'a Arc<Cluster>) -> BoxFuture<'a, ()>;
}

#[derive(Default)]
pub(crate) struct Undo(Option<Box<dyn Claimed>>);

impl Undo {
    /// The write did not happen.
    pub(crate) async fn run(self, cluster: &Arc<Cluster>) {
        if let Some(claimed) = self.0 {
            claimed.give_back(cluster).await;
        }
    }

    /// The write failed. Where it may have happened all the same, the object may be there with what was claimed for it:
    /// nothing is given back, and repair frees later what nobody has.
    pub(crate) async fn after_failure(self, error: &StoreError, cluster: &Arc<Cluster>) {
        if !error.leaves_outcome_open() {
            self.run(cluster).await;
        }
    }

    /// The write happened.
    pub(crate) async fn commit(self, cluster: &Arc<Cluster>) {
        if let Some(claimed) = self.0 {
            claimed.settle(cluster).await;
        }
    }
}

fn of(resource: &Resource) -> Option<&'static dyn Hooks> {
    let is_of = |(group, plural, _): &&(&str, &str, &'static dyn Hooks)| {
        resource.group == *group && (plural.is_empty() || resource.plural == *plural) && !resource.is_custom
    };
    TABLE.iter().find(is_of).map(|(_, _, hooks)| *hooks)
}

/// Whether a request may claim or free something besides the object it is about.
pub(crate) fn reaches_beyond(operation: &Operation) -> bool {
    let info = &operation.info;
    !info.verb.is_read()
        && matches!(info.subresource.as_str(), "" | "status")
        && of(&operation.resource).is_some_and(|hooks| hooks.claims())
}

pub(crate) async fn before_write(write: Write<'_>) -> Result<Undo, Status> {
    match of(&write.operation.resource) {
        Some(hooks) => hooks.before_write(write).await,
        None => Ok(Undo::default()),
    }
}

pub(crate) async fn after_delete(operation: &Operation, old: &dyn Object) {
    if let Some(hooks) = of(&operation.resource) {
        hooks.after_delete(&operation.state.cluster, old).await;
    }
}

#[cfg(test)]
mod tests {
    /// A row that is misspelt would check nothing.
    #[test]
    fn security_every_hook_belongs_to_a_row() {
        let rows = registry::table::resources();
        for (group, plural, _) in super::TABLE {
            let known = |row: &&registry::Resource| row.group == *group && (plural.is_empty() || row.plural == *plural);
            assert!(rows.iter().any(|row| known(&row)), "{group}/{plural}");
        }
        let hooked = |group: &str, plural: &str| {
            let row = rows.iter().find(|row| row.group == group && row.plural == plural);
            super::of(row.unwrap()).is_some()
        };
        for plural in ["roles", "rolebindings", "clusterroles", "clusterrolebindings"] {
            assert!(hooked("rbac.authorization.k8s.io", plural), "{plural}");
        }
        assert!(hooked("resource.k8s.io", "resourceclaims") && hooked("resource.k8s.io", "resourceclaimtemplates"));
        assert!(hooked("", "services") && !hooked("", "pods"));
    }
}
