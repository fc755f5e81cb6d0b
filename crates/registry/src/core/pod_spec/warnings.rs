//! What is accepted and yet should be said differently (`warningsForPodSpecAndMeta` upstream).

use std::collections::{BTreeMap, BTreeSet};

use api::field::Path;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, NodeSelectorTerm, PodSpec, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::super::volume_warnings::of_claim_spec;
use super::each_container;
use crate::unset::{items, or_empty, text};

const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";

/// Resources that are counted in bytes.
const BYTES: &[&str] = &["memory", "ephemeral-storage"];

const NODE_LABELS: &[(&str, &str)] = &[
    ("beta.kubernetes.io/arch", r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#),
    ("beta.kubernetes.io/os", r#"deprecated since v1.14; use "kubernetes.io/os" instead"#),
    (
        "failure-domain.beta.kubernetes.io/region",
        r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#,
    ),
    ("failure-domain.beta.kubernetes.io/zone", r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#),
    ("beta.kubernetes.io/instance-type", r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", r#"use "node-role.kubernetes.io/control-plane" instead"#),
];

const ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    ("security.alpha.kubernetes.io/sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
    ("security.alpha.kubernetes.io/unsafe-sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
];

const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";

/// Of a pod, or of what stands below `path`.
pub(crate) fn spec_warnings(path: &Path<'_>, meta: &ObjectMeta, spec: Option<&PodSpec>) -> Vec<String> {
    let Some(spec) = spec else { return Vec::new() };
    let at = path.child("spec");
    let mut warnings = Vec::new();
    node_labels(&mut warnings, &at, spec);
    annotations(&mut warnings, &path.child("metadata").child("annotations"), meta, spec);
    for (i, volume) in items(&spec.volumes).iter().enumerate() {
        let (list, template) = (at.child("volumes"), volume.ephemeral.as_ref());
        warnings.extend(volume_warning(&list.index(i), volume));
        if let Some(template) = template.and_then(|source| source.volume_claim_template.as_ref()) {
            let at = list.index(i);
            warnings.extend(of_claim_spec(&at.child("ephemeral.volumeClaimTemplate.spec"), &template.spec));
        }
    }
    repeated(&mut warnings, items(&spec.host_aliases).iter().map(|alias| alias.ip.as_str()), |i, ip| {
        format!("{at}.hostAliases[{i}].ip: duplicate ip {ip:?}")
    });
    let secrets = || items(&spec.image_pull_secrets).iter().map(|secret| secret.name.as_str());
    repeated(&mut warnings, secrets(), |i, name| format!("{at}.imagePullSecrets[{i}].name: duplicate name {name:?}"));
    let nameless = secrets().enumerate().filter(|(_, name)| name.is_empty());
    warnings.extend(nameless.map(|(i, _)| format!("{at}.imagePullSecrets[{i}].name: invalid empty name \"\"")));
    fractions(&mut warnings, &at.child("overhead"), spec.overhead.as_ref(), BYTES);
    each_container(&at, spec, |at, container| of_container(&mut warnings, at, container));
    ports(&mut warnings, &at, spec);
    if spec.termination_grace_period_seconds.is_some_and(|grace| grace < 0) {
        let why = "must be >= 0; negative values are invalid and will be treated as 1";
        warnings.push(format!("{at}.terminationGracePeriodSeconds: {why}"));
    }
    if let Some(affinity) = &spec.affinity {
        null_selectors(&mut warnings, &at.child("affinity"), affinity);
    }
    warnings
}

/// What is wrong with a label of nodes that has another name now.
pub(crate) fn node_label(key: &str) -> Option<&'static str> {
    NODE_LABELS.iter().find(|(label, _)| *label == key).map(|(_, message)| *message)
}

pub(crate) fn term_warnings(warnings: &mut Vec<String>, at: &Path<'_>, term: &NodeSelectorTerm) {
    for (i, requirement) in items(&term.match_expressions).iter().enumerate() {
        let key = &requirement.key;
        let warning = |message| format!("{at}.matchExpressions[{i}].key: {key} is {message}");
        warnings.extend(node_label(key).map(warning));
    }
}

fn node_labels(warnings: &mut Vec<String>, at: &Path<'_>, spec: &PodSpec) {
    for key in spec.node_selector.iter().flatten().map(|(key, _)| key) {
        warnings.extend(node_label(key).map(|message| format!("{at}.nodeSelector[{key}]: {message}")));
    }
    let of_nodes = at.child("affinity.nodeAffinity");
    if let Some(affinity) = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()) {
        let required = affinity.required_during_scheduling_ignored_during_execution.as_ref();
        let at = of_nodes.child("requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
        for (i, term) in required.iter().flat_map(|required| &required.node_selector_terms).enumerate() {
            term_warnings(warnings, &at.index(i), term);
        }
        let at = of_nodes.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (i, term) in items(&affinity.preferred_during_scheduling_ignored_during_execution).iter().enumerate() {
            term_warnings(warnings, &at.index(i).child("preference"), &term.preference);
        }
    }
    for (i, constraint) in items(&spec.topology_spread_constraints).iter().enumerate() {
        let (at, key) = (format!("{at}.topologySpreadConstraints[{i}]"), &constraint.topology_key);
        warnings.extend(node_label(key).map(|message| format!("{at}.topologyKey: {key} is {message}")));
        if constraint.label_selector.is_none() {
            warnings.push(format!("{at}.labelSelector: {NO_SELECTOR}"));
        }
    }
}

/// Annotations that do nothing any more, or have become fields.
fn annotations(warnings: &mut Vec<String>, at: &Path<'_>, meta: &ObjectMeta, spec: &PodSpec) {
    let Some(annotations) = &meta.annotations else { return };
    let has = |key: &str| annotations.contains_key(key);
    for (key, message) in ANNOTATIONS.iter().filter(|(key, _)| has(key)) {
        warnings.push(format!("{at}[{key}]: {message}"));
    }
    let of_pod = spec.security_context.as_ref();
    let mut seccomp = |key: &str| {
        if has(key) {
            warnings.push(format!(r#"{at}[{key}]: non-functional in v1.27+; use the "seccompProfile" field instead"#));
        }
    };
    if of_pod.is_none_or(|context| context.seccomp_profile.is_none()) {
        seccomp(SECCOMP_OF_POD);
    }
    if !annotations.keys().any(|key| key.starts_with(SECCOMP) || key.starts_with(APP_ARMOR)) {
        return;
    }
    let mut app_armor = Vec::new();
    each_container(&Path::ROOT, spec, |_, container| {
        let own = container.security_context.as_ref();
        if own.is_none_or(|context| context.seccomp_profile.is_none()) {
            seccomp(&format!("{SECCOMP}{}", container.name));
        }
        let has_field = own.is_some_and(|context| context.app_armor_profile.is_some())
            || of_pod.is_some_and(|context| context.app_armor_profile.is_some());
        app_armor.extend((!has_field).then(|| format!("{APP_ARMOR}{}", container.name)));
    });
    for key in app_armor.into_iter().filter(|key| has(key)) {
        warnings.push(format!(r#"{at}[{key}]: deprecated since v1.30; use the "appArmorProfile" field instead"#));
    }
}

fn volume_warning(at: &Path<'_>, volume: &Volume) -> Option<String> {
    let of = |name: &str, message: &str| Some(format!("{at}.{name}: {message}"));
    if volume.photon_persistent_disk.is_some() {
        of("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+")
    } else if volume.git_repo.is_some() {
        of("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+")
    } else if volume.scale_io.is_some() {
        of("scaleIO", "deprecated in v1.16, non-functional in v1.22+")
    } else if volume.flocker.is_some() {
        of("flocker", "deprecated in v1.22, non-functional in v1.25+")
    } else if volume.storageos.is_some() {
        of("storageOS", "deprecated in v1.22, non-functional in v1.25+")
    } else if volume.quobyte.is_some() {
        of("quobyte", "deprecated in v1.22, non-functional in v1.25+")
    } else if volume.glusterfs.is_some() {
        of("glusterfs", "deprecated in v1.25, non-functional in v1.26+")
    } else if volume.cephfs.is_some() {
        of("cephfs", "deprecated in v1.28, non-functional in v1.31+")
    } else if volume.rbd.is_some() {
        of("rbd", "deprecated in v1.28, non-functional in v1.31+")
    } else {
        None
    }
}

fn repeated<'a>(
    warnings: &mut Vec<String>,
    values: impl Iterator<Item = &'a str>,
    say: impl Fn(usize, &str) -> String,
) {
    let mut seen = BTreeSet::new();
    warnings.extend(values.enumerate().filter(|(_, value)| !seen.insert(*value)).map(|(i, value)| say(i, value)));
}

/// Nothing has half a byte. In thousandths upstream rounds up, and sees no fraction of what is too large to be counted in them.
pub(crate) fn fractions(
    warnings: &mut Vec<String>,
    at: &Path<'_>,
    list: Option<&BTreeMap<String, RawQuantity>>,
    names: &[&str],
) {
    for name in names {
        let Some(Ok(amount)) = list.and_then(|list| list.get(*name)).map(Quantity::try_from) else { continue };
        if !amount.is_integer() && amount.milli_value() % 1000 != 0 {
            let amount = amount.to_string();
            warnings.push(format!("{at}[{name}]: fractional byte value {amount:?} is invalid, must be an integer"));
        }
    }
}

fn of_container(warnings: &mut Vec<String>, at: &Path<'_>, container: &Container) {
    if let Some(resources) = &container.resources {
        fractions(warnings, &at.child("resources.limits"), resources.limits.as_ref(), BYTES);
        fractions(warnings, &at.child("resources.requests"), resources.requests.as_ref(), BYTES);
    }
    let mut seen = BTreeSet::new();
    for (i, variable) in items(&container.env).iter().enumerate() {
        let (name, value) = (&variable.name, or_empty(&variable.value));
        if seen.insert(name) {
            continue;
        }
        // One that only adds to the former value hides nothing.
        let former = format!("$({name})");
        if variable.value_from.is_some() || value == former || !value.contains(&former) {
            let why = format!("hides previous definition of {name:?}, which may be dropped when using apply");
            warnings.push(format!("{at}.env[{i}]: {why}"));
        }
    }
}

fn ports(warnings: &mut Vec<String>, at: &Path<'_>, spec: &PodSpec) {
    if has_one_plain_port(spec) {
        return;
    }
    let mut all: BTreeMap<(i32, String), Vec<(String, ContainerPort)>> = BTreeMap::new();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut of_names = Vec::new();
    each_container(at, spec, |at, container| {
        for (i, port) in items(&container.ports).iter().enumerate() {
            let at = format!("{at}.ports[{i}]");
            let (ip, host_port) = (or_empty(&port.host_ip), port.host_port.unwrap_or(0));
            let protocol = or_empty(&port.protocol);
            if !ip.is_empty() && host_port == 0 {
                let name = or_empty(&port.name);
                let number = port.container_port;
                let shown =
                    format!("{{Name:{name} HostPort:0 ContainerPort:{number} Protocol:{protocol} HostIP:{ip}}}");
                warnings.push(format!("{at}: hostIP set without hostPort: {shown}"));
            }
            let others = all.entry((port.container_port, protocol.to_owned())).or_default();
            for (place, other) in &*others {
                let (other_ip, other_port) = (or_empty(&other.host_ip), other.host_port.unwrap_or(0));
                let how = if ip == other_ip && host_port == other_port {
                    "duplicate"
                } else if host_port == 0 || other_port == 0 {
                    "overlapping"
                } else if host_port == other_port && ip.is_empty() != other_ip.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                warnings.push(format!("{at}: {how} port definition with {place}"));
            }
            others.push((at.clone(), port.clone()));
            let Some(name) = text(&port.name) else { continue };
            match names.get(name) {
                Some(first) => of_names.push(format!(
                    "{at}: duplicate port name {name:?} with {first}, services and probes that select ports by name will use {first}"
                )),
                None => _ = names.insert(name.to_owned(), at),
            }
        }
    });
    warnings.extend(of_names);
}

/// Whether there is no port, or one and nothing to say about it, as in nearly all pods.
fn has_one_plain_port(spec: &PodSpec) -> bool {
    let containers = spec.containers.iter().chain(items(&spec.init_containers)).map(|container| &container.ports);
    let ephemeral = items(&spec.ephemeral_containers).iter().map(|container| &container.ports);
    let mut ports = containers.chain(ephemeral).flat_map(items);
    ports.next().is_none_or(|only| text(&only.host_ip).is_none()) && ports.next().is_none()
}

fn null_selectors(warnings: &mut Vec<String>, at: &Path<'_>, affinity: &Affinity) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let (near, far) = (affinity.pod_affinity.as_ref(), affinity.pod_anti_affinity.as_ref());
    let lists = [
        (
            "podAffinity",
            near.and_then(|near| near.required_during_scheduling_ignored_during_execution.as_ref()),
            near.and_then(|near| near.preferred_during_scheduling_ignored_during_execution.as_ref()),
        ),
        (
            "podAntiAffinity",
            far.and_then(|far| far.required_during_scheduling_ignored_during_execution.as_ref()),
            far.and_then(|far| far.preferred_during_scheduling_ignored_during_execution.as_ref()),
        ),
    ];
    for (kind, required, preferred) in lists {
        let required = required.into_iter().flatten().enumerate().filter(|(_, term)| term.label_selector.is_none());
        warnings.extend(required.map(|(i, _)| format!("{at}.{kind}.{REQUIRED}[{i}].labelSelector: {NO_SELECTOR}")));
        let preferred = preferred.into_iter().flatten().enumerate();
        let preferred = preferred.filter(|(_, term)| term.pod_affinity_term.label_selector.is_none());
        let say = |(i, _)| format!("{at}.{kind}.{PREFERRED}[{i}].podAffinityTerm.labelSelector: {NO_SELECTOR}");
        warnings.extend(preferred.map(say));
    }
}

/// Of a template that is new or has changed.
pub(crate) fn template_warnings(path: &str, new: &PodTemplateSpec, old: Option<&PodTemplateSpec>) -> Vec<String> {
    let Some(meta) = new.metadata.as_ref().filter(|_| old != Some(new)) else { return Vec::new() };
    spec_warnings(&Path::new(path), meta, new.spec.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_annotation_that_has_become_a_field_is_named() {
        let template = |pod: serde_json::Value, container: serde_json::Value| -> PodTemplateSpec {
            let annotations = json!({"container.apparmor.security.beta.kubernetes.io/c": "unconfined", "a": "b"});
            let spec = json!({"securityContext": pod, "containers": [{"name": "c", "securityContext": container}]});
            serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": spec})).unwrap()
        };
        let profile = json!({"appArmorProfile": {"type": "Unconfined"}});
        let bare = template(json!({}), json!({}));
        let expected = "spec.template.metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: \
                        deprecated since v1.30; use the \"appArmorProfile\" field instead";
        assert_eq!(template_warnings("spec.template", &bare, None), [expected]);
        assert_eq!(template_warnings("spec.template", &bare, Some(&bare)), Vec::<String>::new());
        for given in [template(profile.clone(), json!({})), template(json!({}), profile.clone())] {
            assert_eq!(template_warnings("spec.template", &given, None), Vec::<String>::new());
        }
    }

    #[test]
    fn what_does_not_mean_what_it_seems_to_is_said() {
        for (spec, expected) in [
            (
                json!({"nodeSelector": {"beta.kubernetes.io/os": "linux", "a": "b"}}),
                vec![
                    r#"spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead"#,
                ],
            ),
            (
                json!({"imagePullSecrets": [{"name": "a"}, {"name": "a"}, {}]}),
                vec![
                    r#"spec.imagePullSecrets[1].name: duplicate name "a""#,
                    r#"spec.imagePullSecrets[2].name: invalid empty name """#,
                ],
            ),
            (
                json!({"hostAliases": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}]}),
                vec![r#"spec.hostAliases[1].ip: duplicate ip "10.0.0.1""#],
            ),
            (
                json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "100m"}}}]}),
                vec![
                    r#"spec.containers[0].resources.limits[memory]: fractional byte value "100m" is invalid, must be an integer"#,
                ],
            ),
            (
                json!({"containers": [{"name": "c", "env": [
                {"name": "A", "value": "x"}, {"name": "A", "value": "$(A)y"}, {"name": "A", "value": "z"}]}]}),
                vec![
                    r#"spec.containers[0].env[2]: hides previous definition of "A", which may be dropped when using apply"#,
                ],
            ),
            (
                json!({"containers": [
                {"name": "a", "ports": [{"containerPort": 80, "name": "web", "protocol": "TCP"}]},
                {"name": "b", "ports": [{"containerPort": 80, "name": "web", "protocol": "TCP"}]}]}),
                vec![
                    "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
                    r#"spec.containers[1].ports[0]: duplicate port name "web" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]"#,
                ],
            ),
            (
                json!({"terminationGracePeriodSeconds": -1}),
                vec![
                    "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
                ],
            ),
            (
                json!({"volumes": [{"name": "v", "rbd": {"image": "i", "monitors": []}}]}),
                vec!["spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+"],
            ),
            (
                json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a"}]}}}),
                vec![
                    "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null labelSelector results in matching no pod",
                ],
            ),
        ] {
            let mut whole = json!({"containers": []});
            whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            let whole = serde_json::from_value(whole).unwrap();
            assert_eq!(spec_warnings(&Path::ROOT, &ObjectMeta::default(), Some(&whole)), expected, "{spec}");
        }
    }
}
