//! The status of a claim: what was allocated, for whom, and how the devices fare.

use api::field::{FieldErrors, Path};
use k8s_openapi::api::resource::v1::{
    AllocatedDeviceStatus, AllocationResult, DeviceClaim, NetworkDeviceData, ResourceClaim, ResourceClaimStatus,
};

use super::{claim, rules};
use crate::core::pod_spec::placement;
use crate::unset::{items, or_empty};

const RESERVATIONS: usize = 256;
const ADDRESSES: usize = 16;
const INTERFACE_NAME: usize = 256;
const HARDWARE_ADDRESS: usize = 128;

/// Driver, pool, device and share: what tells allocated devices apart.
type DeviceId<'a> = (&'a str, &'a str, &'a str, &'a str);

fn allocated(status: &ResourceClaimStatus) -> Vec<DeviceId<'_>> {
    let devices = status.allocation.as_ref().and_then(|allocation| allocation.devices.as_ref());
    let results = devices.map(|devices| items(&devices.results)).unwrap_or_default();
    results.iter().map(|result| (&*result.driver, &*result.pool, &*result.device, or_empty(&result.share_id))).collect()
}

fn id(device: &AllocatedDeviceStatus) -> DeviceId<'_> {
    (&device.driver, &device.pool, &device.device, or_empty(&device.share_id))
}

/// Forgets how devices fared that the claim no longer has.
pub(super) fn drop_deallocated(new: &mut ResourceClaim, old: &ResourceClaim) {
    let (Some(status), Some(old)) = (&mut new.status, &old.status) else { return };
    let now: Vec<(String, String, String, String)> =
        allocated(status).into_iter().map(|(a, b, c, d)| (a.into(), b.into(), c.into(), d.into())).collect();
    let gone: Vec<DeviceId<'_>> = allocated(old)
        .into_iter()
        .filter(|old| !now.iter().any(|(a, b, c, d)| (a.as_str(), b.as_str(), c.as_str(), d.as_str()) == *old))
        .collect();
    if let Some(devices) = &mut status.devices {
        devices.retain(|device| !gone.contains(&id(device)));
        if devices.is_empty() {
            status.devices = None;
        }
    }
}

pub(super) fn validate(new: &ResourceClaim, old: &ResourceClaim) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let none = ResourceClaimStatus::default();
    let (status, old_status) = (new.status.as_ref().unwrap_or(&none), old.status.as_ref().unwrap_or(&none));
    let path = Path::new("status");
    let reserved_path = path.child("reservedFor");
    let reserved = items(&status.reserved_for);
    rules::each_once(
        &mut errors,
        &reserved_path,
        reserved,
        RESERVATIONS,
        |user| user.uid.clone(),
        |errors, path, user| {
            for (field, value) in [("resource", &user.resource), ("name", &user.name), ("uid", &user.uid)] {
                if value.is_empty() {
                    errors.required(path.child(field), "");
                }
            }
        },
    );
    let allocated = allocated(status);
    let owned = |device: &AllocatedDeviceStatus| -> [String; 4] {
        let (driver, pool, device, share) = id(device);
        [driver.to_owned(), pool.to_owned(), device.to_owned(), share.to_owned()]
    };
    let devices = items(&status.devices);
    rules::each_once(&mut errors, &path.child("devices"), devices, usize::MAX, owned, |errors, path, device| {
        validate_device(errors, path, device, &allocated);
    });
    if !reserved.is_empty() {
        let before = items(&old_status.reserved_for);
        if status.allocation.is_none() {
            errors.forbidden(reserved_path, "may not be specified when `allocated` is not set");
        } else if new.metadata.deletion_timestamp.is_some() && reserved.iter().any(|user| !before.contains(user)) {
            errors.forbidden(
                reserved_path,
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
            );
        }
    }
    let none = DeviceClaim::default();
    match (&status.allocation, &old_status.allocation) {
        (Some(_), Some(_)) => {
            errors.immutable(path.child("allocation"), &status.allocation, &old_status.allocation);
        }
        (Some(allocation), None) => {
            let claim = new.spec.devices.as_ref().unwrap_or(&none);
            validate_allocation(&mut errors, &path.child("allocation"), allocation, claim);
        }
        _ => {}
    }
    errors
}

fn validate_allocation(errors: &mut FieldErrors, path: &Path<'_>, allocation: &AllocationResult, of: &DeviceClaim) {
    if let Some(devices) = &allocation.devices {
        let path = path.child("devices");
        rules::each(
            errors,
            &path.child("results"),
            items(&devices.results),
            rules::REQUESTS,
            |errors, path, result| {
                claim::request_reference(errors, &path.child("request"), &result.request, of);
                rules::driver_name(errors, &path.child("driver"), &result.driver);
                rules::pool_name(errors, &path.child("pool"), &result.pool);
                rules::label(errors, &path.child("device"), &result.device);
                let (wanted, failed) = (items(&result.binding_conditions), items(&result.binding_failure_conditions));
                rules::binding_conditions(errors, path, wanted, failed);
                if let Some(share) = &result.share_id {
                    share_id(errors, &path.child("shareID"), share);
                }
            },
        );
        // Those of the class and those of the claim.
        let max = 2 * rules::CONFIGURATIONS;
        rules::each(errors, &path.child("config"), items(&devices.config), max, |errors, path, config| {
            match config.source.as_str() {
                "FromClaim" | "FromClass" => {}
                "" => errors.required(path.child("source"), ""),
                other => errors.not_supported(path.child("source"), other, &["FromClaim", "FromClass"]),
            }
            claim::request_references(errors, &path.child("requests"), items(&config.requests), of);
            rules::configuration(errors, path, config.opaque.as_ref());
        });
    }
    if let Some(selector) = &allocation.node_selector {
        placement::node_selector(errors, &path.child("nodeSelector"), selector);
    }
}

fn share_id(errors: &mut FieldErrors, path: &Path<'_>, id: &str) {
    match uuid::Uuid::try_parse(id) {
        Err(_) => errors.invalid(path, id, format!("error validating uid: invalid UUID length: {}", id.len())),
        Ok(parsed) if parsed.to_string() != id => errors.invalid(
            path,
            id,
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters",
        ),
        Ok(_) => {}
    }
}

fn validate_device(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    device: &AllocatedDeviceStatus,
    allocated: &[DeviceId<'_>],
) {
    rules::driver_name(errors, &path.child("driver"), &device.driver);
    rules::pool_name(errors, &path.child("pool"), &device.pool);
    rules::label(errors, &path.child("device"), &device.device);
    if let Some(share) = &device.share_id {
        share_id(errors, &path.child("shareID"), share);
    }
    if !allocated.contains(&id(device)) {
        let shown = format!("{}/{}/{}", device.driver, device.pool, device.device);
        errors.invalid(path, shown, "must be an allocated device in the claim");
    }
    let conditions = items(&device.conditions);
    if conditions.len() > rules::CONDITIONS {
        errors.too_many(path.child("conditions"), conditions.len(), rules::CONDITIONS);
    }
    crate::metadata::conditions(errors, &path.child("conditions"), conditions);
    if let Some(data) = &device.data {
        rules::raw(errors, &path.child("data"), data);
    }
    if let Some(network) = &device.network_data {
        validate_network(errors, &path.child("networkData"), network);
    }
}

fn validate_network(errors: &mut FieldErrors, path: &Path<'_>, network: &NetworkDeviceData) {
    if or_empty(&network.interface_name).len() > INTERFACE_NAME {
        errors.too_long(path.child("interfaceName"), INTERFACE_NAME);
    }
    if or_empty(&network.hardware_address).len() > HARDWARE_ADDRESS {
        errors.too_long(path.child("hardwareAddress"), HARDWARE_ADDRESS);
    }
    let addresses = items(&network.ips);
    rules::each_once(errors, &path.child("ips"), addresses, ADDRESSES, String::clone, |errors, path, address| {
        let parts = address.split_once('/');
        let valid = parts.is_some_and(|(ip, bits)| {
            ip.parse::<std::net::IpAddr>()
                .is_ok_and(|ip| bits.parse::<u8>().is_ok_and(|bits| bits <= if ip.is_ipv4() { 32 } else { 128 }))
        });
        if !valid {
            errors.invalid(path, address, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)");
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(status: Value) -> ResourceClaim {
        serde_json::from_value(json!({"metadata": {"name": "c"}, "status": status,
            "spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu"}}]}}}))
        .unwrap()
    }

    fn allocation(device: &str) -> Value {
        json!({"devices": {"results": [{"request": "a", "driver": "d.example.com", "pool": "p", "device": device}]}})
    }

    #[test]
    fn an_allocation_stands_once_it_is_made() {
        let pending = claim(json!({}));
        let user = json!([{"resource": "pods", "name": "p", "uid": "1"}]);
        for (old, new, expected) in [
            (&pending, json!({"allocation": allocation("gpu-0"), "reservedFor": user}), ""),
            (&pending, json!({"reservedFor": user}), "status.reservedFor: Forbidden"),
            (
                &claim(json!({"allocation": allocation("gpu-0")})),
                json!({"allocation": allocation("gpu-1")}),
                "status.allocation: Invalid value",
            ),
            (&pending, json!({"allocation": allocation("GPU")}), "status.allocation.devices.results[0].device"),
            (
                &pending,
                json!({"allocation": allocation("gpu-0"), "devices": [{"driver": "d.example.com", "pool": "p", "device": "gpu-9"}]}),
                "must be an allocated device in the claim",
            ),
        ] {
            let errors = validate(&claim(new), old);
            let text = errors.to_string();
            assert_eq!(expected.is_empty(), errors.is_empty(), "{text}");
            assert!(errors.is_empty() || text.contains(expected), "{text}");
        }
    }

    #[test]
    fn the_state_of_devices_goes_with_their_allocation() {
        let device = json!([{"driver": "d.example.com", "pool": "p", "device": "gpu-0"}]);
        let old = claim(json!({"allocation": allocation("gpu-0"), "devices": device}));
        let mut new = claim(json!({"devices": device}));
        drop_deallocated(&mut new, &old);
        assert_eq!(new.status.unwrap().devices, None);
    }
}
