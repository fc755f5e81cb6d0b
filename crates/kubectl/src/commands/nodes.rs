//! `kubectl cordon|uncordon|drain|taint`

use std::time::Duration;

use serde_json::{Value, json};

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::{Context, DryRun, with_dry_run};
use crate::failure::{Failure, Result};
use crate::objects::{self, PatchKind, text};
use crate::request::Request;
use crate::resources::{self, Info, Options};

pub(crate) const CORDON: Command = Command {
    name: "cordon",
    usage: "NODE",
    about: "Mark node as unschedulable",
    flags: &[flags::SELECTOR, flags::DRY_RUN],
    words: Words::Named("nodes"),
    run: Some(|cx| Box::pin(cordon(cx, true))),
    ..Command::EMPTY
};
pub(crate) const UNCORDON: Command = Command {
    name: "uncordon",
    usage: "NODE",
    about: "Mark node as schedulable",
    flags: &[flags::SELECTOR, flags::DRY_RUN],
    words: Words::Named("nodes"),
    run: Some(|cx| Box::pin(cordon(cx, false))),
    ..Command::EMPTY
};
pub(crate) const DRAIN: Command = Command {
    name: "drain",
    usage: "NODE",
    about: "Drain node in preparation for maintenance",
    flags: &[
        flags::SELECTOR,
        flags::DRY_RUN,
        flags::CHUNK_SIZE,
        &[
            Flag::bool("delete-emptydir-data", "Go on although pods use emptyDir, whose data is lost."),
            Flag::bool("disable-eviction", "Delete instead of evicting; disruption budgets are not asked."),
            Flag::bool("force", "Go on although pods have no controller."),
            Flag::int("grace-period", "-1", "Seconds that each pod gets; negative leaves it to the pod."),
            Flag::bool("ignore-daemonsets", "Leave daemon set pods."),
            Flag::string("pod-selector", "Only pods with these labels."),
            Flag::int("skip-wait-for-delete-timeout", "0", "Do not wait for pods being deleted for longer than this."),
            Flag::duration("timeout", "0s", "How long to try; zero means for ever."),
        ],
    ],
    words: Words::Named("nodes"),
    run: Some(|cx| Box::pin(drain(cx))),
    ..Command::EMPTY
};
pub(crate) const TAINT: Command = Command {
    name: "taint",
    usage: "NODE NAME KEY_1=VAL_1:TAINT_EFFECT_1 ... KEY_N=VAL_N:TAINT_EFFECT_N",
    about: "Update the taints on one or more nodes",
    flags: &[
        flags::SELECTOR,
        flags::ALL,
        flags::DRY_RUN,
        flags::OUTPUT,
        flags::VALIDATE,
        &[
            Flag::bool("overwrite", "Change taints that are there already."),
            Flag::string("field-manager", "Name that owns the fields.").default("kubectl-taint"),
        ],
    ],
    words: Words::ObjectsOf(&["node"]),
    run: Some(|cx| Box::pin(taint(cx))),
    ..Command::EMPTY
};

async fn nodes(cx: &Context) -> Result<Vec<Info>> {
    if cx.args().is_empty() && !cx.flags.changed("selector") {
        return Err(cx.usage(format!("USAGE: {} NODE [flags]", cx.flags.command.name)));
    }
    if !cx.args().is_empty() && !cx.flags.string("selector").is_empty() {
        return Err(cx.usage("cannot specify both a node name and a --selector option"));
    }
    let mut args = Vec::new();
    // An empty selector chooses no node, and not all of them.
    if !cx.args().is_empty() || !cx.flags.string("selector").is_empty() {
        args.push("nodes".to_owned());
    }
    args.extend(cx.args().iter().map(|a| a.trim_start_matches("node/").trim_start_matches("nodes/").to_owned()));
    resources::all_infos(cx, &Options { latest: true, args: Some(args), ..Options::default() }).await
}

async fn cordon(cx: &Context, unschedulable: bool) -> Result<()> {
    let dry_run = cx.dry_run()?;
    for node in nodes(cx).await? {
        set_unschedulable(cx, &node, unschedulable, dry_run).await?;
    }
    Ok(())
}

async fn set_unschedulable(cx: &Context, node: &Info, wanted: bool, dry_run: DryRun) -> Result<()> {
    let verb = if wanted { "cordoned" } else { "uncordoned" };
    if (node.object["spec"]["unschedulable"] == true) == wanted {
        return cx.println(format!("node/{} {}", node.name, with_dry_run(&format!("already {verb}"), dry_run)));
    }
    if dry_run != DryRun::Client {
        let patch = json!({"spec": {"unschedulable": if wanted { json!(true) } else { Value::Null }}});
        objects::patch(cx, node.path(), PatchKind::Strategic, patch.to_string(), dry_run, "").await?;
    }
    cx.println(format!("node/{} {}", node.name, with_dry_run(verb, dry_run)))
}

/// What drain does with a pod.
enum Verdict {
    Evict,
    Skip,
    /// A daemon set pod: left, and mentioned.
    Ignore,
    Refuse(&'static str),
}

fn verdict(cx: &Context, pod: &Value) -> Verdict {
    let finished = api::pod::is_terminal_phase(text(pod, "/status/phase"));
    if !pod["metadata"]["annotations"][api::pod::MIRROR].is_null() {
        return Verdict::Skip;
    }
    // On a node that is gone, pods being deleted stay so for ever.
    if is_overdue(pod, cx.flags.int("skip-wait-for-delete-timeout")) {
        return Verdict::Skip;
    }
    let owner = pod["metadata"]["ownerReferences"].as_array().and_then(|o| o.iter().find(|o| o["controller"] == true));
    if owner.is_some_and(|o| o["kind"] == "DaemonSet") && !finished {
        return if cx.flags.bool("ignore-daemonsets") {
            Verdict::Ignore
        } else {
            Verdict::Refuse("cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)")
        };
    }
    let local = pod["spec"]["volumes"].as_array().is_some_and(|v| v.iter().any(|v| v["emptyDir"].is_object()));
    if local && !finished && !cx.flags.bool("delete-emptydir-data") {
        return Verdict::Refuse("cannot delete Pods with local storage (use --delete-emptydir-data to override)");
    }
    if owner.is_none() && !finished && !cx.flags.bool("force") {
        return Verdict::Refuse("cannot delete Pods that declare no controller (use --force to override)");
    }
    Verdict::Evict
}

async fn drain(cx: &Context) -> Result<()> {
    let dry_run = cx.dry_run()?;
    let all = nodes(cx).await?;
    for node in &all {
        set_unschedulable(cx, node, true, dry_run).await?;
    }
    let mut failed: Vec<(String, Failure)> = Vec::new();
    for node in &all {
        if let Err(e) = drain_one(cx, node, dry_run).await {
            cx.eprintln(format!(
                "error: unable to drain node \"{}\" due to error: {}, continuing command...",
                node.name,
                e.inner()
            ));
            failed.push((node.name.clone(), e));
            continue;
        }
        cx.println(format!("node/{} {}", node.name, with_dry_run("drained", dry_run)))?;
    }
    if failed.is_empty() {
        return Ok(());
    }
    cx.eprintln("There are pending nodes to be drained:");
    for (node, _) in &failed {
        cx.eprintln(format!(" {node}"));
    }
    let texts: Vec<String> = failed.iter().map(|(_, e)| e.inner()).collect();
    Err(Failure::ExitWith(texts.join("\n"), 1))
}

async fn drain_one(cx: &Context, node: &Info, dry_run: DryRun) -> Result<()> {
    let selector = cx.flags.string("pod-selector");
    let pods = resources::all_items(cx, || {
        Request::get("/api/v1/pods").query("fieldSelector", format!("spec.nodeName={}", node.name)).query_if(
            !selector.is_empty(),
            "labelSelector",
            selector.clone(),
        )
    })
    .await?;
    let (mut evict, mut warned, mut refused) = (Vec::new(), Vec::new(), Vec::<(&str, Vec<String>)>::new());
    for pod in pods {
        let name = format!("{}/{}", text(&pod, "/metadata/namespace"), text(&pod, "/metadata/name"));
        match verdict(cx, &pod) {
            Verdict::Evict => evict.push(pod),
            Verdict::Skip => {}
            Verdict::Ignore => warned.push(name),
            Verdict::Refuse(why) => match refused.iter_mut().find(|(w, _)| *w == why) {
                Some((_, names)) => names.push(name),
                None => refused.push((why, vec![name])),
            },
        }
    }
    if !refused.is_empty() {
        let parts: Vec<String> = refused.iter().map(|(why, names)| format!("{why}: {}", names.join(", "))).collect();
        return Err(Failure::message(if parts.len() > 1 { format!("[{}]", parts.join(", ")) } else { parts.concat() }));
    }
    if !warned.is_empty() {
        cx.eprintln(format!("Warning: ignoring DaemonSet-managed Pods: {}", warned.join(", ")));
    }
    let limit = match cx.flags.duration("timeout") {
        d if d.is_zero() => Duration::from_secs(7 * 24 * 3600),
        d => d,
    };
    for pod in &evict {
        let (ns, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
        cx.println(format!("evicting pod {ns}/{name}{}", if dry_run == DryRun::None { "" } else { " (dry run)" }))?;
    }
    cx.flush()?;
    if dry_run != DryRun::None {
        return Ok(());
    }
    // All at once: one pod that a budget holds back must not hold the others.
    let ended = futures_util::future::join_all(evict.iter().map(|pod| evict_and_wait(cx, pod, limit))).await;
    Failure::all(ended.into_iter().filter_map(Result::err).collect())
}

async fn evict_and_wait(cx: &Context, pod: &Value, limit: Duration) -> Result<()> {
    let info = Info {
        mapping: super::create::known("v1", "pods", "Pod", true),
        namespace: text(pod, "/metadata/namespace").to_owned(),
        name: text(pod, "/metadata/name").to_owned(),
        object: pod.clone(),
        source: String::new(),
    };
    let work = evict_pod(cx, &info.namespace, &info.name);
    tokio::time::timeout(limit, work).await.map_err(|_| {
        Failure::message(format!(
            "error when evicting pods/\"{}\" -n \"{}\": global timeout reached: {}",
            info.name,
            info.namespace,
            api::duration::format(limit)
        ))
    })??;
    tokio::select! {
        gone = super::delete::wait_gone(cx, &info, text(pod, "/metadata/uid"), limit) => {
            gone?;
            cx.println(format!("pod/{} evicted", info.name))?;
        }
        seconds = outlived(cx, &info) => {
            let name = &info.name;
            cx.println(format!("pod \"{name}\" has DeletionTimestamp older than {seconds} seconds, skipping"))?;
        }
    }
    cx.flush()
}

/// Ends when a pod should have been gone for longer than we are to wait: on a node that is away it never goes.
async fn outlived(cx: &Context, info: &resources::Info) -> i64 {
    let seconds = cx.flags.int("skip-wait-for-delete-timeout");
    if seconds <= 0 {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if info.get(cx).await.is_ok_and(|pod| is_overdue(&pod, seconds)) {
            return seconds;
        }
    }
}

fn is_overdue(pod: &Value, seconds: i64) -> bool {
    let deleted = text(pod, "/metadata/deletionTimestamp").parse::<jiff::Timestamp>();
    seconds > 0 && deleted.is_ok_and(|at| jiff::Timestamp::now().as_second() - at.as_second() > seconds)
}

async fn evict_pod(cx: &Context, namespace: &str, name: &str) -> Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let grace = cx.flags.int("grace-period");
    let mut options = json!({});
    if grace >= 0 {
        options["gracePeriodSeconds"] = json!(grace);
    }
    loop {
        let result = if cx.flags.bool("disable-eviction") {
            Request::delete(path.clone(), &options).send(cx).await
        } else {
            let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}, "deleteOptions": options});
            Request::post(format!("{path}/eviction"), &body).send(cx).await
        };
        match result {
            Ok(_) => return Ok(()),
            Err(e) if e.is_not_found() => return Ok(()),
            // A disruption budget says not now.
            Err(e) if e.code() == 429 => {
                cx.eprintln(format!(
                    "error when evicting pods/\"{name}\" -n \"{namespace}\" (will retry after 5s): {}",
                    e.inner()
                ));
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            Err(e) => {
                return Err(Failure::message(format!(
                    "error when evicting pods/\"{name}\" -n \"{namespace}\": {}",
                    e.inner()
                )));
            }
        }
    }
}

fn parse_taint(word: &str) -> Result<(String, Option<String>, Option<String>, bool)> {
    let (spec, remove) = word.strip_suffix('-').map_or((word, false), |s| (s, true));
    let (left, effect) = spec.split_once(':').map_or((spec, None), |(l, e)| (l, Some(e.to_owned())));
    let (key, value) = left.split_once('=').map_or((left, None), |(k, v)| (k, Some(v.to_owned())));
    if let Some(e) = &effect
        && !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&e.as_str())
    {
        return Err(Failure::message(format!(
            "invalid taint effect: {e}, unsupported taint effect\nSee 'kubectl taint -h' for help and examples"
        )));
    }
    if key.is_empty() || (!remove && effect.is_none()) {
        return Err(Failure::message(format!("invalid taint spec: {word}")));
    }
    Ok((key.to_owned(), value, effect, remove))
}

async fn taint(cx: &Context) -> Result<()> {
    let words = cx.args();
    let at = words.iter().position(|w| w.contains([':', '=']) || w.ends_with('-')).unwrap_or(words.len());
    if at == 0 || !["node", "nodes", "no"].contains(&words[0].as_str()) && !words[0].starts_with("node") {
        return Err(Failure::message(if words.is_empty() {
            "one or more resources must be specified as <resource> <name>".to_owned()
        } else {
            format!("invalid resource type {}, only node types are supported", words[0])
        }));
    }
    let taints = words[at..].iter().map(|w| parse_taint(w)).collect::<Result<Vec<_>>>()?;
    if taints.is_empty() {
        return Err(Failure::message("at least one taint update is required"));
    }
    let dry_run = cx.dry_run()?;
    let manager = cx.flags.string("field-manager");
    let infos =
        resources::all_infos(cx, &Options { latest: true, args: Some(words[..at].to_vec()), ..Options::default() })
            .await?;
    for info in infos {
        let mut list = info.object["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let (mut added, mut removed, mut replaced) = (false, false, false);
        for (key, value, effect, remove) in &taints {
            let same = |t: &Value| t["key"] == *key && effect.as_ref().is_none_or(|e| t["effect"] == *e);
            if *remove {
                let before = list.len();
                list.retain(|t| !same(t));
                if list.len() == before {
                    return Err(Failure::message(format!(
                        "taint \"{key}{}\" not found",
                        effect.as_ref().map(|e| format!(":{e}")).unwrap_or_default()
                    )));
                }
                removed = true;
                continue;
            }
            if list.iter().any(same) && !cx.flags.bool("overwrite") {
                return Err(Failure::message(format!(
                    "node {} already has {key} taint(s) with same effect(s) and --overwrite is false",
                    info.name
                )));
            }
            replaced |= list.iter().any(same);
            list.retain(|t| !same(t));
            let mut t = json!({"key": key, "effect": effect});
            if let Some(v) = value.as_ref().filter(|v| !v.is_empty()) {
                t["value"] = json!(v);
            }
            list.push(t);
            added = true;
        }
        let operation = match (added, removed) {
            (true, true) => "modified",
            _ if replaced => "modified",
            (false, true) => "untainted",
            _ => "tainted",
        };
        let mut object = info.object.clone();
        object["spec"]["taints"] = if list.is_empty() { Value::Null } else { json!(list) };
        if dry_run != DryRun::Client {
            let patch = json!({"spec": {"taints": object["spec"]["taints"]}});
            object = objects::patch(cx, info.path(), PatchKind::Merge, patch.to_string(), dry_run, &manager).await?;
        }
        // Upstream says the same whether the run is dry or not.
        let mut printer = cx.printer(operation, DryRun::None)?.typed();
        cx.print(&printer.print(&object)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_parse() {
        let s = |t: &str| Some(t.to_owned());
        assert_eq!(parse_taint("a=b:NoSchedule").unwrap(), ("a".to_owned(), s("b"), s("NoSchedule"), false));
        assert_eq!(parse_taint("a:NoExecute-").unwrap(), ("a".to_owned(), None, s("NoExecute"), true));
        assert_eq!(parse_taint("a-").unwrap(), ("a".to_owned(), None, None, true));
        assert!(parse_taint("a=b").is_err() && parse_taint("a:Sometimes").is_err());
    }
}
