//! Nodes, with the pods on them and what those ask for.

use std::collections::{BTreeMap, BTreeSet};

use api::pod::resources::{self, Amounts, Side};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
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
    let own = format!("spec.nodeName={name}");
    let path = "/apis/resource.k8s.io/v1/resourceslices";
    // Who may not see them is told of the rest.
    let slices = all_items(cx, || Request::get(path).query("fieldSelector", own.clone())).await.unwrap_or_default();
    write(node, pods.as_deref(), &lease, &slices, w);
    Ok(())
}

fn write(node: &Value, pods: Option<&[Value]>, lease: &Result<Value>, slices: &[Value], w: &mut Writer) {
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
    write_slices(slices, w);
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
        Some(pods) => write_resources(node, pods, w),
        None => w.line(0, "Pods:\tnot authorized"),
    }
}

const SHOWN: [&str; 2] = ["cpu", "memory"];

type List = BTreeMap<String, ApiQuantity>;

fn list(amounts: &Value) -> Option<List> {
    let amounts = amounts.as_object()?.iter();
    Some(amounts.map(|(name, amount)| (name.clone(), ApiQuantity(plain(amount)))).collect())
}

fn requirements(value: &Value) -> ResourceRequirements {
    ResourceRequirements { requests: list(&value["requests"]), limits: list(&value["limits"]), claims: None }
}

/// The most of what a container is to have, was granted and has. What cannot be granted does not count
/// (`determineEffectiveRequests`, v1.36).
fn with_status(own: ResourceRequirements, status: &Value, is_infeasible: bool) -> ResourceRequirements {
    let actual = requirements(&status["resources"]);
    let most = |wished: Option<List>, others: [Option<List>; 2]| -> Option<List> {
        let mut amounts = Amounts::new();
        for list in wished.iter().filter(|_| !is_infeasible).chain(others.iter().flatten()) {
            resources::max(&mut amounts, resources::parse(Some(list)));
        }
        Some(amounts.into_iter().map(|(name, amount)| (name, ApiQuantity(amount.to_string()))).collect())
    };
    ResourceRequirements {
        requests: most(own.requests, [actual.requests, list(&status["allocatedResources"])]),
        limits: most(own.limits, [actual.limits, None]),
        claims: None,
    }
}

/// What a pod needs of everything, overhead included.
fn needs(pod: &Value, side: Side, uses_status: bool) -> Amounts {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let pending = conditions.find(|condition| condition["type"] == "PodResizePending");
    let is_infeasible = pending.is_some_and(|condition| condition["reason"] == "Infeasible");
    let containers = |field: &str, statuses: &str| -> Vec<Container> {
        let read = |container: &Value| {
            let mut statuses = status[statuses].as_array().into_iter().flatten();
            let restart_policy = container["restartPolicy"].as_str().map(str::to_owned);
            let can_be_resized = field == "containers" || restart_policy.as_deref() == Some("Always");
            let seen = statuses
                .find(|seen| uses_status && can_be_resized && seen["name"] == container["name"])
                .filter(|seen| seen["resources"].is_object());
            let own = requirements(&container["resources"]);
            let resources = match seen {
                Some(seen) => with_status(own, seen, is_infeasible),
                None => own,
            };
            Container { resources: Some(resources), restart_policy, ..Default::default() }
        };
        spec[field].as_array().into_iter().flatten().map(read).collect()
    };
    let spec = PodSpec {
        containers: containers("containers", "containerStatuses"),
        init_containers: Some(containers("initContainers", "initContainerStatuses")),
        overhead: list(&spec["overhead"]),
        resources: Some(requirements(&spec["resources"])),
        ..Default::default()
    };
    resources::with_overhead(&spec, side)
}

fn of(amounts: &Amounts, resource: &str) -> Quantity {
    amounts.get(resource).cloned().unwrap_or_default()
}

fn zero() -> Quantity {
    Quantity::new(0, api::quantity::Format::DecimalSI)
}

fn percent(used: &Quantity, of: &Quantity) -> i64 {
    let of = of.milli_value();
    if of == 0 { 0 } else { (used.milli_value() as f64 / of as f64 * 100.0) as i64 }
}

const SIDES: [Side; 2] = [Side::Requests, Side::Limits];

fn write_resources(node: &Value, pods: &[Value], w: &mut Writer) {
    let now = jiff::Timestamp::now();
    w.line(0, format!("Non-terminated Pods:\t({} in total)", pods.len()));
    w.line(1, "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge");
    w.line(1, "---------\t----\t\t------------\t----------\t---------------\t-------------\t---");
    let status = &node["status"];
    let mut lists = ["allocatable", "capacity"].into_iter().filter_map(|list| status[list].as_object());
    let there = lists.find(|list| !list.is_empty());
    let allocatable = |resource: &str| -> Quantity {
        there.and_then(|list| plain(list.get(resource)?).parse().ok()).unwrap_or_else(zero)
    };
    for pod in pods {
        let amounts = SIDES.map(|side| needs(pod, side, true));
        let mut cells = Vec::new();
        for resource in SHOWN {
            for amounts in &amounts {
                let q = of(amounts, resource);
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
    let totals = SIDES.map(|side| {
        let mut total = Amounts::new();
        pods.iter().for_each(|pod| resources::add(&mut total, &needs(pod, side, false)));
        total
    });
    let standard = ["cpu", "memory", "ephemeral-storage"];
    let others = there.into_iter().flat_map(|list| list.keys()).map(String::as_str);
    let others: BTreeSet<&str> = others.filter(|name| *name != "pods" && !standard.contains(name)).collect();
    let (huge_pages, extended): (Vec<&str>, Vec<&str>) =
        others.into_iter().partition(|name| name.starts_with("hugepages-"));
    for resource in standard.into_iter().chain(huge_pages) {
        let available = allocatable(resource);
        let [requests, limits] = totals.each_ref().map(|total| {
            let q = of(total, resource);
            format!("{q} ({}%)", percent(&q, &available))
        });
        w.line(1, format!("{resource}\t{requests}\t{limits}"));
    }
    for resource in extended {
        let [requests, limits] = totals.each_ref().map(|total| of(total, resource));
        w.line(1, format!("{resource}\t{requests}\t{limits}"));
    }
}

/// Pools that are shown; of others only the number is.
const MAX_POOLS: usize = 10;

/// What drivers say of the devices of this node, by driver and pool.
fn write_slices(slices: &[Value], w: &mut Writer) {
    let mut pools: BTreeMap<String, (&str, &str, usize, usize)> = BTreeMap::new();
    for slice in slices {
        let (driver, name) = (text(slice, "/spec/driver"), text(slice, "/spec/pool/name"));
        let pool = pools.entry(format!("{driver}/{name}")).or_insert((driver, name, 0, 0));
        pool.2 += 1;
        pool.3 += slice["spec"]["devices"].as_array().map_or(0, Vec::len);
    }
    if pools.is_empty() {
        return;
    }
    w.line(0, "Node-Local ResourceSlices:");
    w.line(1, "Driver\tPool\tSlices\tDevices");
    w.line(1, "------\t----\t------\t-------");
    for (driver, name, slices, devices) in pools.values().take(MAX_POOLS) {
        w.line(1, format!("{driver}\t{name}\t{slices}\t{devices}"));
    }
    if pools.len() > MAX_POOLS {
        w.line(1, format!("...and {} more pools", pools.len() - MAX_POOLS));
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_need_what_the_scheduler_counts() {
        let container = |requests: &str, limits: &str| json!({"name": "c", "resources": {"requests": {"cpu": requests}, "limits": {"cpu": limits}}});
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}});
        let resized = |wished: &str, reason: &str| {
            json!({
                "spec": {"containers": [container(wished, wished)]},
                "status": {
                    "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
                    "containerStatuses": [{
                        "name": "c", "allocatedResources": {"cpu": "2"},
                        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
                    }],
                },
            })
        };
        for (pod, expected) in [
            (json!({"spec": {"containers": [container("1", "2"), container("1", "2")]}}), ["2", "4", "2"]),
            (
                json!({"spec": {"containers": [container("1", "2")], "overhead": {"cpu": "250m"}}}),
                ["1250m", "2250m", "1250m"],
            ),
            (
                json!({"spec": {"containers": [container("1", "2")], "initContainers": [sidecar, container("3", "3")]}}),
                ["3500m", "3", "3500m"],
            ),
            (
                json!({"spec": {"containers": [container("1", "2")], "resources": {"requests": {"cpu": "5"}}}}),
                ["5", "2", "5"],
            ),
            (resized("3", "Deferred"), ["3", "3", "3"]),
            (resized("500m", "Deferred"), ["2", "1", "500m"]),
            (resized("9", "Infeasible"), ["2", "1", "9"]),
        ] {
            let cpu = |side, uses_status| of(&needs(&pod, side, uses_status), "cpu").to_string();
            let found = [cpu(Side::Requests, true), cpu(Side::Limits, true), cpu(Side::Requests, false)];
            assert_eq!(found, expected, "{pod}");
        }
    }

    #[test]
    fn huge_pages_come_before_what_others_count() {
        let amounts = json!({"cpu": "4", "memory": "8Gi", "ephemeral-storage": "1Gi", "pods": "9",
            "a.io/gpu": "2", "hugepages-2Mi": "8Mi"});
        let node = json!({"status": {"capacity": amounts}});
        let resources = json!({"requests": {"cpu": "1", "hugepages-2Mi": "4Mi", "a.io/gpu": "1"},
            "limits": {"hugepages-2Mi": "4Mi", "a.io/gpu": "1"}});
        let pod = json!({"metadata": {}, "spec": {"containers": [{"name": "c", "resources": resources}]}});
        let mut w = Writer::default();
        write_resources(&node, &[pod], &mut w);
        let written = w.finish();
        let lines: Vec<Vec<&str>> =
            written.lines().rev().take(5).map(|line| line.split_whitespace().collect()).collect();
        let lines: Vec<String> = lines.iter().rev().map(|words| words.join(" ")).collect();
        let expected = [
            "cpu 1 (25%) 0 (0%)",
            "memory 0 (0%) 0 (0%)",
            "ephemeral-storage 0 (0%) 0 (0%)",
            "hugepages-2Mi 4Mi (50%) 4Mi (50%)",
            "a.io/gpu 1 1",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn slices_are_counted_by_pool() {
        let slice = |pool: &str, devices: usize| json!({"spec": {"driver": "d", "pool": {"name": pool}, "devices": vec![json!({}); devices]}});
        let written = |slices: &[Value]| {
            let mut w = Writer::default();
            write_slices(slices, &mut w);
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            w.finish().lines().map(words).collect::<Vec<String>>()
        };
        assert_eq!(written(&[]), [""; 0]);
        let found = written(&[slice("b", 1), slice("a", 2), slice("b", 3)]);
        assert_eq!(found[0], "Node-Local ResourceSlices:");
        assert_eq!(found[3..], ["d a 1 2", "d b 2 4"]);
        let many: Vec<Value> = (0..12).map(|pool| slice(&format!("p{pool:02}"), 1)).collect();
        assert_eq!(written(&many).last().map(String::as_str), Some("...and 2 more pools"));
    }
}
