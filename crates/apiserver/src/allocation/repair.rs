//! Repair: brings claims and services back together after a crash between the two, as upstream's repair controllers do.
//!
//! A service whose claim is missing gets it again; a claim whose service is gone is dropped once it is old enough that no
//! write can still be on its way.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use api::cidr::Cidr;
use api::meta::Meta as _;
use api::sort::CompactCollect as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::IPAddress;
use tokio_util::sync::CancellationToken;

use super::{Taken, addresses, node_ports};
use crate::cluster::Cluster;
use crate::stamp::now;

/// How often it looks, as upstream.
const INTERVAL: Duration = Duration::from_secs(3 * 60);
/// A younger address may belong to a service that is being written.
const GRACE_SECONDS: i64 = 60;
/// A port without a service is freed when it was seen so for this many rounds.
const ROUNDS: u32 = 3;

/// Repairs now and then until `stop` fires.
pub(crate) async fn run(cluster: Arc<Cluster>, stop: CancellationToken) {
    let mut leaks = BTreeMap::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        if let Err(error) = once(&cluster, &mut leaks).await {
            tracing::warn!(%error, "repairing addresses and node ports failed");
        }
    }
}

/// One round. `leaks` remembers how often a port was seen without a service.
pub(crate) async fn once(cluster: &Arc<Cluster>, leaks: &mut BTreeMap<u16, u32>) -> Result<(), Status> {
    cluster.caches.fresh().await?;
    let services = cluster.objects().list::<Service>(None)?;
    for fix in plan(&services, &addresses::all(cluster)?, &addresses::ranges(cluster)?, now()) {
        match fix {
            Fix::Claim { service, address } => {
                tracing::warn!(%address, service = %describe(service), "cluster IP is not allocated; repairing");
                addresses::claim(cluster, address, &addresses::reference(service), false).await?;
            }
            Fix::Forget { name } => {
                tracing::warn!(address = %name, "address has no service; cleaning up");
                addresses::forget(cluster, name).await?;
            }
            Fix::Report { service, problem } => tracing::warn!(service = %describe(service), "{problem}"),
        }
    }
    let used: BTreeSet<u16> = services.iter().flat_map(|service| Taken::of(service).ports).compact_collect();
    node_ports::change(cluster, |stored| *stored = repaired(stored, &used, leaks)).await
}

fn describe(service: &Service) -> String {
    let meta = &service.metadata;
    format!("{}/{}", meta.namespace(), meta.name())
}

/// What is wrong, and what to do about it.
#[derive(Debug, PartialEq)]
enum Fix<'a> {
    Claim {
        service: &'a Service,
        address: IpAddr,
    },
    Forget {
        name: &'a str,
    },
    /// Only a person can help.
    Report {
        service: &'a Service,
        problem: String,
    },
}

fn plan<'a>(services: &'a [Service], claims: &'a [IPAddress], ranges: &[Cidr], now: Timestamp) -> Vec<Fix<'a>> {
    let by_name: HashMap<&str, &IPAddress> =
        claims.iter().filter_map(|claim| Some((claim.metadata.name.as_deref()?, claim))).collect();
    let mut fixes = Vec::new();
    // Claims that are right as they are.
    let mut right: HashSet<&str> = HashSet::new();
    for service in services {
        for address in Taken::of(service).addresses {
            if !ranges.iter().any(|range| range.contains(address)) {
                let problem = format!("cluster IP {address} is not within any service CIDR; please recreate");
                fixes.push(Fix::Report { service, problem });
                continue;
            }
            match by_name.get_key_value(address.to_string().as_str()) {
                None => fixes.push(Fix::Claim { service, address }),
                Some((name, claim)) if claim.spec.parent_ref == addresses::reference(service) => {
                    right.insert(*name);
                }
                Some((name, claim)) => {
                    let parent = &claim.spec.parent_ref;
                    let owner = services.iter().find(|other| addresses::reference(other) == *parent);
                    if owner.is_some_and(|owner| Taken::of(owner).addresses.contains(&address)) {
                        let problem =
                            format!("cluster IP {address} was assigned to multiple services; please recreate");
                        fixes.push(Fix::Report { service, problem });
                    } else {
                        // The object names a service that does not have the address.
                        right.insert(*name);
                        fixes.push(Fix::Forget { name });
                        fixes.push(Fix::Claim { service, address });
                    }
                }
            }
        }
    }
    for claim in claims.iter().filter(|claim| addresses::is_ours(claim)) {
        let Some(name) = claim.metadata.name.as_deref().filter(|name| !right.contains(name)) else { continue };
        let created = claim.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        let parent = &claim.spec.parent_ref;
        let owned = services.iter().any(|service| {
            addresses::reference(service) == *parent
                && name.parse().is_ok_and(|address| Taken::of(service).addresses.contains(&address))
        });
        if !owned && now.as_second() - created > GRACE_SECONDS {
            fixes.push(Fix::Forget { name });
        }
    }
    fixes
}

/// The set of ports as it should be: what services have, and what may be on its way to one.
fn repaired(stored: &BTreeSet<u16>, used: &BTreeSet<u16>, leaks: &mut BTreeMap<u16, u32>) -> BTreeSet<u16> {
    leaks.retain(|port, _| stored.contains(port) && !used.contains(port));
    let mut ports = used.clone();
    for port in stored.difference(used) {
        let seen = leaks.entry(*port).or_default();
        *seen += 1;
        if *seen < ROUNDS {
            ports.insert(*port);
        } else {
            tracing::warn!(port, "node port has no service; cleaning up");
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, address: &str) -> Service {
        serde_json::from_value(json!({"metadata": {"namespace": "n", "name": name}, "spec": {"clusterIPs": [address]}}))
            .unwrap()
    }

    fn claim(address: &str, service: &str, created: &str) -> IPAddress {
        serde_json::from_value(json!({
            "metadata": {"name": address, "creationTimestamp": created,
                "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
            "spec": {"parentRef": {"resource": "services", "namespace": "n", "name": service}}}))
        .unwrap()
    }

    #[test]
    fn claims_follow_services() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let (old, young) = ("2026-01-01T00:00:00Z", "2026-01-01T00:09:30Z");
        let ranges = ["10.43.0.0/16".parse().unwrap()];
        let address: IpAddr = "10.43.0.5".parse().unwrap();
        let services = [service("a", "10.43.0.5")];
        let stray = [service("a", "10.44.0.5")];
        // Claimed already; not claimed; claimed for somebody who is gone; leaked, old and young; out of range.
        assert_eq!(plan(&services, &[claim("10.43.0.5", "a", old)], &ranges, now), []);
        assert_eq!(plan(&services, &[], &ranges, now), [Fix::Claim { service: &services[0], address }]);
        assert_eq!(
            plan(&services, &[claim("10.43.0.5", "b", old)], &ranges, now),
            [Fix::Forget { name: "10.43.0.5" }, Fix::Claim { service: &services[0], address }]
        );
        assert_eq!(plan(&[], &[claim("10.43.0.5", "a", old)], &ranges, now), [Fix::Forget { name: "10.43.0.5" }]);
        assert_eq!(plan(&[], &[claim("10.43.0.5", "a", young)], &ranges, now), []);
        assert!(matches!(&plan(&stray, &[], &ranges, now)[..], [Fix::Report { .. }]));
        let both = [service("a", "10.43.0.5"), service("b", "10.43.0.5")];
        let claims = [claim("10.43.0.5", "a", old)];
        let fixes = plan(&both, &claims, &ranges, now);
        assert!(matches!(&fixes[..], [Fix::Report { service, .. }] if **service == both[1]), "{fixes:?}");
    }

    #[test]
    fn a_port_is_freed_when_nobody_claims_it_for_long_enough() {
        let (stored, used) = (BTreeSet::from([30000, 30001]), BTreeSet::from([30001, 30002]));
        let mut leaks = BTreeMap::new();
        for round in 1..=ROUNDS {
            let ports = repaired(&stored, &used, &mut leaks);
            assert_eq!(ports.contains(&30000), round < ROUNDS, "{round}");
            assert!(used.is_subset(&ports));
        }
    }
}
