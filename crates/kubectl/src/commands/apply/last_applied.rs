//! `apply view-last-applied`, `set-last-applied`, `edit-last-applied`

use serde_json::{Value, json};

use crate::cli::{Command, Flag, Words};
use crate::commands::flags;
use crate::context::{Context, DryRun};
use crate::failure::{Failure, Result};
use crate::objects::{self, LAST_APPLIED, PatchKind};
use crate::printers::json as json_text;
use crate::resources::{self, Info, Options};

pub(super) const VIEW: Command = Command {
    name: "view-last-applied",
    usage: "(TYPE [NAME | -l label] | TYPE/NAME | -f FILENAME)",
    about: "View the latest last-applied-configuration annotations of a resource/object",
    flags: &[
        flags::FILENAME,
        flags::SELECTOR,
        flags::ALL,
        &[Flag::string("output", "yaml or json.").short('o').default("yaml")],
    ],
    words: Words::Objects,
    run: Some(|cx| Box::pin(view(cx))),
    ..Command::EMPTY
};
pub(super) const SET: Command = Command {
    name: "set-last-applied",
    usage: "-f FILENAME",
    about: "Set the last-applied-configuration annotation on a live object to match the contents of a file",
    flags: &[
        flags::FILES_ONLY,
        flags::OUTPUT,
        flags::DRY_RUN,
        &[Flag::bool("create-annotation", "Make the annotation where there is none.")],
    ],
    run: Some(|cx| Box::pin(set(cx))),
    ..Command::EMPTY
};
pub(super) const EDIT: Command = Command {
    name: "edit-last-applied",
    usage: "(RESOURCE/NAME | -f FILENAME)",
    about: "Edit latest last-applied-configuration annotations of a resource/object",
    flags: &[
        flags::FILENAME,
        flags::OUTPUT,
        flags::VALIDATE,
        &[
            Flag::string("field-manager", "Name that owns the fields.").default("kubectl-client-side-apply"),
            flags::WINDOWS_LINE_ENDINGS,
        ],
    ],
    words: Words::Objects,
    run: Some(|cx| Box::pin(edit(cx))),
    ..Command::EMPTY
};

fn remembered(info: &Info) -> Result<Value> {
    let text = info.object["metadata"]["annotations"][LAST_APPLIED].as_str().ok_or_else(|| {
        Failure::message(format!("no last-applied-configuration annotation found on resource: {}", info.name))
    })?;
    serde_json::from_str(text).map_err(Failure::from)
}

async fn view(cx: &Context) -> Result<()> {
    let infos = resources::all_infos(cx, &Options { latest: true, ..Options::default() }).await?;
    if infos.is_empty() {
        return Err(Failure::message("no resources found"));
    }
    for info in infos {
        if info.object["metadata"]["annotations"][LAST_APPLIED].is_null() {
            continue;
        }
        let value = remembered(&info)?;
        cx.print(&match cx.flags.string("output").as_str() {
            "json" => json_text::two_spaces(&value) + "\n",
            "yaml" => api::yaml::to_string(&value),
            other => {
                return Err(
                    cx.usage(format!("Unexpected -o output mode: {other}, the flag 'output' must be one of yaml|json"))
                );
            }
        })?;
    }
    Ok(())
}

async fn set(cx: &Context) -> Result<()> {
    let dry_run = cx.dry_run()?;
    let mut printer = cx.printer("configured", dry_run)?;
    for info in resources::all_infos(cx, &Options::default()).await? {
        let live = info.get(cx).await?;
        if live["metadata"]["annotations"][LAST_APPLIED].is_null() && !cx.flags.bool("create-annotation") {
            return Err(Failure::message(format!(
                "no last-applied-configuration annotation found on resource: {}, to create the annotation, run the command with --create-annotation",
                info.name
            )));
        }
        let text = objects::as_applied(&info.object);
        if live["metadata"]["annotations"][LAST_APPLIED] == text {
            cx.println(format!("set-last-applied {}: no changes required.", info.name))?;
            continue;
        }
        let patch = json!({"metadata": {"annotations": {LAST_APPLIED: text}}});
        let result = if dry_run == DryRun::Client {
            live
        } else {
            objects::patch(cx, info.path(), PatchKind::Merge, patch.to_string(), dry_run, "").await?
        };
        cx.print(&printer.print(&result)?)?;
    }
    Ok(())
}

async fn edit(cx: &Context) -> Result<()> {
    let mut printer = cx.printer("edited", DryRun::None)?;
    for info in resources::all_infos(cx, &Options { latest: true, ..Options::default() }).await? {
        let before = remembered(&info)?;
        let text = crate::editor::edit_text(&api::yaml::to_string(&before), ".yaml")?;
        let after = crate::manifests::yaml(&text).map_err(Failure::of)?;
        if after == before {
            cx.eprintln("Edit cancelled, no changes made.");
            continue;
        }
        let patch = json!({"metadata": {"annotations": {LAST_APPLIED: objects::as_applied(&after)}}});
        let manager = cx.flags.string("field-manager");
        let result =
            objects::patch(cx, info.path(), PatchKind::Merge, patch.to_string(), DryRun::None, &manager).await?;
        cx.print(&printer.print(&result)?)?;
    }
    Ok(())
}
