//! `kubectl top node|pod`, from the metrics API.

use api::quantity::Quantity;
use serde_json::Value;

use super::flags;
use crate::cli::{Alone, Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::printers::TabWriter;
use crate::request::Request;
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
        Some(name) => format!("{path}/{name}"),
        None => path.to_owned(),
    });
    for (flag, parameter) in [("selector", "labelSelector"), ("field-selector", "fieldSelector")] {
        if cx.flags.has_flag(flag) && !cx.flags.string(flag).is_empty() {
            request = request.query(parameter, cx.flags.string(flag));
        }
    }
    match request.value(cx).await {
        Ok(v) if v["items"].is_array() => Ok(items(&v)),
        Ok(v) => Ok(vec![v]),
        Err(e) if e.is_not_found() && !e.inner().contains('"') => Err(Failure::message("Metrics API not available")),
        Err(e) => Err(e),
    }
}

fn quantity(value: &Value) -> Quantity {
    value.as_str().and_then(|s| s.parse().ok()).unwrap_or_else(|| Quantity::new(0, api::quantity::Format::DecimalSI))
}

fn cpu(q: &Quantity) -> String {
    format!("{}m", q.milli_value())
}

fn memory(q: &Quantity) -> String {
    format!("{}Mi", q.value() / (1 << 20))
}

async fn node(cx: &Context) -> Result<()> {
    if cx.args().len() > 1 {
        return Err(cx.usage("node [NAME | -l label]"));
    }
    let mut list = metrics(cx, "/apis/metrics.k8s.io/v1beta1/nodes").await?;
    let nodes = items(&Request::get("/api/v1/nodes").value(cx).await?);
    let by = cx.flags.string("sort-by");
    list.sort_by(|a, b| match by.as_str() {
        "cpu" | "memory" => quantity(&b["usage"][&by]).cmp(&quantity(&a["usage"][&by])),
        _ => text(a, "/metadata/name").cmp(text(b, "/metadata/name")),
    });
    let swap = cx.flags.bool("show-swap");
    let mut lines = match (cx.flags.bool("no-headers"), swap) {
        (true, _) => String::new(),
        (false, false) => "NAME\tCPU(cores)\tCPU(%)\tMEMORY(bytes)\tMEMORY(%)\n".to_owned(),
        (false, true) => "NAME\tCPU(cores)\tCPU(%)\tMEMORY(bytes)\tMEMORY(%)\tSWAP(bytes)\tSWAP(%)\n".to_owned(),
    };
    let of = if cx.flags.bool("show-capacity") { "capacity" } else { "allocatable" };
    for m in &list {
        let node = nodes.iter().find(|n| n["metadata"]["name"] == m["metadata"]["name"]).unwrap_or(&Value::Null);
        let percent = |resource: &str| {
            let total = quantity(&node["status"][of][resource]).milli_value();
            if total == 0 {
                "<unknown>".to_owned()
            } else {
                format!("{}%", (quantity(&m["usage"][resource]).milli_value() as f64 / total as f64 * 100.0) as i64)
            }
        };
        lines.push_str(&format!(
            "{}\t{}\t{}\t{}\t{}\t",
            text(m, "/metadata/name"),
            cpu(&quantity(&m["usage"]["cpu"])),
            percent("cpu"),
            memory(&quantity(&m["usage"]["memory"])),
            percent("memory")
        ));
        if swap {
            let capacity = quantity(&node["status"]["nodeInfo"]["swap"]["capacity"]).value();
            let used = quantity(&m["usage"]["swap"]);
            let share =
                if capacity == 0 { "<unknown>".to_owned() } else { format!("{}%", used.value() * 100 / capacity) };
            lines.push_str(&format!("{}\t{share}\t", memory(&used)));
        }
        lines.push('\n');
    }
    cx.print(&TabWriter::table().format(&lines))
}

async fn pod(cx: &Context) -> Result<()> {
    if cx.args().len() > 1 {
        return Err(cx.usage("pod [NAME | -l label]"));
    }
    let everywhere = cx.flags.bool("all-namespaces");
    let (namespace, _) = cx.namespace()?;
    let path = if everywhere {
        "/apis/metrics.k8s.io/v1beta1/pods".to_owned()
    } else {
        format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods")
    };
    let list = metrics(cx, &path).await?;
    if list.is_empty() {
        cx.eprintln(if everywhere {
            "No resources found".to_owned()
        } else {
            format!("No resources found in {namespace} namespace.")
        });
        return Ok(());
    }
    let containers = cx.flags.bool("containers");
    let mut rows: Vec<(String, Quantity, Quantity, Quantity)> = Vec::new();
    for m in &list {
        let prefix = format!(
            "{}{}",
            if everywhere { format!("{}\t", text(m, "/metadata/namespace")) } else { String::new() },
            if containers { "POD\t" } else { "" }
        );
        let head = prefix.replace("POD\t", &format!("{}\t", text(m, "/metadata/name")));
        let zero = || quantity(&Value::Null);
        let (mut total_cpu, mut total_memory, mut total_swap) = (zero(), zero(), zero());
        for c in m["containers"].as_array().into_iter().flatten() {
            let (c_cpu, c_memory) = (quantity(&c["usage"]["cpu"]), quantity(&c["usage"]["memory"]));
            total_cpu.add(&c_cpu);
            total_memory.add(&c_memory);
            let c_swap = quantity(&c["usage"]["swap"]);
            total_swap.add(&c_swap);
            if containers {
                rows.push((format!("{head}{}", text(c, "/name")), c_cpu, c_memory, c_swap));
            }
        }
        if !containers {
            rows.push((format!("{head}{}", text(m, "/metadata/name")), total_cpu, total_memory, total_swap));
        }
    }
    match cx.flags.string("sort-by").as_str() {
        "cpu" => rows.sort_by(|a, b| b.1.cmp(&a.1)),
        "memory" => rows.sort_by(|a, b| b.2.cmp(&a.2)),
        _ => rows.sort_by(|a, b| a.0.cmp(&b.0)),
    }
    let mut lines = String::new();
    if !cx.flags.bool("no-headers") {
        lines.push_str(if everywhere { "NAMESPACE\t" } else { "" });
        lines.push_str(if containers { "POD\t" } else { "" });
        lines.push_str("NAME\tCPU(cores)\tMEMORY(bytes)");
        lines.push_str(if cx.flags.bool("show-swap") { "\tSWAP(bytes)\n" } else { "\n" });
    }
    let (mut all_cpu, mut all_memory) = (quantity(&Value::Null), quantity(&Value::Null));
    for (name, c, m, swap) in &rows {
        lines.push_str(&format!("{name}\t{}\t{}\t", cpu(c), memory(m)));
        if cx.flags.bool("show-swap") {
            lines.push_str(&format!("{}\t", memory(swap)));
        }
        lines.push('\n');
        all_cpu.add(c);
        all_memory.add(m);
    }
    if cx.flags.bool("sum") {
        let before = "\t".repeat(1 + usize::from(everywhere) + usize::from(containers));
        lines.push_str(&format!("{before}________\t________\t\n"));
        lines.push_str(&format!("{before}{}\t{}\t\n", cpu(&all_cpu), memory(&all_memory)));
    }
    cx.print(&TabWriter::table().format(&lines))
}
