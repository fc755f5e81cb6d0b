//! `kubectl diff`: what `apply` would change, as the server sees it (dry run), shown by diff.

use serde_json::Value;

use super::flags;
use crate::cli::{Command, Flag};
use crate::context::{Context, DryRun};
use crate::failure::{Failure, Result};
use crate::objects;
use crate::printers::yaml;
use crate::request::Request;
use crate::resources::{self, Info, Options, Selection};

pub(crate) const COMMAND: Command = Command {
    name: "diff",
    usage: "-f FILENAME",
    about: "Diff the live version against a would-be applied version",
    examples: "  kubectl diff -f deployment.yaml\n  cat service.yaml | kubectl diff -f -",
    flags: &[
        flags::FILENAME,
        flags::SELECTOR,
        &[
            Flag::bool("server-side", "Compare with a server-side apply."),
            Flag::bool("force-conflicts", "With --server-side: take fields over from other managers."),
            Flag::string("field-manager", "Name that owns the fields.").default("kubectl-client-side-apply"),
            Flag::bool("show-managed-fields", "Compare managedFields too."),
            Flag::int("concurrency", "1", "Objects to work on at once."),
        ],
    ],
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    // Differences end with 1, so every other failure ends above it.
    compare(cx).await.map_err(|e| match e {
        Failure::Exit(code) => Failure::Exit(code),
        other => Failure::ExitWith(other.to_string(), 2),
    })
}

async fn compare(cx: &Context) -> Result<()> {
    if cx.flags.list("filename").is_empty() && cx.flags.string("kustomize").is_empty() {
        return Err(Failure::message("must specify one of -f and -k"));
    }
    let unique: u32 = rand::random();
    let root = std::env::temp_dir().join(format!("kubectl-diff-{unique}"));
    let (live_dir, merged_dir) = (root.join("LIVE"), root.join("MERGED"));
    std::fs::create_dir_all(&live_dir)?;
    std::fs::create_dir_all(&merged_dir)?;
    let result = fill(cx, &live_dir, &merged_dir).await.and_then(|()| show(cx, &live_dir, &merged_dir));
    let _ = std::fs::remove_dir_all(&root);
    result
}

async fn fill(cx: &Context, live_dir: &std::path::Path, merged_dir: &std::path::Path) -> Result<()> {
    for selection in resources::select(cx, &Options::default()).await? {
        let Selection::File(info) = selection else { continue };
        let live = match info.get(cx).await {
            Ok(live) => Some(live),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Err(e),
        };
        let merged = merged(cx, &info, live.as_ref()).await?;
        let name = format!(
            "{}.{}.{}.{}",
            info.mapping.api_version().replace('/', "."),
            info.mapping.kind,
            info.namespace,
            info.name
        );
        let text = |o: &Value| {
            let mut o = o.clone();
            if let Some(meta) = o["metadata"].as_object_mut()
                && !cx.flags.bool("show-managed-fields")
            {
                meta.remove("managedFields");
            }
            yaml::to_string(&o)
        };
        std::fs::write(live_dir.join(&name), live.as_ref().map(text).unwrap_or_default())?;
        std::fs::write(merged_dir.join(&name), text(&merged))?;
    }
    Ok(())
}

async fn merged(cx: &Context, info: &Info, live: Option<&Value>) -> Result<Value> {
    let manager = cx.flags.string("field-manager");
    if cx.flags.bool("server-side") {
        return Request::patch(info.path(), "application/apply-patch+yaml", info.object.to_string())
            .query("fieldManager", if cx.flags.changed("field-manager") { manager } else { "kubectl".to_owned() })
            .query("force", if cx.flags.bool("force-conflicts") { "true" } else { "false" })
            .query("dryRun", "All")
            .value(cx)
            .await;
    }
    let mut modified = info.object.clone();
    let text = objects::last_applied(&modified);
    objects::set_annotation(&mut modified, objects::LAST_APPLIED, text);
    let Some(live) = live else {
        return objects::create(cx, &info.mapping, &info.namespace, &modified, DryRun::Server, &manager).await;
    };
    let (kind, patch) = super::apply::compute_patch(info, &modified, live);
    objects::patch(cx, info.path(), kind, patch.to_string(), DryRun::Server, &manager).await
}

fn show(cx: &Context, live: &std::path::Path, merged: &std::path::Path) -> Result<()> {
    let program = std::env::var("KUBECTL_EXTERNAL_DIFF")
        .ok()
        .filter(|p| !p.is_empty())
        .unwrap_or_else(|| "diff -u -N".to_owned());
    let mut words = program.split_whitespace();
    let name = words.next().unwrap_or("diff");
    let output = std::process::Command::new(name)
        .args(words)
        .arg(live)
        .arg(merged)
        .output()
        .map_err(|e| Failure::message(format!("failed to run \"{name}\": {e}")))?;
    cx.write(&output.stdout)?;
    cx.eprint(&String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(0) => Ok(()),
        Some(1) => Err(Failure::Exit(1)),
        code => Err(Failure::Exit(u8::try_from(code.unwrap_or(2)).unwrap_or(2))),
    }
}
