//! What a container sees of volumes and of files that the kubelet makes for it.

use std::collections::HashMap;
use std::path::PathBuf;

use cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::error::MountError;
use crate::kubelet::Kubelet;
use crate::pass::Pass;
use crate::volumes::{Mounted, blocking, subpath};
use crate::{containers, dns, env, images, probes, state};

impl Kubelet {
    /// Volume mounts, the managed hosts file and the termination message file.
    pub(super) async fn mounts(
        &self,
        pass: &Pass<'_>,
        container: &Container,
        env: &[(String, String)],
    ) -> Result<Vec<v1::Mount>, MountError> {
        let Pass { pod, context, mounted, .. } = pass;
        let mut mounts = Vec::new();
        let own_dir = self.pod_dir(pod);
        let known = env::by_name(env);
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            let volume = mounted.get(&mount.name).ok_or_else(|| {
                let (volume, container) = (mount.name.clone(), container.name.clone());
                MountError::NoVolume { volume, container }
            })?;
            let sub_path = match (&mount.sub_path, &mount.sub_path_expr) {
                (_, Some(expression)) if !expression.is_empty() => Some(env::expand_strictly(expression, &known)?),
                (Some(path), _) if !path.is_empty() => Some(path.clone()),
                _ => None,
            };
            if let Some(path) = &sub_path {
                if path.starts_with('/') {
                    return Err(MountError::AbsoluteSubPath(path.clone()));
                }
                if path.split('/').any(|part| part == "..") {
                    return Err(MountError::SubPathLeaves(path.clone()));
                }
            }
            let (path, volume_read_only) = match volume {
                Mounted::Image { reference, policy } => {
                    let secrets = self.pull_secrets(pod).await;
                    let object = probes::container_reference(pod, &container.name);
                    let id = self
                        .images
                        .ensure(images::Wanted {
                            pod_uid: state::uid(pod),
                            reference: &object,
                            image: reference,
                            policy: policy.as_deref(),
                            secrets: &secrets,
                            sandbox_config: None,
                        })
                        .await
                        .map_err(|waiting| MountError::Image(waiting.message))?;
                    mounts.push(v1::Mount {
                        container_path: absolute(&mount.mount_path),
                        readonly: true,
                        image: Some(containers::volume_image(id, reference)),
                        image_sub_path: sub_path.unwrap_or_default(),
                        ..Default::default()
                    });
                    continue;
                }
                Mounted::Device { .. } => return Err(MountError::IsDevice(mount.name.clone())),
                Mounted::Path { path, read_only } => (path.clone(), *read_only),
            };
            let host_path = match sub_path {
                None => path,
                Some(sub_path) => {
                    let at =
                        own_dir.join("volume-subpaths").join(&mount.name).join(&container.name).join(index.to_string());
                    subpath::show(path, sub_path, at).await.map_err(|error| {
                        tracing::warn!(pod = state::full_name(pod), volume = mount.name, %error, "subPath not prepared");
                        let (volume, container) = (mount.name.clone(), container.name.clone());
                        MountError::SubPath { volume, container }
                    })?
                }
            };
            mounts.push(v1::Mount {
                container_path: absolute(&mount.mount_path),
                host_path: host_path.to_string_lossy().into_owned(),
                readonly: mount.read_only == Some(true) || volume_read_only,
                propagation: containers::propagation(mount.mount_propagation.as_deref()),
                recursive_read_only: containers::is_recursively_read_only(mount, self.runtime.recursive_read_only)?,
                ..Default::default()
            });
        }
        let has = |path: &str| mounts.iter().any(|mount| mount.container_path == path);
        if !has("/etc/hosts") && !context.pod_ips.is_empty() {
            let path = self.write_hosts(pod, context.pod_ips).await?;
            mounts.push(v1::Mount {
                container_path: "/etc/hosts".into(),
                host_path: path.to_string_lossy().into_owned(),
                ..Default::default()
            });
        }
        let message_path = container.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".into());
        if !message_path.is_empty() {
            let file = own_dir.join("containers").join(&container.name).join(format!("{:08x}", rand::random::<u32>()));
            let made = file.clone();
            blocking(move || {
                if let Some(parent) = made.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                std::fs::write(&made, "")?;
                // Whoever the container runs as may write it.
                std::fs::set_permissions(&made, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            })
            .await
            .map_err(MountError::TerminationMessage)?;
            mounts.push(v1::Mount {
                container_path: message_path,
                host_path: file.to_string_lossy().into_owned(),
                ..Default::default()
            });
        }
        Ok(mounts)
    }

    async fn write_hosts(&self, pod: &Pod, ips: &[String]) -> Result<PathBuf, MountError> {
        let path = self.pod_dir(pod).join("etc-hosts");
        let text = if pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)) {
            let own = PathBuf::from("/etc/hosts");
            let host = tokio::fs::read_to_string(&own).await;
            let host = host.map_err(|source| MountError::Hosts { path: own, source })?;
            dns::host_network_hosts_file(pod, &host)
        } else {
            let (hostname, domain) = dns::hostname(pod, &self.dns.cluster_domain);
            dns::hosts_file(pod, ips, &hostname, domain.as_deref())
        };
        let written = path.clone();
        match blocking(move || dns::write_hosts_file(&written, &text)).await {
            Ok(()) => Ok(path),
            Err(source) => Err(MountError::Hosts { path, source }),
        }
    }
}

/// Block volumes, as devices.
pub(super) fn devices(
    container: &Container,
    mounted: &HashMap<String, Mounted>,
) -> Result<Vec<v1::Device>, MountError> {
    let all = container.volume_devices.iter().flatten();
    all.map(|device| match mounted.get(&device.name) {
        Some(Mounted::Device { path, read_only }) => Ok(v1::Device {
            container_path: device.device_path.clone(),
            host_path: path.to_string_lossy().into_owned(),
            permissions: if *read_only { "r" } else { "mrw" }.into(),
        }),
        _ => Err(MountError::NoDevice { volume: device.name.clone(), container: container.name.clone() }),
    })
    .collect()
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_string() } else { format!("/{path}") }
}
