//! `kubectl kuberc view|set`: the file of preferences (see `kuberc`).

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::{Alone, Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::kuberc;
use crate::printers::{Output, Printer};

pub(crate) const COMMAND: Command = Command {
    name: "kuberc",
    about: "Manage kuberc configuration files",
    subcommands: &[&SET, &VIEW],
    alone: Alone::FailWithHelp,
    ..Command::EMPTY
};
const KUBERC: &[Flag] = &[Flag::string("kuberc", "Preferences file to work on.")];

/// As everywhere, but YAML unless asked otherwise.
const OUTPUT: &[Flag] = &[
    Flag::string("output", "Output format, as of get.").short('o').default("yaml"),
    Flag::string("template", "Template text, or the template's file for the -file formats."),
    Flag::bool("allow-missing-template-keys", "Print nothing for fields a template names and the object lacks.")
        .default("true"),
    Flag::bool("show-managed-fields", "Keep managedFields in JSON and YAML."),
];

const VIEW: Command = Command {
    name: "view",
    about: "Display the current kuberc configuration",
    examples: "  kubectl kuberc view\n  kubectl kuberc view -o json --kuberc=./my-kuberc",
    flags: &[OUTPUT, KUBERC],
    run: Some(|cx| Box::pin(view(cx))),
    ..Command::EMPTY
};
const SET: Command = Command {
    name: "set",
    usage: "--section (defaults|aliases) --command COMMAND",
    about: "Set values in the kuberc configuration",
    examples: "  kubectl kuberc set --section defaults --command get --option output=wide\n  kubectl kuberc set --section aliases --name getn --command get --prependarg nodes",
    flags: &[
        KUBERC,
        &[
            Flag::string("section", "Section to change: defaults, aliases or credentialplugin."),
            Flag::string("command", "Command to configure, such as get or 'set env'."),
            Flag::string("name", "Name of the alias."),
            Flag::string("policy", "Which credential plug-ins may run: AllowAll, DenyAll or Allowlist."),
            Flag::array("option", "Default of a flag (flag=value); may be repeated."),
            Flag::array("prependarg", "Word that an alias puts before the others; may be repeated."),
            Flag::array("appendarg", "Word that an alias puts after the others; may be repeated."),
            Flag::array("allowlist-entry", "Plug-in to allow (command=name); may be repeated."),
            Flag::bool("overwrite", "Replace an entry that is there."),
        ],
    ],
    words: Words::None,
    run: Some(|cx| Box::pin(set(cx))),
    ..Command::EMPTY
};

fn place(cx: &Context) -> Result<(PathBuf, bool)> {
    kuberc::place(&cx.flags.string("kuberc"))?
        .ok_or_else(|| Failure::message("KUBERC is disabled via KUBERC=off environment variable"))
}

fn load(text: &str) -> Result<Value> {
    crate::manifests::yaml(text).map_err(|e| Failure::message(format!("error parsing kuberc file: {e}")))
}

fn save(cx: &Context, file: &std::path::Path, mut preferences: Value) -> Result<()> {
    // The two lists are always written, as null when empty.
    for key in ["defaults", "aliases"] {
        if preferences[key].is_null() {
            preferences[key] = Value::Null;
        }
    }
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(file, api::yaml::to_string(&preferences))
        .map_err(|e| Failure::message(format!("failed to write kuberc file: {e}")))?;
    cx.println(format!("Updated {}", file.display()))
}

async fn view(cx: &Context) -> Result<()> {
    let (file, explicit) = place(cx)?;
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::message(format!("error reading kuberc file: {e}")));
        }
        Err(_) if explicit => {
            return Err(Failure::message(format!("kuberc file not found at {}", file.display())));
        }
        Err(_) => return offer(cx, &file),
    };
    let output = match Output::from_flags(&cx.flags)? {
        Output::Default => Output::Yaml,
        other => other,
    };
    cx.print(&Printer::with(output, true).print(&load(&text)?)?)
}

/// No file yet: one with careful defaults, if wanted.
fn offer(cx: &Context, file: &std::path::Path) -> Result<()> {
    cx.println(format!("kuberc file not found at {}", file.display()))?;
    cx.print("Would you like to generate a default kuberc file with recommended options? (y/N): ")?;
    cx.flush()?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    if !line.trim().eq_ignore_ascii_case("y") {
        return Ok(());
    }
    save(
        cx,
        file,
        json!({
            "apiVersion": "kubectl.config.k8s.io/v1beta1",
            "kind": "Preference",
            "defaults": [
                {"command": "apply", "options": [{"name": "server-side", "default": "true"}]},
                {"command": "delete", "options": [{"name": "interactive", "default": "true"}]},
            ],
        }),
    )
}

async fn set(cx: &Context) -> Result<()> {
    let refuse = |text: &str| Err(Failure::message(text));
    let flag = |name: &str| cx.flags.string(name);
    let (section, command, name) = (flag("section"), flag("command"), flag("name"));
    if !cx.flags.changed("section") {
        return refuse("required flag(s) \"section\" not set");
    }
    let (file, _) = place(cx)?;
    let (prepend, append) = (cx.flags.list("prependarg"), cx.flags.list("appendarg"));
    match section.as_str() {
        "aliases" if name.is_empty() => return refuse("--name is required when --section=aliases"),
        "defaults" if !name.is_empty() => return refuse("--name should not be specified when --section=defaults"),
        "defaults" if !(prepend.is_empty() && append.is_empty()) => {
            return refuse("--prependarg and --appendarg are only valid for --section=aliases");
        }
        "aliases" | "defaults" if command.is_empty() => {
            return refuse("--command is required when --section=aliases or --section=defaults");
        }
        "aliases" | "defaults" | "credentialplugin" => {}
        other => {
            return refuse(&format!(
                "--section must be \"defaults\", \"aliases\", or \"credentialplugin\", got: {other}"
            ));
        }
    }
    let mut preferences = match std::fs::read_to_string(&file) {
        Ok(text) if !text.trim().is_empty() => load(&text)?,
        _ => json!({"apiVersion": "kubectl.config.k8s.io/v1beta1", "kind": "Preference"}),
    };
    let mut options = Vec::new();
    for option in cx.flags.list("option") {
        let Some((flag, value)) = option.split_once('=') else {
            return refuse(&format!("invalid option format {option:?}, expected flag=value"));
        };
        options.push(json!({"name": flag.trim_start_matches('-'), "default": value}));
    }
    match section.as_str() {
        "credentialplugin" => set_policy(cx, &mut preferences)?,
        "defaults" => {
            let entry = json!({"command": command, "options": options});
            let taken = format!("defaults for command {command:?} already exist, use --overwrite to replace");
            put(&mut preferences, "defaults", "command", entry, cx.flags.bool("overwrite"), &taken)?;
        }
        _ => {
            let mut entry = json!({"name": name, "command": command});
            for (key, list) in
                [("prependArgs", json!(prepend)), ("appendArgs", json!(append)), ("options", json!(options))]
            {
                if list.as_array().is_some_and(|l| !l.is_empty()) {
                    entry[key] = list;
                }
            }
            let taken = format!("alias {name:?} already exists, use --overwrite to replace");
            put(&mut preferences, "aliases", "name", entry, cx.flags.bool("overwrite"), &taken)?;
        }
    }
    save(cx, &file, preferences)
}

/// Adds an entry, or replaces the parts of an existing one that were given.
fn put(preferences: &mut Value, list: &str, key: &str, entry: Value, overwrite: bool, taken: &str) -> Result<()> {
    if !preferences[list].is_array() {
        preferences[list] = json!([]);
    }
    let Some(entries) = preferences[list].as_array_mut() else { return Ok(()) };
    match entries.iter_mut().find(|e| e[key] == entry[key]) {
        Some(_) if !overwrite => Err(Failure::message(taken)),
        Some(existing) => {
            for (k, v) in entry.as_object().into_iter().flatten() {
                if v.as_array().is_none_or(|l| !l.is_empty()) {
                    existing[k] = v.clone();
                }
            }
            Ok(())
        }
        None => {
            entries.push(entry);
            Ok(())
        }
    }
}

fn set_policy(cx: &Context, preferences: &mut Value) -> Result<()> {
    let policy = cx.flags.string("policy");
    let entries = cx.flags.list("allowlist-entry");
    match (policy.as_str(), entries.is_empty()) {
        ("", _) => return Err(Failure::message("--policy is required when --section=credentialplugin")),
        ("AllowAll" | "DenyAll", true) => {
            if let Some(map) = preferences.as_object_mut() {
                map.remove("credentialPluginAllowlist");
            }
        }
        ("AllowAll" | "DenyAll", false) => {
            return Err(Failure::message(
                "--allowlist-entry may only be used when --section=credentialplugin and --policy=Allowlist",
            ));
        }
        ("Allowlist", true) => {
            return Err(Failure::message(
                "--allowlist-entry is required when --section=credentialplugin and --policy=Allowlist",
            ));
        }
        ("Allowlist", false) => {
            let (mut list, mut failures) = (Vec::new(), Vec::new());
            for pair in entries.iter().flat_map(|e| e.split(',')) {
                let wrong = match pair.split_once('=') {
                    Some(("command", value)) if !value.trim().is_empty() => {
                        list.push(json!({"command": value}));
                        continue;
                    }
                    Some(("command", _)) => "empty value in allowlist entry for field \"command\"".to_owned(),
                    Some(("name", _)) => {
                        "allowlist entry field \"name\" is deprecated, use \"command\" instead".to_owned()
                    }
                    Some((field, _)) => format!("unrecognized allowlist entry field: {field:?}"),
                    None => format!("improperly formatted allowlist entry: {pair:?}"),
                };
                failures.push(Failure::message(wrong));
            }
            Failure::all(failures)?;
            preferences["credentialPluginAllowlist"] = Value::Array(list);
        }
        (other, _) => {
            return Err(Failure::message(format!(
                " --policy must be  \"AllowAll\", \"DenyAll\", or \"Allowlist\", got: {other}"
            )));
        }
    }
    preferences["credentialPluginPolicy"] = json!(policy);
    Ok(())
}
