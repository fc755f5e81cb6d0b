//! `config current-context|get-contexts|use-context|rename-context`

use api::sort::CompactSort as _;
use serde_json::json;

use super::{entry, merged, modify};
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::printers::TabWriter;

pub(super) const CURRENT: Command = Command {
    name: "current-context",
    usage: "[flags]",
    about: "Display the current-context",
    run: Some(|cx| Box::pin(current(cx))),
    ..Command::EMPTY
};
pub(super) const GET: Command = Command {
    name: "get-contexts",
    usage: "[(-o|--output=)name)]",
    about: "Describe one or many contexts",
    flags: &[&[Flag::bool("no-headers", "Leave the header line out."), Flag::string("output", "name.").short('o')]],
    words: Words::Contexts,
    run: Some(|cx| Box::pin(get(cx))),
    ..Command::EMPTY
};
pub(super) const USE: Command = Command {
    name: "use-context",
    aliases: &["use"],
    usage: "CONTEXT_NAME",
    about: "Set the current-context in a kubeconfig file",
    words: Words::Contexts,
    run: Some(|cx| Box::pin(use_context(cx))),
    ..Command::EMPTY
};
pub(super) const RENAME: Command = Command {
    name: "rename-context",
    usage: "CONTEXT_NAME NEW_NAME",
    about: "Rename a context from the kubeconfig file",
    words: Words::Contexts,
    run: Some(|cx| Box::pin(rename(cx))),
    ..Command::EMPTY
};

async fn current(cx: &Context) -> Result<()> {
    match merged(cx)?["current-context"].as_str().unwrap_or("") {
        "" => Err(Failure::message("current-context is not set")),
        name => cx.println(name),
    }
}

async fn get(cx: &Context) -> Result<()> {
    let config = merged(cx)?;
    let by_name = match cx.flags.string("output").as_str() {
        "" => false,
        "name" => true,
        other => {
            return Err(Failure::message(format!(
                "--output {other} is not available in kubectl config get-contexts; resetting to default output format"
            )));
        }
    };
    let current = config["current-context"].as_str().unwrap_or("");
    let mut names: Vec<String> = Vec::new();
    let mut failures = Vec::new();
    if cx.args().is_empty() {
        names.extend(
            config["contexts"].as_array().into_iter().flatten().filter_map(|c| Some(c["name"].as_str()?.to_owned())),
        );
    } else {
        for wanted in cx.args() {
            match entry(&config, "contexts", wanted) {
                Some(_) => names.push(wanted.clone()),
                None => failures.push(Failure::message(format!("context {wanted} not found"))),
            }
        }
    }
    names.compact_sort();
    let mut text = String::new();
    if !by_name && !cx.flags.bool("no-headers") {
        text.push_str("CURRENT\tNAME\tCLUSTER\tAUTHINFO\tNAMESPACE\n");
    }
    for name in names {
        let context = entry(&config, "contexts", &name).map(|e| e["context"].clone()).unwrap_or_default();
        if by_name {
            text.push_str(&format!("{name}\n"));
        } else {
            text.push_str(&format!(
                "{}\t{name}\t{}\t{}\t{}\n",
                if name == current { "*" } else { "" },
                context["cluster"].as_str().unwrap_or(""),
                context["user"].as_str().unwrap_or(""),
                context["namespace"].as_str().unwrap_or(""),
            ));
        }
    }
    cx.print(&TabWriter::table().format(&text))?;
    Failure::all(failures)
}

async fn use_context(cx: &Context) -> Result<()> {
    let [name] = cx.args() else {
        return Err(super::unexpected(cx, "Unexpected")?);
    };
    if entry(&merged(cx)?, "contexts", name).is_none() {
        return Err(Failure::message(format!("no context exists with the name: \"{name}\"")));
    }
    // The first file that sets a current context is the one that counts.
    modify(
        cx,
        |c| c["current-context"].as_str().is_some_and(|s| !s.is_empty()),
        |c| {
            c["current-context"] = json!(name);
            Ok(())
        },
    )?;
    cx.println(format!("Switched to context \"{name}\"."))
}

async fn rename(cx: &Context) -> Result<()> {
    let [old, new] = cx.args() else { return Err(super::unexpected(cx, "Unexpected")?) };
    let config = merged(cx)?;
    if entry(&config, "contexts", old).is_none() {
        return Err(Failure::message(format!(
            "cannot rename the context \"{old}\", it's not in {}",
            super::paths(cx).first().map(|p| p.display().to_string()).unwrap_or_default()
        )));
    }
    if entry(&config, "contexts", new).is_some() {
        return Err(Failure::message(format!(
            "cannot rename the context \"{old}\", the context \"{new}\" already exists in {}",
            super::paths(cx).first().map(|p| p.display().to_string()).unwrap_or_default()
        )));
    }
    modify(
        cx,
        |c| entry(c, "contexts", old).is_some(),
        |c| {
            for e in c["contexts"].as_array_mut().into_iter().flatten() {
                if e["name"] == *old {
                    e["name"] = json!(new);
                }
            }
            if c["current-context"] == *old {
                c["current-context"] = json!(new);
            }
            Ok(())
        },
    )?;
    cx.println(format!("Context \"{old}\" renamed to \"{new}\"."))
}
