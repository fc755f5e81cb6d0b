//! What the kubelet and our runtime do with systemd: graceful shutdown, and cgroups as slices and scopes.

use dbus::Value;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::bus::{Asked, Bus, Logind, Systemd};
use crate::node::{Node, is_ready, phase, shell};
use crate::runtime::Kind;

/// The machine is about to go down: plain pods end first, critical ones after, and only then the shutdown goes on.
pub(crate) async fn pods_end_before_the_node(node: &mut Node) {
    let bus = Bus::start(node.dir.path());
    let logind = Logind::start(&bus);
    node.stop_kubelet().await;
    node.start_kubelet_with(|settings| {
        settings.system_bus = bus.socket.clone();
        let period = |priority, seconds| kubelet::ShutdownPeriod { priority, seconds };
        settings.shutdown_periods = vec![period(0, 60), period(2_000_000_000, 60)];
    });
    node.wait_until("shutdowns are held up", || logind.taken() == 1).await;
    let seen = node.dir.path().join("seen");
    std::fs::create_dir(&seen).unwrap();
    let pod = |name: &str, class: &str| {
        let script = format!(
            "trap 'sleep 0.5; echo {name} >> /seen/log; exit 0' TERM; touch /seen/{name}; while true; do sleep 0.05; done"
        );
        json!({
            "containers": [{"name": "c", "command": shell(&script), "volumeMounts": [{"name": "seen", "mountPath": "/seen"}]}],
            "volumes": [{"name": "seen", "hostPath": {"path": seen}}],
            "priorityClassName": class, "terminationGracePeriodSeconds": 30,
        })
    };
    node.create("critical", pod("critical", "system-node-critical")).await;
    node.create("plain", pod("plain", "")).await;
    for name in ["critical", "plain"] {
        node.wait(name, "ready", is_ready).await;
        node.wait_until("it has set its trap", || seen.join(name).exists()).await;
    }
    logind.announce(true);
    let waiting = tokio::task::spawn_blocking(move || {
        logind.wait_released();
        logind
    });
    assert_eq!(node.wait_condition("Ready", "False").await, "node is shutting down");
    let logind = waiting.await.unwrap();
    assert_eq!(std::fs::read_to_string(seen.join("log")).unwrap(), "plain\ncritical\n");
    for name in ["critical", "plain"] {
        let status = node.wait(name, "over", |pod| phase(pod) == "Failed").await.status.unwrap();
        assert_eq!(status.reason.as_deref(), Some("Terminated"));
        assert_eq!(status.message.as_deref(), Some("Pod was terminated in response to imminent node shutdown."));
        let conditions = status.conditions.unwrap();
        let disrupted = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
        assert_eq!(disrupted.reason.as_deref(), Some("TerminationByKubelet"));
    }
    let sleeps =
        || json!({"containers": [{"name": "c", "command": ["sleep", "1000"]}], "terminationGracePeriodSeconds": 0});
    node.create("late", sleeps()).await;
    let late = node.wait("late", "refused", |pod| phase(pod) == "Failed").await.status.unwrap();
    assert_eq!(late.reason.as_deref(), Some("NodeShutdown"));
    assert_eq!(late.message.as_deref(), Some("Pod was rejected as the node is shutting down."));
    // Called off: everything is as before.
    logind.announce(false);
    node.wait_until("shutdowns are held up again", || logind.taken() == 2).await;
    node.wait_condition("Ready", "True").await;
    node.create("again", sleeps()).await;
    node.wait("again", "ready", is_ready).await;
}

/// With systemd's driver, pods are slices, and containers of our runtime scopes in them.
pub(crate) async fn pods_are_slices(node: &mut Node) {
    let bus = Bus::start(node.dir.path());
    let systemd = Systemd::start(&bus);
    node.stop_kubelet().await;
    let ours = node.runtime.kind == Kind::Cox;
    if ours {
        node.runtime.kill();
        node.runtime.use_systemd(&bus.socket);
        node.runtime.spawn();
    }
    let socket = bus.socket.clone();
    node.start_kubelet_with(|settings| {
        settings.system_bus = socket;
        settings.cgroup_driver = kubelet::CgroupDriver::Systemd;
    });
    node.wait_condition("Ready", "True").await;
    let base = format!("cox_test_{}-kubepods", node.name);
    let find = |method: &str, unit: &str| {
        let asked = systemd.asked();
        asked.into_iter().rfind(|asked| asked.method == method && asked.unit.starts_with(unit))
    };
    for level in ["", "-burstable", "-besteffort"] {
        let unit = format!("{base}{level}.slice");
        node.wait_until("slices are started", || find("StartTransientUnit", &unit).is_some()).await;
    }
    let limited = || find("SetUnitProperties", &format!("{base}.slice"));
    node.wait_until("the slice of all pods has its limits", || limited().is_some()).await;
    let all_pods = limited().unwrap().properties;
    for names in [&["CPUShares", "CPUWeight"][..], &["MemoryLimit", "MemoryMax"], &["TasksMax"]] {
        assert!(all_pods.iter().any(|(name, _)| names.contains(&name.as_str())), "{names:?} in {all_pods:?}");
    }
    let burstable = format!("{base}-burstable.slice");
    let gives = |asked: &Asked, unit: &str, shares: i64| {
        let weight = cgroup::shares_to_weight(shares);
        let property = |name: &str, value: i64| (name.to_owned(), Value::U64(value.unsigned_abs()));
        let either = [property("CPUShares", shares), property("CPUWeight", weight)];
        asked.method == "SetUnitProperties"
            && asked.unit == unit
            && either.iter().any(|property| asked.properties.contains(property))
    };
    let has_shares =
        |unit: &str, shares: i64| find("SetUnitProperties", unit).is_some_and(|asked| gives(&asked, unit, shares));
    for unit in [&format!("{base}-besteffort.slice"), &burstable] {
        node.wait_until("a level without requests has the least", || has_shares(unit, 2)).await;
    }
    if !ours {
        // containerd is configured for directories here: what it makes of a slice is its own business.
        return;
    }
    let resources = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "500m", "memory": "32Mi"}});
    node.create(
        "sliced",
        json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "resources": resources}], "terminationGracePeriodSeconds": 0}),
    )
    .await;
    let pod: Pod = node.wait("sliced", "ready", is_ready).await;
    let uid = pod.metadata.uid.as_deref().unwrap().replace('-', "_");
    let slice = format!("{base}-burstable-pod{uid}.slice");
    let limits = find("SetUnitProperties", &slice).unwrap().properties;
    assert!(limits.contains(&("CPUQuotaPerSecUSec".into(), Value::U64(500_000))), "{limits:?}");
    let id = crate::node::container_id(&pod).unwrap();
    let scope = format!("cox-{}.scope", id.split_once("://").unwrap().1);
    let asked = systemd.asked();
    let shared = asked.iter().position(|asked| gives(asked, &burstable, 102));
    let started = asked.iter().position(|asked| asked.unit == scope);
    assert!(shared.is_some() && shared < started, "{shared:?} is not before {started:?}");
    let properties = find("StartTransientUnit", &scope).unwrap().properties;
    for (name, value) in [
        ("Slice", Value::text(slice.clone())),
        ("Delegate", Value::Bool(true)),
        ("DevicePolicy", Value::text("strict")),
        ("PIDs", Value::Array("u".into(), vec![Value::U32(node.pid(&pod).await as u32)])),
    ] {
        assert!(properties.contains(&(name.into(), value.clone())), "{name} {value:?} in {properties:?}");
    }
    let own = std::fs::read_to_string(format!("/proc/{}/cgroup", node.pid(&pod).await)).unwrap();
    assert!(own.contains(&format!("/{slice}/{scope}")), "{own}");
    node.delete("sliced").await;
    node.wait_until("slice and scope are stopped", || {
        [&scope, &slice].iter().all(|unit| find("StopUnit", unit).is_some())
    })
    .await;
    node.wait_until("nothing is requested any more", || has_shares(&burstable, 2)).await;
}
