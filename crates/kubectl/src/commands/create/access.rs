//! `create role|clusterrole|rolebinding|clusterrolebinding|serviceaccount|token`

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{GENERATOR, finish, known, name_argument};
use crate::cli::{Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::request::Request;

const RULE: &[Flag] = &[
    Flag::slice("verb", "Verb that the rule allows."),
    Flag::slice("resource", "Resource the rule is about (resource.group/subresource)."),
    Flag::array("resource-name", "Name the rule is limited to; may be repeated."),
];
const SUBJECTS: &[Flag] = &[
    Flag::slice("user", "User to bind."),
    Flag::slice("group", "Group to bind."),
    Flag::slice("serviceaccount", "Service account to bind, as <namespace>:<name>."),
];

pub(super) const ROLE: Command = Command {
    name: "role",
    usage: "NAME --verb=verb --resource=resource.group/subresource [--resource-name=resourcename] [--dry-run=server|client|none]",
    about: "Create a role with single rule",
    examples: "  kubectl create role pod-reader --verb=get,list,watch --resource=pods",
    flags: &[GENERATOR, RULE],
    run: Some(|cx| Box::pin(role(cx))),
    ..Command::EMPTY
};
pub(super) const CLUSTER_ROLE: Command = Command {
    name: "clusterrole",
    usage: "NAME --verb=verb --resource=resource.group [--resource-name=resourcename] [--dry-run=server|client|none]",
    about: "Create a cluster role",
    flags: &[
        GENERATOR,
        RULE,
        &[
            Flag::slice("non-resource-url", "Path the rule is about."),
            Flag::slice("aggregation-rule", "Label selector (key=value) of the roles to combine."),
        ],
    ],
    run: Some(|cx| Box::pin(cluster_role(cx))),
    ..Command::EMPTY
};
pub(super) const ROLE_BINDING: Command = Command {
    name: "rolebinding",
    usage: "NAME --clusterrole=NAME|--role=NAME [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname] [--dry-run=server|client|none]",
    about: "Create a role binding for a particular role or cluster role",
    flags: &[
        GENERATOR,
        SUBJECTS,
        &[Flag::string("role", "Role to refer to."), Flag::string("clusterrole", "Cluster role to refer to.")],
    ],
    run: Some(|cx| Box::pin(role_binding(cx))),
    ..Command::EMPTY
};
pub(super) const CLUSTER_ROLE_BINDING: Command = Command {
    name: "clusterrolebinding",
    usage: "NAME --clusterrole=NAME [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname] [--dry-run=server|client|none]",
    about: "Create a cluster role binding for a particular cluster role",
    flags: &[GENERATOR, SUBJECTS, &[Flag::string("clusterrole", "Cluster role to refer to.")]],
    run: Some(|cx| Box::pin(cluster_role_binding(cx))),
    ..Command::EMPTY
};
pub(super) const SERVICE_ACCOUNT: Command = Command {
    name: "serviceaccount",
    aliases: &["sa"],
    usage: "NAME [--dry-run=server|client|none]",
    about: "Create a service account with the specified name",
    flags: &[GENERATOR],
    run: Some(|cx| Box::pin(service_account(cx))),
    ..Command::EMPTY
};
pub(super) const TOKEN: Command = Command {
    name: "token",
    usage: "SERVICE_ACCOUNT_NAME",
    about: "Request a service account token",
    flags: &[
        crate::commands::flags::OUTPUT,
        &[
            Flag::array("audience", "Audience of the token; may be repeated."),
            Flag::duration("duration", "0s", "Lifetime to ask for; zero leaves it to the server."),
            Flag::string("bound-object-kind", "Kind of an object to bind the token to: Node, Pod or Secret."),
            Flag::string("bound-object-name", "Name of that object."),
            Flag::string("bound-object-uid", "UID of that object."),
        ],
    ],
    run: Some(|cx| Box::pin(token(cx))),
    ..Command::EMPTY
};

const STANDARD_VERBS: &[&str] = &[
    "*",
    "get",
    "delete",
    "list",
    "create",
    "update",
    "patch",
    "watch",
    "proxy",
    "deletecollection",
    "use",
    "bind",
    "escalate",
    "impersonate",
    "approve",
    "sign",
];

fn verbs(cx: &Context) -> Result<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    for v in cx.flags.list("verb") {
        if v == "*" {
            return Ok(vec![v]);
        }
        if !out.contains(&v) {
            out.push(v);
        }
    }
    if out.is_empty() {
        return Err(Failure::message("at least one verb must be specified"));
    }
    Ok(out)
}

/// One rule per API group, groups in order.
async fn rules(cx: &Context, verbs: &[String]) -> Result<Vec<Value>> {
    let resources = cx.flags.list("resource");
    for v in verbs.iter().filter(|v| !STANDARD_VERBS.contains(&v.as_str())) {
        cx.eprintln(format!("Warning: '{v}' is not a standard resource verb"));
    }
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for r in &resources {
        let (main, sub) = r.split_once('/').map_or((r.as_str(), ""), |(m, s)| (m, s));
        if main.is_empty() || main.starts_with('.') {
            return Err(Failure::message("resource must be specified if apiGroup/subresource specified"));
        }
        let (group, mut name) = if main == "*" {
            (String::new(), "*".to_owned())
        } else if let Some(group) = main.strip_prefix("*.") {
            (group.to_owned(), "*".to_owned())
        } else {
            let mapping = cx.discovery()?.resolve(cx, main).await.map_err(|e| match (e, main.split_once('.')) {
                (Failure::NoResource { resource, .. }, Some((_, group))) => Failure::ExitWith(
                    format!("the server doesn't have a resource type \"{resource}\" in group \"{group}\""),
                    1,
                ),
                (e, _) => e.without_prefix(),
            })?;
            (mapping.group, mapping.resource)
        };
        if !sub.is_empty() {
            name = format!("{name}/{sub}");
        }
        let list = groups.entry(group).or_default();
        if !list.contains(&name) {
            list.push(name);
        }
    }
    let mut names: Vec<String> = Vec::new();
    for n in cx.flags.list("resource-name") {
        if !names.contains(&n) {
            names.push(n);
        }
    }
    Ok(groups
        .into_iter()
        .map(|(group, resources)| {
            let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": resources});
            if !names.is_empty() {
                rule["resourceNames"] = json!(names);
            }
            rule
        })
        .collect())
}

async fn role(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let verbs = verbs(cx)?;
    if cx.flags.list("resource").is_empty() {
        return Err(Failure::message("at least one resource must be specified"));
    }
    let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name},
                        "rules": rules(cx, &verbs).await?});
    finish(cx, &known("rbac.authorization.k8s.io/v1", "roles", "Role", true), object, "").await
}

async fn cluster_role(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let mut object =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}});
    let aggregation = cx.flags.list("aggregation-rule");
    let urls = cx.flags.list("non-resource-url");
    if !aggregation.is_empty() {
        if !(urls.is_empty() && cx.flags.list("verb").is_empty() && cx.flags.list("resource").is_empty()) {
            return Err(Failure::message(
                "aggregation rule must be specified without nonResourceURLs, verbs, resources or resourceNames",
            ));
        }
        let mut labels = serde_json::Map::new();
        for pair in aggregation {
            let (k, v) = pair.split_once('=').unwrap_or((&pair, ""));
            labels.insert(k.to_owned(), json!(v));
        }
        object["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
        object["rules"] = Value::Null;
    } else {
        let verbs = verbs(cx)?;
        if cx.flags.list("resource").is_empty() && urls.is_empty() {
            return Err(Failure::message("one of resource or nonResourceURL must be specified"));
        }
        let mut all = rules(cx, &verbs).await?;
        let known = ["get", "post", "put", "delete", "patch", "head", "options", "*"];
        if let Some(verb) = verbs.iter().find(|verb| !urls.is_empty() && !known.contains(&verb.as_str())) {
            return Err(Failure::message(format!("invalid verb: '{verb}' for nonResourceURL")));
        }
        for url in urls.iter().filter(|url| *url != "*") {
            if !url.starts_with('/') {
                return Err(Failure::message("nonResourceURL should start with /"));
            }
            if url[..url.len() - 1].contains('*') {
                return Err(Failure::message("nonResourceURL only supports wildcard matches when '*' is at the end"));
            }
        }
        if !urls.is_empty() {
            all.push(json!({"verbs": verbs, "nonResourceURLs": urls}));
        }
        object["rules"] = json!(all);
    }
    finish(cx, &known("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", false), object, "").await
}

fn subjects(cx: &Context) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    for (flag, kind) in [("user", "User"), ("group", "Group")] {
        for name in cx.flags.list(flag) {
            out.push(json!({"kind": kind, "apiGroup": "rbac.authorization.k8s.io", "name": name}));
        }
    }
    for sa in cx.flags.list("serviceaccount") {
        match sa.split_once(':') {
            Some((ns, name)) if !ns.is_empty() && !name.is_empty() && !name.contains(':') => {
                out.push(json!({"kind": "ServiceAccount", "namespace": ns, "name": name}));
            }
            _ => return Err(Failure::message("serviceaccount must be <namespace>:<name>")),
        }
    }
    Ok(out)
}

fn binding(kind: &str, name: &str, role_kind: &str, role: &str, subjects: Vec<Value>) -> Value {
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
    });
    if !subjects.is_empty() {
        object["subjects"] = json!(subjects);
    }
    object
}

async fn role_binding(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let (role, cluster_role) = (cx.flags.string("role"), cx.flags.string("clusterrole"));
    let (kind, target) = match (role.is_empty(), cluster_role.is_empty()) {
        (false, true) => ("Role", role),
        (true, false) => ("ClusterRole", cluster_role),
        _ => return Err(Failure::message("exactly one of clusterrole or role must be specified")),
    };
    let object = binding("RoleBinding", &name, kind, &target, subjects(cx)?);
    let mapping = known("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding", true);
    finish(cx, &mapping, object, "failed to create rolebinding:").await
}

async fn cluster_role_binding(cx: &Context) -> Result<()> {
    super::require(cx, &["clusterrole"])?;
    let name = name_argument(cx)?;
    let object = binding("ClusterRoleBinding", &name, "ClusterRole", &cx.flags.string("clusterrole"), subjects(cx)?);
    let mapping = known("rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", false);
    finish(cx, &mapping, object, "failed to create clusterrolebinding:").await
}

async fn service_account(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    let mapping = known("v1", "serviceaccounts", "ServiceAccount", true);
    finish(cx, &mapping, object, "failed to create serviceaccount:").await
}

async fn token(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let (namespace, _) = cx.namespace()?;
    let mut spec = json!({"audiences": cx.flags.list("audience")});
    if cx.flags.string("duration").starts_with('-') {
        return Err(Failure::message("--duration must be greater than or equal to 0"));
    }
    let seconds = cx.flags.duration("duration").as_secs();
    if seconds > 0 {
        spec["expirationSeconds"] = json!(seconds);
    }
    let kind = cx.flags.string("bound-object-kind");
    let (bound, uid) = (cx.flags.string("bound-object-name"), cx.flags.string("bound-object-uid"));
    if kind.is_empty() {
        for (value, flag) in [(&bound, "name"), (&uid, "uid")] {
            if !value.is_empty() {
                return Err(Failure::message(format!(
                    "--bound-object-{flag} can only be set if --bound-object-kind is provided"
                )));
            }
        }
    } else {
        if !["Node", "Pod", "Secret"].contains(&kind.as_str()) {
            return Err(Failure::message("supported --bound-object-kind values are Node, Pod, Secret"));
        }
        if bound.is_empty() {
            return Err(Failure::message("--bound-object-name is required if --bound-object-kind is provided"));
        }
        spec["boundObjectRef"] = json!({"kind": kind, "apiVersion": "v1", "name": bound});
        if !uid.is_empty() {
            spec["boundObjectRef"]["uid"] = json!(uid);
        }
    }
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": spec});
    let path =
        format!("{}/token", known("v1", "serviceaccounts", "ServiceAccount", true).object_path(&namespace, &name));
    let answer = Request::post(path, &body).value(cx).await.map_err(|e| match e {
        Failure::Status(_) => Failure::message(format!("failed to create token: {}", e.inner())),
        other => other.context("failed to create token"),
    })?;
    let mut printer = crate::printers::Printer::new(&cx.flags, "")?.typed();
    if !printer.is_default() {
        return cx.print(&printer.print(&answer)?);
    }
    match answer["status"]["token"].as_str().filter(|t| !t.is_empty()) {
        // A newline is for eyes only.
        Some(token) if std::io::IsTerminal::is_terminal(&std::io::stdout()) => cx.println(token),
        Some(token) => cx.print(token),
        None => Err(Failure::message("failed to create token: no token in server response")),
    }
}
