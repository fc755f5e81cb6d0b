//! What the network is made of, besides services: endpoints, policies, classes, ranges.

use serde_json::Value;

use super::{
    Writer, or_none, plain, selector_text, strings, write_annotations, write_conditions, write_labels, write_meta,
};
use crate::objects::text;

pub(super) fn endpoints(object: &Value, w: &mut Writer) {
    write_meta(w, object);
    w.line(0, "Subsets:");
    for subset in object["subsets"].as_array().into_iter().flatten() {
        for (title, key) in [("Addresses", "addresses"), ("NotReadyAddresses", "notReadyAddresses")] {
            let list: Vec<&str> = subset[key].as_array().into_iter().flatten().map(|a| text(a, "/ip")).collect();
            w.line(1, format!("{title}:\t{}", or_none(&list.join(","))));
        }
        if let Some(ports) = subset["ports"].as_array().filter(|p| !p.is_empty()) {
            w.line(1, "Ports:");
            w.line(2, "Name\tPort\tProtocol");
            w.line(2, "----\t----\t--------");
            for port in ports {
                w.line(2, format!("{}\t{}\t{}", or_unset(text(port, "/name")), port["port"], text(port, "/protocol")));
            }
        }
        w.line(0, "");
    }
}

fn or_unset(text: &str) -> &str {
    if text.is_empty() { "<unset>" } else { text }
}

pub(super) fn endpoint_slice(object: &Value, w: &mut Writer) {
    write_meta(w, object);
    w.line(0, format!("AddressType:\t{}", text(object, "/addressType")));
    match object["ports"].as_array().filter(|p| !p.is_empty()) {
        None => w.line(0, "Ports: <unset>"),
        Some(ports) => {
            w.line(0, "Ports:");
            w.line(1, "Name\tPort\tProtocol");
            w.line(1, "----\t----\t--------");
            for port in ports {
                let number = plain(&port["port"]);
                let (name, protocol) = (or_unset(text(port, "/name")), text(port, "/protocol"));
                w.line(1, format!("{name}\t{}\t{protocol}", or_unset(&number)));
            }
        }
    }
    let Some(list) = object["endpoints"].as_array().filter(|e| !e.is_empty()) else {
        return w.line(0, "Endpoints: <none>");
    };
    w.line(0, "Endpoints:");
    for endpoint in list {
        w.line(1, format!("- Addresses:\t{}", or_none(&strings(&endpoint["addresses"]).join(", "))));
        w.line(2, "Conditions:");
        w.line(3, format!("Ready:\t{}", or_unset(&plain(&endpoint["conditions"]["ready"]))));
        w.line(2, format!("Hostname:\t{}", or_unset(text(endpoint, "/hostname"))));
        if endpoint["targetRef"].is_object() {
            let target = &endpoint["targetRef"];
            w.line(2, format!("TargetRef:\t{}/{}", text(target, "/kind"), text(target, "/name")));
        }
        w.line(2, format!("NodeName:\t{}", or_unset(text(endpoint, "/nodeName"))));
        w.line(2, format!("Zone:\t{}", or_unset(text(endpoint, "/zone"))));
    }
}

pub(super) fn policy(object: &Value, w: &mut Writer) {
    let (meta, spec) = (&object["metadata"], &object["spec"]);
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    w.line(0, format!("Namespace:\t{}", text(meta, "/namespace")));
    let created = text(meta, "/creationTimestamp").parse::<jiff::Timestamp>().ok().map(|t| {
        let zoned = t.to_zoned(jiff::tz::TimeZone::system());
        zoned.strftime("%Y-%m-%d %H:%M:%S %z %Z").to_string()
    });
    w.line(0, format!("Created on:\t{}", created.unwrap_or_default()));
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    w.line(0, "Spec:");
    w.line(
        1,
        format!(
            "PodSelector:     {}",
            match selector_text(&spec["podSelector"]) {
                s if s == "<none>" => "<none> (Allowing the specific traffic to all pods in this namespace)".to_owned(),
                s => s,
            }
        ),
    );
    let types = strings(&spec["policyTypes"]);
    for (kind, list, peers, word, open, isolated) in [
        ("Ingress", "ingress", "from", "From", "source", "ingress"),
        ("Egress", "egress", "to", "To", "destination", "egress"),
    ] {
        if !types.contains(&kind) {
            w.line(1, format!("Not affecting {list} traffic"));
            continue;
        }
        w.line(1, format!("Allowing {list} traffic:"));
        let rules = spec[list].as_array().map(Vec::as_slice).unwrap_or_default();
        if rules.is_empty() {
            w.line(2, format!("<none> (Selected pods are isolated for {isolated} connectivity)"));
        }
        for (i, rule) in rules.iter().enumerate() {
            ports(w, &rule["ports"]);
            let allowed = rule[peers].as_array().map(Vec::as_slice).unwrap_or_default();
            if allowed.is_empty() {
                w.line(2, format!("{word}: <any> (traffic not restricted by {open})"));
            }
            for peer in allowed {
                w.line(2, format!("{word}:"));
                write_peer(w, peer);
            }
            if i + 1 < rules.len() {
                w.line(2, "----------");
            }
        }
    }
    w.line(1, format!("Policy Types: {}", types.join(", ")));
}

fn ports(w: &mut Writer, list: &Value) {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    if list.is_empty() {
        w.line(2, "To Port: <any> (traffic allowed to all ports)");
    }
    for port in list {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        let number = plain(&port["port"]);
        match port["endPort"].as_i64() {
            Some(end) => w.line(2, format!("To Port Range: {number}-{end}/{protocol}")),
            None => w.line(2, format!("To Port: {number}/{protocol}")),
        }
    }
}

fn write_peer(w: &mut Writer, peer: &Value) {
    for (title, key) in [("NamespaceSelector", "namespaceSelector"), ("PodSelector", "podSelector")] {
        if peer[key].is_object() {
            w.line(3, format!("{title}: {}", selector_text(&peer[key])));
        }
    }
    if peer["ipBlock"].is_object() {
        w.line(3, "IPBlock:");
        w.line(4, format!("CIDR: {}", text(peer, "/ipBlock/cidr")));
        w.line(4, format!("Except: {}", strings(&peer["ipBlock"]["except"]).join(", ")));
    }
}

/// Cluster-scoped kinds begin without a namespace.
fn head(object: &Value, w: &mut Writer) {
    w.line(0, format!("Name:\t{}", text(object, "/metadata/name")));
    write_labels(w, "Labels", &object["metadata"]["labels"]);
    write_annotations(w, "Annotations", &object["metadata"]["annotations"]);
}

pub(super) fn ingress_class(object: &Value, w: &mut Writer) {
    head(object, w);
    w.line(0, format!("Controller:\t{}", text(object, "/spec/controller")));
    let parameters = &object["spec"]["parameters"];
    if !parameters.is_object() {
        return;
    }
    w.line(0, "Parameters:");
    if !parameters["apiGroup"].is_null() {
        w.line(1, format!("APIGroup:\t{}", text(parameters, "/apiGroup")));
    }
    w.line(1, format!("Kind:\t{}", text(parameters, "/kind")));
    w.line(1, format!("Name:\t{}", text(parameters, "/name")));
}

pub(super) fn service_range(object: &Value, w: &mut Writer) {
    head(object, w);
    w.line(0, format!("CIDRs:\t{}", strings(&object["spec"]["cidrs"]).join(", ")));
    let Some(conditions) = object["status"]["conditions"].as_array().filter(|c| !c.is_empty()) else { return };
    w.line(0, "Status:");
    w.line(0, "Conditions:");
    w.line(1, "Type\tStatus\tLastTransitionTime\tReason\tMessage");
    w.line(1, "----\t------\t------------------\t------\t-------");
    write_conditions(w, conditions, &["lastTransitionTime"], "\t");
}

pub(super) fn address(object: &Value, w: &mut Writer) {
    head(object, w);
    let parent = &object["spec"]["parentRef"];
    if parent.is_object() {
        w.line(0, "Parent Reference:");
        for (title, key) in
            [("Group", "/group"), ("Resource", "/resource"), ("Namespace", "/namespace"), ("Name", "/name")]
        {
            w.line(1, format!("{title}:\t{}", text(parent, key)));
        }
    }
}
