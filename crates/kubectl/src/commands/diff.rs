//! `kubectl diff`: what `apply` would change, as the server sees it (dry run), shown by diff.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::flags;
use crate::cli::{Command, Flag};
use crate::context::{Context, DryRun};
use crate::failure::{Failure, Result};
use crate::objects;
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
            Flag::bool("prune", "Show what apply --prune would delete."),
            Flag::array("prune-allowlist", "group/version/kind to prune instead of the usual ones."),
            Flag::bool("show-secrets", "Show the values of secrets."),
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
    if !cx.args().is_empty() {
        return Err(cx.usage(format!("Unexpected args: [{}]", cx.args().join(" "))));
    }
    if cx.flags.list("filename").is_empty() && cx.flags.string("kustomize").is_empty() {
        return Err(Failure::message("must specify one of -f and -k"));
    }
    if cx.flags.bool("force-conflicts") && !cx.flags.bool("server-side") {
        return Err(Failure::message("--force-conflicts only works with --server-side"));
    }
    let (live, merged) = (new_folder("LIVE")?, new_folder("MERGED")?);
    let result = fill(cx, &live, &merged).await.and_then(|()| show(cx, &live, &merged));
    for dir in [live, merged] {
        let _ = std::fs::remove_dir_all(dir);
    }
    result
}

/// For us alone: others on this machine may not be let to see the objects.
fn new_folder(name: &str) -> std::io::Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("{name}-{}", rand::random_range(100_000_000..u32::MAX)));
    std::fs::DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

async fn fill(cx: &Context, live_dir: &std::path::Path, merged_dir: &std::path::Path) -> Result<()> {
    let mut seen: Vec<(Info, Value)> = Vec::new();
    for selection in resources::select(cx, &Options::default()).await?.complete()? {
        let Selection::File(info) = selection else { continue };
        let live = match info.get(cx).await {
            Ok(live) => Some(live),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Err(e),
        };
        let merged = merged(cx, &info, live.as_ref()).await?;
        let (mut live, mut merged) = (live, merged);
        if info.mapping.kind == "Secret" && info.mapping.group.is_empty() && !cx.flags.bool("show-secrets") {
            mask(live.as_mut(), &mut merged);
        }
        let name = file_name(&info);
        std::fs::write(live_dir.join(&name), live.as_ref().map(|o| text(cx, o)).unwrap_or_default())?;
        std::fs::write(merged_dir.join(&name), text(cx, &merged))?;
        seen.push((*info, merged));
    }
    if cx.flags.bool("prune") {
        let kept: Vec<(&Info, &Value)> = seen.iter().map(|(info, object)| (info, object)).collect();
        for gone in super::apply::prune::candidates(cx, &kept).await? {
            std::fs::write(live_dir.join(file_name(&gone)), text(cx, &gone.object))?;
        }
    }
    Ok(())
}

fn file_name(info: &Info) -> String {
    let version = info.mapping.api_version().replace('/', ".");
    format!("{version}.{}.{}.{}", info.mapping.kind, info.namespace, info.name)
}

fn text(cx: &Context, object: &Value) -> String {
    let mut object = object.clone();
    if let Some(meta) = object["metadata"].as_object_mut()
        && !cx.flags.bool("show-managed-fields")
    {
        meta.remove("managedFields");
    }
    api::yaml::to_string(&object)
}

/// Secret values are shown as stars that still tell whether they change.
fn mask(live: Option<&mut Value>, merged: &mut Value) {
    let mut nothing = Value::Null;
    let live = live.unwrap_or(&mut nothing);
    let keys: Vec<String> = [&*live, &*merged]
        .iter()
        .flat_map(|o| o["data"].as_object().into_iter().flat_map(|m| m.keys().cloned()))
        .collect();
    for key in keys {
        let (before, after) = (live["data"].get(&key).cloned(), merged["data"].get(&key).cloned());
        let both = before.is_some() && after.is_some();
        let (old, new) = if both && before != after { ("*** (before)", "*** (after)") } else { ("***", "***") };
        if before.is_some() {
            live["data"][&key] = Value::String(old.to_owned());
        }
        if after.is_some() {
            merged["data"][&key] = Value::String(new.to_owned());
        }
    }
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
    // Without the annotation of apply: what it would become is no difference that people ask about.
    let Some(live) = live else {
        return objects::create(cx, &info.mapping, &info.namespace, &info.object, DryRun::Server, &manager).await;
    };
    // What apply remembers has a map of annotations even where the file has none: its absence would remove them all.
    let mut modified = info.object.clone();
    if !modified["metadata"]["annotations"].is_object() {
        modified["metadata"]["annotations"] = json!({});
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_others_do_not_read_what_is_compared() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = new_folder("LIVE").unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        std::fs::remove_dir(&path).unwrap();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
    }
}
