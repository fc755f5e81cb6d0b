use super::*;
use k8s_openapi::api::core::v1::PodSpec;

struct AllReady;
impl Readiness for AllReady {
    fn is_started(&self, _: &str, _: &Container) -> bool {
        true
    }
    fn is_ready(&self, _: &str, _: &Container) -> bool {
        true
    }
}

fn pod(policy: &str, init: &[&str], main: &[&str]) -> Pod {
    let make = |name: &&str| Container {
        name: name.trim_start_matches('*').into(),
        restart_policy: name.starts_with('*').then(|| "Always".into()),
        ..Default::default()
    };
    Pod {
        spec: Some(PodSpec {
            restart_policy: Some(policy.into()),
            init_containers: Some(init.iter().map(make).collect()),
            containers: main.iter().map(make).collect(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn seen(containers: &[(&str, Phase, i32)]) -> PodState {
    state::tests::up(containers, |seen| ContainerState {
        started_at: 1_000_000_000,
        finished_at: 2_000_000_000,
        ..seen
    })
}

fn status_of(pod: &Pod, state: &PodState, waiting: &[(&str, &'static str)], is_terminating: bool) -> PodStatus {
    let waiting =
        waiting.iter().map(|(name, reason)| ((*name).to_string(), Waiting { reason, message: "m".into() })).collect();
    pod_status(
        pod,
        &Observed {
            state,
            waiting: &waiting,
            readiness: &AllReady,
            resize: &Default::default(),
            host_ips: &["192.0.2.1".into()],
            is_terminating,
            ended: None,
            runtime_name: "containerd",
            recursive_read_only: false,
            now: Timestamp::from_second(1000).unwrap(),
        },
    )
}

#[test]
fn whatever_did_not_start_has_failed_in_the_end() {
    use serde_json::json;
    let waiting = |name: &str| {
        json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ContainerCreating"}}})
    };
    let done = |name: &str, code: i32| {
        json!({"name": name, "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"terminated": {"exitCode": code}}})
    };
    for (inits, containers, phase, ends, expected) in [
        // Ended, of the init containers and of the others; and the phase.
        (vec![], vec![waiting("a")], "Pending", vec!["a"], "Failed"),
        (vec![waiting("i"), waiting("j")], vec![waiting("a")], "Pending", vec!["i"], "Failed"),
        (vec![done("i", 0), waiting("j")], vec![waiting("a")], "Pending", vec!["i"], "Failed"),
        (vec![done("i", 0)], vec![waiting("a")], "Pending", vec!["i", "a"], "Failed"),
        (vec![], vec![done("a", 0)], "Succeeded", vec!["a"], "Succeeded"),
        (vec![], vec![done("a", 0), waiting("b")], "Running", vec!["a", "b"], "Failed"),
    ] {
        let names = |list: &[serde_json::Value]| list.iter().map(|s| json!({"name": s["name"]})).collect::<Vec<_>>();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"}, "spec": {"initContainers": names(&inits), "containers": names(&containers)},
            "status": {"phase": phase, "initContainerStatuses": inits, "containerStatuses": containers},
        }))
        .unwrap();
        let status = over(&pod, pod.status.clone().unwrap());
        let all = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
        let ended: Vec<&str> = all.filter(|s| terminated(s).is_some()).map(|s| s.name.as_str()).collect();
        assert_eq!((ended, status.phase.as_deref()), (ends, Some(expected)));
    }
}

#[test]
fn phases() {
    use Phase::*;
    for (what, pod, state, waiting, is_terminating, expected) in [
        ("nothing yet", pod("Always", &[], &["a"]), seen(&[]), vec![], false, "Pending"),
        ("runs", pod("Always", &[], &["a"]), seen(&[("a", Running, 0)]), vec![], false, "Running"),
        ("one of two", pod("Always", &[], &["a", "b"]), seen(&[("a", Running, 0)]), vec![], false, "Pending"),
        (
            "crash loop",
            pod("Always", &[], &["a"]),
            seen(&[("a", Exited, 1)]),
            vec![("a", "CrashLoopBackOff")],
            false,
            "Running",
        ),
        ("done", pod("OnFailure", &[], &["a"]), seen(&[("a", Exited, 0)]), vec![], false, "Succeeded"),
        ("failed", pod("Never", &[], &["a"]), seen(&[("a", Exited, 2)]), vec![], false, "Failed"),
        ("retried", pod("OnFailure", &[], &["a"]), seen(&[("a", Exited, 2)]), vec![], false, "Running"),
        ("stopped by us", pod("Always", &[], &["a"]), seen(&[("a", Exited, 0)]), vec![], true, "Succeeded"),
        ("killed by us", pod("Always", &[], &["a"]), seen(&[("a", Exited, 137)]), vec![], true, "Failed"),
        ("init runs", pod("Always", &["i"], &["a"]), seen(&[("i", Running, 0)]), vec![], false, "Pending"),
        (
            "init crash loop",
            pod("Always", &["i"], &["a"]),
            seen(&[("i", Exited, 1)]),
            vec![("i", "CrashLoopBackOff")],
            false,
            "Pending",
        ),
        ("init failed", pod("Never", &["i"], &["a"]), seen(&[("i", Exited, 1)]), vec![], false, "Failed"),
        (
            "init done",
            pod("Never", &["i"], &["a"]),
            seen(&[("a", Running, 0), ("i", Exited, 0)]),
            vec![],
            false,
            "Running",
        ),
        (
            "sidecar up",
            pod("Never", &["*s"], &["a"]),
            seen(&[("a", Running, 0), ("s", Running, 0)]),
            vec![],
            false,
            "Running",
        ),
        (
            "sidecar killed at the end",
            pod("Never", &["*s"], &["a"]),
            seen(&[("a", Exited, 0), ("s", Exited, 137)]),
            vec![],
            true,
            "Succeeded",
        ),
    ] {
        let status = status_of(&pod, &state, &waiting, is_terminating);
        assert_eq!(status.phase.as_deref(), Some(expected), "{what}");
    }
}

#[test]
fn init_failure_is_told_as_upstream_does() {
    let status = status_of(
        &pod("Always", &["init1", "init2"], &["a"]),
        &seen(&[("init1", Phase::Exited, 1)]),
        &[("init1", "CrashLoopBackOff")],
        false,
    );
    let conditions = status.conditions.unwrap();
    let initialized = conditions.iter().find(|c| c.type_ == "Initialized").unwrap();
    assert_eq!(initialized.reason.as_deref(), Some("ContainersNotInitialized"));
    assert_eq!(initialized.message.as_deref(), Some("containers with incomplete status: [init1 init2]"));
    let main = &status.container_statuses.unwrap()[0];
    assert_eq!(main.state.as_ref().unwrap().waiting.as_ref().unwrap().reason.as_deref(), Some("PodInitializing"));
    let init = &status.init_container_statuses.unwrap()[0];
    assert_eq!(init.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1);
}

#[test]
fn transition_times_move_only_with_the_status() {
    let mut pod = pod("Always", &[], &["a"]);
    let state = seen(&[("a", Phase::Running, 0)]);
    pod.status = Some(status_of(&pod, &state, &[], false));
    let later = pod_status(
        &pod,
        &Observed {
            state: &seen(&[("a", Phase::Exited, 1)]),
            waiting: &HashMap::new(),
            readiness: &AllReady,
            resize: &Default::default(),
            host_ips: &[],
            is_terminating: false,
            ended: None,
            runtime_name: "containerd",
            recursive_read_only: false,
            now: Timestamp::from_second(2000).unwrap(),
        },
    );
    let time_of = |kind: &str| {
        later
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == kind)
            .unwrap()
            .last_transition_time
            .clone()
            .unwrap()
            .0
            .as_second()
    };
    assert_eq!(time_of("Ready"), 2000);
    assert_eq!(time_of("Initialized"), 1000);
}

#[test]
fn an_end_that_was_told_is_not_taken_back() {
    use Phase::*;
    let only = |status: PodStatus| status.container_statuses.unwrap().remove(0);
    for (policy, exit_code, count, kept) in [
        ("Never", 1, 0, true),
        ("Never", 0, 0, true),
        ("OnFailure", 0, 0, true),
        // Another container, as the count says.
        ("Never", 1, 1, false),
        ("OnFailure", 1, 0, false),
        ("Always", 0, 0, false),
    ] {
        let mut pod = pod(policy, &[], &["a"]);
        pod.status = Some(status_of(&pod, &seen(&[("a", Exited, exit_code)]), &[], false));
        for phase in [Created, Running] {
            let mut state = seen(&[("a", phase, 0)]);
            state.containers[0].restart_count = count;
            let status = only(status_of(&pod, &state, &[], false));
            assert_eq!(terminated(&status).is_some(), kept, "{policy} {exit_code} {phase} {status:?}");
            assert_eq!(status.ready, !kept && phase == Running, "{policy} {exit_code} {phase}");
        }
    }
}

#[test]
fn a_restart_of_all_containers_is_told_step_by_step() {
    use Phase::*;
    let mut pod = pod("Never", &["i", "*s"], &["a", "b"]);
    let rule = serde_json::json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let cause = &mut pod.spec.as_mut().unwrap().containers[0];
    cause.restart_policy = Some("Never".into());
    cause.restart_policy_rules = Some(vec![serde_json::from_value(rule).unwrap()]);
    let told = |status: &PodStatus| {
        let all = status.conditions.iter().flatten().find(|condition| condition.type_ == ALL_RESTARTING).unwrap();
        (status.phase.clone().unwrap(), all.status.clone())
    };
    let expected = |phase: &str, restarting: &str| (phase.to_string(), restarting.to_string());

    let runs = [("i", Exited, 0), ("s", Running, 0), ("a", Running, 0), ("b", Running, 0)];
    pod.status = Some(status_of(&pod, &seen(&runs), &[], false));
    assert_eq!(told(pod.status.as_ref().unwrap()), expected("Running", "False"));
    // The cause has ended, another one before it.
    let ended = [("i", Exited, 0), ("s", Running, 0), ("a", Exited, 42), ("b", Exited, 1)];
    pod.status = Some(status_of(&pod, &seen(&ended), &[], false));
    assert_eq!(told(pod.status.as_ref().unwrap()), expected("Running", "True"));
    // Half way through it is the same to a kubelet that starts now.
    assert_eq!(told(&status_of(&pod, &seen(&[("a", Exited, 42)]), &[], false)), expected("Running", "True"));
    pod.status = Some(status_of(&pod, &seen(&[]), &[], false));
    let status = pod.status.clone().unwrap();
    assert_eq!(told(&status), expected("Running", "False"));
    let all = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    for container in all {
        let state = container.state.as_ref().unwrap().waiting.as_ref().unwrap();
        let last = container.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
        let found = (state.reason.as_deref(), last.exit_code, last.reason.as_deref(), container.restart_count);
        let restarting = Some("RestartingAllContainers");
        assert_eq!(found, (restarting, 137, restarting, 1), "{}", container.name);
    }
    // Once more from the beginning.
    let again = |containers: &[(&str, Phase, i32)]| {
        let mut state = seen(containers);
        state.containers.iter_mut().for_each(|container| container.restart_count = 1);
        state
    };
    pod.status = Some(status_of(&pod, &again(&[("i", Exited, 0), ("s", Running, 0)]), &[], false));
    assert_eq!(told(pod.status.as_ref().unwrap()), expected("Running", "False"));
    pod.status = Some(status_of(&pod, &again(&runs), &[], false));
    let status = pod.status.unwrap();
    assert_eq!(told(&status), expected("Running", "False"));
    assert!(
        status.container_statuses.iter().flatten().all(|container| container.ready && container.restart_count == 1)
    );
}
