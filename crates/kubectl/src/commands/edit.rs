//! `kubectl edit`

use serde_json::{Value, json};

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::{Context, DryRun};
use crate::failure::{Failure, Result};
use crate::objects::{self, LAST_APPLIED, PatchKind};
use crate::printers::json::pretty;
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
    let infos =
        resources::all_infos(cx, &Options { latest: true, types_alone: true, unchecked: true, ..Options::default() })
            .await?;
    if infos.is_empty() {
        return Err(Failure::message("edit cancelled, no objects found"));
    }
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

/// The objects in the editor until they are accepted, left as they were, or emptied: new ones by themselves, live ones
/// as a list.
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
    let at_once = match mode {
        Mode::Patch => infos.len(),
        Mode::Create => 1,
    };
    for together in infos.chunks(at_once.max(1)) {
        edit(cx, together, mode, as_json).await?;
    }
    Ok(())
}

async fn edit(cx: &Context, infos: &[Info], mode: Mode, as_json: bool) -> Result<()> {
    let mut shown: Vec<Value> = infos.iter().map(|info| info.object.clone()).collect();
    for meta in shown.iter_mut().filter_map(|object| object["metadata"].as_object_mut()) {
        meta.remove("managedFields");
    }
    let whole = match shown.as_slice() {
        [one] => one.clone(),
        many => json!({"apiVersion": "v1", "items": many, "kind": "List", "metadata": {}}),
    };
    let body = if as_json { pretty(&whole) } else { api::yaml::to_string(&whole) };
    let mut text = format!("{HEADER}{body}");
    loop {
        let given = if cx.flags.bool("windows-line-endings") { text.replace('\n', "\r\n") } else { text.clone() };
        let edited = crate::editor::edit_text(&given, if as_json { ".json" } else { ".yaml" })?;
        let content: String = edited.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
        if content.trim().is_empty() {
            cx.eprintln("Edit cancelled, saved file was empty.");
            return Ok(());
        }
        if content == body {
            cx.eprintln("Edit cancelled, no changes made.");
            return Ok(());
        }
        let sent = match crate::manifests::yaml(&content).map_err(Failure::of) {
            Ok(wanted) => send_all(cx, infos, &shown, wanted, mode).await,
            Err(e) => Err(e),
        };
        match sent {
            Ok(()) => return Ok(()),
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

/// What was edited, each object to where it came from. Those that were taken out of a list stay as they are.
async fn send_all(cx: &Context, infos: &[Info], shown: &[Value], mut wanted: Value, mode: Mode) -> Result<()> {
    if let ([info], [shown]) = (infos, shown) {
        return send(cx, info, shown, wanted, mode).await;
    }
    let Some(Value::Array(items)) = wanted.get_mut("items").map(Value::take) else {
        return Err(Failure::message("the edited list has no items"));
    };
    let mut failures = Vec::new();
    for item in items {
        let is_same = |shown: &&Value| IDENTITY.iter().all(|field| shown.pointer(field) == item.pointer(field));
        match infos.iter().zip(shown).find(|(_, shown)| is_same(shown)) {
            None => failures.push(Failure::message(RENAMED)),
            Some((info, shown)) if *shown == item => cx.println(format!("{} skipped", info.display()))?,
            Some((info, shown)) => failures.extend(send(cx, info, shown, item, mode).await.err()),
        }
    }
    Failure::all(failures)
}

/// What cannot be edited: an object is known by it.
const IDENTITY: [&str; 4] = ["/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"];
const RENAMED: &str = "At least one of apiVersion, kind and name was changed";

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
    if IDENTITY[..3].iter().any(|field| shown.pointer(field) != wanted.pointer(field)) {
        return Err(Failure::message(RENAMED));
    }
    let patch = objects::merge_diff(shown, &wanted);
    if cx.flags.bool("output-patch") {
        cx.println(format!("Patch: {patch}"))?;
    }
    objects::patch(cx, info.path(), PatchKind::Merge, patch.to_string(), DryRun::None, &manager).await?;
    cx.println(format!("{} edited", info.display()))
}
