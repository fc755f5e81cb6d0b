//! `config view`

use base64::Engine;
use serde_json::{Value, json};

use super::{LISTS, PATHS, merged_as_written};
use crate::cli::{Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::printers::Printer;

pub(super) const COMMAND: Command = Command {
    name: "view",
    usage: "[flags]",
    about: "Display merged kubeconfig settings or a specified kubeconfig file",
    flags: &[&[
        Flag::string("output", "yaml, json, jsonpath=…, go-template=…").short('o').default("yaml"),
        Flag::string("template", "Template text or file for the template formats."),
        Flag::bool("allow-missing-template-keys", "Print nothing for missing fields.").default("true"),
        Flag::bool("show-managed-fields", "Accepted for all printers; a kubeconfig has none."),
        Flag::bool("merge", "Merge the files.").default("true"),
        Flag::bool("flatten", "Put the content of certificate files into the output."),
        Flag::bool("minify", "Only what the current context uses."),
        Flag::bool("raw", "Certificates and secrets too."),
    ]],
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    if !cx.args().is_empty() {
        return Err(cx.usage(format!("unexpected arguments: [{}]", cx.args().join(" "))));
    }
    if !cx.flags.bool("merge") && cx.kubeconfig_path().is_none() {
        return Err(Failure::message("if merge==false a precise file must be specified"));
    }
    let mut config = merged_as_written(cx)?;
    let context = cx.flags.string("context");
    if !context.is_empty() {
        config["current-context"] = json!(context);
    }
    if cx.flags.bool("minify") {
        minify(&mut config)?;
    }
    if cx.flags.bool("flatten") {
        flatten(&mut config, &super::paths(cx))?;
    } else if !cx.flags.bool("raw") {
        redact(&mut config);
    }
    let mut printer = Printer::new(&cx.flags, "")?.typed();
    let text = printer.print(&config)?;
    cx.print(&text)
}

fn minify(config: &mut Value) -> Result<()> {
    let current = config["current-context"].as_str().unwrap_or("").to_owned();
    if current.is_empty() {
        return Err(Failure::message("current-context must exist in order to minify"));
    }
    let context = super::entry(config, "contexts", &current)
        .map(|e| e["context"].clone())
        .ok_or_else(|| Failure::message(format!("cannot locate context {current}")))?;
    for (list, name) in [
        ("contexts", current.as_str()),
        ("clusters", context["cluster"].as_str().unwrap_or("")),
        ("users", context["user"].as_str().unwrap_or("")),
    ] {
        if let Some(items) = config[list].as_array_mut() {
            items.retain(|e| e["name"] == name);
        }
    }
    Ok(())
}

/// Files are looked for beside each kubeconfig.
fn flatten(config: &mut Value, places: &[std::path::PathBuf]) -> Result<()> {
    for (list, value, key) in PATHS.iter().filter(|(_, _, key)| *key != "tokenFile") {
        for entry in config[*list].as_array_mut().into_iter().flatten() {
            if let Some(path) = entry[*value].get(*key).and_then(Value::as_str).map(str::to_owned) {
                let beside = |p: &std::path::PathBuf| p.parent().map(|dir| dir.join(&path));
                let found = places.iter().filter_map(beside).find(|p| p.exists()).unwrap_or(path.clone().into());
                let bytes = std::fs::read(&found)
                    .map_err(|e| Failure::message(crate::go_errors::go_io_error("open", &path, &e)))?;
                if let Some(map) = entry[*value].as_object_mut() {
                    map.remove(*key);
                    map.insert(format!("{key}-data"), json!(base64::engine::general_purpose::STANDARD.encode(bytes)));
                }
            }
        }
    }
    Ok(())
}

fn redact(config: &mut Value) {
    for (list, value) in LISTS {
        for entry in config[*list].as_array_mut().into_iter().flatten() {
            let Some(map) = entry[*value].as_object_mut() else { continue };
            for (key, v) in map.iter_mut() {
                match key.as_str() {
                    "certificate-authority-data" | "client-certificate-data" | "client-key-data" => {
                        *v = json!("DATA+OMITTED");
                    }
                    "token" | "password" => *v = json!("REDACTED"),
                    _ => {}
                }
            }
        }
    }
}
