//! `create ingress`

use serde_json::{Value, json};

use super::{GENERATOR, finish, known, name_argument};
use crate::cli::{Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};

pub(super) const COMMAND: Command = Command {
    name: "ingress",
    aliases: &["ing"],
    usage: "NAME --rule=host/path=service:port[,tls[=secret]] ",
    about: "Create an ingress with the specified name",
    examples: "  kubectl create ingress web --rule=\"example.com/*=web:80,tls=cert\" --class=nginx",
    flags: &[
        GENERATOR,
        &[
            Flag::string("class", "Ingress class."),
            Flag::array("rule", "host/path=service:port[,tls=secret]; a path with a trailing * is a prefix."),
            Flag::string("default-backend", "Service for everything else, as service:port."),
            Flag::array("annotation", "Annotation to put on the object, as key=value."),
        ],
    ],
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let object = build(
        &name,
        &cx.flags.string("class"),
        &cx.flags.string("default-backend"),
        &cx.flags.list("rule"),
        &cx.flags.list("annotation"),
    )?;
    finish(cx, &known("networking.k8s.io/v1", "ingresses", "Ingress", true), object, "failed to create ingress:").await
}

fn backend(text: &str) -> Option<Value> {
    let (service, port) = text.split_once(':')?;
    if service.is_empty() || port.is_empty() || port.contains(':') {
        return None;
    }
    let port = match port.parse::<i64>() {
        Ok(n) => json!({"number": n}),
        Err(_) => json!({"name": port}),
    };
    Some(json!({"service": {"name": service, "port": port}}))
}

fn build(name: &str, class: &str, default: &str, rules: &[String], annotations: &[String]) -> Result<Value> {
    if rules.is_empty() && default.is_empty() {
        return Err(Failure::message(
            "not enough information provided: every ingress has to either specify a default-backend (which catches all traffic) or a list of rules (which catch specific paths)",
        ));
    }
    let mut spec = json!({});
    if !class.is_empty() {
        spec["ingressClassName"] = json!(class);
    }
    if !default.is_empty() {
        spec["defaultBackend"] = backend(default)
            .ok_or_else(|| Failure::message("default-backend should be in format servicename:serviceport"))?;
    }
    let mut hosts: Vec<(String, Vec<Value>)> = Vec::new();
    let mut tls: Vec<(String, Vec<String>)> = Vec::new();
    for rule in rules {
        let invalid = || {
            Failure::message(format!(
                "rule {rule} is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]"
            ))
        };
        let (place, rest) = rule.split_once('=').ok_or_else(invalid)?;
        let (target, secure) = rest.split_once(',').map_or((rest, None), |(t, s)| (t, Some(s)));
        let slash = place.find('/').ok_or_else(invalid)?;
        let (host, path) = place.split_at(slash);
        let (path, kind) = match path.strip_suffix('*') {
            Some(prefix) => (prefix, "Prefix"),
            None => (path, "Exact"),
        };
        let entry = json!({"path": path, "pathType": kind, "backend": backend(target).ok_or_else(invalid)?});
        match hosts.iter_mut().find(|(h, _)| h == host) {
            Some((_, paths)) => paths.push(entry),
            None => hosts.push((host.to_owned(), vec![entry])),
        }
        if let Some(secure) = secure {
            let secret = match secure.split_once('=') {
                Some(("tls", s)) => s,
                None if secure == "tls" => "",
                _ => return Err(invalid()),
            };
            match tls.iter_mut().find(|(s, _)| s == secret) {
                Some((_, hosts)) if !hosts.iter().any(|h| h == host) => hosts.push(host.to_owned()),
                Some(_) => {}
                None => tls.push((secret.to_owned(), vec![host.to_owned()])),
            }
        }
    }
    if !hosts.is_empty() {
        spec["rules"] = hosts
            .into_iter()
            .map(|(host, paths)| {
                let mut rule = json!({"http": {"paths": paths}});
                if !host.is_empty() {
                    rule["host"] = json!(host);
                }
                rule
            })
            .collect();
    }
    if !tls.is_empty() {
        spec["tls"] = tls
            .into_iter()
            .map(|(secret, hosts)| {
                let hosts: Vec<String> = hosts.into_iter().filter(|h| !h.is_empty()).collect();
                let mut entry = json!({});
                if !hosts.is_empty() {
                    entry["hosts"] = json!(hosts);
                }
                if !secret.is_empty() {
                    entry["secretName"] = json!(secret);
                }
                entry
            })
            .collect();
    }
    let mut object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": name},
                            "spec": spec, "status": {"loadBalancer": {}}});
    for annotation in annotations {
        let (k, v) = annotation.split_once('=').ok_or_else(|| {
            Failure::message(format!("annotation {annotation} is invalid and should be in format key=[value]"))
        })?;
        object["metadata"]["annotations"][k] = json!(v);
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_group_by_host() {
        let rules = ["a.com/x=s:80,tls=c".to_owned(), "a.com/y*=t:http".to_owned(), "/=d:1".to_owned()];
        let spec = build("i", "nginx", "", &rules, &[]).unwrap()["spec"].take();
        assert_eq!(spec["rules"][0]["http"]["paths"][1]["pathType"], "Prefix");
        assert_eq!(spec["rules"][0]["http"]["paths"][1]["backend"]["service"]["port"]["name"], "http");
        assert!(spec["rules"][1].get("host").is_none());
        assert_eq!(spec["tls"], json!([{"hosts": ["a.com"], "secretName": "c"}]));
        assert!(build("i", "", "", &[], &[]).is_err());
        assert!(build("i", "", "", &["bad".to_owned()], &[]).is_err());
    }
}
