//! Roles cannot be used to climb: who writes a role or a binding must already hold the rights it gives, or hold
//! `escalate` on the role or `bind` on the role it refers to.

use api::Status;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef};

use super::{Attributes, covers};
use crate::registry::Object;
use crate::state::Operation;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) fn check(operation: &Operation, new: &dyn Object, old: Option<&dyn Object>) -> Result<(), Status> {
    if operation.resource.group != GROUP || operation.user.in_group(api::user::MASTERS) {
        return Ok(());
    }
    let Some(rbac) = operation.state.authz.rbac() else { return Ok(()) };
    let namespace = operation.info.namespace.as_str();
    let rules = |object: &dyn Object| -> Option<Vec<PolicyRule>> {
        let cluster = object.downcast_ref::<ClusterRole>().map(|role| role.rules.clone());
        let local = object.downcast_ref::<Role>().map(|role| role.rules.clone());
        cluster.or(local).map(Option::unwrap_or_default)
    };
    if let Some(wanted) = rules(new) {
        if old.and_then(rules).as_ref() == Some(&wanted)
            || may(operation, "escalate", operation.resource.plural.as_ref(), &operation.info.name)
        {
            return Ok(());
        }
        let owned = rbac.current_rules(&operation.state, &operation.user, namespace);
        return if covers(&owned, &wanted) { Ok(()) } else { Err(refusal(operation, &wanted)) };
    }
    let role = |object: &dyn Object| -> Option<RoleRef> {
        let cluster = object.downcast_ref::<ClusterRoleBinding>().map(|binding| binding.role_ref.clone());
        cluster.or_else(|| object.downcast_ref::<RoleBinding>().map(|binding| binding.role_ref.clone()))
    };
    let Some(role_ref) = role(new) else { return Ok(()) };
    let plural = if role_ref.kind == "ClusterRole" { "clusterroles" } else { "roles" };
    if may(operation, "bind", plural, &role_ref.name) {
        return Ok(());
    }
    let Some(wanted) = rbac.role_rules(&operation.state, &role_ref, namespace) else {
        return Err(Status::not_found(
            &api::GroupResource { group: GROUP.into(), resource: plural.into() },
            &role_ref.name,
        ));
    };
    let owned = rbac.current_rules(&operation.state, &operation.user, namespace);
    if covers(&owned, &wanted) { Ok(()) } else { Err(refusal(operation, &wanted)) }
}

fn may(operation: &Operation, verb: &str, plural: &str, name: &str) -> bool {
    let attributes = Attributes {
        is_resource: true,
        verb: verb.to_owned(),
        group: GROUP.to_owned(),
        resource: plural.to_owned(),
        namespace: operation.info.namespace.clone(),
        name: name.to_owned(),
        ..Default::default()
    };
    operation.state.authz.decide(&operation.state, &operation.user, &attributes).allowed
}

fn refusal(operation: &Operation, wanted: &[PolicyRule]) -> Status {
    let rules: Vec<String> = wanted
        .iter()
        .map(|rule| {
            let list = |values: &Option<Vec<String>>| values.as_ref().map(|values| format!("{values:?}"));
            let mut parts = Vec::new();
            for (name, values) in [
                ("APIGroups", list(&rule.api_groups)),
                ("Resources", list(&rule.resources)),
                ("ResourceNames", list(&rule.resource_names)),
                ("NonResourceURLs", list(&rule.non_resource_urls)),
                ("Verbs", Some(format!("{:?}", rule.verbs))),
            ] {
                parts.extend(values.map(|values| format!("{name}:{values}")));
            }
            format!("{{{}}}", parts.join(", ").replace(", \"", " \""))
        })
        .collect();
    let user = &operation.user;
    let message = format!(
        "user {} (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
        api::field::quote(&user.name),
        user.groups,
        rules.join("\n")
    );
    Status::forbidden(&operation.group_resource(), &operation.info.name, message)
}
