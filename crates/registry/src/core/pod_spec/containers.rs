//! Validation of containers: names, images, ports, environment, mounts, resources.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use api::sort::CompactCollect as _;
use api::validation as rules;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerResizePolicy, EnvFromSource, EnvVar, EnvVarSource, FileKeySelector,
    ObjectFieldSelector, PodSpec, ResourceFieldSelector, Volume, VolumeMount,
};

use super::validation::one_of;
use super::{probes, resources, security};
use crate::core::volume_sources::no_backsteps;
use crate::unset::{items, or_empty, text};

/// What a container may refer to, and what it lives in.
pub struct Surroundings<'a> {
    /// Names of the pod's volumes, and whether each may be used as a block device.
    pub volumes: &'a BTreeMap<String, bool>,
    pub claims: &'a BTreeSet<&'a str>,
    pub grace: Option<i64>,
    pub restart_policy: &'a str,
    pub host_network: bool,
    /// Whether root in the pod is root outside.
    pub host_users: bool,
    /// The operating system, where the spec says it.
    pub os: Option<&'a str>,
    /// A pod, rather than a template.
    pub is_pod: bool,
}

pub fn validate(errors: &mut FieldErrors, spec_path: &Path<'_>, spec: &PodSpec, around: &Surroundings<'_>) {
    let path = spec_path.child("containers");
    if spec.containers.is_empty() {
        errors.required(path, "");
    }
    let mut names = BTreeSet::new();
    for (i, container) in spec.containers.iter().enumerate() {
        let path = path.index(i);
        common(errors, &path, container, around);
        if !names.insert(container.name.as_str()) {
            errors.duplicate(path.child("name"), &container.name);
        }
        lifecycle_and_probes(errors, &path, container, around);
        restart_rules(errors, &path, container);
        if around.host_network {
            host_ports(errors, &path.child("ports"), items(&container.ports));
        }
    }
    host_port_conflicts(errors, &path, &spec.containers);

    let path = spec_path.child("initContainers");
    for (i, container) in items(&spec.init_containers).iter().enumerate() {
        let path = path.index(i);
        common(errors, &path, container, around);
        if !names.insert(container.name.as_str()) && !container.name.is_empty() {
            errors.duplicate(path.child("name"), &container.name);
        }
        if container.restart_policy.as_deref() == Some("Always") {
            lifecycle_and_probes(errors, &path, container, around);
        } else {
            for (name, present) in [
                ("lifecycle", container.lifecycle.is_some()),
                ("livenessProbe", container.liveness_probe.is_some()),
                ("readinessProbe", container.readiness_probe.is_some()),
                ("startupProbe", container.startup_probe.is_some()),
            ] {
                if present {
                    errors
                        .forbidden(path.child(name), "may not be set for init containers without restartPolicy=Always");
                }
            }
        }
        restart_rules(errors, &path, container);
        // They run one by one, and each has the ports to itself.
        host_port_conflicts(errors, &spec_path.child("initContainers"), std::slice::from_ref(container));
        if container.restart_policy.as_deref() != Some("Always") {
            let restarts = |policy: &ContainerResizePolicy| policy.restart_policy == "RestartContainer";
            for (i, _) in items(&container.resize_policy).iter().enumerate().filter(|(_, policy)| restarts(policy)) {
                let place = path.child("resizePolicy");
                let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                errors.invalid(place.index(i).child("restartPolicy"), "RestartContainer", detail);
            }
        }
    }
    ephemeral(errors, &spec_path.child("ephemeralContainers"), spec, &mut names, around);
}

fn ephemeral<'a>(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    spec: &'a PodSpec,
    names: &mut BTreeSet<&'a str>,
    around: &Surroundings<'_>,
) {
    for (i, container) in items(&spec.ephemeral_containers).iter().enumerate() {
        let path = path.index(i);
        common(errors, &path, &super::as_container(container), around);
        if !names.insert(container.name.as_str()) {
            errors.duplicate(path.child("name"), &container.name);
        }
        if let Some(target) = text(&container.target_container_name)
            && !spec.containers.iter().chain(items(&spec.init_containers)).any(|other| other.name == target)
        {
            errors.not_found(path.child("targetContainerName"), target);
        }
        for (i, mount) in items(&container.volume_mounts).iter().enumerate() {
            let path = path.child("volumeMounts");
            let path = path.index(i);
            if text(&mount.sub_path).is_some() {
                errors.forbidden(path.child("subPath"), "cannot be set for an Ephemeral Container");
            }
            if text(&mount.sub_path_expr).is_some() {
                errors.forbidden(path.child("subPathExpr"), "cannot be set for an Ephemeral Container");
            }
        }
        let resources = container.resources.as_ref();
        for (name, present) in [
            ("ports", container.ports.is_some()),
            ("resources", resources.is_some_and(|r| r.limits.is_some() || r.requests.is_some() || r.claims.is_some())),
            ("resizePolicy", container.resize_policy.is_some()),
            ("restartPolicy", container.restart_policy.is_some()),
            ("restartPolicyRules", container.restart_policy_rules.is_some()),
            ("livenessProbe", container.liveness_probe.is_some()),
            ("readinessProbe", container.readiness_probe.is_some()),
            ("startupProbe", container.startup_probe.is_some()),
            ("lifecycle", container.lifecycle.is_some()),
        ] {
            if present {
                errors.forbidden(path.child(name), "cannot be set for an Ephemeral Container");
            }
        }
    }
}

fn common(errors: &mut FieldErrors, path: &Path<'_>, container: &Container, around: &Surroundings<'_>) {
    if container.name.is_empty() {
        errors.required(path.child("name"), "");
    } else {
        errors.invalid_each(path.child("name"), &container.name, rules::dns1123_label(&container.name));
    }
    match container.image.as_deref().unwrap_or_default() {
        "" => errors.required(path.child("image"), ""),
        image if around.is_pod && image.trim() != image => {
            errors.invalid(path.child("image"), image, "must not have leading or trailing whitespace");
        }
        _ => {}
    }
    one_of(
        errors,
        &path.child("terminationMessagePolicy"),
        &container.termination_message_policy,
        &["File", "FallbackToLogsOnError"],
    );
    ports(errors, &path.child("ports"), items(&container.ports));
    env(errors, &path.child("env"), items(&container.env));
    env_from(errors, &path.child("envFrom"), items(&container.env_from));
    mounts(errors, path, container, around);
    one_of(errors, &path.child("imagePullPolicy"), &container.image_pull_policy, &["Always", "IfNotPresent", "Never"]);
    if let Some(requirements) = &container.resources {
        resources::requirements(errors, &path.child("resources"), requirements, around.claims);
    }
    resize_policy(errors, &path.child("resizePolicy"), container, around.restart_policy);
    if let Some(context) = &container.security_context {
        security::container(errors, &path.child("securityContext"), context, around.host_users);
    }
}

fn lifecycle_and_probes(errors: &mut FieldErrors, path: &Path<'_>, container: &Container, around: &Surroundings<'_>) {
    if let Some(lifecycle) = &container.lifecycle {
        probes::lifecycle(errors, &path.child("lifecycle"), lifecycle, around.grace, around.os);
    }
    probes::validate(errors, path, container);
}

fn restart_rules(errors: &mut FieldErrors, path: &Path<'_>, container: &Container) {
    let restart_rules = items(&container.restart_policy_rules);
    match text(&container.restart_policy) {
        None if !restart_rules.is_empty() => {
            errors.required(path.child("restartPolicy"), "must specify restartPolicy when restart rules are used");
        }
        None => {}
        Some("Always" | "Never" | "OnFailure") => {}
        Some(other) => {
            errors.not_supported(path.child("restartPolicy"), other, &["Always", "Never", "OnFailure"]);
        }
    }
    let path = path.child("restartPolicyRules");
    if restart_rules.len() > 20 {
        errors.too_many(path, restart_rules.len(), 20);
    }
    for (i, rule) in restart_rules.iter().enumerate() {
        let path = path.index(i);
        if !RESTART_ACTIONS.contains(&rule.action.as_str()) {
            errors.not_supported(path.child("action"), &rule.action, RESTART_ACTIONS);
        }
        let place = path.child("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            errors.required(place, "must be specified");
            continue;
        };
        if !matches!(codes.operator.as_str(), "In" | "NotIn") {
            errors.not_supported(place.child("operator"), &codes.operator, &["In", "NotIn"]);
        }
        let values = items(&codes.values);
        if values.len() > 255 {
            errors.too_many(place.child("values"), values.len(), 255);
        }
    }
}

/// What may follow when a container ends.
const RESTART_ACTIONS: &[&str] = &["Restart", "RestartAllContainers"];

fn resize_policy(errors: &mut FieldErrors, path: &Path<'_>, container: &Container, restart_policy: &str) {
    let mut seen = BTreeSet::new();
    for (i, policy) in items(&container.resize_policy).iter().enumerate() {
        if !seen.insert(policy.resource_name.as_str()) {
            errors.duplicate(path.index(i), &policy.resource_name);
        }
        match policy.resource_name.as_str() {
            "cpu" | "memory" => {}
            "" => errors.required(path, ""),
            other => errors.not_supported(path, other, &["cpu", "memory"]),
        }
        match policy.restart_policy.as_str() {
            "NotRequired" => {}
            "RestartContainer" if restart_policy == "Never" => errors.invalid(
                path,
                &policy.restart_policy,
                "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
            ),
            "RestartContainer" => {}
            "" => errors.required(path, ""),
            other => errors.not_supported(path, other, &["NotRequired", "RestartContainer"]),
        }
    }
}

/// Where the network is the node's, ports are not mapped.
fn host_ports(errors: &mut FieldErrors, path: &Path<'_>, ports: &[ContainerPort]) {
    for (i, port) in ports.iter().enumerate() {
        if let Some(host_port) = port.host_port.filter(|&number| number != 0 && number != port.container_port) {
            let detail = "must match `containerPort` when `hostNetwork` is true";
            errors.invalid(path.index(i).child("hostPort"), host_port, detail);
        }
    }
}

fn ports(errors: &mut FieldErrors, path: &Path<'_>, ports: &[ContainerPort]) {
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        if let Some(name) = text(&port.name) {
            let messages = rules::port_name(name);
            if !messages.is_empty() {
                errors.invalid_each(path.child("name"), name, messages);
            } else if !names.insert(name) {
                errors.duplicate(path.child("name"), name);
            }
        }
        let number = i64::from(port.container_port);
        if number == 0 {
            errors.required(path.child("containerPort"), "");
        } else {
            errors.invalid_each(path.child("containerPort"), number, rules::port_number(number));
        }
        if let Some(host_port) = port.host_port.filter(|&port| port != 0) {
            errors.invalid_each(path.child("hostPort"), host_port, rules::port_number(i64::from(host_port)));
        }
        one_of(errors, &path.child("protocol"), &port.protocol, &["SCTP", "TCP", "UDP"]);
    }
}

/// Two containers cannot hold the same port of the host.
fn host_port_conflicts(errors: &mut FieldErrors, path: &Path<'_>, containers: &[Container]) {
    let mut taken = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in items(&container.ports).iter().enumerate() {
            let Some(host_port) = port.host_port.filter(|&port| port != 0) else { continue };
            let protocol = or_empty(&port.protocol);
            if !taken.insert(format!("{protocol}/{}/{host_port}", or_empty(&port.host_ip))) {
                let shown = format!("{protocol}/{}/{host_port}", or_empty(&port.host_ip));
                let container = path.index(i);
                errors.duplicate(container.child("ports").index(j).child("hostPort"), shown);
            }
        }
    }
}

fn env(errors: &mut FieldErrors, path: &Path<'_>, variables: &[EnvVar]) {
    for (i, variable) in variables.iter().enumerate() {
        let path = path.index(i);
        if variable.name.is_empty() {
            errors.required(path.child("name"), "");
        } else {
            errors.invalid_each(path.child("name"), &variable.name, rules::env_var_name(&variable.name));
        }
        if let Some(source) = &variable.value_from {
            value_from(errors, &path.child("valueFrom"), source, text(&variable.value).is_some());
        }
    }
}

fn value_from(errors: &mut FieldErrors, path: &Path<'_>, source: &EnvVarSource, has_value: bool) {
    let mut sources = 0;
    if let Some(field) = &source.field_ref {
        sources += 1;
        field_ref(errors, &path.child("fieldRef"), field, ENV_FIELDS);
    }
    if let Some(resource) = &source.resource_field_ref {
        sources += 1;
        resource_field_ref(errors, &path.child("resourceFieldRef"), resource, false);
    }
    for (name, key) in [
        ("configMapKeyRef", source.config_map_key_ref.as_ref().map(|r| (&r.name, &r.key))),
        ("secretKeyRef", source.secret_key_ref.as_ref().map(|r| (&r.name, &r.key))),
    ] {
        let Some((object, key)) = key else { continue };
        sources += 1;
        let path = path.child(name);
        errors.invalid_each(path.child("name"), object, rules::dns1123_subdomain(object));
        if key.is_empty() {
            errors.required(path.child("key"), "");
        } else {
            errors.invalid_each(path.child("key"), key, rules::config_map_key(key));
        }
    }
    if let Some(file) = &source.file_key_ref {
        sources += 1;
        file_key_ref(errors, &path.child("fileKeyRef"), file);
    }
    if sources == 0 {
        errors.invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if has_value {
        errors.invalid(path, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        errors.invalid(path, "", "may not have more than one field specified at a time");
    }
}

fn file_key_ref(errors: &mut FieldErrors, path: &Path<'_>, file: &FileKeySelector) {
    for (name, value, messages) in [
        ("key", &file.key, rules::env_var_name(&file.key)),
        ("volumeName", &file.volume_name, rules::dns1123_label(&file.volume_name)),
    ] {
        if value.is_empty() {
            errors.required(path.child(name), "");
        } else {
            errors.invalid_each(path.child(name), value, messages);
        }
    }
    if file.path.is_empty() {
        errors.required(path.child("path"), "");
    } else {
        no_backsteps(errors, &path.child("path"), &file.path);
    }
}

/// Variables are read from files of `emptyDir` volumes only (`validateFileKeyRefVolumes`, v1.36).
pub(super) fn file_key_volumes(errors: &mut FieldErrors, path: &Path<'_>, spec: &PodSpec) {
    let volumes = items(&spec.volumes).iter().rev();
    let volumes: BTreeMap<&str, &Volume> = volumes.map(|volume| (volume.name.as_str(), volume)).compact_collect();
    super::each_container(path, spec, |path, container| {
        for (i, variable) in items(&container.env).iter().enumerate() {
            let source = variable.value_from.as_ref();
            let Some(file) = source.and_then(|source| source.file_key_ref.as_ref()) else { continue };
            let field = format!("{path}.env[{i}].valueFrom.fileKeyRef.volumeName");
            match volumes.get(file.volume_name.as_str()) {
                None => errors.not_found(field, &file.volume_name),
                Some(volume) if volume.empty_dir.is_none() => {
                    errors.invalid(field, &file.volume_name, "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        }
    });
}

/// Fields of the pod that a variable may show.
pub const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Fields of the pod that a file may show.
pub const VOLUME_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

pub fn field_ref(errors: &mut FieldErrors, path: &Path<'_>, field: &ObjectFieldSelector, supported: &[&str]) {
    if text(&field.api_version).is_none() {
        errors.required(path.child("apiVersion"), "");
        return;
    }
    let wanted = field.field_path.as_str();
    if wanted.is_empty() {
        errors.required(path.child("fieldPath"), "");
        return;
    }
    if let Some((base, rest)) = wanted.split_once("['")
        && let Some(key) = rest.strip_suffix("']")
    {
        match base {
            "metadata.annotations" => errors.invalid_each(path, key, rules::qualified_name(&key.to_lowercase())),
            "metadata.labels" => errors.invalid_each(path, key, rules::qualified_name(key)),
            _ => errors.invalid(path, base, "does not support subscript"),
        }
        return;
    }
    const KNOWN: &[&str] = &["metadata.annotations", "metadata.labels"];
    if !supported.contains(&wanted) {
        if ENV_FIELDS.contains(&wanted) || KNOWN.contains(&wanted) {
            errors.not_supported(path.child("fieldPath"), wanted, supported);
        } else {
            let detail = format!("error converting fieldPath: field label not supported: {wanted}");
            errors.invalid(path.child("fieldPath"), wanted, detail);
        }
    }
}

pub fn resource_field_ref(errors: &mut FieldErrors, path: &Path<'_>, field: &ResourceFieldSelector, volume: bool) {
    const SUPPORTED: &[&str] = &[
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    if volume && text(&field.container_name).is_none() {
        errors.required(path.child("containerName"), "");
    } else if field.resource.is_empty() {
        errors.required(path.child("resource"), "");
    } else if !SUPPORTED.contains(&field.resource.as_str())
        && !field.resource.starts_with("limits.hugepages-")
        && !field.resource.starts_with("requests.hugepages-")
    {
        errors.not_supported(path.child("resource"), &field.resource, SUPPORTED);
    }
    if let Some(divisor) = &field.divisor
        && let Ok(divisor) = api::quantity::Quantity::try_from(divisor)
    {
        let ok = match field.resource.as_str() {
            "limits.cpu" | "requests.cpu" => ["0", "1m", "1"].contains(&divisor.to_string().as_str()),
            _ => ["0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"]
                .iter()
                .any(|allowed| api::quantity::Quantity::parse(allowed).is_ok_and(|allowed| allowed == divisor)),
        };
        if !ok {
            let detail = if field.resource.ends_with("cpu") {
                "only divisor's values 1m and 1 are supported with the cpu resource"
            } else {
                "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource"
            };
            errors.invalid(path.child("divisor"), divisor, detail);
        }
    }
}

fn env_from(errors: &mut FieldErrors, path: &Path<'_>, sources: &[EnvFromSource]) {
    for (i, source) in sources.iter().enumerate() {
        let item = path.index(i);
        if let Some(prefix) = text(&source.prefix) {
            errors.invalid_each(item.child("prefix"), prefix, rules::env_var_name(prefix));
        }
        let mut found = 0;
        for (name, object) in [
            ("configMapRef", source.config_map_ref.as_ref().map(|r| r.name.as_str())),
            ("secretRef", source.secret_ref.as_ref().map(|r| r.name.as_str())),
        ] {
            let Some(object) = object else { continue };
            found += 1;
            let path = item.child(name);
            if object.is_empty() {
                errors.required(path.child("name"), "");
            } else {
                errors.invalid_each(path.child("name"), object, rules::dns1123_subdomain(object));
            }
        }
        if found == 0 {
            errors.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`");
        } else if found > 1 {
            errors.invalid(path, "", "may not have more than one field specified at a time");
        }
    }
}

fn mounts(errors: &mut FieldErrors, path: &Path<'_>, container: &Container, around: &Surroundings<'_>) {
    let devices = items(&container.volume_devices);
    let device_names: BTreeSet<&str> = devices.iter().map(|device| device.name.as_str()).compact_collect();
    let device_paths: BTreeSet<&str> = devices.iter().map(|device| device.device_path.as_str()).compact_collect();
    let mut paths = BTreeSet::new();
    let mounts_path = path.child("volumeMounts");
    for (i, mount) in items(&container.volume_mounts).iter().enumerate() {
        let path = mounts_path.index(i);
        if mount.name.is_empty() {
            errors.required(path.child("name"), "");
        }
        if !around.volumes.contains_key(&mount.name) {
            errors.not_found(path.child("name"), &mount.name);
        }
        if mount.mount_path.is_empty() {
            errors.required(path.child("mountPath"), "");
        }
        if !paths.insert(mount.mount_path.as_str()) {
            errors.invalid(path.child("mountPath"), &mount.mount_path, "must be unique");
        }
        if device_names.contains(mount.name.as_str()) {
            errors.invalid(path.child("name"), &mount.name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(mount.mount_path.as_str()) {
            errors.invalid(
                path.child("mountPath"),
                &mount.mount_path,
                "must not already exist as a path in volumeDevices",
            );
        }
        for (name, value) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
            if let Some(value) = text(value) {
                descending_path(errors, &path.child(name), value);
            }
        }
        if text(&mount.sub_path).is_some()
            && let Some(expression) = text(&mount.sub_path_expr)
        {
            errors.invalid(path.child("subPathExpr"), expression, "subPathExpr and subPath are mutually exclusive");
        }
        recursive_read_only(errors, &mounts_path.child("recursiveReadOnly"), mount);
        if let Some(mode) = text(&mount.mount_propagation) {
            let privileged = container.security_context.as_ref().and_then(|c| c.privileged).unwrap_or(false);
            match mode {
                "None" | "HostToContainer" => {}
                "Bidirectional" if privileged => {}
                "Bidirectional" => errors.forbidden(
                    path.child("mountPropagation"),
                    "Bidirectional mount propagation is available only to privileged containers",
                ),
                other => errors.not_supported(
                    path.child("mountPropagation"),
                    other,
                    &["Bidirectional", "HostToContainer", "None"],
                ),
            }
        }
    }
    devices_of(errors, &path.child("volumeDevices"), container, around);
}

/// Mounts below a volume are read-only with it (`validateMountRecursiveReadOnly`, v1.36).
fn recursive_read_only(errors: &mut FieldErrors, path: &Path<'_>, mount: &VolumeMount) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                errors.forbidden(path, "may only be specified when readOnly is true");
            }
            if mount.mount_propagation.as_deref().is_some_and(|mode| mode != "None") {
                errors.forbidden(path, "may only be specified when mountPropagation is None or not specified");
            }
        }
        Some(other) => errors.not_supported(path, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn devices_of(errors: &mut FieldErrors, devices_path: &Path<'_>, container: &Container, around: &Surroundings<'_>) {
    let devices = items(&container.volume_devices);
    let mounts = items(&container.volume_mounts);
    let mount_names: BTreeSet<&str> = mounts.iter().map(|mount| mount.name.as_str()).compact_collect();
    let mount_paths: BTreeSet<&str> = mounts.iter().map(|mount| mount.mount_path.as_str()).compact_collect();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in devices.iter().enumerate() {
        let path = devices_path.index(i);
        if device.name.is_empty() {
            errors.required(path.child("name"), "");
        } else if !names.insert(device.name.as_str()) {
            errors.invalid(path.child("name"), &device.name, "must be unique");
        }
        match around.volumes.get(&device.name) {
            None => errors.not_found(path.child("name"), &device.name),
            Some(false) => errors.invalid(
                path.child("name"),
                &device.name,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ),
            Some(true) => {}
        }
        if device.device_path.is_empty() {
            errors.required(path.child("devicePath"), "");
        } else if device.device_path.split('/').any(|part| part == "..") {
            errors.invalid(path.child("devicePath"), &device.device_path, "can not contain backsteps ('..')");
        } else if !paths.insert(device.device_path.as_str()) {
            errors.invalid(path.child("devicePath"), &device.device_path, "must be unique");
        }
        if mount_names.contains(device.name.as_str()) {
            errors.invalid(path.child("name"), &device.name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(device.device_path.as_str()) {
            let detail = "must not already exist as a path in volumeMounts";
            errors.invalid(path.child("devicePath"), &device.device_path, detail);
        }
    }
}

/// A path below the volume: relative, never upwards.
pub fn descending_path(errors: &mut FieldErrors, path: &Path<'_>, value: &str) {
    if value.starts_with('/') {
        errors.invalid(path, value, "must be a relative path");
    }
    if value.split('/').any(|part| part == "..") {
        errors.invalid(path, value, "must not contain '..'");
    }
}
