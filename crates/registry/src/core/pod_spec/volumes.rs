//! Validation of a pod's volumes.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path, quote};
use api::quantity::Quantity;
use api::sort::CompactCollect as _;
use api::validation as rules;
use k8s_openapi::api::core::v1::{
    CSIVolumeSource, ClusterTrustBundleProjection, DownwardAPIVolumeFile, EmptyDirVolumeSource, EphemeralVolumeSource,
    KeyToPath, PodCertificateProjection, ProjectedVolumeSource, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::containers::{VOLUME_FIELDS, descending_path, field_ref, resource_field_ref};
use super::validation::one_of;
use crate::certificates::rules::{
    SHORTEST_EXPIRATION, longest_expiration, signer_name, trust_bundle_name, user_annotations,
};
use crate::core::{persistent_volume_claim, volume_sources};
use crate::metadata::label_selector;
use crate::unset::{items, or_empty, text};

const DUPLICATE: &str = "conflicting duplicate paths";
const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Checks the volumes; answers their names and whether each can be used as a block device. `pod` is the name of the pod,
/// and none for a template.
pub fn validate(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    volumes: &[Volume],
    pod: Option<&str>,
) -> BTreeMap<String, bool> {
    let mut names = BTreeMap::new();
    let named = pod.filter(|pod| !pod.is_empty());
    let own_claim = |volume: &Volume| named.map(|pod| api::claim::made_for(pod, &volume.name));
    let made: BTreeSet<String> =
        volumes.iter().filter(|volume| volume.ephemeral.is_some()).filter_map(own_claim).compact_collect();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        let before = errors.len();
        source(errors, &path, volume, pod);
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
        if let Some(claim) = volume.persistent_volume_claim.as_ref().filter(|claim| made.contains(&claim.claim_name)) {
            errors.invalid(
                path.child("persistentVolumeClaim.claimName"),
                &claim.claim_name,
                "must not reference a PVC that gets created for an ephemeral volume",
            );
        }
    }
    names
}

/// The sources that are set, in upstream's order and under the names by which it refuses one too many (two of which are
/// no names of fields). The generated type has one optional field for each; taking it apart here makes the compiler say
/// when there is another one.
fn sources(volume: &Volume) -> impl Iterator<Item = &'static str> {
    macro_rules! set_fields {
        ($($field:ident: $name:literal,)*) => {{
            let Volume { name: _, $($field),* } = volume;
            [$(($name, $field.is_some())),*]
        }};
    }
    let fields = set_fields! {
        empty_dir: "emptyDir",
        host_path: "hostPath",
        git_repo: "gitRepo",
        gce_persistent_disk: "gcePersistentDisk",
        aws_elastic_block_store: "awsElasticBlockStore",
        secret: "secret",
        nfs: "nfs",
        iscsi: "iscsi",
        glusterfs: "glusterfs",
        flocker: "flocker",
        persistent_volume_claim: "persistentVolumeClaim",
        rbd: "rbd",
        cinder: "cinder",
        cephfs: "cephFS",
        quobyte: "quobyte",
        downward_api: "downwarAPI",
        fc: "fc",
        flex_volume: "flexVolume",
        config_map: "configMap",
        azure_file: "azureFile",
        vsphere_volume: "vsphereVolume",
        photon_persistent_disk: "photonPersistentDisk",
        portworx_volume: "portworxVolume",
        azure_disk: "azureDisk",
        storageos: "storageos",
        projected: "projected",
        scale_io: "scaleIO",
        csi: "csi",
        ephemeral: "ephemeral",
        image: "image",
    };
    fields.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name)
}

fn source(errors: &mut FieldErrors, path: &Path<'_>, volume: &Volume, pod: Option<&str>) {
    let mut sources = sources(volume);
    if sources.next().is_none() {
        errors.required(path, "must specify a volume type");
        return;
    }
    first_source(errors, path, volume, pod);
    for extra in sources {
        errors.forbidden(path.child(extra), "may not specify more than 1 volume type");
    }
    // Upstream looks at this one however many there are.
    if let Some(iscsi) = &volume.iscsi
        && iscsi.initiator_name.is_some()
        && volume_sources::is_too_long_for_iscsi(&volume.name, &iscsi.target_portal)
    {
        errors.invalid(path.child("name"), &volume.name, volume_sources::TOO_LONG_FOR_ISCSI);
    }
}

/// The rules of the first that is set, in the same order.
fn first_source(errors: &mut FieldErrors, path: &Path<'_>, volume: &Volume, pod: Option<&str>) {
    use volume_sources as shared;
    if let Some(source) = &volume.empty_dir {
        empty_dir(errors, &path.child("emptyDir"), source);
    } else if let Some(source) = &volume.host_path {
        shared::host_path(errors, &path.child("hostPath"), source);
    } else if let Some(source) = &volume.git_repo {
        let path = path.child("gitRepo");
        shared::required(errors, &path, &[("repository", &source.repository)]);
        descending_path(errors, &path.child("directory"), or_empty(&source.directory));
    } else if let Some(source) = &volume.gce_persistent_disk {
        shared::gce_persistent_disk(errors, &path.child("persistentDisk"), source);
    } else if let Some(source) = &volume.aws_elastic_block_store {
        shared::aws_elastic_block_store(errors, &path.child("awsElasticBlockStore"), source);
    } else if let Some(source) = &volume.secret {
        let path = path.child("secret");
        shared::required(errors, &path, &[("secretName", or_empty(&source.secret_name))]);
        mode(errors, &path.child("defaultMode"), source.default_mode);
        keys_to_paths(errors, &path, items(&source.items));
    } else if let Some(source) = &volume.nfs {
        shared::nfs(errors, &path.child("nfs"), source);
    } else if let Some(source) = &volume.iscsi {
        shared::iscsi_inline(errors, &path.child("iscsi"), source);
    } else if let Some(source) = &volume.glusterfs {
        let fields = [("endpoints", source.endpoints.as_str()), ("path", source.path.as_str())];
        shared::required(errors, &path.child("glusterfs"), &fields);
    } else if let Some(source) = &volume.flocker {
        shared::flocker(errors, &path.child("flocker"), source);
    } else if let Some(source) = &volume.persistent_volume_claim {
        shared::required(errors, &path.child("persistentVolumeClaim"), &[("claimName", &source.claim_name)]);
    } else if let Some(source) = &volume.rbd {
        shared::monitors(errors, &path.child("rbd"), &source.monitors);
        shared::required(errors, &path.child("rbd"), &[("image", &source.image)]);
    } else if let Some(source) = &volume.cinder {
        let path = path.child("cinder");
        shared::required(errors, &path, &[("volumeID", &source.volume_id)]);
        if let Some(secret) = &source.secret_ref {
            shared::required(errors, &path.child("secretRef"), &[("name", &secret.name)]);
        }
    } else if let Some(source) = &volume.cephfs {
        shared::monitors(errors, &path.child("cephfs"), &source.monitors);
    } else if let Some(source) = &volume.quobyte {
        shared::quobyte(errors, &path.child("quobyte"), source);
    } else if let Some(source) = &volume.downward_api {
        let path = path.child("downwardAPI");
        mode(errors, &path.child("defaultMode"), source.default_mode);
        items(&source.items).iter().for_each(|file| downward_file(errors, &path, file));
    } else if let Some(source) = &volume.fc {
        shared::fc(errors, &path.child("fc"), source);
    } else if let Some(source) = &volume.flex_volume {
        shared::flex_volume(errors, &path.child("flexVolume"), &source.driver, source.options.as_ref());
    } else if let Some(source) = &volume.config_map {
        let path = path.child("configMap");
        shared::required(errors, &path, &[("name", &source.name)]);
        mode(errors, &path.child("defaultMode"), source.default_mode);
        keys_to_paths(errors, &path, items(&source.items));
    } else if let Some(source) = &volume.azure_file {
        let fields = [("secretName", source.secret_name.as_str()), ("shareName", source.share_name.as_str())];
        shared::required(errors, &path.child("azureFile"), &fields);
    } else if let Some(source) = &volume.vsphere_volume {
        shared::required(errors, &path.child("vsphereVolume"), &[("volumePath", &source.volume_path)]);
    } else if let Some(source) = &volume.photon_persistent_disk {
        shared::required(errors, &path.child("photonPersistentDisk"), &[("pdID", &source.pd_id)]);
    } else if let Some(source) = &volume.portworx_volume {
        shared::required(errors, &path.child("portworxVolume"), &[("volumeID", &source.volume_id)]);
    } else if let Some(source) = &volume.azure_disk {
        shared::azure_disk(errors, &path.child("azureDisk"), source);
    } else if let Some(source) = &volume.storageos {
        let path = path.child("storageos");
        shared::storageos_names(errors, &path, &source.volume_name, &source.volume_namespace);
        if let Some(secret) = &source.secret_ref {
            shared::required(errors, &path.child("secretRef"), &[("name", &secret.name)]);
        }
    } else if let Some(source) = &volume.projected {
        projected(errors, &path.child("projected"), source);
    } else if let Some(source) = &volume.scale_io {
        let name = or_empty(&source.volume_name);
        let fields = [("gateway", source.gateway.as_str()), ("system", source.system.as_str()), ("volumeName", name)];
        shared::required(errors, &path.child("scaleIO"), &fields);
    } else if let Some(source) = &volume.csi {
        csi(errors, &path.child("csi"), source);
    } else if let Some(source) = &volume.ephemeral {
        ephemeral(errors, path, source, &volume.name, pod);
    } else if let Some(source) = &volume.image {
        let path = path.child("image");
        if pod.is_some() {
            shared::required(errors, &path, &[("reference", or_empty(&source.reference))]);
        }
        one_of(errors, &path.child("pullPolicy"), &source.pull_policy, &["Always", "IfNotPresent", "Never"]);
    }
}

fn empty_dir(errors: &mut FieldErrors, path: &Path<'_>, source: &EmptyDirVolumeSource) {
    if let Some(limit) = &source.size_limit
        && Quantity::try_from(limit).is_ok_and(|limit| limit.is_negative())
    {
        errors.forbidden(path.child("sizeLimit"), "SizeLimit field must be a valid resource quantity");
    }
}

fn csi(errors: &mut FieldErrors, path: &Path<'_>, source: &CSIVolumeSource) {
    volume_sources::csi_driver_name(errors, &path.child("driver"), &source.driver);
    if let Some(secret) = &source.node_publish_secret_ref {
        match secret.name.is_empty() {
            true => errors.required(path.child("nodePublishSecretRef.name"), ""),
            false => errors.invalid_each(path.child("name"), &secret.name, rules::dns1123_subdomain(&secret.name)),
        }
    }
}

/// A claim that is made for the pod, under the pod's name and the volume's.
fn ephemeral(
    errors: &mut FieldErrors,
    volume_path: &Path<'_>,
    source: &EphemeralVolumeSource,
    volume: &str,
    pod: Option<&str>,
) {
    let path = volume_path.child("ephemeral");
    let path = path.child("volumeClaimTemplate");
    match &source.volume_claim_template {
        None => errors.required(path, ""),
        Some(template) => {
            let metadata = template.metadata.clone().unwrap_or_default();
            template_metadata(errors, &path.child("metadata"), &metadata);
            persistent_volume_claim::validate_spec(errors, &path.child("spec"), &template.spec);
        }
    }
    if let Some(pod) = pod.filter(|pod| !pod.is_empty() && !volume.is_empty()) {
        let claim = format!("{pod}-{volume}");
        for message in rules::dns1123_subdomain(&claim) {
            errors.invalid(volume_path.child("name"), volume, format!("PVC name {}: {message}", quote(&claim)));
        }
    }
}

/// Labels and annotations are taken over, and nothing else may be set.
fn template_metadata(errors: &mut FieldErrors, path: &Path<'_>, metadata: &ObjectMeta) {
    crate::metadata::annotations(errors, &path.child("annotations"), metadata.annotations.as_ref());
    crate::metadata::labels(errors, &path.child("labels"), metadata.labels.as_ref());
    for (name, is_set) in [
        ("name", text(&metadata.name).is_some()),
        ("generateName", text(&metadata.generate_name).is_some()),
        ("namespace", text(&metadata.namespace).is_some()),
        ("selfLink", text(&metadata.self_link).is_some()),
        ("uID", text(&metadata.uid).is_some()),
        ("resourceVersion", text(&metadata.resource_version).is_some()),
        ("generation", metadata.generation.is_some_and(|generation| generation != 0)),
        ("creationTimestamp", metadata.creation_timestamp.is_some()),
        ("deletionTimestamp", metadata.deletion_timestamp.is_some()),
        ("deletionGracePeriodSeconds", metadata.deletion_grace_period_seconds.is_some()),
        ("ownerReferences", metadata.owner_references.is_some()),
        ("finalizers", metadata.finalizers.is_some()),
        ("managedFields", metadata.managed_fields.is_some()),
    ] {
        if is_set {
            errors.forbidden(path.child(name), "cannot be set");
        }
    }
}

fn projected(errors: &mut FieldErrors, path: &Path<'_>, projected: &ProjectedVolumeSource) {
    mode(errors, &path.child("defaultMode"), projected.default_mode);
    // Two sources that write the same file: which of them is read would be chance.
    let (parent, mut files) = (path, BTreeSet::new());
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
            for item in items(&secret.items) {
                written_once(errors, parent, &mut files, &item.path, &secret.name);
            }
        }
        if let Some(config_map) = &source.config_map {
            found += 1;
            let path = source_path.child("configMap");
            if config_map.name.is_empty() {
                errors.required(path.child("name"), "");
            }
            keys_to_paths(errors, &path, items(&config_map.items));
            for item in items(&config_map.items) {
                written_once(errors, parent, &mut files, &item.path, &config_map.name);
            }
        }
        if let Some(downward) = &source.downward_api {
            found += 1;
            for file in items(&downward.items) {
                downward_file(errors, &source_path.child("downwardAPI"), file);
                written_once(errors, parent, &mut files, &file.path, &file.path);
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
        if let Some(bundle) = &source.cluster_trust_bundle {
            found += 1;
            trust_bundle(errors, &source_path.child("clusterTrustBundle"), bundle);
            // Upstream counts the empty path as well.
            if !files.insert(bundle.path.as_str()) {
                errors.invalid(path, &bundle.path, DUPLICATE);
            }
        }
        if let Some(certificate) = &source.pod_certificate {
            found += 1;
            let certificate_path = source_path.child("podCertificate");
            pod_certificate(errors, &certificate_path, certificate);
            let mut has_path = false;
            for (name, file) in [
                ("credentialBundlePath", &certificate.credential_bundle_path),
                ("keyPath", &certificate.key_path),
                ("certificateChainPath", &certificate.certificate_chain_path),
            ] {
                let Some(file) = text(file) else { continue };
                has_path = true;
                local_path(errors, &certificate_path.child(name), file);
                written_once(errors, path, &mut files, file, file);
            }
            if !has_path {
                errors.required(
                    certificate_path,
                    "specify at least one of credentialBundlePath, keyPath, and certificateChainPath",
                );
            }
        }
        if found > 1 {
            errors.forbidden(source_path, "may not specify more than 1 volume type per source");
        }
    }
}

/// `shown` is what upstream names as the value.
fn written_once<'a>(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    files: &mut BTreeSet<&'a str>,
    file: &'a str,
    shown: &str,
) {
    if !file.is_empty() && !files.insert(file) {
        errors.invalid(path, shown, DUPLICATE);
    }
}

fn trust_bundle(errors: &mut FieldErrors, path: &Path<'_>, bundle: &ClusterTrustBundleProjection) {
    match (&bundle.name, &bundle.signer_name) {
        (Some(_), Some(_)) => errors.invalid(path, bundle, "only one of name and signerName may be used"),
        (Some(name), None) => {
            if name.is_empty() {
                errors.required(path.child("name"), "must be a valid object name");
            }
            // What stands before the last colon is the signer that it belongs to.
            let signer = name.rsplit_once(':').map(|(signer, _)| signer.replace(':', "/"));
            for message in trust_bundle_name(name, signer.as_deref().unwrap_or_default()) {
                errors.invalid(path.child("name"), name, format!("not a valid clustertrustbundlename: {message}"));
            }
            if let Some(selector) = &bundle.label_selector {
                errors.invalid(
                    path.child("labelSelector"),
                    selector,
                    "labelSelector must be unset if name is specified",
                );
            }
        }
        (None, Some(signer)) => {
            if signer.is_empty() {
                errors.required(path.child("signerName"), "must be a valid signer name");
            }
            signer_name(errors, &path.child("signerName"), signer);
            label_selector(errors, &path.child("labelSelector"), bundle.label_selector.as_ref());
        }
        (None, None) => errors.required(path, "either name or signerName must be specified"),
    }
    if bundle.path.is_empty() {
        errors.required(path.child("path"), "");
    }
    local_path(errors, &path.child("path"), &bundle.path);
}

fn pod_certificate(errors: &mut FieldErrors, path: &Path<'_>, certificate: &PodCertificateProjection) {
    const KEYS: &[&str] = &["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
    let signer = certificate.signer_name.as_str();
    signer_name(errors, &path.child("signerName"), signer);
    if let Some(annotations) = &certificate.user_annotations {
        user_annotations(errors, &path.child("userAnnotations"), annotations);
    }
    if !KEYS.contains(&certificate.key_type.as_str()) {
        errors.not_supported(path.child("keyType"), &certificate.key_type, KEYS);
    }
    if let Some(seconds) = certificate.max_expiration_seconds {
        let path = path.child("maxExpirationSeconds");
        let longest = longest_expiration(signer);
        if seconds < SHORTEST_EXPIRATION {
            errors.invalid(
                path,
                seconds,
                format!("if provided, maxExpirationSeconds must be >= {SHORTEST_EXPIRATION}"),
            );
        } else if seconds > longest {
            errors.invalid(path, seconds, format!("if provided, maxExpirationSeconds must be <= {longest}"));
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
    descending_path(errors, path, value);
    // Of what leads upwards altogether both is said.
    if value.starts_with("..") && !value.starts_with("../") {
        errors.invalid(path, value, "must not start with '..'");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn said(sources: Value) -> Vec<String> {
        let volume = json!({"name": "v", "projected": {"sources": sources}});
        let mut errors = FieldErrors::default();
        validate(&mut errors, &Path::new("volumes"), &[serde_json::from_value(volume).unwrap()], None);
        errors.iter().map(ToString::to_string).collect()
    }

    fn said_of(volumes: Value, pod: Option<&str>) -> Vec<String> {
        let volumes: Vec<Volume> = serde_json::from_value(volumes).unwrap();
        let mut errors = FieldErrors::default();
        validate(&mut errors, &Path::new("volumes"), &volumes, pod);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn security_every_inline_source_is_checked() {
        let storage = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        for good in [
            json!({"gitRepo": {"repository": "a", "directory": "b"}}),
            json!({"iscsi": {"targetPortal": "a:1", "iqn": "iqn.2001-04.com.example:a", "lun": 0}}),
            json!({"cinder": {"volumeID": "a", "secretRef": {"name": "b"}}}),
            json!({"storageos": {"volumeName": "a", "secretRef": {"name": "b"}}}),
            json!({"scaleIO": {"gateway": "a", "system": "b", "volumeName": "c", "secretRef": {}}}),
            json!({"ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": storage}}}),
            json!({"image": {"reference": "a", "pullPolicy": "Always"}}),
        ] {
            let mut volume = good.clone();
            volume["name"] = json!("v");
            assert_eq!(said_of(json!([volume]), Some("p")), Vec::<String>::new(), "{good}");
        }
        for (bad, expected) in [
            (json!({}), ": Required value: must specify a volume type"),
            (
                json!({"emptyDir": {"sizeLimit": "-1"}}),
                ".emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
            ),
            (json!({"gitRepo": {"repository": ""}}), ".gitRepo.repository: Required value"),
            (
                json!({"gitRepo": {"repository": "a", "directory": "../b"}}),
                ".gitRepo.directory: Invalid value: \"../b\": must not contain '..'",
            ),
            (
                json!({"gitRepo": {"repository": "a", "directory": "/b"}}),
                ".gitRepo.directory: Invalid value: \"/b\": must be a relative path",
            ),
            (
                json!({"iscsi": {"targetPortal": "", "iqn": "eui.0123456789abcdef", "lun": 0}}),
                ".iscsi.targetPortal: Required value",
            ),
            (
                json!({"iscsi": {"targetPortal": "a", "iqn": "x", "lun": 0}}),
                ".iscsi.iqn: Invalid value: \"x\": must be valid format starting with iqn, eui, or naa",
            ),
            (
                json!({"iscsi": {"targetPortal": "a", "iqn": "naa.x", "lun": 0}}),
                ".iscsi.iqn: Invalid value: \"naa.x\": must be valid format",
            ),
            (
                json!({"iscsi": {"targetPortal": "a", "iqn": "eui.0123456789abcdef", "lun": 256}}),
                ".iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
            ),
            (
                json!({"iscsi": {"targetPortal": "a", "iqn": "eui.0123456789abcdef", "lun": 0, "chapAuthSession": true}}),
                ".iscsi.secretRef: Required value",
            ),
            (
                json!({"iscsi": {"targetPortal": "a", "iqn": "eui.0123456789abcdef", "lun": 0, "initiatorName": "y"}}),
                ".iscsi.initiatorname: Invalid value: \"y\": must be valid format starting with iqn, eui, or naa",
            ),
            (
                json!({"iscsi": {"targetPortal": "a".repeat(63), "iqn": "eui.0123456789abcdef", "lun": 0,
                    "initiatorName": "eui.0123456789abcdef"}}),
                ".name: Invalid value: \"v\": Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters",
            ),
            (json!({"cinder": {"volumeID": "a", "secretRef": {}}}), ".cinder.secretRef.name: Required value"),
            (json!({"storageos": {"volumeName": "A"}}), ".storageos.volumeName: Invalid value: \"A\""),
            (json!({"storageos": {"volumeName": "a", "secretRef": {}}}), ".storageos.secretRef.name: Required value"),
            (
                json!({"scaleIO": {"gateway": "a", "system": "", "volumeName": "c", "secretRef": {}}}),
                ".scaleIO.system: Required value",
            ),
            (json!({"ephemeral": {}}), ".ephemeral.volumeClaimTemplate: Required value"),
            (
                json!({"ephemeral": {"volumeClaimTemplate": {"metadata": {"name": "n"}, "spec": storage}}}),
                ".ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set",
            ),
            (
                json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"resources": storage["resources"]}}}}),
                ".ephemeral.volumeClaimTemplate.spec.accessModes: Required value: at least 1 access mode is required",
            ),
            (json!({"image": {"pullPolicy": "Always"}}), ".image.reference: Required value"),
            (
                json!({"image": {"reference": "a", "pullPolicy": "Often"}}),
                ".image.pullPolicy: Unsupported value: \"Often\"",
            ),
            // The first in upstream's order is looked at, the others are refused, under upstream's names.
            (
                json!({"hostPath": {"path": "/a"}, "cephfs": {"monitors": []}}),
                ".cephFS: Forbidden: may not specify more than 1 volume type",
            ),
            (
                json!({"nfs": {"server": "a", "path": "/"}, "downwardAPI": {}}),
                ".downwarAPI: Forbidden: may not specify more than 1 volume type",
            ),
        ] {
            let mut volume = bad.clone();
            volume["name"] = json!("v");
            let said = said_of(json!([volume]), Some("p"));
            assert!(said.len() == 1 && said[0].starts_with(&format!("volumes[0]{expected}")), "{bad}: {said:?}");
        }
        // Claims that are made for a pod have its name.
        let own = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": storage}}});
        let other = json!({"name": "w", "persistentVolumeClaim": {"claimName": "p-v"}});
        assert_eq!(
            said_of(json!([other, own]), Some("p")),
            [
                "volumes[0].persistentVolumeClaim.claimName: Invalid value: \"p-v\": must not reference a PVC that gets created for an ephemeral volume"
            ]
        );
        let long = said_of(json!([own]), Some(&"p".repeat(253)));
        assert!(
            long.len() == 1 && long[0].starts_with("volumes[0].name: Invalid value: \"v\": PVC name \"pp"),
            "{long:?}"
        );
        assert_eq!(said_of(json!([{"name": "v", "image": {"pullPolicy": "Never"}}]), None), Vec::<String>::new());
    }

    #[test]
    fn security_bundles_and_certificates_are_written_below_their_volume() {
        const AT: &str = "volumes[0].projected.sources[0]";
        let bundle = |value: Value| json!([{"clusterTrustBundle": value}]);
        let certificate = |more: Value| {
            let mut value = json!({"signerName": "a.example/b", "keyType": "ED25519", "keyPath": "key"});
            value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!([{"podCertificate": value}])
        };
        for good in [
            bundle(json!({"name": "a.example:b:c", "path": "ca.pem"})),
            bundle(json!({"name": "plain", "path": "a/ca.pem"})),
            bundle(
                json!({"signerName": "a.example/b", "labelSelector": {"matchLabels": {"a": "b"}}, "path": "ca.pem"}),
            ),
            certificate(json!({"maxExpirationSeconds": 3600, "userAnnotations": {"a.example/key": "value"}})),
        ] {
            assert_eq!(said(good.clone()), Vec::<String>::new(), "{good}");
        }
        for (bad, expected) in [
            (
                bundle(json!({"name": "plain", "path": "../../etc/x"})),
                ".clusterTrustBundle.path: Invalid value: \"../../etc/x\": must not contain '..'",
            ),
            (
                bundle(json!({"name": "plain", "path": "/etc/x"})),
                ".clusterTrustBundle.path: Invalid value: \"/etc/x\": must be a relative path",
            ),
            (bundle(json!({"name": "plain", "path": ""})), ".clusterTrustBundle.path: Required value"),
            (
                bundle(json!({"path": "a"})),
                ".clusterTrustBundle: Required value: either name or signerName must be specified",
            ),
            (
                bundle(json!({"name": "../x", "path": "a"})),
                ".clusterTrustBundle.name: Invalid value: \"../x\": not a valid clustertrustbundlename: ",
            ),
            (
                bundle(json!({"name": "plain", "labelSelector": {}, "path": "a"})),
                ".clusterTrustBundle.labelSelector: Invalid value: ",
            ),
            (
                bundle(json!({"signerName": "x", "path": "a"})),
                ".clusterTrustBundle.signerName: Invalid value: \"x\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
            ),
            (
                certificate(json!({"keyPath": "../key"})),
                ".podCertificate.keyPath: Invalid value: \"../key\": must not contain '..'",
            ),
            (
                certificate(json!({"keyPath": null})),
                ".podCertificate: Required value: specify at least one of credentialBundlePath, keyPath, and certificateChainPath",
            ),
            (certificate(json!({"keyType": "DSA"})), ".podCertificate.keyType: Unsupported value: \"DSA\""),
            (
                certificate(json!({"maxExpirationSeconds": 1})),
                ".podCertificate.maxExpirationSeconds: Invalid value: 1: if provided, maxExpirationSeconds must be >= 3600",
            ),
            (
                certificate(json!({"maxExpirationSeconds": 7862401})),
                ".podCertificate.maxExpirationSeconds: Invalid value: 7862401: if provided, maxExpirationSeconds must be <= 7862400",
            ),
            (
                certificate(json!({"userAnnotations": {"key": "value"}})),
                ".podCertificate.userAnnotations: Invalid value: \"key\": must be a domain-prefixed key (such as \"acme.io/foo\")",
            ),
            (
                certificate(json!({"signerName": "local/b"})),
                ".podCertificate.signerName: Invalid value: \"local\": should be a domain with at least two segments separated by dots",
            ),
        ] {
            let said = said(bad.clone());
            assert!(said.len() == 1 && said[0].starts_with(&format!("{AT}{expected}")), "{bad}: {said:?}");
        }
        let twice = json!([{"clusterTrustBundle": {"name": "plain", "path": "key"}},
            {"podCertificate": {"signerName": "a.example/b", "keyType": "ED25519", "keyPath": "key"}}]);
        assert_eq!(said(twice), ["volumes[0].projected: Invalid value: \"key\": conflicting duplicate paths"]);
    }
}
