//! Brings one pod a step closer to its spec: the actions of `plan`, carried out.
//!
//! Flow: `worker` -> [`Kubelet::sync`] -> directories, volumes, sandbox, containers -> status. Running it
//! again is always safe; whatever it could not do comes back as a time to try again.

mod mounts;
mod old_containers;
mod sandbox;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, Secret};
use trace::{Stage, Work};

use crate::containers::{self, ContainerParts};
use crate::env::{self, Context, EnvFile, Sources};
use crate::error::{CgroupError, ConfigError, SyncError};
use crate::kubelet::Kubelet;
use crate::node::machine::{CPUS, limits_swap, thermal_paths};
use crate::objects::NotSynced;
use crate::pass::{Memory, Pass};
use crate::plan::{self, Actions};
use crate::state::{self, Phase, PodState};
use crate::status::{Waiting, is_restart_of_all};
use crate::terminate::Victim;
use crate::volumes::{Mounted, on_own_thread, subpath};
use crate::{hooks, huge_pages, images, names, pod_fields, probes, resize, resources, terminate};

/// How a pass ended.
#[derive(Debug, Default)]
pub(crate) struct Next {
    /// All containers have ended and none will be started again.
    pub(crate) is_finished: bool,
    /// When to look again without any event.
    pub(crate) again_in: Option<Duration>,
}

impl Next {
    fn sooner(&mut self, delay: Duration) {
        self.again_in = Some(self.again_in.map_or(delay, |other| other.min(delay)));
    }
}

/// Mounted objects and tokens are looked at this often even if no event came.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// After a container could not be started. A failed pull is told as such until then, and as a wait after.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

impl Kubelet {
    pub(crate) async fn sync(&self, pod: &Arc<Pod>, memory: &mut Memory) -> Result<Next, SyncError> {
        let mut next = Next { again_in: Some(REFRESH_INTERVAL), ..Default::default() };
        names::check_pod(pod).and_then(|()| names::check_spec(pod))?;
        let (pod, refused) = &names::without_refused(pod);
        for why in refused {
            self.recorder.warning(&client::reference(pod.as_ref()), "Failed", format!("Error: {why}"));
        }
        let uid = state::uid(pod);
        let mut state = self.runtime.pod_state(uid).await?;
        self.prober.reconcile(pod, &state, false);
        let changes = self.pending_changes(pod, &state, memory);
        let status = self.report_status(pod, &state, memory, false, None);
        if status.phase.as_deref().is_some_and(api::pod::is_terminal_phase) {
            next.is_finished = true;
            return Ok(next);
        }

        if status.conditions.iter().flatten().any(is_restart_of_all) {
            next.sooner(self.restart_all_containers(pod, &state, memory).await?);
            return Ok(next);
        }

        let mut actions = plan::plan(pod, &state, self.prober.as_ref());
        let is_resized = memory.resize.is_on;
        let updates = resize::plan(changes, &mut actions);
        let services = self.service_variables(pod);
        let reference = client::reference(pod.as_ref());
        let context_for = |ips: &[String]| (ips.to_vec(), self.host_ips.clone());
        let (pod_ips, host_ips) = context_for(&self.pod_ips(pod, &state));
        let context = Context {
            pod,
            pod_ips: &pod_ips,
            host_ips: &host_ips,
            allocatable: &self.allocatable,
            services: &services,
        };

        trace::mark();
        self.make_directories(pod).await?;
        if let Err(error) = self.ensure_cgroup(pod, memory).await {
            self.recorder.warning(&reference, CgroupError::REASON, error.to_string());
            return Err(error.into());
        }
        trace::lap(Stage::Prepare);
        let volumes = match self.volumes.set_up(&context).await {
            Ok(volumes) => {
                trace::lap(Stage::Volumes);
                volumes
            }
            Err(error) => {
                self.recorder.warning(&reference, error.reason(), error.to_string());
                return Err(error.into());
            }
        };

        if actions.kill_pod {
            let is_new = state.sandboxes.is_empty();
            if !is_new && actions.create_sandbox.is_some() {
                self.recorder.normal(
                    &reference,
                    "SandboxChanged",
                    "Pod sandbox changed, it will be killed and re-created.",
                );
            }
            self.kill_all(pod, &state, self.grace_period(pod, None)).await?;
            if actions.create_sandbox.is_none() {
                let state = self.runtime.pod_state(uid).await?;
                self.report_status(pod, &state, memory, true, None);
                next.is_finished = true;
                return Ok(next);
            }
        }
        self.kill_containers(pod, &actions, &pod_ips).await?;

        let can_resize = self.resize(pod, &updates, memory).await;
        if !can_resize {
            next.sooner(RETRY_INTERVAL);
        }
        if let Some(attempt) = actions.create_sandbox {
            self.create_sandbox(pod, attempt).await?;
            state = self.runtime.pod_state(uid).await?;
            self.report_status(pod, &state, memory, false, None);
        }
        let pod_ips = self.pod_ips(pod, &state);
        let context = Context { pod_ips: &pod_ips, ..context };
        let mut pass = Pass {
            pod,
            state: &state,
            memory,
            context: &context,
            mounted: &volumes.mounted,
            volume_groups: &volumes.groups,
        };
        self.start_containers(&mut pass, &actions, &mut next).await;

        let state = self.runtime.pod_state(uid).await?;
        self.prober.reconcile(pod, &state, false);
        if is_resized && can_resize && self.pending_changes(pod, &state, memory).is_empty() {
            self.settle_resize(pod, &mut memory.resize).await?;
            self.pending_changes(pod, &state, memory);
        }
        self.report_status(pod, &state, memory, false, None);
        self.remove_old_containers(&state).await;
        Ok(next)
    }

    /// The pod's cgroup, with the limits that it has now, and its part in what Burstable pods have together.
    async fn ensure_cgroup(&self, pod: &Arc<Pod>, memory: &mut Memory) -> Result<(), CgroupError> {
        let (owned, is_resized) = (pod.clone(), memory.resize.is_on);
        let ensured = self.change_cgroup(move |cgroups| {
            let change = match is_resized {
                true => cgroups.resize_pod(&owned, true)?,
                false => cgroups.ensure_pod(&owned)?,
            };
            // Only a weight: no pod waits for it (`syncPod`, v1.36), and the next pass tries again.
            if let Err(error) = cgroups.update_burstable() {
                tracing::warn!(%error, "CPU shares of Burstable pods not updated, will retry");
            }
            Ok(change)
        });
        ensured.await.map_err(CgroupError::Ensure)?;
        if !is_resized {
            memory.resize.given_to_pod = Some(resources::for_pod(pod));
        }
        Ok(())
    }

    /// Those that have to end for the pod to go on: changed, or failing a probe.
    async fn kill_containers(&self, pod: &Pod, actions: &Actions, pod_ips: &[String]) -> Result<(), SyncError> {
        let grace = self.grace_period(pod, None);
        for kill in &actions.kill {
            let container = state::all_containers(pod).into_iter().find(|c| c.name == kill.name);
            let grace = match (&container, kill.reason) {
                (Some(c), plan::KillReason::LivenessProbe) => probe_grace(c.liveness_probe.as_ref()).unwrap_or(grace),
                (Some(c), plan::KillReason::StartupProbe) => probe_grace(c.startup_probe.as_ref()).unwrap_or(grace),
                _ => grace,
            };
            let victim = Victim {
                spec: container.as_ref(),
                id: &kill.id,
                name: &kill.name,
                grace,
                message: &kill.message,
                after: Vec::new(),
            };
            self.kill_container(pod, victim, pod_ips).await?;
        }
        Ok(())
    }

    /// As often as a container that ends again and again, and no more; says when to look again.
    async fn restart_all_containers(
        &self,
        pod: &Pod,
        state: &PodState,
        memory: &mut Memory,
    ) -> Result<Duration, SyncError> {
        let key = format!("{}_restart_all", state::uid(pod));
        let ended = plan::reset(pod, state).iter().map(|container| container.finished_at).max();
        let ended = Timestamp::from_nanosecond(ended.unwrap_or_default().into()).unwrap_or_default();
        let ago = Duration::try_from(self.clock.now().duration_since(ended)).unwrap_or_default();
        if let Some((left, _)) = self.restarts.remaining(&key, ago) {
            return Ok(left);
        }
        self.restarts.next(&key);
        self.remove_all_containers(pod, state, memory).await?;
        Ok(Duration::ZERO)
    }

    /// The first half of a restart of all containers: the next pass finds none, and starts from the beginning. Their
    /// logs stay.
    async fn remove_all_containers(&self, pod: &Pod, state: &PodState, memory: &mut Memory) -> Result<(), SyncError> {
        let (specs, pod_ips) = (state::all_containers(pod), self.pod_ips(pod, state));
        for container in plan::reset(pod, state) {
            if container.phase != Phase::Exited {
                let victim = Victim {
                    spec: specs.iter().find(|spec| spec.name == container.name),
                    id: &container.id,
                    name: &container.name,
                    grace: Duration::ZERO,
                    message: "killing",
                    after: Vec::new(),
                };
                self.kill_container(pod, victim, &pod_ips).await?;
            }
            self.runtime.remove_container(&container.id).await?;
            memory.waiting.remove(&container.name);
        }
        Ok(())
    }

    pub(crate) fn pod_ips(&self, pod: &Pod, state: &PodState) -> Vec<String> {
        if pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)) {
            return self.host_ips.clone();
        }
        state.ips().to_vec()
    }

    fn service_variables(&self, pod: &Pod) -> Vec<(String, String)> {
        let services = self.services.list();
        env::service_variables(pod, services.iter().map(|service| service.as_ref()))
    }

    async fn start_containers(&self, pass: &mut Pass<'_>, actions: &Actions, next: &mut Next) {
        let (pod, state) = (pass.pod, pass.state);
        let spec = pod.spec.clone().unwrap_or_default();
        let init = spec.init_containers.unwrap_or_default();
        let ephemeral: Vec<Container> = spec.ephemeral_containers.iter().flatten().map(state::from_ephemeral).collect();
        // An init container that cannot be started holds up all after it.
        let holds_up = |container: &Container| {
            init.iter().any(|known| known.name == container.name) && !state::is_sidecar(container)
        };
        let chosen = actions
            .start_ephemeral
            .iter()
            .filter_map(|index| ephemeral.get(*index))
            .chain(actions.start_init.iter().filter_map(|index| init.get(*index)))
            .chain(actions.start.iter().filter_map(|index| spec.containers.get(*index)));
        let running: Vec<&str> = state.containers.iter().filter(|c| c.is_running()).map(|c| c.name.as_str()).collect();
        pass.memory.waiting.retain(|name, _| !running.contains(&name.as_str()));
        for container in chosen {
            if let Some(wait) = self.restart_delay(pass, container, self.clock.now()) {
                next.sooner(wait);
                if holds_up(container) {
                    break;
                }
                continue;
            }
            let started = self.start_container(pass, container).await;
            let error = started.as_ref().err().map(|waiting| waiting.reason);
            self.runtime.metrics.container_start_attempted(state::container_type(pod, &container.name), error);
            match started {
                Ok(()) => {
                    pass.memory.waiting.remove(&container.name);
                }
                Err(waiting) => {
                    tracing::info!(
                        pod = state::full_name(pod),
                        container = container.name,
                        reason = waiting.reason,
                        message = waiting.message,
                        "container not started"
                    );
                    let image = container.image.as_deref().unwrap_or_default();
                    next.sooner(match waiting.reason {
                        "ImagePullBackOff" => self.images.retry_in(state::uid(pod), image).unwrap_or(RETRY_INTERVAL),
                        _ => RETRY_INTERVAL,
                    });
                    pass.memory.waiting.insert(container.name.clone(), waiting);
                    if holds_up(container) {
                        break;
                    }
                }
            }
        }
    }

    /// Whether a container that ended must wait before it is started again.
    fn restart_delay(&self, pass: &mut Pass<'_>, container: &Container, now: Timestamp) -> Option<Duration> {
        let Pass { pod, state, memory, .. } = pass;
        let past = state.container(&container.name).filter(|c| c.phase == Phase::Exited)?;
        let key = format!("{}_{}_{}", state::uid(pod), container.name, state::container_hash(container));
        let ended = Timestamp::from_nanosecond(past.finished_at.into()).unwrap_or_default();
        let ago = Duration::try_from(now.duration_since(ended)).unwrap_or_default();
        let Some((left, whole)) = self.restarts.remaining(&key, ago) else {
            self.restarts.next(&key);
            return None;
        };
        let whose = format!("{}_{}({})", state::name(pod), state::namespace(pod), state::uid(pod));
        let reference = probes::container_reference(pod, &container.name);
        self.recorder.warning(
            &reference,
            "BackOff",
            format!("Back-off restarting failed container {} in pod {whose}", container.name),
        );
        memory.waiting.insert(
            container.name.clone(),
            Waiting {
                reason: "CrashLoopBackOff",
                message: format!(
                    "back-off {} restarting failed container={} pod={whose}",
                    go_seconds(whole),
                    container.name
                ),
            },
        );
        Some(left)
    }

    async fn start_container(&self, pass: &Pass<'_>, container: &Container) -> Result<(), Waiting> {
        let Pass { pod, state, context, .. } = pass;
        let reference = probes::container_reference(pod, &container.name);
        let failed = |reason: &'static str, message: String| {
            self.recorder.warning(&reference, "Failed", format!("Error: {message}"));
            Waiting { reason, message }
        };
        let sandbox = state.sandboxes.first().filter(|sandbox| sandbox.ready);
        let sandbox = sandbox.ok_or_else(|| Waiting { reason: "ContainerCreating", message: String::new() })?;
        let sandbox_config = self
            .sandbox_config(pod, sandbox.attempt)
            .await
            .map_err(|error| failed(ConfigError::REASON, error.to_string()))?;
        let secrets = self.pull_secrets(pod).await;
        let image = self
            .images
            .ensure(images::Wanted {
                pod_uid: state::uid(pod),
                reference: &reference,
                image: container.image.as_deref().unwrap_or_default(),
                policy: container.image_pull_policy.as_deref(),
                secrets: &secrets,
                sandbox_config: Some(sandbox_config.clone()),
            })
            .await?;
        let config = self
            .container_config(pass, container, image)
            .await
            .map_err(|error| failed(ConfigError::REASON, error.to_string()))?;
        let work = |stage| Work::begin(stage, state::ACTOR, state::traced_name(pod)).with_detail(&container.name);
        let images = config.mounts.iter().filter(|mount| mount.image.is_some()).count();
        let created = work(Stage::Create)
            .result(Box::pin(self.runtime.create_container(&sandbox.id, config, sandbox_config)))
            .await;
        self.runtime.metrics.images_mounted(images, created.as_ref().err().map(|error| error.0.message()));
        let id = created.map_err(|error| failed("CreateContainerError", error.0.message().to_string()))?;
        self.recorder.normal(&reference, "Created", "Container created");
        work(Stage::Start)
            .result(Box::pin(self.runtime.start_container(&id)))
            .await
            .map_err(|error| failed("RunContainerError", error.0.message().to_string()))?;
        self.recorder.normal(&reference, "Started", "Container started");
        let Some(hook) = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
            return Ok(());
        };
        let ran = hooks::run(hook, pod, container, &id, context.pod_ips, &self.runtime);
        if let Err(error) = work(Stage::Hook).result(Box::pin(ran)).await {
            tracing::info!(pod = state::full_name(pod), container = container.name, %error, "postStart hook failed");
            let (reason, message) = hooks::FAILED_POST_START;
            self.recorder.warning(&reference, reason, message);
            let grace = self.grace_period(pod, None);
            let victim = Victim {
                spec: Some(container),
                id: &id,
                name: &container.name,
                grace,
                message: "FailedPostStartHook",
                after: Vec::new(),
            };
            if let Err(error) = self.kill_container(pod, victim, context.pod_ips).await {
                tracing::warn!(pod = state::full_name(pod), container = container.name, %error, "container with failed postStart hook not stopped");
            }
            return Err(Waiting { reason: "PostStartHookError", message: error.to_string() });
        }
        Ok(())
    }

    async fn pull_secrets(&self, pod: &Pod) -> Vec<Arc<Secret>> {
        let mut found = Vec::new();
        let mut missing = Vec::new();
        for name in containers::pull_secrets(pod) {
            match self.volumes.secrets.get(state::uid(pod), state::namespace(pod), name).await {
                Ok(Some(secret)) => found.push(secret),
                Ok(None) | Err(_) => missing.push(name.to_owned()),
            }
        }
        if !missing.is_empty() {
            self.recorder.warning(
                &client::reference(pod),
                "FailedToRetrieveImagePullSecret",
                format!(
                    "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                    missing.join(", ")
                ),
            );
        }
        found
    }

    async fn container_config(
        &self,
        pass: &Pass<'_>,
        container: &Container,
        image: String,
    ) -> Result<v1::ContainerConfig, ConfigError> {
        let Pass { pod, state, context, mounted, .. } = pass;
        let inspected = self.runtime.image_status(&image).await.map_err(ConfigError::Image)?.unwrap_or_default();
        // An image that names nobody runs as root.
        let names_nobody = inspected.uid.is_none() && inspected.username.is_empty();
        let image_uid = inspected.uid.map(|uid| uid.value).or(names_nobody.then_some(0));
        if let Some(path) = containers::localhost_profile(pod, container) {
            names::check_relative_path(path.as_str()).map_err(ConfigError::Profile)?;
        }
        containers::check_non_root(pod, container, image_uid, &inspected.username)?;
        pod_fields::refuse_container(pod, container, pod_fields::Host::look(&self.runtime.name))?;
        let restart_count = match state.container(&container.name) {
            Some(past) => past.restart_count.saturating_add(1),
            None => reported_restart_count(self.status.latest(state::uid(pod)).as_ref(), &container.name),
        };
        let sources = self.env_sources(pass, container).await?;
        let env = env::environment(container, context, &sources)?;
        let mounts = self.mounts(pass, container, &env).await?;
        let devices = mounts::devices(container, mounted)?;
        let target_id = pod
            .spec
            .iter()
            .flat_map(|spec| spec.ephemeral_containers.iter().flatten())
            .find(|ephemeral| ephemeral.name == container.name)
            .and_then(|ephemeral| ephemeral.target_container_name.as_deref())
            .filter(|name| !name.is_empty())
            .map(|name| {
                state
                    .container(name)
                    .filter(|c| c.is_running())
                    .map(|c| c.id.clone())
                    .ok_or_else(|| ConfigError::NoTarget(name.to_owned()))
            })
            .transpose()?;
        let mut resources = resources::for_container(pod, container, self.node_memory);
        resources.hugepage_limits = huge_pages::limits_of_container(pod, container, &self.huge_pages);
        if let Some(cpus) = &self.cpu_manager {
            resources.cpuset_cpus = cpus.cpus(state::uid(pod), &container.name).to_string();
        }
        if limits_swap() {
            resources.unified.insert("memory.swap.max".to_owned(), "0".to_owned());
        }
        Ok(containers::container_config(
            pod,
            container,
            ContainerParts {
                image,
                restart_count,
                env,
                mounts,
                devices,
                volume_groups: pass.volume_groups,
                resources,
                image_uid,
                image_user: inspected.username,
                target_id,
                seccomp_root: &self.settings.root_dir.join("seccomp"),
                seccomp_default: self.settings.seccomp_default,
                thermal_paths: thermal_paths(Path::new(CPUS)),
            },
        )?)
    }

    async fn env_sources(&self, pass: &Pass<'_>, container: &Container) -> Result<Sources, NotSynced> {
        let Pass { pod, mounted, .. } = pass;
        let (maps, secrets) = env::referenced(container);
        let (uid, namespace) = (state::uid(pod), state::namespace(pod));
        let mut sources = Sources::default();
        for name in maps {
            if let Some(map) = self.volumes.config_maps.get(uid, namespace, &name).await? {
                sources.config_maps.insert(name, map.as_ref().clone());
            }
        }
        for name in secrets {
            if let Some(secret) = self.volumes.secrets.get(uid, namespace, &name).await? {
                sources.secrets.insert(name, secret.as_ref().clone());
            }
        }
        let mut size = 0;
        for ((volume, path), keys) in env::referenced_files(container) {
            let Some(Mounted::Path { path: root, .. }) = mounted.get(&volume) else { continue };
            let (root, inner) = (root.clone(), path.clone());
            match on_own_thread(move || subpath::read(&root, &inner).map(|text| EnvFile::parse(&text, &keys))).await {
                Ok(file) => {
                    size += file.size();
                    sources.files.insert((volume, path), file);
                }
                Err(error) => {
                    tracing::warn!(pod = state::full_name(pod), volume, path, %error, "file of variables not read");
                    break;
                }
            }
            // No container starts with so much, nor without one of its files.
            if size > env::MAX_BYTES {
                break;
            }
        }
        Ok(sources)
    }
}

/// Go's `10s`, `1m20s`, `5m0s`.
fn go_seconds(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}

fn probe_grace(probe: Option<&k8s_openapi::api::core::v1::Probe>) -> Option<Duration> {
    probe?.termination_grace_period_seconds.map(|seconds| terminate::grace(seconds.max(1)))
}

/// The count of a container that the runtime does not know: one more if it was lost after it ran. One that was removed to
/// be started again was counted then.
fn reported_restart_count(status: Option<&PodStatus>, name: &str) -> i32 {
    let statuses = status.into_iter().flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    });
    let reported = statuses.into_iter().find(|status| status.name == name);
    reported.map_or(0, |reported| reported.restart_count + i32::from(reported.container_id.is_some()))
}
