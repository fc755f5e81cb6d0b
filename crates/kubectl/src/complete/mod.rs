//! `kubectl __complete WORDS… LAST`: what could follow on a command line, for the shells' completion scripts.
//!
//! Flow: the words before the last are parsed as a command line -> candidates from the command table (names, flags), from the
//! kubeconfig (contexts) or from the server (types, names, containers, ports) -> one line each, `value<TAB>description`,
//! then `:N` with the bits of [`Directive`], which is the protocol of cobra, upstream's library.
//! Failures are silent: a prompt is no place for errors.

mod live;

use api::sort::CompactSort as _;

use crate::cli::{Command, Flag, GLOBAL, Parsed, Words, find_flag, parse};
use crate::commands::{ROOT, plugin};
use crate::context::Context;

/// How the shell treats the candidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Directive {
    /// Offer files when there are no candidates.
    Files = 0,
    /// Nothing to offer, not even files.
    NoFiles = 4,
    /// No space after the word: more of it follows.
    Unfinished = 6,
}

#[derive(Default)]
pub(crate) struct Candidates {
    /// Value and description.
    pub(crate) rows: Vec<(String, String)>,
    pub(crate) directive: Option<Directive>,
}

impl Candidates {
    fn of(rows: Vec<(String, String)>, directive: Directive) -> Candidates {
        Candidates { rows, directive: Some(directive) }
    }

    fn values(values: impl IntoIterator<Item = String>, directive: Directive) -> Candidates {
        Candidates::of(values.into_iter().map(|v| (v, String::new())).collect(), directive)
    }
}

/// The answer as printed, for the words after `__complete`.
pub(crate) fn answer(words: &[String], descriptions: bool) -> String {
    let (before, last) = match words.split_last() {
        Some((last, before)) => (before, last.as_str()),
        None => (words, ""),
    };
    let found = candidates(before, last);
    let mut out = String::new();
    for (value, description) in &found.rows {
        out.push_str(value);
        if descriptions && !description.is_empty() {
            out.push('\t');
            out.push_str(description);
        }
        out.push('\n');
    }
    out.push_str(&format!(":{}\n", found.directive.unwrap_or(Directive::NoFiles) as u8));
    out
}

fn candidates(before: &[String], last: &str) -> Candidates {
    let (command, path) = crate::cli::command_of(&ROOT, before);
    let after_dash = before.iter().any(|w| w == "--");
    if !after_dash {
        // `--flag=va`, `--flag va`
        if let Some((name, value)) = last.strip_prefix("--").and_then(|l| l.split_once('=')) {
            let mut found = flag_values(command, before, name, value);
            found.rows.iter_mut().for_each(|(v, _)| *v = format!("--{name}={v}"));
            return found;
        }
        if let Some(flag) = before.last().and_then(|word| awaiting(command, word)) {
            return flag_values(command, before, flag.name, last);
        }
        if last.starts_with('-') {
            return Candidates::of(flags(command, last), Directive::NoFiles);
        }
    }
    let mut rows = Vec::new();
    if path.len() == before.iter().filter(|w| !w.starts_with('-')).count() || command.run.is_none() {
        rows.extend(subcommands(command, last));
    }
    if command.name == "kubectl" {
        rows.extend(plugin::names().into_iter().filter(|n| n.starts_with(last)).map(|n| (n, String::new())));
    }
    if !rows.is_empty() || command.run.is_none() {
        return Candidates::of(rows, Directive::NoFiles);
    }
    match (&command.words, context(before)) {
        (Words::Files, _) => Candidates { directive: Some(Directive::Files), ..Candidates::default() },
        (Words::Choice(choice), Some(cx)) if cx.args().is_empty() => {
            let fitting = choice.iter().filter(|c| c.starts_with(last)).map(|c| (*c).to_owned());
            Candidates::values(fitting, Directive::NoFiles)
        }
        (words, Some(cx)) => live::words(&cx, words, last),
        (_, None) => Candidates::default(),
    }
}

fn subcommands(command: &Command, prefix: &str) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> = command
        .subcommands
        .iter()
        .filter(|c| c.name.starts_with(prefix))
        .map(|c| (c.name.to_owned(), c.about.to_owned()))
        .collect();
    rows.compact_sort();
    rows
}

fn flags(command: &'static Command, prefix: &str) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> = Vec::new();
    for flag in command.own_flags().chain(GLOBAL).filter(|f| !f.hidden) {
        let long = format!("--{}{}", flag.name, if flag.bare.is_none() { "=" } else { "" });
        if long.starts_with(prefix) && !rows.iter().any(|(value, _)| *value == long) {
            rows.push((long, flag.help.to_owned()));
        }
        if let Some(short) = flag.short.map(|c| format!("-{c}")).filter(|s| s.starts_with(prefix)) {
            rows.push((short, flag.help.to_owned()));
        }
    }
    rows.compact_sort();
    rows
}

/// The flag whose value comes next, if `word` is one without its value.
fn awaiting(command: &'static Command, word: &str) -> Option<&'static Flag> {
    let flag = match word.strip_prefix("--") {
        Some(long) if !long.contains('=') => find_flag(command, long),
        Some(_) => None,
        None => {
            let short = word.strip_prefix('-').filter(|s| !s.is_empty())?.chars().last()?;
            command.own_flags().chain(GLOBAL).find(|f| f.short == Some(short))
        }
    }?;
    flag.bare.is_none().then_some(flag)
}

const FORMATS: &[&str] = &[
    "custom-columns=",
    "custom-columns-file=",
    "go-template=",
    "go-template-file=",
    "json",
    "jsonpath=",
    "jsonpath-as-json=",
    "jsonpath-file=",
    "kyaml",
    "name",
    "wide",
    "yaml",
];

fn flag_values(command: &'static Command, before: &[String], flag: &str, prefix: &str) -> Candidates {
    let choice = |values: &[&str], directive| {
        Candidates::values(values.iter().filter(|v| v.starts_with(prefix)).map(|v| (*v).to_owned()), directive)
    };
    match flag {
        "output" => choice(FORMATS, Directive::NoFiles),
        "dry-run" => choice(&["none", "server", "client"], Directive::NoFiles),
        "validate" => choice(&["strict", "warn", "ignore"], Directive::NoFiles),
        "cascade" => choice(&["background", "orphan", "foreground"], Directive::NoFiles),
        "profile" if command.name == "debug" => {
            choice(&["general", "baseline", "restricted", "netadmin", "sysadmin"], Directive::NoFiles)
        }
        "restart" => choice(&["Always", "OnFailure", "Never"], Directive::NoFiles),
        "type" if command.name == "patch" => choice(&["json", "merge", "strategic"], Directive::NoFiles),
        "filename"
        | "kustomize"
        | "kubeconfig"
        | "kuberc"
        | "cache-dir"
        | "certificate-authority"
        | "client-certificate"
        | "client-key"
        | "patch-file"
        | "from-file"
        | "from-env-file"
        | "cert"
        | "key" => Candidates { directive: Some(Directive::Files), ..Candidates::default() },
        _ => {
            // The value itself is missing, so the words alone may not parse: leave the flag out.
            let complete: Vec<String> = match before.split_last() {
                Some((word, rest)) if awaiting(command, word).is_some_and(|f| f.name == flag) => rest.to_vec(),
                _ => before.to_vec(),
            };
            context(&complete).map(|cx| live::flag(&cx, flag, prefix)).unwrap_or_default()
        }
    }
}

/// The command line so far, with nothing connected yet.
fn context(words: &[String]) -> Option<Context> {
    match parse(&ROOT, words.to_vec()) {
        Ok(Parsed::Run(invocation)) => {
            Some(Context::with_streams(invocation, Box::new(std::io::sink()), Box::new(std::io::sink())))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        answer(&words, false).lines().map(str::to_owned).collect()
    }

    #[test]
    fn tables_answer_without_a_server() {
        for (line, expected) in [
            ("ge", vec!["get", ":4"]),
            ("rollout re", vec!["restart", "resume", ":4"]),
            ("get --field-s", vec!["--field-selector=", ":4"]),
            ("get pods -o js", vec!["json", "jsonpath=", "jsonpath-as-json=", "jsonpath-file=", ":4"]),
            ("get pods -o=", vec![":4"]),
            ("get pods --output=ya", vec!["--output=yaml", ":4"]),
            ("apply -f ", vec![":0"]),
            ("delete pod --cascade=o", vec!["--cascade=orphan", ":4"]),
            ("completion p", vec!["powershell", ":4"]),
            ("bogus x", vec![":4"]),
            ("create secret ", vec!["docker-registry", "generic", "tls", ":4"]),
        ] {
            assert_eq!(complete(line), expected, "{line}");
        }
    }

    #[test]
    fn descriptions_follow_a_tab() {
        let text = answer(&["scal".to_owned()], true);
        assert!(text.starts_with("scale\t"), "{text}");
    }
}
