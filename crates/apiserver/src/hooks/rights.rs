//! Rights that a write needs beyond the right to write: nobody gives away what they do not have.

use api::Status;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace;

use super::{Hooks, Undo, Write};
use crate::authz::escalation;

/// Roles and their bindings.
pub(super) struct Escalation;

impl Hooks for Escalation {
    fn before_write<'a>(&'a self, write: Write<'a>) -> BoxFuture<'a, Result<Undo, Status>> {
        Box::pin(async move {
            let operation = write.operation;
            let asked = escalation::Write {
                authorizers: &operation.state.authz,
                user: &operation.user,
                info: &operation.info,
                resource: &operation.resource,
            };
            escalation::check(&asked, &*write.new, write.old).await?;
            Ok(Undo::default())
        })
    }
}

/// Claims of devices that others use.
pub(super) struct AdminAccess;

impl Hooks for AdminAccess {
    fn before_write<'a>(&'a self, write: Write<'a>) -> BoxFuture<'a, Result<Undo, Status>> {
        let operation = write.operation;
        let namespace = || operation.state.objects().part::<Namespace, _>("", &operation.info.namespace);
        let checked = registry::dra::admin_access::check(&operation.resource, &*write.new, write.old, namespace);
        Box::pin(std::future::ready(checked.map(|()| Undo::default())))
    }
}
