//! What upstream's components can be told and ours have no use for, each with its answer.
//!
//! A flag that a component's own arguments know works. All others of v1.36 are rows of a table beside them, which
//! [`Others`] adds to the command line: accepted where nothing here could differ, or refused with the reason. Fields of
//! configuration files are answered by the same kind of table ([`settle`]). So a name is never taken and then ignored,
//! and a name that upstream does not have is an error. Tests hold the tables against upstream's names ([`problems`]).

use std::fmt;
use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use crate::features::{self, GateError};

/// Why a flag or a field cannot be set so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    #[error("{name} is not supported: {why}")]
    Refused { name: &'static str, why: &'static str },
    #[error("{name}: {value:?} is not supported: {why}")]
    Value { name: &'static str, value: String, why: &'static str },
    #[error(
        "show-hidden-metrics-for-version must be omitted or have the value '{0}'. Only the previous minor version is \
         allowed"
    )]
    HiddenMetrics(String),
    #[error("featureGates.{0}: not a boolean")]
    GateNotBoolean(String),
    #[error("featureGates: {0}")]
    Gate(#[from] GateError),
}

/// A flag, or a field by its path (`logging.format`).
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub answer: Answer,
}

#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// Accepted: whatever it says, nothing here differs.
    Same(&'static str),
    /// Accepted with these values, which ask for what is done anyway.
    Only(&'static [&'static str], &'static str),
    /// Accepted where this finds nothing wrong, in words that are upstream's.
    Checked(fn(&str) -> Result<(), FlagError>, &'static str),
    /// Refused.
    Refused(&'static str),
}

pub const fn same(name: &'static str, why: &'static str) -> Row {
    Row { name, answer: Answer::Same(why) }
}

pub const fn only(name: &'static str, values: &'static [&'static str], why: &'static str) -> Row {
    Row { name, answer: Answer::Only(values, why) }
}

pub const fn refused(name: &'static str, why: &'static str) -> Row {
    Row { name, answer: Answer::Refused(why) }
}

impl Row {
    /// Whether it may be set to this value.
    fn check(&self, value: &str) -> Result<(), FlagError> {
        let name = self.name;
        match self.answer {
            Answer::Same(_) => Ok(()),
            Answer::Only(values, _) if values.contains(&value) => Ok(()),
            Answer::Checked(check, _) => check(value),
            Answer::Only(_, why) => Err(FlagError::Value { name, value: value.to_owned(), why }),
            Answer::Refused(why) => Err(FlagError::Refused { name, why }),
        }
    }

    fn help(&self) -> (String, &'static str) {
        match self.answer {
            Answer::Same(why) | Answer::Checked(_, why) => (format!("Accepted: {why}"), ACCEPTED),
            Answer::Only(values, why) => (format!("Only {}: {why}", values.join(", ")), ACCEPTED),
            Answer::Refused(why) => (why.into(), REFUSED),
        }
    }
}

const ACCEPTED: &str = "Accepted, because nothing here differs";
const REFUSED: &str = "Refused";

/// The logging flags that every component has.
pub const LOGGING: &[Row] = &[
    same("log-flush-frequency", "every line is written at once"),
    same("log-json-info-buffer-size", "every line is written at once"),
    same("log-json-split-stream", "there are no JSON logs"),
    same("log-text-info-buffer-size", "every line is written at once"),
    same("log-text-split-stream", "logs go to standard error"),
    only("logging-format", &["text"], "logs are text"),
    same("v", "COX_LOG chooses what is logged"),
    same("vmodule", "COX_LOG chooses what is logged"),
];

/// The TLS flags of everything that serves.
pub const SERVING: &[Row] = &[
    refused("tls-cipher-suites", "the cipher suites are those of rustls: AEAD with forward secrecy"),
    refused("tls-curve-preferences", "the key exchanges are those of rustls"),
    only("tls-min-version", &["VersionTLS12"], "TLS 1.2 and 1.3 are served"),
];

/// What the flags for metrics could change.
pub const METRICS: &[Row] = &[
    refused("allow-metric-labels", "labels of metrics are bounded already"),
    refused("allow-metric-labels-manifest", "labels of metrics are bounded already"),
    refused("disabled-metrics", "metrics cannot be switched off one by one"),
];

/// Of components that hide no metric.
pub const HIDDEN_METRICS: &[Row] = &[Row {
    name: "show-hidden-metrics-for-version",
    answer: Answer::Checked(check_show_hidden_metrics, "no metric is hidden"),
}];

/// Whether what is hidden can be shown as of this version: only as of the one before this.
pub fn check_show_hidden_metrics(version: &str) -> Result<(), FlagError> {
    let mut parts = crate::version::KUBERNETES.trim_start_matches('v').split('.').map(|part| part.parse::<u32>());
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else { return Ok(()) };
    let before = format!("{major}.{}", minor.saturating_sub(1));
    if version.is_empty() || version == before { Ok(()) } else { Err(FlagError::HiddenMetrics(before)) }
}

/// Of components that have the API server review who calls them.
pub const REVIEWED_CALLERS: &[Row] = &[
    only("authentication-skip-lookup", &["false"], FIXED_TIMES),
    refused("authentication-token-webhook-cache-ttl", FIXED_TIMES),
    same("authentication-tolerate-lookup-failure", "nothing is looked up"),
    refused("authorization-always-allow-paths", "/healthz, /livez and /readyz are open, all else is reviewed"),
    refused("authorization-webhook-cache-authorized-ttl", FIXED_TIMES),
    refused("authorization-webhook-cache-unauthorized-ttl", FIXED_TIMES),
    same("client-ca-file", TOKENS_ONLY),
    same("requestheader-allowed-names", TOKENS_ONLY),
    same("requestheader-client-ca-file", TOKENS_ONLY),
    same("requestheader-extra-headers-prefix", TOKENS_ONLY),
    same("requestheader-group-headers", TOKENS_ONLY),
    same("requestheader-uid-headers", TOKENS_ONLY),
    same("requestheader-username-headers", TOKENS_ONLY),
];

const FIXED_TIMES: &str = "callers are reviewed by the API server, with fixed times to live";
const TOKENS_ONLY: &str = "callers show tokens: a certificate or a header gives nobody access";

/// Of components that run beside the API server: how they serve, and which version they are.
pub const CONTROL_PLANE: &[Row] = &[
    same("cert-dir", "a certificate that is made here is not written"),
    only("contention-profiling", &["false"], "waits for locks are not recorded"),
    only("disable-http2-serving", &["false"], "HTTP/2 is always served"),
    only("emulated-version", &["1.36", "kube=1.36"], "this is v1.36"),
    refused("http2-max-streams-per-connection", "the limit of streams is fixed"),
    same("kube-api-content-type", "requests say the same in any encoding"),
    only("min-compatibility-version", &["1.36", "kube=1.36"], "this is v1.36"),
    only("permit-address-sharing", &["false"], "the address belongs to one process"),
    only("permit-port-sharing", &["false"], "the port belongs to one process"),
    refused("tls-sni-cert-key", "there is one certificate"),
];

/// A component's table, as several parts that components share.
pub trait Table: 'static {
    const ROWS: &'static [&'static [Row]];
}

/// The part of a command line that a component has no use for. Flatten it into its arguments.
pub struct Others<T>(PhantomData<fn() -> T>);

impl<T> Default for Others<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T> Clone for Others<T> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<T> fmt::Debug for Others<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Others")
    }
}

const FEATURE_GATES: &str = "feature-gates";

impl<T: Table> clap::Args for Others<T> {
    fn augment_args(command: Command) -> Command {
        let gates = Arg::new(FEATURE_GATES)
            .long(FEATURE_GATES)
            .value_delimiter(',')
            .action(ArgAction::Append)
            .help("Name=true or Name=false: accepted when it asks for what is done anyway");
        let rows = T::ROWS.iter().copied().flatten();
        rows.fold(command.arg(gates), |command, row| {
            let (help, heading) = row.help();
            let arg = Arg::new(row.name)
                .long(row.name)
                .num_args(0..=1)
                .default_missing_value("true")
                .action(ArgAction::Append)
                .value_name("VALUE")
                .help(help)
                .help_heading(heading);
            command.arg(if row.name == "v" { arg.short('v') } else { arg })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table> clap::FromArgMatches for Others<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let values = |name: &str| matches.get_many::<String>(name).into_iter().flatten();
        let wrong = |message: String| clap::Error::raw(clap::error::ErrorKind::InvalidValue, format!("{message}\n"));
        for pair in values(FEATURE_GATES) {
            features::check_pair(pair).map_err(|why| wrong(format!("--{FEATURE_GATES}: {why}")))?;
        }
        for row in T::ROWS.iter().copied().flatten() {
            for value in values(row.name) {
                row.check(value).map_err(|why| wrong(format!("--{why}")))?;
            }
        }
        Ok(Self::default())
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(drop)
    }
}

/// Takes the fields of a configuration file that have an answer here out of it, `featureGates` among them, so that
/// what is left is what the component reads itself. Empty fields are as good as absent ones, as upstream's files are
/// written.
pub fn settle(config: &mut Value, rows: &[Row]) -> Result<(), FlagError> {
    drop_nulls(config);
    if let Some(Value::Object(gates)) = config.get("featureGates") {
        for (name, value) in gates {
            let value = value.as_bool().ok_or_else(|| FlagError::GateNotBoolean(name.clone()))?;
            features::check(name, value)?;
        }
    }
    for row in rows {
        if let Some(value) = take(config, row.name) {
            answer(row, &value)?;
        }
    }
    take(config, "featureGates");
    Ok(())
}

/// A field that is null is absent.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(drop_nulls);
    }
}

fn answer(row: &Row, value: &Value) -> Result<(), FlagError> {
    match value {
        Value::Null => Ok(()),
        Value::String(text) if text.is_empty() || text == "0s" => Ok(()),
        Value::String(text) => row.check(text),
        Value::Array(items) => items.iter().try_for_each(|item| answer(row, item)),
        Value::Object(fields) => fields.values().try_for_each(|field| answer(row, field)),
        other => row.check(&other.to_string()),
    }
}

/// Removes a field by its path, and what it leaves empty.
fn take(config: &mut Value, path: &str) -> Option<Value> {
    let fields = config.as_object_mut()?;
    let Some((first, rest)) = path.split_once('.') else { return fields.remove(path) };
    let inner = fields.get_mut(first)?;
    let value = take(inner, rest);
    if inner.as_object().is_some_and(|fields| fields.is_empty()) {
        fields.remove(first);
    }
    value
}

/// A file in which only the field at this path is set, to what no field is: a test's question. `a[].b` is a field of the
/// items of a list.
pub fn with_field(path: &str) -> Value {
    path.rsplit('.').fold(serde_json::json!({"noSuchField": 1}), |inner, part| match part.strip_suffix("[]") {
        Some(list) => serde_json::json!({list: [inner]}),
        None => serde_json::json!({part: inner}),
    })
}

/// Whether an error says that nothing is known of the last field of a path.
pub fn is_unknown(error: &str, path: &str) -> bool {
    let last = path.rsplit('.').next().unwrap_or_default().trim_end_matches("[]");
    error.contains(&format!("unknown field `{last}`"))
}

/// The names of upstream's flags that a command line does not know: a test's question.
pub fn missing<A: clap::Args>(upstream: &str) -> Vec<String> {
    let command = A::augment_args(Command::new("test"));
    let knows = |name: &&str| command.get_arguments().any(|arg| arg.get_long() == Some(name));
    upstream.split_whitespace().filter(|name| !knows(name)).map(str::to_owned).collect()
}

/// The names in a table that upstream does not have.
pub fn unheard<T: Table>(upstream: &str) -> Vec<&'static str> {
    let rows = T::ROWS.iter().copied().flatten().map(|row| row.name);
    rows.filter(|name| !upstream.split_whitespace().any(|known| known == *name)).collect()
}

/// What is wrong with the command line of a component: names of upstream's flags without an answer, answers to names that
/// upstream does not have, lines that should be understood and are not, and lines that should be refused and are not. A
/// test's question.
pub fn problems<A: clap::Args, T: Table>(upstream: &str, understood: &[&str], refused: &[&str]) -> Vec<String> {
    let read = |line: &str| {
        let command = A::augment_args(Command::new("cox"));
        let matches = command.try_get_matches_from(std::iter::once("cox").chain(line.split_whitespace()))?;
        A::from_arg_matches(&matches).map(drop)
    };
    let mut problems = Vec::new();
    problems.extend(missing::<A>(upstream).iter().map(|name| format!("--{name} has no answer")));
    problems.extend(unheard::<T>(upstream).iter().map(|name| format!("--{name} is not upstream's")));
    problems.extend(understood.iter().filter_map(|line| Some(format!("{line}: {}", read(line).err()?))));
    problems.extend(refused.iter().filter(|line| read(line).is_ok()).map(|line| format!("{line} is not refused")));
    problems
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    struct Few;

    impl Table for Few {
        const ROWS: &'static [&'static [Row]] = &[
            LOGGING,
            &[only("profiling", &["false"], "there is none"), refused("egress", "no"), same("name", "unused")],
        ];
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        _others: Others<Few>,
        #[arg(long)]
        own: Option<String>,
    }

    #[test]
    fn only_what_the_version_before_showed_can_be_shown() {
        for (version, expected) in [
            ("", None),
            ("1.35", None),
            (
                "1.34",
                Some(
                    "show-hidden-metrics-for-version must be omitted or have the value '1.35'. Only the previous minor \
                     version is allowed",
                ),
            ),
        ] {
            let refused = check_show_hidden_metrics(version).err().map(|error| error.to_string());
            assert_eq!(refused.as_deref(), expected, "{version}");
        }
    }

    #[test]
    fn flags_are_accepted_or_refused() {
        for (words, refusal) in [
            (&["--name=x", "--own", "y", "--v=4", "-v", "2"][..], None),
            (&["--name", "x", "--own=y"], None),
            (&["--profiling=false"], None),
            (&["--profiling"], Some("--profiling: \"true\" is not supported: there is none")),
            (&["--egress=file"], Some("--egress is not supported: no")),
            (&["--unheard=1"], Some("unexpected argument '--unheard'")),
            (&["--feature-gates=SidecarContainers=true,AllAlpha=false"], None),
            (&["--feature-gates=Unheard=true"], Some("unrecognized feature gate: Unheard")),
        ] {
            let line = Line::try_parse_from([&["x"], words].concat()).map(|line| line.own);
            match refusal {
                None => assert!(line.is_ok(), "{words:?}: {line:?}"),
                Some(text) => assert!(line.unwrap_err().to_string().contains(text), "{words:?}"),
            }
        }
    }

    #[test]
    fn help_says_what_is_accepted_and_what_is_refused() {
        use clap::CommandFactory;
        let help = Line::command().render_help().to_string();
        for text in [ACCEPTED, REFUSED, "Accepted: unused", "Only false: there is none"] {
            assert!(help.contains(text), "{text} is not in\n{help}");
        }
    }

    #[test]
    fn fields_are_settled() {
        let rows = [
            only("logging.format", &["text"], "logs are text"),
            same("logging.verbosity", "no"),
            only("port", &["0"], "there is none"),
            refused("swap", "no"),
        ];
        for (config, expected) in [
            (json!({"a": 1, "logging": {"format": "text", "verbosity": 3}, "port": 0}), Ok(json!({"a": 1}))),
            (json!({"logging": {"other": 1}, "swap": {}}), Ok(json!({"logging": {"other": 1}}))),
            (json!({"swap": {"x": ""}, "port": null}), Ok(json!({}))),
            (json!({"swap": {"x": "y"}}), Err("swap is not supported: no")),
            (json!({"port": 1}), Err("port: \"1\" is not supported: there is none")),
            (json!({"featureGates": {"AllAlpha": false}}), Ok(json!({}))),
            (json!({"featureGates": {"None": false}}), Err("featureGates: unrecognized feature gate: None")),
        ] {
            let mut left = config.clone();
            let settled = settle(&mut left, &rows).map(|()| left);
            assert_eq!(settled.map_err(|error| error.to_string()), expected.map_err(String::from), "{config}");
        }
    }
}
