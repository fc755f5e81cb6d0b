//! Volumes, claims on them, and the classes that make them.

use serde_json::Value;

use super::volumes::volume_source;
use super::{Writer, joined_labels, or_none, plain, strings, time, write_annotations, write_conditions, write_labels};
use crate::context::Context;
use crate::failure::Result;
use crate::objects::text;
use crate::request::Request;
use crate::resources::all_items;

/// `RWO,ROX`, each once, in upstream's order.
fn access_modes(modes: &Value) -> String {
    let given = strings(modes);
    let short: Vec<&str> =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")]
            .into_iter()
            .filter(|(mode, _)| given.contains(mode))
            .map(|(_, short)| short)
            .collect();
    short.join(",")
}

pub(super) fn volume(pv: &Value, w: &mut Writer) {
    let (meta, spec, status) = (&pv["metadata"], &pv["spec"], &pv["status"]);
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    w.line(0, format!("Finalizers:\t[{}]", strings(&meta["finalizers"]).join(" ")));
    w.line(0, format!("StorageClass:\t{}", class_of(pv)));
    match meta["deletionTimestamp"].as_str() {
        Some(since) => {
            let lasts = crate::duration::age(Some(since), jiff::Timestamp::now());
            w.line(0, format!("Status:\tTerminating (lasts {lasts})"));
        }
        None => w.line(0, format!("Status:\t{}", text(status, "/phase"))),
    }
    let claim = match text(spec, "/claimRef/name") {
        "" => String::new(),
        name => format!("{}/{name}", text(spec, "/claimRef/namespace")),
    };
    w.line(0, format!("Claim:\t{claim}"));
    w.line(0, format!("Reclaim Policy:\t{}", text(spec, "/persistentVolumeReclaimPolicy")));
    w.line(0, format!("Access Modes:\t{}", access_modes(&spec["accessModes"])));
    if !text(spec, "/volumeMode").is_empty() {
        w.line(0, format!("VolumeMode:\t{}", text(spec, "/volumeMode")));
    }
    w.line(0, format!("Capacity:\t{}", plain(&spec["capacity"]["storage"])));
    match spec["nodeAffinity"]["required"].as_object() {
        None => w.line(0, "Node Affinity:\t<none>"),
        Some(required) => {
            w.line(0, "Node Affinity:\t");
            let terms = required.get("nodeSelectorTerms").and_then(Value::as_array).cloned().unwrap_or_default();
            w.line(1, format!("Required Terms:\t{}", if terms.is_empty() { "<none>" } else { "" }));
            for (i, term) in terms.iter().enumerate() {
                requirements(w, 2, &format!("Term {i}"), &term["matchExpressions"], None);
            }
        }
    }
    w.line(0, format!("Message:\t{}", text(status, "/message")));
    w.line(0, "Source:");
    volume_source(w, spec, 2);
}

/// `Term 0:  zone in [a, b]`, one expression a line.
fn requirements(w: &mut Writer, level: usize, title: &str, list: &Value, operator: Option<&str>) {
    let list = list.as_array().cloned().unwrap_or_default();
    if list.is_empty() {
        return w.line(level, format!("{title}:\t<none>"));
    }
    for (i, requirement) in list.iter().enumerate() {
        let head = if i == 0 { format!("{title}:") } else { String::new() };
        let operator = operator.map_or_else(|| text(requirement, "/operator").to_lowercase(), str::to_owned);
        let values = strings(&requirement["values"]).join(", ");
        let values = if values.is_empty() { String::new() } else { format!(" [{values}]") };
        w.line(level, format!("{head}\t{} {operator}{values}", text(requirement, "/key")));
    }
}

/// The class of a claim or volume: its older annotation counts before the field.
pub(super) fn class_of(object: &Value) -> &str {
    let older = object["metadata"]["annotations"][api::beta_annotations::STORAGE_CLASS].as_str();
    older.unwrap_or_else(|| text(object, "/spec/storageClassName"))
}

/// Pods that name a claim, and those that it was made for.
fn users_of<'a>(pvc: &Value, pods: &'a [Value]) -> Vec<&'a str> {
    let names_it = |pod: &&Value| {
        let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == pvc["metadata"]["name"])
    };
    let owns_it = |pod: &&Value| {
        let mut owners = pvc["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.any(|owner| owner["kind"] == "Pod" && owner["uid"] == pod["metadata"]["uid"])
    };
    let named = pods.iter().filter(names_it);
    let owning = pods.iter().filter(|pod| owns_it(pod) && !names_it(pod));
    named.chain(owning).map(|pod| text(pod, "/metadata/name")).collect()
}

pub(super) async fn claim(cx: &Context, pvc: &Value, w: &mut Writer) -> Result<()> {
    let (meta, spec, status) = (&pvc["metadata"], &pvc["spec"], &pvc["status"]);
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    w.line(0, format!("Namespace:\t{}", text(meta, "/namespace")));
    w.line(0, format!("StorageClass:\t{}", class_of(pvc)));
    if meta["deletionTimestamp"].is_null() {
        w.line(0, format!("Status:\t{}", text(status, "/phase")));
    } else {
        w.line(
            0,
            format!(
                "Status:\tTerminating (lasts {})",
                crate::duration::age(meta["deletionTimestamp"].as_str(), jiff::Timestamp::now())
            ),
        );
    }
    w.line(0, format!("Volume:\t{}", text(spec, "/volumeName")));
    super::write_labels(w, "Labels", &meta["labels"]);
    super::write_annotations(w, "Annotations", &meta["annotations"]);
    w.line(0, format!("Finalizers:\t[{}]", strings(&meta["finalizers"]).join(" ")));
    let bound = !text(spec, "/volumeName").is_empty();
    w.line(0, format!("Capacity:\t{}", if bound { plain(&status["capacity"]["storage"]) } else { String::new() }));
    let modes = if bound { access_modes(&status["accessModes"]) } else { String::new() };
    w.line(0, format!("Access Modes:\t{modes}"));
    w.line(0, format!("VolumeMode:\t{}", text(spec, "/volumeMode")));
    let source = &spec["dataSource"];
    if source.is_object() {
        w.line(0, "DataSource:");
        if source["apiGroup"].is_string() {
            w.line(1, format!("APIGroup:\t{}", text(source, "/apiGroup")));
        }
        w.line(1, format!("Kind:\t{}", text(source, "/kind")));
        w.line(1, format!("Name:\t{}", text(source, "/name")));
    }
    let namespace = text(meta, "/namespace");
    let pods = all_items(cx, || Request::get(format!("/api/v1/namespaces/{namespace}/pods"))).await?;
    let users = users_of(pvc, &pods);
    if users.is_empty() {
        w.line(0, "Used By:\t<none>");
    }
    for (i, user) in users.iter().enumerate() {
        w.line(0, format!("{}\t{user}", if i == 0 { "Used By:" } else { "" }));
    }
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !conditions.is_empty() {
        w.line(0, "Conditions:");
        w.line(1, "Type\tStatus\tLastProbeTime\tLastTransitionTime\tReason\tMessage");
        w.line(1, "----\t------\t-----------------\t------------------\t------\t-------");
        write_conditions(w, conditions, &["lastProbeTime", "lastTransitionTime"], " \t");
    }
    Ok(())
}

pub(super) fn class(sc: &Value, w: &mut Writer) {
    let annotations = &sc["metadata"]["annotations"];
    let default = api::default_class::STORAGE.iter().any(|key| annotations[*key] == "true");
    w.line(0, format!("Name:\t{}", text(sc, "/metadata/name")));
    w.line(0, format!("IsDefaultClass:\t{}", if default { "Yes" } else { "No" }));
    w.line(0, format!("Annotations:\t{}", joined_labels(annotations)));
    w.line(0, format!("Provisioner:\t{}", text(sc, "/provisioner")));
    w.line(0, format!("Parameters:\t{}", joined_labels(&sc["parameters"])));
    let expansion = sc["allowVolumeExpansion"].as_bool().map_or("<unset>", super::title_bool);
    w.line(0, format!("AllowVolumeExpansion:\t{expansion}"));
    let options = strings(&sc["mountOptions"]);
    w.line(0, if options.is_empty() { "MountOptions:\t<none>" } else { "MountOptions:" });
    for option in options {
        w.line(1, option);
    }
    for (title, key) in [("ReclaimPolicy", "/reclaimPolicy"), ("VolumeBindingMode", "/volumeBindingMode")] {
        if !text(sc, key).is_empty() {
            w.line(0, format!("{title}:\t{}", text(sc, key)));
        }
    }
    if let Some(topologies) = sc["allowedTopologies"].as_array() {
        w.line(0, format!("AllowedTopologies:\t{}", if topologies.is_empty() { "<none>" } else { "" }));
        for (i, term) in topologies.iter().enumerate() {
            requirements(w, 1, &format!("Term {i}"), &term["matchLabelExpressions"], Some("in"));
        }
    }
}

pub(super) fn attributes_class(class: &Value, w: &mut Writer) {
    w.line(0, format!("Name:\t{}", text(class, "/metadata/name")));
    w.line(0, format!("Annotations:\t{}", joined_labels(&class["metadata"]["annotations"])));
    w.line(0, format!("DriverName:\t{}", text(class, "/driverName")));
    w.line(0, format!("Parameters:\t{}", joined_labels(&class["parameters"])));
}

pub(super) fn csi_node(node: &Value, w: &mut Writer) {
    let meta = &node["metadata"];
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    w.line(0, format!("CreationTimestamp:\t{}", time(&meta["creationTimestamp"])));
    w.line(0, "Spec:");
    let Some(drivers) = node["spec"]["drivers"].as_array() else { return };
    w.line(1, "Drivers:");
    for driver in drivers {
        w.line(2, format!("{}:", text(driver, "/name")));
        w.line(3, format!("Node ID:\t{}", text(driver, "/nodeID")));
        if !driver["allocatable"]["count"].is_null() {
            w.line(3, "Allocatables:");
            w.line(4, format!("Count:\t{}", driver["allocatable"]["count"]));
        }
        if driver["topologyKeys"].is_array() {
            w.line(3, format!("Topology Keys:\t[{}]", or_none(&strings(&driver["topologyKeys"]).join(" "))));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_used_by_the_pod_that_it_was_made_for() {
        let pod =
            |name: &str, volume: Value| json!({"metadata": {"name": name, "uid": name}, "spec": {"volumes": [volume]}});
        let claims = |name: &str| json!({"name": "v", "persistentVolumeClaim": {"claimName": name}});
        let pods =
            [pod("own", json!({"name": "v", "ephemeral": {}})), pod("a", claims("own-v")), pod("b", claims("other"))];
        let owner = |kind: &str| json!([{"kind": kind, "name": "own", "uid": "own"}]);
        for (owners, expected) in
            [(owner("Pod"), vec!["a", "own"]), (owner("Job"), vec!["a"]), (json!(null), vec!["a"])]
        {
            let claim = json!({"metadata": {"name": "own-v", "ownerReferences": owners}});
            assert_eq!(users_of(&claim, &pods), expected, "{claim}");
        }
        let older = json!({"volume.beta.kubernetes.io/storage-class": "old"});
        for (annotations, expected) in [(older, "old"), (json!(null), "new")] {
            let claim = json!({"metadata": {"annotations": annotations}, "spec": {"storageClassName": "new"}});
            assert_eq!(class_of(&claim), expected);
        }
    }
}
