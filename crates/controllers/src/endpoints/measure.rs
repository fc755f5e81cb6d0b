//! What the controllers of EndpointSlices have to count, the mirroring one like the other.

use std::collections::HashMap;

use client::Informer;
use client::metrics::{Metrics, exponential};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

/// For numbers of endpoints.
pub(super) static COUNT_BOUNDS: [f64; 15] = exponential(2.0, 2.0);

/// How many endpoints a sync adds, changes and removes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) added: usize,
    pub(super) updated: usize,
    pub(super) removed: usize,
}

impl Changes {
    /// What becomes of the endpoints of some slices when others take their place.
    pub(super) fn between<'a>(
        before: impl Iterator<Item = &'a EndpointSlice>,
        after: impl Iterator<Item = &'a EndpointSlice>,
    ) -> Changes {
        let mut old: HashMap<_, &Endpoint> = before.flat_map(endpoints).collect();
        let mut changes = Changes::default();
        for (address, endpoint) in after.flat_map(endpoints) {
            match old.remove(&address) {
                Some(known) if known == endpoint => {}
                Some(_) => changes.updated += 1,
                None => changes.added += 1,
            }
        }
        changes.removed = old.len();
        changes
    }
}

/// Endpoints by where they are: address, and ports as written in their slice.
fn endpoints(slice: &EndpointSlice) -> impl Iterator<Item = ((String, String), &Endpoint)> {
    let ports = serde_json::to_string(&slice.ports).unwrap_or_default();
    slice.endpoints.iter().flatten().map(move |endpoint| {
        let address = endpoint.addresses.first().cloned().unwrap_or_default();
        ((address, ports.clone()), endpoint)
    })
}

/// What there is of slices.
#[derive(Debug, Default, PartialEq, Eq)]
struct Total {
    slices: usize,
    endpoints: usize,
    /// Slices that would do if each were filled with `capacity` endpoints.
    fewest: usize,
}

fn total<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    capacity: usize,
    service: fn(&EndpointSlice) -> Option<String>,
) -> Total {
    let mut groups: HashMap<_, usize> = HashMap::new();
    let mut count = 0;
    for slice in slices {
        let Some(service) = service(slice) else { continue };
        count += 1;
        let ports = serde_json::to_string(&slice.ports).unwrap_or_default();
        *groups.entry((service, slice.address_type.clone(), ports)).or_default() +=
            slice.endpoints.as_ref().map_or(0, Vec::len);
    }
    Total {
        slices: count,
        endpoints: groups.values().sum(),
        fewest: groups.values().map(|count| count.div_ceil(capacity).max(1)).sum(),
    }
}

/// Counts the slices that `service` knows a Service for, whenever somebody asks: as endpoints, as slices, and how few would do.
pub(super) fn count_slices(
    metrics: &Metrics,
    names: [&'static str; 3],
    capacity: usize,
    slices: &Informer<EndpointSlice>,
    service: fn(&EndpointSlice) -> Option<String>,
) {
    let helps = [
        "Number of endpoints desired",
        "Number of EndpointSlices",
        "Number of EndpointSlices that would exist with perfect endpoint allocation",
    ];
    let gauges = [0, 1, 2].map(|at| metrics.gauge(names[at], helps[at], &[]));
    let slices = slices.clone();
    metrics.on_render(move || {
        let all = slices.list();
        let seen = total(all.iter().map(|slice| &**slice), capacity, service);
        for (gauge, count) in gauges.iter().zip([seen.endpoints, seen.slices, seen.fewest]) {
            gauge.set(count as f64);
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(service: &str, port: u16, endpoints: &[(&str, bool)]) -> EndpointSlice {
        let endpoints: Vec<Value> = endpoints
            .iter()
            .map(|(address, ready)| json!({"addresses": [address], "conditions": {"ready": ready}}))
            .collect();
        let slice = json!({"metadata": {"name": service}, "addressType": "IPv4", "ports": [{"port": port}], "endpoints": endpoints});
        serde_json::from_value(slice).unwrap()
    }

    #[test]
    fn endpoints_are_added_updated_and_removed() {
        let old = [slice("s", 80, &[("a", true), ("b", true), ("c", true)])];
        for (new, added, updated, removed) in [
            (vec![slice("s", 80, &[("a", true), ("b", true), ("c", true)])], 0, 0, 0),
            (vec![slice("s", 80, &[("a", false), ("b", true), ("d", true)])], 1, 1, 1),
            // From one slice to two is no change of endpoints; to another port it is.
            (vec![slice("s", 80, &[("c", true)]), slice("s", 80, &[("a", true), ("b", true)])], 0, 0, 0),
            (vec![slice("s", 81, &[("a", true)])], 1, 0, 3),
            (vec![], 0, 0, 3),
        ] {
            assert_eq!(Changes::between(old.iter(), new.iter()), Changes { added, updated, removed }, "{new:?}");
        }
    }

    #[test]
    fn slices_are_counted_with_what_would_do() {
        let name = |slice: &EndpointSlice| slice.metadata.name.clone().filter(|name| name != "foreign");
        let slices = [
            slice("a", 80, &[("1", true), ("2", true)]),
            slice("a", 80, &[("3", true)]),
            slice("b", 80, &[]),
            slice("foreign", 80, &[("9", true)]),
        ];
        assert_eq!(total(slices.iter(), 3, name), Total { slices: 3, endpoints: 3, fewest: 2 });
        assert_eq!(total(slices.iter(), 2, name), Total { slices: 3, endpoints: 3, fewest: 3 });
    }
}
