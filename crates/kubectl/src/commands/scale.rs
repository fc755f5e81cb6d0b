//! `kubectl scale`

use serde_json::{Value, json};

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::{Context, DryRun, with_dry_run};
use crate::failure::{Failure, Result};
use crate::objects::{self, PatchKind};
use crate::request::Request;
use crate::resources::{self, Info, Options};

pub(crate) const COMMAND: Command = Command {
    name: "scale",
    usage: "[--resource-version=version] [--current-replicas=count] --replicas=COUNT (-f FILENAME | TYPE NAME)",
    about: "Set a new size for a deployment, replica set, or replication controller",
    examples: "  kubectl scale --replicas=3 deployment/web\n  kubectl scale --current-replicas=2 --replicas=3 deployment/web",
    flags: &[
        flags::FILENAME,
        flags::SELECTOR,
        flags::ALL,
        flags::OUTPUT,
        flags::DRY_RUN,
        flags::RECORD,
        &[
            Flag::int("replicas", "0", "The new number of replicas."),
            Flag::int("current-replicas", "-1", "Only scale when this is the current number."),
            Flag::string("resource-version", "Only scale when this is the current version."),
            Flag::duration("timeout", "0s", "How long to wait until the size is reached; zero does not wait."),
        ],
    ],
    words: Words::ObjectsOf(&["deployment", "replicaset", "replicationcontroller", "statefulset"]),
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    if !cx.flags.changed("replicas") {
        return Err(Failure::message("required flag(s) \"replicas\" not set"));
    }
    let replicas = cx.flags.int("replicas");
    if replicas < 0 {
        return Err(Failure::message(
            "The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0",
        ));
    }
    let dry_run = cx.dry_run()?;
    let mut printer = cx.printer("scaled", dry_run)?;
    // A dry run here takes a file at its word.
    let latest = dry_run != DryRun::Client;
    let (infos, unread) = resources::infos(cx, &Options { latest, ..Options::default() }).await?;
    if infos.is_empty() && unread.is_empty() {
        return Err(Failure::message("no objects passed to scale"));
    }
    let version = cx.flags.string("resource-version");
    if !version.is_empty() && infos.len() > 1 {
        return Err(Failure::message("cannot use --resource-version with multiple resources"));
    }
    for mut info in infos {
        // What is printed is the object as it is from now on.
        info.object["spec"]["replicas"] = json!(replicas);
        if dry_run == DryRun::Client {
            cx.print(&printer.print(&info.object)?)?;
            continue;
        }
        let path = format!("{}/scale", info.path());
        let current = cx.flags.int("current-replicas");
        if current >= 0 || !version.is_empty() {
            let scale = Request::get(path.clone()).value(cx).await?;
            let found = scale["spec"]["replicas"].as_i64().unwrap_or(0);
            if current >= 0 && found != current {
                return Err(Failure::message(format!("Expected replicas to be {current}, was {found}")));
            }
            if !version.is_empty() && scale["metadata"]["resourceVersion"] != version {
                return Err(Failure::message(format!(
                    "Expected resource version to be {version}, was {}",
                    scale["metadata"]["resourceVersion"].as_str().unwrap_or("")
                )));
            }
        }
        let patch = json!({"spec": {"replicas": replicas}});
        objects::patch(cx, path, PatchKind::Merge, patch.to_string(), dry_run, "kubectl-scale").await?;
        objects::record_patch(cx, info.path(), dry_run).await?;
        print_scaled(cx, &info, &mut printer, dry_run)?;
        let timeout = cx.flags.duration("timeout");
        if !timeout.is_zero() {
            super::wait::until(cx, &info, timeout, |o: &Value| {
                o["status"]["replicas"].as_i64().unwrap_or(0) == replicas
                    && o["status"]["observedGeneration"].as_i64() >= o["metadata"]["generation"].as_i64()
            })
            .await?;
        }
    }
    Failure::all(unread)
}

fn print_scaled(cx: &Context, info: &Info, printer: &mut crate::printers::Printer, dry_run: DryRun) -> Result<()> {
    if printer.is_default() {
        return cx.println(format!("{} {}", info.display(), with_dry_run("scaled", dry_run)));
    }
    cx.print(&printer.print(&info.object)?)
}
