//! `kubectl top node|pod`, from the metrics API.

use std::cmp::Ordering;

use api::quantity::{Format, Quantity};
use api::sort::CompactSort as _;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::flags;
use crate::cli::{Alone, Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::printers::TabWriter;
use crate::request::{Request, name_segment, namespace_segment};
use crate::resources::items;

pub(crate) const COMMAND: Command = Command {
    name: "top",
    about: "Display resource (CPU/memory) usage",
    subcommands: &[&NODE, &POD],
    usage: "[flags]",
    alone: Alone::FailWithHelp,
    ..Command::EMPTY
};
const SHARED: &[Flag] = &[
    Flag::bool("no-headers", "Leave the header line out."),
    Flag::string("sort-by", "cpu or memory."),
    Flag::bool("show-swap", "Show swap as well."),
    Flag::bool("use-protocol-buffers", "Accepted and ignored: answers are read as JSON.").default("true"),
];
const NODE: Command = Command {
    name: "node",
    aliases: &["nodes", "no"],
    usage: "[NAME | -l label]",
    about: "Display resource (CPU/memory) usage of nodes",
    flags: &[
        SHARED,
        flags::SELECTOR,
        &[Flag::bool("show-capacity", "Percentages of the capacity instead of what is allocatable.")],
    ],
    words: Words::Named("nodes"),
    run: Some(|cx| Box::pin(node(cx))),
    ..Command::EMPTY
};
const POD: Command = Command {
    name: "pod",
    aliases: &["pods", "po"],
    usage: "[NAME | -l label]",
    about: "Display resource (CPU/memory) usage of pods",
    flags: &[
        SHARED,
        flags::SELECTOR,
        flags::FIELD_SELECTOR,
        flags::ALL_NAMESPACES,
        &[Flag::bool("containers", "Each container on its own."), Flag::bool("sum", "The sum of all at the end.")],
    ],
    words: Words::Named("pods"),
    run: Some(|cx| Box::pin(pod(cx))),
    ..Command::EMPTY
};

async fn metrics(cx: &Context, path: &str) -> Result<Vec<Value>> {
    if !["", "cpu", "memory"].contains(&cx.flags.string("sort-by").as_str()) {
        return Err(Failure::message("--sort-by accepts only cpu or memory"));
    }
    let by_fields = cx.flags.has_flag("field-selector");
    if !cx.args().is_empty()
        && (!cx.flags.string("selector").is_empty() || (by_fields && !cx.flags.string("field-selector").is_empty()))
    {
        let what = if by_fields { "selector" } else { "--selector" };
        return Err(Failure::message(format!("only one of NAME or {what} can be provided")));
    }
    let mut request = Request::get(match cx.args().first() {
        Some(name) => format!("{path}/{}", name_segment(name)?),
        None => path.to_owned(),
    });
    for (flag, parameter) in [("selector", "labelSelector"), ("field-selector", "fieldSelector")] {
        if cx.flags.has_flag(flag) && !cx.flags.string(flag).is_empty() {
            request = request.query(parameter, cx.flags.string(flag));
        }
    }
    match request.value(cx).await {
        Ok(v) => Ok(measured(v, !cx.args().is_empty())),
        Err(e) if e.is_not_found() && !e.inner().contains('"') => Err(Failure::message("Metrics API not available")),
        Err(e) => Err(e),
    }
}

/// What an answer measures. A list without items may say `null` for them.
fn measured(answer: Value, is_one: bool) -> Vec<Value> {
    if is_one { vec![answer] } else { items(&answer) }
}

fn quantity(value: &Value) -> Quantity {
    let number = || value.as_i64().map(|number| Quantity::new(number, Format::BinarySI));
    value.as_str().and_then(|text| text.parse().ok()).or_else(number).unwrap_or_default()
}

fn shown(resource: &str, amount: &Quantity) -> String {
    match resource {
        "cpu" => format!("{}m", amount.milli_value()),
        _ => format!("{}Mi", amount.value() / (1 << 20)),
    }
}

const UNKNOWN: &str = "<unknown>";

/// How figures are shown.
struct View {
    has_headers: bool,
    sort_by: String,
    shows_swap: bool,
}

impl View {
    fn of(cx: &Context) -> Self {
        Self {
            has_headers: !cx.flags.bool("no-headers"),
            sort_by: cx.flags.string("sort-by"),
            shows_swap: cx.flags.bool("show-swap"),
        }
    }

    fn resources(&self) -> &'static [&'static str] {
        if self.shows_swap { &["cpu", "memory", "swap"] } else { &["cpu", "memory"] }
    }

    /// The largest first, or by name.
    fn order(&self, a: (&Value, &str), b: (&Value, &str)) -> Ordering {
        match self.sort_by.as_str() {
            "" => a.1.cmp(b.1),
            by => quantity(&b.0[by]).cmp(&quantity(&a.0[by])),
        }
    }
}

async fn node(cx: &Context) -> Result<()> {
    if cx.args().len() > 1 {
        return Err(cx.usage("node [NAME | -l label]"));
    }
    let list = metrics(cx, "/apis/metrics.k8s.io/v1beta1/nodes").await?;
    if list.is_empty() {
        return Err(Failure::message("metrics not available yet"));
    }
    let nodes = match cx.args().first() {
        Some(name) => vec![Request::get(format!("/api/v1/nodes/{}", name_segment(name)?)).value(cx).await?],
        None => {
            let selector = cx.flags.string("selector");
            let request = Request::get("/api/v1/nodes").query_if(!selector.is_empty(), "labelSelector", selector);
            items(&request.value(cx).await?)
        }
    };
    let of = if cx.flags.bool("show-capacity") { "capacity" } else { "allocatable" };
    cx.print(&TabWriter::table().format(&node_lines(list, &nodes, of, &View::of(cx))))
}

fn node_lines(mut list: Vec<Value>, nodes: &[Value], of: &str, view: &View) -> String {
    list.compact_sort_by(|a, b| {
        view.order((&a["usage"], text(a, "/metadata/name")), (&b["usage"], text(b, "/metadata/name")))
    });
    let mut lines = String::new();
    if view.has_headers {
        lines.push_str("NAME\tCPU(cores)\tCPU(%)\tMEMORY(bytes)\tMEMORY(%)\t");
        lines.push_str(if view.shows_swap { "SWAP(bytes)\tSWAP(%)\t\n" } else { "\n" });
    }
    let mut unmeasured: Vec<&Value> = nodes.iter().collect();
    for measured in &list {
        let at = unmeasured.iter().position(|node| node["metadata"]["name"] == measured["metadata"]["name"]);
        let node = at.map(|at| unmeasured.remove(at));
        lines.push_str(&format!("{}\t", text(measured, "/metadata/name")));
        for resource in view.resources() {
            let available = node.map(|node| match *resource {
                "swap" => &node["status"]["nodeInfo"]["swap"]["capacity"],
                resource => &node["status"][of][resource],
            });
            if *resource == "swap" && available.is_some_and(Value::is_null) {
                lines.push_str(&format!("{UNKNOWN}\t{UNKNOWN}\t"));
                continue;
            }
            let used = quantity(&measured["usage"][resource]);
            lines.push_str(&format!("{}\t", shown(resource, &used)));
            if let Some(available) = available.filter(|available| !available.is_null()) {
                let available = quantity(available).milli_value();
                let share = if available == 0 { 0.0 } else { used.milli_value() as f64 / available as f64 * 100.0 };
                lines.push_str(&format!("{}%\t", share as i64));
            }
        }
        lines.push('\n');
    }
    for node in unmeasured {
        let unknown = format!("{UNKNOWN}\t{UNKNOWN}\t").repeat(view.resources().len());
        lines.push_str(&format!("{}\t{unknown}\n", text(node, "/metadata/name")));
    }
    lines
}

async fn pod(cx: &Context) -> Result<()> {
    if cx.args().len() > 1 {
        return Err(cx.usage("pod [NAME | -l label]"));
    }
    let everywhere = cx.flags.bool("all-namespaces");
    let (namespace, _) = cx.namespace()?;
    let place = if everywhere { String::new() } else { format!("/namespaces/{}", namespace_segment(&namespace)?) };
    let list = metrics(cx, &format!("/apis/metrics.k8s.io/v1beta1{place}/pods")).await?;
    if list.is_empty() {
        let mut request = Request::get(format!("/api/v1{place}/pods"));
        for (flag, parameter) in [("selector", "labelSelector"), ("field-selector", "fieldSelector")] {
            let selector = cx.flags.string(flag);
            request = request.query_if(!selector.is_empty(), parameter, selector);
        }
        why_none(&items(&request.value(cx).await?), jiff::Timestamp::now())?;
        cx.eprintln(if everywhere {
            "No resources found".to_owned()
        } else {
            format!("No resources found in {namespace} namespace.")
        });
        return Ok(());
    }
    let parts = Parts { namespaces: everywhere, containers: cx.flags.bool("containers"), sum: cx.flags.bool("sum") };
    cx.print(&TabWriter::table().format(&pod_lines(list, &parts, &View::of(cx))))
}

/// After so long, the figures of a pod should be there.
const CREATION_DELAY: SignedDuration = SignedDuration::from_mins(2);

/// Why nothing is measured although there are pods.
fn why_none(pods: &[Value], now: jiff::Timestamp) -> Result<()> {
    for pod in pods {
        let created = text(pod, "/metadata/creationTimestamp").parse::<jiff::Timestamp>();
        let age = created.map_or(SignedDuration::ZERO, |created| now.duration_since(created));
        if age > CREATION_DELAY {
            let age = api::duration::format(age.unsigned_abs());
            let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
            return Err(Failure::message(format!("Metrics not available for pod {namespace}/{name}, age: {age}")));
        }
    }
    if pods.is_empty() { Ok(()) } else { Err(Failure::message("metrics not available yet")) }
}

/// What is shown of pods besides their own figures.
struct Parts {
    namespaces: bool,
    containers: bool,
    sum: bool,
}

/// The sum of what the containers of a pod use.
fn total(pod: &Value, resources: &[&str]) -> Value {
    let sum = |resource: &str| {
        let mut sum = Quantity::default();
        pod["containers"].as_array().into_iter().flatten().for_each(|one| sum.add(&quantity(&one["usage"][resource])));
        sum.to_string()
    };
    resources.iter().map(|resource| ((*resource).to_owned(), Value::String(sum(resource)))).collect()
}

fn pod_lines(list: Vec<Value>, parts: &Parts, view: &View) -> String {
    let resources = view.resources();
    let mut pods: Vec<(Value, Value)> = list.into_iter().map(|pod| (total(&pod, resources), pod)).collect();
    pods.compact_sort_by(|(a_total, a), (b_total, b)| {
        let of_namespace = match parts.namespaces && view.sort_by.is_empty() {
            true => text(a, "/metadata/namespace").cmp(text(b, "/metadata/namespace")),
            false => Ordering::Equal,
        };
        let names = (text(a, "/metadata/name"), text(b, "/metadata/name"));
        of_namespace.then_with(|| view.order((a_total, names.0), (b_total, names.1)))
    });
    let mut lines = String::new();
    let mut columns = 1 + resources.len();
    if view.has_headers {
        for (is_there, name) in [(parts.namespaces, "NAMESPACE\t"), (parts.containers, "POD\t")] {
            lines.push_str(if is_there { name } else { "" });
            columns += usize::from(is_there);
        }
        lines.push_str("NAME\tCPU(cores)\tMEMORY(bytes)\t");
        lines.push_str(if view.shows_swap { "SWAP(bytes)\t\n" } else { "\n" });
    }
    let figures = |usage: &Value| -> String {
        resources.iter().map(|resource| format!("{}\t", shown(resource, &quantity(&usage[resource])))).collect()
    };
    for (total, pod) in &pods {
        let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
        let namespace = if parts.namespaces { format!("{namespace}\t") } else { String::new() };
        if !parts.containers {
            lines.push_str(&format!("{namespace}{name}\t{}\n", figures(total)));
            continue;
        }
        let mut containers: Vec<&Value> = pod["containers"].as_array().into_iter().flatten().collect();
        containers.compact_sort_by(|a, b| view.order((&a["usage"], text(a, "/name")), (&b["usage"], text(b, "/name"))));
        for one in containers {
            let line = format!("{namespace}{name}\t{}\t{}\n", text(one, "/name"), figures(&one["usage"]));
            lines.push_str(&line);
        }
    }
    if parts.sum {
        let all = Value::Array(pods.iter().map(|(total, _)| json!({"usage": total})).collect());
        let all = total(&json!({"containers": all}), resources);
        lines.push_str(&format!("{}________\t________\t\n", "\t".repeat(columns - 2)));
        lines.push_str(&format!("{}\t{}\n", "\t".repeat(columns - 3), figures(&all)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(has_headers: bool, sort_by: &str, shows_swap: bool) -> View {
        View { has_headers, sort_by: sort_by.to_owned(), shows_swap }
    }

    fn pod(namespace: &str, name: &str, containers: &[(&str, &str, &str)]) -> Value {
        let container =
            |(name, cpu, memory): &(&str, &str, &str)| json!({"name": name, "usage": {"cpu": cpu, "memory": memory}});
        json!({"metadata": {"namespace": namespace, "name": name},
            "containers": containers.iter().map(container).collect::<Vec<_>>()})
    }

    #[test]
    fn a_list_may_be_empty() {
        for (answer, is_one, expected) in [
            (json!({"items": null}), false, 0),
            (json!({"items": []}), false, 0),
            (json!({"items": [pod("n", "p", &[])]}), false, 1),
            (pod("n", "p", &[]), true, 1),
        ] {
            assert_eq!(measured(answer.clone(), is_one).len(), expected, "{answer}");
        }
    }

    #[test]
    fn pods_in_order_with_their_sum() {
        let list = || {
            vec![
                pod("b", "web", &[("main", "250m", "64Mi"), ("aside", "500m", "1Mi")]),
                pod("a", "db", &[("main", "100000000n", "2Gi")]),
                pod("a", "web", &[("main", "1", "8Mi")]),
            ]
        };
        let parts = |namespaces, containers, sum| Parts { namespaces, containers, sum };
        for (parts, view, expected) in [
            (
                parts(true, false, true),
                view(true, "", false),
                "NAMESPACE\tNAME\tCPU(cores)\tMEMORY(bytes)\t\na\tdb\t100m\t2048Mi\t\na\tweb\t1000m\t8Mi\t\n\
                 b\tweb\t750m\t65Mi\t\n\t\t________\t________\t\n\t\t1850m\t2121Mi\t\n",
            ),
            (
                parts(false, false, false),
                view(false, "memory", false),
                "db\t100m\t2048Mi\t\nweb\t750m\t65Mi\t\nweb\t1000m\t8Mi\t\n",
            ),
            // Pods by what they use as a whole, and containers within their pod.
            (
                parts(false, true, true),
                view(true, "cpu", false),
                "POD\tNAME\tCPU(cores)\tMEMORY(bytes)\t\nweb\tmain\t1000m\t8Mi\t\nweb\taside\t500m\t1Mi\t\n\
                 web\tmain\t250m\t64Mi\t\ndb\tmain\t100m\t2048Mi\t\n\t\t________\t________\t\n\
                 \t\t1850m\t2121Mi\t\n",
            ),
            (
                parts(false, false, false),
                view(true, "cpu", true),
                "NAME\tCPU(cores)\tMEMORY(bytes)\tSWAP(bytes)\t\nweb\t1000m\t8Mi\t0Mi\t\nweb\t750m\t65Mi\t0Mi\t\n\
                 db\t100m\t2048Mi\t0Mi\t\n",
            ),
        ] {
            assert_eq!(pod_lines(list(), &parts, &view), expected);
        }
    }

    #[test]
    fn nodes_that_are_not_measured_are_named() {
        let measured = |name: &str, cpu: &str, memory: &str| json!({"metadata": {"name": name}, "usage": {"cpu": cpu, "memory": memory, "swap": "512Mi"}});
        let node = |name: &str, swap: Option<u64>| {
            let resources = json!({"cpu": "2", "memory": "4Gi"});
            json!({"metadata": {"name": name}, "status": {"allocatable": resources, "capacity": {"cpu": "4"},
                "nodeInfo": {"swap": swap.map(|swap| json!({"capacity": swap}))}}})
        };
        let nodes = [node("a", Some(1 << 30)), node("b", None), node("c", None)];
        let list = || vec![measured("b", "500m", "1Gi"), measured("a", "1", "512Mi")];
        assert_eq!(
            node_lines(list(), &nodes, "allocatable", &view(true, "", false)),
            "NAME\tCPU(cores)\tCPU(%)\tMEMORY(bytes)\tMEMORY(%)\t\na\t1000m\t50%\t512Mi\t12%\t\n\
             b\t500m\t25%\t1024Mi\t25%\t\nc\t<unknown>\t<unknown>\t<unknown>\t<unknown>\t\n"
        );
        assert_eq!(
            node_lines(list(), &nodes[..2], "allocatable", &view(false, "memory", true)),
            "b\t500m\t25%\t1024Mi\t25%\t<unknown>\t<unknown>\t\na\t1000m\t50%\t512Mi\t12%\t512Mi\t50%\t\n"
        );
        let of_capacity = node_lines(list(), &nodes[..2], "capacity", &view(false, "cpu", false));
        assert_eq!(of_capacity, "a\t1000m\t25%\t512Mi\t\nb\t500m\t12%\t1024Mi\t\n");
    }

    #[test]
    fn pods_without_figures_are_told_of() {
        let now: jiff::Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let pod = |created: &str| json!({"metadata": {"namespace": "n", "name": "p", "creationTimestamp": created}});
        for (pods, expected) in [
            (vec![], None),
            (vec![pod("2026-01-01T00:09:00Z")], Some("metrics not available yet")),
            (
                vec![pod("2026-01-01T00:09:00Z"), pod("2026-01-01T00:05:30Z")],
                Some("Metrics not available for pod n/p, age: 4m30s"),
            ),
        ] {
            let told = why_none(&pods, now).err().map(|failure| failure.inner());
            assert_eq!(told.as_deref(), expected);
        }
    }
}
