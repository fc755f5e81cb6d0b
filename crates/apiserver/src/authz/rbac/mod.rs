//! RBAC: roles and bindings, answered from memory.
//!
//! Flow: watch caches -> [`Feed`]s -> [`Index`] -> decisions. Before a decision the index takes in what changed since the
//! last one, so a decision costs what the user's own bindings cost, at any number of bindings.

mod index;
mod rules;

use std::sync::Arc;

use api::UserInfo;
use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use registry::parts::Parts;

pub use index::{Index, NotAllowed};
pub use rules::allows;
pub(crate) use rules::{describe, missing, quoted};

use super::feed::{Change, Feed};
use super::{Attributes, Opinion};
use crate::watch_cache::Caches;

pub(crate) struct Rbac {
    followed: RwLock<Followed>,
}

struct Followed {
    index: Index,
    cluster_roles: Feed,
    roles: Feed,
    cluster_bindings: Feed,
    bindings: Feed,
}

impl Rbac {
    pub(crate) fn new(caches: &Caches) -> Self {
        let feed = |prefix| Feed::new(caches, prefix);
        let followed = Followed {
            index: Index::default(),
            cluster_roles: feed("clusterroles"),
            roles: feed("roles"),
            cluster_bindings: feed("clusterrolebindings"),
            bindings: feed("rolebindings"),
        };
        Self { followed: RwLock::new(followed) }
    }

    /// The index as of now.
    fn current(&self) -> RwLockReadGuard<'_, Followed> {
        let followed = self.followed.read();
        if followed.is_current() {
            return followed;
        }
        drop(followed);
        let mut followed = self.followed.write();
        followed.catch_up();
        RwLockWriteGuard::downgrade(followed)
    }

    pub(super) fn decide(&self, user: &UserInfo, attributes: &Attributes) -> Opinion {
        match self.current().index.decide(user, attributes) {
            Ok(reason) => Opinion::Allow(reason),
            Err(refused) => Opinion::None(self.with_unreadable(refused.to_string())),
        }
    }

    /// What could not be read might have allowed it: whoever is refused is told, but not the names of others' objects.
    fn with_unreadable(&self, problem: String) -> String {
        const UNREADABLE: &str = "RBAC: some stored roles or bindings cannot be read";
        if !self.followed.read().feeds().iter().any(|feed| feed.has_unreadable()) {
            return problem;
        }
        if problem.is_empty() { UNREADABLE.to_owned() } else { format!("{problem}, {UNREADABLE}") }
    }

    /// Every rule that applies to a user in a namespace, and what could not be found.
    pub(crate) fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<PolicyRule>, Vec<String>) {
        let (mut rules, mut problems) = (Vec::new(), Vec::new());
        self.current().index.visit(user, namespace, |visited| {
            problems.extend(visited.problem());
            rules.extend(visited.rules.into_iter().flatten().cloned());
            false
        });
        (rules, problems)
    }

    /// The rules of a role, or `None` if there is no such role.
    pub(crate) fn role_rules(&self, role: &RoleRef, namespace: &str) -> Option<Arc<[PolicyRule]>> {
        self.current().index.role_rules(role, namespace)
    }
}

impl Followed {
    fn is_current(&self) -> bool {
        self.feeds().iter().all(|feed| feed.is_current())
    }

    fn feeds(&self) -> [&Feed; 4] {
        [&self.cluster_roles, &self.roles, &self.cluster_bindings, &self.bindings]
    }

    fn catch_up(&mut self) {
        let index = &mut self.index;
        self.cluster_roles.read(index, Index::clear_cluster_roles, |index, change| {
            index.set_cluster_role(change.key, object(&change));
        });
        self.roles.read(index, Index::clear_roles, |index, change| index.set_role(change.key, object(&change)));
        self.cluster_bindings.read(index, Index::clear_cluster_bindings, |index, change| {
            index.set_cluster_binding(change.key, object(&change));
        });
        self.bindings.read(index, Index::clear_bindings, |index, change| {
            index.set_binding(change.key, object(&change));
        });
    }
}

/// The object as it is now; one that cannot be read grants nothing.
fn object<K: Parts>(change: &Change<'_>) -> Option<K> {
    change.new.and_then(|entry| entry.object().ok())
}
