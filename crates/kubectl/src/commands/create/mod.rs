//! `kubectl create`: from files, or one object from words (the generators, one per subcommand).

mod access;
mod config;
mod ingress;
mod policy;
mod service;
mod workload;

use serde_json::{Value, json};

use super::flags;
use crate::cli::{Command, Flag};
use crate::context::{Context, DryRun};
use crate::discovery::Mapping;
pub(crate) use crate::discovery::known;
use crate::failure::{Failure, Result};
use crate::objects;
use crate::request::Request;
use crate::resources::{self, Options, Selected, Selection};

pub(crate) use workload::{container_name, parse_ports};

pub(crate) const COMMAND: Command = Command {
    name: "create",
    usage: "-f FILENAME",
    about: "Create a resource from a file or from stdin",
    examples: "  kubectl create -f pod.yaml\n  kubectl create deployment web --image=nginx --replicas=3",
    flags: &[
        flags::FILENAME,
        flags::SELECTOR,
        flags::OUTPUT,
        flags::DRY_RUN,
        flags::VALIDATE,
        flags::SAVE_CONFIG,
        flags::RECORD,
        flags::MANAGER_CREATE,
        &[
            Flag::bool("edit", "Edit the object before it is created."),
            Flag::string("raw", "Path to send the file to as it is."),
            flags::WINDOWS_LINE_ENDINGS,
        ],
    ],
    subcommands: &[
        &access::CLUSTER_ROLE,
        &access::CLUSTER_ROLE_BINDING,
        &config::CONFIG_MAP,
        &workload::CRON_JOB,
        &workload::DEPLOYMENT,
        &ingress::COMMAND,
        &workload::JOB,
        &policy::NAMESPACE,
        &policy::POD_DISRUPTION_BUDGET,
        &policy::PRIORITY_CLASS,
        &policy::QUOTA,
        &access::ROLE,
        &access::ROLE_BINDING,
        &config::SECRET,
        &service::COMMAND,
        &access::SERVICE_ACCOUNT,
        &access::TOKEN,
    ],
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

/// The flags of every generator.
pub(super) const GENERATOR: &[Flag] = &[
    Flag::string("output", "Output format: json, yaml, kyaml, name, go-template, go-template-file, template, templatefile, jsonpath, jsonpath-as-json, jsonpath-file.").short('o'),
    Flag::string("template", "Template text or file for the template formats."),
    Flag::bool("allow-missing-template-keys", "Print nothing for fields a template names and the object lacks.").default("true"),
    Flag::bool("show-managed-fields", "Keep managedFields in JSON and YAML."),
    Flag::string("dry-run", "none, server or client.").default("none").bare("unchanged"),
    Flag::string("validate", "strict (or true), warn, ignore (or false).").default("strict").bare("strict"),
    Flag::bool("save-config", "Keep the object in its last-applied annotation."),
    Flag::string("field-manager", "Name that owns the fields.").default("kubectl-create"),
];

async fn run(cx: &Context) -> Result<()> {
    if !cx.args().is_empty() {
        return Err(cx.usage(format!("Unexpected args: [{}]", cx.args().join(" "))));
    }
    if cx.flags.list("filename").is_empty() && cx.flags.string("kustomize").is_empty() {
        return Err(Failure::message("must specify one of -f and -k"));
    }
    let raw = cx.flags.string("raw");
    if !raw.is_empty() {
        let clash = [("edit", cx.flags.bool("edit")), ("recursive", cx.flags.bool("recursive"))]
            .into_iter()
            .chain([("selector (-l)", !cx.flags.string("selector").is_empty())])
            .chain([("output", !cx.flags.string("output").is_empty())])
            .find(|(_, given)| *given);
        if let Some((flag, _)) = clash {
            return Err(Failure::message(format!("--raw and --{flag} are mutually exclusive")));
        }
        if !raw.starts_with('/') {
            return Err(Failure::message(format!(
                "--raw must be a valid URL path: parse \"{raw}\": invalid URI for request"
            )));
        }
        return send_raw(cx, http::Method::POST, &raw).await;
    }
    let dry_run = cx.dry_run()?;
    let manager = cx.flags.string("field-manager");
    let mut printer = cx.printer("created", dry_run)?;
    let Selected { found: selections, failures: unread, .. } = resources::select(cx, &Options::default()).await?;
    if selections.is_empty() && unread.is_empty() {
        return Err(Failure::message("no objects passed to create"));
    }
    if cx.flags.bool("edit") {
        let files =
            selections.into_iter().filter_map(|s| if let Selection::File(info) = s { Some(*info) } else { None });
        super::edit::edit_all(cx, files.collect(), super::edit::Mode::Create).await?;
        return Failure::all(unread);
    }
    let mut failures = Vec::new();
    for selection in selections {
        let Selection::File(mut info) = selection else { continue };
        if cx.flags.bool("save-config") {
            let text = objects::last_applied(&info.object);
            objects::set_annotation(&mut info.object, objects::LAST_APPLIED, text);
        }
        objects::record(cx, &mut info.object);
        let created = if dry_run == DryRun::Client {
            Ok(info.object.clone())
        } else {
            objects::create(cx, &info.mapping, &info.namespace, &info.object, dry_run, &manager).await
        };
        match created {
            Ok(object) => cx.print(&printer.print(&object)?)?,
            Err(e) => failures.push(in_operation("creating", &info.source, e)),
        }
    }
    failures.extend(unread);
    Failure::all(failures)
}

/// `AddSourceToErr`: a Status keeps its reason, its message says which file.
pub(super) fn in_operation(verb: &str, source: &str, failure: Failure) -> Failure {
    match &failure {
        Failure::Status(s) if s["reason"] == "Invalid" || source.is_empty() => failure,
        Failure::Status(_) => failure.context(format!("error when {verb} \"{source}\"")),
        _ => failure,
    }
}

/// `--raw` of create and replace: a file as it is, to a path as it is.
pub(super) async fn send_raw(cx: &Context, method: http::Method, raw: &str) -> Result<()> {
    let files = cx.flags.list("filename");
    let [file] = files.as_slice() else {
        return Err(Failure::message("--raw can only use a single local file or stdin"));
    };
    let bytes = if file == "-" { cx.read_stdin()? } else { std::fs::read(file)? };
    let answer = Request::new(method, raw).bytes(bytes).send(cx).await?;
    cx.write(&answer.body)
}

/// The one name a generator takes.
pub(super) fn name_argument(cx: &Context) -> Result<String> {
    let count = cx.flags.dash.unwrap_or(cx.args().len());
    match (count, cx.args().first()) {
        (1, Some(name)) => Ok(name.clone()),
        (n, _) => Err(cx.usage(format!("exactly one NAME is required, got {n}"))),
    }
}

/// What stands after `--`.
pub(super) fn command_words(cx: &Context) -> Vec<String> {
    match cx.flags.dash {
        Some(at) => cx.args()[at..].to_vec(),
        None => cx.args().get(1..).unwrap_or(&[]).to_vec(),
    }
}

pub(super) fn require(cx: &Context, names: &[&str]) -> Result<()> {
    let missing: Vec<String> = names.iter().filter(|n| !cx.flags.changed(n)).map(|n| format!("\"{n}\"")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::message(format!("required flag(s) {} not set", missing.join(", "))))
}

/// Sends (or, on a client dry run, only prints) a generated object.
pub(crate) async fn finish(cx: &Context, mapping: &Mapping, mut object: Value, wrap: &str) -> Result<()> {
    let dry_run = cx.dry_run()?;
    let mut printer = cx.printer("created", dry_run)?.typed();
    let (namespace, explicit) = cx.namespace()?;
    if mapping.namespaced && explicit {
        object["metadata"]["namespace"] = json!(namespace);
    }
    if cx.flags.bool("save-config") {
        let text = objects::as_generated(&object);
        objects::set_annotation(&mut object, objects::LAST_APPLIED, text);
    }
    if dry_run != DryRun::Client {
        let namespace = if mapping.namespaced { namespace } else { String::new() };
        let manager = cx.flags.string("field-manager");
        object = objects::create(cx, mapping, &namespace, &object, dry_run, &manager).await.map_err(|e| {
            // Most generators wrap the error into words and so lose its reason; the texts are compared by scripts.
            match (&e, wrap.is_empty()) {
                (Failure::Status(_), false) => Failure::message(format!("{wrap} {}", e.inner())),
                _ => e,
            }
        })?;
    }
    let text = printer.print(&object)?;
    cx.print(&text)
}
