//! Node ports: one set of those that are taken, kept in the store under upstream's key and in its form.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::Status;
use api::field::{FieldError, FieldErrors};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use k8s_openapi::api::core::v1::Service;
use serde::{Deserialize, Serialize};
use store::{Revision, StoreError};

use super::{Taken, plan};
use crate::cluster::Cluster;

const KEY: &str = "/registry/ranges/servicenodeports";
/// Each lost race means that another service got its ports.
const ATTEMPTS: usize = 200;

type Ports = BTreeSet<u16>;

/// Claims what the service needs and writes it into the spec.
pub(super) async fn fill(
    cluster: &Arc<Cluster>,
    service: &mut Service,
    held: &Taken,
    dry_run: bool,
    taken: &mut Taken,
    errors: &mut FieldErrors,
) -> Result<(), Status> {
    let Some(spec) = service.spec.as_mut() else { return Ok(()) };
    let (_, local) = plan::wants_node_ports(spec);
    if !local {
        spec.health_check_node_port = None;
    }
    let range = cluster.config.service_node_port_range;
    let before = spec.clone();
    let mut outcome = Ok(Vec::new());
    change(cluster, |used| {
        // Each attempt starts from what the client sent.
        *spec = before.clone();
        let mut wanted = used.clone();
        outcome = choose(spec, held, range, &mut wanted);
        if outcome.is_ok() && !dry_run {
            *used = wanted;
        }
    })
    .await?;
    match outcome {
        Ok(ports) => taken.ports.extend(ports),
        Err(error) => errors.push(error),
    }
    Ok(())
}

/// Picks the ports a spec needs out of those that are free. Returns the new ones.
fn choose(
    spec: &mut k8s_openapi::api::core::v1::ServiceSpec,
    held: &Taken,
    range: (u16, u16),
    used: &mut Ports,
) -> Result<Vec<u16>, FieldError> {
    let (wants, local) = plan::wants_node_ports(spec);
    let mut taken: Vec<u16> = Vec::new();
    let number = |port: Option<i32>| port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    let ports = spec.ports.iter().flatten().enumerate();
    let ports = ports.filter_map(|(at, port)| Some((format!("spec.ports[{at}].nodePort"), number(port.node_port)?)));
    // Nodes answer there as on any other port of the service, and it is given back with them.
    let health = number(spec.health_check_node_port).filter(|_| local);
    let health = health.map(|port| ("spec.healthCheckNodePort".to_owned(), port));
    let given: Vec<(String, u16)> = ports.chain(health).collect();
    // Chosen ones first: a free one picked for a neighbour must not be in the way.
    for (path, given) in given {
        // One number may serve several protocols of the same service.
        if held.ports.contains(&given) || taken.contains(&given) {
            continue;
        }
        if !(range.0..=range.1).contains(&given) {
            let (low, high) = range;
            let rule = format!("provided port is not in the valid range. The range of valid ports is {low}-{high}");
            return Err(FieldError::invalid(path, given, rule));
        }
        if !used.insert(given) {
            return Err(FieldError::invalid(path, given, "provided port is already allocated"));
        }
        taken.push(given);
    }
    if wants {
        for (index, port) in spec.ports.iter_mut().flatten().enumerate() {
            if port.node_port.unwrap_or(0) != 0 {
                continue;
            }
            let Some(free) = free(range, used) else {
                let message = "failed to allocate a nodePort: range is full";
                return Err(FieldError::internal(format!("spec.ports[{index}].nodePort"), message));
            };
            taken.push(free);
            port.node_port = Some(i32::from(free));
        }
    }
    if local && spec.health_check_node_port.unwrap_or(0) == 0 {
        let Some(free) = free(range, used) else {
            let message = "failed to allocate a HealthCheck NodePort: range is full";
            return Err(FieldError::internal("spec.healthCheckNodePort", message));
        };
        taken.push(free);
        spec.health_check_node_port = Some(i32::from(free));
    }
    Ok(taken)
}

fn free((low, high): (u16, u16), used: &mut Ports) -> Option<u16> {
    let count = u32::from(high - low) + 1;
    let start = rand::random_range(0..count);
    (0..count).map(|step| low + ((start + step) % count) as u16).find(|port| used.insert(*port))
}

pub(super) async fn release(cluster: &Arc<Cluster>, ports: &[u16]) -> Result<(), Status> {
    change(cluster, |used| used.retain(|port| !ports.contains(port))).await
}

/// Reads the set, lets `edit` change it, and writes it back if nobody else did meanwhile.
pub(super) async fn change(cluster: &Arc<Cluster>, mut edit: impl FnMut(&mut Ports) + Send) -> Result<(), Status> {
    let store = cluster.store();
    for _ in 0..ATTEMPTS {
        let found = store.get(KEY).await.map_err(crate::status::from_store)?;
        let before = found.as_ref().map(|kv| decode(&kv.value)).transpose()?.unwrap_or_default();
        let mut after = before.clone();
        edit(&mut after);
        if after == before {
            return Ok(());
        }
        let value = encode(&after, cluster.config.service_node_port_range)?;
        let outcome = match &found {
            Some(kv) => store.update(KEY, value, Revision(kv.mod_revision.0)).await,
            None => store.create(KEY, value).await,
        };
        match outcome {
            Ok(_) => return Ok(()),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(crate::status::from_store(error)),
        }
    }
    Err(Status::internal("node ports are changed too fast by others"))
}

/// Upstream's `RangeAllocation`, which is never served.
#[derive(Serialize, Deserialize)]
struct RangeAllocation {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    /// Older versions of ours wrote none, and the bytes in another order.
    #[serde(default)]
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// `30000-32767`.
    range: String,
    /// A number with a bit for each port, the lowest for the first of the range, as Go's `big.Int` gives its bytes: the highest
    /// first, without leading zeros; base64.
    #[serde(default)]
    data: Option<String>,
}

/// How many bytes have a bit for every port.
fn width(low: u16, high: u16) -> usize {
    usize::from(high.saturating_sub(low)) / 8 + 1
}

fn encode(ports: &Ports, (low, high): (u16, u16)) -> Result<Bytes, Status> {
    let mut bits = vec![0u8; width(low, high)];
    for port in ports.range(low..=high) {
        let at = usize::from(port - low);
        bits[at / 8] |= 1 << (at % 8);
    }
    bits.truncate(bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    bits.reverse();
    let value = RangeAllocation {
        kind: "RangeAllocation".to_owned(),
        api_version: "v1".to_owned(),
        metadata: Some(serde_json::Map::new()),
        range: format!("{low}-{high}"),
        data: Some(STANDARD.encode(bits)),
    };
    serde_json::to_vec(&value).map(Bytes::from).map_err(Status::internal)
}

fn decode(value: &[u8]) -> Result<Ports, Status> {
    let damaged = || Status::internal(format!("{KEY} is not a set of ports"));
    let value: RangeAllocation = serde_json::from_slice(value).map_err(|_| damaged())?;
    let (low, high) = value.range.split_once('-').ok_or_else(damaged)?;
    let (low, high): (u16, u16) = (low.parse().map_err(|_| damaged())?, high.parse().map_err(|_| damaged())?);
    let mut bits = STANDARD.decode(value.data.unwrap_or_default()).map_err(|_| damaged())?;
    // Older versions of ours wrote all bytes, the lowest first.
    let is_old = value.metadata.is_none() && bits.len() == width(low, high);
    if !is_old {
        bits.reverse();
    }
    let set = bits
        .iter()
        .enumerate()
        .flat_map(|(at, byte)| (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at * 8 + bit));
    Ok(set.filter_map(|at| low.checked_add(u16::try_from(at).ok()?)).collect())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};

    use super::*;

    #[test]
    fn sets_of_ports_survive_encoding() {
        let range = (30000, 32767);
        for ports in [vec![], vec![30000], vec![30000, 30007, 30008, 32767]] {
            let ports: Ports = ports.into_iter().collect();
            assert_eq!(decode(&encode(&ports, range).unwrap()).unwrap(), ports);
        }
        // As upstream writes it, and as earlier versions did.
        let read = |metadata: &str, data: &[u8]| {
            let data = STANDARD.encode(data);
            let stored = format!(
                r#"{{"kind":"RangeAllocation","apiVersion":"v1",{metadata}"range":"30000-32767","data":"{data}"}}"#
            );
            decode(stored.as_bytes()).unwrap().into_iter().collect::<Vec<u16>>()
        };
        assert_eq!(read(r#""metadata":{},"#, &[0b1, 0b1000_0001]), [30000, 30007, 30008]);
        let mut old = [0; 346];
        (old[0], old[1], old[345]) = (1, 1, 0b1000_0000);
        assert_eq!(read("", &old), [30000, 30008, 32767]);
        let mut full = [0; 346];
        (full[0], full[345]) = (0b1000_0000, 1);
        assert_eq!(read(r#""metadata":{},"#, &full), [30000, 32767]);
        assert_eq!(
            decode(br#"{"kind":"RangeAllocation","apiVersion":"v1","range":"30000-32767"}"#).unwrap(),
            Ports::new()
        );
    }

    /// Given back with a service that never claimed it, another service's port would be free for anybody.
    #[test]
    fn security_a_port_for_health_checks_is_claimed_like_any_other() {
        let held = Taken { ports: vec![30002], ..Default::default() };
        for (given, expected) in [
            (30000, Ok(vec![30000])),
            (30002, Ok(vec![])),
            (30001, Err("provided port is already allocated")),
            (22, Err("not in the valid range")),
        ] {
            let mut spec = ServiceSpec {
                type_: Some("LoadBalancer".to_owned()),
                external_traffic_policy: Some("Local".to_owned()),
                allocate_load_balancer_node_ports: Some(false),
                health_check_node_port: Some(given),
                ..Default::default()
            };
            let mut used: Ports = [30001, 30002].into();
            match (choose(&mut spec, &held, (30000, 30002), &mut used), expected) {
                (Ok(taken), Ok(ports)) => assert_eq!(taken, ports, "{given}"),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (found, _) => panic!("{given}: {found:?}"),
            }
        }
    }

    #[test]
    fn ports_are_chosen_kept_and_refused() {
        let (held, range) = (Taken { ports: vec![30001], ..Default::default() }, (30000, 30002));
        for (given, used, expected) in [
            (&[0, 0][..], &[30001][..], Ok(2)),
            (&[30001, 0][..], &[30001][..], Ok(1)),
            (&[30000][..], &[30000][..], Err("provided port is already allocated")),
            (&[40000][..], &[][..], Err("not in the valid range")),
            (&[0, 0, 0][..], &[30001][..], Err("range is full")),
        ] {
            let ports = given.iter().map(|node| ServicePort { node_port: Some(*node), ..Default::default() });
            let mut spec =
                ServiceSpec { type_: Some("NodePort".to_owned()), ports: Some(ports.collect()), ..Default::default() };
            let mut used: Ports = used.iter().copied().collect();
            match (choose(&mut spec, &held, range, &mut used), expected) {
                (Ok(taken), Ok(count)) => assert_eq!(taken.len(), count, "{given:?}"),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (found, _) => panic!("{given:?}: {found:?}"),
            }
        }
    }
}
