//! Nodes, with the pods on them and what those ask for.

use api::quantity::Quantity;
use serde_json::Value;

use super::{Writer, or_none, plain, strings, time, write_annotations, write_conditions, write_labels};
use crate::context::Context;
use crate::duration;
use crate::failure::Result;
use crate::objects::text;
use crate::request::Request;
use crate::resources::all_items;

pub(super) async fn describe(cx: &Context, node: &Value, w: &mut Writer) -> Result<()> {
    let name = text(node, "/metadata/name");
    let running = format!("spec.nodeName={name},status.phase!=Succeeded,status.phase!=Failed");
    let pods = all_items(cx, || Request::get("/api/v1/pods").query("fieldSelector", running.clone())).await.ok();
    let lease =
        Request::get(format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}")).value(cx).await;
    write(node, pods.as_deref(), &lease, w);
    Ok(())
}

fn write(node: &Value, pods: Option<&[Value]>, lease: &Result<Value>, w: &mut Writer) {
    let (meta, spec, status) = (&node["metadata"], &node["spec"], &node["status"]);
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    let roles: Vec<&str> = meta["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| match k.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => Some(role),
            _ if k == "kubernetes.io/role" => v.as_str(),
            _ => None,
        })
        .collect();
    w.line(0, format!("Roles:\t{}", or_none(&roles.join(","))));
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    w.line(0, format!("CreationTimestamp:\t{}", time(&meta["creationTimestamp"])));
    let taints: Vec<String> = spec["taints"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|t| match text(t, "/value") {
            "" => format!("{}:{}", text(t, "/key"), text(t, "/effect")),
            v => format!("{}={v}:{}", text(t, "/key"), text(t, "/effect")),
        })
        .collect();
    if taints.is_empty() {
        w.line(0, "Taints:\t<none>");
    }
    for (i, taint) in taints.iter().enumerate() {
        w.line(0, format!("{}\t{taint}", if i == 0 { "Taints:" } else { "" }));
    }
    w.line(0, format!("Unschedulable:\t{}", spec["unschedulable"] == true));
    match lease {
        Ok(lease) => write_lease(lease, w),
        Err(why) => w.line(0, format!("Lease:\tFailed to get lease: {}", why.inner())),
    }
    if let Some(conditions) = status["conditions"].as_array().filter(|c| !c.is_empty()) {
        w.line(0, "Conditions:\n  Type\tStatus\tLastHeartbeatTime\tLastTransitionTime\tReason\tMessage");
        w.line(1, "----\t------\t-----------------\t------------------\t------\t-------");
        write_conditions(w, conditions, &["lastHeartbeatTime", "lastTransitionTime"], " \t");
    }
    w.line(0, "Addresses:");
    for a in status["addresses"].as_array().into_iter().flatten() {
        w.line(1, format!("{}:\t{}", text(a, "/type"), text(a, "/address")));
    }
    for (title, key) in [("Capacity", "capacity"), ("Allocatable", "allocatable")] {
        if let Some(map) = status[key].as_object().filter(|m| !m.is_empty()) {
            w.line(0, format!("{title}:"));
            for (k, v) in map {
                w.line(1, format!("{k}:\t{}", plain(v)));
            }
        }
    }
    let info = &status["nodeInfo"];
    w.line(0, "System Info:");
    for (title, key) in [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
    ] {
        w.line(1, format!("{title}:\t{}", text(info, &format!("/{key}"))));
    }
    if info["swap"].is_object() {
        w.line(1, "Swap:\t");
        w.line(2, format!("Capacity:\t{}", plain(&info["swap"]["capacity"])));
    }
    if !text(spec, "/podCIDR").is_empty() {
        w.line(0, format!("PodCIDR:\t{}", text(spec, "/podCIDR")));
    }
    if !strings(&spec["podCIDRs"]).is_empty() {
        w.line(0, format!("PodCIDRs:\t{}", strings(&spec["podCIDRs"]).join(",")));
    }
    if !text(spec, "/providerID").is_empty() {
        w.line(0, format!("ProviderID:\t{}", text(spec, "/providerID")));
    }
    match pods {
        Some(pods) => resources(node, pods, w),
        None => w.line(0, "Pods:\tnot authorized"),
    }
}

const SHOWN: [&str; 2] = ["cpu", "memory"];

/// The pod's own need: the sum of its containers, or the largest init container.
fn pod_quantity(pod: &Value, list: &str, resource: &str) -> Quantity {
    let read = |c: &Value| -> Quantity { plain(&c["resources"][list][resource]).parse().unwrap_or_else(|_| zero()) };
    let mut total = zero();
    for c in pod["spec"]["containers"].as_array().into_iter().flatten() {
        total.add(&read(c));
    }
    for c in pod["spec"]["initContainers"].as_array().into_iter().flatten() {
        let q = read(c);
        if c["restartPolicy"] == "Always" {
            total.add(&q);
        } else if q > total {
            total = q;
        }
    }
    total
}

fn zero() -> Quantity {
    Quantity::new(0, api::quantity::Format::DecimalSI)
}

fn percent(used: &Quantity, of: &Quantity) -> i64 {
    let of = of.milli_value();
    if of == 0 { 0 } else { (used.milli_value() as f64 / of as f64 * 100.0) as i64 }
}

fn resources(node: &Value, pods: &[Value], w: &mut Writer) {
    let now = jiff::Timestamp::now();
    w.line(0, format!("Non-terminated Pods:\t({} in total)", pods.len()));
    w.line(1, "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge");
    w.line(1, "---------\t----\t\t------------\t----------\t---------------\t-------------\t---");
    let allocatable = |resource: &str| -> Quantity {
        plain(&node["status"]["allocatable"][resource]).parse().unwrap_or_else(|_| zero())
    };
    for pod in pods {
        let mut cells = Vec::new();
        for resource in SHOWN {
            for list in ["requests", "limits"] {
                let q = pod_quantity(pod, list, resource);
                cells.push(format!("{q} ({}%)", percent(&q, &allocatable(resource))));
            }
        }
        w.line(
            1,
            format!(
                "{}\t{}\t\t{}\t{}",
                text(pod, "/metadata/namespace"),
                text(pod, "/metadata/name"),
                cells.join("\t"),
                duration::age(pod["metadata"]["creationTimestamp"].as_str(), now)
            ),
        );
    }
    w.line(0, "Allocated resources:\n  (Total limits may be over 100 percent, i.e., overcommitted.)");
    w.line(1, "Resource\tRequests\tLimits");
    w.line(1, "--------\t--------\t------");
    let mut names: Vec<&str> = vec!["cpu", "memory", "ephemeral-storage"];
    for key in node["status"]["allocatable"].as_object().into_iter().flatten().map(|(k, _)| k.as_str()) {
        if key != "pods" && !names.contains(&key) {
            names.push(key);
        }
    }
    for resource in names {
        let sum = |list: &str| {
            let mut total = zero();
            pods.iter().for_each(|p| total.add(&pod_quantity(p, list, resource)));
            total
        };
        let (requests, limits) = (sum("requests"), sum("limits"));
        let of = allocatable(resource);
        if resource == "cpu"
            || resource == "memory"
            || resource == "ephemeral-storage"
            || resource.starts_with("hugepages-")
        {
            w.line(
                1,
                format!("{resource}\t{requests} ({}%)\t{limits} ({}%)", percent(&requests, &of), percent(&limits, &of)),
            );
        } else {
            w.line(1, format!("{resource}\t{requests}\t{limits}"));
        }
    }
}

fn write_lease(lease: &Value, w: &mut Writer) {
    w.line(0, "Lease:");
    w.line(1, format!("HolderIdentity:\t{}", lease["spec"]["holderIdentity"].as_str().unwrap_or("<unset>")));
    for (title, key) in [("AcquireTime", "acquireTime"), ("RenewTime", "renewTime")] {
        let value = &lease["spec"][key];
        w.line(1, format!("{title}:\t{}", if value.is_null() { "<unset>".to_owned() } else { time(value) }));
    }
}
