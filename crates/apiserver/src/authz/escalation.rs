//! Roles cannot be used to climb: who writes a role or a binding must already hold the rights it gives, or hold
//! `escalate` on the role or `bind` on the role it refers to.

use api::{Status, UserInfo};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef};
use registry::{Object, Resource, Verb};
use serde_json::Value;

use super::rbac::{describe, missing, quoted};
use super::{Attributes, Authorizers};
use crate::request_info::RequestInfo;

const GROUP: &str = "rbac.authorization.k8s.io";

/// A write of a role or a binding.
pub(crate) struct Write<'a> {
    pub(crate) authorizers: &'a Authorizers,
    pub(crate) user: &'a UserInfo,
    pub(crate) info: &'a RequestInfo,
    pub(crate) resource: &'a Resource,
}

/// What a write gives to somebody.
enum Gift {
    Rules { rules: Vec<PolicyRule>, aggregates: bool },
    Role(RoleRef),
}

pub(crate) async fn check(write: &Write<'_>, new: &dyn Object, old: Option<&dyn Object>) -> Result<(), Status> {
    if write.resource.group != GROUP || write.user.in_group(api::user::MASTERS) {
        return Ok(());
    }
    let Some(gift) = gift(new, old) else { return Ok(()) };
    if old.is_some_and(|old| differs_only_in_bookkeeping(new, old)) {
        return Ok(());
    }
    let name = new.meta().name.clone().unwrap_or_else(|| write.info.name.clone());
    match gift {
        Gift::Rules { rules, aggregates } => {
            if may(write, Verb::custom("escalate"), &write.resource.plural, &write.info.name).await {
                return Ok(());
            }
            confirm(write, &name, &rules)?;
            // What an aggregating role gathers is not known yet: only who has everything may make one.
            if aggregates && confirm(write, &name, &everything()).is_err() {
                let text = "must have cluster-admin privileges to use the aggregationRule";
                return Err(Status::forbidden(&write.resource.group_resource(), &name, text));
            }
            Ok(())
        }
        Gift::Role(role) => {
            let plural = if role.kind == "ClusterRole" { "clusterroles" } else { "roles" };
            if may(write, Verb::custom("bind"), plural, &role.name).await {
                return Ok(());
            }
            let Some(rules) = write.authorizers.rbac.role_rules(&role, &write.info.namespace) else {
                let resource = api::GroupResource { group: GROUP.into(), resource: plural.into() };
                return Err(Status::not_found(&resource, &role.name));
            };
            confirm(write, &name, &rules)
        }
    }
}

fn gift(new: &dyn Object, old: Option<&dyn Object>) -> Option<Gift> {
    let aggregates = |role: &ClusterRole| {
        role.aggregation_rule.as_ref().is_some_and(|rule| rule.cluster_role_selectors.iter().flatten().next().is_some())
    };
    if let Some(role) = new.downcast_ref::<ClusterRole>() {
        let before = old.and_then(|old| old.downcast_ref::<ClusterRole>()).is_some_and(aggregates);
        let rules = role.rules.clone().unwrap_or_default();
        return Some(Gift::Rules { rules, aggregates: before || aggregates(role) });
    }
    if let Some(role) = new.downcast_ref::<Role>() {
        return Some(Gift::Rules { rules: role.rules.clone().unwrap_or_default(), aggregates: false });
    }
    let cluster = new.downcast_ref::<ClusterRoleBinding>().map(|binding| binding.role_ref.clone());
    cluster.or_else(|| new.downcast_ref::<RoleBinding>().map(|binding| binding.role_ref.clone())).map(Gift::Role)
}

/// Whether an update is of the kind the garbage collector makes. Labels are not bookkeeping: they decide which roles
/// others gather.
fn differs_only_in_bookkeeping(new: &dyn Object, old: &dyn Object) -> bool {
    let rest = |object: &dyn Object| {
        let mut value = [
            object.downcast_ref::<ClusterRole>().and_then(|role| serde_json::to_value(role).ok()),
            object.downcast_ref::<Role>().and_then(|role| serde_json::to_value(role).ok()),
            object.downcast_ref::<ClusterRoleBinding>().and_then(|binding| serde_json::to_value(binding).ok()),
            object.downcast_ref::<RoleBinding>().and_then(|binding| serde_json::to_value(binding).ok()),
        ]
        .into_iter()
        .flatten()
        .next()?;
        for field in ["finalizers", "ownerReferences", "managedFields", "resourceVersion"] {
            value.get_mut("metadata").and_then(Value::as_object_mut)?.remove(field);
        }
        Some(value)
    };
    rest(new).is_some_and(|new| Some(new) == rest(old))
}

fn everything() -> [PolicyRule; 2] {
    let every = || vec!["*".to_owned()];
    [
        PolicyRule { verbs: every(), api_groups: Some(every()), resources: Some(every()), ..Default::default() },
        PolicyRule { verbs: every(), non_resource_urls: Some(every()), ..Default::default() },
    ]
}

/// Whether the user holds all of these rights, or the refusal that names the missing ones.
fn confirm(write: &Write<'_>, name: &str, wanted: &[PolicyRule]) -> Result<(), Status> {
    let user = &write.user;
    let (owned, problems) = write.authorizers.rbac.rules_for(user, &write.info.namespace);
    let refuse = |why: String| Status::forbidden(&write.resource.group_resource(), name, why);
    let missing = missing(&owned, wanted).map_err(|too_many| refuse(too_many.to_string()))?;
    if missing.is_empty() {
        return Ok(());
    }
    let mut message = format!(
        "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        api::field::quote(&user.name),
        quoted(&user.groups),
        describe(&missing).join("\n")
    );
    if !problems.is_empty() {
        message.push_str(&format!("; resolution errors: [{}]", problems.join(" ")));
    }
    Err(refuse(message))
}

async fn may(write: &Write<'_>, verb: Verb, plural: &str, name: &str) -> bool {
    let attributes = Attributes {
        is_resource: true,
        verb,
        group: GROUP.to_owned(),
        version: write.info.version.clone(),
        resource: plural.to_owned(),
        namespace: write.info.namespace.clone(),
        name: name.to_owned(),
        ..Default::default()
    };
    write.authorizers.decide(write.user, &attributes).await.allowed
}
