//! Who is closed: pods that are not shown yet, or not any more, and those whom a change concerns that the kernel refused.

use super::*;

#[test]
fn security_a_pod_that_is_not_shown_yet_is_closed_to_the_clusters_policies_too() {
    let told = |pod: &str| announced(pod, "u", &["10.42.0.9"]);
    let deny = json!({"subject": {"namespaces": {"matchLabels": {"team": "red"}}},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]});
    let world = world(vec![], vec![]).with_cluster_policies(vec![cluster_policy("deny", "Baseline", 0, deny)]);
    // Also one that no policy selects: the labels by which a policy denies it to others are not known.
    for pod in ["other/new", "default/new", "unknown/new"] {
        let plan = plan(&world, &[told(pod)]);
        for map in ["egress4", "ingress4"] {
            assert_eq!(plan.subjects[map][&ip("10.42.0.9")], "jump closed", "{pod}");
        }
    }
}

/// A policy denies a namespace to others; a pod of it begins to send before anything is known of the pod.
#[test]
fn security_a_pod_that_is_not_shown_yet_reaches_nobody_whom_it_is_denied_to() {
    let deny = json!({"subject": {"namespaces": {"matchLabels": {"team": "blue"}}},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {"matchLabels": {"team": "red"}}}]}]});
    let web = || pod("default", "web", NODE, json!({}), &["10.42.0.2"], json!([]));
    let with = |pods: Vec<Pod>| {
        world(pods, vec![]).with_cluster_policies(vec![cluster_policy("deny", "Admin", 0, deny.clone())])
    };
    let told = announced("other/new", "new", &["10.42.0.9"]);
    let reaches = |plan: &Plan| passes(plan, ip("10.42.0.9"), ip("10.42.0.2"), Protocol::Tcp, 80);
    assert!(!reaches(&plan(&with(vec![web()]), std::slice::from_ref(&told))));
    // Shown, in a namespace that is not: on this node and on another.
    for node in [NODE, "b"] {
        let mut world = with(vec![web(), pod("other", "new", node, json!({}), &["10.42.0.9"], json!([]))]);
        let labels = world.namespaces.remove("other").unwrap();
        assert!(!reaches(&planned(&world)), "{node}");
        world.namespaces.insert("other".to_owned(), labels);
        assert!(!reaches(&planned(&world)), "{node}");
        world.namespaces.insert("other".to_owned(), BTreeMap::new());
        assert!(reaches(&planned(&world)), "{node}");
    }
}

/// Each peer of a rule has all of its ports: a policy of a megabyte would be hundreds of millions of pairs.
#[test]
fn security_peers_that_select_nobody_are_counted_too() {
    let peers: Vec<Value> =
        (0..2000).map(|at| json!({"podSelector": {"matchLabels": {"role": format!("r{at}")}}})).collect();
    // Single ports without neighbours, so that none can be merged.
    let ports: Vec<Value> = (0..2000).map(|at| json!({"port": 2 * at + 1})).collect();
    let large = json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": peers, "ports": ports}]});
    let pods = vec![
        pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.2"], json!([])),
        pod("default", "first", "b", json!({"role": "r0"}), &["10.42.1.2"], json!([])),
        pod("default", "last", "b", json!({"role": "r1999"}), &["10.42.1.3"], json!([])),
    ];
    let plan = planned(&world(pods, vec![policy("default", "large", large)]));
    for (from, port, is_open) in [("10.42.1.2", 3, true), ("10.42.1.2", 4, false), ("10.42.1.3", 3, false)] {
        assert_eq!(passes(&plan, ip(from), ip("10.42.0.2"), Protocol::Tcp, port), is_open, "{from} {port}");
    }
}

/// Each rule has an address of its own, and ports that lie within those of the rule before: cut, they are as many as the square
/// of their number.
#[test]
fn security_ports_that_lie_across_each_other_are_bounded() {
    let address = |at: usize| format!("192.0.{}.{}/32", at / 100, 2 * (at % 100));
    let web = || vec![pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.2"], json!([]))];
    let rule = |at: usize| {
        let block = json!({"ipBlock": {"cidr": address(at)}});
        json!({"from": [block], "ports": [{"port": 1000 + at, "endPort": 60_000 - at}]})
    };
    for (count, is_open) in [(100, true), (1000, false)] {
        let rules: Vec<Value> = (0..count).map(rule).collect();
        let spec = json!({"podSelector": {}, "ingress": rules});
        let plan = planned(&world(web(), vec![policy("default", "across", spec)]));
        let passes = |port| passes(&plan, ip("192.0.0.2"), ip("10.42.0.2"), Protocol::Tcp, port);
        assert_eq!((passes(30_000), passes(1000)), (is_open, false), "{count}");
    }
    // What a policy of the cluster forbids is forbidden with all the rest then.
    let rule = |at: usize| {
        let port = json!({"range": {"start": 1000 + at, "end": 60_000 - at}});
        json!({"action": "Deny", "to": [{"networks": [address(at)]}], "protocols": [{"tcp": {"destinationPort": port}}]})
    };
    for (count, is_open) in [(100, true), (1000, false)] {
        let rules: Vec<Value> = (0..count).map(rule).collect();
        let spec = json!({"subject": {"namespaces": {}}, "egress": rules});
        let world = world(web(), vec![]).with_cluster_policies(vec![cluster_policy("across", "Admin", 0, spec)]);
        let passes = |to| passes(&planned(&world), ip("10.42.0.2"), ip(to), Protocol::Tcp, 30_000);
        assert_eq!((passes("198.51.100.1"), passes("192.0.0.2")), (is_open, false), "{count}");
    }
}

/// The pod that had an address before is still shown with it, and may do what the one that has it now may not.
#[test]
fn security_an_address_is_only_whose_it_was_announced_to_be() {
    let allow = json!({"podSelector": {"matchLabels": {"app": "web"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "friend"}}}]}]});
    let pods = vec![
        pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.2"], json!([])),
        pod("default", "old", NODE, json!({"role": "friend"}), &["10.42.0.9"], json!([])),
    ];
    let world = world(pods, vec![policy("default", "p", allow)]);
    let reaches =
        |announced: &[Announced]| passes(&plan(&world, announced), ip("10.42.0.9"), ip("10.42.0.2"), Protocol::Tcp, 80);
    let told = |pod: &str, uid: &str| announced(pod, uid, &["10.42.0.9"]);
    assert!(reaches(&[]));
    assert!(reaches(&[told("default/old", "old")]));
    assert!(!reaches(&[told("default/new", "new")]));
    assert!(!reaches(&[told("default/old", "another of that name")]));
    assert!(!reaches(&[told("default/old", "old"), told("other/new", "new")]));
}

/// A pod runs on after its object is gone: one that was deleted by force, or whose end came while nobody looked.
#[test]
fn security_a_pod_that_outlives_its_object_is_closed() {
    let deny = || policy("default", "deny", json!({"podSelector": {}}));
    let web = || pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.9"], json!([]));
    let begin = || {
        let mut planner = Planner::new(NODE, "cox0");
        tell(&mut planner, &world(vec![web()], vec![deny()]));
        planner
    };
    let led = |planner: &mut Planner| {
        planner.settle();
        planner.plan().subjects["ingress4"].get(&ip("10.42.0.9")).cloned()
    };
    for is_announced in [false, true] {
        let mut planner = begin();
        let told = || announced("default/web", "web", &["10.42.0.9"]);
        if is_announced {
            planner.announce(told());
        }
        planner.set_pod("default/web", None);
        assert_eq!(led(&mut planner).as_deref(), Some("jump closed"));
        // Another pod of that name, with another address, changes nothing.
        let mut other = pod("default", "web", NODE, json!({}), &["10.42.0.8"], json!([]));
        other.uid = "other".into();
        planner.set_pod("default/web", Some(Arc::new(other)));
        assert_eq!(led(&mut planner).as_deref(), Some("jump closed"));
        planner.announce(announced("default/web", "other", &["10.42.0.8"]));
        assert_eq!(led(&mut planner).as_deref(), Some("jump closed"));
        planner.withdraw(&announced("default/web", "web", &[]));
        assert_eq!(led(&mut planner), None);
        // Given back before the object goes, as usual.
        let mut planner = begin();
        if is_announced {
            planner.announce(told());
        }
        planner.withdraw(&announced("default/web", "web", &[]));
        assert!(led(&mut planner).is_some_and(|led| led.starts_with("jump in-")));
        planner.set_pod("default/web", None);
        assert_eq!(led(&mut planner), None);
        assert!(planner.plan().is_empty());
    }
    // Isolated before we came, and not shown: closed until somebody has the address, wherever.
    let mut planner = begin();
    planner.inherit([ip("10.42.0.9"), ip("10.42.0.7")]);
    assert!(led(&mut planner).is_some_and(|led| led.starts_with("jump in-")));
    assert_eq!(planner.plan().subjects["ingress4"][&ip("10.42.0.7")], "jump closed");
    planner.set_pod("other/far", Some(Arc::new(pod("other", "far", "b", json!({}), &["10.42.0.7"], json!([])))));
    planner.settle();
    assert!(!planner.plan().subjects["ingress4"].contains_key(&ip("10.42.0.7")));
    // Nobody isolates anybody any more.
    planner.inherit([ip("10.42.0.6")]);
    planner.set_policy("default/deny", None);
    planner.settle();
    assert!(planner.plan().is_empty());
}

/// Who cleans up after a node that was away says of its pods that they have failed, and removes them, while they run.
#[test]
fn security_a_pod_that_others_say_is_over_is_judged_until_it_gives_its_addresses_back() {
    let deny = || policy("default", "deny", json!({"podSelector": {}}));
    let web = || pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.9"], json!([]));
    let over = || Pod { has_network: false, is_over: true, ..web() };
    let led = |planner: &mut Planner| {
        planner.settle();
        planner.plan().subjects["ingress4"].get(&ip("10.42.0.9")).cloned()
    };
    let set = |planner: &mut Planner, pod: Option<Pod>| planner.set_pod("default/web", pod.map(Arc::new));
    for is_announced in [false, true] {
        let mut planner = Planner::new(NODE, "cox0");
        tell(&mut planner, &world(vec![web()], vec![deny()]));
        if is_announced {
            planner.announce(announced("default/web", "web", &["10.42.0.9"]));
        }
        let before = led(&mut planner);
        assert!(before.as_ref().is_some_and(|led| led.starts_with("jump in-")));
        set(&mut planner, Some(over()));
        assert_eq!(led(&mut planner), before, "{is_announced}");
        set(&mut planner, None);
        assert_eq!(led(&mut planner).as_deref(), Some("jump closed"), "{is_announced}");
        // As it is with every pod that ends by itself.
        set(&mut planner, Some(web()));
        set(&mut planner, Some(over()));
        planner.withdraw(&announced("default/web", "web", &["10.42.0.9"]));
        assert_eq!(led(&mut planner), None, "{is_announced}");
        set(&mut planner, None);
        assert_eq!(led(&mut planner), None, "{is_announced}");
    }
    // Nobody means it, and whoever has its address is judged by what is said of that one.
    let mut planner = Planner::new(NODE, "cox0");
    let next = pod("other", "next", NODE, json!({}), &["10.42.0.9"], json!([]));
    tell(&mut planner, &world(vec![over(), next], vec![deny()]));
    assert_eq!(led(&mut planner), None);
}

/// A sandbox was made anew, and the end of the old one is heard of after the new one's begin.
#[test]
fn security_the_late_end_of_a_sandbox_leaves_the_next_one_alone() {
    let deny = || policy("default", "deny", json!({"podSelector": {"matchLabels": {"app": "web"}}}));
    let shown = |addresses: &[&str]| pod("default", "web", NODE, json!({"app": "web"}), addresses, json!([]));
    let of = |sandbox: &str, addresses: &[&str]| Announced {
        sandbox: sandbox.into(),
        ..announced("default/web", "web", addresses)
    };
    let (old, new) = (["10.42.0.8", "fd42::8"], ["10.42.0.9", "fd42::9"]);
    let led = |planner: &mut Planner, address: &str| {
        planner.settle();
        let map = if ip(address).is_ipv6() { "ingress6" } else { "ingress4" };
        planner.plan().subjects[map].get(&ip(address)).cloned()
    };
    // The plug-in knows what is given back, or, with an old configuration, does not.
    for released in [&old[..], &[]] {
        let mut planner = Planner::new(NODE, "cox0");
        tell(&mut planner, &world(vec![shown(&old)], vec![deny()]));
        planner.announce(of("first", &old));
        planner.announce(of("second", &new));
        for (old, new) in old.iter().zip(&new) {
            // It may run on, and the pod's status still shows its address.
            assert_eq!(led(&mut planner, old).as_deref(), Some("jump closed"));
            assert!(led(&mut planner, new).is_some_and(|led| led.starts_with("jump in-")));
        }
        planner.set_pod("default/web", Some(Arc::new(shown(&new))));
        planner.withdraw(&of("first", released));
        for (old, new) in old.iter().zip(&new) {
            assert_eq!(led(&mut planner, old), None);
            assert!(led(&mut planner, new).is_some_and(|led| led.starts_with("jump in-")));
        }
        // The second one is still there when the object goes, and is not taken for one that has ended.
        planner.set_pod("default/web", None);
        assert_eq!(led(&mut planner, new[0]).as_deref(), Some("jump closed"));
        planner.withdraw(&of("second", &new));
        assert_eq!(led(&mut planner, new[0]), None);
    }
    // After a restart nobody has announced anything: addresses tell which sandbox has ended.
    for (released, is_closed) in [(&old, true), (&new, false)] {
        let mut planner = Planner::new(NODE, "cox0");
        tell(&mut planner, &world(vec![shown(&new)], vec![deny()]));
        planner.withdraw(&of("first", released));
        planner.set_pod("default/web", None);
        assert_eq!(led(&mut planner, new[0]).is_some(), is_closed);
        let mut planner = Planner::new(NODE, "cox0");
        tell(&mut planner, &world(vec![shown(&new)], vec![deny()]));
        planner.set_pod("default/web", None);
        planner.withdraw(&of("first", released));
        assert_eq!(led(&mut planner, new[0]).is_some(), is_closed);
    }
}

/// What is read back from the kernel is what was isolated in it.
#[test]
fn what_a_table_isolates_can_be_read() {
    let inside = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        assert!(isolated().unwrap().is_empty());
        let web = pod("default", "web", NODE, json!({}), &["10.42.0.9", "fd42::9"], json!([]));
        let plan = planned(&world(vec![web], vec![policy("default", "deny", json!({"podSelector": {}}))]));
        netlink::nft::apply(&afresh(&plan, &Inlined::new())).unwrap();
        assert_eq!(isolated().unwrap(), [ip("10.42.0.9"), ip("fd42::9")].into());
    };
    std::thread::spawn(inside).join().unwrap();
}

/// What the kernel refuses leaves nobody open whom it was to isolate.
#[test]
fn security_a_refused_change_leaves_closed_whom_it_concerns() {
    let pods = vec![
        pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.2"], json!([])),
        pod("default", "db", NODE, json!({"app": "db"}), &["10.42.0.3"], json!([])),
        pod("default", "friend", "b", json!({"app": "friend"}), &["10.42.1.2"], json!([])),
    ];
    let isolating = |app: &str| {
        policy(
            "default",
            app,
            json!({"podSelector": {"matchLabels": {"app": app}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}]}),
        )
    };
    let mut planner = Planner::new(NODE, "cox0");
    tell(&mut planner, &world(pods.clone(), vec![isolating("web")]));
    planner.settle();
    let first = afresh(planner.plan(), &Inlined::new());
    // The first of all is refused: all that were to be isolated are closed.
    let closed = listed_after(closing(planner.touched(), planner.plan(), true)).join("\n");
    assert!(closed.contains("10.42.0.2 : jump closed") && closed.contains("ip daddr vmap @ingress4"), "{closed}");
    planner.is_programmed();
    assert_eq!(closing(planner.touched(), planner.plan(), true), Vec::<String>::new());
    // A later one: those whom it concerns, and again if that happens again.
    planner.set_policy("default/db", Some(Arc::new(isolating("db"))));
    planner.settle();
    let (second, again) = (
        change(planner.touched(), planner.plan(), &mut Inlined::new()).concat(),
        closing(planner.touched(), planner.plan(), true),
    );
    let found = listed_after([vec![first.clone()], again.clone(), again].concat()).join("\n");
    assert!(found.contains("10.42.0.3 : jump closed") && !found.contains("10.42.0.2 : jump closed"), "{found}");
    // A friend is one no more: the set that said so is touched.
    planner.is_programmed();
    planner.set_pod("default/friend", None);
    planner.settle();
    let found =
        listed_after([vec![first, second], closing(planner.touched(), planner.plan(), true)].concat()).join("\n");
    assert!(found.contains("10.42.0.2 : jump closed"), "{found}");
}
