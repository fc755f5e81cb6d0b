//! `kubectl events`

use api::sort::CompactSort as _;
use serde_json::Value;

use super::flags;
use crate::cli::{Command, Flag};
use crate::context::Context;
use crate::describe::{event_age, event_time};
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::printers::TabWriter;
use crate::request::{Request, namespace_segment};
use crate::resources::items;
use crate::watch::Watch;

pub(crate) const COMMAND: Command = Command {
    name: "events",
    usage: "[(-o|--output=)json|yaml|kyaml|name|go-template|go-template-file|template|templatefile|jsonpath|jsonpath-as-json|jsonpath-file] [--for TYPE/NAME] [--watch] [--types=Normal,Warning]",
    about: "List events",
    flags: &[
        flags::ALL_NAMESPACES,
        flags::OUTPUT,
        flags::CHUNK_SIZE,
        &[
            Flag::string("for", "Only events about this TYPE/NAME."),
            Flag::bool("watch", "Go on as events come.").short('w'),
            Flag::slice("types", "Only events of these types."),
            Flag::bool("no-headers", "Leave the header line out."),
        ],
    ],
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    let (namespace, _) = cx.namespace()?;
    let everywhere = cx.flags.bool("all-namespaces");
    let place = if everywhere { String::new() } else { format!("/namespaces/{}", namespace_segment(&namespace)?) };
    let path = format!("/api/v1{place}/events");
    let mut selector = Vec::new();
    let target = cx.flags.string("for");
    if !target.is_empty() {
        let (kind, name) =
            target.split_once('/').ok_or_else(|| Failure::message("--for must be in resource/name form"))?;
        if name.contains('/') {
            return Err(Failure::message("arguments in resource/name form may not have more than one slash"));
        }
        let mapping = cx.discovery()?.resolve(cx, kind).await.map_err(Failure::without_prefix)?;
        selector.push(format!("involvedObject.kind={}", mapping.kind));
        selector.push(format!("involvedObject.name={name}"));
    }
    let types = cx.flags.list("types");
    if types.iter().any(|t| !["normal", "warning"].contains(&t.to_lowercase().as_str())) {
        return Err(Failure::message("valid --types are Normal or Warning"));
    }
    let request = |path: &str| Request::get(path).query_if(!selector.is_empty(), "fieldSelector", selector.join(","));
    let list = request(&path).query("limit", cx.flags.int("chunk-size").to_string()).value(cx).await?;
    let wanted = |e: &Value| types.is_empty() || types.iter().any(|t| t.eq_ignore_ascii_case(text(e, "/type")));
    let mut events: Vec<Value> = items(&list).into_iter().filter(wanted).collect();
    events.compact_sort_by_key(event_time);
    let mut printer = crate::printers::Printer::new(&cx.flags, "")?;
    if !printer.is_default() && !events.is_empty() {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "EventList", "items": events, "metadata": {}});
        return cx.print(&printer.print(&list)?);
    }
    if events.is_empty() && !cx.flags.bool("watch") {
        let place = if everywhere {
            "No events found.".to_owned()
        } else {
            format!("No events found in {namespace} namespace.")
        };
        cx.eprintln(place);
        return Ok(());
    }
    let mut tabs = TabWriter::table();
    let mut lines = String::new();
    if !cx.flags.bool("no-headers") {
        lines.push_str(if everywhere { "NAMESPACE\t" } else { "" });
        lines.push_str("LAST SEEN\tTYPE\tREASON\tOBJECT\tMESSAGE\n");
    }
    events.iter().for_each(|e| lines.push_str(&line(e, everywhere)));
    cx.print(&tabs.format(&lines))?;
    cx.flush()?;
    if !cx.flags.bool("watch") {
        return Ok(());
    }
    let version = text(&list, "/metadata/resourceVersion").to_owned();
    let mut watch = Watch::open(cx, || request(&path), version).knowing(&list);
    let watching = async {
        loop {
            let event = watch.next().await?;
            if event.kind != "DELETED" && wanted(&event.object) {
                cx.print(&tabs.format(&line(&event.object, everywhere)))?;
                cx.flush()?;
            }
        }
    };
    crate::watch::in_time(cx, watching).await
}

fn line(e: &Value, with_namespace: bool) -> String {
    let namespace = if with_namespace { format!("{}\t", text(e, "/metadata/namespace")) } else { String::new() };
    format!(
        "{namespace}{}\t{}\t{}\t{}/{}\t{}\n",
        event_age(e, jiff::Timestamp::now()),
        text(e, "/type"),
        text(e, "/reason"),
        text(e, "/involvedObject/kind"),
        text(e, "/involvedObject/name"),
        text(e, "/message").trim()
    )
}
