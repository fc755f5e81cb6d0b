//! `config set-cluster|set-context|set-credentials|set|unset|get-clusters|get-users|delete-*`

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{LISTS, entry, entry_mut, merged, modify};
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};

macro_rules! list_command {
    ($name:ident, $text:literal, $about:literal, $list:literal, $header:literal) => {
        pub(super) const $name: Command = Command {
            name: $text,
            usage: "[flags]",
            about: $about,
            run: Some(|cx| Box::pin(list(cx, $list, $header))),
            ..Command::EMPTY
        };
    };
}
list_command!(GET_CLUSTERS, "get-clusters", "Display clusters defined in the kubeconfig", "clusters", "NAME");
list_command!(GET_USERS, "get-users", "Display users defined in the kubeconfig", "users", "NAME");

macro_rules! delete_command {
    ($name:ident, $text:literal, $about:literal, $list:literal, $word:literal, $words:ident) => {
        pub(super) const $name: Command = Command {
            name: $text,
            usage: "NAME",
            about: $about,
            words: Words::$words,
            run: Some(|cx| Box::pin(delete(cx, $list, $word))),
            ..Command::EMPTY
        };
    };
}
delete_command!(
    DELETE_CLUSTER,
    "delete-cluster",
    "Delete the specified cluster from the kubeconfig",
    "clusters",
    "cluster",
    Clusters
);
delete_command!(
    DELETE_CONTEXT,
    "delete-context",
    "Delete the specified context from the kubeconfig",
    "contexts",
    "context",
    Contexts
);
delete_command!(DELETE_USER, "delete-user", "Delete the specified user from the kubeconfig", "users", "user", Users);

pub(super) const SET_CLUSTER: Command = Command {
    name: "set-cluster",
    usage: "NAME [--server=server] [--certificate-authority=path/to/certificate/authority] [--insecure-skip-tls-verify=true] [--tls-server-name=example.com]",
    about: "Set a cluster entry in kubeconfig",
    flags: &[&[
        Flag::bool("embed-certs", "Put the certificate's content into the file."),
        Flag::string("certificate-authority", "File of the authority that signed the server's certificate."),
        Flag::bool("insecure-skip-tls-verify", "Do not check the server's certificate."),
        Flag::string("server", "Address and port of the server."),
        Flag::string("tls-server-name", "Name to expect in the server's certificate."),
        Flag::string("proxy-url", "Proxy to reach the server by."),
    ]],
    words: Words::Clusters,
    run: Some(|cx| Box::pin(set_cluster(cx))),
    ..Command::EMPTY
};
pub(super) const SET_CONTEXT: Command = Command {
    name: "set-context",
    usage: "[NAME | --current] [--cluster=cluster_nickname] [--user=user_nickname] [--namespace=namespace]",
    about: "Set a context entry in kubeconfig",
    flags: &[&[
        Flag::bool("current", "Change the current context."),
        Flag::string("cluster", "Cluster of the context."),
        Flag::string("namespace", "Namespace of the context.").short('n'),
        Flag::string("user", "User of the context."),
    ]],
    words: Words::Contexts,
    run: Some(|cx| Box::pin(set_context(cx))),
    ..Command::EMPTY
};
pub(super) const SET_CREDENTIALS: Command = Command {
    name: "set-credentials",
    usage: "NAME [--client-certificate=path/to/certfile] [--client-key=path/to/keyfile] [--token=bearer_token] [--username=basic_user] [--password=basic_password] [--auth-provider=provider_name] [--auth-provider-arg=key=value] [--exec-command=exec_command] [--exec-api-version=exec_api_version] [--exec-arg=arg] [--exec-env=key=value]",
    about: "Set a user entry in kubeconfig",
    flags: &[&[
        Flag::string("client-certificate", "Client certificate file."),
        Flag::string("client-key", "Client key file."),
        Flag::string("password", "Password for basic authentication."),
        Flag::string("token", "Bearer token."),
        Flag::string("username", "Name for basic authentication."),
        Flag::bool("embed-certs", "Put the certificate's and key's content into the file."),
        Flag::bool("exec-provide-cluster-info", "Tell the plug-in about the cluster."),
        Flag::string("exec-command", "Program that gives credentials."),
        Flag::string("exec-api-version", "API version that it speaks."),
        Flag::slice("exec-arg", "Argument for it."),
        Flag::slice("exec-env", "Environment variable for it, as NAME=value."),
        Flag::string("exec-interactive-mode", "Never, IfAvailable or Always."),
        Flag::string("auth-provider", "Authentication provider."),
        Flag::slice("auth-provider-arg", "Its settings, as key=value."),
    ]],
    words: Words::Users,
    run: Some(|cx| Box::pin(set_credentials(cx))),
    ..Command::EMPTY
};
pub(super) const SET: Command = Command {
    name: "set",
    usage: "PROPERTY_NAME PROPERTY_VALUE",
    about: "Set an individual value in a kubeconfig file",
    flags: &[&[Flag::bool("set-raw-bytes", "The value is plain text for a base64 field.")]],
    run: Some(|cx| Box::pin(set(cx))),
    ..Command::EMPTY
};
pub(super) const UNSET: Command = Command {
    name: "unset",
    usage: "PROPERTY_NAME",
    about: "Unset an individual value in a kubeconfig file",
    run: Some(|cx| Box::pin(unset(cx))),
    ..Command::EMPTY
};

async fn list(cx: &Context, list: &str, header: &str) -> Result<()> {
    let config = merged(cx)?;
    cx.println(header)?;
    for e in config[list].as_array().into_iter().flatten() {
        cx.println(e["name"].as_str().unwrap_or(""))?;
    }
    Ok(())
}

async fn delete(cx: &Context, list: &str, word: &str) -> Result<()> {
    let [name] = cx.args() else {
        return Err(cx.usage(match word {
            "user" => "user to delete is required".to_owned(),
            _ => format!("you must specify a {word}"),
        }));
    };
    let file = super::paths(cx).first().map(|p| p.display().to_string()).unwrap_or_default();
    if entry(&merged(cx)?, list, name).is_none() {
        return Err(Failure::message(format!("cannot delete {word} {name}, not in {file}")));
    }
    let was_current = modify(
        cx,
        |c| entry(c, list, name).is_some(),
        |c| {
            if let Some(items) = c[list].as_array_mut() {
                items.retain(|e| e["name"] != *name);
            }
            Ok(word == "context" && c["current-context"] == *name)
        },
    )?;
    if was_current {
        cx.eprintln(
            "warning: this removed your active context, use \"kubectl config use-context\" to select a different one",
        );
    }
    match word {
        "user" => cx.println(format!("deleted user {name} from {file}")),
        _ => cx.println(format!("deleted {word} {name} from {file}")),
    }
}

fn one_name(cx: &Context) -> Result<String> {
    match cx.args() {
        [name] if !name.is_empty() => Ok(name.clone()),
        _ => Err(super::unexpected(cx, "Unexpected")?),
    }
}

/// Puts a file's path, or with `--embed-certs` its content, into an entry.
fn put_file(cx: &Context, target: &mut Value, flag: &str) -> Result<()> {
    if !cx.flags.changed(flag) {
        return Ok(());
    }
    let path = cx.flags.string(flag);
    let (plain, data) = (flag.to_owned(), format!("{flag}-data"));
    let Some(map) = target.as_object_mut() else { return Ok(()) };
    if cx.flags.bool("embed-certs") {
        let bytes = std::fs::read(&path).map_err(|e| {
            let why = crate::go_errors::go_io_error("stat", &path, &e);
            Failure::message(format!("could not stat {flag} file {path}: {why}"))
        })?;
        map.remove(&plain);
        map.insert(data, json!(STANDARD.encode(bytes)));
    } else {
        // Written relative to the kubeconfig where it is below it.
        let absolute = std::path::absolute(&path).map(|p| p.to_string_lossy().into_owned()).unwrap_or(path);
        map.remove(&data);
        map.insert(plain, json!(absolute));
    }
    Ok(())
}

async fn set_cluster(cx: &Context) -> Result<()> {
    let name = one_name(cx)?;
    let insecure = cx.flags.bool("insecure-skip-tls-verify");
    if insecure && !cx.flags.string("certificate-authority").is_empty() {
        return Err(Failure::message("you cannot specify a certificate authority and insecure mode at the same time"));
    }
    modify(
        cx,
        |c| entry(c, "clusters", &name).is_some(),
        |c| {
            let (cluster, _) = entry_mut(c, "clusters", "cluster", &name);
            for flag in ["server", "tls-server-name", "proxy-url"] {
                if cx.flags.changed(flag) {
                    cluster[flag] = json!(cx.flags.string(flag));
                }
            }
            if cluster["server"].is_null() {
                cluster["server"] = json!("");
            }
            // One excludes the other.
            let dropped: &[&str] = match (insecure, cx.flags.changed("certificate-authority")) {
                (true, _) => &["certificate-authority", "certificate-authority-data"],
                (false, true) => &["insecure-skip-tls-verify"],
                (false, false) => &[],
            };
            if let Some(map) = cluster.as_object_mut() {
                map.retain(|key, _| !dropped.contains(&key.as_str()));
                if cx.flags.changed("insecure-skip-tls-verify") {
                    map.remove("insecure-skip-tls-verify");
                }
            }
            if insecure {
                cluster["insecure-skip-tls-verify"] = json!(true);
            }
            put_file(cx, cluster, "certificate-authority")
        },
    )?;
    cx.println(format!("Cluster \"{name}\" set."))
}

async fn set_context(cx: &Context) -> Result<()> {
    let config = merged(cx)?;
    if cx.args().len() > 1 {
        return Err(super::unexpected(cx, "Unexpected")?);
    }
    let name = match (cx.flags.bool("current"), cx.args()) {
        (true, []) => match config["current-context"].as_str().unwrap_or("") {
            "" => return Err(Failure::message("no current context is set")),
            current => current.to_owned(),
        },
        (false, [name]) => name.clone(),
        (true, _) => return Err(Failure::message("you cannot specify both a context name and --current")),
        _ => return Err(Failure::message("you must specify a non-empty context name or --current")),
    };
    let existed = modify(
        cx,
        |c| entry(c, "contexts", &name).is_some(),
        |c| {
            let (context, existed) = entry_mut(c, "contexts", "context", &name);
            for flag in ["cluster", "user", "namespace"] {
                if cx.flags.changed(flag) {
                    context[flag] = json!(cx.flags.string(flag));
                }
            }
            for key in ["cluster", "user"] {
                if context[key].is_null() {
                    context[key] = json!("");
                }
            }
            Ok(existed)
        },
    )?;
    cx.println(format!("Context \"{name}\" {}.", if existed { "modified" } else { "created" }))
}

async fn set_credentials(cx: &Context) -> Result<()> {
    let [name] = cx.args() else { return Err(super::unexpected(cx, "unexpected")?) };
    let mut methods = Vec::new();
    if !cx.flags.string("token").is_empty() {
        methods.push("--token");
    }
    if !cx.flags.string("username").is_empty() || !cx.flags.string("password").is_empty() {
        methods.push("--username/--password");
    }
    if methods.len() > 1 {
        return Err(Failure::message(format!(
            "you cannot specify more than one authentication method at the same time: {}",
            methods.join(", ")
        )));
    }
    modify(
        cx,
        |c| entry(c, "users", name).is_some(),
        |c| {
            let (user, _) = entry_mut(c, "users", "user", name);
            for flag in ["token", "username", "password"] {
                if cx.flags.changed(flag) {
                    user[flag] = json!(cx.flags.string(flag));
                }
            }
            // A token and a password exclude each other.
            let dropped: &[&str] = match methods.as_slice() {
                ["--token"] => &["username", "password"],
                [_] => &["token"],
                _ => &[],
            };
            if let Some(map) = user.as_object_mut() {
                map.retain(|key, _| !dropped.contains(&key.as_str()));
            }
            put_file(cx, user, "client-certificate")?;
            put_file(cx, user, "client-key")?;
            if cx.flags.changed("exec-command") {
                user["exec"]["command"] = json!(cx.flags.string("exec-command"));
                if user["exec"]["provideClusterInfo"].is_null() {
                    user["exec"]["provideClusterInfo"] = json!(false);
                }
            }
            if cx.flags.changed("exec-provide-cluster-info") {
                user["exec"]["provideClusterInfo"] = json!(cx.flags.bool("exec-provide-cluster-info"));
            }
            if cx.flags.changed("exec-api-version") {
                user["exec"]["apiVersion"] = json!(cx.flags.string("exec-api-version"));
            }
            if cx.flags.changed("exec-arg") {
                user["exec"]["args"] = json!(cx.flags.list("exec-arg"));
            }
            for pair in cx.flags.list("exec-env") {
                let (k, v) = pair.split_once('=').unwrap_or((pair.trim_end_matches('-'), ""));
                if !user["exec"]["env"].is_array() {
                    user["exec"]["env"] = json!([]);
                }
                if let Some(env) = user["exec"]["env"].as_array_mut() {
                    env.retain(|e| e["name"] != k);
                    if pair.contains('=') {
                        env.push(json!({"name": k, "value": v}));
                    }
                }
            }
            if cx.flags.changed("exec-interactive-mode") {
                user["exec"]["interactiveMode"] = json!(cx.flags.string("exec-interactive-mode"));
            }
            if cx.flags.changed("auth-provider") {
                user["auth-provider"]["name"] = json!(cx.flags.string("auth-provider"));
            }
            if user["auth-provider"].is_object() {
                let mut config = user["auth-provider"]["config"].as_object().cloned().unwrap_or_default();
                for pair in cx.flags.list("auth-provider-arg") {
                    match pair.split_once('=') {
                        Some((k, v)) => drop(config.insert(k.to_owned(), json!(v))),
                        None => drop(config.remove(pair.trim_end_matches('-'))),
                    }
                }
                user["auth-provider"]["config"] = Value::Object(config);
            } else if let Some(map) = user.as_object_mut() {
                // Asking for it above made it.
                map.retain(|key, value| key != "auth-provider" || !value.is_null());
            }
            Ok(())
        },
    )?;
    cx.println(format!("User \"{name}\" set."))
}

/// What may follow a name in each list; names may have dots.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "clusters",
        &[
            "server",
            "tls-server-name",
            "insecure-skip-tls-verify",
            "certificate-authority",
            "certificate-authority-data",
            "proxy-url",
            "disable-compression",
            "extensions",
        ],
    ),
    ("contexts", &["cluster", "user", "namespace", "extensions"]),
    (
        "users",
        &[
            "client-certificate",
            "client-certificate-data",
            "client-key",
            "client-key-data",
            "token",
            "tokenFile",
            "act-as",
            "act-as-uid",
            "act-as-groups",
            "act-as-user-extra",
            "username",
            "password",
            "auth-provider",
            "exec",
            "extensions",
        ],
    ),
];
const BOOLEANS: &[&str] = &["insecure-skip-tls-verify", "disable-compression", "colors"];

/// `clusters.10.0.0.1.server` -> the value's place; lists are addressed by name.
fn steps(property: &str) -> Vec<String> {
    let parts: Vec<&str> = property.split('.').collect();
    let Some((_, fields)) = FIELDS.iter().find(|(list, _)| *list == parts[0]) else {
        return parts.into_iter().map(str::to_owned).collect();
    };
    let end = parts.iter().skip(2).position(|p| fields.contains(p)).map_or(parts.len(), |i| i + 2);
    let mut out = vec![parts[0].to_owned()];
    if parts.len() > 1 {
        out.push(parts[1..end].join("."));
        out.extend(parts[end..].iter().map(|p| (*p).to_owned()));
    }
    out
}

/// The value as its field holds it.
fn typed(cx: &Context, field: &str, value: &str) -> Result<Value> {
    if BOOLEANS.contains(&field) {
        return match value {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(json!(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(json!(false)),
            other => Err(Failure::message(format!("strconv.ParseBool: parsing \"{other}\": invalid syntax"))),
        };
    }
    if field.ends_with("-data") {
        if cx.flags.bool("set-raw-bytes") {
            return Ok(json!(STANDARD.encode(value.as_bytes())));
        }
        // As `base64` breaks its lines.
        let value = value.replace(['\n', '\r'], "");
        STANDARD.decode(&value).map_err(|e| Failure::message(format!("error decoding input value: {e}")))?;
        return Ok(json!(value));
    }
    Ok(json!(value))
}

async fn set(cx: &Context) -> Result<()> {
    let [property, value] = cx.args() else { return Err(super::unexpected(cx, "Unexpected")?) };
    let steps = steps(property);
    check_first(property, &steps)?;
    let parsed = typed(cx, steps.last().map_or("", String::as_str), value)?;
    let owner = steps.clone();
    modify(
        cx,
        |c| match owner.as_slice() {
            [list, name, ..] => entry(c, list, name).is_some(),
            _ => !c[&owner[0]].is_null(),
        },
        |c| {
            match steps.as_slice() {
                [one] => c[one] = parsed,
                [list, name, rest @ ..] if LISTS.iter().any(|(l, _)| l == list) && !rest.is_empty() => {
                    let key = LISTS.iter().find(|(l, _)| l == list).map_or("", |(_, k)| k);
                    let (mut slot, _) = entry_mut(c, list, key, name);
                    if list == "clusters" && slot["server"].is_null() {
                        slot["server"] = json!("");
                    }
                    for step in rest {
                        slot = &mut slot[step];
                    }
                    *slot = parsed;
                }
                [section, key] if section == "preferences" => c[section][key] = parsed,
                _ => return Err(Failure::message(format!("unable to parse one or more field values of {property}"))),
            }
            Ok(())
        },
    )?;
    cx.println(format!("Property \"{property}\" set."))
}

fn check_first(property: &str, steps: &[String]) -> Result<()> {
    let known = ["current-context", "preferences", "apiVersion", "kind", "extensions"];
    if !known.contains(&steps[0].as_str()) && !LISTS.iter().any(|(list, _)| *list == steps[0]) {
        return Err(Failure::message(format!("unable to parse {property} after [] at api.Config")));
    }
    Ok(())
}

async fn unset(cx: &Context) -> Result<()> {
    let [property] = cx.args() else { return Err(super::unexpected(cx, "Unexpected")?) };
    let steps = steps(property);
    check_first(property, &steps)?;
    let owner = steps.clone();
    modify(
        cx,
        |c| match owner.as_slice() {
            [list, name, ..] => entry(c, list, name).is_some(),
            _ => !c[&owner[0]].is_null(),
        },
        |c| {
            match steps.as_slice() {
                [one] => {
                    if let Some(map) = c.as_object_mut() {
                        map.remove(one);
                    }
                }
                [list, name] => {
                    if let Some(items) = c[list].as_array_mut() {
                        items.retain(|e| e["name"] != *name);
                    }
                }
                [list, name, rest @ .., last] => {
                    let key = LISTS.iter().find(|(l, _)| l == list).map_or("", |(_, k)| k);
                    let mut slot = entry_mut(c, list, key, name).0;
                    for step in rest {
                        slot = &mut slot[step];
                    }
                    if let Some(map) = slot.as_object_mut() {
                        map.remove(last);
                    }
                }
                [] => {}
            }
            Ok(())
        },
    )?;
    cx.println(format!("Property \"{property}\" unset."))
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_may_have_dots() {
        for (property, expected) in [
            ("clusters.10.0.0.1.server", &["clusters", "10.0.0.1", "server"][..]),
            ("clusters.my.name", &["clusters", "my.name"]),
            ("users.a.exec.command", &["users", "a", "exec", "command"]),
            ("current-context", &["current-context"]),
        ] {
            assert_eq!(super::steps(property), expected);
        }
    }
}
