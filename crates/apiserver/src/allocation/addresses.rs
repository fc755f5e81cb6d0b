//! Cluster IPs: an address is taken when its `IPAddress` object exists.

use std::net::IpAddr;
use std::sync::Arc;

use api::Status;
use api::cidr::Cidr;
use api::field::{FieldError, FieldErrors};
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IPAddress, IPAddressSpec, ParentReference, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use registry::Resource;
use registry::unset::items;

use super::plan::{self, Addresses};
use super::{Taken, range};
use crate::cluster::Cluster;
use crate::watch_cache::Unreadable;

const PREFIX: &str = "ipaddresses";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// The manager's name, as upstream's.
const ALLOCATOR: &str = "ipallocator.k8s.io";

/// Claims what the service needs and writes it into the spec.
pub(super) async fn fill(
    cluster: &Arc<Cluster>,
    service: &mut Service,
    held: &Taken,
    dry_run: bool,
    taken: &mut Taken,
    errors: &mut FieldErrors,
) -> Result<(), Status> {
    let parent = reference(service);
    let Some(spec) = service.spec.as_mut() else { return Ok(()) };
    let ranges = ranges(cluster)?;
    let Addresses::Wanted { families, given } = plan::addresses(spec, &cluster.config.service_cluster_ip_ranges) else {
        return Ok(());
    };
    let has_both = ["IPv4", "IPv6"].iter().all(|family| ranges.iter().any(|range| range::family(range) == *family));
    if spec.ip_family_policy.as_deref() == Some("RequireDualStack") && !has_both {
        let detail = "this cluster is not configured for dual-stack services";
        errors.invalid("spec.ipFamilyPolicy", "RequireDualStack", detail);
        return Ok(());
    }
    let mut addresses: Vec<String> = Vec::new();
    for (index, family) in families.iter().enumerate() {
        let ranges: Vec<Cidr> = ranges.iter().filter(|range| range::family(range) == family).copied().collect();
        if ranges.is_empty() {
            if spec.ip_family_policy.as_deref() == Some("RequireDualStack") || index == 0 {
                errors.invalid(format!("spec.ipFamilies[{index}]"), family, "not configured on this cluster");
            }
            continue;
        }
        let Some(wanted) = given.get(index) else {
            match claim_any(cluster, &ranges, &parent, dry_run).await? {
                Some(address) => {
                    taken.addresses.push(address);
                    addresses.push(address.to_string());
                    continue;
                }
                None => {
                    let message = "failed to allocate a serviceIP: range is full";
                    errors.push(FieldError::internal("spec.clusterIPs", message));
                    return Ok(());
                }
            }
        };
        let address = match registry::address::parse_ip(wanted) {
            Ok(address) => address,
            Err(error) => match wanted.parse::<IpAddr>() {
                // Stored when more was accepted.
                Ok(address) if held.addresses.contains(&address) => address,
                _ => {
                    errors.invalid(format!("spec.clusterIPs[{index}]"), wanted, error.to_string());
                    return Ok(());
                }
            },
        };
        if !held.addresses.contains(&address) {
            let problem = if !ranges.iter().any(|range| range.contains(address)) {
                let valid: Vec<String> = ranges.iter().map(ToString::to_string).collect();
                let valid = valid.join(",");
                Some(format!(
                    "the provided IP ({address}) is not in the valid range. The range of valid IPs is {valid}"
                ))
            } else if !claim(cluster, address, &parent, dry_run).await? {
                Some("provided IP is already allocated".to_owned())
            } else {
                taken.addresses.push(address);
                None
            };
            if let Some(problem) = problem {
                errors.invalid("spec.clusterIPs", &given, format!("failed to allocate IP {address}: {problem}"));
                return Ok(());
            }
        }
        addresses.push(wanted.clone());
    }
    spec.cluster_ip = addresses.first().cloned();
    spec.cluster_ips = Some(addresses);
    Ok(())
}

/// All ranges that are ready: those of the flags first, then those of `ServiceCIDR` objects by age.
pub(super) fn ranges(cluster: &Cluster) -> Result<Vec<Cidr>, Unreadable> {
    let mut objects = cluster.objects().list::<ServiceCIDR>(None)?;
    objects.retain(|object| {
        let conditions = object.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
        let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        ready && object.metadata.deletion_timestamp.is_none()
    });
    objects.compact_sort_by_key(|object| object.metadata.creation_timestamp.as_ref().map(|time| time.0));
    let mut ranges = cluster.config.service_cluster_ip_ranges.clone();
    for text in objects.iter().filter_map(|object| object.spec.as_ref()).flat_map(|spec| items(&spec.cidrs)) {
        if let Ok(range) = text.parse::<Cidr>()
            && !ranges.contains(&range)
        {
            ranges.push(range);
        }
    }
    Ok(ranges)
}

async fn claim_any(
    cluster: &Arc<Cluster>,
    ranges: &[Cidr],
    parent: &ParentReference,
    dry_run: bool,
) -> Result<Option<IpAddr>, Status> {
    for address in ranges.iter().flat_map(|range| range::candidates(*range)) {
        if claim(cluster, address, parent, dry_run).await? {
            return Ok(Some(address));
        }
    }
    Ok(None)
}

/// Takes an address for a service; false if somebody has it.
pub(super) async fn claim(
    cluster: &Arc<Cluster>,
    address: IpAddr,
    parent: &ParentReference,
    dry_run: bool,
) -> Result<bool, Status> {
    let (name, resource) = (address.to_string(), resource(cluster)?);
    // The cache may be behind, so what it does not know may still be taken; what it knows is.
    if cluster.cache(&resource)?.get(&name).is_some() {
        return Ok(false);
    }
    if dry_run {
        return Ok(true);
    }
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let labels = [(FAMILY, family), (MANAGED_BY, ALLOCATOR)];
    let object = IPAddress {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()),
            ..Default::default()
        },
        spec: IPAddressSpec { parent_ref: parent.clone() },
    };
    match cluster.own()?.create(&resource, Box::new(object)).await {
        Ok(()) => Ok(true),
        Err(status) if status.is_already_exists() => Ok(false),
        Err(status) => Err(status),
    }
}

/// Gives an address back, unless it is another's by now.
pub(super) async fn release(cluster: &Arc<Cluster>, service: &Service, address: IpAddr) -> Result<(), Status> {
    let name = address.to_string();
    // Created a moment ago, perhaps: the cache has to show it.
    cluster.caches.fresh().await?;
    let object = cluster.objects().get::<IPAddress>("", &name)?;
    if object.is_none_or(|object| object.spec.parent_ref != reference(service)) {
        return Ok(());
    }
    forget(cluster, &name).await
}

/// Deletes the object of an address.
pub(super) async fn forget(cluster: &Arc<Cluster>, name: &str) -> Result<(), Status> {
    match cluster.own()?.delete(&resource(cluster)?, "", name).await {
        Err(status) if !status.is_not_found() => Err(status),
        _ => Ok(()),
    }
}

/// Whether an address is given out by us, as opposed to one that somebody reserved by hand.
pub(super) fn is_ours(address: &IPAddress) -> bool {
    let labels = address.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|manager| manager == ALLOCATOR)
}

/// All addresses that are taken.
pub(super) fn all(cluster: &Cluster) -> Result<Vec<IPAddress>, Unreadable> {
    cluster.objects().list(None)
}

pub(super) fn reference(service: &Service) -> ParentReference {
    ParentReference {
        group: None,
        resource: "services".to_owned(),
        namespace: service.metadata.namespace.clone(),
        name: service.metadata.name().to_owned(),
    }
}

fn resource(cluster: &Cluster) -> Result<Arc<Resource>, Status> {
    let resource = cluster.registry.find_any("networking.k8s.io", PREFIX);
    resource.ok_or_else(|| Status::internal("ipaddresses.networking.k8s.io are not served"))
}
