//! References into other namespaces: only where a ReferenceGrant of that namespace allows them.

use crate::gateway_api::GROUP;
use crate::world::World;

/// Who refers to what.
pub(super) struct Reference<'a> {
    pub(super) from_kind: &'a str,
    pub(super) from_namespace: &'a str,
    pub(super) to_group: &'a str,
    pub(super) to_kind: &'a str,
    pub(super) to_namespace: &'a str,
    pub(super) to_name: &'a str,
}

pub(super) fn is_permitted(world: &World, reference: &Reference<'_>) -> bool {
    if reference.from_namespace == reference.to_namespace {
        return true;
    }
    let of_namespace =
        world.grants.values().filter(|grant| grant.metadata.namespace.as_deref() == Some(reference.to_namespace));
    of_namespace.into_iter().any(|grant| {
        let from = grant.spec.from.iter().any(|from| {
            from.group == GROUP && from.kind == reference.from_kind && from.namespace == reference.from_namespace
        });
        let to = grant.spec.to.iter().any(|to| {
            to.group == reference.to_group
                && to.kind == reference.to_kind
                && to.name.as_deref().is_none_or(|name| name.is_empty() || name == reference.to_name)
        });
        from && to
    })
}
