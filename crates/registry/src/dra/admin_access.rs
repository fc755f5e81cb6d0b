//! Administrative access to devices that others use: only in namespaces that are labelled for it.

use api::Status;
use api::field::FieldErrors;
use api::meta::Meta as _;
use k8s_openapi::api::resource::v1::{DeviceClaim, ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::unset::items;
use crate::{Object, Resource};

const LABEL: &str = "resource.kubernetes.io/admin-access";

/// Refuses a claim, a template or an allocation with such access where the namespace does not allow it. The namespace is
/// only read when it is asked for.
pub fn check<E: Into<Status>>(
    resource: &Resource,
    new: &dyn Object,
    old: Option<&dyn Object>,
    namespace: impl FnOnce() -> Result<Option<ObjectMeta>, E>,
) -> Result<(), Status> {
    let Some(path) = wanted(new, old) else { return Ok(()) };
    let namespace = namespace().map_err(Into::into)?;
    let labels = namespace.and_then(|namespace| namespace.labels).unwrap_or_default();
    if labels.get(LABEL).is_some_and(|value| value == "true") {
        return Ok(());
    }
    let mut errors = FieldErrors::default();
    errors.forbidden(
        path,
        format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace"),
    );
    let name = new.meta().name();
    Err(Status::invalid(&resource.group_kind(), name, errors))
}

/// The field that asks for it. Specs never change and an allocation stands, so only what is new is looked at.
fn wanted(new: &dyn Object, old: Option<&dyn Object>) -> Option<String> {
    let request = |claim: &Option<DeviceClaim>| {
        let requests = claim.as_ref().map(|claim| items(&claim.requests)).unwrap_or_default();
        let admin =
            requests.iter().position(|request| request.exactly.as_ref().is_some_and(|e| e.admin_access == Some(true)));
        admin.map(|at| format!("spec.devices.requests[{at}].adminAccess"))
    };
    if let Some(template) = new.downcast_ref::<ResourceClaimTemplate>() {
        return old.is_none().then(|| request(&template.spec.spec.devices))?;
    }
    let claim = new.downcast_ref::<ResourceClaim>()?;
    let Some(old) = old else { return request(&claim.spec.devices) };
    let granted = |claim: &ResourceClaim| {
        let devices = claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref()?;
        items(&devices.results).iter().position(|result| result.admin_access == Some(true))
    };
    if old.downcast_ref::<ResourceClaim>().and_then(granted).is_some() {
        return None;
    }
    granted(claim).map(|at| format!("status.allocation.devices.results[{at}].adminAccess"))
}
