//! AlwaysPullImages: every image is pulled with the pod's own credentials, so nobody uses another tenant's.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::field::FieldErrors;
use api::sort::CompactCollect as _;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{Admitted, Attributes, Plugin, Verb, admitted};
use crate::cluster::Cluster;

pub(super) struct AlwaysPullImages;

const ALWAYS: &str = "Always";

impl Plugin for AlwaysPullImages {
    fn admit<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if concerns(attributes)
            && let Some(spec) = attributes.object_mut::<Pod>().and_then(|pod| pod.spec.as_mut())
        {
            for policy in policies(spec) {
                *policy = Some(ALWAYS.to_owned());
            }
        }
        admitted()
    }

    fn validate<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if !concerns(attributes) {
            return admitted();
        }
        let mut errors = FieldErrors::default();
        let spec = attributes.object_ref::<Pod>().and_then(|pod| pod.spec.as_ref());
        for (path, policy) in spec.map(policies_with_paths).unwrap_or_default() {
            if policy != ALWAYS {
                errors.not_supported(path, policy, &[ALWAYS]);
            }
        }
        if errors.is_empty() { admitted() } else { Err(attributes.forbidden(errors)).into() }
    }
}

/// Writes of pods, unless an update brings no new image.
fn concerns(attributes: &Attributes<'_>) -> bool {
    if !attributes.writes("", "pods") {
        return false;
    }
    let (new, old) = (attributes.object_ref::<Pod>(), attributes.old_ref::<Pod>());
    let (Some(new), Some(old), Verb::Update) = (new, old, attributes.verb) else { return true };
    !images(new).is_subset(&images(old))
}

fn images(pod: &Pod) -> BTreeSet<&str> {
    let Some(spec) = &pod.spec else { return BTreeSet::new() };
    let ordinary = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let ephemeral = spec.ephemeral_containers.iter().flatten().filter_map(|container| container.image.as_deref());
    ordinary.filter_map(|container| container.image.as_deref()).chain(ephemeral).compact_collect()
}

fn policies(spec: &mut PodSpec) -> impl Iterator<Item = &mut Option<String>> {
    let ordinary = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    let ephemeral = spec.ephemeral_containers.iter_mut().flatten().map(|container| &mut container.image_pull_policy);
    let volumes = spec.volumes.iter_mut().flatten().filter_map(|volume| volume.image.as_mut());
    ordinary
        .map(|container| &mut container.image_pull_policy)
        .chain(ephemeral)
        .chain(volumes.map(|image| &mut image.pull_policy))
}

fn policies_with_paths(spec: &PodSpec) -> Vec<(String, &str)> {
    let mut found = Vec::new();
    for (list, containers) in
        [("initContainers", spec.init_containers.as_deref().unwrap_or_default()), ("containers", &spec.containers)]
    {
        for (i, container) in containers.iter().enumerate() {
            let policy = container.image_pull_policy.as_deref().unwrap_or_default();
            found.push((format!("spec.{list}[{i}].imagePullPolicy"), policy));
        }
    }
    for (i, container) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let policy = container.image_pull_policy.as_deref().unwrap_or_default();
        found.push((format!("spec.ephemeralContainers[{i}].imagePullPolicy"), policy));
    }
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        if let Some(image) = &volume.image {
            let policy = image.pull_policy.as_deref().unwrap_or_default();
            found.push((format!("spec.volumes[{i}].image.pullPolicy"), policy));
        }
    }
    found
}
