//! Roles of the parts of a cluster that upstream does not have, each bound to whoever needs it.

use anyhow::{Context, Result};
use client::{Client, Patch};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde_json::{Value, json};

pub(crate) const MANAGER: &str = "cox";
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

/// A role and who has it.
pub(crate) struct Role {
    pub(crate) name: &'static str,
    /// Whose it is, in messages: `the DNS server`.
    pub(crate) whose: &'static str,
    pub(crate) rules: Value,
    pub(crate) subjects: Value,
}

/// Writes a role and its binding; doing so again changes nothing.
pub(crate) async fn ensure(client: &Client, role: Role) -> Result<()> {
    let Role { name, whose, rules, subjects } = role;
    let role = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules,
    });
    let roles = client.all::<ClusterRole>();
    let written = roles.patch(name, &Patch::apply(MANAGER, role).force()).await;
    written.with_context(|| format!("writing the role of {whose}"))?;
    bind(client, Binding { name, whose, role: name, subjects }).await
}

/// A role that is there already, and who gets it.
pub(crate) struct Binding {
    pub(crate) name: &'static str,
    /// Whose it is, in messages.
    pub(crate) whose: &'static str,
    pub(crate) role: &'static str,
    pub(crate) subjects: Value,
}

/// Writes a binding; doing so again changes nothing.
pub(crate) async fn bind(client: &Client, binding: Binding) -> Result<()> {
    let Binding { name, whose, role, subjects } = binding;
    let binding = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": subjects,
    });
    let bindings = client.all::<ClusterRoleBinding>();
    let bound = bindings.patch(name, &Patch::apply(MANAGER, binding).force()).await;
    bound.with_context(|| format!("binding the role of {whose}")).map(drop)
}
