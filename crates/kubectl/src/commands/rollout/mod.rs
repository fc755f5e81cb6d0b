//! `kubectl rollout status|history|undo|restart|pause|resume`

mod state;

use api::sort::CompactSort as _;
use serde_json::{Value, json};

use super::flags;
use crate::cli::{Alone, Command, Flag, Words};
use crate::context::{Context, DryRun, with_dry_run};
use crate::failure::{Failure, Result};
use crate::objects::{self, PatchKind, text};
use crate::printers::{Printer, TabWriter};
use crate::request::Request;
use crate::resources::{self, Info, Options, items};
use state::rollout_state;

pub(crate) const COMMAND: Command = Command {
    name: "rollout",
    about: "Manage the rollout of a resource",
    subcommands: &[&HISTORY, &PAUSE, &RESTART, &RESUME, &STATUS, &UNDO],
    alone: Alone::FailWithHelpOut,
    ..Command::EMPTY
};
const STATUS: Command = Command {
    name: "status",
    usage: "(TYPE NAME | TYPE/NAME) [flags]",
    about: "Show the status of the rollout",
    flags: &[
        flags::FILENAME,
        flags::SELECTOR,
        &[
            Flag::bool("watch", "Go on until the rollout ends.").short('w').default("true"),
            Flag::int("revision", "0", "Show this revision's status; 0 is the latest."),
            Flag::duration("timeout", "0s", "How long to watch; zero means for ever."),
        ],
    ],
    words: Words::ObjectsOf(&["deployment", "daemonset", "statefulset"]),
    run: Some(|cx| Box::pin(status(cx))),
    ..Command::EMPTY
};
const HISTORY: Command = Command {
    name: "history",
    usage: "(TYPE NAME | TYPE/NAME) [flags]",
    about: "View rollout history",
    flags: &[
        flags::FILENAME,
        flags::SELECTOR,
        flags::OUTPUT,
        &[Flag::int("revision", "0", "Show this revision in full.")],
    ],
    words: Words::ObjectsOf(&["deployment", "daemonset", "statefulset"]),
    run: Some(|cx| Box::pin(history(cx))),
    ..Command::EMPTY
};
const UNDO: Command = Command {
    name: "undo",
    usage: "(TYPE NAME | TYPE/NAME) [flags]",
    about: "Undo a previous rollout",
    flags: &[
        flags::FILENAME,
        flags::SELECTOR,
        flags::OUTPUT,
        flags::DRY_RUN,
        &[Flag::int("to-revision", "0", "Revision to return to; 0 is the one before.")],
    ],
    words: Words::ObjectsOf(&["deployment", "daemonset", "statefulset"]),
    run: Some(|cx| Box::pin(undo(cx))),
    ..Command::EMPTY
};
macro_rules! patching {
    ($name:ident, $text:literal, $about:literal) => {
        const $name: Command = Command {
            name: $text,
            usage: "RESOURCE",
            about: $about,
            flags: &[
                flags::FILENAME,
                flags::SELECTOR,
                flags::OUTPUT,
                &[Flag::string("field-manager", "Name that owns the fields.").default("kubectl-rollout")],
            ],
            words: Words::ObjectsOf(&["deployment", "daemonset", "statefulset"]),
            run: Some(|cx| Box::pin(change(cx, $text))),
            ..Command::EMPTY
        };
    };
}
patching!(RESTART, "restart", "Restart a resource");
patching!(PAUSE, "pause", "Mark the provided resource as paused");
patching!(RESUME, "resume", "Resume a paused resource");

const RESTARTED: &str = "kubectl.kubernetes.io/restartedAt";

/// The objects, and why others could not be read: those do not keep the rest from it.
async fn named(cx: &Context) -> Result<(Vec<Info>, Vec<Failure>)> {
    let options = Options {
        latest: true,
        missing: Some(Failure::message("required resource not specified")),
        types_alone: true,
        ..Options::default()
    };
    resources::infos(cx, &options).await
}

async fn status(cx: &Context) -> Result<()> {
    let (infos, unread) = named(cx).await?;
    if infos.is_empty() && unread.is_empty() {
        return none_found(cx);
    }
    let mut failures = Vec::new();
    for info in &infos {
        failures.extend(status_of(cx, info).await.err());
    }
    failures.extend(unread);
    Failure::all(failures)
}

async fn status_of(cx: &Context, info: &Info) -> Result<()> {
    check_revision(cx, info)?;
    if !["Deployment", "DaemonSet", "StatefulSet"].contains(&info.mapping.kind.as_str()) {
        return Err(Failure::message(format!("no status viewer has been implemented for {}", info.mapping.kind)));
    }
    let limit = match cx.flags.duration("timeout") {
        d if d.is_zero() => std::time::Duration::from_secs(7 * 24 * 3600),
        d => d,
    };
    let watch = cx.flags.bool("watch");
    let last = std::cell::RefCell::new(String::new());
    let failure = std::cell::RefCell::new(None);
    let holds = |object: &Value| match rollout_state(object) {
        Ok((message, done)) => {
            if *last.borrow() != message {
                let _ = cx.print(&message);
                let _ = cx.flush();
                *last.borrow_mut() = message;
            }
            done || !watch
        }
        Err(error) => {
            *failure.borrow_mut() = Some(Failure::of(error));
            true
        }
    };
    super::wait::until(cx, info, limit, holds).await.map_err(|e| match e {
        Failure::Message(m) if m.starts_with("timed out") => Failure::message("timed out waiting for the condition"),
        other => other,
    })?;
    if let Some(failure) = failure.into_inner() {
        return Err(failure);
    }
    Ok(())
}

fn none_found(cx: &Context) -> Result<()> {
    cx.eprintln(format!("No resources found in {} namespace.", cx.namespace()?.0));
    Ok(())
}

/// `--revision` pins a deployment to one rollout; another one means that it is over.
fn check_revision(cx: &Context, info: &Info) -> Result<()> {
    let wanted = cx.flags.int("revision");
    if wanted < 0 {
        return Err(Failure::message(format!("revision must be a positive integer: {wanted}")));
    }
    let running = text(&info.object, "/metadata/annotations/deployment.kubernetes.io~1revision").parse().unwrap_or(0);
    if wanted > 0 && info.mapping.kind == "Deployment" && wanted != running {
        return Err(Failure::message(format!(
            "desired revision ({wanted}) is different from the running revision ({running})"
        )));
    }
    Ok(())
}

/// Types that upstream's visitor does not know at all.
fn unvisited(info: &Info, what: &str) -> Option<Failure> {
    let known =
        ["DaemonSet", "Deployment", "Job", "Pod", "ReplicaSet", "ReplicationController", "StatefulSet", "CronJob"];
    let Info { mapping, .. } = info;
    (!known.contains(&mapping.kind.as_str())).then(|| {
        Failure::message(format!(
            "error retrieving {what} for \"{}\", no visitor method exists for {{{} {}}}",
            mapping.kind, mapping.group, mapping.kind
        ))
    })
}

/// One rollout of the past.
struct Revision {
    number: i64,
    cause: String,
    template: Value,
    /// The replica set, or the object as it was then.
    object: Value,
}

/// Oldest first.
async fn revisions(cx: &Context, info: &Info) -> Result<Vec<Revision>> {
    let uid = text(&info.object, "/metadata/uid").to_owned();
    let selector = crate::selector::from_label_selector(&info.object["spec"]["selector"]).unwrap_or_default();
    let deployment = info.mapping.kind == "Deployment";
    let resource = if deployment { "replicasets" } else { "controllerrevisions" };
    let list = Request::get(format!("/apis/apps/v1/namespaces/{}/{resource}", info.namespace))
        .query("labelSelector", selector)
        .value(cx)
        .await?;
    let mut out = Vec::new();
    for o in items(&list) {
        let owned =
            o["metadata"]["ownerReferences"].as_array().is_some_and(|r| r.iter().any(|r| r["uid"] == uid.as_str()));
        if !owned {
            continue;
        }
        let revision = if deployment {
            text(&o, "/metadata/annotations/deployment.kubernetes.io~1revision").parse().unwrap_or(0)
        } else {
            o["revision"].as_i64().unwrap_or(0)
        };
        let cause = text(&o, "/metadata/annotations/kubernetes.io~1change-cause").to_owned();
        let template = if deployment { o["spec"]["template"].clone() } else { o["data"]["spec"]["template"].clone() };
        let mut object = o;
        if !deployment {
            object = info.object.clone();
            object["spec"]["template"] = template.clone();
        }
        if revision > 0 {
            out.push(Revision { number: revision, cause, template, object });
        }
    }
    out.compact_sort_by_key(|r| r.number);
    Ok(out)
}

async fn history(cx: &Context) -> Result<()> {
    let wanted = cx.flags.int("revision");
    if wanted < 0 {
        return Err(Failure::message(format!("revision must be a positive integer: {wanted}")));
    }
    let mut printer = cx.printer("", DryRun::None)?.typed();
    let (infos, unread) = named(cx).await?;
    let mut failures = Vec::new();
    for info in &infos {
        failures.extend(history_of(cx, info, wanted, &mut printer).await.err());
    }
    failures.extend(unread);
    Failure::all(failures)
}

async fn history_of(cx: &Context, info: &Info, wanted: i64, printer: &mut Printer) -> Result<()> {
    if let Some(failure) = unvisited(info, "history") {
        return Err(failure);
    }
    if !["Deployment", "DaemonSet", "StatefulSet"].contains(&info.mapping.kind.as_str()) {
        return Err(Failure::message(format!("no history viewer has been implemented for \"{}\"", info.mapping.kind)));
    }
    let all = revisions(cx, info).await?;
    if !printer.is_default() {
        if wanted > 0 && !all.iter().any(|r| r.number == wanted) {
            return Err(Failure::message("unable to find the specified revision"));
        }
        // A template alone is for the object itself.
        if !cx.flags.changed("output") {
            return cx.print(&printer.print(&info.object)?);
        }
        for revision in all.iter().filter(|r| wanted == 0 || r.number == wanted) {
            cx.print(&printer.print(&revision.object)?)?;
        }
        return Ok(());
    }
    let mut text = format!("{} \n", info.display());
    if wanted > 0 && all.is_empty() {
        cx.println(format!("{} with revision #{wanted}\nNo rollout history found.", info.display()))?;
        return Ok(());
    }
    if wanted > 0 {
        let Revision { cause, template, .. } = all
            .iter()
            .find(|r| r.number == wanted)
            .ok_or_else(|| Failure::message("unable to find the specified revision"))?;
        text = format!("{} with revision #{wanted}\n", info.display());
        text.push_str(&crate::describe::template_text(template, cause));
        cx.println(&text)?;
        return Ok(());
    }
    if all.is_empty() {
        cx.println(format!("{text}No rollout history found."))?;
        return Ok(());
    }
    let mut table = "REVISION\tCHANGE-CAUSE\n".to_owned();
    for Revision { number: revision, cause, .. } in &all {
        table.push_str(&format!("{revision}\t{}\n", if cause.is_empty() { "<none>" } else { cause }));
    }
    text.push_str(&TabWriter::describe_history().format(&table));
    cx.println(text)
}

async fn undo(cx: &Context) -> Result<()> {
    let dry_run = cx.dry_run()?;
    let mut printer = cx.printer("rolled back", dry_run)?.typed();
    let (infos, unread) = named(cx).await?;
    let mut failures = Vec::new();
    for info in &infos {
        failures.extend(undo_one(cx, info, dry_run, &mut printer).await.err());
    }
    failures.extend(unread);
    Failure::all(failures)
}

async fn undo_one(cx: &Context, info: &Info, dry_run: DryRun, printer: &mut Printer) -> Result<()> {
    let to = cx.flags.int("to-revision");
    printer.operation = with_dry_run("rolled back", dry_run);
    if !info.object["metadata"]["annotations"][objects::LAST_APPLIED].is_null() {
        cx.warn(&format!(
            "resource {}/{} was previously managed with 'kubectl apply'. Rolling back will not update the {} annotation, which may cause unexpected behavior on future 'kubectl apply' operations. Consider using 'kubectl apply' with your previous configuration file instead.",
            info.mapping.resource, info.name, objects::LAST_APPLIED
        ));
    }
    if let Some(failure) = unvisited(info, "rollbacker") {
        return Err(failure);
    }
    if !["Deployment", "DaemonSet", "StatefulSet"].contains(&info.mapping.kind.as_str()) {
        return Err(Failure::message(format!("no rollbacker has been implemented for \"{}\"", info.mapping.kind)));
    }
    let all = revisions(cx, info).await?;
    let current = &info.object["spec"]["template"];
    let target = if to > 0 {
        all.iter()
            .find(|r| r.number == to)
            .ok_or_else(|| Failure::message(format!("unable to find specified revision {to} in history")))?
    } else {
        all.len().checked_sub(2).and_then(|i| all.get(i)).ok_or_else(|| {
            Failure::message(match info.mapping.kind.as_str() {
                "Deployment" => format!("no rollout history found for deployment \"{}\"", info.name),
                _ => "no last revision to roll back to".to_owned(),
            })
        })?
    };
    if dry_run == DryRun::Client {
        // What would be rolled back to stands where others say what was done.
        printer.operation = with_dry_run(&crate::describe::template_text(&target.template, ""), dry_run);
        cx.print(&printer.print(&info.object)?)?;
        return Ok(());
    }
    if info.object["spec"]["paused"] == true {
        return Err(Failure::message(
            "you cannot rollback a paused deployment; resume it first with 'kubectl rollout resume' and try again",
        ));
    }
    let mut template = target.template.clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove("pod-template-hash");
    }
    if crate::describe::same_template(&template, current) {
        printer.operation = format!("skipped rollback (current template already matches revision {})", target.number);
        cx.print(&printer.print(&info.object)?)?;
        return Ok(());
    }
    // A whole-template replacement: JSON patch says exactly that.
    let patch = json!([{"op": "replace", "path": "/spec/template", "value": template}]);
    objects::patch(cx, info.path(), PatchKind::Json, patch.to_string(), dry_run, "").await?;
    cx.print(&printer.print(&info.object)?)
}

async fn change(cx: &Context, verb: &str) -> Result<()> {
    let manager = cx.flags.string("field-manager");
    let done = match verb {
        "restart" => "restarted",
        "pause" => "paused",
        _ => "resumed",
    };
    let mut failures = Vec::new();
    let (infos, unread) = named(cx).await?;
    if infos.is_empty() && unread.is_empty() {
        return none_found(cx);
    }
    for info in infos {
        let kind = info.mapping.kind.as_str();
        let paused = info.object["spec"]["paused"] == true;
        let name = info.display();
        let patch = match (verb, kind) {
            ("restart", "Deployment" | "DaemonSet" | "StatefulSet") => {
                if paused {
                    failures.push(Failure::message(format!(
                        "{} \"{}\" can't restart paused deployment (run rollout resume first)",
                        info.mapping.group_resource(),
                        info.name
                    )));
                    continue;
                }
                let now = jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string().replace("+00:00", "Z");
                if info.object["spec"]["template"]["metadata"]["annotations"][RESTARTED] == now {
                    failures.push(Failure::message(format!(
                        "failed to create patch for {}: if restart has already been triggered within the past second, please wait before attempting to trigger another",
                        info.name
                    )));
                    continue;
                }
                json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED: now}}}}})
            }
            ("pause" | "resume", "Deployment") => {
                if paused == (verb == "pause") {
                    let state = if paused { "is already paused" } else { "is not paused" };
                    failures.push(Failure::message(format!(
                        "{} \"{}\" {state}",
                        info.mapping.group_resource(),
                        info.name
                    )));
                    continue;
                }
                json!({"spec": {"paused": if verb == "pause" { json!(true) } else { Value::Null }}})
            }
            _ => {
                failures.push(Failure::message(
                    format!("{} \"{}\" {verb}ing is not supported", info.mapping.group_resource(), info.name)
                        .replace("pauseing", "pausing")
                        .replace("resumeing", "resuming"),
                ));
                continue;
            }
        };
        let object = objects::patch(
            cx,
            info.path(),
            PatchKind::for_type(&info.mapping),
            patch.to_string(),
            DryRun::None,
            &manager,
        )
        .await?;
        let mut printer = cx.printer(done, DryRun::None)?.typed();
        if printer.is_default() {
            cx.println(format!("{name} {done}"))?;
        } else {
            cx.print(&printer.print(&object)?)?;
        }
    }
    // A list in the list: upstream prints even one of these without its `error: `.
    if !unread.is_empty() {
        failures.push(Failure::Many(unread));
    }
    Failure::all(failures)
}
