//! Documented examples of the plug-ins, as whole decisions.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::{Decider, Failure};
use crate::config::Configuration;
use crate::framework::{Candidate, Point};
use crate::offline::{Offline, Outcome};
use crate::pod::PodInfo;

fn offline(nodes: &[Value], pods: &[Value]) -> Offline {
    let mut offline = Offline::new(&Configuration::default(), 1).unwrap();
    for node in nodes {
        offline.set_node(Arc::new(serde_json::from_value(node.clone()).unwrap()));
    }
    for pod in pods {
        offline.set_pod(&Arc::new(api::codec::from_value(pod).unwrap()));
    }
    offline
}

/// The node, or why there is none; preemption shows as `node: victims`.
fn verdict(offline: &mut Offline, pod: &Value) -> String {
    match offline.schedule(Arc::new(api::codec::from_value(pod).unwrap())) {
        Outcome::Placed { node } => node,
        Outcome::Preempts { node, victims } => format!("{node}: {}", victims.join(" ")),
        Outcome::Unplaced { message } => message,
    }
}

fn node(name: &str, cpu: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "labels": {"name": name}}, "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "110"}}})
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod =
        json!({"metadata": {"name": name, "uid": name, "namespace": "default", "labels": {"app": name}}, "spec": spec});
    if pod["spec"]["containers"].is_null() {
        pod["spec"]["containers"] = json!([{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]);
    }
    pod
}

#[test]
fn pods_go_where_they_may_and_fit_best() {
    let nodes = [
        node("cordoned", "16", json!({"unschedulable": true})),
        node("large", "8", json!({})),
        node("small", "1", json!({})),
        node("tainted", "16", json!({"taints": [{"key": "k", "effect": "NoSchedule"}]})),
    ];
    for (spec, expected) in [
        (json!({}), "large"),
        (json!({"nodeSelector": {"name": "small"}}), "small"),
        (json!({"tolerations": [{"key": "k", "operator": "Exists"}]}), "tainted"),
        (json!({"nodeName": "small"}), "small"),
    ] {
        assert_eq!(verdict(&mut offline(&nodes, &[]), &pod("p", spec.clone())), expected, "{spec}");
    }
}

#[test]
fn failures_are_counted_by_reason() {
    let nodes = [
        node("a", "100m", json!({})),
        node("b", "100m", json!({})),
        node("c", "8", json!({"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]})),
    ];
    for (spec, expected) in [
        (
            json!({}),
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        ),
        (
            json!({"preemptionPolicy": "Never"}),
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never.",
        ),
        (
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]}}}}),
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        ),
        (
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}),
            "0/3 nodes are available: persistentvolumeclaim \"data\" not found. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        ),
    ] {
        assert_eq!(verdict(&mut offline(&nodes, &[]), &pod("p", spec.clone())), expected, "{spec}");
    }
    assert_eq!(verdict(&mut offline(&[], &[]), &pod("p", json!({}))), "no nodes available to schedule pods");
    // A full node that is large enough, with nobody less important on it.
    let mut full = offline(&[node("a", "1", json!({}))], &[running("x", "a", "x", 0, "800m")]);
    assert_eq!(
        verdict(&mut full, &pod("p", json!({}))),
        "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    );
}

fn zoned(name: &str, zone: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"zone": zone, "host": name}},
        "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}}})
}

fn running(name: &str, node: &str, app: &str, priority: i32, cpu: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name, "namespace": "default", "labels": {"app": app}},
        "spec": {"nodeName": node, "priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
}

fn term(app: &str, key: &str) -> Value {
    json!([{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}])
}

#[test]
fn affinity_looks_at_topologies() {
    let near = |app, key| json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term(app, key)}}});
    let far = |app, key| json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term(app, key)}}});
    let nodes = [zoned("a1", "a"), zoned("b1", "b")];
    let db = running("db", "b1", "db", 0, "0");
    let mut guard = db.clone();
    guard["spec"]["affinity"] = far("web", "zone")["affinity"].clone();
    let not_helpful = "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    for (pods, spec, expected) in [
        (vec![db.clone()], near("db", "zone"), "b1".to_owned()),
        (vec![db.clone()], far("db", "host"), "a1".to_owned()),
        (vec![guard], json!({}), "a1".to_owned()),
        (vec![], near("db", "zone"), format!("0/2 nodes are available: 2 node(s) didn't match pod affinity rules. {not_helpful}")),
        (
            vec![running("x", "a1", "db", 0, "0"), running("y", "b1", "db", 0, "0")],
            far("db", "zone"),
            "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.".to_owned(),
        ),
    ] {
        assert_eq!(verdict(&mut offline(&nodes, &pods), &pod("web", spec.clone())), expected, "{spec}");
    }
    // The first of a group that wants to be together may go anywhere; the others follow it.
    let mut cluster = offline(&nodes, &[]);
    let together = near("web", "zone");
    let first = verdict(&mut cluster, &pod("web", together.clone()));
    for name in ["w2", "w3"] {
        let mut next = pod(name, together.clone());
        next["metadata"]["labels"]["app"] = "web".into();
        assert_eq!(verdict(&mut cluster, &next), first);
    }
}

#[test]
fn spreading_keeps_the_skew() {
    let nodes = [zoned("a1", "a"), zoned("a2", "a"), zoned("b1", "b")];
    let pods = [running("1", "a1", "web", 0, "0"), running("2", "a2", "web", 0, "0")];
    let spread = |when: &str, key: &str, min: Option<i32>| {
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "minDomains": min,
            "labelSelector": {"matchLabels": {"app": "web"}}}]})
    };
    for (spec, expected) in [
        (spread("DoNotSchedule", "zone", None), "b1"),
        (spread("DoNotSchedule", "host", None), "b1"),
        (spread("ScheduleAnyway", "zone", None), "b1"),
        (
            spread("DoNotSchedule", "rack", None),
            "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints (missing required label). preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        ),
        (spread("DoNotSchedule", "zone", Some(3)), "b1"),
    ] {
        assert_eq!(verdict(&mut offline(&nodes, &pods), &pod("web", spec.clone())), expected, "{spec}");
    }
    // One after the other, the skew stays within bounds whoever comes.
    let mut cluster = offline(&nodes, &[]);
    let placed: Vec<String> = (0..6)
        .map(|at| {
            let mut next = pod(&format!("web-{at}"), spread("DoNotSchedule", "zone", None));
            next["metadata"]["labels"]["app"] = "web".into();
            verdict(&mut cluster, &next)
        })
        .collect();
    assert_eq!(placed.iter().filter(|node| *node == "b1").count(), 3, "{placed:?}");
}

#[test]
fn the_least_important_victims_go() {
    let nodes = [node("n1", "1", json!({})), node("n2", "1", json!({}))];
    let new = pod("new", json!({"priority": 100}));
    for (pods, expected) in [
        // Lower priority first, then fewer victims.
        (vec![running("a", "n1", "a", 50, "1"), running("b", "n2", "b", 10, "1")], "n2: b"),
        (
            vec![
                running("a", "n1", "a", 10, "400m"),
                running("b", "n1", "b", 10, "600m"),
                running("c", "n2", "c", 10, "1"),
            ],
            "n1: b",
        ),
        // Nobody of equal or higher priority.
        (
            vec![running("a", "n1", "a", 100, "1"), running("b", "n2", "b", 200, "1")],
            "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.",
        ),
    ] {
        let found = verdict(&mut offline(&nodes, &pods), &new);
        // Of pods alike in everything, either may go.
        assert!(
            found == expected || expected == "n1: b" && matches!(found.as_str(), "n1: a" | "n2: c"),
            "{found}, not {expected}"
        );
    }
}

#[test]
fn budgets_are_kept_where_possible() {
    let nodes = [node("n1", "1", json!({})), node("n2", "1", json!({}))];
    let pods = [running("a", "n1", "a", 50, "1"), running("b", "n2", "b", 10, "1")];
    let budget = json!({"metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"app": "b"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
    let mut cluster = offline(&nodes, &pods);
    cluster.cluster.budgets.set("default", "b", Some(&serde_json::from_value(budget).unwrap()));
    assert_eq!(verdict(&mut cluster, &pod("new", json!({"priority": 100}))), "n1: a");
}

#[test]
fn room_is_kept_for_nominated_pods() {
    let nodes = [node("n1", "1", json!({}))];
    let mut cluster = offline(&nodes, &[]);
    let nominated =
        pod("vip", json!({"priority": 100, "containers": [{"name": "c", "resources": {"requests": {"cpu": "800m"}}}]}));
    let info =
        crate::pod::PodInfo::pending(Arc::new(api::codec::from_value(&nominated).unwrap()), &cluster.cluster.catalogue);
    cluster.cluster.nominated.add(Arc::new(info), "n1");
    assert!(
        verdict(&mut cluster, &pod("low", json!({"priority": 1})))
            .starts_with("0/1 nodes are available: 1 Insufficient cpu.")
    );
    assert_eq!(verdict(&mut cluster, &pod("higher", json!({"priority": 200}))), "n1");
    cluster.remove_pod("higher");
    assert_eq!(verdict(&mut cluster, &nominated), "n1");
}

/// Candidates for preemption as `node: victims, violations`, or None if the pod fits.
fn candidates(offline: &mut Offline, decider: &mut Decider, pod: &Arc<PodInfo>) -> Option<Vec<String>> {
    let profile = offline.profiles.of(&pod.pod).unwrap().clone();
    let diagnosis = match decider.decide(&mut offline.cluster, &profile, pod) {
        Err(Failure::Unfit(diagnosis)) => diagnosis,
        _ => return None,
    };
    let found = decider.attempt(&mut offline.cluster, &profile, pod).unwrap().post_filter(&diagnosis);
    let shown = |candidate: &Candidate| {
        let victims: Vec<&str> = candidate.victims.iter().map(|victim| &*victim.uid).collect();
        format!("{}: {} ({})", candidate.node, victims.join(" "), candidate.violations)
    };
    let mut all: Vec<String> = found.candidates.iter().map(shown).collect();
    all.sort();
    Some(all)
}

#[test]
fn who_makes_way_is_remembered_as_it_would_be_found_anew() {
    let mut dice = StdRng::seed_from_u64(3);
    let mut offline = offline(&[], &[]);
    let mut remembering = Decider::new(0, StdRng::seed_from_u64(1));
    let (mut compared, mut running_pods) = (0, Vec::<Value>::new());
    for step in 0..600 {
        match dice.random_range(0..9) {
            0 => {
                let name = format!("n{}", dice.random_range(0..5));
                let node = node(&name, &dice.random_range(2..5).to_string(), json!({}));
                offline.set_node(Arc::new(serde_json::from_value(node).unwrap()));
            }
            1 if !running_pods.is_empty() => {
                let gone = running_pods.swap_remove(dice.random_range(0..running_pods.len()));
                offline.remove_pod(gone["metadata"]["uid"].as_str().unwrap());
            }
            // Nothing but its start is news of a pod.
            2 if !running_pods.is_empty() => {
                let at = dice.random_range(0..running_pods.len());
                let hour = dice.random_range(10..20);
                running_pods[at]["status"] = json!({"startTime": format!("2026-01-01T{hour}:00:00Z")});
                offline.set_pod(&Arc::new(api::codec::from_value(&running_pods[at]).unwrap()));
            }
            3 => {
                let budget = json!({"spec": {"selector": {"matchLabels": {"app": format!("a{}", dice.random_range(0..3))}}},
                    "status": {"disruptionsAllowed": dice.random_range(0..3)}});
                offline.cluster.budgets.set("default", "b", Some(&serde_json::from_value(budget).unwrap()));
            }
            _ => {
                let (node, app) = (format!("n{}", dice.random_range(0..5)), format!("a{}", dice.random_range(0..3)));
                let cpu = format!("{}m", dice.random_range(2..12) * 100);
                let pod = running(&format!("p{step}"), &node, &app, dice.random_range(0..3), &cpu);
                offline.set_pod(&Arc::new(api::codec::from_value(&pod).unwrap()));
                running_pods.push(pod);
            }
        }
        let new = pod(
            "new",
            json!({"priority": 1 + step % 2, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m"}}}]}),
        );
        let new =
            Arc::new(PodInfo::pending(Arc::new(api::codec::from_value(&new).unwrap()), &offline.cluster.catalogue));
        let remembered = candidates(&mut offline, &mut remembering, &new);
        let anew = candidates(&mut offline, &mut Decider::new(0, StdRng::seed_from_u64(1)), &new);
        assert_eq!(remembered, anew, "step {step}");
        compared += anew.map_or(0, |candidates| candidates.len());
    }
    assert!(compared > 100, "{compared} candidates: too easy");
}

/// How often a plug-in was asked at a point since the last time.
fn asked(offline: &Offline, wanted: &[(Point, &str)]) -> Vec<usize> {
    let asked = offline.profiles.all().next().unwrap().take_asked();
    let count = |(point, plugin): &(Point, &str)| {
        asked.iter().filter(|(at, name, _)| at == point && name == plugin).map(|(.., count)| count).sum()
    };
    wanted.iter().map(count).collect()
}

#[test]
fn plugins_are_counted_as_often_as_they_are_asked() {
    let nodes = [
        node("cordoned", "16", json!({"unschedulable": true})),
        node("a", "8", json!({})),
        node("b", "8", json!({})),
        node("full", "100m", json!({})),
    ];
    let wanted = [
        (Point::PreFilter, "NodeResourcesFit"),
        (Point::Filter, "NodeUnschedulable"),
        (Point::Filter, "NodeName"),
        (Point::Filter, "NodeResourcesFit"),
        (Point::PreScore, "NodeResourcesFit"),
        (Point::Score, "NodeResourcesFit"),
        (Point::Filter, "PodTopologySpread"),
    ];
    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 5, "topologyKey": "name",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}]});
    let mut offline = offline(&nodes, &[]);
    for (what, spec, expected, batches) in [
        ("a first pod: every node is judged", json!({}), [1, 4, 3, 3, 1, 3, 0], [0, 1]),
        ("another like it: the node that the first went to", json!({}), [1, 0, 0, 1, 1, 1, 0], [1, 0]),
        (
            "one that spreads: as before, and a state looks at the nodes that are left",
            spread,
            [1, 0, 0, 1, 1, 1, 2],
            [1, 0],
        ),
    ] {
        let mut new = pod("x", spec);
        new["metadata"]["uid"] = what.into();
        assert!(["a", "b"].contains(&verdict(&mut offline, &new).as_str()));
        assert_eq!(asked(&offline, &wanted), expected, "{what}");
        let (seen, _) = offline.profiles.all().next().unwrap().take_batches();
        assert_eq!(seen.map(|(_, count)| count), batches, "{what}");
    }
}

#[test]
fn plugins_are_timed_where_they_are_asked() {
    let nodes = [node("a", "8", json!({})), node("b", "8", json!({})), node("full", "100m", json!({}))];
    let mut offline = offline(&nodes, &[]);
    offline.decider = Decider::new(0, StdRng::seed_from_u64(1)).sampling(1);
    verdict(&mut offline, &pod("x", json!({})));
    let taken: Vec<_> =
        offline.decider.samples.drain().map(|sample| (sample.point, sample.plugin, sample.status)).collect();
    for (expected, count) in [
        (("PreFilter", "PodTopologySpread", "Success"), 1),
        (("Filter", "NodeName", "Success"), 3),
        (("Filter", "NodeResourcesFit", "Success"), 2),
        (("Filter", "NodeResourcesFit", "UnschedulableAndUnresolvable"), 1),
        (("Score", "NodeResourcesBalancedAllocation", "Success"), 3),
        (("ScoreExtensionNormalize", "TaintToleration", "Success"), 1),
    ] {
        assert_eq!(taken.iter().filter(|sample| **sample == expected).count(), count, "{expected:?} in {taken:?}");
    }
    let times = offline.decider.times;
    assert!(times.filtering.is_some() && times.scoring.is_some());
    verdict(
        &mut offline,
        &pod("large", json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "20"}}}]})),
    );
    assert!(offline.decider.times.scoring.is_none(), "there was nothing to compare");
}
