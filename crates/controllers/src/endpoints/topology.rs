//! `service.kubernetes.io/topology-mode: Auto`: endpoints are spread over zones by the CPUs that these have. Pure.
//!
//! After upstream's `TopologyCache` (v1.36): traffic stays in its zone if no zone's endpoints get much more of it than others',
//! and goes everywhere as before if that cannot be had.

use std::collections::BTreeMap;

use api::sort::CompactCollect as _;
use k8s_openapi::api::core::v1::Node;

use super::slice_plan::zone_of;

/// By how much the endpoints of a zone may be busier than they would be without hints.
const OVERLOAD: f64 = 0.2;
/// Nodes that run no pods of users.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// The share of each zone in the CPUs of the cluster; empty if that cannot be said.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Zones(BTreeMap<String, f64>);

impl Zones {
    pub(super) fn of<'a>(nodes: impl Iterator<Item = &'a Node>) -> Zones {
        let mut cpus: BTreeMap<String, f64> = BTreeMap::new();
        for facts in nodes.filter_map(Facts::of) {
            // A node of unknown place or size makes all shares guesses.
            let (Some(zone), true) = (facts.zone, facts.cpu > 0.0) else { return Zones::default() };
            *cpus.entry(zone).or_default() += facts.cpu;
        }
        let total: f64 = cpus.values().sum();
        Zones(cpus.into_iter().map(|(zone, cpu)| (zone, cpu / total)).collect())
    }
}

/// What shares depend on.
#[derive(Debug, PartialEq)]
pub(super) struct Facts {
    zone: Option<String>,
    cpu: f64,
}

impl Facts {
    /// None for a node that takes no part.
    pub(super) fn of(node: &Node) -> Option<Facts> {
        let labels = node.metadata.labels.as_ref();
        let status = node.status.as_ref()?;
        if !api::node::is_ready(node)
            || labels.is_some_and(|labels| CONTROL_PLANE.iter().any(|label| labels.contains_key(*label)))
        {
            return None;
        }
        let cpu = status.allocatable.as_ref().and_then(|resources| resources.get("cpu"));
        let cpu = cpu.and_then(|cpu| api::quantity::Quantity::parse(&cpu.0).ok()).map_or(0.0, |cpu| cpu.as_f64());
        Some(Facts { zone: zone_of(node).cloned(), cpu })
    }
}

/// The zone whose traffic each of some ready endpoints is to take, by the zones that they are in; None: traffic goes to all.
pub(super) fn allocate(endpoints: &[Option<&str>], zones: &Zones) -> Option<Vec<String>> {
    let count = endpoints.len() as f64;
    if zones.0.len() < 2 || zones.0.len() > endpoints.len() {
        return None;
    }
    let desired = |zone: &str| zones.0.get(zone).copied().unwrap_or(0.0) * count;
    let minimum = |zone: &str| (desired(zone) / (1.0 + OVERLOAD)).ceil();
    if zones.0.keys().map(|zone| minimum(zone)).sum::<f64>() > count {
        return None;
    }
    // Everyone begins at home, and some are lent to where they are missed most.
    let mut hints: Vec<String> = endpoints.iter().map(|zone| zone.map(str::to_owned)).collect::<Option<_>>()?;
    let mut held: BTreeMap<String, f64> = zones.0.keys().map(|zone| (zone.clone(), 0.0)).compact_collect();
    for zone in &hints {
        *held.entry(zone.clone()).or_default() += 1.0;
    }
    loop {
        let target = |zone: &str| desired(zone).max(minimum(zone));
        let surplus = |zone: &String, held: f64| held - target(zone);
        let by_surplus = |a: &(&String, &f64), b: &(&String, &f64)| surplus(a.0, *a.1).total_cmp(&surplus(b.0, *b.1));
        let (giver, most) = held.iter().max_by(by_surplus).map(|(zone, held)| (zone.clone(), surplus(zone, *held)))?;
        let (taker, least) = held.iter().min_by(by_surplus).map(|(zone, held)| (zone.clone(), surplus(zone, *held)))?;
        // One more move would only turn the two around. Endpoints of a zone without nodes always go.
        let is_needed = least <= -0.5 && most >= 0.5;
        if !is_needed && (zones.0.contains_key(&giver) || most <= 0.0) {
            break;
        }
        let moved = hints.iter_mut().rev().find(|zone| **zone == giver)?;
        moved.clone_from(&taker);
        *held.get_mut(&giver)? -= 1.0;
        *held.get_mut(&taker)? += 1.0;
    }
    let is_overloaded = |zone: &String| held.get(zone).copied().unwrap_or(0.0) < minimum(zone);
    (!zones.0.keys().any(is_overloaded)).then_some(hints)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(zone: &str, cpu: &str, ready: &str, label: &str) -> Node {
        let mut labels = json!({label: ""});
        if !zone.is_empty() {
            labels["topology.kubernetes.io/zone"] = json!(zone);
        }
        serde_json::from_value(json!({
            "metadata": {"labels": labels},
            "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn zones_have_shares_of_the_cpus() {
        let shares = |nodes: &[Node]| -> Vec<(String, f64)> { Zones::of(nodes.iter()).0.into_iter().collect() };
        let one = |zone: &str, cpu: &str| node(zone, cpu, "True", "x");
        assert_eq!(
            shares(&[
                one("a", "2"),
                one("a", "1"),
                one("b", "1000m"),
                node("c", "8", "False", "x"),
                node("c", "8", "True", CONTROL_PLANE[0])
            ]),
            [("a".to_owned(), 0.75), ("b".to_owned(), 0.25)]
        );
        assert_eq!(shares(&[one("a", "2"), one("", "2")]), []);
        assert_eq!(shares(&[one("a", "2"), one("b", "0")]), []);
    }

    #[test]
    fn endpoints_go_where_they_are_missed() {
        let zones =
            |shares: &[(&str, f64)]| Zones(shares.iter().map(|(zone, share)| ((*zone).to_owned(), *share)).collect());
        let equal = zones(&[("a", 0.5), ("b", 0.5)]);
        let thirds = zones(&[("a", 1.0 / 3.0), ("b", 1.0 / 3.0), ("c", 1.0 / 3.0)]);
        for (at, zones, expected) in [
            ("a b", &equal, Some("a b")),
            ("a a b b", &equal, Some("a a b b")),
            // One is lent.
            ("a a a b", &equal, Some("a a b b")),
            ("a a a a", &equal, Some("a a b b")),
            // Three cannot be halved without one half being too busy.
            ("a a b", &equal, None),
            ("a b", &thirds, None),
            ("a b c", &thirds, Some("a b c")),
            ("a b b", &thirds, Some("a b c")),
            // A zone without nodes has no traffic of its own.
            ("a b d d", &equal, Some("a b b a")),
            ("a - b b", &equal, None),
            ("a b", &Zones::default(), None),
            ("a b", &zones(&[("a", 1.0)]), None),
            ("a a a b", &zones(&[("a", 0.75), ("b", 0.25)]), Some("a a a b")),
        ] {
            let endpoints: Vec<Option<&str>> =
                at.split(' ').map(|zone| Some(zone).filter(|zone| *zone != "-")).collect();
            assert_eq!(allocate(&endpoints, zones).map(|hints| hints.join(" ")).as_deref(), expected, "{at}");
        }
    }
}
