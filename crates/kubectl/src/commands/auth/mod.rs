//! `kubectl auth can-i|reconcile|whoami`

mod reconcile;

use serde_json::{Value, json};

use crate::cli::{Alone, Command, Flag};
use crate::commands::flags;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::printers::TabWriter;
use crate::rbac_rules;
use crate::request::Request;

pub(crate) const COMMAND: Command = Command {
    name: "auth",
    usage: "[flags]",
    about: "Inspect authorization",
    subcommands: &[&CAN_I, &reconcile::COMMAND, &WHOAMI],
    alone: Alone::FailWithHelp,
    ..Command::EMPTY
};
const CAN_I: Command = Command {
    name: "can-i",
    usage: "VERB [TYPE | TYPE/NAME | NONRESOURCEURL]",
    about: "Check whether an action is allowed",
    examples: "  kubectl auth can-i create pods --all-namespaces\n  kubectl auth can-i --list -n kube-system",
    flags: &[
        flags::ALL_NAMESPACES,
        &[
            Flag::bool("list", "List everything that is allowed."),
            Flag::bool("quiet", "Only the exit code.").short('q'),
            Flag::string("subresource", "Subresource, such as log or scale."),
            Flag::bool("no-headers", "Leave the header line out."),
        ],
    ],
    run: Some(|cx| Box::pin(can_i(cx))),
    ..Command::EMPTY
};
const WHOAMI: Command = Command {
    name: "whoami",
    about: "Experimental: Check self subject attributes",
    flags: &[flags::OUTPUT],
    run: Some(|cx| Box::pin(whoami(cx))),
    ..Command::EMPTY
};

/// The verbs that some type or path knows.
const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "use",
    "bind",
    "impersonate",
    "*",
    "approve",
    "sign",
    "escalate",
    "attest",
];
const URL_VERBS: &[&str] = &["get", "put", "post", "head", "options", "delete", "patch", "*"];

async fn can_i(cx: &Context) -> Result<()> {
    let (namespace, _) = cx.namespace()?;
    let namespace = if cx.flags.bool("all-namespaces") { String::new() } else { namespace };
    if cx.flags.bool("list") {
        if !cx.args().is_empty() {
            return Err(Failure::message("list option must be specified with no arguments"));
        }
        if cx.flags.bool("quiet") || cx.flags.bool("all-namespaces") || !cx.flags.string("subresource").is_empty() {
            return Err(Failure::message(
                "list option can't be specified with neither quiet, all-namespaces nor subresource options",
            ));
        }
        return list(cx, &namespace).await;
    }
    let known_verb = |verb: &String, known: &[&str]| {
        if !known.contains(&verb.as_str()) {
            cx.eprintln(format!("Warning: verb '{verb}' is not a known verb\n"));
        }
    };
    let spec = match cx.args() {
        [verb, target] if target.starts_with('/') => {
            if !cx.flags.string("subresource").is_empty() {
                return Err(Failure::message("--subresource can not be used with NonResourceURL"));
            }
            known_verb(verb, URL_VERBS);
            json!({"nonResourceAttributes": {"verb": verb, "path": target}})
        }
        [verb, target] => {
            let (kind, name) = target.split_once('/').unwrap_or((target, ""));
            let (group, resource, namespaced) = match cx.discovery()?.resolve(cx, kind).await {
                Ok(m) => (m.group, m.resource, m.namespaced),
                Err(Failure::NoResource { .. }) => {
                    if kind != "*" {
                        cx.eprintln(format!("Warning: the server doesn't have a resource type '{kind}'\n"));
                    }
                    let (resource, group) = kind.split_once('.').unwrap_or((kind, ""));
                    (if kind == "*" { "*".to_owned() } else { group.to_owned() }, resource.to_owned(), true)
                }
                Err(e) => return Err(e),
            };
            if !namespaced && !namespace.is_empty() {
                let place = if group.is_empty() { String::new() } else { format!(" in group '{group}'") };
                cx.eprintln(format!("Warning: resource '{resource}' is not namespace scoped{place}\n"));
            }
            if !cx.flags.bool("all-namespaces") {
                known_verb(verb, VERBS);
            }
            let mut attributes = json!({"verb": verb, "group": group, "resource": resource, "namespace": if namespaced { namespace.as_str() } else { "" }});
            if !name.is_empty() {
                attributes["name"] = json!(name);
            }
            let subresource = cx.flags.string("subresource");
            if !subresource.is_empty() {
                attributes["subresource"] = json!(subresource);
            }
            json!({"resourceAttributes": attributes})
        }
        _ => {
            return Err(Failure::message(
                "you must specify two arguments: verb resource or verb resource/resourceName.\nSee 'kubectl auth can-i -h' for help and examples.",
            ));
        }
    };
    if cx.flags.bool("no-headers") {
        return Err(Failure::message("--no-headers cannot be set without --list specified"));
    }
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec});
    let answer = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &body).value(cx).await?;
    let allowed = answer["status"]["allowed"] == true;
    if !cx.flags.bool("quiet") {
        let mut line = if allowed { "yes" } else { "no" }.to_owned();
        if !text(&answer, "/status/reason").is_empty() {
            line.push_str(&format!(" - {}", text(&answer, "/status/reason")));
        }
        if !text(&answer, "/status/evaluationError").is_empty() {
            line.push_str(&format!(" - {}", text(&answer, "/status/evaluationError")));
        }
        cx.println(line)?;
    }
    if allowed { Ok(()) } else { Err(Failure::Exit(1)) }
}

async fn list(cx: &Context, namespace: &str) -> Result<()> {
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}});
    let answer = Request::post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &body).value(cx).await?;
    let list = |v: &Value| {
        format!("[{}]", v.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
    };
    let mut text = String::new();
    if !cx.flags.bool("no-headers") {
        text.push_str("Resources\tNon-Resource URLs\tResource Names\tVerbs\n");
    }
    let given: Vec<Value> = ["resourceRules", "nonResourceRules"]
        .iter()
        .flat_map(|key| answer["status"][*key].as_array().cloned().unwrap_or_default())
        .collect();
    for rule in rbac_rules::compact(&given) {
        let first = |key: &str| rule[key][0].as_str().unwrap_or("").to_owned();
        let (group, resource) = (first("apiGroups"), first("resources"));
        let name = if group.is_empty() { resource } else { format!("{resource}.{group}") };
        let (urls, names) = (list(&rule["nonResourceURLs"]), list(&rule["resourceNames"]));
        text.push_str(&format!("{name}\t{urls}\t{names}\t{}\n", list(&rule["verbs"])));
    }
    cx.print(&TabWriter::table().format(&text))
}

async fn whoami(cx: &Context) -> Result<()> {
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &body).value(cx).await?;
    let mut printer = crate::printers::Printer::new(&cx.flags, "")?.typed();
    if !printer.is_default() {
        return cx.print(&printer.print(&answer)?);
    }
    let user = &answer["status"]["userInfo"];
    let mut lines = "ATTRIBUTE\tVALUE\n".to_owned();
    for (title, key) in [("Username", "/username"), ("UID", "/uid")] {
        if !text(user, key).is_empty() {
            lines.push_str(&format!("{title}\t{}\n", text(user, key)));
        }
    }
    let groups: Vec<&str> = user["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !groups.is_empty() {
        lines.push_str(&format!("Groups\t[{}]\n", groups.join(" ")));
    }
    for (k, v) in user["extra"].as_object().into_iter().flatten() {
        let values: Vec<&str> = v.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        lines.push_str(&format!("Extra: {k}\t[{}]\n", values.join(" ")));
    }
    cx.print(&TabWriter::table().format(&lines))
}
