//! What pods use: memory and writable layers as the runtime counts them, logs and volumes as found on disk.
//!
//! Flow: CRI stats + pod directories -> here -> eviction (limits, ranking) and `/stats/summary`.

use std::io;
use std::path::{Path, PathBuf};

use cri::v1;
use k8s_openapi::api::core::v1::{Pod, Volume};

use crate::kubelet::Kubelet;
use crate::state::{self, label};
use crate::volumes::blocking;

/// Space on a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

impl std::ops::Add for Space {
    type Output = Space;

    fn add(self, other: Space) -> Space {
        Space { bytes: self.bytes + other.bytes, inodes: self.inodes + other.inodes }
    }
}

impl std::iter::Sum for Space {
    fn sum<I: Iterator<Item = Space>>(all: I) -> Space {
        all.fold(Space::default(), |sum, space| sum + space)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerUsage {
    pub(crate) name: String,
    pub(crate) memory: u64,
    pub(crate) processes: u64,
    pub(crate) root: Space,
    pub(crate) logs: Space,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeUsage {
    pub(crate) name: String,
    pub(crate) used: Space,
    /// It lives on the node's disk and counts as the pod's ephemeral storage.
    pub(crate) is_ephemeral: bool,
    pub(crate) capacity: u64,
    pub(crate) available: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PodUsage {
    pub(crate) containers: Vec<ContainerUsage>,
    pub(crate) volumes: Vec<VolumeUsage>,
    /// Files that the kubelet makes and containers may write to: what they see as `/etc/hosts`, and their last words.
    pub(crate) own_files: Space,
}

impl PodUsage {
    pub(crate) fn memory(&self) -> u64 {
        self.containers.iter().map(|container| container.memory).sum()
    }

    pub(crate) fn processes(&self) -> u64 {
        self.containers.iter().map(|container| container.processes).sum()
    }

    /// Everything the pod has on the node's disk that goes with it.
    pub(crate) fn ephemeral(&self) -> Space {
        let containers = self.containers.iter().map(|container| container.root + container.logs);
        let volumes = self.volumes.iter().filter(|volume| volume.is_ephemeral).map(|volume| volume.used);
        containers.chain(volumes).chain([self.own_files]).sum()
    }
}

/// What a pod's containers use, without what is in files beside them. `stats` are those of all containers.
pub(crate) fn of_containers(pod: &Pod, stats: &[v1::ContainerStats]) -> Vec<ContainerUsage> {
    let number = |value: &Option<v1::UInt64Value>| value.as_ref().map_or(0, |value| value.value);
    let mut containers = Vec::new();
    for stat in stats {
        let Some(labels) = stat.attributes.as_ref().map(|attributes| &attributes.labels) else { continue };
        if labels.get(label::POD_UID).map(String::as_str) != Some(state::uid(pod)) {
            continue;
        }
        let layer = stat.writable_layer.as_ref();
        containers.push(ContainerUsage {
            name: labels.get(label::CONTAINER_NAME).cloned().unwrap_or_default(),
            memory: stat.memory.as_ref().map_or(0, |memory| number(&memory.working_set_bytes)),
            processes: 0,
            root: Space {
                bytes: layer.map_or(0, |layer| number(&layer.used_bytes)),
                inodes: layer.map_or(0, |layer| number(&layer.inodes_used)),
            },
            logs: Space::default(),
        });
    }
    containers
}

/// Looks at one pod. `stats` are those of all containers.
pub(crate) async fn of_pod(kubelet: &Kubelet, pod: &Pod, stats: &[v1::ContainerStats]) -> io::Result<PodUsage> {
    let mut containers = of_containers(pod, stats);
    let (pod_dir, log_dir) = (kubelet.pod_dir(pod), kubelet.log_dir(pod));
    let volumes: Vec<(Volume, PathBuf)> = state::used_volumes(pod)
        .into_iter()
        .filter_map(|volume| Some((volume.clone(), pod_dir.join("volumes").join(plugin(volume)?).join(&volume.name))))
        .collect();
    let measured = blocking(move || {
        for container in &mut containers {
            container.logs = of_directory(&log_dir.join(&container.name));
        }
        let volumes = volumes.iter().map(|(volume, path)| measure_volume(volume, path)).collect();
        Ok(PodUsage { containers, volumes, own_files: of_own_files(&pod_dir) })
    });
    measured.await
}

/// The directory a volume of the kubelet's own making lives in.
fn plugin(volume: &Volume) -> Option<&'static str> {
    let table = [
        (volume.empty_dir.is_some(), "kubernetes.io~empty-dir"),
        (volume.config_map.is_some(), "kubernetes.io~configmap"),
        (volume.secret.is_some(), "kubernetes.io~secret"),
        (volume.downward_api.is_some(), "kubernetes.io~downward-api"),
        (volume.projected.is_some(), "kubernetes.io~projected"),
    ];
    table.into_iter().find(|(is_it, _)| *is_it).map(|(_, name)| name)
}

fn measure_volume(volume: &Volume, path: &Path) -> VolumeUsage {
    let in_memory = volume.secret.is_some()
        || volume.projected.is_some()
        || volume
            .empty_dir
            .as_ref()
            .is_some_and(|source| source.medium.as_deref().is_some_and(|medium| !medium.is_empty()));
    let (capacity, available) = crate::node::machine::disk(path).unwrap_or_default();
    VolumeUsage { name: volume.name.clone(), used: of_directory(path), is_ephemeral: !in_memory, capacity, available }
}

fn of_own_files(pod_dir: &Path) -> Space {
    ["etc-hosts", "containers"].into_iter().map(|name| of_directory(&pod_dir.join(name))).sum()
}

/// Blocks and inodes below a directory: each hard-linked file once, and nothing that is mounted inside.
pub(crate) fn of_directory(root: &Path) -> Space {
    let files::Usage { bytes, inodes } = files::usage(root);
    Space { bytes, inodes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_count_once_and_pods_sum_up() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/file"), vec![1; 100_000]).unwrap();
        let one = of_directory(dir.path());
        assert!(one.bytes >= 100_000 && one.inodes == 3, "{one:?}");
        std::fs::hard_link(dir.path().join("sub/file"), dir.path().join("again")).unwrap();
        assert_eq!(of_directory(dir.path()).inodes, one.inodes);
        assert_eq!(of_directory(&dir.path().join("missing")), Space::default());
        let space = |bytes| Space { bytes, inodes: 0 };
        let usage = PodUsage {
            containers: vec![ContainerUsage { root: space(1), logs: space(2), memory: 7, ..Default::default() }],
            volumes: vec![
                VolumeUsage { used: space(4), is_ephemeral: true, ..Default::default() },
                VolumeUsage { used: space(8), is_ephemeral: false, ..Default::default() },
            ],
            ..Default::default()
        };
        assert_eq!((usage.ephemeral().bytes, usage.memory()), (7, 7));
    }

    /// A container may write to its `/etc/hosts`, which lies on the node's disk (CVE-2020-8557).
    #[test]
    fn security_the_hosts_file_counts_to_its_pod() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etc-hosts");
        std::fs::write(&path, vec![1; 100_000]).unwrap();
        let usage = PodUsage { own_files: of_own_files(dir.path()), ..Default::default() };
        assert!(usage.ephemeral().bytes >= 100_000 && usage.ephemeral().inodes == 1, "{usage:?}");
    }

    /// So may it to the file for its last words.
    #[test]
    fn security_termination_messages_count_to_their_pod() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("containers/main")).unwrap();
        let before = of_own_files(dir.path());
        std::fs::write(dir.path().join("containers/main/0a1b2c3d"), vec![1; 100_000]).unwrap();
        assert!(of_own_files(dir.path()).bytes >= before.bytes + 100_000);
    }
}
