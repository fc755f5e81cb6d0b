//! `/statusz` and `/flagz`: what a component says of itself to people who look for a fault.
//!
//! As text, or in the structured form of `config.k8s.io` for those who ask for it by name.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::sort::CompactSort as _;

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";
/// The versions of the structured form.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
/// What a client may ask for.
pub const OFFERED: &[&str] = &["text/plain", "application/json;as=<kind>;g=config.k8s.io;v=v1beta1"];

/// A page and its media type.
pub type Page = (&'static str, String);

/// What there is to say of a component.
pub struct About<'a> {
    /// As upstream calls it.
    pub component: &'a str,
    pub started: Timestamp,
    pub now: Timestamp,
    /// All that it serves.
    pub paths: &'a [&'a str],
}

/// `/statusz`, or nothing if it cannot be had in a form that the client takes.
pub fn statusz(about: &About<'_>, accept: &str) -> Option<Page> {
    let up = about.now.duration_since(about.started).as_secs().max(0);
    let version = crate::version::KUBERNETES.trim_start_matches('v');
    let emulated = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    let paths = folders(about.paths);
    Some(match form(accept, "Statusz")? {
        Form::Text => {
            let started = about.started.strftime("%a %b %e %H:%M:%S UTC %Y");
            let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
            let text = format!(
                "\n{} statusz\n{WARNING}\n\nStarted: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\n\
                 Go version: none\nBinary version: {version}\nEmulation version: {emulated}\nPaths: {}\n",
                about.component,
                paths.join(" "),
            );
            (TEXT, text)
        }
        Form::Structured(api_version) => {
            let value = json!({
                "kind": "Statusz", "apiVersion": api_version, "metadata": {"name": about.component},
                "startTime": crate::time::rfc3339(about.started), "uptimeSeconds": up,
                "goVersion": "none", "binaryVersion": version, "emulationVersion": emulated, "paths": paths,
            });
            (JSON, value.to_string())
        }
    })
}

/// `/flagz`, or nothing if it cannot be had in a form that the client takes.
pub fn flagz(component: &str, flags: &BTreeMap<String, String>, accept: &str) -> Option<Page> {
    Some(match form(accept, "Flagz")? {
        Form::Text => {
            let lines: String = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
            (TEXT, format!("\n{component} flagz\n{WARNING}\n\n{lines}"))
        }
        Form::Structured(api_version) => {
            let value: Value = json!({
                "kind": "Flagz", "apiVersion": api_version, "metadata": {"name": component}, "flags": flags,
            });
            (JSON, value.to_string())
        }
    })
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

#[derive(Debug, PartialEq)]
enum Form {
    Text,
    /// With its `apiVersion`.
    Structured(String),
}

fn form(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    accept.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next()?;
        let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
        match media {
            "text/plain" | "text/*" | "*/*" if !parameters.contains_key("as") => Some(Form::Text),
            "application/json" if parameters.get("as") == Some(&kind) => {
                let version = VERSIONS.into_iter().find(|known| parameters.get("v") == Some(known))?;
                let is_ours = parameters.get("g") == Some(&"config.k8s.io");
                is_ours.then(|| Form::Structured(format!("config.k8s.io/{version}")))
            }
            _ => None,
        }
    })
}

/// The first part of each path, without those that are the API itself.
fn folders(paths: &[&str]) -> Vec<String> {
    let first = |path: &&str| path.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
    let mut folders: Vec<String> = paths.iter().map(first).collect();
    folders.retain(|folder| !matches!(&**folder, "" | "api" | "apis" | "openid" | "openapi" | ".well-known"));
    folders.compact_sort();
    folders.dedup();
    folders.iter().map(|folder| format!("/{folder}")).collect()
}

static FLAGS: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// Notes how this process was started; the first word counts.
pub fn remember_flags(command: &clap::Command, matches: &clap::ArgMatches) {
    let mut flags = BTreeMap::new();
    for arg in command.get_arguments() {
        let (Some(name), Ok(Some(values))) = (arg.get_long(), matches.try_get_raw(arg.get_id().as_str())) else {
            continue;
        };
        let values: Vec<_> = values.map(|value| value.to_string_lossy().into_owned()).collect();
        flags.insert(name.to_owned(), if is_secret(name) { "<hidden>".to_owned() } else { values.join(",") });
    }
    let _ = FLAGS.set(flags);
}

/// How this process was started.
pub fn flags() -> &'static BTreeMap<String, String> {
    FLAGS.get_or_init(BTreeMap::new)
}

/// Whether a flag is a secret itself, and not the name of a file with one.
fn is_secret(name: &str) -> bool {
    let has = |word| name.split('-').any(|part| part == word);
    (has("token") || has("password") || has("secret") || has("key")) && !has("file") && !has("dir") && !has("ttl")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_in_the_form_that_is_asked_for() {
        let alpha = "application/json;v=v1alpha1;g=config.k8s.io;as=Statusz";
        for (accept, expected) in [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            (alpha, Some(Form::Structured("config.k8s.io/v1alpha1".to_owned()))),
            (
                "application/json;as=Statusz;v=v1beta1;g=config.k8s.io,text/plain",
                Some(Form::Structured("config.k8s.io/v1beta1".to_owned())),
            ),
            ("application/json;as=Statusz;v=v9;g=config.k8s.io", None),
            ("application/json;as=Flagz;v=v1beta1;g=config.k8s.io", None),
            ("application/json", None),
            ("image/png", None),
        ] {
            assert_eq!(form(accept, "Statusz"), expected, "{accept}");
        }
    }

    #[test]
    fn a_component_says_since_when_it_runs_and_what_it_serves() {
        let started: Timestamp = "2024-10-06T21:03:43Z".parse().unwrap();
        let about = About {
            component: "kube-apiserver",
            started,
            now: started + jiff::SignedDuration::from_secs(3676),
            paths: &["/livez", "/apis/apps/v1", "/metrics/slis", "/metrics", "/openapi/v2"],
        };
        let (media, text) = statusz(&about, "").unwrap();
        assert_eq!(media, "text/plain; charset=utf-8");
        assert!(
            text.starts_with("\nkube-apiserver statusz\nWarning: This endpoint is not meant to be machine parseable")
        );
        assert!(text.contains("\n\nStarted: Sun Oct  6 21:03:43 UTC 2024\nUp: 1 hr 01 min 16 sec\n"), "{text}");
        assert!(text.ends_with("\nPaths: /livez /metrics\n"), "{text}");
        let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
        let value: Value = serde_json::from_str(&statusz(&about, accept).unwrap().1).unwrap();
        assert_eq!(value["startTime"], "2024-10-06T21:03:43Z");
        assert_eq!((&value["uptimeSeconds"], &value["kind"]), (&json!(3676), &json!("Statusz")));

        let flags = BTreeMap::from([("secure-port".to_owned(), "6443".to_owned())]);
        assert!(flagz("kube-apiserver", &flags, "").unwrap().1.ends_with("only.\n\nsecure-port=6443\n"));
    }

    #[test]
    fn security_flags_that_are_secrets_are_hidden() {
        for (name, expected) in [
            ("token", true),
            ("join-token", true),
            ("token-auth-file", false),
            ("service-account-signing-key-file", false),
            ("authentication-token-webhook-cache-ttl", false),
            ("secure-port", false),
        ] {
            assert_eq!(is_secret(name), expected, "{name}");
        }
    }
}
