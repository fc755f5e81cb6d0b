//! The further checks of the restricted level: what a hardened pod does.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Volume;

use super::baseline::{added_capabilities, is_safe_seccomp, pod_seccomp, seccomp as container_seccomp};
use super::checks::Violation;
use super::subject::{Subject, containers, plural, quoted, setters};

pub(super) fn privilege_escalation(subject: &Subject<'_>) -> Option<Violation> {
    let names = subject.containers_that(|container| {
        container.security.and_then(|security| security.allow_privilege_escalation) != Some(false)
    });
    (!names.is_empty()).then(|| Violation {
        reason: "allowPrivilegeEscalation != false",
        detail: format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&names)),
    })
}

/// From 1.25 on pods that say they are for Windows need not set what Windows does not know.
pub(super) fn privilege_escalation_1_25(subject: &Subject<'_>) -> Option<Violation> {
    if subject.is_windows() { None } else { privilege_escalation(subject) }
}

pub(super) fn capabilities(subject: &Subject<'_>) -> Option<Violation> {
    let keeping = subject.containers_that(|container| {
        let capabilities = container.security.and_then(|security| security.capabilities.as_ref());
        !capabilities.is_some_and(|capabilities| capabilities.drop.iter().flatten().any(|dropped| dropped == "ALL"))
    });
    let mut added = BTreeSet::new();
    let adding = subject.containers_that(|container| {
        let mut bad = false;
        for capability in added_capabilities(container).filter(|capability| *capability != "NET_BIND_SERVICE") {
            added.insert(capability.clone());
            bad = true;
        }
        bad
    });
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&keeping)));
    }
    if !adding.is_empty() {
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(&adding),
            quoted(&added)
        ));
    }
    (!details.is_empty()).then(|| Violation { reason: "unrestricted capabilities", detail: details.join("; ") })
}

pub(super) fn capabilities_1_25(subject: &Subject<'_>) -> Option<Violation> {
    if subject.is_windows() { None } else { capabilities(subject) }
}

pub(super) fn volumes(subject: &Subject<'_>) -> Option<Violation> {
    let mut kinds = BTreeSet::new();
    let mut names = Vec::new();
    for volume in subject.spec.volumes.iter().flatten() {
        if let Some(kind) = restricted_kind(volume) {
            names.push(volume.name.as_str());
            kinds.insert(kind);
        }
    }
    (!names.is_empty()).then(|| Violation {
        reason: "restricted volume types",
        detail: format!(
            "{} {} {} {} {}",
            plural("volume", "volumes", names.len()),
            quoted(&names),
            plural("uses", "use", names.len()),
            plural("restricted volume type", "restricted volume types", kinds.len()),
            quoted(&kinds)
        ),
    })
}

/// The kind of a volume that is not one of the harmless ones.
fn restricted_kind(volume: &Volume) -> Option<&'static str> {
    let allowed = volume.config_map.is_some()
        || volume.csi.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
        || volume.ephemeral.is_some()
        || volume.image.is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.projected.is_some()
        || volume.secret.is_some();
    if allowed {
        return None;
    }
    let kinds = [
        (volume.host_path.is_some(), "hostPath"),
        (volume.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (volume.aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
        (volume.git_repo.is_some(), "gitRepo"),
        (volume.nfs.is_some(), "nfs"),
        (volume.iscsi.is_some(), "iscsi"),
        (volume.glusterfs.is_some(), "glusterfs"),
        (volume.rbd.is_some(), "rbd"),
        (volume.flex_volume.is_some(), "flexVolume"),
        (volume.cinder.is_some(), "cinder"),
        (volume.cephfs.is_some(), "cephfs"),
        (volume.flocker.is_some(), "flocker"),
        (volume.fc.is_some(), "fc"),
        (volume.azure_file.is_some(), "azureFile"),
        (volume.vsphere_volume.is_some(), "vsphereVolume"),
        (volume.quobyte.is_some(), "quobyte"),
        (volume.azure_disk.is_some(), "azureDisk"),
        (volume.photon_persistent_disk.is_some(), "photonPersistentDisk"),
        (volume.portworx_volume.is_some(), "portworxVolume"),
        (volume.scale_io.is_some(), "scaleIO"),
        (volume.storageos.is_some(), "storageos"),
    ];
    Some(kinds.into_iter().find(|(used, _)| *used).map_or("unknown", |(_, kind)| kind))
}

pub(super) fn run_as_non_root(subject: &Subject<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    let of_pod = subject.security().and_then(|security| security.run_as_non_root);
    let as_root = subject
        .containers_that(|container| container.security.and_then(|security| security.run_as_non_root) == Some(false));
    if let Some(who) = setters(of_pod == Some(false), &as_root) {
        let detail = format!("{who} must not set securityContext.runAsNonRoot=false");
        return Some(Violation { reason: REASON, detail });
    }
    let silent = subject.containers_that(|container| {
        of_pod != Some(true) && container.security.and_then(|security| security.run_as_non_root).is_none()
    });
    (!silent.is_empty()).then(|| Violation {
        reason: REASON,
        detail: format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&silent)),
    })
}

pub(super) fn run_as_user(subject: &Subject<'_>) -> Option<Violation> {
    let names =
        subject.containers_that(|container| container.security.and_then(|security| security.run_as_user) == Some(0));
    let pod = subject.security().and_then(|security| security.run_as_user) == Some(0);
    let who = setters(pod, &names)?;
    Some(Violation { reason: "runAsUser=0", detail: format!("{who} must not set runAsUser=0") })
}

pub(super) fn seccomp(subject: &Subject<'_>) -> Option<Violation> {
    if let Some(explicit) = super::baseline::seccomp_1_19(subject) {
        return Some(explicit);
    }
    let covered = pod_seccomp(subject).is_some_and(is_safe_seccomp);
    let silent = subject.containers_that(|container| !covered && container_seccomp(container).is_none());
    (!silent.is_empty()).then(|| Violation {
        reason: "seccompProfile",
        detail: format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            containers(&silent)
        ),
    })
}

pub(super) fn seccomp_1_25(subject: &Subject<'_>) -> Option<Violation> {
    if subject.is_windows() { None } else { seccomp(subject) }
}
