//! Validation of a pod's volumes.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use api::quantity::Quantity;
use api::validation as rules;
use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, DownwardAPIVolumeFile, KeyToPath, PodCertificateProjection, ProjectedVolumeSource,
    Volume,
};

use super::containers::{VOLUME_FIELDS, field_ref, resource_field_ref};
use crate::certificates::rules::{
    SHORTEST_EXPIRATION, longest_expiration, signer_name, trust_bundle_name, user_annotations,
};
use crate::core::volume_sources;
use crate::metadata::label_selector;
use crate::unset::{items, text};

const DUPLICATE: &str = "conflicting duplicate paths";
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
        volume_sources::host_path(errors, &path.child("hostPath"), host_path);
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
        volume_sources::nfs(errors, &path.child("nfs"), nfs);
    }
    if let Some(csi) = &volume.csi {
        let path = path.child("csi");
        volume_sources::csi_driver_name(errors, &path.child("driver"), &csi.driver);
        if let Some(secret) = &csi.node_publish_secret_ref {
            match secret.name.is_empty() {
                true => errors.required(path.child("nodePublishSecretRef.name"), ""),
                false => errors.invalid_each(path.child("name"), &secret.name, rules::dns1123_subdomain(&secret.name)),
            }
        }
    }
    foreign(errors, path, volume);
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

/// Sources that no node of ours mounts, and that have a form all the same.
fn foreign(errors: &mut FieldErrors, path: &Path<'_>, volume: &Volume) {
    if let Some(source) = &volume.gce_persistent_disk {
        volume_sources::gce_persistent_disk(errors, &path.child("persistentDisk"), source);
    }
    if let Some(source) = &volume.aws_elastic_block_store {
        volume_sources::aws_elastic_block_store(errors, &path.child("awsElasticBlockStore"), source);
    }
    if let Some(source) = &volume.flocker {
        volume_sources::flocker(errors, &path.child("flocker"), source);
    }
    if let Some(source) = &volume.quobyte {
        volume_sources::quobyte(errors, &path.child("quobyte"), source);
    }
    if let Some(source) = &volume.fc {
        volume_sources::fc(errors, &path.child("fc"), source);
    }
    if let Some(source) = &volume.azure_disk {
        volume_sources::azure_disk(errors, &path.child("azureDisk"), source);
    }
    if let Some(source) = &volume.flex_volume {
        volume_sources::flex_volume(errors, &path.child("flexVolume"), &source.driver, source.options.as_ref());
    }
    if let Some(source) = &volume.cephfs {
        volume_sources::monitors(errors, &path.child("cephfs"), &source.monitors);
    }
    if let Some(source) = &volume.rbd {
        volume_sources::monitors(errors, &path.child("rbd"), &source.monitors);
        volume_sources::required(errors, &path.child("rbd"), &[("image", &source.image)]);
    }
    if let Some(source) = &volume.glusterfs {
        let fields = [("endpoints", source.endpoints.as_str()), ("path", source.path.as_str())];
        volume_sources::required(errors, &path.child("glusterfs"), &fields);
    }
    if let Some(source) = &volume.azure_file {
        let fields = [("secretName", source.secret_name.as_str()), ("shareName", source.share_name.as_str())];
        volume_sources::required(errors, &path.child("azureFile"), &fields);
    }
    if let Some(source) = &volume.vsphere_volume {
        volume_sources::required(errors, &path.child("vsphereVolume"), &[("volumePath", &source.volume_path)]);
    }
    if let Some(source) = &volume.photon_persistent_disk {
        volume_sources::required(errors, &path.child("photonPersistentDisk"), &[("pdID", &source.pd_id)]);
    }
    if let Some(source) = &volume.portworx_volume {
        volume_sources::required(errors, &path.child("portworxVolume"), &[("volumeID", &source.volume_id)]);
    }
    if let Some(source) = &volume.cinder {
        volume_sources::required(errors, &path.child("cinder"), &[("volumeID", &source.volume_id)]);
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
    super::containers::descending_path(errors, path, value);
    if value.starts_with("..") && !value.starts_with("../") && value != ".." {
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
        validate(&mut errors, &Path::new("volumes"), &[serde_json::from_value(volume).unwrap()]);
        errors.iter().map(ToString::to_string).collect()
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
