//! `create configmap`, `create secret generic|docker-registry|tls`

use api::sort::CompactSort as _;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{GENERATOR, finish, known, name_argument};
use crate::cli::{Alone, Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};

const SOURCES: &[Flag] = &[
    Flag::slice("from-file", "File (key=path to choose the key) or directory whose files become keys."),
    Flag::array("from-literal", "A key and its value (mykey=somevalue)."),
    Flag::slice("from-env-file", "File of KEY=VALUE lines."),
    Flag::bool("append-hash", "Add a hash of the content to the name."),
];

pub(super) const CONFIG_MAP: Command = Command {
    name: "configmap",
    aliases: &["cm"],
    usage: "NAME [--from-file=[key=]source] [--from-literal=key1=value1] [--dry-run=server|client|none]",
    about: "Create a config map from a local file, directory or literal value",
    examples: "  kubectl create configmap web --from-file=nginx.conf --from-literal=mode=fast",
    flags: &[GENERATOR, SOURCES],
    run: Some(|cx| Box::pin(config_map(cx))),
    ..Command::EMPTY
};

pub(super) const SECRET: Command = Command {
    name: "secret",
    usage: "(docker-registry | generic | tls)",
    about: "Create a secret using a specified subcommand",
    subcommands: &[&DOCKER, &GENERIC, &TLS],
    alone: Alone::FailWithHelp,
    ..Command::EMPTY
};

const GENERIC: Command = Command {
    name: "generic",
    usage: "NAME [--type=string] [--from-file=[key=]source] [--from-literal=key1=value1] [--dry-run=server|client|none]",
    about: "Create a secret from a local file, directory, or literal value",
    examples: "  kubectl create secret generic db --from-literal=password=x",
    flags: &[GENERATOR, SOURCES, &[Flag::string("type", "The type of the secret.")]],
    run: Some(|cx| Box::pin(generic(cx))),
    ..Command::EMPTY
};

const DOCKER: Command = Command {
    name: "docker-registry",
    usage: "NAME --docker-username=user --docker-password=password --docker-email=email [--docker-server=string] [--from-file=[key=]source] [--dry-run=server|client|none]",
    about: "Create a secret for use with a container registry",
    flags: &[
        GENERATOR,
        &[
            Flag::string("docker-username", "User name at the registry."),
            Flag::string("docker-password", "Password at the registry."),
            Flag::string("docker-email", "Mail address at the registry."),
            Flag::string("docker-server", "The registry.").default("https://index.docker.io/v1/"),
            Flag::slice("from-file", "A docker config file, as .dockerconfigjson=path or the path alone."),
            Flag::bool("append-hash", "Add a hash of the content to the name."),
        ],
    ],
    run: Some(|cx| Box::pin(docker(cx))),
    ..Command::EMPTY
};

const TLS: Command = Command {
    name: "tls",
    usage: "NAME --cert=path/to/cert/file --key=path/to/key/file [--dry-run=server|client|none]",
    about: "Create a TLS secret",
    flags: &[
        GENERATOR,
        &[
            Flag::string("cert", "PEM file of the certificate."),
            Flag::string("key", "PEM file of the private key."),
            Flag::bool("append-hash", "Add a hash of the content to the name."),
        ],
    ],
    run: Some(|cx| Box::pin(tls(cx))),
    ..Command::EMPTY
};

/// Keys and contents from the flags, in the order given, each key once.
fn collect(cx: &Context, secret: bool) -> Result<Vec<(String, Vec<u8>)>> {
    let (files, literals, env) =
        (cx.flags.list("from-file"), cx.flags.list("from-literal"), cx.flags.list("from-env-file"));
    let direct = !files.is_empty() || !literals.is_empty();
    if !env.is_empty() && direct {
        return Err(Failure::message("from-env-file cannot be combined with from-file or from-literal"));
    }
    let mut out = Vec::new();
    for literal in literals {
        let (key, value) = literal
            .split_once('=')
            .filter(|(k, _)| !k.is_empty())
            .ok_or_else(|| Failure::message(format!("invalid literal source {literal}, expected key=value")))?;
        out.push((key.to_owned(), value.as_bytes().to_vec()));
    }
    for file in files {
        out.extend(file_source(&file)?);
    }
    for file in env {
        let text = std::fs::read_to_string(&file)
            .map_err(|e| Failure::message(format!("error reading {file}: {}", io(&e))))?;
        for line in text.lines() {
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (key, value) = match line.split_once('=') {
                Some((k, v)) => (k.to_owned(), v.to_owned()),
                // A bare name takes its value from the environment.
                None => (line.to_owned(), std::env::var(line).unwrap_or_default()),
            };
            if let Some(problem) = api::validation::env_var_name(&key).first() {
                return Err(Failure::message(format!("\"{key}\" is not a valid key name: {problem}")));
            }
            out.push((key, value.into_bytes()));
        }
    }
    for (i, (key, _)) in out.iter().enumerate() {
        let problems = api::validation::config_map_key(key);
        if !problems.is_empty() {
            return Err(Failure::message(if secret {
                format!("\"{key}\" is not valid key name for a Secret {}", problems.join(";"))
            } else {
                format!("\"{key}\" is not a valid key name for a ConfigMap: {}", problems.join(","))
            }));
        }
        if out[..i].iter().any(|(k, _)| k == key) {
            return Err(Failure::message(if secret {
                format!("cannot add key {key}, another key by that name already exists")
            } else {
                format!(
                    "cannot add key \"{key}\", another key by that name already exists in Data for ConfigMap \"{}\"",
                    cx.args().first().map(String::as_str).unwrap_or("")
                )
            }));
        }
    }
    Ok(out)
}

fn io(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        _ => e.to_string(),
    }
}

fn file_source(source: &str) -> Result<Vec<(String, Vec<u8>)>> {
    let (key, path) = match source.split_once('=') {
        Some(("", _)) => return Err(Failure::message(format!("key name for file path {} missing", &source[1..]))),
        Some((key, "")) => return Err(Failure::message(format!("file path for key name {key} missing"))),
        Some((_, rest)) if rest.contains('=') => {
            return Err(Failure::message("key names or file paths cannot contain '='"));
        }
        Some((key, path)) => (Some(key.to_owned()), path),
        None => (None, source),
    };
    let failed = |e: &std::io::Error| Failure::message(format!("error reading {path}: {}", io(e)));
    let meta = std::fs::metadata(path).map_err(|e| failed(&e))?;
    if !meta.is_dir() {
        let name = std::path::Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Ok(vec![(key.unwrap_or(name), std::fs::read(path).map_err(|e| failed(&e))?)]);
    }
    if key.is_some() {
        return Err(Failure::message("cannot give a key name for a directory path"));
    }
    let mut out = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| failed(&e))?.flatten() {
        if entry.path().is_file() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if api::validation::config_map_key(&name).is_empty() {
                out.push((name, std::fs::read(entry.path()).map_err(|e| failed(&e))?));
            }
        }
    }
    out.compact_sort();
    Ok(out)
}

async fn config_map(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let (mut data, mut binary) = (Map::new(), Map::new());
    for (key, bytes) in collect(cx, false)? {
        match String::from_utf8(bytes) {
            Ok(text) => data.insert(key, Value::String(text)),
            Err(e) => binary.insert(key, Value::String(STANDARD.encode(e.as_bytes()))),
        };
    }
    if !data.is_empty() {
        object["data"] = Value::Object(data);
    }
    if !binary.is_empty() {
        object["binaryData"] = Value::Object(binary);
    }
    append_hash(cx, &mut object);
    finish(cx, &known("v1", "configmaps", "ConfigMap", true), object, "failed to create configmap:").await
}

fn build_secret(name: &str, kind: &str, data: &[(String, Vec<u8>)]) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
    if !kind.is_empty() {
        object["type"] = json!(kind);
    }
    if !data.is_empty() {
        object["data"] =
            data.iter().map(|(k, v)| (k.clone(), Value::String(STANDARD.encode(v)))).collect::<Map<_, _>>().into();
    }
    object
}

async fn send_secret(cx: &Context, mut object: Value) -> Result<()> {
    append_hash(cx, &mut object);
    finish(cx, &known("v1", "secrets", "Secret", true), object, "failed to create secret").await
}

async fn generic(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let data = collect(cx, true)?;
    send_secret(cx, build_secret(&name, &cx.flags.string("type"), &data)).await
}

async fn docker(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let kind = "kubernetes.io/dockerconfigjson";
    let files = cx.flags.list("from-file");
    if !files.is_empty() {
        let mut data = Vec::new();
        for file in files {
            data.extend(file_source(&file)?);
        }
        return send_secret(cx, build_secret(&name, kind, &data)).await;
    }
    let [user, password, email, server] =
        ["docker-username", "docker-password", "docker-email", "docker-server"].map(|f| cx.flags.string(f));
    if user.is_empty() || password.is_empty() || server.is_empty() {
        return Err(Failure::message(
            "either --from-file or the combination of --docker-username, --docker-password and --docker-server is required",
        ));
    }
    let config = docker_config(&server, &user, &password, &email);
    send_secret(cx, build_secret(&name, kind, &[(".dockerconfigjson".to_owned(), config.into_bytes())])).await
}

/// Field order is part of the value, so it is written by hand.
fn docker_config(server: &str, user: &str, password: &str, email: &str) -> String {
    let q = |s: &str| crate::printers::json::compact(&json!(s));
    let mut entry = format!("\"username\":{},\"password\":{}", q(user), q(password));
    if !email.is_empty() {
        entry.push_str(&format!(",\"email\":{}", q(email)));
    }
    entry.push_str(&format!(",\"auth\":{}", q(&STANDARD.encode(format!("{user}:{password}")))));
    format!("{{\"auths\":{{{}:{{{entry}}}}}}}", q(server))
}

async fn tls(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let (cert, key) = (cx.flags.string("cert"), cx.flags.string("key"));
    if cert.is_empty() || key.is_empty() {
        return Err(Failure::message("key and cert must be specified"));
    }
    let read = |file: &str| {
        std::fs::read(file).map_err(|e| {
            Failure::message(format!("Cannot read file {file}, {}", crate::go_errors::go_io_error("open", file, &e)))
        })
    };
    let data = [("tls.crt".to_owned(), read(&cert)?), ("tls.key".to_owned(), read(&key)?)];
    if !String::from_utf8_lossy(&data[0].1).contains("-----BEGIN CERTIFICATE-----") {
        return Err(Failure::message("tls: failed to find any PEM data in certificate input"));
    }
    send_secret(cx, build_secret(&name, "kubernetes.io/tls", &data)).await
}

fn append_hash(cx: &Context, object: &mut Value) {
    if !cx.flags.bool("append-hash") {
        return;
    }
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    object["metadata"]["name"] = json!(format!("{name}-{}", crate::objects::content_hash(object, name)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn secret_goldens() {
        expect![[r#"
            apiVersion: v1
            data:
              password: cw==
            kind: Secret
            metadata:
              name: db
        "#]]
        .assert_eq(&api::yaml::to_string(&build_secret("db", "", &[("password".to_owned(), b"s".to_vec())])));
        assert_eq!(
            docker_config("https://r", "u", "p", "e@x"),
            r#"{"auths":{"https://r":{"username":"u","password":"p","email":"e@x","auth":"dTpw"}}}"#
        );
    }

    #[test]
    fn sources_name_their_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.txt");
        std::fs::write(&file, "x").unwrap();
        let path = file.to_str().unwrap();
        assert_eq!(file_source(path).unwrap(), [("a.txt".to_owned(), b"x".to_vec())]);
        assert_eq!(file_source(&format!("k={path}")).unwrap(), [("k".to_owned(), b"x".to_vec())]);
        assert_eq!(file_source(dir.path().to_str().unwrap()).unwrap(), [("a.txt".to_owned(), b"x".to_vec())]);
        assert!(file_source("=x").is_err() && file_source("k=").is_err());
    }
}
