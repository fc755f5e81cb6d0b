//! Defaults of a pod spec (`SetDefaults_PodSpec` and what it reaches, v1.36).
//!
//! [`template`] is what every pod template gets; [`pod`] adds what only a Pod itself gets, so that a
//! workload's template does not change when a default is added.

use std::collections::BTreeMap;

use api::image::pull_policy;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, DownwardAPIVolumeFile, EnvVar, HTTPGetAction, LifecycleHandler,
    PersistentVolumeClaimSpec, Pod, PodSpec, PodTemplateSpec, Probe, ResourceFieldSelector, ResourceRequirements,
    Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;

use crate::unset::{items_mut, set_number, set_text};

const FILE_MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 60 * 60;

/// Defaults of a pod template, which upstream's types cannot leave out.
pub fn pod_template(template: &mut PodTemplateSpec) {
    template.metadata.get_or_insert_default();
    self::template(template.spec.get_or_insert_default());
}

/// Defaults of a pod template's spec.
pub fn template(spec: &mut PodSpec) {
    set_text(&mut spec.dns_policy, "ClusterFirst");
    set_text(&mut spec.restart_policy, "Always");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds.get_or_insert(30);
    set_text(&mut spec.scheduler_name, "default-scheduler");
    for volume in items_mut(&mut spec.volumes) {
        self::volume(volume);
    }
    for container in spec.containers.iter_mut().chain(items_mut(&mut spec.init_containers)) {
        self::container(container);
    }
    for ephemeral in items_mut(&mut spec.ephemeral_containers) {
        let mut container = super::as_container(ephemeral);
        self::container(&mut container);
        ephemeral.env = container.env;
        ephemeral.image_pull_policy = container.image_pull_policy;
        ephemeral.ports = container.ports;
        ephemeral.resources = container.resources;
        ephemeral.termination_message_path = container.termination_message_path;
        ephemeral.termination_message_policy = container.termination_message_policy;
    }
    if let Some(overhead) = &mut spec.overhead {
        resource_list(overhead);
    }
    if let Some(resources) = &mut spec.resources {
        self::resources(resources);
    }
    // The deprecated alias always shows the same name.
    if let Some(name) = spec.service_account_name.clone().filter(|name| !name.is_empty()) {
        spec.service_account = Some(name);
    } else if let Some(name) = spec.service_account.clone().filter(|name| !name.is_empty()) {
        spec.service_account_name = Some(name);
    }
}

/// Defaults of a Pod.
pub fn pod(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    template(spec);
    // Templates keep what they say; a pod ends as soon as it can.
    spec.termination_grace_period_seconds =
        spec.termination_grace_period_seconds.map(|grace| if grace < 0 { 1 } else { grace });
    for container in spec.containers.iter_mut().chain(items_mut(&mut spec.init_containers)) {
        let Some(resources) = &mut container.resources else { continue };
        let Some(limits) = &resources.limits else { continue };
        let requests = resources.requests.get_or_insert_default();
        for (name, limit) in limits {
            requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
    pod_level_requests(spec);
    spec.enable_service_links.get_or_insert(true);
    if spec.host_network == Some(true) {
        for container in spec.containers.iter_mut().chain(items_mut(&mut spec.init_containers)) {
            for port in items_mut(&mut container.ports) {
                set_number(&mut port.host_port, port.container_port);
            }
        }
    }
}

/// A pod that limits itself as a whole requests what its containers request, or else its limits.
fn pod_level_requests(spec: &mut PodSpec) {
    let Some(limits) = spec.resources.as_ref().and_then(|resources| resources.limits.clone()) else { return };
    let mut totals: BTreeMap<String, Quantity> = BTreeMap::new();
    for container in &spec.containers {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        for (name, request) in requests.into_iter().flatten() {
            if let Ok(request) = Quantity::try_from(request) {
                totals.entry(name.clone()).or_default().add(&request);
            }
        }
    }
    let resources = spec.resources.get_or_insert_default();
    for (name, limit) in limits.into_iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")) {
        let requests = resources.requests.get_or_insert_default();
        requests.entry(name.clone()).or_insert_with(|| totals.get(&name).map_or(limit, RawQuantity::from));
    }
}

fn container(container: &mut Container) {
    if container.image_pull_policy.as_deref().unwrap_or_default().is_empty() {
        let image = container.image.as_deref().unwrap_or_default();
        container.image_pull_policy = Some(pull_policy(image).to_owned());
    }
    set_text(&mut container.termination_message_path, "/dev/termination-log");
    set_text(&mut container.termination_message_policy, "File");
    for port in items_mut(&mut container.ports) {
        self::port(port);
    }
    for variable in items_mut(&mut container.env) {
        env(variable);
    }
    for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe]
        .into_iter()
        .flatten()
    {
        self::probe(probe);
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        for handler in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
            self::handler(handler);
        }
    }
    resources(container.resources.get_or_insert_default());
}

fn port(port: &mut ContainerPort) {
    set_text(&mut port.protocol, "TCP");
}

fn env(variable: &mut EnvVar) {
    if let Some(source) = &mut variable.value_from {
        if let Some(field) = &mut source.field_ref {
            set_text(&mut field.api_version, "v1");
        }
        if let Some(resource) = &mut source.resource_field_ref {
            divisor(resource);
        }
        if let Some(file) = &mut source.file_key_ref {
            file.optional.get_or_insert(false);
        }
    }
}

/// No pointer upstream, so it is there whether anyone set it or not.
fn divisor(resource: &mut ResourceFieldSelector) {
    resource.divisor.get_or_insert_with(|| RawQuantity("0".to_owned()));
}

fn downward_item(item: &mut DownwardAPIVolumeFile) {
    if let Some(field) = &mut item.field_ref {
        set_text(&mut field.api_version, "v1");
    }
    if let Some(resource) = &mut item.resource_field_ref {
        divisor(resource);
    }
}

fn probe(probe: &mut Probe) {
    set_number(&mut probe.timeout_seconds, 1);
    set_number(&mut probe.period_seconds, 10);
    set_number(&mut probe.success_threshold, 1);
    set_number(&mut probe.failure_threshold, 3);
    if let Some(http) = &mut probe.http_get {
        http_get(http);
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn handler(handler: &mut LifecycleHandler) {
    if let Some(http) = &mut handler.http_get {
        http_get(http);
    }
}

fn http_get(http: &mut HTTPGetAction) {
    set_text(&mut http.path, "/");
    set_text(&mut http.scheme, "HTTP");
}

fn resources(resources: &mut ResourceRequirements) {
    for list in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
        resource_list(list);
    }
}

/// Amounts are kept to a thousandth; finer ones are rounded up.
pub fn resource_list(list: &mut BTreeMap<String, RawQuantity>) {
    for amount in list.values_mut() {
        if let Ok(quantity) = Quantity::try_from(&*amount)
            && !quantity.is_milli_exact()
        {
            *amount = Quantity::from_milli(quantity.milli_value(), quantity.format()).into();
        }
    }
}

fn volume(volume: &mut Volume) {
    let probe = Volume { name: volume.name.clone(), ..Volume::default() };
    if *volume == probe {
        volume.empty_dir = Some(Default::default());
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(config_map) = &mut volume.config_map {
        config_map.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(downward) = &mut volume.downward_api {
        downward.default_mode.get_or_insert(FILE_MODE);
        items_mut(&mut downward.items).iter_mut().for_each(downward_item);
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(FILE_MODE);
        for source in items_mut(&mut projected.sources) {
            projection(source);
        }
    }
    if let Some(host_path) = &mut volume.host_path {
        host_path.type_.get_or_insert_default();
    }
    if let Some(image) = &mut volume.image {
        let policy = pull_policy(image.reference.as_deref().unwrap_or_default());
        set_text(&mut image.pull_policy, policy);
    }
    if let Some(template) = volume.ephemeral.as_mut().and_then(|ephemeral| ephemeral.volume_claim_template.as_mut()) {
        claim(&mut template.spec);
    }
    if let Some(iscsi) = &mut volume.iscsi {
        set_text(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(rbd) = &mut volume.rbd {
        set_text(&mut rbd.pool, "rbd");
        set_text(&mut rbd.user, "admin");
        set_text(&mut rbd.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = &mut volume.azure_disk {
        set_text(&mut disk.caching_mode, "ReadWrite");
        set_text(&mut disk.kind, "Shared");
        set_text(&mut disk.fs_type, "ext4");
        disk.read_only.get_or_insert(false);
    }
    if let Some(scale_io) = &mut volume.scale_io {
        set_text(&mut scale_io.storage_mode, "ThinProvisioned");
        set_text(&mut scale_io.fs_type, "xfs");
    }
}

fn projection(source: &mut VolumeProjection) {
    if let Some(token) = &mut source.service_account_token {
        token.expiration_seconds.get_or_insert(TOKEN_SECONDS);
    }
    if let Some(downward) = &mut source.downward_api {
        items_mut(&mut downward.items).iter_mut().for_each(downward_item);
    }
    if let Some(certificate) = &mut source.pod_certificate {
        certificate.max_expiration_seconds.get_or_insert(86_400);
    }
}

/// Defaults of a volume claim's spec.
pub fn claim(spec: &mut PersistentVolumeClaimSpec) {
    spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    let resources = spec.resources.get_or_insert_default();
    for list in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
        resource_list(list);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_negative_grace_period_becomes_a_second() {
        for (wished, expected) in [(-7, 1), (0, 0), (5, 5)] {
            let spec = json!({"terminationGracePeriodSeconds": wished, "containers": []});
            let mut object: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            pod(&mut object);
            assert_eq!(object.spec.unwrap().termination_grace_period_seconds, Some(expected), "{wished}");
        }
    }

    #[test]
    fn a_minimal_pod_gets_upstreams_defaults() {
        let mut object: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"containers": [{
                "name": "web", "image": "nginx", "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "100m"}},
                "readinessProbe": {"httpGet": {"port": 80}},
            }], "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}]}
        }))
        .unwrap();
        pod(&mut object);
        let once = object.clone();
        pod(&mut object);
        assert_eq!(once, object, "idempotent");
        assert_eq!(
            serde_json::to_value(&object.spec).unwrap(),
            json!({
                "containers": [{
                    "name": "web", "image": "nginx", "imagePullPolicy": "Always",
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "resources": {"limits": {"cpu": "100m"}, "requests": {"cpu": "100m"}},
                    "readinessProbe": {
                        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                        "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3
                    },
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }],
                "volumes": [
                    {"name": "v", "emptyDir": {}},
                    {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}}
                ],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "securityContext": {},
                "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler", "enableServiceLinks": true,
            })
        );
    }
}
