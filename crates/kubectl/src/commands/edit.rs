//! `kubectl edit`

use serde_json::Value;

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::{Context, DryRun};
use crate::failure::{Failure, Result};
use crate::objects::{self, LAST_APPLIED, PatchKind};
use crate::printers::json;
use crate::resources::{self, Info, Options};

pub(crate) const COMMAND: Command = Command {
    name: "edit",
    usage: "(RESOURCE/NAME | -f FILENAME)",
    about: "Edit a resource on the server",
    examples: "  kubectl edit svc/web\n  KUBE_EDITOR=nano kubectl edit deployment/web",
    flags: &[
        flags::FILENAME,
        flags::OUTPUT,
        flags::VALIDATE,
        flags::SAVE_CONFIG,
        flags::RECORD,
        &[
            Flag::string("field-manager", "Name that owns the fields.").default("kubectl-edit"),
            Flag::bool("output-patch", "Print the patch."),
            Flag::string("subresource", "Subresource to edit."),
            flags::WINDOWS_LINE_ENDINGS,
        ],
    ],
    words: Words::Objects,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

const HEADER: &str = "# Please edit the object below. Lines beginning with a '#' will be ignored,\n# and an empty file will abort the edit. If an error occurs while saving this file will be\n# reopened with the relevant failures.\n#\n";

async fn run(cx: &Context) -> Result<()> {
    let infos = resources::all_infos(cx, &Options { latest: true, unchecked: true, ..Options::default() }).await?;
    edit_all(cx, infos, Mode::Patch).await
}

/// What becomes of an edited object.
#[derive(Clone, Copy)]
pub(super) enum Mode {
    /// The live one is changed.
    Patch,
    /// It is created (`create --edit`).
    Create,
}

/// Each object in the editor until it is accepted, left as it was, or emptied.
pub(super) async fn edit_all(cx: &Context, infos: Vec<Info>, mode: Mode) -> Result<()> {
    let as_json = match cx.flags.string("output").as_str() {
        "json" => true,
        "" | "yaml" | "kyaml" => false,
        other => {
            return Err(Failure::message(format!(
                "unable to match a printer suitable for the output format \"{other}\", allowed formats are: json,kyaml,yaml"
            )));
        }
    };
    for info in infos {
        let mut shown = info.object.clone();
        if let Some(meta) = shown["metadata"].as_object_mut() {
            meta.remove("managedFields");
        }
        let body = if as_json { json::pretty(&shown) } else { api::yaml::to_string(&shown) };
        let mut text = format!("{HEADER}{body}");
        loop {
            let given = if cx.flags.bool("windows-line-endings") { text.replace('\n', "\r\n") } else { text.clone() };
            let edited = crate::editor::edit_text(&given, if as_json { ".json" } else { ".yaml" })?;
            let content: String = edited.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
            if content.trim().is_empty() {
                cx.eprintln("Edit cancelled, saved file was empty.");
                break;
            }
            if content == body {
                cx.eprintln("Edit cancelled, no changes made.");
                break;
            }
            let sent = match crate::manifests::yaml(&content).map_err(Failure::of) {
                Ok(wanted) => send(cx, &info, &shown, wanted, mode).await,
                Err(e) => Err(e),
            };
            match sent {
                Ok(()) => break,
                // The same file with the same mistake: keep the person's work and stop.
                Err(e) if edited == given => {
                    let path = crate::editor::temporary_file(&edited, ".yaml")?;
                    cx.eprintln(format!("A copy of your changes has been stored to \"{}\"", path.display()));
                    return Err(e);
                }
                Err(e) => {
                    let reason: String = e.to_string().lines().map(|l| format!("# {l}\n")).collect();
                    text = format!("{HEADER}{reason}#\n{content}");
                }
            }
        }
    }
    Ok(())
}

async fn send(cx: &Context, info: &Info, shown: &Value, mut wanted: Value, mode: Mode) -> Result<()> {
    let manager = cx.flags.string("field-manager");
    if cx.flags.bool("save-config") {
        let text = objects::last_applied(&wanted);
        objects::set_annotation(&mut wanted, LAST_APPLIED, text);
    }
    objects::record(cx, &mut wanted);
    if let Mode::Create = mode {
        objects::create(cx, &info.mapping, &info.namespace, &wanted, DryRun::None, &manager).await?;
        return cx.println(format!(
            "{}/{} created",
            info.mapping.kind_group(),
            objects::text(&wanted, "/metadata/name")
        ));
    }
    if ["/apiVersion", "/kind", "/metadata/name"].iter().any(|field| shown.pointer(field) != wanted.pointer(field)) {
        return Err(Failure::message("At least one of apiVersion, kind and name was changed"));
    }
    let patch = objects::merge_diff(shown, &wanted);
    if cx.flags.bool("output-patch") {
        cx.println(format!("Patch: {patch}"))?;
    }
    objects::patch(cx, info.path(), PatchKind::Merge, patch.to_string(), DryRun::None, &manager).await?;
    cx.println(format!("{} edited", info.display()))
}
