//! Keeps the disk free: images nobody uses, and logs that grow.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::sort::CompactSort as _;
use cri::v1;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::kubelet::Kubelet;
use crate::node::machine::disk;
use crate::state::label;

const IMAGE_GC_INTERVAL: Duration = Duration::from_secs(300);

pub(crate) async fn run(kubelet: Arc<Kubelet>, stop: CancellationToken) {
    let mut images = tokio::time::interval(IMAGE_GC_INTERVAL);
    let mut logs = tokio::time::interval(kubelet.settings.container_log_monitor_interval);
    let mut seen = HashMap::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = images.tick() => collect_images(&kubelet, &mut seen, false).await,
            _ = logs.tick() => rotate_logs(&kubelet).await,
        }
    }
}

/// The disk is nearly full: everything that nobody uses goes, whatever its age.
pub(crate) async fn collect_all(kubelet: &Kubelet) {
    collect_containers(kubelet).await;
    collect_images(kubelet, &mut HashMap::new(), true).await;
}

/// Removes ended containers of pods that are over; their pods keep the state they were told of.
async fn collect_containers(kubelet: &Kubelet) {
    let containers = match kubelet.runtime.containers(None).await {
        Ok(containers) => containers,
        Err(error) => {
            tracing::warn!(%error, "containers not collected");
            return;
        }
    };
    let is_running = |c: &v1::Container| c.state == v1::ContainerState::ContainerRunning as i32;
    for container in containers.iter().filter(|c| c.state == v1::ContainerState::ContainerExited as i32) {
        let uid = container.labels.get(label::POD_UID);
        if containers.iter().any(|other| is_running(other) && other.labels.get(label::POD_UID) == uid) {
            continue;
        }
        if let Err(error) = kubelet.runtime.remove_container(&container.id).await {
            tracing::warn!(container = container.id, %error, "ended container not removed");
        }
    }
}

/// When an image was first seen and last used.
#[derive(Clone, Copy)]
struct Age {
    first_seen: Instant,
    last_used: Instant,
}

/// Removes unused images, the longest unused first, when the disk is fuller than it should be.
async fn collect_images(kubelet: &Kubelet, seen: &mut HashMap<String, Age>, all_unused: bool) {
    let settings = &kubelet.settings;
    let (images, containers) = match tokio::try_join!(kubelet.runtime.images(), kubelet.runtime.containers(None)) {
        Ok(both) => both,
        Err(error) => {
            tracing::warn!(%error, "images not collected");
            return;
        }
    };
    let now = Instant::now();
    for image in &images {
        let age = seen.entry(image.id.clone()).or_insert(Age { first_seen: now, last_used: now });
        if is_used(image, &containers) {
            age.last_used = now;
        }
    }
    seen.retain(|id, _| images.iter().any(|image| &image.id == id));
    let Some((total, free)) = image_disk(kubelet).await else { return };
    let used = 100 - free * 100 / total.max(1);
    let is_full = all_unused || used >= settings.image_gc_high;
    let max_age = Some(settings.image_maximum_gc_age).filter(|age| !age.is_zero());
    let mut to_free = match (all_unused, is_full) {
        (true, _) => u64::MAX,
        (_, true) => (used - settings.image_gc_low.min(used)) * total / 100,
        _ => 0,
    };
    let mut unused: Vec<&v1::Image> =
        images.iter().filter(|image| !image.pinned && !is_used(image, &containers)).collect();
    unused.compact_sort_by_key(|image| seen.get(&image.id).map(|age| age.last_used));
    for image in unused {
        let unused_for = seen.get(&image.id).map(|age| age.last_used.elapsed());
        let is_too_old = max_age.zip(unused_for).is_some_and(|(max, age)| age > max);
        if to_free == 0 && !is_too_old {
            continue;
        }
        let is_new = seen.get(&image.id).is_some_and(|age| age.first_seen.elapsed() < settings.image_minimum_gc_age);
        if is_new && !all_unused && !is_too_old {
            continue;
        }
        let known = kubelet.images.known(&image.id);
        match kubelet.runtime.remove_image(&image.id).await {
            Ok(()) => {
                kubelet.images.removed(&image.id, known);
                tracing::info!(image = image.id, bytes = image.size, "unused image removed");
                to_free = to_free.saturating_sub(image.size);
            }
            Err(error) => tracing::warn!(image = image.id, %error, "unused image not removed"),
        }
    }
}

fn is_used(image: &v1::Image, containers: &[v1::Container]) -> bool {
    containers.iter().any(|container| {
        let named = container.image.as_ref().map(|spec| spec.image.as_str()).unwrap_or_default();
        container.image_ref == image.id
            || container.image_id == image.id
            || named == image.id
            || image
                .repo_tags
                .iter()
                .chain(&image.repo_digests)
                .any(|name| name == named || *name == container.image_ref)
    })
}

async fn image_disk(kubelet: &Kubelet) -> Option<(u64, u64)> {
    let info = kubelet.runtime.image_fs().await;
    let info = info.inspect_err(|error| tracing::warn!(%error, "image file system not looked at")).ok()?;
    let mount = info.image_filesystems.first()?.fs_id.as_ref()?.mountpoint.clone();
    disk(Path::new(&mount)).or_else(|| disk(&kubelet.settings.root_dir))
}

/// Moves logs that are too long aside and lets the runtime start new ones.
async fn rotate_logs(kubelet: &Kubelet) {
    let containers = match kubelet.runtime.containers(None).await {
        Ok(containers) => containers,
        Err(error) => {
            tracing::warn!(%error, "logs not rotated");
            return;
        }
    };
    for container in containers.iter().filter(|c| c.state == v1::ContainerState::ContainerRunning as i32) {
        let status = match kubelet.runtime.container_status(&container.id).await {
            Ok(status) => status,
            // Removed since it was listed.
            Err(error) if error.is_not_found() => continue,
            Err(error) => {
                tracing::warn!(container = container.id, %error, "log not rotated");
                continue;
            }
        };
        let path = PathBuf::from(&status.log_path);
        let length = tokio::fs::metadata(&path).await.map_or(0, |meta| meta.len());
        if length <= kubelet.settings.container_log_max_size {
            continue;
        }
        if let Err(error) = rotate(&path, kubelet.settings.container_log_max_files, kubelet.clock.now()).await {
            tracing::warn!(path = %path.display(), %error, "log not rotated");
            continue;
        }
        if let Err(error) = kubelet.runtime.reopen_log(&container.id).await {
            tracing::warn!(container = container.id, %error, "log not reopened");
        }
    }
}

/// `0.log` becomes `0.log.<time>`; the oldest of more than `keep` files go.
async fn rotate(path: &Path, keep: u32, now: Timestamp) -> std::io::Result<()> {
    let stamp = now.strftime("%Y%m%d-%H%M%S").to_string();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
    tokio::fs::rename(path, path.with_file_name(format!("{name}.{stamp}"))).await?;
    let Some(dir) = path.parent() else { return Ok(()) };
    let mut old = Vec::new();
    let mut entries = tokio::fs::read_dir(dir).await?;
    while let Some(entry) = entries.next_entry().await? {
        if entry.file_name().to_string_lossy().starts_with(&format!("{name}.")) {
            old.push(entry.path());
        }
    }
    old.compact_sort();
    // The one being written counts too.
    let surplus = (old.len() + 1).saturating_sub(keep.max(2) as usize);
    for path in old.into_iter().take(surplus) {
        tokio::fs::remove_file(path).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_in_use_are_known_by_any_name() {
        let image = v1::Image {
            id: "sha256:1".into(),
            repo_tags: vec!["docker.io/library/nginx:1".into()],
            ..Default::default()
        };
        let container = |name: &str, image_ref: &str| v1::Container {
            image: Some(v1::ImageSpec { image: name.into(), ..Default::default() }),
            image_ref: image_ref.into(),
            ..Default::default()
        };
        for (containers, expected) in [
            (vec![], false),
            (vec![container("sha256:1", "")], true),
            (vec![container("docker.io/library/nginx:1", "")], true),
            (vec![container("x", "sha256:1")], true),
            (vec![container("other", "sha256:2")], false),
        ] {
            assert_eq!(is_used(&image, &containers), expected);
        }
    }

    #[tokio::test]
    async fn rotation_keeps_a_few() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        for stamp in ["20260101-000000", "20260102-000000", "20260103-000000"] {
            std::fs::write(dir.path().join(format!("0.log.{stamp}")), "old").unwrap();
        }
        std::fs::write(&path, "new").unwrap();
        rotate(&path, 3, "2026-01-04T00:00:00Z".parse().unwrap()).await.unwrap();
        let mut left: Vec<String> =
            std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left.len(), 2, "{left:?}");
        assert_eq!(left[0], "0.log.20260103-000000");
    }
}
