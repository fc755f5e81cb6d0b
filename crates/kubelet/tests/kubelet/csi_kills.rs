//! Kubelet, runtime or CSI driver killed between any two calls of a driver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{DeleteParams, Patch};
use csi::tonic::Code;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};
use testkit::csi_driver::{Driver, Options, Served, When, mounts_at, mounts_below};

use crate::csi::{NAME, assert_clean, claim, driver, registry, uid, walk};
use crate::node::{Node, is_ready, shell};

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Kubelet,
    Runtime,
    Driver,
}

pub(crate) async fn a_kubelet_killed_between_any_two_calls_loses_nothing(node: &mut Node) {
    kill_at_every_call(node, Victim::Kubelet).await;
}

pub(crate) async fn a_runtime_killed_between_any_two_calls_loses_nothing(node: &mut Node) {
    kill_at_every_call(node, Victim::Runtime).await;
}

pub(crate) async fn a_driver_killed_between_any_two_calls_loses_nothing(node: &mut Node) {
    kill_at_every_call(node, Victim::Driver).await;
}

/// A call on the way up, when the victim is killed at it, and the call on the way down at which it is killed again.
const MOMENTS: [(&str, When, &str); 6] = [
    ("NodeStageVolume", When::Before, "NodeUnpublishVolume"),
    ("NodeStageVolume", When::After, "NodeUnpublishVolume"),
    ("NodePublishVolume", When::Before, "NodeUnstageVolume"),
    ("NodePublishVolume", When::After, "NodeUnstageVolume"),
    ("NodeExpandVolume", When::After, "NodeUnpublishVolume"),
    ("NodeExpandVolume", When::Before, "NodeUnstageVolume"),
];

/// The victim is killed before and after every call of a driver, on the way up and on the way down, once with the pod gone
/// from the API meanwhile. Each time the next one goes on: nothing is mounted twice, leaked or lost, and the claim hears that its
/// volume has grown.
async fn kill_at_every_call(node: &mut Node, victim: Victim) {
    if victim == Victim::Kubelet {
        node.stop_kubelet().await;
        node.spawn_kubelet();
    }
    let modes = json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]});
    let mut served = driver(node, Options::new(NAME), modes).await;
    let driver = served.driver.clone();
    claim(node, "data", NAME, json!({})).await;
    claim(node, "raw", NAME, json!({"volumeMode": "Block"})).await;
    for (round, (up, when, down)) in (1..).zip(MOMENTS) {
        let name = format!("round-{round}");
        let size = format!("{}Gi", round + 1);
        let_grow(node, "data", &size).await;
        let is_killed = kill_at(node, &driver, victim, up, when);
        node.create(&name, using_all(&format!("test -c /dev/raw && echo {round} >> /v/log; sleep 1000"))).await;
        wait_killed(node, victim, &is_killed).await;
        served = bring_back(node, victim, served).await;
        let pod = node.wait(&name, "ready", is_ready).await;
        let publishes = driver.publishes();
        let own = publishes.iter().filter(|request| request.target_path.contains(uid(&pod)));
        let mut places: BTreeSet<&str> = own.clone().map(|request| request.target_path.as_str()).collect();
        assert_eq!(places.len(), 3, "{places:?}");
        // A device is not mounted where it is staged.
        let staged = own.filter(|request| request.volume_id == "handle-data");
        places.extend(staged.map(|request| request.staging_target_path.as_str()));
        for path in places {
            assert_eq!(mounts_at(Path::new(path)), 1, "round {round}: {path}");
        }
        let expected: String = (1..=round).map(|number| format!("{number}\n")).collect();
        node.wait_until("written", || {
            std::fs::read_to_string(driver.volume("handle-data").join("log")).unwrap_or_default() == expected
        })
        .await;

        wait_grown(node, "data", &size).await;
        let is_killed = kill_at(node, &driver, victim, down, when);
        let pods = node.api.client().namespaced::<Pod>("default");
        pods.delete(&name, &DeleteParams::default().with_grace_period(1)).await.unwrap();
        wait_killed(node, victim, &is_killed).await;
        if round == 4 {
            let now = DeleteParams::default().with_grace_period(0);
            // The API may have let it go already.
            let _ = pods.delete(&name, &now).await;
        }
        served = bring_back(node, victim, served).await;
        node.wait_gone(&name).await;
        let root = node.dir.path().join("kubelet");
        node.wait_until("everything is undone", || {
            mounts_below(&root.join("plugins")).is_empty() && !root.join("pods").join(uid(&pod)).exists()
        })
        .await;
        node.wait_until("and forgotten", || {
            !walk(&root.join("plugins")).iter().any(|path| path.ends_with("vol_data.json"))
        })
        .await;
    }
    // Whatever was asked for last of a place is that it be free.
    let mut last = BTreeMap::new();
    for entry in driver.ledger().into_iter().filter(|entry| entry.code == Some(Code::Ok) && !entry.volume.is_empty()) {
        if entry.call.contains("stage") || entry.call.contains("Stage") || entry.call.contains("ublish") {
            last.insert(entry.path.clone(), entry.call);
        }
    }
    assert!(last.values().all(|call| call.starts_with("NodeUn")), "{last:?}");
    assert_clean(node, &driver);
}

/// A pod with a volume of each kind: mounted, as a device, and of its own.
fn using_all(script: &str) -> Value {
    json!({
        "containers": [{
            "name": "c", "command": shell(script),
            "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "own", "mountPath": "/own"}],
            "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw"}],
        }],
        "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "raw", "persistentVolumeClaim": {"claimName": "raw"}},
            {"name": "own", "csi": {"driver": NAME}},
        ],
        "terminationGracePeriodSeconds": 0,
    })
}

/// The volume is larger, and the rest is the node's, as the resizer says.
async fn let_grow(node: &Node, name: &str, size: &str) {
    let client = node.api.client();
    let larger = json!({"spec": {"capacity": {"storage": size}}});
    client.all::<PersistentVolume>().patch(&format!("pv-{name}"), &Patch::merge(larger)).await.unwrap();
    let pending = json!({"status": {
        "allocatedResources": {"storage": size}, "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    }});
    let claims = client.namespaced::<PersistentVolumeClaim>("default");
    claims.patch_status(name, &Patch::merge(pending)).await.unwrap();
}

pub(crate) async fn wait_grown(node: &Node, name: &str, size: &str) {
    let claims = node.api.client().namespaced::<PersistentVolumeClaim>("default");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    loop {
        let status = claims.get(name).await.unwrap().status.unwrap();
        let has_stage = status.allocated_resource_statuses.as_ref().is_some_and(|stages| !stages.is_empty());
        if status.capacity.as_ref().unwrap()["storage"].0 == size && !has_stage {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{size}: {status:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// From now on the victim dies at this moment of a call, once; says when that has come. A call whose caller or driver is gone
/// does not go on.
fn kill_at(node: &Node, driver: &Arc<Driver>, victim: Victim, call: &'static str, moment: When) -> Arc<AtomicBool> {
    let pid = match victim {
        Victim::Kubelet => Some(node.kubelet_pid()),
        Victim::Runtime => Some(node.runtime.pid()),
        // It is a part of this process: who waits for the moment ends it.
        Victim::Driver => None,
    };
    let is_killed = Arc::new(AtomicBool::new(false));
    let killed = is_killed.clone();
    driver.set_hook(move |name, when| {
        if name != call || when != moment || killed.load(Ordering::SeqCst) {
            return true;
        }
        if let Some(pid) = pid {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        killed.store(true, Ordering::SeqCst);
        victim == Victim::Runtime
    });
    is_killed
}

async fn wait_killed(node: &Node, victim: Victim, is_killed: &AtomicBool) {
    node.wait_until("the moment has come", || is_killed.load(Ordering::SeqCst)).await;
    if victim == Victim::Kubelet {
        let stat = PathBuf::from(format!("/proc/{}/stat", node.kubelet_pid()));
        node.wait_until("the kubelet is killed", || {
            // A zombie: it is our child.
            std::fs::read_to_string(&stat)
                .is_ok_and(|text| text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
        })
        .await;
    }
}

/// Starts the victim again.
async fn bring_back(node: &mut Node, victim: Victim, served: Served) -> Served {
    served.driver.set_hook(|_, _| true);
    match victim {
        Victim::Kubelet => {
            node.stop_kubelet().await;
            node.spawn_kubelet();
            served
        }
        Victim::Runtime => {
            node.runtime.kill();
            node.runtime.spawn();
            served
        }
        Victim::Driver => {
            let driver = served.driver.clone();
            served.kill();
            driver.serve(&registry(node))
        }
    }
}
