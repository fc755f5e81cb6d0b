//! The static CPU manager: Guaranteed pods that ask for whole processors get them for themselves, all others share the rest.
//!
//! Flow: admission -> [`CpuManager::admit`] -> `cpu_manager_state` on disk -> the cpuset of each new container, and of
//! running ones when the shared rest changes (`cpu_sets`).
//! Invariant: an exclusive processor is in no other set, over restarts too.

mod topology;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::config::{CpuManagerPolicy, Settings};
use crate::{qos, resources, state};
pub(crate) use topology::CpuSet;
use topology::{NotCpus, Topology};

pub(crate) struct CpuManager {
    topology: Topology,
    reserved: CpuSet,
    path: PathBuf,
    /// By pod uid, then container name.
    assigned: Mutex<Assigned>,
}

type Assigned = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// `cpu_manager_state`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Checkpoint {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, String>>,
}

/// Why a pod gets no processors for itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAssigned {
    #[error(
        "Allocate failed due to not enough cpus available to satisfy request: requested={requested}, available={available}, which is unexpected"
    )]
    TooFew { requested: usize, available: usize },
    #[error("{0:#}")]
    Unsaved(anyhow::Error),
}

impl NotAssigned {
    /// Why the pod is refused.
    pub(crate) const REASON: &str = "UnexpectedAdmissionError";
}

impl CpuManager {
    /// The manager that the settings ask for; none without a policy.
    pub(crate) fn open(settings: &Settings) -> anyhow::Result<Option<Self>> {
        if settings.cpu_manager_policy == CpuManagerPolicy::None {
            return Ok(None);
        }
        let topology = Topology::read()?;
        let reserved = reserved(settings, &topology)?;
        let path = settings.root_dir.join("cpu_manager_state");
        let assigned = read(&path)?;
        Ok(Some(CpuManager { topology, reserved, path, assigned: Mutex::new(assigned) }))
    }

    /// Sets processors aside for a pod's containers; why not, when there are too few.
    pub(crate) fn admit(&self, pod: &Pod) -> Result<(), NotAssigned> {
        let mut assigned = self.assigned.lock();
        let mut next = assigned.clone();
        for container in pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
        {
            let wanted = exclusive(pod, container);
            let entries = next.entry(state::uid(pod).to_string()).or_default();
            if wanted == 0 || entries.contains_key(&container.name) {
                continue;
            }
            let free = self.shared(&next).without(&self.reserved);
            let set = self.topology.take(&free, wanted);
            let set = set.ok_or_else(|| NotAssigned::TooFew { requested: wanted, available: free.len() })?;
            next.entry(state::uid(pod).to_string()).or_default().insert(container.name.clone(), set);
        }
        next.retain(|_, entries| !entries.is_empty());
        self.save(&next).map_err(NotAssigned::Unsaved)?;
        *assigned = next;
        Ok(())
    }

    /// What a container may run on.
    pub(crate) fn cpus(&self, uid: &str, container: &str) -> CpuSet {
        let assigned = self.assigned.lock();
        match assigned.get(uid).and_then(|entries| entries.get(container)) {
            Some(own) => own.clone(),
            None => self.shared(&assigned),
        }
    }

    pub(crate) fn release(&self, uid: &str) {
        let mut assigned = self.assigned.lock();
        if assigned.remove(uid).is_some()
            && let Err(error) = self.save(&assigned)
        {
            tracing::warn!(uid, error = format!("{error:#}"), "processors of an ended pod not given back on disk");
        }
    }

    /// Uids of all pods that have processors for themselves.
    pub(crate) fn pods(&self) -> Vec<String> {
        self.assigned.lock().keys().cloned().collect()
    }

    /// All that nobody has for itself.
    fn shared(&self, assigned: &Assigned) -> CpuSet {
        assigned.values().flat_map(BTreeMap::values).fold(self.topology.all(), |left, set| left.without(set))
    }

    fn save(&self, assigned: &Assigned) -> anyhow::Result<()> {
        let text = |entries: &BTreeMap<String, CpuSet>| {
            entries.iter().map(|(name, set)| (name.clone(), set.to_string())).collect()
        };
        let checkpoint = Checkpoint {
            policy_name: "static".into(),
            default_cpu_set: self.shared(assigned).to_string(),
            entries: assigned.iter().map(|(uid, entries)| (uid.clone(), text(entries))).collect(),
        };
        // A kubelet that finds a part of it does not start.
        files::replace_by(self.path.with_extension("new"), &self.path, &serde_json::to_vec(&checkpoint)?, 0o600)
            .with_context(|| format!("writing {}", self.path.display()))
    }
}

/// How many processors a container gets for itself: all it asks for, if its pod is Guaranteed and that is a whole number.
fn exclusive(pod: &Pod, container: &Container) -> usize {
    let milli = resources::request(container, "cpu").map_or(0, |quantity| quantity.milli_value());
    let is_once =
        pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).any(|c| c.name == container.name)
            && !state::is_sidecar(container);
    // Init containers run on what is shared: they would hold processors that nobody gives back.
    if qos::class(pod) != qos::Class::Guaranteed || milli % 1000 != 0 || is_once {
        return 0;
    }
    (milli / 1000) as usize
}

fn reserved(settings: &Settings, topology: &Topology) -> anyhow::Result<CpuSet> {
    if !settings.reserved_system_cpus.is_empty() {
        return settings.reserved_system_cpus.parse().map_err(anyhow::Error::msg);
    }
    let amount = settings.reserved.get("cpu").map(|text| text.parse::<api::quantity::Quantity>());
    let milli =
        amount.transpose().map_err(|error| anyhow::anyhow!("reserved cpu: {error}"))?.map_or(0, |q| q.milli_value());
    if milli <= 0 {
        bail!("[cpumanager] unable to determine reserved CPU resources for static policy");
    }
    let count = milli.div_euclid(1000) + i64::from(milli.rem_euclid(1000) != 0);
    topology.take(&topology.all(), count as usize).context("more processors are reserved than there are")
}

fn read(path: &Path) -> anyhow::Result<Assigned> {
    let bytes = match std::fs::read(path) {
        // Its name came to the disk and its text did not, before a power cut: none of its containers is there any more.
        Ok(bytes) if bytes.is_empty() => return Ok(Assigned::new()),
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Assigned::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let checkpoint: Checkpoint =
        serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))?;
    if checkpoint.policy_name != "static" {
        bail!(
            "could not restore state from checkpoint: configured policy \"static\" differs from state checkpoint policy \"{}\", \
             please drain this node and delete the CPU manager checkpoint file {:?} before restarting Kubelet",
            checkpoint.policy_name,
            path.display().to_string()
        );
    }
    let parse = |entries: BTreeMap<String, String>| -> Result<BTreeMap<String, CpuSet>, NotCpus> {
        entries.into_iter().map(|(name, set)| Ok((name, set.parse()?))).collect()
    };
    let entries = checkpoint.entries.into_iter().map(|(uid, entries)| Ok((uid, parse(entries)?)));
    Ok(entries.collect::<Result<_, NotCpus>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::container_with;
    use k8s_openapi::api::core::v1::PodSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn pod(uid: &str, cpu: &str) -> Pod {
        let amounts = format!("cpu={cpu},memory=1Mi");
        Pod {
            metadata: ObjectMeta { uid: Some(uid.into()), ..Default::default() },
            spec: Some(PodSpec { containers: vec![container_with("c", &amounts, &amounts)], ..Default::default() }),
            ..Default::default()
        }
    }

    fn manager(path: &Path) -> CpuManager {
        CpuManager {
            topology: Topology((0..4).map(|cpu| (cpu, (0, cpu))).collect()),
            reserved: "0".parse().unwrap(),
            path: path.into(),
            assigned: Mutex::new(read(path).unwrap()),
        }
    }

    #[test]
    fn processors_are_given_out_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu_manager_state");
        let cpus = manager(&path);
        cpus.admit(&pod("whole", "2")).unwrap();
        cpus.admit(&pod("part", "500m")).unwrap();
        assert_eq!(cpus.cpus("whole", "c").to_string(), "1-2");
        assert_eq!(cpus.cpus("part", "c").to_string(), "0,3");
        let refused = cpus.admit(&pod("more", "2")).unwrap_err();
        assert!(matches!(refused, NotAssigned::TooFew { requested: 2, available: 1 }), "{refused}");
        let again = manager(&path);
        assert_eq!(again.cpus("whole", "c").to_string(), "1-2", "a restart forgets nothing");
        again.admit(&pod("whole", "2")).unwrap();
        again.release("whole");
        assert_eq!(manager(&path).cpus("part", "c").to_string(), "0-3");
    }

    #[test]
    fn what_a_power_cut_emptied_keeps_no_kubelet_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu_manager_state");
        std::fs::write(&path, "").unwrap();
        assert!(read(&path).unwrap().is_empty());
        std::fs::write(&path, "{").unwrap();
        assert!(read(&path).is_err(), "what is damaged otherwise is for people to look at");
    }
}
