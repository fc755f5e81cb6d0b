//! Deployments and the other objects that run pods.

use serde_json::Value;

use super::{
    Writer, controlled_by, controller, or_none, plain, pod, time, title_bool, write_annotations, write_labels,
    write_meta,
};
use crate::context::Context;
use crate::duration;
use crate::failure::Result;
use crate::objects::text;
use crate::pods;
use crate::request::Request;
use crate::resources::all_items;
use crate::selector::from_label_selector;

fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

pub(super) async fn deployment(cx: &Context, d: &Value, w: &mut Writer) -> Result<()> {
    let selector = from_label_selector(&d["spec"]["selector"]).unwrap_or_default();
    let path = format!("/apis/apps/v1/namespaces/{}/replicasets", text(d, "/metadata/namespace"));
    let sets = all_items(cx, || Request::get(path.clone()).query("labelSelector", selector.clone())).await;
    let sets = sets.unwrap_or_default();
    write_deployment(d, &selector, &sets, w);
    Ok(())
}

fn write_deployment(d: &Value, selector: &str, sets: &[Value], w: &mut Writer) {
    let (meta, spec, status) = (&d["metadata"], &d["spec"], &d["status"]);
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    w.line(0, format!("Namespace:\t{}", text(meta, "/namespace")));
    w.line(0, format!("CreationTimestamp:\t{}", time(&meta["creationTimestamp"])));
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    w.line(0, format!("Selector:\t{selector}"));
    w.line(
        0,
        format!(
            "Replicas:\t{} desired | {} updated | {} total | {} available | {} unavailable",
            count(&spec["replicas"]),
            count(&status["updatedReplicas"]),
            count(&status["replicas"]),
            count(&status["availableReplicas"]),
            count(&status["unavailableReplicas"])
        ),
    );
    w.line(0, format!("StrategyType:\t{}", text(spec, "/strategy/type")));
    w.line(0, format!("MinReadySeconds:\t{}", count(&spec["minReadySeconds"])));
    let rolling = &spec["strategy"]["rollingUpdate"];
    if rolling.is_object() {
        w.line(
            0,
            format!(
                "RollingUpdateStrategy:\t{} max unavailable, {} max surge",
                plain(&rolling["maxUnavailable"]),
                plain(&rolling["maxSurge"])
            ),
        );
    }
    pod::template(w, &spec["template"]);
    conditions(w, &status["conditions"]);
    let owned = controlled_by(d, text(meta, "/uid"), sets);
    if !owned.is_empty() {
        let is_new = |rs: &&&Value| same_template(&rs["spec"]["template"], &spec["template"]);
        let shown = |list: Vec<&Value>| -> String {
            let parts: Vec<String> = list
                .iter()
                .map(|rs| {
                    format!(
                        "{} ({}/{} replicas created)",
                        text(rs, "/metadata/name"),
                        count(&rs["status"]["replicas"]),
                        count(&rs["spec"]["replicas"])
                    )
                })
                .collect();
            or_none(&parts.join(", ")).to_owned()
        };
        let new: Vec<&Value> = owned.iter().filter(is_new).copied().take(1).collect();
        let old: Vec<&Value> = owned
            .iter()
            .copied()
            .filter(|rs| new.first().is_none_or(|n| n["metadata"]["uid"] != rs["metadata"]["uid"]))
            .collect();
        w.line(0, format!("OldReplicaSets:\t{}", shown(old)));
        w.line(0, format!("NewReplicaSet:\t{}", shown(new)));
    }
}

/// Equal but for the hash that the controller adds.
pub(crate) fn same_template(a: &Value, b: &Value) -> bool {
    let strip = |t: &Value| {
        let mut t = t.clone();
        if let Some(labels) = t["metadata"]["labels"].as_object_mut() {
            labels.remove("pod-template-hash");
        }
        if let Some(meta) = t["metadata"].as_object_mut() {
            meta.remove("creationTimestamp");
        }
        t
    };
    strip(a) == strip(b)
}

fn conditions(w: &mut Writer, list: &Value) {
    if let Some(list) = list.as_array().filter(|l| !l.is_empty()) {
        w.line(0, "Conditions:\n  Type\tStatus\tReason");
        w.line(1, "----\t------\t------");
        for c in list {
            w.line(1, format!("{} \t{}\t{}", text(c, "/type"), text(c, "/status"), text(c, "/reason")));
        }
    }
}

async fn pod_status(cx: &Context, object: &Value) -> String {
    let Some(selector) = pods::pod_selector(object) else {
        return "0 Running / 0 Waiting / 0 Succeeded / 0 Failed".to_owned();
    };
    match pods::by_selector(cx, text(object, "/metadata/namespace"), &selector).await {
        Ok(all) => {
            let uid = text(object, "/metadata/uid");
            let mine = controlled_by(object, uid, &all);
            let phase = |p: &str| mine.iter().filter(|pod| pod["status"]["phase"] == p).count();
            format!(
                "{} Running / {} Waiting / {} Succeeded / {} Failed",
                phase("Running"),
                phase("Pending"),
                phase("Succeeded"),
                phase("Failed")
            )
        }
        Err(e) => format!("error in fetching pods: {}", e.inner()),
    }
}

pub(super) async fn replica_set(cx: &Context, rs: &Value, w: &mut Writer) -> Result<()> {
    let meta = &rs["metadata"];
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    w.line(0, format!("Namespace:\t{}", text(meta, "/namespace")));
    w.line(0, format!("Selector:\t{}", from_label_selector(&rs["spec"]["selector"]).unwrap_or_default()));
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    if let Some(owner) = controller(rs) {
        w.line(0, format!("Controlled By:\t{owner}"));
    }
    w.line(
        0,
        format!("Replicas:\t{} current / {} desired", count(&rs["status"]["replicas"]), count(&rs["spec"]["replicas"])),
    );
    w.line(0, format!("Pods Status:\t{}", pod_status(cx, rs).await));
    pod::template(w, &rs["spec"]["template"]);
    conditions(w, &rs["status"]["conditions"]);
    Ok(())
}

pub(super) async fn replication_controller(cx: &Context, rc: &Value, w: &mut Writer) -> Result<()> {
    let meta = &rc["metadata"];
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    w.line(0, format!("Namespace:\t{}", text(meta, "/namespace")));
    w.line(0, format!("Selector:\t{}", or_none(&crate::selector::from_map(&rc["spec"]["selector"]))));
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    w.line(
        0,
        format!("Replicas:\t{} current / {} desired", count(&rc["status"]["replicas"]), count(&rc["spec"]["replicas"])),
    );
    w.line(0, format!("Pods Status:\t{}", pod_status(cx, rc).await));
    pod::template(w, &rc["spec"]["template"]);
    conditions(w, &rc["status"]["conditions"]);
    Ok(())
}

pub(super) async fn stateful_set(cx: &Context, ss: &Value, w: &mut Writer) -> Result<()> {
    let (meta, spec) = (&ss["metadata"], &ss["spec"]);
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    w.line(0, format!("Namespace:\t{}", text(meta, "/namespace")));
    w.line(0, format!("CreationTimestamp:\t{}", time(&meta["creationTimestamp"])));
    w.line(0, format!("Selector:\t{}", from_label_selector(&spec["selector"]).unwrap_or_default()));
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    w.line(0, format!("Replicas:\t{} desired | {} total", count(&spec["replicas"]), count(&ss["status"]["replicas"])));
    w.line(0, format!("Update Strategy:\t{}", text(spec, "/updateStrategy/type")));
    let rolling = &spec["updateStrategy"]["rollingUpdate"];
    if rolling.is_object() {
        w.line(1, format!("Partition:\t{}", count(&rolling["partition"])));
        if !rolling["maxUnavailable"].is_null() {
            w.line(1, format!("MaxUnavailable:\t{}", plain(&rolling["maxUnavailable"])));
        }
    }
    w.line(0, format!("Pods Status:\t{}", pod_status(cx, ss).await));
    pod::template(w, &spec["template"]);
    match spec["volumeClaimTemplates"].as_array().filter(|c| !c.is_empty()) {
        None => w.line(0, "Volume Claims:\t<none>"),
        Some(claims) => {
            w.line(0, "Volume Claims:");
            for c in claims {
                w.line(1, format!("Name:\t{}", text(c, "/metadata/name")));
                w.line(1, format!("StorageClass:\t{}", super::storage::class_of(c)));
                write_labels(w, "  Labels", &c["metadata"]["labels"]);
                write_annotations(w, "  Annotations", &c["metadata"]["annotations"]);
                w.line(1, format!("Capacity:\t{}", plain(&c["spec"]["resources"]["requests"]["storage"])));
                w.line(1, format!("Access Modes:\t[{}]", super::strings(&c["spec"]["accessModes"]).join(" ")));
            }
        }
    }
    Ok(())
}

pub(super) async fn daemon_set(cx: &Context, ds: &Value, w: &mut Writer) -> Result<()> {
    let (meta, status) = (&ds["metadata"], &ds["status"]);
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    w.line(0, format!("Namespace:\t{}", text(meta, "/namespace")));
    w.line(0, format!("Selector:\t{}", from_label_selector(&ds["spec"]["selector"]).unwrap_or_default()));
    write_labels(w, "Node-Selector", &ds["spec"]["template"]["spec"]["nodeSelector"]);
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    for (title, key) in [
        ("Desired Number of Nodes Scheduled", "desiredNumberScheduled"),
        ("Current Number of Nodes Scheduled", "currentNumberScheduled"),
        ("Number of Nodes Scheduled with Up-to-date Pods", "updatedNumberScheduled"),
        ("Number of Nodes Scheduled with Available Pods", "numberAvailable"),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ] {
        w.line(0, format!("{title}: {}", count(&status[key])));
    }
    w.line(0, format!("Pods Status:\t{}", pod_status(cx, ds).await));
    pod::template(w, &ds["spec"]["template"]);
    Ok(())
}

pub(super) fn job(job: &Value, w: &mut Writer) {
    let (meta, spec, status) = (&job["metadata"], &job["spec"], &job["status"]);
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    w.line(0, format!("Namespace:\t{}", text(meta, "/namespace")));
    if spec["selector"].is_object() {
        w.line(0, format!("Selector:\t{}", from_label_selector(&spec["selector"]).unwrap_or_default()));
    }
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    if let Some(owner) = controller(job) {
        w.line(0, format!("Controlled By:\t{owner}"));
    }
    for (title, key) in [("Parallelism", "parallelism"), ("Completions", "completions")] {
        match spec[key].as_i64() {
            Some(n) => w.line(0, format!("{title}:\t{n}")),
            None => w.line(0, format!("{title}:\t<unset>")),
        }
    }
    if !text(spec, "/completionMode").is_empty() {
        w.line(0, format!("Completion Mode:\t{}", text(spec, "/completionMode")));
    }
    if !spec["suspend"].is_null() {
        w.line(0, format!("Suspend:\t{}", spec["suspend"]));
    }
    if let Some(limit) = spec["backoffLimit"].as_i64() {
        w.line(0, format!("Backoff Limit:\t{limit}"));
    }
    if let Some(ttl) = spec["ttlSecondsAfterFinished"].as_i64() {
        w.line(0, format!("TTL Seconds After Finished:\t{ttl}"));
    }
    if !status["startTime"].is_null() {
        w.line(0, format!("Start Time:\t{}", time(&status["startTime"])));
    }
    if !status["completionTime"].is_null() {
        w.line(0, format!("Completed At:\t{}", time(&status["completionTime"])));
        if let (Some(start), Some(end)) = (
            status["startTime"].as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok()),
            status["completionTime"].as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok()),
        ) {
            w.line(0, format!("Duration:\t{}", duration::human(end.as_second() - start.as_second())));
        }
    }
    if let Some(deadline) = spec["activeDeadlineSeconds"].as_i64() {
        w.line(0, format!("Active Deadline Seconds:\t{deadline}s"));
    }
    match status["ready"].as_i64() {
        Some(ready) => w.line(
            0,
            format!(
                "Pods Statuses:\t{} Active ({ready} Ready) / {} Succeeded / {} Failed",
                count(&status["active"]),
                count(&status["succeeded"]),
                count(&status["failed"])
            ),
        ),
        None => w.line(
            0,
            format!(
                "Pods Statuses:\t{} Active / {} Succeeded / {} Failed",
                count(&status["active"]),
                count(&status["succeeded"]),
                count(&status["failed"])
            ),
        ),
    }
    if spec["completionMode"] == "Indexed" {
        w.line(0, format!("Completed Indexes:\t{}", or_none(text(status, "/completedIndexes"))));
    }
    pod::template(w, &spec["template"]);
}

pub(super) fn cron_job(cj: &Value, w: &mut Writer) {
    let (spec, status) = (&cj["spec"], &cj["status"]);
    write_meta(w, cj);
    w.line(0, format!("Schedule:\t{}", text(spec, "/schedule")));
    w.line(0, format!("Concurrency Policy:\t{}", text(spec, "/concurrencyPolicy")));
    w.line(0, format!("Suspend:\t{}", title_bool(spec["suspend"] == true)));
    let zone = text(spec, "/timeZone");
    w.line(0, format!("Time Zone:\t{}", if zone.is_empty() { "<unset>" } else { zone }));
    for (title, key) in [
        ("Successful Job History Limit", "successfulJobsHistoryLimit"),
        ("Failed Job History Limit", "failedJobsHistoryLimit"),
    ] {
        match spec[key].as_i64() {
            Some(n) => w.line(0, format!("{title}:\t{n}")),
            None => w.line(0, format!("{title}:\t<unset>")),
        }
    }
    match spec["startingDeadlineSeconds"].as_i64() {
        Some(n) => w.line(0, format!("Starting Deadline Seconds:\t{n}s")),
        None => w.line(0, "Starting Deadline Seconds:\t<unset>"),
    }
    let job = &spec["jobTemplate"]["spec"];
    if job["selector"].is_object() {
        w.line(0, format!("Selector:\t{}", from_label_selector(&job["selector"]).unwrap_or_default()));
    } else {
        w.line(0, "Selector:\t<unset>");
    }
    for (title, key) in [("Parallelism", "parallelism"), ("Completions", "completions")] {
        match job[key].as_i64() {
            Some(n) => w.line(0, format!("{title}:\t{n}")),
            None => w.line(0, format!("{title}:\t<unset>")),
        }
    }
    pod::template(w, &job["template"]);
    match status["lastScheduleTime"].is_null() {
        true => w.line(0, "Last Schedule Time:\t<unset>"),
        false => w.line(0, format!("Last Schedule Time:\t{}", time(&status["lastScheduleTime"]))),
    }
    let active: Vec<&str> = status["active"].as_array().into_iter().flatten().map(|a| text(a, "/name")).collect();
    w.line(0, format!("Active Jobs:\t{}", or_none(&active.join(", "))));
}
