//! `kubectl config`: reading and changing kubeconfig files.
//!
//! Files are handled as plain values, so that what we do not know in them survives a change. A change goes to the file
//! that already holds the entry, else to the first of `$KUBECONFIG` that exists, else to the last.

mod contexts;
mod entries;
mod view;

use std::path::PathBuf;

use api::sort::CompactSort as _;
use client::kubeconfig::Kubeconfig;
use serde_json::{Value, json};

use crate::cli::{Alone, Command};
use crate::context::Context;
use crate::failure::{Failure, Result};

pub(crate) const COMMAND: Command = Command {
    name: "config",
    about: "Modify kubeconfig files",
    subcommands: &[
        &contexts::CURRENT,
        &entries::DELETE_CLUSTER,
        &entries::DELETE_CONTEXT,
        &entries::DELETE_USER,
        &entries::GET_CLUSTERS,
        &contexts::GET,
        &entries::GET_USERS,
        &contexts::RENAME,
        &entries::SET,
        &entries::SET_CLUSTER,
        &entries::SET_CONTEXT,
        &entries::SET_CREDENTIALS,
        &entries::UNSET,
        &contexts::USE,
        &view::COMMAND,
    ],
    alone: Alone::FailWithHelp,
    ..Command::EMPTY
};

fn read(path: &PathBuf) -> Result<Value> {
    if !path.exists() {
        return Ok(json!({}));
    }
    let text = std::fs::read_to_string(path)?;
    let value = crate::manifests::yaml(&text)
        .map_err(|e| Failure::message(format!("error loading config file \"{}\": {e}", path.display())))?;
    Ok(if value.is_null() { json!({}) } else { value })
}

fn write(path: &PathBuf, config: &Value) -> Result<()> {
    let mut config = config.clone();
    for (key, default) in [("apiVersion", json!("v1")), ("kind", json!("Config")), ("current-context", json!(""))] {
        if config[key].is_null() {
            config[key] = default;
        }
    }
    for (list, _) in LISTS {
        if let Some(items) = config[*list].as_array_mut() {
            items.compact_sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
        } else {
            config[*list] = Value::Null;
        }
    }
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
        relative_paths(&mut config, dir);
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    Ok(std::io::Write::write_all(&mut file, api::yaml::to_string(&config).as_bytes())?)
}

/// The lists of a kubeconfig and the key of their values.
const LISTS: &[(&str, &str)] = &[("clusters", "cluster"), ("contexts", "context"), ("users", "user")];

fn paths(cx: &Context) -> Vec<PathBuf> {
    Kubeconfig::paths(cx.kubeconfig_path().as_deref())
}

/// The wrong number of words: the command's help, then the failure.
fn unexpected(cx: &Context, how: &str) -> Result<Failure> {
    cx.print(&crate::cli::help(cx.flags.command, &cx.flags.path))?;
    Ok(Failure::message(format!("{how} args: [{}]", cx.args().join(" "))))
}

/// Every file merged, the first to name something winning.
fn merged(cx: &Context) -> Result<Value> {
    if let Some(path) = cx.kubeconfig_path()
        && !path.exists()
    {
        return Err(Failure::message(format!("stat {}: no such file or directory", path.display())));
    }
    merged_as_written(cx)
}

/// The same with the files' own paths, and without any when there is none.
fn merged_as_written(cx: &Context) -> Result<Value> {
    let mut out = json!({"apiVersion": "v1", "kind": "Config", "current-context": ""});
    for path in paths(cx) {
        let config = read(&path)?;
        if out["current-context"] == "" && config["current-context"].is_string() {
            out["current-context"] = config["current-context"].clone();
        }
        if out["preferences"].is_null() && config["preferences"].as_object().is_some_and(|p| !p.is_empty()) {
            out["preferences"] = config["preferences"].clone();
        }
        for (list, _) in LISTS {
            for entry in config[*list].as_array().into_iter().flatten() {
                if !out[*list].is_array() {
                    out[*list] = json!([]);
                }
                let known = out[*list].as_array().is_some_and(|l| l.iter().any(|e| e["name"] == entry["name"]));
                if let (false, Some(target)) = (known, out[*list].as_array_mut()) {
                    target.push(entry.clone());
                }
            }
        }
    }
    for (list, _) in LISTS {
        match out[*list].as_array_mut() {
            Some(items) => items.compact_sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str())),
            None => out[*list] = Value::Null,
        }
    }
    Ok(out)
}

/// The fields that hold paths: list, value, field.
const PATHS: &[(&str, &str, &str)] = &[
    ("clusters", "cluster", "certificate-authority"),
    ("users", "user", "client-certificate"),
    ("users", "user", "client-key"),
    ("users", "user", "tokenFile"),
];

/// Paths below the kubeconfig are written relative to it, so that the directory can move.
fn relative_paths(config: &mut Value, dir: &std::path::Path) {
    let dir = std::path::absolute(dir).unwrap_or(dir.to_owned());
    for (list, value, key) in PATHS {
        for entry in config[*list].as_array_mut().into_iter().flatten() {
            let Some(path) = entry[*value].get(*key).and_then(Value::as_str) else { continue };
            if let Ok(below) = std::path::Path::new(path).strip_prefix(&dir) {
                entry[*value][*key] = json!(below.to_string_lossy());
            }
        }
    }
}

/// Changes the file that owns `list`'s entry `name` (or, for a new one, the file for new things).
fn modify<T>(cx: &Context, owns: impl Fn(&Value) -> bool, change: impl FnOnce(&mut Value) -> Result<T>) -> Result<T> {
    let paths = paths(cx);
    let mut chosen = None;
    for path in &paths {
        if path.exists() && owns(&read(path)?) {
            chosen = Some(path.clone());
            break;
        }
    }
    let path = chosen
        .or_else(|| paths.iter().find(|p| p.exists()).cloned())
        .or_else(|| paths.last().cloned())
        .ok_or_else(|| Failure::message("no kubeconfig file to write: $HOME is not set"))?;
    let mut config = read(&path)?;
    let result = change(&mut config)?;
    write(&path, &config)?;
    Ok(result)
}

fn entry<'a>(config: &'a Value, list: &str, name: &str) -> Option<&'a Value> {
    config[list].as_array()?.iter().find(|e| e["name"] == name)
}

/// The entry's value, made when absent; true when it was there.
fn entry_mut<'a>(config: &'a mut Value, list: &str, key: &str, name: &str) -> (&'a mut Value, bool) {
    if !config[list].is_array() {
        config[list] = json!([]);
    }
    let at = config[list].as_array().and_then(|l| l.iter().position(|e| e["name"] == name));
    let existed = at.is_some();
    let index = at.unwrap_or_else(|| {
        let items = config[list].as_array_mut().map(|l| {
            l.push(json!({"name": name, key: {}}));
            l.len() - 1
        });
        items.unwrap_or(0)
    });
    let slot = &mut config[list][index][key];
    if !slot.is_object() {
        *slot = json!({});
    }
    (slot, existed)
}
