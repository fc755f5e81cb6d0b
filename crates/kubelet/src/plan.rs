//! Decides what to kill and what to start for one pod. Pure: the same spec and state always give
//! the same actions, and running it again after they are done gives none.
//!
//! Flow: `state` + probe verdicts -> here -> `sync`, which carries the actions out.
//! Not here: back-off and image pulls. They delay an action; they do not change what is wanted.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::state::{self, ContainerState, Phase, PodState};

/// What a probe has decided about a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Success,
    Failure,
}

/// The latest verdicts of liveness and startup probes, by container id.
pub(crate) trait Verdicts {
    fn liveness(&self, container_id: &str) -> Option<Verdict>;
    fn startup(&self, container_id: &str) -> Option<Verdict>;
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Actions {
    /// Stop every container and the sandbox before anything else.
    pub(crate) kill_pod: bool,
    /// Make a new sandbox, with this attempt number.
    pub(crate) create_sandbox: Option<u32>,
    /// Indexes into the spec's lists, in the order to start them.
    pub(crate) start_init: Vec<usize>,
    pub(crate) start: Vec<usize>,
    pub(crate) start_ephemeral: Vec<usize>,
    pub(crate) kill: Vec<Kill>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kill {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) message: String,
    pub(crate) reason: KillReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillReason {
    LivenessProbe,
    StartupProbe,
    Other,
}

/// Why the pod needs a new sandbox, with the attempt number it would get.
pub(crate) fn sandbox_needed(pod: &Pod, state: &PodState) -> Option<(u32, &'static str)> {
    let Some(latest) = state.sandboxes.first() else {
        return Some((0, "No sandbox for pod can be found. Need to start a new one"));
    };
    let ready = state.sandboxes.iter().filter(|sandbox| sandbox.ready).count();
    if ready > 1 {
        return Some((latest.attempt + 1, "Multiple sandboxes are ready for Pod. Need to reconcile them"));
    }
    if !latest.ready {
        return Some((latest.attempt + 1, "No ready sandbox for pod can be found. Need to start a new one"));
    }
    let host_network = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    if host_network != latest.host_network {
        return Some((latest.attempt + 1, "Sandbox for pod has changed. Need to start a new one"));
    }
    if !host_network && latest.ips.is_empty() {
        return Some((latest.attempt + 1, "Sandbox for pod has no IP address. Need to start a new one"));
    }
    None
}

pub(crate) fn plan(pod: &Pod, state: &PodState, verdicts: &dyn Verdicts) -> Actions {
    let mut actions = Actions::default();
    let Some(spec) = &pod.spec else { return actions };
    let policy = state::restart_policy(pod);

    if let Some((attempt, _)) = sandbox_needed(pod, state) {
        plan_new_sandbox(spec, policy, state, attempt, &mut actions);
        return actions;
    }

    for (index, ephemeral) in spec.ephemeral_containers.iter().flatten().enumerate() {
        // Never restarted: one that ever existed has had its turn.
        if state.container(&ephemeral.name).is_none() {
            actions.start_ephemeral.push(index);
        }
    }

    let is_initialized = plan_init(spec, policy, state, verdicts, &mut actions);
    if actions.kill_pod || !is_initialized {
        return actions;
    }

    let mut kept = 0;
    for (index, container) in spec.containers.iter().enumerate() {
        let Some(current) = state.container(&container.name).filter(|c| c.is_running()) else {
            plan_stopped(container, index, policy, state, &mut actions);
            continue;
        };
        let (message, reason, mut restart) = if current.hash != state::container_hash(container) {
            (format!("Container {} definition changed", container.name), KillReason::Other, true)
        } else if verdicts.liveness(&current.id) == Some(Verdict::Failure) {
            (format!("Container {} failed liveness probe", container.name), KillReason::LivenessProbe, false)
        } else if verdicts.startup(&current.id) == Some(Verdict::Failure) {
            (format!("Container {} failed startup probe", container.name), KillReason::StartupProbe, false)
        } else {
            kept += 1;
            continue;
        };
        restart |= container.restart_policy.as_deref().unwrap_or(policy) != "Never";
        let message = if restart {
            actions.start.push(index);
            format!("{message}, will be restarted")
        } else {
            message
        };
        actions.kill.push(Kill { id: current.id.clone(), name: container.name.clone(), message, reason });
    }
    if kept == 0 && actions.start.is_empty() {
        actions.kill_pod = true;
        // Sidecars must not keep a finished pod alive.
        actions.start_init.clear();
    }
    actions
}

/// Every container of a pod that starts all over, in the order in which they are removed. Those whose end asked for it
/// go last: as long as one is there, a kubelet that was restarted goes on with it.
pub(crate) fn reset<'a>(pod: &Pod, state: &'a PodState) -> Vec<&'a ContainerState> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let records = all.flat_map(|container| {
        let records = state.containers.iter().filter(|record| record.name == container.name);
        records.map(|record| {
            let has_ended = record.phase == Phase::Exited;
            (has_ended && state::restarts_all_after(container, record.exit_code), record)
        })
    });
    let (causes, others): (Vec<_>, Vec<_>) = records.partition(|(is_cause, _)| *is_cause);
    others.into_iter().chain(causes).map(|(_, record)| record).collect()
}

fn plan_new_sandbox(spec: &PodSpec, policy: &str, state: &PodState, attempt: u32, actions: &mut Actions) {
    actions.kill_pod = true;
    if policy == "Never" && attempt != 0 && !state.containers.is_empty() {
        return;
    }
    let succeeded = |container: &Container| {
        state.container(&container.name).is_some_and(|c| c.phase == Phase::Exited && c.exit_code == 0)
    };
    let start: Vec<usize> = spec
        .containers
        .iter()
        .enumerate()
        .filter(|(_, container)| {
            let own = container.restart_policy.as_deref().unwrap_or(policy);
            !(own == "OnFailure" && succeeded(container))
        })
        .map(|(index, _)| index)
        .collect();
    let was_initialized = spec.containers.iter().any(|c| state.container(&c.name).is_some());
    if start.is_empty() && was_initialized {
        return;
    }
    actions.create_sandbox = Some(attempt);
    if spec.init_containers.as_ref().is_some_and(|init| !init.is_empty()) {
        actions.start_init = vec![0];
    } else {
        actions.start = start;
    }
}

/// A main container that is not running: start it if its policy says so.
fn plan_stopped(container: &Container, index: usize, policy: &str, state: &PodState, actions: &mut Actions) {
    let current = state.container(&container.name);
    let wanted = match current {
        None => true,
        Some(c) => match c.phase {
            Phase::Created | Phase::Unknown => true,
            Phase::Running => false,
            Phase::Exited => state::restarts_after(container, policy, c.exit_code),
        },
    };
    if !wanted {
        return;
    }
    actions.start.push(index);
    if let Some(c) = current.filter(|c| c.phase == Phase::Unknown) {
        actions.kill.push(unknown_kill(c, "Container"));
    }
}

/// Nobody knows whether it runs: stop it first, so that there are never two.
fn unknown_kill(container: &ContainerState, what: &str) -> Kill {
    Kill {
        id: container.id.clone(),
        name: container.name.clone(),
        message: format!("{what} is in \"{}\" state, try killing it before restart", container.phase),
        reason: KillReason::Other,
    }
}

/// Walks init containers from the last to the first, since old ones may have been collected: the
/// last one seen says how far initialization got. Returns whether it is complete.
fn plan_init(spec: &PodSpec, policy: &str, state: &PodState, verdicts: &dyn Verdicts, actions: &mut Actions) -> bool {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    if init.is_empty() {
        return true;
    }
    let mut is_initialized =
        spec.containers.iter().any(|c| state.active(&c.name).is_some_and(|c| c.phase != Phase::Created));
    let mut later_started = is_initialized;

    for (index, container) in init.iter().enumerate().rev() {
        let sidecar = state::is_sidecar(container);
        let Some(current) = state.active(&container.name) else {
            if later_started && sidecar {
                actions.start_init.push(index);
            }
            continue;
        };
        if later_started && !sidecar {
            continue;
        }
        let is_last = index + 1 == init.len();
        match current.phase {
            Phase::Created => actions.start_init.push(index),
            Phase::Running if sidecar => plan_running_sidecar(
                container,
                current,
                index,
                is_last,
                later_started,
                verdicts,
                &mut is_initialized,
                actions,
            ),
            Phase::Running => {}
            Phase::Exited if sidecar => actions.start_init.push(index),
            Phase::Exited if current.has_failed() => {
                if !state::restarts_after(container, policy, current.exit_code) {
                    actions.kill_pod = true;
                    actions.start_init.clear();
                    return false;
                }
                actions.start_init.push(index);
            }
            Phase::Exited if is_last => is_initialized = true,
            Phase::Exited => actions.start_init.push(index + 1),
            Phase::Unknown => {
                if !sidecar && policy == "Never" {
                    actions.kill_pod = true;
                    actions.start_init.clear();
                    return false;
                }
                actions.kill.push(unknown_kill(current, "Init container"));
                actions.start_init.push(index);
            }
        }
        later_started = true;
    }
    if !later_started {
        actions.start_init.push(0);
    }
    actions.start_init.reverse();
    is_initialized
}

#[expect(clippy::too_many_arguments, reason = "one arm of plan_init, split for length")]
fn plan_running_sidecar(
    container: &Container,
    current: &ContainerState,
    index: usize,
    is_last: bool,
    later_started: bool,
    verdicts: &dyn Verdicts,
    is_initialized: &mut bool,
    actions: &mut Actions,
) {
    let mut restart = |what: &str, reason| {
        actions.kill.push(Kill {
            id: current.id.clone(),
            name: container.name.clone(),
            message: format!("Init container {} {what}", container.name),
            reason,
        });
    };
    if container.startup_probe.is_some() {
        match verdicts.startup(&current.id) {
            Some(Verdict::Success) => {}
            Some(Verdict::Failure) => {
                restart("failed startup probe", KillReason::StartupProbe);
                actions.start_init.push(index);
                return;
            }
            None => return,
        }
    }
    if current.hash != state::container_hash(container) {
        restart("definition changed", KillReason::Other);
    } else if verdicts.liveness(&current.id) == Some(Verdict::Failure) {
        restart("failed liveness probe", KillReason::LivenessProbe);
    }
    let restarted = actions.kill.iter().any(|kill| kill.id == current.id);
    if is_last {
        *is_initialized = true;
    } else if !later_started {
        actions.start_init.push(index + 1);
    }
    if restarted {
        actions.start_init.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ContainerRestartRule, ContainerRestartRuleOnExitCodes};
    use std::collections::HashMap;

    #[test]
    fn the_cause_of_a_whole_restart_is_removed_last() {
        let mut cause = container("cause");
        cause.restart_policy = Some("Never".into());
        cause.restart_policy_rules = Some(vec![ContainerRestartRule {
            action: "RestartAllContainers".into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes { operator: "In".into(), values: Some(vec![42]) }),
        }]);
        let mut pod = pod("Never", vec![container("init"), sidecar("side")], &["main"]);
        pod.spec.as_mut().unwrap().containers.insert(0, cause);
        let records = [
            ("cause", Phase::Exited, 42),
            ("main", Phase::Running, 0),
            ("side", Phase::Running, 0),
            ("init", Phase::Exited, 0),
            ("debugger", Phase::Running, 0),
        ];
        let state = state::tests::up(&records, |record| record);
        let names: Vec<&str> = reset(&pod, &state).into_iter().map(|record| record.name.as_str()).collect();
        assert_eq!(names, ["main", "init", "side", "cause"]);
    }

    #[derive(Default)]
    struct Probed(HashMap<&'static str, Verdict>);
    impl Verdicts for Probed {
        fn liveness(&self, id: &str) -> Option<Verdict> {
            self.0.get(id).copied()
        }
        fn startup(&self, _: &str) -> Option<Verdict> {
            None
        }
    }

    fn container(name: &str) -> Container {
        Container { name: name.into(), image: Some("i".into()), ..Default::default() }
    }

    fn sidecar(name: &str) -> Container {
        Container { restart_policy: Some("Always".into()), ..container(name) }
    }

    fn pod(policy: &str, init: Vec<Container>, names: &[&str]) -> Pod {
        Pod {
            spec: Some(PodSpec {
                restart_policy: Some(policy.into()),
                init_containers: Some(init),
                containers: names.iter().map(|name| container(name)).collect(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn up(containers: &[(&str, Phase, i32)]) -> PodState {
        state::tests::up(containers, |seen| ContainerState {
            hash: state::container_hash(&container(&seen.name)),
            ..seen
        })
    }

    fn down(mut state: PodState) -> PodState {
        state.sandboxes[0].ready = false;
        state
    }

    /// A short text of the actions, so that a case is one row.
    fn told(actions: &Actions) -> String {
        let mut words = Vec::new();
        if actions.kill_pod {
            words.push("kill-pod".to_string());
        }
        if let Some(attempt) = actions.create_sandbox {
            words.push(format!("sandbox#{attempt}"));
        }
        words.extend(actions.kill.iter().map(|kill| format!("kill:{}", kill.name)));
        words.extend(actions.start_init.iter().map(|i| format!("init:{i}")));
        words.extend(actions.start.iter().map(|i| format!("start:{i}")));
        words.extend(actions.start_ephemeral.iter().map(|i| format!("ephemeral:{i}")));
        words.join(" ")
    }

    #[test]
    fn plans() {
        use Phase::*;
        let plain = || pod("Always", vec![], &["a", "b"]);
        let rows: Vec<(&str, Pod, PodState, &str)> = vec![
            ("new pod", plain(), PodState::default(), "kill-pod sandbox#0 start:0 start:1"),
            ("fresh sandbox", plain(), up(&[]), "start:0 start:1"),
            ("all run", plain(), up(&[("a", Running, 0), ("b", Running, 0)]), ""),
            ("one died", plain(), up(&[("a", Running, 0), ("b", Exited, 1)]), "start:1"),
            ("created only", plain(), up(&[("a", Running, 0), ("b", Created, 0)]), "start:1"),
            ("unknown", plain(), up(&[("a", Running, 0), ("b", Unknown, 0)]), "kill:b start:1"),
            ("never, one done", pod("Never", vec![], &["a", "b"]), up(&[("a", Running, 0), ("b", Exited, 1)]), ""),
            ("never, all done", pod("Never", vec![], &["a"]), up(&[("a", Exited, 1)]), "kill-pod"),
            ("on failure, failed", pod("OnFailure", vec![], &["a"]), up(&[("a", Exited, 1)]), "start:0"),
            ("on failure, done", pod("OnFailure", vec![], &["a"]), up(&[("a", Exited, 0)]), "kill-pod"),
            (
                "sandbox died",
                plain(),
                down(up(&[("a", Exited, 137), ("b", Exited, 137)])),
                "kill-pod sandbox#1 start:0 start:1",
            ),
            ("sandbox died, never", pod("Never", vec![], &["a"]), down(up(&[("a", Exited, 137)])), "kill-pod"),
            (
                "sandbox died, on failure, one was done",
                pod("OnFailure", vec![], &["a", "b"]),
                down(up(&[("a", Exited, 0), ("b", Exited, 1)])),
                "kill-pod sandbox#1 start:1",
            ),
            (
                "init first",
                pod("Always", vec![container("i"), container("j")], &["a"]),
                PodState::default(),
                "kill-pod sandbox#0 init:0",
            ),
            (
                "init in turn",
                pod("Always", vec![container("i"), container("j")], &["a"]),
                up(&[("i", Exited, 0)]),
                "init:1",
            ),
            ("init runs", pod("Always", vec![container("i")], &["a"]), up(&[("i", Running, 0)]), ""),
            ("init fails", pod("Always", vec![container("i")], &["a"]), up(&[("i", Exited, 1)]), "init:0"),
            ("init fails for good", pod("Never", vec![container("i")], &["a"]), up(&[("i", Exited, 1)]), "kill-pod"),
            (
                "init done",
                pod("Always", vec![container("i"), container("j")], &["a"]),
                up(&[("j", Exited, 0), ("i", Exited, 0)]),
                "start:0",
            ),
            ("init collected", pod("Always", vec![container("i")], &["a"]), up(&[("a", Exited, 1)]), "start:0"),
            (
                "sidecar up, then next init",
                pod("Always", vec![sidecar("s"), container("i")], &["a"]),
                up(&[("s", Running, 0)]),
                "init:1",
            ),
            ("sidecar last", pod("Always", vec![sidecar("s")], &["a"]), up(&[("s", Running, 0)]), "start:0"),
            (
                "sidecar died",
                pod("Always", vec![sidecar("s")], &["a"]),
                up(&[("a", Running, 0), ("s", Exited, 1)]),
                "init:0",
            ),
            (
                "sidecar of a finished pod",
                pod("Never", vec![sidecar("s")], &["a"]),
                up(&[("a", Exited, 0), ("s", Running, 0)]),
                "kill-pod",
            ),
        ];
        for (what, pod, state, expected) in rows {
            assert_eq!(told(&plan(&pod, &state, &Probed::default())), expected, "{what}");
        }
    }

    #[test]
    fn failed_liveness_restarts_unless_never() {
        let verdicts = Probed(HashMap::from([("a-id", Verdict::Failure)]));
        for (policy, expected) in
            [("Always", "kill:a start:0"), ("OnFailure", "kill:a start:0"), ("Never", "kill-pod kill:a")]
        {
            let actions = plan(&pod(policy, vec![], &["a"]), &up(&[("a", Phase::Running, 0)]), &verdicts);
            assert_eq!(told(&actions), expected, "{policy}");
        }
    }

    #[test]
    fn changed_image_restarts_even_when_never() {
        let mut changed = pod("Never", vec![], &["a"]);
        changed.spec.as_mut().unwrap().containers[0].image = Some("other".into());
        let actions = plan(&changed, &up(&[("a", Phase::Running, 0)]), &Probed::default());
        assert_eq!(told(&actions), "kill:a start:0");
        assert_eq!(actions.kill[0].message, "Container a definition changed, will be restarted");
    }
}
