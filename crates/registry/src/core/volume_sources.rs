//! Validation of where volumes come from: what pods and PersistentVolumes share, and the sources of PersistentVolumes.
//!
//! Upstream's rules and words, also for sources that only other clusters can mount: an object that is stored here may be read there.

use std::collections::BTreeMap;

use api::field::{FieldErrors, Path};
use api::validation as rules;
use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, CSIPersistentVolumeSource, FCVolumeSource,
    FlockerVolumeSource, GCEPersistentDiskVolumeSource, HostPathVolumeSource, ISCSIPersistentVolumeSource,
    ISCSIVolumeSource, NFSVolumeSource, PersistentVolumeSpec, QuobyteVolumeSource, SecretReference,
    StorageOSPersistentVolumeSource,
};

use crate::unset::{items, or_empty, text};

const CSI_DRIVER_NAME: usize = 63;
const ISCSI_NAME: &str = "must be valid format";
pub(super) const TOO_LONG_FOR_ISCSI: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
const HOST_PORTS: &str = "must be a host:port pair or multiple pairs separated by commas";

/// The source of a PersistentVolume: there is one, and it follows its rules. `volume` is the name of the volume.
pub(super) fn persistent(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    spec: &PersistentVolumeSpec,
    volume: &str,
    has_affinity: bool,
) {
    let mut sources = persistent_sources(spec);
    let Some(first) = sources.next() else {
        errors.required(path, "must specify a volume type");
        return;
    };
    persistent_source(errors, path, spec, volume, has_affinity);
    // Upstream looks at this one however many there are, and refuses it for none of them.
    const ALWAYS: &str = "flexVolume";
    if let Some(source) = spec.flex_volume.as_ref().filter(|_| first != ALWAYS) {
        flex_volume(errors, &path.child(ALWAYS), &source.driver, source.options.as_ref());
    }
    for extra in sources.filter(|name| *name != ALWAYS) {
        errors.forbidden(path.child(extra), "may not specify more than 1 volume type");
    }
}

/// Those that are set, in upstream's order and under the names by which it refuses one too many.
fn persistent_sources(spec: &PersistentVolumeSpec) -> impl Iterator<Item = &'static str> {
    let all = [
        ("hostPath", spec.host_path.is_some()),
        ("gcePersistentDisk", spec.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", spec.aws_elastic_block_store.is_some()),
        ("glusterfs", spec.glusterfs.is_some()),
        ("flocker", spec.flocker.is_some()),
        ("nfs", spec.nfs.is_some()),
        ("rbd", spec.rbd.is_some()),
        ("quobyte", spec.quobyte.is_some()),
        ("cephFS", spec.cephfs.is_some()),
        ("iscsi", spec.iscsi.is_some()),
        ("cinder", spec.cinder.is_some()),
        ("fc", spec.fc.is_some()),
        ("flexVolume", spec.flex_volume.is_some()),
        ("azureFile", spec.azure_file.is_some()),
        ("vsphereVolume", spec.vsphere_volume.is_some()),
        ("photonPersistentDisk", spec.photon_persistent_disk.is_some()),
        ("portworxVolume", spec.portworx_volume.is_some()),
        ("azureDisk", spec.azure_disk.is_some()),
        ("scaleIO", spec.scale_io.is_some()),
        ("local", spec.local.is_some()),
        ("storageos", spec.storageos.is_some()),
        ("csi", spec.csi.is_some()),
    ];
    all.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name)
}

/// The rules of the first that is set, in the same order.
fn persistent_source(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    spec: &PersistentVolumeSpec,
    volume: &str,
    has_affinity: bool,
) {
    if let Some(source) = &spec.host_path {
        host_path(errors, &path.child("hostPath"), source);
    } else if let Some(source) = &spec.gce_persistent_disk {
        gce_persistent_disk(errors, &path.child("persistentDisk"), source);
    } else if let Some(source) = &spec.aws_elastic_block_store {
        aws_elastic_block_store(errors, &path.child("awsElasticBlockStore"), source);
    } else if let Some(source) = &spec.glusterfs {
        let path = path.child("glusterfs");
        required(errors, &path, &[("endpoints", &source.endpoints), ("path", &source.path)]);
        match source.endpoints_namespace.as_deref() {
            Some("") => errors.invalid(
                path.child("endpointsNamespace"),
                "",
                "if the endpointnamespace is set, it must be a valid namespace name",
            ),
            Some(namespace) => {
                errors.invalid_each(path.child("endpointsNamespace"), namespace, rules::dns1123_label(namespace));
            }
            None => {}
        }
    } else if let Some(source) = &spec.flocker {
        flocker(errors, &path.child("flocker"), source);
    } else if let Some(source) = &spec.nfs {
        nfs(errors, &path.child("nfs"), source);
    } else if let Some(source) = &spec.rbd {
        monitors(errors, &path.child("rbd"), &source.monitors);
        required(errors, &path.child("rbd"), &[("image", &source.image)]);
    } else if let Some(source) = &spec.quobyte {
        quobyte(errors, &path.child("quobyte"), source);
    } else if let Some(source) = &spec.cephfs {
        monitors(errors, &path.child("cephfs"), &source.monitors);
    } else if let Some(source) = &spec.iscsi {
        iscsi(errors, &path.child("iscsi"), source, volume);
    } else if let Some(source) = &spec.cinder {
        let path = path.child("cinder");
        required(errors, &path, &[("volumeID", &source.volume_id)]);
        if let Some(SecretReference { name, namespace }) = &source.secret_ref {
            named_secret(errors, &path.child("secretRef"), or_empty(name), or_empty(namespace));
        }
    } else if let Some(source) = &spec.fc {
        fc(errors, &path.child("fc"), source);
    } else if let Some(source) = &spec.flex_volume {
        flex_volume(errors, &path.child("flexVolume"), &source.driver, source.options.as_ref());
    } else if let Some(source) = &spec.azure_file {
        let path = path.child("azureFile");
        required(errors, &path, &[("secretName", &source.secret_name), ("shareName", &source.share_name)]);
        if source.secret_namespace.as_deref() == Some("") {
            errors.required(path.child("secretNamespace"), "");
        }
    } else if let Some(source) = &spec.vsphere_volume {
        required(errors, &path.child("vsphereVolume"), &[("volumePath", &source.volume_path)]);
    } else if let Some(source) = &spec.photon_persistent_disk {
        required(errors, &path.child("photonPersistentDisk"), &[("pdID", &source.pd_id)]);
    } else if let Some(source) = &spec.portworx_volume {
        required(errors, &path.child("portworxVolume"), &[("volumeID", &source.volume_id)]);
    } else if let Some(source) = &spec.azure_disk {
        azure_disk(errors, &path.child("azureDisk"), source);
    } else if let Some(source) = &spec.scale_io {
        let name = or_empty(&source.volume_name);
        let fields = [("gateway", source.gateway.as_str()), ("system", source.system.as_str()), ("volumeName", name)];
        required(errors, &path.child("scaleIO"), &fields);
    } else if let Some(source) = &spec.local {
        let local = path.child("local");
        match source.path.is_empty() {
            true => errors.required(local.child("path"), ""),
            false => no_backsteps(errors, &local.child("path"), &source.path),
        }
        if !has_affinity {
            errors.required(path.child("nodeAffinity"), "Local volume requires node affinity");
        }
    } else if let Some(source) = &spec.storageos {
        storageos(errors, &path.child("storageos"), source);
    } else if let Some(source) = &spec.csi {
        csi(errors, &path.child("csi"), source);
    }
}

/// A field each that must not be empty.
pub(super) fn required(errors: &mut FieldErrors, path: &Path<'_>, fields: &[(&str, &str)]) {
    for (name, _) in fields.iter().filter(|(_, value)| value.is_empty()) {
        errors.required(path.child(name), "");
    }
}

pub(super) fn host_path(errors: &mut FieldErrors, path: &Path<'_>, source: &HostPathVolumeSource) {
    const TYPES: &[&str] =
        &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    if source.path.is_empty() {
        errors.required(path.child("path"), "");
        return;
    }
    no_backsteps(errors, &path.child("path"), &source.path);
    if let Some(kind) = source.type_.as_ref().filter(|kind| !TYPES.contains(&kind.as_str())) {
        errors.not_supported(path.child("type"), kind, TYPES);
    }
}

pub(super) fn nfs(errors: &mut FieldErrors, path: &Path<'_>, source: &NFSVolumeSource) {
    required(errors, path, &[("server", &source.server), ("path", &source.path)]);
    if !source.path.starts_with('/') {
        errors.invalid(path.child("path"), &source.path, "must be an absolute path");
    }
}

pub(super) fn gce_persistent_disk(errors: &mut FieldErrors, path: &Path<'_>, source: &GCEPersistentDiskVolumeSource) {
    required(errors, path, &[("pdName", &source.pd_name)]);
    partition(errors, path, source.partition);
}

pub(super) fn aws_elastic_block_store(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    source: &AWSElasticBlockStoreVolumeSource,
) {
    required(errors, path, &[("volumeID", &source.volume_id)]);
    partition(errors, path, source.partition);
}

/// None is 0, which upstream lets pass and does not name.
fn partition(errors: &mut FieldErrors, path: &Path<'_>, partition: Option<i32>) {
    if let Some(partition) = partition.filter(|partition| !(0..=255).contains(partition)) {
        errors.invalid_each(path.child("partition"), partition, rules::in_range(i64::from(partition), 1, 255));
    }
}

pub(super) fn flocker(errors: &mut FieldErrors, path: &Path<'_>, source: &FlockerVolumeSource) {
    let (name, uuid) = (or_empty(&source.dataset_name), or_empty(&source.dataset_uuid));
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => errors.required(path, "one of datasetName and datasetUUID is required"),
        (false, false) => {
            errors.invalid(path, "resource", "datasetName and datasetUUID can not be specified simultaneously");
        }
        _ => {}
    }
    if name.contains('/') {
        errors.invalid(path.child("datasetName"), name, "must not contain '/'");
    }
}

pub(super) fn monitors(errors: &mut FieldErrors, path: &Path<'_>, monitors: &[String]) {
    if monitors.is_empty() {
        errors.required(path.child("monitors"), "");
    }
}

pub(super) fn quobyte(errors: &mut FieldErrors, path: &Path<'_>, source: &QuobyteVolumeSource) {
    if source.registry.is_empty() {
        errors.required(path.child("registry"), HOST_PORTS);
    } else if or_empty(&source.tenant).len() >= 65 {
        errors.required(path.child("tenant"), "must be a UUID and may not exceed a length of 64 characters");
    } else {
        for _ in source.registry.split(',').filter(|pair| !is_host_port(pair)) {
            errors.invalid(path.child("registry"), &source.registry, HOST_PORTS);
        }
    }
    required(errors, path, &[("volume", &source.volume)]);
}

/// As Go's `net.SplitHostPort` (1.25) takes it.
fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let inside = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']'),
        None => (!host.contains(':')).then_some(host),
    };
    inside.is_some_and(|inside| !inside.contains(['[', ']'])) && !port.contains(['[', ']'])
}

pub(super) fn fc(errors: &mut FieldErrors, path: &Path<'_>, source: &FCVolumeSource) {
    let (names, ids) = (items(&source.target_wwns), items(&source.wwids));
    match (names.is_empty(), ids.is_empty()) {
        (true, true) => {
            errors.required(path.child("targetWWNs"), "must specify either targetWWNs or wwids, but not both");
        }
        (false, false) => {
            errors.invalid(path.child("targetWWNs"), names, "targetWWNs and wwids can not be specified simultaneously")
        }
        _ => {}
    }
    if !names.is_empty() {
        match source.lun {
            None => errors.required(path.child("lun"), "lun is required if targetWWNs is specified"),
            Some(lun) => errors.invalid_each(path.child("lun"), lun, rules::in_range(i64::from(lun), 0, 255)),
        }
    }
}

pub(super) fn flex_volume(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    driver: &str,
    options: Option<&BTreeMap<String, String>>,
) {
    required(errors, path, &[("driver", driver)]);
    for key in options.into_iter().flat_map(BTreeMap::keys) {
        let namespace = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            let path = path.child("options");
            errors.invalid(path.key(key), key, "kubernetes.io and k8s.io namespaces are reserved");
        }
    }
}

pub(super) fn azure_disk(errors: &mut FieldErrors, path: &Path<'_>, source: &AzureDiskVolumeSource) {
    const CACHING: &[&str] = &["None", "ReadOnly", "ReadWrite"];
    const KINDS: &[&str] = &["Dedicated", "Managed", "Shared"];
    const MANAGED: &str =
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    required(errors, path, &[("diskName", &source.disk_name), ("diskURI", &source.disk_uri)]);
    if let Some(mode) = source.caching_mode.as_ref().filter(|mode| !CACHING.contains(&mode.as_str())) {
        errors.not_supported(path.child("cachingMode"), mode, CACHING);
    }
    let Some(kind) = source.kind.as_deref() else { return };
    if !KINDS.contains(&kind) {
        errors.not_supported(path.child("kind"), kind, KINDS);
    }
    let (prefix, form) = if kind == "Managed" { ("/subscriptions/", MANAGED) } else { ("https://", BLOB) };
    if !source.disk_uri.starts_with(prefix) {
        errors.not_supported(path.child("diskURI"), &source.disk_uri, &[form]);
    }
}

fn iscsi(errors: &mut FieldErrors, path: &Path<'_>, source: &ISCSIPersistentVolumeSource, volume: &str) {
    required(errors, path, &[("targetPortal", &source.target_portal)]);
    if source.initiator_name.is_some() && is_too_long_for_iscsi(volume, &source.target_portal) {
        errors.invalid(path.child("targetportal"), &source.target_portal, TOO_LONG_FOR_ISCSI);
    }
    iscsi_target(errors, path, &source.iqn, source.lun, ISCSI_NAME);
    let has_chap = source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
    match &source.secret_ref {
        None if has_chap => errors.required(path.child("secretRef"), ""),
        Some(secret) => required(errors, path, &[("secretRef.name", or_empty(&secret.name))]),
        None => {}
    }
    if let Some(initiator) = &source.initiator_name {
        iscsi_name(errors, &path.child("initiatorname"), initiator, ISCSI_NAME);
    }
}

pub(super) fn iscsi_inline(errors: &mut FieldErrors, path: &Path<'_>, source: &ISCSIVolumeSource) {
    const BEGINNING: &str = "must be valid format starting with iqn, eui, or naa";
    required(errors, path, &[("targetPortal", &source.target_portal)]);
    iscsi_target(errors, path, &source.iqn, source.lun, BEGINNING);
    let has_chap = source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
    if has_chap && source.secret_ref.is_none() {
        errors.required(path.child("secretRef"), "");
    }
    if let Some(initiator) = &source.initiator_name {
        iscsi_name(errors, &path.child("initiatorname"), initiator, BEGINNING);
    }
}

pub(super) fn is_too_long_for_iscsi(volume: &str, portal: &str) -> bool {
    volume.len() + 1 + portal.len() > 64
}

fn iscsi_target(errors: &mut FieldErrors, path: &Path<'_>, name: &str, lun: i32, beginning: &str) {
    match name.is_empty() {
        true => errors.required(path.child("iqn"), ""),
        false => iscsi_name(errors, &path.child("iqn"), name, beginning),
    }
    errors.invalid_each(path.child("lun"), lun, rules::in_range(i64::from(lun), 0, 255));
}

/// `beginning` is said of a name that begins like none.
fn iscsi_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str, beginning: &str) {
    if !["iqn", "eui", "naa"].iter().any(|prefix| name.starts_with(prefix)) {
        errors.invalid(path, name, beginning);
    } else if !is_iscsi_name(name) {
        errors.invalid(path, name, ISCSI_NAME);
    }
}

/// `iqn.2001-04.com.example:disk`, `eui.` and sixteen, or `naa.` and thirty-two letters and digits.
fn is_iscsi_name(name: &str) -> bool {
    let is_identifier = |rest: &str, length: usize| {
        let mut characters = rest.chars();
        let separator = characters.next();
        let rest = characters.as_str();
        separator.is_some_and(|separator| separator != '\n')
            && rest.len() == length
            && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    if let Some(rest) = name.strip_prefix("eui") {
        return is_identifier(rest, 16);
    }
    if let Some(rest) = name.strip_prefix("naa") {
        return is_identifier(rest, 32);
    }
    // Upstream looks for the pattern anywhere in what begins like that.
    name.starts_with("iqn") && name.match_indices("iqn.").any(|(at, found)| is_qualified(&name[at + found.len()..]))
}

/// `2001-04.com.example:disk`.
fn is_qualified(text: &str) -> bool {
    const DATE: &[u8] = b"dddd-dd.";
    let Some((date, rest)) = text.split_at_checked(DATE.len()) else { return false };
    let fits = |(byte, form): (u8, &u8)| match form {
        b'd' => byte.is_ascii_digit(),
        other => byte == *other,
    };
    let Some((authority, own)) = rest.split_once(':') else { return false };
    let is_of_authority = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    date.bytes().zip(DATE).all(fits)
        && !authority.is_empty()
        && authority.bytes().all(is_of_authority)
        && !own.is_empty()
        && !own.contains([',', ';', '*', '&', '$', '|', ' ', '\t', '\n', '\u{c}', '\r'])
}

fn storageos(errors: &mut FieldErrors, path: &Path<'_>, source: &StorageOSPersistentVolumeSource) {
    storageos_names(errors, path, &source.volume_name, &source.volume_namespace);
    if let Some(secret) = &source.secret_ref {
        named_secret(errors, &path.child("secretRef"), or_empty(&secret.name), or_empty(&secret.namespace));
    }
}

pub(super) fn storageos_names(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    name: &Option<String>,
    namespace: &Option<String>,
) {
    match text(name) {
        None => errors.required(path.child("volumeName"), ""),
        Some(name) => errors.invalid_each(path.child("volumeName"), name, rules::dns1123_label(name)),
    }
    if let Some(namespace) = text(namespace) {
        errors.invalid_each(path.child("volumeNamespace"), namespace, rules::dns1123_label(namespace));
    }
}

fn named_secret(errors: &mut FieldErrors, path: &Path<'_>, name: &str, namespace: &str) {
    required(errors, path, &[("name", name), ("namespace", namespace)]);
}

fn csi(errors: &mut FieldErrors, path: &Path<'_>, source: &CSIPersistentVolumeSource) {
    csi_driver_name(errors, &path.child("driver"), &source.driver);
    required(errors, path, &[("volumeHandle", &source.volume_handle)]);
    for (field, secret) in [
        ("controllerPublishSecretRef", &source.controller_publish_secret_ref),
        ("controllerExpandSecretRef", &source.controller_expand_secret_ref),
        ("nodePublishSecretRef", &source.node_publish_secret_ref),
        ("nodeExpandSecretRef", &source.node_expand_secret_ref),
    ] {
        let Some(SecretReference { name, namespace }) = secret else { continue };
        let (path, name, namespace) = (path.child(field), or_empty(name), or_empty(namespace));
        match name.is_empty() {
            true => errors.required(path.child("name"), ""),
            false => errors.invalid_each(path.child("name"), name, rules::dns1123_subdomain(name)),
        }
        match namespace.is_empty() {
            true => errors.required(path.child("namespace"), ""),
            false => errors.invalid_each(path.child("namespace"), namespace, rules::dns1123_label(namespace)),
        }
    }
}

pub fn csi_driver_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    if name.len() > CSI_DRIVER_NAME {
        errors.too_long(path, CSI_DRIVER_NAME);
    }
    errors.invalid_each(path, name, rules::dns1123_subdomain(&name.to_lowercase()));
}

pub(super) fn no_backsteps(errors: &mut FieldErrors, path: &Path<'_>, value: &str) {
    if value.split('/').any(|part| part == "..") {
        errors.invalid(path, value, "must not contain '..'");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_iscsi_and_pairs_of_host_and_port() {
        for (name, expected) in [
            ("iqn.2001-04.com.example:storage.kube.sys1.xyz", true),
            ("eui.0123456789abcdef", true),
            ("naa.60014051b71ea94c0f14d7dbe1c0f5a2", true),
            ("iqn.2001-04.com.example", false),
            ("iqn.2001-04.com.example:", false),
            ("iqn.201-04.com.example:a", false),
            ("iqn.2001-04.com.example:a;rm", false),
            ("iqn.2001-04.ü:a", false),
            ("iqn", false),
            ("eui.0123", false),
            ("naa.x", false),
            ("disk", false),
        ] {
            assert_eq!(is_iscsi_name(name), expected, "{name}");
        }
        for (pair, expected) in [
            ("a:1", true),
            ("[::1]:1", true),
            (":", true),
            ("a", false),
            ("::1:1", false),
            ("[::1]", false),
            ("[a:1", false),
        ] {
            assert_eq!(is_host_port(pair), expected, "{pair}");
        }
    }
}
