//! Rights that a write needs beyond the right to write: nobody gives away what they do not have.

use std::collections::{BTreeMap, BTreeSet};

use api::Status;
use api::field::FieldErrors;
use api::meta::Meta as _;
use api::sort::CompactCollect as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ParamKind, ParamRef, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim, ResourceClaimStatus};
use registry::unset::items;
use registry::{Object, Verb};
use serde::Serialize;
use serde_json::Value;

use super::{Hooks, Undo, Write};
use crate::authz::{Attributes, escalation};
use crate::state::Operation;

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

/// Claims of devices that others use, and what is written into their status: who gets a device is for those who bind claims
/// to say, and how a device is doing for its driver.
pub(super) struct Claims;

impl Hooks for Claims {
    fn before_write<'a>(&'a self, write: Write<'a>) -> BoxFuture<'a, Result<Undo, Status>> {
        Box::pin(async move {
            let operation = write.operation;
            let (new, old): (&dyn Object, Option<&dyn Object>) = (&*write.new, write.old);
            let namespace = || operation.state.objects().metadata::<Namespace>("", &operation.info.namespace);
            registry::dra::admin_access::check(&operation.resource, new, old, namespace)?;
            let claims =
                new.downcast_ref::<ResourceClaim>().zip(old.and_then(|old| old.downcast_ref::<ResourceClaim>()));
            if let Some((new, old)) = claims.filter(|_| operation.info.subresource == "status") {
                let nothing = ResourceClaimStatus::default();
                let statuses = [new, old].map(|claim| claim.status.as_ref().unwrap_or(&nothing));
                check_status(operation, statuses[0], statuses[1]).await?;
            }
            Ok(Undo::default())
        })
    }
}

/// As upstream with `DRAResourceClaimGranularStatusAuthorization`, v1.36: `resourceclaims/binding`, and for each driver
/// `resourceclaims/driver` on any node, or on that of the service account which asks.
async fn check_status(
    operation: &Operation,
    new: &ResourceClaimStatus,
    old: &ResourceClaimStatus,
) -> Result<(), Status> {
    let verb = operation.info.verb.as_str();
    let mut errors = FieldErrors::default();
    let is_rebound = !alike(&new.allocation, &old.allocation) || !alike(&new.reserved_for, &old.reserved_for);
    if is_rebound && !may(operation, "binding", operation.info.verb.clone(), ("", "")).await {
        let what = "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\"";
        errors.forbidden("status.allocation", format!("{what}, verb={verb:?} permission"));
    }
    // What is said of devices goes with the allocation.
    for driver in changed_drivers(new, old).into_iter().filter(|_| new.allocation.is_some()) {
        let ways = ["associated-node", "arbitrary-node"].into_iter().skip(usize::from(!is_on_its_node(operation, new)));
        let mut is_allowed = false;
        for way in ways {
            let verb = Verb::Custom(format!("{way}:{verb}").into());
            is_allowed |= may(operation, "driver", verb, (&operation.info.namespace, driver)).await;
        }
        if !is_allowed {
            let what =
                format!("changing status.devices of driver {driver:?} requires resource=\"resourceclaims/driver\"");
            errors.forbidden("status.devices", format!("{what}, verb=\"arbitrary-node:{verb}\" permission"));
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&operation.resource.group_kind(), &operation.info.name, errors))
}

/// Whether the user has a right to something that is no request of its own.
async fn may(operation: &Operation, subresource: &str, verb: Verb, (namespace, name): (&str, &str)) -> bool {
    let attributes = Attributes {
        verb,
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..(&operation.info).into()
    };
    operation.state.authz.decide(&operation.user, &attributes).await.allowed
}

/// Whether two values are the same to upstream, where a list that is empty is one that is not there: clients that write back
/// what they have read leave such lists out.
fn alike<T: PartialEq + Serialize>(one: &T, other: &T) -> bool {
    fn plain(value: Value) -> Value {
        let is_there = |value: &Value| !value.is_null() && value.as_array().is_none_or(|items| !items.is_empty());
        match value {
            Value::Object(fields) => {
                let fields = fields.into_iter().filter(|(_, value)| is_there(value));
                Value::Object(fields.map(|(name, value)| (name, plain(value))).collect())
            }
            Value::Array(items) if items.is_empty() => Value::Null,
            Value::Array(items) => Value::Array(items.into_iter().map(plain).collect()),
            other => other,
        }
    }
    let written = |value: &T| serde_json::to_value(value).ok().map(plain);
    one == other || written(one).is_some_and(|one| Some(one) == written(other))
}

/// The drivers of devices of which something else is said than before.
fn changed_drivers<'s>(new: &'s ResourceClaimStatus, old: &'s ResourceClaimStatus) -> BTreeSet<&'s str> {
    let key = |device: &'s AllocatedDeviceStatus| (&device.driver, &device.pool, &device.device, &device.share_id);
    let by_key = |status: &'s ResourceClaimStatus| -> BTreeMap<_, &'s AllocatedDeviceStatus> {
        items(&status.devices).iter().map(|device| (key(device), device)).compact_collect()
    };
    let (new, old) = (by_key(new), by_key(old));
    let changed = new.iter().filter(|(key, device)| !old.get(*key).is_some_and(|old| alike(*old, **device)));
    let gone = old.iter().filter(|(key, _)| !new.contains_key(*key));
    changed.chain(gone).map(|(_, device)| device.driver.as_str()).compact_collect()
}

/// Whether a service account asks whose pod runs on the one node that the claim's devices are on.
fn is_on_its_node(operation: &Operation, status: &ResourceClaimStatus) -> bool {
    let selector = status.allocation.as_ref().and_then(|allocation| allocation.node_selector.as_ref());
    let [term] = selector.map(|selector| selector.node_selector_terms.as_slice()).unwrap_or_default() else {
        return false;
    };
    let ([], [field]) = (items(&term.match_expressions), items(&term.match_fields)) else { return false };
    let ("metadata.name", "In", [node]) = (&*field.key, &*field.operator, items(&field.values)) else { return false };
    let own = operation.user.extra.get("authentication.kubernetes.io/node-name");
    operation.user.as_service_account().is_some()
        && own.is_some_and(|own| matches!(own.as_slice(), [own] if own == node))
}

/// The parameters of admission policies. Expressions see them, and their messages can tell them to whoever writes anything:
/// who names parameters must be able to read them.
pub(super) struct Parameters;

impl Hooks for Parameters {
    fn before_write<'a>(&'a self, write: Write<'a>) -> BoxFuture<'a, Result<Undo, Status>> {
        Box::pin(async move {
            let operation = write.operation;
            let (new, old): (&dyn Object, Option<&dyn Object>) = (&*write.new, write.old);
            if operation.user.in_group(api::user::MASTERS) {
                return Ok(Undo::default());
            }
            let (field, asked) = match (param_kind(new), binding(operation, new)?) {
                (Some(kind), _) if old.and_then(param_kind) != Some(kind) => {
                    let every = || "*".to_owned();
                    ("paramKind", Attributes { name: every(), namespace: every(), ..read(operation, Some(kind)) })
                }
                (None, Some(found)) if old.and_then(bound) != bound(new) => {
                    let (name, namespace) = (found.1.name.clone(), found.1.namespace.clone());
                    let asked = read(operation, found.0.as_ref());
                    let verb = if name.as_ref().is_none_or(String::is_empty) { Verb::List } else { Verb::Get };
                    let (name, namespace) = (name.unwrap_or_default(), namespace.unwrap_or_default());
                    ("paramRef", Attributes { verb, name, namespace, ..asked })
                }
                _ => return Ok(Undo::default()),
            };
            if operation.state.authz.decide(&operation.user, &asked).await.allowed {
                return Ok(Undo::default());
            }
            let (user, verb) = (api::field::quote(&operation.user.name), &asked.verb);
            let what = match field {
                "paramKind" => "all objects of the referenced paramKind",
                _ => "the object referenced by paramRef",
            };
            let mut errors = FieldErrors::default();
            errors.forbidden(
                format!("spec.{field}"),
                format!("user {user} does not have \"{verb}\" permission on {what}"),
            );
            let name = new.meta().name().to_owned();
            Err(Status::invalid(&operation.resource.group_kind(), &name, errors))
        })
    }
}

fn param_kind(object: &dyn Object) -> Option<&ParamKind> {
    let validating = object.downcast_ref::<ValidatingAdmissionPolicy>().and_then(|policy| policy.spec.as_ref());
    let mutating = object.downcast_ref::<MutatingAdmissionPolicy>().and_then(|policy| policy.spec.as_ref());
    let validating = validating.and_then(|spec| spec.param_kind.as_ref());
    validating.or_else(|| mutating.and_then(|spec| spec.param_kind.as_ref()))
}

/// The policy that a binding names, and its parameters.
fn bound(object: &dyn Object) -> Option<(&str, &ParamRef)> {
    if let Some(binding) = object.downcast_ref::<ValidatingAdmissionPolicyBinding>() {
        return Some((&binding.spec.policy_name, binding.spec.param_ref.as_ref()?));
    }
    let spec = object.downcast_ref::<MutatingAdmissionPolicyBinding>()?.spec.as_ref()?;
    Some((spec.policy_name.as_deref().unwrap_or_default(), spec.param_ref.as_ref()?))
}

/// The kind of the parameters that a binding names, if its policy is there and has one.
fn binding<'o>(
    operation: &Operation,
    object: &'o dyn Object,
) -> Result<Option<(Option<ParamKind>, &'o ParamRef)>, Status> {
    let Some((policy, reference)) = bound(object) else { return Ok(None) };
    let objects = operation.state.objects();
    let kind = match object.downcast_ref::<ValidatingAdmissionPolicyBinding>() {
        Some(_) => objects.get::<ValidatingAdmissionPolicy>("", policy)?.and_then(|found| param_kind(&*found).cloned()),
        None => objects.get::<MutatingAdmissionPolicy>("", policy)?.and_then(|found| param_kind(&*found).cloned()),
    };
    Ok(Some((kind, reference)))
}

/// Reading objects of this kind; of every kind where it is not known which one it is.
fn read(operation: &Operation, kind: Option<&ParamKind>) -> Attributes {
    let every = || "*".to_owned();
    let api_version = kind.and_then(|kind| kind.api_version.as_deref());
    let (group, version) = match api_version.map(|text| text.split_once('/').unwrap_or(("", text))) {
        Some((group, version)) => (group.to_owned(), version.to_owned()),
        None => (every(), every()),
    };
    let name = kind.and_then(|kind| kind.kind.as_deref()).unwrap_or_default();
    let table = operation.state.registry.table();
    let row = table.rows().iter().find(|row| *row.group == *group && *row.version == *version && *row.kind == *name);
    let resource = row.map_or_else(every, |row| row.plural.to_string());
    Attributes { is_resource: true, verb: Verb::Get, group, version, resource, ..Attributes::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_clients_leave_out_is_no_change() {
        let status =
            |devices: Value| -> ResourceClaimStatus { serde_json::from_value(json!({"devices": devices})).unwrap() };
        let device = |pool: &str| json!({"driver": "a.example.com", "pool": pool, "device": "d"});
        let mut listed = device("p");
        listed["conditions"] = json!([]);
        let mut told = device("p");
        told["data"] = json!({"a": 1});
        for (new, old, is_changed) in [
            (json!([device("p")]), json!([device("p")]), false),
            (json!([device("p")]), json!([listed]), false),
            (json!([told]), json!([device("p")]), true),
            (json!([device("q")]), json!([device("p")]), true),
            (json!([]), json!([device("p")]), true),
        ] {
            assert_eq!(!changed_drivers(&status(new.clone()), &status(old)).is_empty(), is_changed, "{new}");
        }
        assert!(alike(&None::<Vec<u8>>, &Some(Vec::new())) && !alike(&None, &Some(vec![0])));
    }
}
