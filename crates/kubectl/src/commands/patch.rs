//! `kubectl patch` and `kubectl replace`

use serde_json::Value;

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::{Context, DryRun};
use crate::failure::{Failure, Result};
use crate::objects::{self, PatchKind};
use crate::request::Request;
use crate::resources::{self, Options, Selected, Selection};

pub(crate) const PATCH: Command = Command {
    name: "patch",
    usage: "(-f FILENAME | TYPE NAME) [-p PATCH|--patch-file FILE]",
    about: "Update fields of a resource",
    examples: "  kubectl patch node n1 -p '{\"spec\":{\"unschedulable\":true}}'\n  kubectl patch pod web --type=json -p '[{\"op\":\"replace\",\"path\":\"/spec/containers/0/image\",\"value\":\"nginx:2\"}]'",
    flags: &[
        flags::FILENAME,
        flags::OUTPUT,
        flags::DRY_RUN,
        flags::RECORD,
        flags::LOCAL,
        &[
            Flag::string("patch", "The patch, in JSON or YAML.").short('p'),
            Flag::string("patch-file", "File of the patch."),
            Flag::string("type", "json, merge or strategic.").default("strategic"),
            Flag::string("subresource", "Subresource to patch: status, scale, resize."),
            Flag::string("field-manager", "Name that owns the fields.").default("kubectl-patch"),
        ],
    ],
    words: Words::Objects,
    run: Some(|cx| Box::pin(patch(cx))),
    ..Command::EMPTY
};

pub(crate) const REPLACE: Command = Command {
    name: "replace",
    usage: "-f FILENAME",
    about: "Replace a resource by file name or stdin",
    examples: "  kubectl replace -f pod.json\n  kubectl replace --force -f pod.json",
    flags: &[
        flags::FILENAME,
        flags::OUTPUT,
        flags::DRY_RUN,
        flags::VALIDATE,
        flags::RECORD,
        flags::SAVE_CONFIG,
        &[
            Flag::string("cascade", "background, orphan or foreground, with --force.")
                .default("background")
                .bare("background"),
            Flag::string("field-manager", "Name that owns the fields.").default("kubectl-replace"),
            Flag::bool("force", "Delete and create again."),
            Flag::int("grace-period", "-1", "With --force: seconds to end in."),
            Flag::string("raw", "Path to put the file to as it is."),
            Flag::string("subresource", "Subresource to replace."),
            Flag::duration("timeout", "0s", "With --force: how long to wait until the old object is gone."),
            Flag::bool("wait", "Wait until the old object is gone."),
        ],
    ],
    run: Some(|cx| Box::pin(replace(cx))),
    ..Command::EMPTY
};

async fn patch(cx: &Context) -> Result<()> {
    let (inline, file) = (cx.flags.string("patch"), cx.flags.string("patch-file"));
    let text = match (inline.is_empty(), file.is_empty()) {
        (false, true) => inline,
        (true, false) => std::fs::read_to_string(&file).map_err(|e| {
            Failure::message(format!("unable to read patch file: {}", crate::go_errors::go_io_error("open", &file, &e)))
        })?,
        (true, true) => {
            return Err(Failure::message("must specify --patch or --patch-file containing the contents of the patch"));
        }
        (false, false) => return Err(Failure::message("cannot specify --patch and --patch-file together")),
    };
    // What looks like JSON goes to the server as it is, which has the last word on it anyway.
    let body = if text.trim_start().starts_with('{') {
        text
    } else {
        let value = crate::manifests::yaml(&text).map_err(|e| {
            let message = e.to_string();
            let cause = message.strip_prefix("error converting YAML to JSON: ").unwrap_or(&message);
            Failure::message(format!("unable to parse \"{text}\": {cause}"))
        })?;
        value.to_string()
    };
    let kind = match cx.flags.string("type").to_lowercase().as_str() {
        "json" => PatchKind::Json,
        "merge" => PatchKind::Merge,
        "strategic" => PatchKind::Strategic,
        other => {
            return Err(Failure::message(format!("--type must be one of [json merge strategic], not \"{other}\"")));
        }
    };
    let dry_run = cx.dry_run()?;
    let local = cx.flags.bool("local");
    let manager = cx.flags.string("field-manager");
    let subresource = cx.flags.string("subresource");
    let mut printer = cx.printer("", dry_run)?;
    if local && !cx.args().is_empty() {
        return Err(Failure::message("cannot specify --local and server resources"));
    }
    let (infos, unread) = resources::infos(cx, &Options { latest: !local, ..Options::default() }).await?;
    for info in infos {
        let object = if local || dry_run == DryRun::Client {
            let patch = serde_json::from_str(&body).map_err(|e| Failure::message(e.to_string()))?;
            apply_locally(&info, kind, &patch)?
        } else {
            let path = if subresource.is_empty() { info.path() } else { format!("{}/{subresource}", info.path()) };
            let patched = objects::patch(cx, path, kind, body.clone(), dry_run, &manager).await?;
            objects::record_patch(cx, info.path(), dry_run).await?.unwrap_or(patched)
        };
        let changed = object["metadata"]["resourceVersion"] != info.object["metadata"]["resourceVersion"]
            || object != info.object;
        if changed { "patched" } else { "patched (no change)" }.clone_into(&mut printer.operation);
        cx.print(&printer.print(&object)?)?;
    }
    Failure::all(unread)
}

pub(crate) fn apply_locally(info: &resources::Info, kind: PatchKind, patch: &Value) -> Result<Value> {
    let mut object = info.object.clone();
    let schema = crate::three_way::schema(&info.mapping.group, &info.mapping.kind);
    let done = match (kind, schema) {
        (PatchKind::Json, _) => api::patch::json::apply(&mut object, patch),
        (PatchKind::Strategic, Some(schema)) => api::patch::strategic::apply(&mut object, patch, &schema),
        (PatchKind::Strategic, None) if !crate::three_way::is_built_in(&info.mapping.group) => {
            return Err(Failure::message(format!(
                "strategic merge patch is not supported for {} locally, try --type merge",
                info.mapping.kind_text()
            )));
        }
        _ => api::patch::merge::apply(&mut object, patch),
    };
    done.map_err(|e| Failure::message(e.to_string()))?;
    Ok(object)
}

async fn replace(cx: &Context) -> Result<()> {
    for (flag, is_given) in
        [("grace-period", cx.flags.int("grace-period") >= 0), ("timeout", !cx.flags.duration("timeout").is_zero())]
    {
        if is_given && !cx.flags.bool("force") {
            return Err(Failure::message(format!("--{flag} must have --force specified")));
        }
    }
    if cx.flags.list("filename").is_empty() && cx.flags.string("kustomize").is_empty() {
        return Err(Failure::message("must specify one of -f and -k"));
    }
    super::delete::propagation(cx)?;
    let dry_run = cx.dry_run()?;
    let raw = cx.flags.string("raw");
    if !raw.is_empty() {
        return super::create::send_raw(cx, http::Method::PUT, &raw).await;
    }
    let manager = cx.flags.string("field-manager");
    let mut printer = cx.printer("replaced", dry_run)?;
    let mut failures = Vec::new();
    let Selected { found: selections, failures: unread, .. } = resources::select(cx, &Options::default()).await?;
    // All the old ones go first, so that none stands in the way of another's place.
    if cx.flags.bool("force") && dry_run == DryRun::None {
        for selection in &selections {
            if let Selection::File(info) = selection {
                remove(cx, info).await?;
            }
        }
    }
    for selection in selections {
        let Selection::File(mut info) = selection else { continue };
        objects::record(cx, &mut info.object);
        if cx.flags.bool("save-config") {
            let text = objects::last_applied(&info.object);
            objects::set_annotation(&mut info.object, objects::LAST_APPLIED, text);
        }
        let result = if dry_run == DryRun::Client {
            Ok(info.object.clone())
        } else if cx.flags.bool("force") {
            create_anew(cx, &info, &manager, dry_run).await
        } else {
            if let Err(e) = info.named() {
                failures.push(e.context(format!("error when replacing \"{}\"", info.source)));
                continue;
            }
            let subresource = cx.flags.string("subresource");
            let path = if subresource.is_empty() { info.path() } else { format!("{}/{subresource}", info.path()) };
            // Without a version the object is replaced whatever it is now.
            objects::replace(cx, path, &info.object, dry_run, &manager).await
        };
        match result {
            Ok(object) => cx.print(&printer.print(&object)?)?,
            Err(e) => failures.push(super::create_failure("replacing", &info, e)),
        }
    }
    failures.extend(unread);
    Failure::all(failures)
}

/// The deletion of `--force`.
async fn remove(cx: &Context, info: &resources::Info) -> Result<()> {
    match Request::delete(info.path(), &super::delete::options(cx, !cx.flags.changed("grace-period"), DryRun::None))
        .send(cx)
        .await
    {
        Ok(_) => {
            let namespace =
                if info.namespace.is_empty() { String::new() } else { format!(" from {} namespace", info.namespace) };
            cx.println(format!("{} \"{}\" deleted{namespace}", info.mapping.kind_group(), info.name))?;
            super::delete::wait_gone(cx, info, "", cx.flags.duration("timeout")).await
        }
        Err(e) if e.is_not_found() => Ok(()),
        Err(e) => Err(e),
    }
}

async fn create_anew(cx: &Context, info: &resources::Info, manager: &str, dry_run: DryRun) -> Result<Value> {
    let mut object = info.object.clone();
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("resourceVersion");
        meta.remove("uid");
    }
    objects::create(cx, &info.mapping, &info.namespace, &object, dry_run, manager).await
}
