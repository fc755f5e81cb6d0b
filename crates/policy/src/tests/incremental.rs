//! A planner that hears of changes one by one holds what one does that hears of the end only.

use super::*;

/// Everything that can be told, with few names, so that things meet.
fn happen(random: &mut Random, planner: &mut Planner, told: &mut BTreeMap<String, Announced>, world: &mut World) {
    let namespaces = ["default", "other", "third"];
    match random.below(13) {
        0..4 => {
            let number = random.below(8);
            let key = format!("{}/p{number}", random.one(&namespaces));
            if random.below(4) == 0 {
                world.pods.remove(&key);
                planner.set_pod(&key, None);
                return;
            }
            let (namespace, name) = key.split_once('/').unwrap();
            let labels = json!({"app": random.one(&["web", "db"]), "tier": random.one(&["front", "back"])});
            let ports = json!([{"name": "http", "containerPort": random.one(&[80, 81])}]);
            // Some addresses are shown twice, or not yet.
            let last = random.below(10) + 2;
            let addresses = [format!("10.42.0.{last}"), format!("fd42::{last:x}")];
            let addresses: Vec<&str> = addresses.iter().take(random.below(3)).map(String::as_str).collect();
            let mut made = pod(namespace, name, random.one(&[NODE, NODE, "b"]), labels, &addresses, ports);
            made.uid = random.one(&["one", "two"]).to_owned();
            made.is_leaving = random.below(4) == 0;
            made.has_network = random.below(6) > 0;
            world.pods.insert(key.clone(), Arc::new(made.clone()));
            planner.set_pod(&key, Some(Arc::new(made)));
        }
        4..6 => {
            let made = random_world(random);
            let key = format!("{}/n{}", random.one(&namespaces), random.below(4));
            let (namespace, name) = key.split_once('/').unwrap();
            let made = random.one(&made.policies.values().cloned().map(Some).chain([None]).collect::<Vec<_>>());
            let made = made.map(|made| {
                Arc::new(Policy { namespace: namespace.to_owned(), name: name.to_owned(), ..Policy::clone(&made) })
            });
            match made.clone() {
                Some(made) => drop(world.policies.insert(key.clone(), made)),
                None => drop(world.policies.remove(&key)),
            }
            planner.set_policy(&key, made);
        }
        6 | 7 => {
            let made = random_world(random);
            let all: Vec<_> = made.cluster_policies.values().cloned().map(Some).chain([None]).collect();
            let name = format!("c{}", random.below(3));
            let made = random
                .one(&all)
                .map(|made| Arc::new(ClusterPolicy { name: name.clone(), ..ClusterPolicy::clone(&made) }));
            match made.clone() {
                Some(made) => drop(world.cluster_policies.insert(name.clone(), made)),
                None => drop(world.cluster_policies.remove(&name)),
            }
            planner.set_cluster_policy(&name, made);
        }
        8 => {
            let name = random.one(&namespaces);
            let labels = random.one(&[Some("red"), Some("blue"), Some(""), None]);
            let labels = labels.map(|team| BTreeMap::from([("team".to_owned(), team.to_owned())]));
            match labels.clone() {
                Some(labels) => drop(world.namespaces.insert(name.to_owned(), labels)),
                None => drop(world.namespaces.remove(name)),
            }
            planner.set_namespace(name, labels);
        }
        9 | 10 => {
            let last = random.below(10) + 2;
            let addresses = vec![ip(&format!("10.42.0.{last}")), ip(&format!("fd42::{last:x}"))];
            let pod = format!("{}/p{}", random.one(&namespaces), random.below(8));
            let (uid, sandbox) = (random.one(&["one", "two"]).to_owned(), random.one(&["x", "y"]).to_owned());
            let new = Announced { pod: pod.clone(), uid, sandbox, addresses };
            told.retain(|_, had| !had.addresses.iter().any(|address| new.addresses.contains(address)));
            told.insert(pod, new.clone());
            planner.announce(new);
        }
        11 => {
            let made = random_world(random);
            let name = random.one(&[NODE, "b", "c"]);
            let made = random.one(&made.nodes.into_values().map(Some).chain([None]).collect::<Vec<_>>());
            match made.clone() {
                Some(made) => drop(world.nodes.insert(name.to_owned(), made)),
                None => drop(world.nodes.remove(name)),
            }
            planner.set_node(name, made);
        }
        _ => {
            let known: Vec<Announced> = told.values().cloned().collect();
            if !known.is_empty() {
                let gone = random.one(&known);
                if random.below(3) > 0 {
                    told.remove(&gone.pod);
                    planner.withdraw(&gone);
                } else {
                    planner.withdraw(&Announced { uid: "another".to_owned(), ..gone });
                }
            }
        }
    }
}

#[test]
fn change_by_change_is_the_same_as_all_at_once() {
    let mut filled = 0;
    for seed in 1..=40 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed << 7);
        let mut planner = Planner::new(NODE, "cox0");
        let (mut told, mut world) = (BTreeMap::new(), World::default());
        for step in 0..120 {
            for _ in 0..=random.below(3) {
                happen(&mut random, &mut planner, &mut told, &mut world);
            }
            planner.settle();
            // With those who outlive their objects.
            let expected = plan(&world, &planner.announced());
            assert_eq!(*planner.plan(), expected, "seed {seed}, step {step}\n{world:#?}\n{told:#?}");
            filled += usize::from(!expected.is_empty());
        }
    }
    assert!(filled > 2000, "{filled}");
}

/// What the differences make of the kernel's table is what a new table would hold.
#[test]
fn the_kernel_takes_changes_of_any_order() {
    for seed in 1..=6 {
        let mut random = Random(0x2545_f491_4f6c_dd1d ^ seed << 7);
        let mut planner = Planner::new(NODE, "cox0");
        let (mut told, mut world) = (BTreeMap::new(), World::default());
        let mut all = Vec::new();
        for _ in 0..60 {
            for _ in 0..=random.below(3) {
                happen(&mut random, &mut planner, &mut told, &mut world);
            }
            planner.settle();
            all.extend(change(planner.touched(), planner.plan(), &mut Inlined::new()));
            planner.is_programmed();
        }
        assert_eq!(listed_after(all), listed_after(vec![afresh(planner.plan(), &Inlined::new())]), "seed {seed}");
    }
}

/// What one change of a policy or a pod touches does not grow with what else there is.
#[test]
fn a_change_touches_only_what_it_concerns() {
    let spec = |app: &str, friend: &str| {
        json!({"podSelector": {"matchLabels": {"app": app}}, "ingress": [
            {"from": [{"podSelector": {"matchLabels": {"app": friend}}}, {"namespaceSelector": {}}], "ports": [{"port": 80}]}]})
    };
    let mut planner = Planner::new(NODE, "cox0");
    for i in 0..300 {
        let (name, address) = (format!("p{i}"), format!("10.42.{}.{}", 1 + i / 200, i % 200));
        let made = pod("default", &name, NODE, json!({"app": name}), &[&address], json!([]));
        planner.set_pod(&made.key(), Some(Arc::new(made)));
        let made = policy("default", &name, spec(&name, "p0"));
        planner.set_policy(&made.key(), Some(Arc::new(made)));
    }
    planner.settle();
    planner.is_programmed();
    planner.set_policy("default/p7", Some(Arc::new(policy("default", "p7", spec("p7", "p1")))));
    planner.settle();
    let touched = planner.touched();
    assert_eq!((touched.chains.len(), touched.sets.len(), touched.subjects.len()), (1, 1, 0));
    planner.is_programmed();
    // All share the set of those that they mean.
    let new = pod("other", "new", "b", json!({}), &["10.42.9.9"], json!([]));
    planner.set_pod("other/new", Some(Arc::new(new)));
    planner.settle();
    let text = change(planner.touched(), planner.plan(), &mut Inlined::new()).concat();
    assert!(text.lines().count() <= 2 && text.contains("10.42.9.9 . tcp . 80"), "{text}");
}
