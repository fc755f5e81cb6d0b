//! `kubectl set image|env|resources|selector|serviceaccount|subject`

use api::selector::{Operator, Requirement};
use serde_json::{Value, json};

use super::flags;
use crate::cli::{Alone, Command, Flag};
use crate::context::{Context, DryRun};
use crate::failure::{Failure, Result};
use crate::objects::{self, PatchKind, text};
use crate::resources::{self, Info, Options};

pub(crate) const COMMAND: Command = Command {
    name: "set",
    about: "Set specific features on objects",
    subcommands: &[&ENV, &IMAGE, &RESOURCES, &SELECTOR, &SERVICE_ACCOUNT, &SUBJECT],
    alone: Alone::FailWithHelp,
    ..Command::EMPTY
};

const WRITE: &[Flag] = &[
    Flag::bool("all", "All objects of the given types."),
    Flag::bool("local", "Work on the files only, without asking the server."),
    Flag::string("field-manager", "Name that owns the fields.").default("kubectl-set"),
];

const IMAGE: Command = Command {
    name: "image",
    usage: "(-f FILENAME | TYPE NAME) CONTAINER_NAME_1=CONTAINER_IMAGE_1 ... CONTAINER_NAME_N=CONTAINER_IMAGE_N",
    about: "Update the image of a pod template",
    flags: &[WRITE, flags::FILENAME, flags::SELECTOR, flags::OUTPUT, flags::DRY_RUN, flags::RECORD],
    run: Some(|cx| Box::pin(image(cx))),
    ..Command::EMPTY
};
const ENV: Command = Command {
    name: "env",
    usage: "RESOURCE/NAME KEY_1=VAL_1 ... KEY_N=VAL_N",
    about: "Update environment variables on a pod template",
    flags: &[
        WRITE,
        flags::FILENAME,
        flags::SELECTOR,
        flags::OUTPUT,
        flags::DRY_RUN,
        &[
            Flag::string("containers", "Containers to change; * stands for all.").short('c').default("*"),
            Flag::slice("env", "KEY=VALUE to set.").short('e'),
            Flag::string("from", "configmap/NAME or secret/NAME to take variables from."),
            Flag::slice("keys", "Keys to take with --from."),
            Flag::string("prefix", "Prefix of names taken with --from."),
            Flag::bool("list", "Show the variables."),
            Flag::bool("resolve", "With --list: show the values of references."),
            Flag::bool("overwrite", "Change variables that are there already.").default("true"),
        ],
    ],
    run: Some(|cx| Box::pin(env(cx))),
    ..Command::EMPTY
};
const RESOURCES: Command = Command {
    name: "resources",
    usage: "(-f FILENAME | TYPE NAME)  ([--limits=LIMITS & --requests=REQUESTS]",
    about: "Update resource requests/limits on objects with pod templates",
    flags: &[
        WRITE,
        flags::FILENAME,
        flags::SELECTOR,
        flags::OUTPUT,
        flags::DRY_RUN,
        flags::RECORD,
        &[
            Flag::string("containers", "Containers to change; * stands for all.").short('c').default("*"),
            Flag::string("limits", "cpu=100m,memory=256Mi"),
            Flag::string("requests", "cpu=100m,memory=256Mi"),
        ],
    ],
    run: Some(|cx| Box::pin(set_resources(cx))),
    ..Command::EMPTY
};
const SELECTOR: Command = Command {
    name: "selector",
    usage: "(-f FILENAME | TYPE NAME) EXPRESSIONS [--resource-version=version]",
    about: "Set the selector on a resource",
    flags: &[
        WRITE,
        flags::FILES_BELOW,
        flags::OUTPUT,
        flags::DRY_RUN,
        flags::RECORD,
        &[Flag::string("resource-version", "Only change when this is the current version.")],
    ],
    run: Some(|cx| Box::pin(selector(cx))),
    ..Command::EMPTY
};
const SERVICE_ACCOUNT: Command = Command {
    name: "serviceaccount",
    aliases: &["sa"],
    usage: "(-f FILENAME | TYPE NAME) SERVICE_ACCOUNT",
    about: "Update the service account of a resource",
    flags: &[WRITE, flags::FILENAME, flags::OUTPUT, flags::DRY_RUN, flags::RECORD],
    run: Some(|cx| Box::pin(service_account(cx))),
    ..Command::EMPTY
};
const SUBJECT: Command = Command {
    name: "subject",
    usage: "(-f FILENAME | TYPE NAME) [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname] [--dry-run=server|client|none]",
    about: "Update the user, group, or service account in a role binding or cluster role binding",
    flags: &[
        WRITE,
        flags::FILENAME,
        flags::SELECTOR,
        flags::OUTPUT,
        flags::DRY_RUN,
        &[
            Flag::slice("user", "User to add."),
            Flag::slice("group", "Group to add."),
            Flag::slice("serviceaccount", "Service account to add, as namespace:name."),
        ],
    ],
    run: Some(|cx| Box::pin(subject(cx))),
    ..Command::EMPTY
};

async fn targets(cx: &Context, words: Vec<String>) -> Result<Vec<Info>> {
    if cx.flags.bool("local") && !words.is_empty() {
        return Err(Failure::message(
            "you must specify resources by --filename when --local is set.\nExample resource specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'",
        ));
    }
    resources::all_infos(cx, &Options { latest: !cx.flags.bool("local"), args: Some(words), ..Options::default() })
        .await
}

/// Changes each object and sends the difference.
async fn change(
    cx: &Context,
    infos: Vec<Info>,
    done: &str,
    failed: &str,
    edit: impl Fn(&Info, &mut Value) -> Result<()>,
) -> Result<()> {
    let dry_run = cx.dry_run()?;
    let manager = cx.flags.string("field-manager");
    let mut printer = cx.printer(done, dry_run)?.typed();
    let mut failures = Vec::new();
    for info in infos {
        let mut wanted = info.object.clone();
        if let Err(e) = edit(&info, &mut wanted) {
            failures.push(e);
            continue;
        }
        // Image, env and resources say nothing when there is nothing to do.
        let quiet = !matches!(cx.flags.command.name, "serviceaccount" | "selector");
        if wanted == info.object && !cx.flags.bool("local") && quiet {
            continue;
        }
        objects::record(cx, &mut wanted);
        let object = if cx.flags.bool("local") || dry_run == DryRun::Client {
            wanted
        } else {
            let mut patch = objects::merge_diff(&info.object, &wanted);
            if cx.flags.has_flag("resource-version") && !cx.flags.string("resource-version").is_empty() {
                patch["metadata"]["resourceVersion"] = json!(cx.flags.string("resource-version"));
            }
            match objects::patch(cx, info.path(), PatchKind::Merge, patch.to_string(), dry_run, &manager).await {
                Ok(object) => object,
                Err(e) if failed.is_empty() => {
                    failures.push(e);
                    continue;
                }
                Err(e) => {
                    failures.push(Failure::message(format!("{failed} {}", e.inner())));
                    continue;
                }
            }
        };
        cx.print(&printer.print(&object)?)?;
    }
    Failure::all(failures)
}

/// An error about one object, which it names.
fn about(cx: &Context, info: &Info, text: &str) -> Failure {
    let kind = if cx.flags.bool("local") { info.mapping.kind.to_lowercase() } else { info.mapping.resource.clone() };
    Failure::message(format!("{kind}/{} {text}", info.name))
}

fn no_template(cx: &Context, info: &Info) -> Failure {
    let text = format!(
        "the object is not a pod or does not have a pod template: *{}.{}",
        info.mapping.version, info.mapping.kind
    );
    about(cx, info, &text)
}

/// Words up to the first `a=b`, and the pairs.
fn split_pairs(cx: &Context) -> (Vec<String>, Vec<String>) {
    let at = cx.args().iter().position(|w| w.contains('=') || w.ends_with('-')).unwrap_or(cx.args().len());
    (cx.args()[..at].to_vec(), cx.args()[at..].to_vec())
}

fn containers<'a>(cx: &Context, info: &Info, object: &'a mut Value) -> Result<Vec<&'a mut Value>> {
    let spec = objects::pod_spec_mut(object).and_then(Value::as_object_mut).ok_or_else(|| no_template(cx, info))?;
    Ok(spec
        .iter_mut()
        .filter(|(k, _)| *k == "containers" || *k == "initContainers")
        .flat_map(|(_, v)| v.as_array_mut().into_iter().flatten())
        .collect())
}

async fn image(cx: &Context) -> Result<()> {
    let (words, pairs) = split_pairs(cx);
    let infos = targets(cx, words).await?;
    if pairs.is_empty() {
        return Err(Failure::message("at least one image update is required"));
    }
    let pairs: Vec<(String, String)> =
        pairs.iter().filter_map(|p| p.split_once('=')).map(|(n, i)| (n.to_owned(), i.to_owned())).collect();
    if pairs.len() > 1 && pairs.iter().any(|(name, _)| name == "*") {
        return Err(Failure::message(
            "all containers are already specified by *, but saw more than one container_name=container_image pairs",
        ));
    }
    change(cx, infos, "image updated", "failed to patch image update to pod template:", |info, object| {
        let mut all = containers(cx, info, object)?;
        for (name, image) in &pairs {
            let mut found = false;
            for c in all.iter_mut().filter(|c| name == "*" || c["name"] == *name) {
                c["image"] = json!(image);
                found = true;
            }
            if !found {
                return Err(Failure::message(format!("unable to find container named \"{name}\"")));
            }
        }
        Ok(())
    })
    .await
}

fn matches_name(pattern: &str, name: &str) -> bool {
    pattern == "*" || pattern == name || pattern.strip_suffix('*').is_some_and(|p| name.starts_with(p))
}

async fn env(cx: &Context) -> Result<()> {
    let (words, mut pairs) = split_pairs(cx);
    pairs.extend(cx.flags.list("env"));
    if pairs.iter().any(|p| p == "-") {
        if cx.flags.list("filename").iter().any(|file| file == "-") {
            return Err(Failure::message("standard input cannot be used for multiple arguments"));
        }
        let input = cx.read_stdin()?;
        pairs.retain(|p| p != "-");
        pairs.extend(String::from_utf8_lossy(&input).lines().filter(|l| l.contains('=')).map(str::to_owned));
    }
    if words.is_empty() && cx.flags.list("filename").is_empty() && cx.flags.string("kustomize").is_empty() {
        return Err(Failure::message(
            "one or more resources must be specified as <resource> <name> or <resource>/<name>",
        ));
    }
    for (name, _) in pairs.iter().filter_map(|p| p.split_once('=')) {
        if let Some(problem) = api::validation::strict_env_var_name(name).first() {
            return Err(Failure::message(format!("\"{name}\" is not a valid key name: {problem}")));
        }
    }
    let pattern = cx.flags.string("containers");
    let from = cx.flags.string("from");
    let infos = targets(cx, words).await?;
    if cx.flags.bool("list") {
        for info in infos {
            let mut object = info.object.clone();
            for c in containers(cx, &info, &mut object)? {
                cx.println(format!("# {} {}, container {}", info.mapping.kind, info.name, text(c, "/name")))?;
                for e in c["env"].as_array().into_iter().flatten() {
                    if e["valueFrom"].is_null() {
                        cx.println(format!("{}={}", text(e, "/name"), text(e, "/value")))?;
                    } else if let Some(value) = resolved(cx, &info, &e["valueFrom"]).await {
                        cx.println(format!("{}={value}", text(e, "/name")))?;
                    } else {
                        cx.println(format!("# {} from {}", text(e, "/name"), reference(&e["valueFrom"])))?;
                    }
                }
            }
        }
        return Ok(());
    }
    let mut taken: Vec<Value> = Vec::new();
    if !from.is_empty() {
        let (namespace, _) = cx.namespace()?;
        let (kind, name) =
            from.split_once('/').ok_or_else(|| Failure::message("--from must be configmap/NAME or secret/NAME"))?;
        let mapping = cx.discovery()?.resolve(cx, kind).await?;
        let source = crate::request::Request::get(mapping.object_path(&namespace, name)).value(cx).await?;
        let reference = if mapping.kind == "Secret" { "secretKeyRef" } else { "configMapKeyRef" };
        let keys = cx.flags.list("keys");
        for key in source["data"].as_object().into_iter().flatten().map(|(k, _)| k) {
            if keys.is_empty() || keys.contains(key) {
                let name_of = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
                let name_from_key: String = key.chars().map(name_of).collect();
                if name_from_key != *key {
                    cx.eprintln(format!("Warning: key {key} transferred to {name_from_key}"));
                }
                let variable = format!("{}{name_from_key}", cx.flags.string("prefix"));
                taken.push(json!({"name": variable, "valueFrom": {reference: {"key": key, "name": name}}}));
            }
        }
    }
    change(cx, infos, "env updated", "failed to patch env update to pod template:", |info, object| {
        for c in containers(cx, info, object)?.into_iter().filter(|c| matches_name(&pattern, text(c, "/name"))) {
            let mut list = c["env"].as_array().cloned().unwrap_or_default();
            if !cx.flags.bool("overwrite") {
                for (name, _) in pairs.iter().filter_map(|p| p.split_once('=')) {
                    if let Some(old) = list.iter().find(|e| e["name"] == name) {
                        let value = text(old, "/value");
                        let why = format!("'{name}' already has a value ({value}), and --overwrite is false");
                        return Err(about(cx, info, &why));
                    }
                }
            }
            let mut put = |entry: Value| match list.iter_mut().find(|e| e["name"] == entry["name"]) {
                Some(e) => *e = entry,
                None => list.push(entry),
            };
            for pair in pairs.iter().filter_map(|p| p.split_once('=')) {
                put(json!({"name": pair.0, "value": pair.1}));
            }
            taken.iter().cloned().for_each(&mut put);
            for removed in pairs.iter().filter(|p| !p.contains('=')).filter_map(|p| p.strip_suffix('-')) {
                list.retain(|e| e["name"] != removed);
            }
            if !list.is_empty() || c["env"].is_array() {
                c["env"] = json!(list);
            }
        }
        Ok(())
    })
    .await
}

/// `--resolve`: the value behind a reference, where it can be had.
async fn resolved(cx: &Context, info: &Info, from: &Value) -> Option<String> {
    if !cx.flags.bool("resolve") {
        return None;
    }
    let read = async |resource: &str, reference: &Value| {
        let path = format!("/api/v1/namespaces/{}/{resource}/{}", info.namespace, text(reference, "/name"));
        let object = crate::request::Request::get(path).value(cx).await.ok()?;
        Some(object["data"][text(reference, "/key")].as_str()?.to_owned())
    };
    if from["configMapKeyRef"].is_object() {
        return read("configmaps", &from["configMapKeyRef"]).await;
    }
    if from["secretKeyRef"].is_object() {
        let encoded = read("secrets", &from["secretKeyRef"]).await?;
        let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, encoded).ok()?;
        return Some(String::from_utf8_lossy(&bytes).into_owned());
    }
    let field = text(from, "/fieldRef/fieldPath").replace('.', "/");
    info.object.pointer(&format!("/{field}")).and_then(Value::as_str).map(str::to_owned)
}

async fn set_resources(cx: &Context) -> Result<()> {
    let (limits, requests) = (cx.flags.string("limits"), cx.flags.string("requests"));
    if limits.is_empty() && requests.is_empty() {
        return Err(Failure::message(
            "you must specify an update to requests or limits (in the form of --requests/--limits)",
        ));
    }
    let infos = targets(cx, cx.args().to_vec()).await?;
    let (limits, requests) = (quantities(&limits)?, quantities(&requests)?);
    let pattern = cx.flags.string("containers");
    let failed = "failed to patch resources update to pod template";
    change(cx, infos, "resource requirements updated", failed, |info, object| {
        let mut found = false;
        for c in containers(cx, info, object)?.into_iter().filter(|c| matches_name(&pattern, text(c, "/name"))) {
            found = true;
            for (list, key) in [(&limits, "limits"), (&requests, "requests")] {
                for (k, v) in list {
                    c["resources"][key][k] = json!(v);
                }
            }
        }
        if found { Ok(()) } else { Err(Failure::message(format!("unable to find container named {pattern}"))) }
    })
    .await
}

/// `cpu=1,memory=2Gi`
pub(super) fn quantities(list: &str) -> Result<Vec<(String, String)>> {
    let mut out = Vec::new();
    for pair in list.split(',').filter(|p| !p.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| Failure::message(format!("Invalid argument syntax {pair}, expected <resource>=<value>")))?;
        let quantity: api::quantity::Quantity = value.parse().map_err(|_| {
            Failure::message(
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            )
        })?;
        out.push((name.to_owned(), quantity.to_string()));
    }
    Ok(out)
}

/// A requirement as Go prints that of a label selector; a mere equality is none of those.
fn go_expression(requirement: &Requirement) -> Option<String> {
    let operator = match requirement.operator {
        Operator::Equals | Operator::DoubleEquals => return None,
        Operator::NotEquals | Operator::NotIn => "NotIn",
        Operator::In => "In",
        Operator::Exists => "Exists",
        Operator::DoesNotExist => "DoesNotExist",
        Operator::GreaterThan => "Gt",
        Operator::LessThan => "Lt",
    };
    Some(format!("{{{} {operator} [{}]}}", requirement.key, requirement.values.join(" ")))
}

/// Where a variable's value comes from, in words.
fn reference(from: &Value) -> String {
    let part = |pointer: &str| text(from, pointer).to_owned();
    if from["configMapKeyRef"].is_object() {
        return format!("configmap {}, key {}", part("/configMapKeyRef/name"), part("/configMapKeyRef/key"));
    }
    if from["secretKeyRef"].is_object() {
        return format!("secret {}, key {}", part("/secretKeyRef/name"), part("/secretKeyRef/key"));
    }
    if from["fieldRef"].is_object() {
        return format!("field path {}", part("/fieldRef/fieldPath"));
    }
    if from["resourceFieldRef"].is_object() {
        let container = match part("/resourceFieldRef/containerName") {
            name if name.is_empty() => name,
            name => name + "/",
        };
        return format!("resource field {container}{}", part("/resourceFieldRef/resource"));
    }
    "invalid valueFrom".to_owned()
}

async fn selector(cx: &Context) -> Result<()> {
    // The last word is the selector, whatever it looks like.
    let (expression, words) = cx.args().split_last().map_or(("", &[][..]), |(last, words)| (last.as_str(), words));
    let infos = targets(cx, words.to_vec()).await?;
    if expression.is_empty() {
        return Err(Failure::message("one selector is required"));
    }
    if !expression.split(',').all(|part| part.contains('=') && !part.contains(['!', ' '])) {
        let selector = api::selector::Selector::parse(expression).map_err(|e| Failure::message(e.to_string()))?;
        let expressions: Vec<String> = selector.requirements().iter().filter_map(go_expression).collect();
        return Err(Failure::message(format!(
            "match expression [{}] not supported on this object",
            expressions.join(" ")
        )));
    }
    let map = super::expose::pairs(&expression.replace("==", "="))?;
    change(cx, infos, "selector updated", "", |_, object| {
        if object["kind"] != "Service" {
            return Err(Failure::message("setting a selector is only supported for Services"));
        }
        object["spec"]["selector"] = json!(map);
        Ok(())
    })
    .await
}

async fn service_account(cx: &Context) -> Result<()> {
    let Some((name, words)) = cx.args().split_last() else {
        return Err(Failure::message("serviceaccount is required"));
    };
    let failed = "failed to patch ServiceAccountName";
    change(cx, targets(cx, words.to_vec()).await?, "serviceaccount updated", failed, |info, object| {
        let spec = objects::pod_spec_mut(object).ok_or_else(|| no_template(cx, info))?;
        spec["serviceAccountName"] = json!(name);
        Ok(())
    })
    .await
}

async fn subject(cx: &Context) -> Result<()> {
    let mut added = Vec::new();
    for (flag, kind) in [("user", "User"), ("group", "Group")] {
        for name in cx.flags.list(flag) {
            added.push(json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}));
        }
    }
    for sa in cx.flags.list("serviceaccount") {
        let (ns, name) =
            sa.split_once(':').ok_or_else(|| Failure::message("serviceaccount must be <namespace>:<name>"))?;
        if ns.is_empty() {
            return Err(Failure::message("serviceaccount must be <namespace>:<name>, namespace must be specified"));
        }
        added.push(json!({"kind": "ServiceAccount", "namespace": ns, "name": name}));
    }
    if added.is_empty() {
        return Err(Failure::message("you must specify at least one value of user, group or serviceaccount"));
    }
    let failed = "failed to patch subjects to rolebinding:";
    change(cx, targets(cx, cx.args().to_vec()).await?, "subjects updated", failed, |info, object| {
        if !info.mapping.kind.ends_with("RoleBinding") {
            return Err(about(cx, info, "setting subjects is only supported for RoleBinding/ClusterRoleBinding"));
        }
        let mut list = object["subjects"].as_array().cloned().unwrap_or_default();
        for s in &added {
            if !list.contains(s) {
                list.push(s.clone());
            }
        }
        object["subjects"] = json!(list);
        Ok(())
    })
    .await
}
