//! `kubectl get`

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::discovery::Mapping;
use crate::failure::{Failure, Result};
use crate::printers::table::{Options as TableOptions, RowParts, TablePrinter};
use crate::printers::{Output, Printer, TabWriter, sort_objects, sort_rows};
use crate::request::{Request, TABLE};
use crate::resources::{self, Options, Selected, Selection, items, list_request};
use crate::watch::Watch;

pub(crate) const COMMAND: Command = Command {
    name: "get",
    usage: "[(-o|--output=)json|yaml|kyaml|name|go-template|go-template-file|template|templatefile|jsonpath|jsonpath-as-json|jsonpath-file|custom-columns|custom-columns-file|wide] (TYPE[.VERSION][.GROUP] [NAME | -l label] | TYPE[.VERSION][.GROUP]/NAME ...) [flags]",
    about: "Display one or many resources",
    examples: "  kubectl get pods\n  kubectl get deployment web -o yaml\n  kubectl get pods,services -l app=web -A\n  kubectl get pod web -o jsonpath='{.status.podIP}'\n  kubectl get pods --watch",
    flags: &[
        &[
            Flag::string("output", "json, yaml, kyaml, name, wide, custom-columns=…, custom-columns-file=…, jsonpath=…, jsonpath-as-json=…, jsonpath-file=…, go-template=…, go-template-file=…").short('o'),
            Flag::string("template", "Template text or file for the template formats."),
            Flag::bool("allow-missing-template-keys", "Print nothing for fields a template names and the object lacks.").default("true"),
            Flag::bool("show-managed-fields", "Keep managedFields in JSON and YAML."),
            Flag::bool("no-headers", "Leave the header line out."),
            Flag::bool("show-labels", "Show all labels in the last column."),
            Flag::slice("label-columns", "Labels to show as columns.").short('L'),
            Flag::string("sort-by", "JSONPath of the field to sort by, for example '{.metadata.name}'."),
            Flag::bool("show-kind", "Put the type before names."),
            Flag::bool("watch", "After listing, watch for changes.").short('w'),
            Flag::bool("watch-only", "Watch for changes without listing first."),
            Flag::bool("output-watch-events", "Print the event with each object."),
            Flag::bool("ignore-not-found", "A missing object is no error."),
            Flag::bool("server-print", "Let the server choose columns.").default("true"),
            Flag::string("raw", "Path to ask the server for as it is."),
            Flag::string("subresource", "Subresource to show: status, scale, resize."),
        ],
        flags::FILENAME,
        flags::SELECTOR,
        flags::FIELD_SELECTOR,
        flags::ALL_NAMESPACES,
        flags::CHUNK_SIZE,
    ],
    words: Words::Objects,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    let raw = cx.flags.string("raw");
    if !raw.is_empty() {
        if !cx.args().is_empty() {
            return Err(Failure::message("arguments may not be passed when --raw is specified"));
        }
        if !raw.starts_with('/') {
            return Err(Failure::message(format!(
                "--raw must be a valid URL path: parse \"{raw}\": invalid URI for request"
            )));
        }
        return get_raw(cx, &raw).await;
    }
    let output = Output::from_flags(&cx.flags)?;
    if cx.flags.bool("show-labels") && !output.is_human() {
        return Err(Failure::message(format!(
            "--show-labels option cannot be used with {} printer",
            cx.flags.string("output")
        )));
    }
    if cx.flags.bool("output-watch-events") && !(cx.flags.bool("watch") || cx.flags.bool("watch-only")) {
        return Err(Failure::message("--output-watch-events option can only be used with --watch or --watch-only"));
    }
    if cx.args().is_empty() && cx.flags.list("filename").is_empty() && cx.flags.string("kustomize").is_empty() {
        cx.eprintln("You must specify the type of resource to get. Use \"kubectl api-resources\" for a complete list of supported resources.\n");
    }
    let options = Options {
        types_alone: true,
        latest: true,
        missing: Some(cx.usage(
            "Required resource not specified.\nUse \"kubectl explain <resource>\" for a detailed description of that resource (e.g. kubectl explain pods).",
        )),
        ..Options::default()
    };
    let selected = resources::select(cx, &options).await?;
    if !cx.flags.string("subresource").is_empty()
        && selected.found.iter().any(|s| matches!(s, Selection::Collection { .. }))
    {
        return Err(Failure::message("subresource cannot be used when bulk resources are specified"));
    }
    if cx.flags.bool("watch") || cx.flags.bool("watch-only") {
        return crate::watch::in_time(cx, watch(cx, selected.complete()?, output)).await;
    }
    if output.is_human() { human(cx, selected, &output).await } else { generic(cx, selected, output).await }
}

async fn get_raw(cx: &Context, raw: &str) -> Result<()> {
    // As upstream's asks: some pages are text only.
    let body = Request::get(raw).accept("application/json, */*").stream(cx).await?;
    let mut stream = http_body_util::BodyExt::into_data_stream(body);
    while let Some(chunk) = stream.next().await {
        cx.write(&chunk.map_err(|e| Failure::message(e.to_string()))?)?;
        // A watch may say nothing more for a long time.
        cx.flush()?;
    }
    Ok(())
}

fn object_path(cx: &Context, mapping: &Mapping, namespace: &str, name: &str) -> String {
    let path = mapping.object_path(namespace, name);
    match cx.flags.string("subresource") {
        s if s.is_empty() => path,
        s => format!("{path}/{s}"),
    }
}

/// What a selection answered: one Table, list or object.
struct Fetched {
    mapping: Mapping,
    answer: Value,
    whole: bool,
}

async fn fetch(cx: &Context, selected: Selected, table: bool) -> (Vec<Fetched>, Vec<Failure>) {
    let sorted = !cx.flags.string("sort-by").is_empty();
    let adjust = |r: Request| {
        let r = if table { r.accept(TABLE) } else { r };
        let r = if table && !sorted { r.rows(row_parts(cx)) } else { r };
        r.query_if(table && sorted, "includeObject", "Object")
    };
    let ignore = cx.flags.bool("ignore-not-found");
    let (mut fetched, mut failures) = (Vec::new(), Vec::new());
    for selection in selected.found {
        let (mapping, result, whole) = match selection {
            Selection::One { mapping, namespace, name } => {
                let request = adjust(Request::get(object_path(cx, &mapping, &namespace, &name)));
                let result = request.value(cx).await;
                (mapping, result, false)
            }
            Selection::File(info) => {
                let request = adjust(Request::get(object_path(cx, &info.mapping, &info.namespace, &info.name)));
                (info.mapping.clone(), request.value(cx).await, false)
            }
            Selection::Collection { mapping, namespace } => {
                let result = if table && sorted {
                    adjust(list_request(cx, &mapping, &namespace)).value(cx).await
                } else {
                    resources::list_chunks(cx, &mapping, &namespace, adjust).await
                };
                (mapping, result, true)
            }
        };
        match result {
            Ok(answer) => fetched.push(Fetched { mapping, answer, whole }),
            Err(e) if ignore && e.is_not_found() => {}
            Err(e) => failures.push(e),
        }
    }
    if !selected.failures.is_empty() {
        failures.push(Failure::Many(selected.failures));
    }
    (fetched, failures)
}

/// What the options of a table show of its rows' objects.
fn row_parts(cx: &Context) -> RowParts {
    RowParts {
        namespace: cx.flags.bool("all-namespaces"),
        labels: cx.flags.bool("show-labels") || !cx.flags.list("label-columns").is_empty(),
    }
}

fn table_options(cx: &Context, output: &Output, mapping: &Mapping, with_kind: bool) -> TableOptions {
    TableOptions {
        no_headers: cx.flags.bool("no-headers"),
        wide: matches!(output, Output::Wide),
        with_namespace: cx.flags.bool("all-namespaces") && mapping.namespaced,
        kind_prefix: with_kind.then(|| format!("{}/", mapping.kind_group())),
        show_labels: cx.flags.bool("show-labels"),
        label_columns: cx.flags.list("label-columns"),
    }
}

async fn human(cx: &Context, selected: Selected, output: &Output) -> Result<()> {
    let (mut fetched, failures) = fetch(cx, selected, cx.flags.bool("server-print")).await;
    let sort = cx.flags.string("sort-by");
    if !sort.is_empty() {
        for f in &mut fetched {
            let sorted = if let Some(rows) = f.answer["rows"].as_array_mut() {
                // A field that no row has leaves nothing to show.
                if rows.len() > 1 && sort_rows(rows, &sort).is_err() {
                    rows.clear();
                }
                Ok(())
            } else if let Some(items) = f.answer["items"].as_array_mut() {
                sort_objects(items, &sort)
            } else {
                Ok(())
            };
            sorted.map_err(Failure::of)?;
        }
    }
    let kinds: Vec<(String, String)> =
        fetched.iter().map(|f| (f.mapping.group.clone(), f.mapping.resource.clone())).collect();
    let with_kind = cx.flags.bool("show-kind") || kinds.iter().any(|k| *k != kinds[0]);
    let mut tabs = TabWriter::table();
    let mut last: Option<Mapping> = None;
    let mut printer = TablePrinter::default();
    let mut pending = String::new();
    let mut written = false;
    let mut all_namespaced = !cx.flags.bool("all-namespaces");
    for f in &fetched {
        all_namespaced &= f.mapping.namespaced;
        if last.as_ref() != Some(&f.mapping) {
            let text = tabs.format(&pending);
            pending.clear();
            written |= !text.is_empty();
            cx.print(&text)?;
            tabs.forget();
            printer = TablePrinter::new(table_options(cx, output, &f.mapping, with_kind));
            let first = last.is_none();
            last = Some(f.mapping.clone());
            let lines = printer.print(&f.answer, None);
            // A blank line between the tables of two types, once something stands above it.
            if !first && written && !lines.is_empty() && !cx.flags.bool("no-headers") {
                cx.print("\n")?;
            }
            pending.push_str(&lines);
            continue;
        }
        pending.push_str(&printer.print(&f.answer, None));
    }
    let text = tabs.format(&pending);
    written |= !text.is_empty();
    cx.print(&text)?;
    if !written && !cx.flags.bool("ignore-not-found") && failures.is_empty() {
        if all_namespaced {
            cx.eprintln(format!("No resources found in {} namespace.", cx.namespace()?.0));
        } else {
            cx.eprintln("No resources found");
        }
    }
    Failure::all(failures)
}

async fn generic(cx: &Context, mut selected: Selected, output: Output) -> Result<()> {
    let implies_one = selected.implies_one;
    let unreadable = std::mem::take(&mut selected.failures);
    let by_name = matches!(output, Output::Name);
    let mut printer = Printer::with(output, cx.flags.bool("show-managed-fields"));
    let (fetched, mut failures) = fetch(cx, selected, false).await;
    failures.extend(unreadable);
    if implies_one && !failures.is_empty() {
        return Failure::all(failures);
    }
    let mut objects = Vec::new();
    for f in fetched {
        if f.whole && f.answer["items"].is_array() {
            objects.extend(items(&f.answer));
        } else {
            objects.push(f.answer);
        }
    }
    let sort = cx.flags.string("sort-by");
    if !sort.is_empty() {
        sort_objects(&mut objects, &sort).map_err(Failure::of)?;
    }
    if cx.flags.bool("ignore-not-found") && objects.is_empty() {
        return Failure::all(failures);
    }
    if by_name {
        for object in &objects {
            cx.print(&printer.print(object)?)?;
        }
        return Failure::all(failures);
    }
    // Several stand in a list, and so does nothing at all.
    let shown = match objects.as_mut_slice() {
        [one] if implies_one => one.take(),
        _ => json!({"apiVersion": "v1", "kind": "List", "items": objects, "metadata": {"resourceVersion": ""}}),
    };
    match printer.print(&shown) {
        Ok(text) => cx.print(&text)?,
        Err(failure) => failures.push(failure),
    }
    Failure::all(failures)
}

async fn watch(cx: &Context, selections: Vec<Selection>, output: Output) -> Result<()> {
    if selections.len() != 1 {
        return Err(Failure::message("you may only specify a single resource type"));
    }
    let Some(selection) = selections.into_iter().next() else { return Ok(()) };
    let human = output.is_human() && cx.flags.bool("server-print");
    let (mapping, namespace, name) = match selection {
        Selection::One { mapping, namespace, name } => (mapping, namespace, Some(name)),
        Selection::Collection { mapping, namespace } => (mapping, namespace, None),
        Selection::File(info) => (info.mapping.clone(), info.namespace.clone(), Some(info.name.clone())),
    };
    let mut table = TablePrinter::new(table_options(cx, &output, &mapping, cx.flags.bool("show-kind")));
    let mut tabs = TabWriter::table();
    let mut printer = Printer::with(output, cx.flags.bool("show-managed-fields"));
    let events = cx.flags.bool("output-watch-events");
    let mut show = |cx: &Context, kind: &str, object: &Value| -> Result<()> {
        let event = events.then_some(kind);
        let text = if human {
            tabs.format(&table.print(object, event))
        } else if events {
            printer.print(&json!({"type": kind, "object": object}))?
        } else {
            printer.print(object)?
        };
        cx.print(&text)?;
        cx.flush()
    };
    let accept = |r: Request| if human { r.accept(TABLE) } else { r };

    // The list gives the state and the version to watch from.
    let first = match &name {
        Some(name) => accept(Request::get(mapping.object_path(&namespace, name))).value(cx).await,
        None => resources::list_chunks(cx, &mapping, &namespace, accept).await,
    };
    let first = match first {
        Err(e) if e.is_not_found() && cx.flags.bool("ignore-not-found") => return Ok(()),
        other => other?,
    };
    if !cx.flags.bool("watch-only") {
        if human || name.is_some() {
            show(cx, "ADDED", &first)?;
        } else {
            for item in items(&first) {
                show(cx, "ADDED", &item)?;
            }
        }
    }
    let version = if name.is_some() && human {
        crate::objects::text(&first, "/rows/0/object/metadata/resourceVersion").to_owned()
    } else {
        crate::objects::text(&first, "/metadata/resourceVersion").to_owned()
    };
    let mut watch = Watch::open(
        cx,
        || {
            let mut request = accept(list_request(cx, &mapping, &namespace));
            if let Some(name) = &name {
                request = request.query("fieldSelector", format!("metadata.name={name}"));
            }
            request
        },
        version,
    )
    .knowing(&first);
    loop {
        let event = watch.next().await?;
        show(cx, &event.kind, &event.object)?;
    }
}
