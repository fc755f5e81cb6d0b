//! Validation of a pod's volumes.

use std::collections::BTreeMap;

use api::field::{FieldErrors, Path};
use api::quantity::Quantity;
use api::validation as rules;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, ProjectedVolumeSource, Volume};

use super::containers::{VOLUME_FIELDS, field_ref, resource_field_ref};
use crate::unset::{items, text};

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Checks the volumes; answers their names and whether each can be used as a block device.
pub fn validate(errors: &mut FieldErrors, path: &Path<'_>, volumes: &[Volume]) -> BTreeMap<String, bool> {
    let mut names = BTreeMap::new();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        let before = errors.len();
        source(errors, &path, volume);
        if volume.name.is_empty() {
            errors.required(path.child("name"), "");
        } else {
            errors.invalid_each(path.child("name"), &volume.name, rules::dns1123_label(&volume.name));
        }
        if names.contains_key(&volume.name) {
            errors.duplicate(path.child("name"), &volume.name);
        }
        if errors.len() == before {
            let block = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
            names.insert(volume.name.clone(), block);
        }
    }
    names
}

/// The names of the sources that are set. The generated type has one optional field for each; taking it apart here makes
/// the compiler say when there is another one.
fn sources(volume: &Volume) -> impl Iterator<Item = &'static str> {
    macro_rules! set_fields {
        ($($field:ident: $name:literal,)*) => {{
            let Volume { name: _, $($field),* } = volume;
            [$(($name, $field.is_some())),*]
        }};
    }
    let fields = set_fields! {
        aws_elastic_block_store: "awsElasticBlockStore",
        azure_disk: "azureDisk",
        azure_file: "azureFile",
        cephfs: "cephfs",
        cinder: "cinder",
        config_map: "configMap",
        csi: "csi",
        downward_api: "downwardAPI",
        empty_dir: "emptyDir",
        ephemeral: "ephemeral",
        fc: "fc",
        flex_volume: "flexVolume",
        flocker: "flocker",
        gce_persistent_disk: "gcePersistentDisk",
        git_repo: "gitRepo",
        glusterfs: "glusterfs",
        host_path: "hostPath",
        image: "image",
        iscsi: "iscsi",
        nfs: "nfs",
        persistent_volume_claim: "persistentVolumeClaim",
        photon_persistent_disk: "photonPersistentDisk",
        portworx_volume: "portworxVolume",
        projected: "projected",
        quobyte: "quobyte",
        rbd: "rbd",
        scale_io: "scaleIO",
        secret: "secret",
        storageos: "storageos",
        vsphere_volume: "vsphereVolume",
    };
    fields.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name)
}

fn source(errors: &mut FieldErrors, path: &Path<'_>, volume: &Volume) {
    let mut sources = sources(volume);
    if sources.next().is_none() {
        errors.required(path, "must specify a volume type");
        return;
    }
    for extra in sources {
        errors.forbidden(path.child(extra), "may not specify more than 1 volume type");
    }
    if let Some(limit) = volume.empty_dir.as_ref().and_then(|source| source.size_limit.as_ref())
        && Quantity::try_from(limit).is_ok_and(|limit| limit.is_negative())
    {
        errors.forbidden(path.child("emptyDir.sizeLimit"), "SizeLimit field must be a valid resource quantity");
    }
    if let Some(host_path) = &volume.host_path {
        let path = path.child("hostPath");
        if host_path.path.is_empty() {
            errors.required(path.child("path"), "");
        } else {
            no_backsteps(errors, &path.child("path"), &host_path.path);
        }
        const TYPES: &[&str] =
            &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
        if let Some(kind) = &host_path.type_
            && !TYPES.contains(&kind.as_str())
        {
            errors.not_supported(path.child("type"), kind, TYPES);
        }
    }
    if let Some(secret) = &volume.secret {
        let path = path.child("secret");
        if text(&secret.secret_name).is_none() {
            errors.required(path.child("secretName"), "");
        }
        mode(errors, &path.child("defaultMode"), secret.default_mode);
        keys_to_paths(errors, &path, items(&secret.items));
    }
    if let Some(config_map) = &volume.config_map {
        let path = path.child("configMap");
        if config_map.name.is_empty() {
            errors.required(path.child("name"), "");
        }
        mode(errors, &path.child("defaultMode"), config_map.default_mode);
        keys_to_paths(errors, &path, items(&config_map.items));
    }
    if let Some(downward) = &volume.downward_api {
        let path = path.child("downwardAPI");
        mode(errors, &path.child("defaultMode"), downward.default_mode);
        for file in items(&downward.items) {
            downward_file(errors, &path, file);
        }
    }
    if let Some(projected) = &volume.projected {
        self::projected(errors, &path.child("projected"), projected);
    }
    if let Some(claim) = &volume.persistent_volume_claim
        && claim.claim_name.is_empty()
    {
        errors.required(path.child("persistentVolumeClaim.claimName"), "");
    }
    if let Some(nfs) = &volume.nfs {
        let path = path.child("nfs");
        if nfs.server.is_empty() {
            errors.required(path.child("server"), "");
        }
        if nfs.path.is_empty() {
            errors.required(path.child("path"), "");
        }
        if !nfs.path.starts_with('/') {
            errors.invalid(path.child("path"), &nfs.path, "must be an absolute path");
        }
    }
    if let Some(csi) = &volume.csi
        && csi.driver.is_empty()
    {
        errors.required(path.child("csi.driver"), "");
    }
    if let Some(ephemeral) = &volume.ephemeral
        && ephemeral.volume_claim_template.is_none()
    {
        errors.required(path.child("ephemeral.volumeClaimTemplate"), "");
    }
    if let Some(image) = &volume.image
        && text(&image.reference).is_none()
    {
        errors.required(path.child("image.reference"), "");
    }
}

fn projected(errors: &mut FieldErrors, path: &Path<'_>, projected: &ProjectedVolumeSource) {
    mode(errors, &path.child("defaultMode"), projected.default_mode);
    for (i, source) in items(&projected.sources).iter().enumerate() {
        let source_path = path.child("sources");
        let source_path = source_path.index(i);
        let mut found = 0;
        if let Some(secret) = &source.secret {
            found += 1;
            let path = source_path.child("secret");
            if secret.name.is_empty() {
                errors.required(path.child("name"), "");
            }
            keys_to_paths(errors, &path, items(&secret.items));
        }
        if let Some(config_map) = &source.config_map {
            found += 1;
            let path = source_path.child("configMap");
            if config_map.name.is_empty() {
                errors.required(path.child("name"), "");
            }
            keys_to_paths(errors, &path, items(&config_map.items));
        }
        if let Some(downward) = &source.downward_api {
            found += 1;
            for file in items(&downward.items) {
                downward_file(errors, &source_path.child("downwardAPI"), file);
            }
        }
        if let Some(token) = &source.service_account_token {
            found += 1;
            let token_path = source_path.child("serviceAccountToken");
            let seconds = token.expiration_seconds.unwrap_or(3600);
            if seconds < 600 {
                errors.invalid(
                    token_path.child("expirationSeconds"),
                    seconds,
                    "may not specify a duration less than 10 minutes",
                );
            } else if seconds > 1 << 32 {
                errors.invalid(
                    token_path.child("expirationSeconds"),
                    seconds,
                    "may not specify a duration larger than 2^32 seconds",
                );
            }
            if token.path.is_empty() {
                errors.required(path.child("path"), "");
            } else {
                local_path(errors, &path.child("path"), &token.path);
            }
        }
        found += usize::from(source.cluster_trust_bundle.is_some()) + usize::from(source.pod_certificate.is_some());
        if found > 1 {
            errors.forbidden(source_path, "may not specify more than 1 volume type per source");
        }
    }
}

fn keys_to_paths(errors: &mut FieldErrors, path: &Path<'_>, entries: &[KeyToPath]) {
    for (i, entry) in entries.iter().enumerate() {
        let path = path.child("items");
        let path = path.index(i);
        if entry.key.is_empty() {
            errors.required(path.child("key"), "");
        }
        if entry.path.is_empty() {
            errors.required(path.child("path"), "");
        }
        local_path(errors, &path.child("path"), &entry.path);
        mode(errors, &path.child("mode"), entry.mode);
    }
}

fn downward_file(errors: &mut FieldErrors, path: &Path<'_>, file: &DownwardAPIVolumeFile) {
    if file.path.is_empty() {
        errors.required(path.child("path"), "");
    }
    local_path(errors, &path.child("path"), &file.path);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            field_ref(errors, &path.child("fieldRef"), field, VOLUME_FIELDS);
            if resource.is_some() {
                errors.invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously");
            }
        }
        (None, Some(resource)) => resource_field_ref(errors, &path.child("resourceFieldRef"), resource, true),
        (None, None) => errors.required(path, "one of fieldRef and resourceFieldRef is required"),
    }
    mode(errors, &path.child("mode"), file.mode);
}

fn mode(errors: &mut FieldErrors, path: &Path<'_>, mode: Option<i32>) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        errors.invalid(path, mode, MODE);
    }
}

/// Relative, never upwards, and not one of the names the atomic writer uses itself.
fn local_path(errors: &mut FieldErrors, path: &Path<'_>, value: &str) {
    super::containers::descending_path(errors, path, value);
    if value.starts_with("..") && !value.starts_with("../") && value != ".." {
        errors.invalid(path, value, "must not start with '..'");
    }
}

fn no_backsteps(errors: &mut FieldErrors, path: &Path<'_>, value: &str) {
    if value.split('/').any(|part| part == "..") {
        errors.invalid(path, value, "must not contain '..'");
    }
}
