//! Validation of Pods: what a template does not have. `pod_update` says what may change once a pod exists.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use api::pod::MIRROR;
use api::sort::CompactCollect as _;
use api::validation as rules;
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};

use super::pod_spec;
use crate::unset::{items, or_empty, text};

pub(super) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

pub(super) fn create(pod: &Pod) -> FieldErrors {
    let mut errors = metadata_and_spec(pod);
    let Some(spec) = &pod.spec else { return errors };
    if !items(&spec.ephemeral_containers).is_empty() {
        errors.forbidden("spec.ephemeralContainers", "cannot be set on create");
    }
    if text(&spec.node_name).is_some() && !items(&spec.scheduling_gates).is_empty() {
        errors.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared");
    }
    profiles_agree(&mut errors, pod, spec);
    errors
}

pub(super) fn metadata_and_spec(pod: &Pod) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    let path = Path::new("spec");
    pod_spec::validation::spec(&mut errors, &path, spec, Some(or_empty(&pod.metadata.name)));
    if let Some(annotations) = &pod.metadata.annotations {
        if let Some(mirror) = annotations.get(MIRROR)
            && text(&spec.node_name).is_none()
        {
            let detail = "must set spec.nodeName if mirror pod annotation is set";
            errors.invalid(format!("metadata.annotations[{MIRROR}]"), mirror, detail);
        }
        if let Some(cost) = annotations.get(DELETION_COST)
            && (cost.parse::<i32>().is_err() || cost.starts_with('+') || (cost.len() > 1 && cost.starts_with('0')))
        {
            errors.invalid(format!("metadata.annotations[{DELETION_COST}]"), cost, "must be a 32bit integer");
        }
    }
    annotated_profiles(&mut errors, pod, spec);
    if text(&spec.service_account_name).is_none() {
        for (i, volume) in items(&spec.volumes).iter().enumerate() {
            let sources = volume.projected.as_ref().map(|projected| items(&projected.sources)).unwrap_or_default();
            for (j, source) in sources.iter().enumerate() {
                if source.service_account_token.is_some() {
                    let place = format!("spec.volumes[{i}].projected.sources[{j}].serviceAccountToken");
                    errors.forbidden(place, "must not be specified when serviceAccountName is not set");
                }
            }
        }
    }
    errors
}

/// Profiles in annotations, from before they were fields.
fn annotated_profiles(errors: &mut FieldErrors, pod: &Pod, spec: &PodSpec) {
    for (key, profile) in pod.metadata.annotations.iter().flatten() {
        if key == SECCOMP_OF_POD || key.starts_with(SECCOMP) {
            let place = format!("metadata.annotations.{key}");
            match profile.strip_prefix("localhost/") {
                Some(local) => pod_spec::containers::descending_path(errors, &Path::new(&place), local),
                None if matches!(profile.as_str(), "runtime/default" | "docker/default" | "unconfined") => {}
                None => errors.invalid(place, profile, "must be a valid seccomp profile"),
            }
        } else if let Some(name) = key.strip_prefix(APP_ARMOR) {
            let place = format!("metadata.annotations[{key}]");
            let mut is_there = false;
            pod_spec::each_container(&Path::ROOT, spec, |_, container| is_there |= container.name == name);
            if !is_there {
                errors.invalid(&place, name, "container not found");
            }
            if !matches!(profile.as_str(), "" | "runtime/default" | "unconfined") && !profile.starts_with("localhost/")
            {
                errors.invalid(&place, profile, format!("invalid AppArmor profile name: {profile:?}"));
            }
        }
    }
}

/// An annotation and the field that took its place say the same, where there are both.
fn profiles_agree(errors: &mut FieldErrors, pod: &Pod, spec: &PodSpec) {
    let Some(annotations) = &pod.metadata.annotations else { return };
    let is_profile = |key: &String| key == SECCOMP_OF_POD || key.starts_with(SECCOMP) || key.starts_with(APP_ARMOR);
    if !annotations.keys().any(is_profile) {
        return;
    }
    let annotation = |key: &str| annotations.get(key).cloned();
    let agrees = |annotation: &str, kind: &str, local: Option<&str>| match kind {
        "Localhost" => annotation.strip_prefix("localhost/") == Some(local.unwrap_or_default()),
        "RuntimeDefault" => matches!(annotation, "runtime/default" | "docker/default"),
        "Unconfined" => annotation == "unconfined",
        _ => true,
    };
    let of_pod = spec.security_context.as_ref();
    if let (Some(profile), Some(annotation)) =
        (of_pod.and_then(|context| context.seccomp_profile.as_ref()), annotation(SECCOMP_OF_POD))
        && !agrees(&annotation, &profile.type_, profile.localhost_profile.as_deref())
    {
        let place = "spec.securityContext.seccompProfile.type";
        errors.forbidden(place, "seccomp type in annotation and field must match");
    }
    let is_windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    pod_spec::each_container(&Path::new("spec"), spec, |path, container| {
        let own = container.security_context.as_ref();
        if let (Some(profile), Some(annotation)) = (
            own.and_then(|context| context.seccomp_profile.as_ref()),
            annotation(&format!("{SECCOMP}{}", container.name)),
        ) && !agrees(&annotation, &profile.type_, profile.localhost_profile.as_deref())
        {
            let place = path.child("securityContext.seccompProfile.type");
            errors.forbidden(place, "seccomp type in annotation and field must match");
        }
        let app_armor = own.and_then(|context| context.app_armor_profile.as_ref());
        let app_armor = app_armor.or_else(|| of_pod?.app_armor_profile.as_ref());
        if let (Some(profile), Some(annotation), false) =
            (app_armor, annotation(&format!("{APP_ARMOR}{}", container.name)), is_windows)
            && !agrees(&annotation, &profile.type_, profile.localhost_profile.as_deref())
        {
            let place = path.child("securityContext.appArmorProfile.type");
            errors.forbidden(place, "apparmor type in annotation and field must match");
        }
    });
}

/// What others decided by when the pod was made stays (`ValidatePodSpecificAnnotationUpdates`, v1.36): whether it mirrors one that
/// a node runs by itself, and how its containers are confined.
pub(super) fn annotations_update(errors: &mut FieldErrors, new: &Pod, old: &Pod) {
    let (new, old) = (new.metadata.annotations.as_ref(), old.metadata.annotations.as_ref());
    let value = |of: Option<&'_ BTreeMap<String, String>>, key: &str| of?.get(key).cloned();
    let keys = new.into_iter().chain(old).flat_map(|annotations| annotations.keys());
    let guarded = keys.filter(|key| *key == MIRROR || key.starts_with(APP_ARMOR));
    for key in guarded.compact_collect::<BTreeSet<_>>() {
        let what = if key == MIRROR { "mirror pod annotation" } else { "AppArmor annotations" };
        let problem = match (value(new, key), value(old, key)) {
            (new, old) if new == old => continue,
            (_, None) => "add",
            _ => "remove or update",
        };
        errors.forbidden(format!("metadata.annotations[{key}]"), format!("may not {problem} {what}"));
    }
}

pub(super) fn status_update(new: &Pod, old: &Pod) -> FieldErrors {
    let mut errors = FieldErrors::default();
    annotations_update(&mut errors, new, old);
    fn node(pod: &Pod) -> Option<&str> {
        pod.spec.as_ref().and_then(|spec| text(&spec.node_name))
    }
    if node(new) != node(old) {
        errors.forbidden("status.nodeName", "may not be changed directly");
    }
    let none = PodStatus::default();
    let (new_status, old_status) = (new.status.as_ref().unwrap_or(&none), old.status.as_ref().unwrap_or(&none));
    if let Some(nominated) = text(&new_status.nominated_node_name)
        && new_status.nominated_node_name != old_status.nominated_node_name
    {
        errors.invalid_each("status.nominatedNodeName", nominated, rules::dns1123_subdomain(nominated));
    }
    if let Some(observed) = new_status.observed_generation.filter(|&observed| observed < 0) {
        errors.invalid("status.observedGeneration", observed, "must be a non-negative integer");
    }
    if or_empty(&new_status.qos_class) != or_empty(&old_status.qos_class) {
        errors.invalid("status.qosClass", &new_status.qos_class, api::field::IMMUTABLE);
    }
    let before: BTreeSet<&str> = items(&old_status.pod_ips).iter().map(|ip| ip.ip.as_str()).compact_collect();
    for (i, ip) in items(&new_status.pod_ips).iter().enumerate() {
        if !before.contains(ip.ip.as_str()) {
            crate::address::ip(&mut errors, &Path::new("status.podIPs").index(i), &ip.ip);
        }
    }
    let before: BTreeSet<&str> = items(&old_status.host_ips).iter().map(|ip| ip.ip.as_str()).compact_collect();
    for (i, ip) in items(&new_status.host_ips).iter().enumerate() {
        if !before.contains(ip.ip.as_str()) {
            crate::address::ip(&mut errors, &Path::new("status.hostIPs").index(i), &ip.ip);
        }
    }
    errors
}
#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(in crate::core) fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut value = json!({
            "metadata": {"name": "a", "namespace": "default"},
            "spec": {"containers": [{"name": "a", "image": "b:1"}]}
        });
        change(&mut value);
        let mut pod: Pod = serde_json::from_value(value).unwrap();
        pod_spec::defaults::pod(&mut pod);
        pod
    }

    #[test]
    fn creation_speaks_like_upstream() {
        assert_eq!(create(&pod(|_| {})).to_string(), "[]");
        for (pointer, value, expected) in [
            ("/spec/containers", json!([]), "spec.containers: Required value"),
            (
                "/spec/restartPolicy",
                json!("Maybe"),
                "spec.restartPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ),
            ("/spec/containers/0/image", json!(""), "spec.containers[0].image: Required value"),
            (
                "/spec/containers/0/ports",
                json!([{"containerPort": 99999}]),
                "spec.containers[0].ports[0].containerPort: Invalid value: 99999: must be between 1 and 65535, inclusive",
            ),
            (
                "/spec/containers/0/env",
                json!([{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}}]),
                "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: \"v\"",
            ),
            (
                "/spec/containers/0/volumeMounts",
                json!([{"name": "x", "mountPath": "/x"}]),
                "spec.containers[0].volumeMounts[0].name: Not found: \"x\"",
            ),
            (
                "/spec/containers/0/resources",
                json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ),
            (
                "/spec/containers/0/livenessProbe",
                json!({}),
                "spec.containers[0].livenessProbe: Required value: must specify a handler type",
            ),
            (
                "/spec/tolerations",
                json!([{"key": "a", "operator": "Exists", "value": "b"}]),
                "spec.tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
            ),
            (
                "/spec/volumes",
                json!([{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]),
                "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
            ),
        ] {
            let pod = pod(|object| {
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                object.pointer_mut(parent).unwrap()[key] = value;
            });
            assert_eq!(create(&pod).to_string(), expected);
        }
    }

    /// Sets what a JSON pointer names, and says what is wrong then; parents are made.
    fn said(changes: &[(&str, Value)]) -> String {
        let pod = pod(|object| {
            for (pointer, value) in changes {
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                object.pointer_mut(parent).unwrap()[key] = value.clone();
            }
        });
        create(&pod).to_string()
    }

    #[test]
    fn what_is_set_for_the_whole_pod_holds_its_containers() {
        let own = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
        for (whole, container, expected) in [
            (own(json!({"cpu": "2"}), json!({"cpu": "3"})), own(json!({"cpu": "1"}), json!({"cpu": "3"})), "[]"),
            (
                own(json!({"cpu": "1"}), json!({})),
                own(json!({"cpu": "2"}), json!({})),
                "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 2",
            ),
            (
                own(json!({}), json!({"memory": "1Mi"})),
                own(json!({"memory": "1Mi"}), json!({"memory": "2Mi"})),
                "spec.resources.containers[0][memory].limits: Invalid value: \"2Mi\": must be less than or equal to pod limits of 1Mi",
            ),
            (
                own(json!({"cpu": "2"}), json!({"cpu": "1"})),
                own(json!({}), json!({})),
                "spec.resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ),
            (
                own(json!({"ephemeral-storage": "1"}), json!({})),
                own(json!({}), json!({})),
                "spec.resources.requests[ephemeral-storage]: Unsupported value: \"ephemeral-storage\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
            ),
            (
                json!({"claims": []}),
                own(json!({}), json!({})),
                "spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level",
            ),
        ] {
            assert_eq!(said(&[("/spec/resources", whole), ("/spec/containers/0/resources", container)]), expected);
        }
    }

    #[test]
    fn what_no_node_could_do_is_refused() {
        let volumes =
            json!([{"name": "v", "emptyDir": {}}, {"name": "p", "persistentVolumeClaim": {"claimName": "c"}}]);
        let mount = |more: Value| {
            let mut mount = json!({"name": "v", "mountPath": "/v"});
            mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!([mount])
        };
        let rro = "spec.containers[0].volumeMounts.recursiveReadOnly";
        for (pointer, value, expected) in [
            ("/spec/containers/0/volumeMounts", mount(json!({"readOnly": true, "recursiveReadOnly": "Enabled"})), "[]".into()),
            (
                "/spec/containers/0/volumeMounts",
                mount(json!({"recursiveReadOnly": "IfPossible"})),
                format!("{rro}: Forbidden: may only be specified when readOnly is true"),
            ),
            (
                "/spec/containers/0/volumeMounts",
                mount(json!({"readOnly": true, "recursiveReadOnly": "Enabled", "mountPropagation": "HostToContainer"})),
                format!("{rro}: Forbidden: may only be specified when mountPropagation is None or not specified"),
            ),
            (
                "/spec/containers/0/volumeMounts",
                mount(json!({"recursiveReadOnly": "Sometimes"})),
                format!("{rro}: Unsupported value: \"Sometimes\": supported values: \"Disabled\", \"Enabled\", \"IfPossible\""),
            ),
            (
                "/spec/containers/0/volumeDevices",
                json!([{"name": "p", "devicePath": "/dev/../x"}]),
                "spec.containers[0].volumeDevices[0].devicePath: Invalid value: \"/dev/../x\": can not contain backsteps ('..')".into(),
            ),
            (
                "/spec/containers/0/lifecycle",
                json!({"stopSignal": "SIGUSR1"}),
                "spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`"
                    .into(),
            ),
            (
                "/spec/initContainers",
                json!([{"name": "i", "image": "b:1", "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}]),
                "spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: \"RestartContainer\": must not be set to 'RestartContainer' for non-sidecar initContainers"
                    .into(),
            ),
            (
                "/spec/securityContext",
                json!({"seLinuxChangePolicy": "Never"}),
                "spec.securityContext.seLinuxChangePolicy: Unsupported value: \"Never\": supported values: \"MountOption\", \"Recursive\""
                    .into(),
            ),
            (
                "/spec/resourceClaims",
                json!([{"name": "c", "resourceClaimName": "x"}, {"name": "c", "resourceClaimName": "y"}]),
                "spec.resourceClaims[1].name: Duplicate value: \"c\"".into(),
            ),
            ("/spec/overhead", json!({"cpu": "-1"}), "spec.overhead.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0".into()),
            // A chart without a secret leaves an empty name.
            ("/spec/imagePullSecrets", json!([{}, {"name": ""}]), "[]".into()),
        ] {
            assert_eq!(said(&[("/spec/volumes", volumes.clone()), (pointer, value)]), expected);
        }
    }

    #[test]
    fn each_system_has_its_own_fields() {
        let signal = |name: &str| ("/spec/containers/0/lifecycle", json!({"stopSignal": name}));
        let linux = ("/spec/os", json!({"name": "linux"}));
        let windows = ("/spec/os", json!({"name": "windows"}));
        for (changes, expected) in [
            (vec![linux.clone(), signal("SIGRTMIN+15")], ""),
            (vec![windows.clone(), signal("SIGTERM")], ""),
            (vec![linux.clone(), signal("SIGNONE")], "lifecycle.stopSignal: Unsupported value: \"SIGNONE\""),
            (vec![windows.clone(), signal("SIGUSR1")], "supported values: \"SIGKILL\", \"SIGTERM\""),
            (
                vec![linux, ("/spec/securityContext", json!({"windowsOptions": {}}))],
                "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
            ),
            (
                vec![windows, ("/spec/containers/0/securityContext", json!({"privileged": true}))],
                "spec.containers[0].securityContext.privileged: Forbidden: cannot be set for a windows pod",
            ),
            (vec![("/spec/os", json!({"name": "plan9"}))], "spec.os: Unsupported value: \"plan9\""),
        ] {
            let found = said(&changes);
            assert!(if expected.is_empty() { found == "[]" } else { found.contains(expected) }, "{changes:?}: {found}");
        }
    }

    #[test]
    fn security_settings_of_the_node_are_not_a_pods() {
        let sysctl = |name: &str| json!({"sysctls": [{"name": name, "value": "1"}]});
        for (host, name, expected) in [
            ("hostNetwork", "net.ipv4.tcp_syncookies", "may not be specified when 'hostNetwork' is true"),
            ("hostNetwork", "net/ipv4/tcp_syncookies", "may not be specified when 'hostNetwork' is true"),
            ("hostIPC", "kernel.shm_rmid_forced", "may not be specified when 'hostIPC' is true"),
            ("hostIPC", "net.ipv4.tcp_syncookies", ""),
            ("hostNetwork", "kernel.shm_rmid_forced", ""),
        ] {
            let found = said(&[(&format!("/spec/{host}"), json!(true)), ("/spec/securityContext", sysctl(name))]);
            assert!(
                if expected.is_empty() { found == "[]" } else { found.ends_with(expected) },
                "{host} {name}: {found}"
            );
        }
    }

    #[test]
    fn annotations_that_became_fields_are_understood() {
        let annotated = |key: &str, value: &str, profile: Value| {
            let mut annotations = json!({});
            annotations[key] = json!(value);
            said(&[("/metadata/annotations", annotations), ("/spec/containers/0/securityContext", profile)])
        };
        let app_armor = "container.apparmor.security.beta.kubernetes.io/";
        let seccomp = "container.seccomp.security.alpha.kubernetes.io/";
        for (key, value, profile, expected) in [
            (format!("{app_armor}a"), "runtime/default", json!({}), ""),
            (format!("{app_armor}other"), "unconfined", json!({}), "Invalid value: \"other\": container not found"),
            (format!("{app_armor}a"), "none", json!({}), "invalid AppArmor profile name: \"none\""),
            (
                format!("{app_armor}a"),
                "unconfined",
                json!({"appArmorProfile": {"type": "RuntimeDefault"}}),
                "appArmorProfile.type: Forbidden: apparmor type in annotation and field must match",
            ),
            (format!("{seccomp}a"), "localhost/x.json", json!({}), ""),
            (format!("{seccomp}a"), "none", json!({}), "must be a valid seccomp profile"),
            (
                format!("{seccomp}a"),
                "unconfined",
                json!({"seccompProfile": {"type": "RuntimeDefault"}}),
                "seccompProfile.type: Forbidden: seccomp type in annotation and field must match",
            ),
        ] {
            let found = annotated(&key, value, profile);
            assert!(
                if expected.is_empty() { found == "[]" } else { found.contains(expected) },
                "{key} {value}: {found}"
            );
        }
    }

    #[test]
    fn security_many_mounts_devices_and_claims_are_looked_through_once() {
        let each = |made: fn(usize) -> Value| (0..20_000).map(made).collect::<Vec<Value>>();
        let pod = pod(|pod| {
            let container = &mut pod["spec"]["containers"][0];
            container["volumeMounts"] =
                each(|at| json!({"name": format!("m{at}"), "mountPath": format!("/m{at}")})).into();
            container["volumeDevices"] =
                each(|at| json!({"name": format!("d{at}"), "devicePath": format!("/d{at}")})).into();
            container["resources"] = json!({"claims": each(|at| json!({"name": format!("c{at}")}))});
        });
        // None of the volumes and claims is there.
        assert!(create(&pod).len() >= 60_000);
        let claims = |claims: Value| {
            let pod = self::pod(|pod| pod["spec"]["containers"][0]["resources"] = json!({"claims": claims}));
            create(&pod).to_string().matches("Duplicate value").count()
        };
        for (given, expected) in [
            (json!([{"name": "a"}, {"name": "b"}]), 0),
            (json!([{"name": "a"}, {"name": "a"}]), 1),
            (json!([{"name": "a", "request": "x"}, {"name": "a", "request": "y"}]), 0),
            (json!([{"name": "a", "request": "x"}, {"name": "a"}]), 1),
            (json!([{"name": "a"}, {"name": "a", "request": "x"}]), 1),
            (json!([{"name": "a", "request": "x"}, {"name": "a", "request": "x"}]), 1),
        ] {
            assert_eq!(claims(given.clone()), expected, "{given}");
        }
    }

    #[test]
    fn rules_for_the_end_of_a_container_are_in_known_words() {
        let codes = |operator: &str, count: i32| json!({"operator": operator, "values": Vec::from_iter(0..count)});
        let at = "spec.containers[0].restartPolicyRules[0]";
        for (rule, expected) in [
            (json!({"action": "Restart", "exitCodes": codes("In", 255)}), "[]".to_owned()),
            (json!({"action": "RestartAllContainers", "exitCodes": codes("NotIn", 1)}), "[]".to_owned()),
            (
                json!({"action": "RestartAll", "exitCodes": codes("In", 1)}),
                format!(
                    "{at}.action: Unsupported value: \"RestartAll\": supported values: \"Restart\", \
                     \"RestartAllContainers\""
                ),
            ),
            (json!({"action": "Restart"}), format!("{at}.exitCodes: Required value: must be specified")),
            (
                json!({"action": "Restart", "exitCodes": codes("Near", 1)}),
                format!("{at}.exitCodes.operator: Unsupported value: \"Near\": supported values: \"In\", \"NotIn\""),
            ),
            (
                json!({"action": "Restart", "exitCodes": codes("In", 256)}),
                format!("{at}.exitCodes.values: Too many: 256: must have at most 255 items"),
            ),
        ] {
            let pod = pod(|pod| {
                pod["spec"]["containers"][0]["restartPolicy"] = json!("Never");
                pod["spec"]["containers"][0]["restartPolicyRules"] = json!([rule]);
            });
            assert_eq!(create(&pod).to_string(), expected);
        }
    }
}
