//! `kubectl delete`

use std::time::Duration;

use serde_json::{Value, json};

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::{Context, DryRun, with_dry_run};
use crate::failure::{Failure, Result};
use crate::request::Request;
use crate::resources::{self, Info, Options, Selected};
use crate::watch::{Watch, persist};

pub(crate) const COMMAND: Command = Command {
    name: "delete",
    usage: "([-f FILENAME] | [-k DIRECTORY] | TYPE [(NAME | -l label | --all)])",
    about: "Delete resources by file names, stdin, resources and names, or by resources and label selector",
    examples: "  kubectl delete -f pod.yaml\n  kubectl delete pods,services -l app=web\n  kubectl delete pod web --now\n  kubectl delete pod web --grace-period=0 --force",
    flags: &[
        flags::FILENAME,
        flags::SELECTOR,
        flags::FIELD_SELECTOR,
        flags::ALL_NAMESPACES,
        flags::ALL,
        flags::DRY_RUN,
        &[
            Flag::string("output", "name: print only resource/name.").short('o'),
            Flag::string("cascade", "background, orphan or foreground: what happens to dependents.")
                .default("background")
                .bare("background"),
            Flag::bool("force", "Remove from the API at once and skip graceful ending."),
            Flag::int("grace-period", "-1", "Seconds to end in; negative leaves it to the object, 0 needs --force."),
            Flag::bool("ignore-not-found", "A missing object is a success."),
            Flag::bool("now", "End at once (like --grace-period=1)."),
            Flag::bool("wait", "Wait until the objects are gone.").default("true"),
            Flag::duration("timeout", "0s", "How long to wait; zero means as long as the object needs."),
            Flag::bool("interactive", "Ask before deleting.").short('i'),
            Flag::string("raw", "Path to delete as it is."),
        ],
    ],
    words: Words::Objects,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    let raw = cx.flags.string("raw");
    if !raw.is_empty() {
        let answer = Request::delete(raw, &json!({})).send(cx).await?;
        return cx.write(&answer.body);
    }
    let output = cx.flags.string("output");
    if !output.is_empty() && output != "name" {
        return Err(Failure::message(format!("unexpected -o output mode: {output}. We only support '-o name'")));
    }
    let dry_run = cx.dry_run()?;
    let grace = grace_period(cx)?;
    let force = cx.flags.bool("force");
    if grace == Some(0) && !force && cx.flags.changed("grace-period") {
        // Zero without --force means: as soon as the server says so, but do wait for it.
        cx.trace(4, "delete.go", "waiting for the deletion because --force was not given");
    }
    let cascade = propagation(cx)?;
    if force && (grace == Some(0) || grace.is_none()) {
        cx.warn("Immediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely.");
    }
    let named_files = !cx.flags.list("filename").is_empty() || !cx.flags.string("kustomize").is_empty();
    let ignore_missing = cx.flags.bool("ignore-not-found")
        || (!cx.flags.changed("ignore-not-found") && (cx.flags.bool("all") || !cx.flags.string("selector").is_empty()));
    let options = Options {
        missing: Some(Failure::message(if named_files {
            ""
        } else {
            "You must provide one or more resources by argument or filename.\nExample resource specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'\n   '<resource> <name>'\n   '<resource>'"
        })),
        ..Options::default()
    };
    let Selected { found: selections, failures: unread, .. } = resources::select(cx, &options).await?;
    let mut targets = Vec::new();
    let mut failures = Vec::new();
    for selection in selections {
        match selection {
            // What is named needs no reading first: one request deletes it.
            resources::Selection::One { mapping, namespace, name } => {
                targets.push(Info { mapping, namespace, name, object: Value::Null, source: String::new() });
            }
            resources::Selection::File(info) => targets.push(*info),
            collection => match collection.fetch(cx, false).await {
                Ok(found) => targets.extend(found),
                Err(e) => failures.push(e),
            },
        }
    }
    if cx.flags.bool("interactive") && !confirm(cx, &targets)? {
        return cx.println("deletion is cancelled");
    }
    if cx.flags.bool("all-namespaces") && cx.flags.changed("namespace") {
        cx.warn("--namespace is ignored with --all-namespaces");
    }
    let mut deleted: Vec<(Info, String)> = Vec::new();
    let found_any = !targets.is_empty();
    let mut warn_of_scope = cx.namespace()?.1 && !cx.flags.bool("all-namespaces");
    for info in targets {
        if warn_of_scope && !info.mapping.namespaced {
            cx.warn("deleting cluster-scoped resources, not scoped to the provided namespace");
            warn_of_scope = false;
        }
        if info.mapping.resource == "namespaces"
            && info.mapping.group.is_empty()
            && cx.flags.bool("force")
            && grace.is_none()
        {
            cx.trace(4, "delete.go", "namespaces end with their content");
        }
        let body = delete_options(if force && grace.is_none() { Some(0) } else { grace }, cascade, dry_run);
        let answer = if dry_run == DryRun::Client {
            info.get(cx).await
        } else {
            Request::delete(info.path(), &body).value(cx).await
        };
        match answer {
            Ok(answer) => {
                let uid =
                    answer["details"]["uid"].as_str().or(answer["metadata"]["uid"].as_str()).unwrap_or("").to_owned();
                print_deleted(cx, &info, &output, force && grace.unwrap_or(0) == 0, dry_run)?;
                cx.flush()?;
                deleted.push((info, uid));
            }
            Err(e) if ignore_missing && e.is_not_found() => {}
            Err(e) => failures.push(super::create_failure("deleting", &info, e)),
        }
    }
    if !found_any && failures.is_empty() && unread.is_empty() && output != "name" {
        cx.println("No resources found")?;
    }
    // With --force the server is believed, unless waiting was asked for; a dry run changes nothing.
    let believed = force && !cx.flags.changed("wait");
    if cx.flags.bool("wait") && dry_run == DryRun::None && !believed {
        for (info, uid) in &deleted {
            if let Err(e) = wait_gone(cx, info, uid, cx.flags.duration("timeout")).await {
                failures.push(e);
            }
        }
    }
    failures.extend(unread);
    Failure::all(failures)
}

fn grace_period(cx: &Context) -> Result<Option<i64>> {
    let mut grace = cx.flags.int("grace-period");
    if cx.flags.bool("now") {
        if grace != -1 {
            return Err(Failure::message("--now and --grace-period cannot be specified together"));
        }
        grace = 1;
    }
    if grace == 0 && !cx.flags.bool("force") {
        // Kept for compatibility: zero alone still ends gracefully, in one second.
        return Ok(Some(1));
    }
    if cx.flags.bool("force") && grace > 0 {
        return Err(Failure::message("--force and --grace-period greater than 0 cannot be specified together"));
    }
    Ok((grace >= 0).then_some(grace))
}

/// `--cascade` in the words of the API.
pub(super) fn propagation(cx: &Context) -> Result<&'static str> {
    match cx.flags.string("cascade").as_str() {
        "background" => Ok("Background"),
        "foreground" => Ok("Foreground"),
        "orphan" => Ok("Orphan"),
        "true" => {
            cx.warn("--cascade=true is deprecated (boolean value) and can be replaced with --cascade=background.");
            Ok("Background")
        }
        "false" => {
            cx.warn("--cascade=false is deprecated (boolean value) and can be replaced with --cascade=orphan.");
            Ok("Orphan")
        }
        other => Err(Failure::message(format!(
            "invalid cascade value ({other}). Must be \"background\", \"foreground\", or \"orphan\""
        ))),
    }
}

/// All of it in the body: a server reads no parameters of the query beside one, `dryRun` among them.
fn delete_options(grace: Option<i64>, propagation: &str, dry_run: DryRun) -> Value {
    let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation});
    if let Some(grace) = grace {
        options["gracePeriodSeconds"] = json!(grace);
    }
    if dry_run == DryRun::Server {
        options["dryRun"] = json!(["All"]);
    }
    options
}

/// For other commands that delete (apply --force, replace --force, prune, drain).
pub(crate) fn options(cx: &Context, force: bool, dry_run: DryRun) -> Value {
    let grace = if cx.flags.has_flag("grace-period") { cx.flags.int("grace-period") } else { -1 };
    let cascade = if cx.flags.has_flag("cascade") { propagation(cx).unwrap_or("Background") } else { "Background" };
    delete_options(if force { Some(0) } else { (grace >= 0).then_some(grace) }, cascade, dry_run)
}

fn print_deleted(cx: &Context, info: &Info, output: &str, forced: bool, dry_run: DryRun) -> Result<()> {
    if output == "name" {
        return cx.println(info.display());
    }
    let namespace =
        if info.namespace.is_empty() { String::new() } else { format!(" from {} namespace", info.namespace) };
    let operation = with_dry_run(&format!("{}deleted{namespace}", if forced { "force " } else { "" }), dry_run);
    cx.println(format!("{} \"{}\" {operation}", info.mapping.kind_group(), info.name))
}

fn confirm(cx: &Context, targets: &[Info]) -> Result<bool> {
    cx.println(format!("You are about to delete the following {} resource(s):", targets.len()))?;
    for info in targets {
        cx.println(info.display())?;
    }
    cx.print("Do you want to continue? (y/n): ")?;
    cx.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

/// Waits until the object is gone, or another of its name is there.
pub(crate) async fn wait_gone(cx: &Context, info: &Info, uid: &str, timeout: Duration) -> Result<()> {
    // Zero means for ever, which upstream spells as a week.
    let limit = if timeout.is_zero() { Duration::from_secs(7 * 24 * 3600) } else { timeout };
    let gone = async {
        loop {
            let live = match persist(async || info.get(cx).await).await {
                Ok(live) => live,
                Err(e) if e.is_not_found() => return Ok(()),
                Err(e) => return Err(e),
            };
            if !uid.is_empty() && live["metadata"]["uid"] != uid {
                return Ok(());
            }
            let version = crate::objects::text(&live, "/metadata/resourceVersion");
            let mut watch = Watch::object(cx, info.mapping.path(&info.namespace), &info.name, version);
            loop {
                match watch.next().await {
                    Ok(event) if event.kind == "DELETED" => return Ok(()),
                    // Made again while nobody watched.
                    Ok(event) if !uid.is_empty() && event.object["metadata"]["uid"] != uid => return Ok(()),
                    Ok(_) => {}
                    // A server that cannot watch this: look again.
                    Err(Failure::Status(_)) => break,
                    Err(e) => return Err(e),
                }
            }
        }
    };
    match tokio::time::timeout(limit, gone).await {
        Ok(result) => result,
        Err(_) => Err(Failure::message(format!(
            "timed out waiting for the condition on {}/{}",
            info.mapping.resource, info.name
        ))),
    }
}
