//! pflag's grammar over our table.

use std::collections::HashMap;
use std::time::Duration;

use api::duration::DurationError;
use api::sort::CompactSort as _;

use super::{Command, Flag, GLOBAL, Kind};
use crate::duration;
use crate::failure::{Failure, Result};

/// A parsed command line.
pub(crate) struct Invocation {
    pub(crate) command: &'static Command,
    /// `kubectl create deployment`
    pub(crate) path: String,
    pub(crate) args: Vec<String>,
    /// How many of `args` stood before `--`, when there was one.
    pub(crate) dash: Option<usize>,
    pub(crate) program_args: Vec<String>,
    set: HashMap<&'static str, Vec<String>>,
}

pub(crate) enum Parsed {
    Run(Invocation),
    /// `--help`, or a command that only groups others.
    Help {
        command: &'static Command,
        path: String,
        /// Whether `--help` was given.
        asked: bool,
    },
    /// The first word names no command: a plug-in may.
    Unknown {
        word: String,
        root: &'static Command,
        path: String,
    },
}

pub(crate) fn find_long(command: &'static Command, name: &str) -> Option<&'static Flag> {
    command.own_flags().chain(GLOBAL).find(|f| f.name == name)
}

fn find_short(command: &'static Command, short: char) -> Option<&'static Flag> {
    command.own_flags().chain(GLOBAL).find(|f| f.short == Some(short))
}

/// Words before the command may be global flags (`kubectl -n x get pods`), so the command is looked for among the
/// words that are neither flags nor their values.
fn find_command(root: &'static Command, argv: &[String]) -> (Vec<usize>, &'static Command, Option<usize>) {
    let mut command = root;
    let mut path = Vec::new();
    let mut i = 0;
    while i < argv.len() {
        let word = &argv[i];
        if word == "--" {
            break;
        }
        if let Some(long) = word.strip_prefix("--") {
            if !long.contains('=')
                && find_long(command, long).or_else(|| any_long(root, long)).is_some_and(|f| f.bare.is_none())
            {
                i += 1;
            }
        } else if word.len() > 1 && word.starts_with('-') {
            let mut chars = word[1..].chars();
            if let (Some(c), None) = (chars.next(), chars.next())
                && find_short(command, c).is_some_and(|f| f.bare.is_none())
            {
                i += 1;
            }
        } else if command.subcommands.is_empty() {
            break;
        } else {
            match command.subcommand(word) {
                Some(next) => {
                    command = next;
                    path.push(i);
                }
                None => return (path, command, Some(i)),
            }
        }
        i += 1;
    }
    (path, command, None)
}

fn any_long(root: &'static Command, name: &str) -> Option<&'static Flag> {
    root.subcommands.iter().find_map(|c| c.own_flags().find(|f| f.name == name))
}

/// The command that the words name so far, and which of them named it.
pub(crate) fn command_of(root: &'static Command, argv: &[String]) -> (&'static Command, Vec<usize>) {
    let (path, command, _) = find_command(root, argv);
    (command, path)
}

pub(crate) fn parse(root: &'static Command, argv: Vec<String>) -> Result<Parsed> {
    let (path_words, command, stray) = find_command(root, &argv);
    let mut path = root.name.to_owned();
    for &i in &path_words {
        path.push(' ');
        // Aliases are shown by their real name.
        path.push_str(command_name(root, &argv, &path_words, i));
    }
    if let Some(i) = stray
        && command.run.is_none()
    {
        return Ok(Parsed::Unknown { word: argv[i].clone(), root: command, path });
    }

    let mut set: HashMap<&'static str, Vec<String>> = HashMap::new();
    let mut args = Vec::new();
    let mut dash = None;
    let mut help = false;
    let usage = |message: String| Failure::message(format!("{message}\nSee '{path} --help' for usage."));
    let mut i = 0;
    while i < argv.len() {
        let word = &argv[i];
        if path_words.contains(&i) {
            i += 1;
            continue;
        }
        if word == "--" {
            dash = Some(args.len());
            args.extend(argv[i + 1..].iter().cloned());
            break;
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, inline) = match long.split_once('=') {
                Some((n, v)) => (n, Some(v.to_owned())),
                None => (long, None),
            };
            if name == "help" {
                help = true;
                i += 1;
                continue;
            }
            let Some(flag) = find_long(command, name) else {
                let failure = usage(format!("unknown flag: --{name}"));
                return Err(failure.suggest(near_flags(command, name)));
            };
            let value = match (inline, flag.bare) {
                (Some(v), _) => v,
                (None, Some(bare)) => bare.to_owned(),
                (None, None) => {
                    i += 1;
                    match argv.get(i) {
                        Some(v) => v.clone(),
                        None => return Err(usage(format!("flag needs an argument: --{name}"))),
                    }
                }
            };
            store(flag, value, &mut set).map_err(|invalid| usage(invalid.to_string()))?;
        } else if word.len() > 1 && word.starts_with('-') {
            let mut rest = &word[1..];
            while let Some(c) = rest.chars().next() {
                rest = &rest[c.len_utf8()..];
                if c == 'h' && find_short(command, 'h').is_none() {
                    help = true;
                    continue;
                }
                let Some(flag) = find_short(command, c) else {
                    return Err(usage(format!("unknown shorthand flag: '{c}' in {word}")));
                };
                let value = if let Some(v) = rest.strip_prefix('=') {
                    rest = "";
                    v.to_owned()
                } else if let Some(bare) = flag.bare {
                    bare.to_owned()
                } else if !rest.is_empty() {
                    std::mem::take(&mut rest).to_owned()
                } else {
                    i += 1;
                    match argv.get(i) {
                        Some(v) => v.clone(),
                        None => return Err(usage(format!("flag needs an argument: '{c}' in {word}"))),
                    }
                };
                store(flag, value, &mut set).map_err(|invalid| usage(invalid.to_string()))?;
            }
        } else {
            args.push(word.clone());
        }
        i += 1;
    }
    if help || command.run.is_none() {
        return Ok(Parsed::Help { command, path, asked: help });
    }
    Ok(Parsed::Run(Invocation { command, path, args, dash, program_args: argv, set }))
}

/// Flags spelled almost like it.
fn near_flags(command: &'static Command, name: &str) -> Vec<String> {
    let all = command.own_flags().chain(GLOBAL);
    all.filter(|f| !f.hidden && name.len() > 2 && edit_distance(name, f.name) <= 2)
        .map(|f| format!("--{}", f.name))
        .collect()
}

fn command_name(root: &'static Command, argv: &[String], words: &[usize], upto: usize) -> &'static str {
    let mut command = root;
    for &w in words {
        match command.subcommand(&argv[w]) {
            Some(next) => command = next,
            None => break,
        }
        if w == upto {
            break;
        }
    }
    command.name
}

/// A value that its flag does not take, in pflag's words.
#[derive(Debug, thiserror::Error)]
#[error("invalid argument \"{value}\" for \"{flag}\" flag: {why}")]
struct InvalidArgument {
    value: String,
    flag: String,
    why: NoSuchValue,
}

#[derive(Debug, thiserror::Error)]
enum NoSuchValue {
    #[error("strconv.ParseBool: parsing \"{0}\": invalid syntax")]
    Bool(String),
    #[error("strconv.ParseInt: parsing \"{0}\": invalid syntax")]
    Int(String),
    #[error(transparent)]
    Duration(DurationError),
}

fn store(
    flag: &'static Flag,
    value: String,
    set: &mut HashMap<&'static str, Vec<String>>,
) -> Result<(), InvalidArgument> {
    let shown = match flag.short {
        Some(c) => format!("-{c}, --{}", flag.name),
        None => format!("--{}", flag.name),
    };
    let invalid = |why: NoSuchValue| InvalidArgument { value: value.clone(), flag: shown.clone(), why };
    let values = set.entry(flag.name).or_default();
    match flag.kind {
        Kind::Bool => {
            let parsed = match value.as_str() {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => "true",
                "0" | "f" | "F" | "false" | "FALSE" | "False" => "false",
                _ => return Err(invalid(NoSuchValue::Bool(value.clone()))),
            };
            *values = vec![parsed.to_owned()];
        }
        Kind::Int => {
            if value.parse::<i64>().is_err() {
                return Err(invalid(NoSuchValue::Int(value.clone())));
            }
            *values = vec![value];
        }
        Kind::Duration => {
            if let Err(why) = duration::parse(&value) {
                return Err(invalid(NoSuchValue::Duration(why)));
            }
            *values = vec![value];
        }
        Kind::String => *values = vec![value],
        Kind::Array => values.push(value),
        Kind::Slice => values.extend(split_csv(&value)),
    }
    Ok(())
}

/// pflag reads slices as one CSV record: `a,"b,c"` is two values, and nothing is none.
fn split_csv(value: &str) -> Vec<String> {
    if value.is_empty() {
        return Vec::new();
    }
    let mut out = vec![String::new()];
    let mut quoted = false;
    let mut chars = value.chars().peekable();
    while let Some(c) = chars.next() {
        let last = out.len() - 1;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                out[last].push('"');
            }
            '"' if quoted || out[last].is_empty() => quoted = !quoted,
            ',' if !quoted => out.push(String::new()),
            c => out[last].push(c),
        }
    }
    out
}

impl Invocation {
    /// Whether the flag was given on the command line.
    pub(crate) fn changed(&self, name: &str) -> bool {
        self.set.contains_key(name)
    }

    pub(crate) fn has_flag(&self, name: &str) -> bool {
        find_long(self.command, name).is_some()
    }

    pub(crate) fn string(&self, name: &str) -> String {
        match self.set.get(name).and_then(|v| v.last()) {
            Some(v) => v.clone(),
            None => find_long(self.command, name).map(|f| f.default.to_owned()).unwrap_or_default(),
        }
    }

    pub(crate) fn bool(&self, name: &str) -> bool {
        self.string(name) == "true"
    }

    pub(crate) fn int(&self, name: &str) -> i64 {
        self.string(name).parse().unwrap_or_default()
    }

    pub(crate) fn duration(&self, name: &str) -> Duration {
        duration::parse(&self.string(name)).unwrap_or_default()
    }

    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        match self.set.get(name) {
            Some(v) => v.clone(),
            None => {
                let default = self.string(name);
                if default.is_empty() { Vec::new() } else { default.split(',').map(str::to_owned).collect() }
            }
        }
    }

    /// Flags given on the command line that are deprecated, with upstream's sentence.
    pub(crate) fn deprecations(&self) -> Vec<String> {
        let mut names: Vec<_> = self.set.keys().collect();
        names.compact_sort();
        names
            .into_iter()
            .filter_map(|n| {
                let note = find_long(self.command, n)?.deprecated?;
                Some(format!("Flag --{n} has been deprecated, {note}"))
            })
            .collect()
    }
}

/// Levenshtein, for suggestions.
pub(crate) fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut previous = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = previous + usize::from(ca != *cb);
            previous = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::ROOT;

    fn run(line: &str) -> Invocation {
        match parse(&ROOT, line.split_whitespace().map(str::to_owned).collect()) {
            Ok(Parsed::Run(i)) => i,
            Ok(Parsed::Help { path, .. }) => panic!("help for {path}"),
            Ok(Parsed::Unknown { word, .. }) => panic!("unknown {word}"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn flags_stand_anywhere() {
        for (line, path, args, output) in [
            ("get pods -o yaml", "kubectl get", vec!["pods"], "yaml"),
            ("get -oyaml pods", "kubectl get", vec!["pods"], "yaml"),
            ("-n x get pods a b --output=json", "kubectl get", vec!["pods", "a", "b"], "json"),
            ("get po -o=name", "kubectl get", vec!["po"], "name"),
            ("create deploy web --image=x -o name", "kubectl create deployment", vec!["web"], "name"),
        ] {
            let i = run(line);
            assert_eq!(i.path, path, "{line}");
            assert_eq!(i.args, args, "{line}");
            assert_eq!(i.string("output"), output, "{line}");
        }
    }

    #[test]
    fn short_flags_combine_and_dash_stops_them() {
        let i = run("exec -it web -c nginx -- sh -c ls");
        assert!(i.bool("stdin") && i.bool("tty"));
        assert_eq!(i.string("container"), "nginx");
        assert_eq!(i.args, ["web", "sh", "-c", "ls"]);
        assert_eq!(i.dash, Some(1));
    }

    #[test]
    fn errors_read_as_upstream() {
        for (line, expected) in [
            ("get --bogus", "error: unknown flag: --bogus\nSee 'kubectl get --help' for usage."),
            (
                "get --outptu=x",
                "error: unknown flag: --outptu\nSee 'kubectl get --help' for usage.\n\nDid you mean this?\n\t--output",
            ),
            ("get -Z", "error: unknown shorthand flag: 'Z' in -Z\nSee 'kubectl get --help' for usage."),
            ("get pods -o", "error: flag needs an argument: 'o' in -o\nSee 'kubectl get --help' for usage."),
            (
                "scale --replicas=x deploy/a",
                "error: invalid argument \"x\" for \"--replicas\" flag: strconv.ParseInt: parsing \"x\": invalid syntax\nSee 'kubectl scale --help' for usage.",
            ),
        ] {
            match parse(&ROOT, line.split_whitespace().map(str::to_owned).collect()) {
                Err(e) => assert_eq!(e.to_string(), expected, "{line}"),
                Ok(_) => panic!("{line}: parsed"),
            }
        }
    }

    #[test]
    fn slices_split_like_csv() {
        assert_eq!(split_csv("a,b"), ["a", "b"]);
        assert_eq!(split_csv("a,\"b,c\""), ["a", "b,c"]);
        assert_eq!(split_csv("a"), ["a"]);
    }
}
