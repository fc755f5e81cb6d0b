//! Preferences of one person: `~/.kube/kuberc`, `$KUBERC` or `--kuberc`. Aliases and defaults of flags are written into
//! the command line before it is parsed, so that a command cannot tell them from typed words.
//!
//! Flow: argv -> [`apply`] -> argv with aliases and defaults -> `cli`. `kubectl kuberc` (in `commands`) edits the file.

use std::path::PathBuf;

use api::sort::CompactSort as _;
use serde_json::Value;

use crate::cli::{Command, command_of, find_flag};
use crate::context::{home, klog_line};
use crate::failure::{Failure, Result};
use crate::objects::{strings, text};
use crate::plugin_policy::PluginPolicy;

/// Where preferences are, and whether somebody named the place. `None` when they are turned off.
pub(crate) fn place(flag: &str) -> Result<Option<(PathBuf, bool)>> {
    let variable = std::env::var("KUBERC").unwrap_or_default();
    if std::env::var("KUBECTL_KUBERC").is_ok_and(|v| v == "false") {
        return Ok(None);
    }
    if variable == "off" {
        if !flag.is_empty() {
            return Err(Failure::message(
                "disabling kuberc via KUBERC=off and passing kuberc flag are mutually exclusive",
            ));
        }
        return Ok(None);
    }
    Ok(Some(match (flag, variable.as_str()) {
        ("", "") => (home().join(".kube/kuberc"), false),
        ("", variable) => (PathBuf::from(variable), true),
        (flag, _) => (PathBuf::from(flag), true),
    }))
}

/// What the preferences make of a command line, and the rule for credential plug-ins.
pub(crate) fn apply(root: &'static Command, argv: Vec<String>) -> Result<(Vec<String>, PluginPolicy)> {
    if argv.is_empty() {
        return Ok((argv, PluginPolicy::default()));
    }
    let Some((file, explicit)) = place(&flag_value(&argv)?)? else { return Ok((argv, PluginPolicy::default())) };
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        // `kubectl kuberc set` makes the file.
        Err(e)
            if e.kind() == std::io::ErrorKind::NotFound && (!explicit || argv.iter().any(|word| word == "kuberc")) =>
        {
            return Ok((argv, PluginPolicy::default()));
        }
        Err(e) if explicit => {
            let why = crate::go_errors::go_io_error("open", &file.display().to_string(), &e);
            return Err(Failure::message(format!("kuberc error kuberc: {why}")));
        }
        Err(_) => return Ok((argv, PluginPolicy::default())),
    };
    let mut notes = Vec::new();
    let parsed = parse(&text, &file.display().to_string(), &mut notes);
    if verbosity(&argv) >= 5 {
        for note in &notes {
            eprintln!("{}", klog_line('I', "kuberc.rs", note));
        }
    }
    let preferences = match parsed {
        Ok(Some((preferences, unknown))) => {
            if !unknown.is_empty() {
                // Without a line's end, as upstream's.
                eprint!("kuberc: ignoring strict decoding error in {}: {}", file.display(), strict_error(&unknown));
            }
            preferences
        }
        Ok(None) => return Ok((argv, PluginPolicy::default())),
        Err(_) if explicit => {
            return Err(Failure::message(format!(
                "kuberc error kuberc: no valid preferences found in {}, use --v=5 to see details",
                file.display()
            )));
        }
        Err(e) => {
            eprintln!("kuberc: no preferences loaded from {}: {e}", file.display());
            return Ok((argv, PluginPolicy::default()));
        }
    };
    let policy = plugin_policy(&preferences)?;
    check(&preferences)?;
    Ok((rewrite(root, &preferences, argv)?, policy))
}

/// `--kuberc` must be known before flags are parsed.
fn flag_value(argv: &[String]) -> Result<String> {
    let mut words = argv.iter().take_while(|w| *w != "--");
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--kuberc") {
            Some("") => words.next().cloned(),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => continue,
        };
        return value
            .filter(|v| !v.is_empty())
            .ok_or_else(|| Failure::message("kuberc error kuberc file is not found"));
    }
    Ok(String::new())
}

/// `-v` decides what is said about the file, so it must be known before flags are parsed as well.
fn verbosity(argv: &[String]) -> i64 {
    let mut words = argv.iter().take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--v").or_else(|| word.strip_prefix("-v")) {
            Some("") => words.next().map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        if let Some(level) = value.and_then(|value| value.parse().ok()) {
            return level;
        }
    }
    0
}

/// What a field of a document may be.
enum Shape {
    Text,
    List(&'static Shape),
    Object(&'static [(&'static str, Shape)]),
}

const TEXTS: Shape = Shape::List(&Shape::Text);
const OPTIONS: Shape = Shape::List(&Shape::Object(&[("name", Shape::Text), ("default", Shape::Text)]));

/// A document of a version: what it calls commands with options of their own, what it calls options, and what it adds.
macro_rules! document {
    ($commands:literal, $options:literal $(, $more:expr)*) => {
        Shape::Object(&[
            ("apiVersion", Shape::Text),
            ("kind", Shape::Text),
            ($commands, Shape::List(&Shape::Object(&[("command", Shape::Text), ($options, OPTIONS)]))),
            (
                "aliases",
                Shape::List(&Shape::Object(&[
                    ("name", Shape::Text),
                    ("command", Shape::Text),
                    ("prependArgs", TEXTS),
                    ("appendArgs", TEXTS),
                    ($options, OPTIONS),
                ])),
            ),
            $($more,)*
        ])
    };
}

const V1BETA1: Shape = document!(
    "defaults",
    "options",
    ("credentialPluginPolicy", Shape::Text),
    ("credentialPluginAllowlist", Shape::List(&Shape::Object(&[("name", Shape::Text), ("command", Shape::Text)])))
);
const V1ALPHA1: Shape = document!("overrides", "flags");

impl Shape {
    /// Notes the paths of fields that do not exist; false when a value is of another type, which no decoder takes.
    fn fits(&self, value: &Value, path: &str, unknown: &mut Vec<String>) -> bool {
        match (self, value) {
            (_, Value::Null) | (Shape::Text, Value::String(_)) => true,
            (Shape::List(item), Value::Array(items)) => {
                items.iter().enumerate().all(|(at, value)| item.fits(value, &format!("{path}[{at}]"), unknown))
            }
            (Shape::Object(fields), Value::Object(map)) => {
                let mut names: Vec<&String> = map.keys().collect();
                names.compact_sort();
                names.into_iter().all(|name| {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    match fields.iter().find(|(field, _)| field == name) {
                        Some((_, shape)) => shape.fits(&map[name], &path, unknown),
                        None => {
                            unknown.push(path);
                            true
                        }
                    }
                })
            }
            _ => false,
        }
    }
}

fn strict_error(unknown: &[String]) -> String {
    let fields: Vec<String> = unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
    format!("strict decoding error: {}", fields.join(", "))
}

/// Why a file holds no preferences.
#[derive(Debug, thiserror::Error)]
enum PreferencesError {
    #[error(transparent)]
    Document(#[from] api::documents::DocumentError),
    #[error("no valid preferences found")]
    NoneFound,
}

/// The first document that is a Preference of a version we know, and its fields that we do not; its older spelling is
/// brought to the newer. `notes` are for `-v=5`: which document was taken, and why others were not.
fn parse(text: &str, file: &str, notes: &mut Vec<String>) -> Result<Option<(Value, Vec<String>)>, PreferencesError> {
    let documents = crate::manifests::documents(text)?;
    let attempted = !documents.is_empty();
    for (mut document, entry) in documents.into_iter().zip(1..) {
        let (version, kind) = (self::text(&document, "/apiVersion").to_owned(), self::text(&document, "/kind"));
        let (shape, older) = match (version.as_str(), kind) {
            ("kubectl.config.k8s.io/v1beta1", "Preference") => (&V1BETA1, false),
            ("kubectl.config.k8s.io/v1alpha1", "Preference") => (&V1ALPHA1, true),
            _ => {
                notes.push(format!(
                    "kuberc: unexpected GroupVersionKind for entry {entry} in {file}: {version}, Kind={kind}"
                ));
                continue;
            }
        };
        let mut unknown = Vec::new();
        if !shape.fits(&document, "", &mut unknown) {
            notes.push(format!(
                "kuberc: strict decoding error for entry {entry} in {file}: a field has a value of another type"
            ));
            continue;
        }
        notes.push(format!("kuberc: using entry {entry} ({version}) in {file}"));
        if older {
            document["defaults"] = document["overrides"].take();
            for list in ["defaults", "aliases"] {
                for entry in document[list].as_array_mut().into_iter().flatten() {
                    entry["options"] = entry["flags"].take();
                }
            }
        }
        return Ok(Some((document, unknown)));
    }
    if attempted {
        return Err(PreferencesError::NoneFound);
    }
    notes.push(format!("kuberc: no preferences found in {file}"));
    Ok(None)
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn check(preferences: &Value) -> Result<()> {
    let mut seen = Vec::new();
    let (aliases, defaults) = (list(preferences, "aliases"), list(preferences, "defaults"));
    for alias in aliases {
        let name = text(alias, "/name");
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphabetic()) {
            return Err(Failure::message("invalid alias name, can only include alphabetical characters"));
        }
        if seen.contains(&name) {
            return Err(Failure::message(format!("duplicate alias name {name}")));
        }
        seen.push(name);
    }
    for option in aliases.iter().chain(defaults).flat_map(|entry| list(entry, "options")) {
        if text(option, "/name").starts_with('-') {
            let name = text(option, "/name");
            return Err(Failure::message(format!("flag name {name} should be in long form without dashes")));
        }
    }
    Ok(())
}

fn rewrite(root: &'static Command, preferences: &Value, argv: Vec<String>) -> Result<Vec<String>> {
    let (command, path) = command_of(root, &argv);
    let completing = argv[0].starts_with("__complete");
    if path.is_empty() || completing {
        return alias(root, preferences, argv, usize::from(completing));
    }
    let mut extra = Vec::new();
    for entry in list(preferences, "defaults") {
        let words: Vec<String> = text(entry, "/command").split_whitespace().map(str::to_owned).collect();
        let (wanted, named) = command_of(root, &words);
        if named.is_empty() || named.len() < words.len() {
            eprintln!("Warning: command {:?} not found to set kuberc override", text(entry, "/command"));
            continue;
        }
        if !std::ptr::eq(wanted, command) {
            continue;
        }
        for option in list(entry, "options") {
            let name = text(option, "/name");
            if find_flag(command, name).is_none() {
                let command = text(entry, "/command");
                return Err(Failure::message(format!("invalid flag {name} for command {command}")));
            }
            if !is_given(command, name, &argv) {
                extra.push(format!("--{name}={}", text(option, "/default")));
            }
        }
    }
    let at = path.last().map_or(0, |last| last + 1);
    Ok([&argv[..at], &extra, &argv[at..]].concat())
}

/// An alias stands where a command would: the first word that is no flag.
fn alias(root: &'static Command, preferences: &Value, argv: Vec<String>, from: usize) -> Result<Vec<String>> {
    let Some(at) = argv.iter().skip(from).position(|w| !w.starts_with('-')).map(|i| i + from) else { return Ok(argv) };
    let Some(alias) = list(preferences, "aliases").iter().find(|a| text(a, "/name") == argv[at]) else {
        return Ok(argv);
    };
    if root.subcommand(&argv[at]).is_some() {
        return Ok(argv);
    }
    let words: Vec<String> = text(alias, "/command").split_whitespace().map(str::to_owned).collect();
    let (command, named) = command_of(root, &words);
    if named.is_empty() {
        return Err(Failure::message(format!(
            "command {:?} not found to set alias {:?}: {words:?}",
            text(alias, "/command"),
            text(alias, "/name")
        )));
    }
    let mut out = [&argv[..at], &words].concat();
    for option in list(alias, "options") {
        let name = text(option, "/name");
        if find_flag(command, name).is_none() {
            return Err(Failure::message(format!("invalid alias flag {name} in alias {}", argv[at])));
        }
        if !is_given(command, name, &argv) {
            out.push(format!("--{name}={}", text(option, "/default")));
        }
    }
    out.extend(strings(&alias["prependArgs"]).into_iter().map(str::to_owned));
    out.extend_from_slice(&argv[at + 1..]);
    out.extend(strings(&alias["appendArgs"]).into_iter().map(str::to_owned));
    Ok(out)
}

fn is_given(command: &'static Command, name: &str, argv: &[String]) -> bool {
    let short = find_flag(command, name).and_then(|f| f.short);
    argv.iter().take_while(|w| *w != "--").any(|word| match word.strip_prefix("--") {
        Some(long) => long == name || long.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')),
        None => short.is_some_and(|s| word.strip_prefix('-').is_some_and(|w| w.starts_with(s))),
    })
}

/// What the preferences say of credential plug-ins.
fn plugin_policy(preferences: &Value) -> Result<PluginPolicy> {
    let commands: Vec<String> = list(preferences, "credentialPluginAllowlist")
        .iter()
        .map(|entry| match text(entry, "/command") {
            "" => text(entry, "/name").to_owned(),
            command => command.to_owned(),
        })
        .collect();
    match (text(preferences, "/credentialPluginPolicy"), commands.is_empty()) {
        ("" | "AllowAll", true) => Ok(PluginPolicy::AllowAll),
        ("DenyAll", true) => Ok(PluginPolicy::DenyAll),
        ("Allowlist", false) => Ok(PluginPolicy::Allowlist(commands)),
        ("Allowlist", true) => Err(Failure::message(
            "misconfigured credential plugin allowlist: plugin policy is \"Allowlist\" but allowlist is empty",
        )),
        ("" | "AllowAll" | "DenyAll", false) => Err(Failure::message(
            "misconfigured credential plugin allowlist: plugin policy is not \"Allowlist\" but allowlist is non-nil",
        )),
        (other, _) => Err(Failure::message(format!("unknown plugin policy: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n\
        defaults:\n- command: get\n  options:\n  - {name: output, default: wide}\n- command: set env\n  options:\n  - {name: overwrite, default: 'false'}\n\
        aliases:\n- name: getn\n  command: get\n  prependArgs: [nodes]\n  options:\n  - {name: output, default: json}\n\
        - name: runx\n  command: run\n  options:\n  - {name: image, default: nginx}\n  appendArgs: ['--', sleep]\n";

    fn read(text: &str) -> Option<(Value, Vec<String>)> {
        parse(text, "kuberc", &mut Vec::new()).unwrap()
    }

    fn rewritten(line: &str) -> String {
        let (preferences, unknown) = read(FILE).unwrap();
        assert_eq!(unknown, Vec::<String>::new());
        check(&preferences).unwrap();
        rewrite(&crate::commands::ROOT, &preferences, line.split(' ').map(str::to_owned).collect()).unwrap().join(" ")
    }

    #[test]
    fn aliases_and_defaults_become_words() {
        for (line, expected) in [
            ("get pods", "get --output=wide pods"),
            ("-n x get pods", "-n x get --output=wide pods"),
            ("get pods -oyaml", "get pods -oyaml"),
            ("get pods --output yaml", "get pods --output yaml"),
            ("describe pods", "describe pods"),
            ("set env deploy/a B=c", "set env --overwrite=false deploy/a B=c"),
            ("getn", "get --output=json nodes"),
            ("getn -o name worker", "get nodes -o name worker"),
            ("runx web", "run --image=nginx web -- sleep"),
            ("unknown x", "unknown x"),
        ] {
            assert_eq!(rewritten(line), expected, "{line}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (file, expected) in [
            (
                "aliases: [{name: a1, command: get}]",
                "error: invalid alias name, can only include alphabetical characters",
            ),
            ("aliases: [{name: a, command: get}, {name: a, command: get}]", "error: duplicate alias name a"),
            (
                "defaults: [{command: get, options: [{name: -o, default: x}]}]",
                "error: flag name -o should be in long form without dashes",
            ),
        ] {
            let text = format!("apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n{file}\n");
            let (preferences, _) = read(&text).unwrap();
            assert_eq!(check(&preferences).unwrap_err().to_string(), expected);
        }
        assert!(parse("a: b", "kuberc", &mut Vec::new()).is_err());
        assert_eq!(read(""), None);
    }

    #[test]
    fn unknown_fields_are_named_and_other_types_pass_the_document_over() {
        for (file, expected) in [
            ("unknown: invalid", "strict decoding error: unknown field \"unknown\""),
            (
                "zoo: 1\ndefaults:\n- command: get\n  options: []\n- command: get\n  option: []",
                "strict decoding error: unknown field \"defaults[1].option\", unknown field \"zoo\"",
            ),
            // The older version's words.
            ("overrides: []", "strict decoding error: unknown field \"overrides\""),
        ] {
            let text = format!("apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n{file}\n");
            let (_, unknown) = read(&text).unwrap();
            assert_eq!(strict_error(&unknown), expected);
        }
        let second = "apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\ndefaults: text\n---\n\
            apiVersion: kubectl.config.k8s.io/v1alpha1\nkind: Preference\noverrides:\n- {command: get, flags: [{name: a, default: b}]}\n";
        let (document, unknown) = read(second).unwrap();
        assert_eq!((text(&document, "/defaults/0/options/0/name"), unknown.len()), ("a", 0));
    }

    #[test]
    fn notes_say_which_document_was_taken_and_why_others_were_not() {
        let other = "apiVersion: v1\nkind: Pod\n---\n\
            apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\ndefaults: text\n---\n\
            apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n";
        for (text, expected) in [
            ("", &["kuberc: no preferences found in f"][..]),
            (
                other,
                &[
                    "kuberc: unexpected GroupVersionKind for entry 1 in f: v1, Kind=Pod",
                    "kuberc: strict decoding error for entry 2 in f: a field has a value of another type",
                    "kuberc: using entry 3 (kubectl.config.k8s.io/v1beta1) in f",
                ][..],
            ),
        ] {
            let mut notes = Vec::new();
            parse(text, "f", &mut notes).unwrap();
            assert_eq!(notes, expected, "{text}");
        }
    }

    #[test]
    fn verbosity_is_read_before_flags_are_parsed() {
        for (line, expected) in [
            ("get pods", 0),
            ("get pods -v=5", 5),
            ("get pods -v 6", 6),
            ("get --v 7 pods", 7),
            ("--v=8 get pods", 8),
            ("get pods -- -v=5", 0),
            ("get pods -v", 0),
            ("get pods --validate=false", 0),
        ] {
            let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(verbosity(&argv), expected, "{line}");
        }
    }
}
