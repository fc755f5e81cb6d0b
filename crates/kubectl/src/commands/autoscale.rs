//! `kubectl autoscale`

use serde_json::{Value, json};

use super::create::known;
use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::{Context, DryRun};
use crate::discovery::Mapping;
use crate::failure::{Failure, Result};
use crate::objects;
use crate::request::Request;
use crate::resources::{self, Options};

pub(crate) const COMMAND: Command = Command {
    name: "autoscale",
    usage: "(-f FILENAME | TYPE NAME | TYPE/NAME) [--min=MINPODS] --max=MAXPODS [--cpu=CPU] [--memory=MEMORY]",
    about: "Auto-scale a deployment, replica set, stateful set, or replication controller",
    flags: &[
        flags::FILENAME,
        flags::OUTPUT,
        flags::DRY_RUN,
        flags::SAVE_CONFIG,
        flags::RECORD,
        &[
            Flag::int("min", "-1", "Least number of pods."),
            Flag::int("max", "-1", "Largest number of pods."),
            Flag::string("cpu", "Target CPU: 70% of the request, or an amount such as 500m."),
            Flag::string("memory", "Target memory: a percentage or an amount."),
            Flag::int("cpu-percent", "-1", "Target CPU in percent of the request.").deprecated(
                "Use --cpu with percentage or resource quantity format (e.g., '70%' for utilization or '500m' for milliCPU).",
            ),
            Flag::string("name", "Name of the autoscaler; the object's unless given."),
            Flag::string("field-manager", "Name that owns the fields.").default("kubectl-autoscale"),
        ],
    ],
    words: Words::ObjectsOf(&["deployment", "replicaset", "replicationcontroller", "statefulset"]),
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

fn metric(resource: &str, target: &str) -> Result<Value> {
    let target = match target.strip_suffix('%').map_or_else(|| target.parse::<i64>().ok(), |p| p.parse().ok()) {
        Some(percent) => json!({"type": "Utilization", "averageUtilization": percent}),
        None => {
            let q: api::quantity::Quantity =
                target.parse().map_err(|_| Failure::message(format!("invalid resource {resource} value: {target}")))?;
            json!({"type": "AverageValue", "averageValue": q.to_string()})
        }
    };
    Ok(json!({"type": "Resource", "resource": {"name": resource, "target": target}}))
}

async fn run(cx: &Context) -> Result<()> {
    let (min, max) = (cx.flags.int("min"), cx.flags.int("max"));
    if !cx.flags.changed("max") {
        return Err(Failure::message("required flag(s) \"max\" not set"));
    }
    if max < 1 {
        return Err(Failure::message(format!("--max=MAXPODS is required and must be at least 1, max: {max}")));
    }
    if max < min {
        return Err(Failure::message(format!(
            "--max=MAXPODS must be larger or equal to --min=MINPODS, max: {max}, min: {min}"
        )));
    }
    let mut metrics = Vec::new();
    if cx.flags.int("cpu-percent") >= 0 {
        metrics.push(metric("cpu", &cx.flags.int("cpu-percent").to_string())?);
    }
    for resource in ["cpu", "memory"] {
        let target = cx.flags.string(resource);
        if !target.is_empty() {
            metrics.push(metric(resource, &target)?);
        }
    }
    let dry_run = cx.dry_run()?;
    let mut printer = cx.printer("autoscaled", dry_run)?.typed();
    let (infos, unread) = resources::infos(cx, &Options::default()).await?;
    let mut failures = Vec::new();
    for info in infos {
        if !scales(cx, &info.mapping).await? {
            failures.push(Failure::message(format!(
                "cannot autoscale a {}: could not find scale subresource for {} in discovery information",
                info.mapping.kind,
                info.mapping.resource_text()
            )));
            continue;
        }
        let name = match cx.flags.string("name") {
            n if n.is_empty() => info.name.clone(),
            n => n,
        };
        let mut spec = json!({"scaleTargetRef": {"apiVersion": info.mapping.api_version(), "kind": info.mapping.kind, "name": info.name}, "maxReplicas": max});
        if min > 0 {
            spec["minReplicas"] = json!(min);
        }
        if !metrics.is_empty() {
            spec["metrics"] = json!(metrics);
        }
        let mut object = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name}, "spec": spec});
        objects::record(cx, &mut object);
        let (namespace, explicit) = cx.namespace()?;
        if explicit {
            object["metadata"]["namespace"] = json!(namespace);
        }
        if cx.flags.bool("save-config") {
            let text = objects::as_generated(&object);
            objects::set_annotation(&mut object, objects::LAST_APPLIED, text);
        }
        if dry_run == DryRun::Client {
            object["status"] = json!({"currentMetrics": null, "desiredReplicas": 0});
        } else {
            let mapping = known("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", true);
            object =
                objects::create(cx, &mapping, &info.namespace, &object, dry_run, &cx.flags.string("field-manager"))
                    .await?;
        }
        cx.print(&printer.print(&object)?)?;
    }
    failures.extend(unread);
    Failure::all(failures)
}

/// Whether objects of the type have a `scale`.
async fn scales(cx: &Context, mapping: &Mapping) -> Result<bool> {
    let root = if mapping.group.is_empty() { "/api" } else { "/apis" };
    let list = Request::get(format!("{root}/{}", mapping.api_version())).value(cx).await?;
    let name = format!("{}/scale", mapping.resource);
    Ok(list["resources"].as_array().is_some_and(|all| all.iter().any(|r| r["name"] == name.as_str())))
}
