//! What a command may end with, and the words kubectl prints for it (`checkErr` of upstream's cmd/util, v1.36).

use std::fmt;

use serde_json::Value;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Printed after `error: `.
    Message(String),
    /// A Status of the server, from a non-2xx answer.
    Status(Box<Value>),
    /// No type of that name in discovery; the last field holds a nearer name, when there is one.
    NoResource { resource: String, suggestion: Option<String> },
    /// The server could not be reached.
    Connect { host: String, cause: String, refused: bool, config: String },
    /// Several at once, from `--continue-on-error` loops.
    Many(Vec<Failure>),
    /// End with this code and print nothing more.
    Exit(u8),
    /// Print as it stands, end with this code.
    ExitWith(String, u8),
    /// A template that failed: what upstream writes to standard output all the same, and the message.
    Template { output: String, message: String },
}

/// How the message begins when an answer breaks off.
pub(crate) const BROKEN_ANSWER: &str = "unexpected error when reading response body.";

impl Failure {
    pub(crate) fn message(text: impl Into<String>) -> Failure {
        Failure::Message(text.into())
    }

    /// An error of a part of ours, printed as it says itself.
    pub(crate) fn of(error: impl fmt::Display) -> Failure {
        Failure::Message(error.to_string())
    }

    /// Adds what may have been meant.
    pub(crate) fn suggest(self, near: Vec<String>) -> Failure {
        match self {
            Failure::Message(text) if !near.is_empty() => {
                Failure::Message(format!("{text}\n\nDid you mean this?\n\t{}", near.join("\n\t")))
            }
            other => other,
        }
    }

    /// Some commands print a missing type without the word `error`.
    pub(crate) fn without_prefix(self) -> Failure {
        match self {
            Failure::NoResource { .. } => {
                let text = self.to_string();
                Failure::ExitWith(text.trim_start_matches("error: ").to_owned(), 1)
            }
            other => other,
        }
    }

    /// `UsageErrorf`: the message, then where to read more.
    pub(crate) fn usage(path: &str, text: impl fmt::Display) -> Failure {
        Failure::Message(format!("{text}\nSee '{path} -h' for help and examples"))
    }

    /// One failure stays itself; none is success.
    pub(crate) fn all(mut failures: Vec<Failure>) -> Result<()> {
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0)),
            _ => Err(Failure::Many(failures)),
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Exit(code) | Failure::ExitWith(_, code) => *code,
            _ => 1,
        }
    }

    pub(crate) fn reason(&self) -> &str {
        match self {
            Failure::Status(s) => s["reason"].as_str().unwrap_or(""),
            _ => "",
        }
    }

    pub(crate) fn code(&self) -> i64 {
        match self {
            Failure::Status(s) => s["code"].as_i64().unwrap_or(0),
            _ => 0,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.reason() == "NotFound" || (self.reason().is_empty() && self.code() == 404)
    }

    pub(crate) fn is_conflict(&self) -> bool {
        self.reason() == "Conflict"
    }

    /// The version to watch from is one that the server does not have: too old, or from before it was set up anew.
    pub(crate) fn is_expired(&self) -> bool {
        let Failure::Status(status) = self else { return false };
        let causes = status["details"]["causes"].as_array().into_iter().flatten();
        let too_large = causes.into_iter().any(|cause| cause["reason"] == "ResourceVersionTooLarge");
        self.code() == 410 || matches!(self.reason(), "Expired" | "Gone") || too_large
    }

    /// Whether the same request may well succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Failure::Connect { cause, .. } => !cause.contains("certificate"),
            Failure::Status(_) => self.code() == 429 || self.code() >= 500,
            Failure::Message(text) => text.starts_with(BROKEN_ANSWER),
            _ => false,
        }
    }

    /// What belongs on standard output before the message is printed.
    pub(crate) fn output(&self) -> String {
        match self {
            Failure::Template { output, .. } => output.clone(),
            Failure::Many(all) => all.iter().map(Failure::output).collect(),
            _ => String::new(),
        }
    }

    /// The bare message, as Go's `err.Error()` gives it.
    pub(crate) fn inner(&self) -> String {
        match self {
            Failure::Message(m) | Failure::ExitWith(m, _) | Failure::Template { message: m, .. } => m.clone(),
            Failure::Status(s) => s["message"].as_str().unwrap_or("unknown").to_owned(),
            Failure::Connect { cause, .. } => cause.clone(),
            Failure::Many(all) => {
                format!("[{}]", all.iter().map(Failure::inner).collect::<Vec<_>>().join(", "))
            }
            Failure::NoResource { .. } => self.to_string(),
            Failure::Exit(code) => format!("exit {code}"),
        }
    }

    /// `messageForError`: inside a list of errors, plain ones lose their `error: `.
    fn listed(&self) -> String {
        match self {
            Failure::Message(m) | Failure::Template { message: m, .. } => m.clone(),
            Failure::NoResource { .. } => self.to_string().trim_start_matches("error: ").to_owned(),
            other => other.to_string(),
        }
    }

    /// Adds words before the message of an ordinary error; a Status keeps its shape so that its reason is printed.
    pub(crate) fn context(self, prefix: impl fmt::Display) -> Failure {
        match self {
            Failure::Status(mut s) => {
                let text = format!("{prefix}: {}", s["message"].as_str().unwrap_or(""));
                s["message"] = Value::String(text);
                Failure::Status(s)
            }
            Failure::Message(m) => Failure::Message(format!("{prefix}: {m}")),
            other => other,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Message(m) if m.starts_with("error: ") => f.write_str(m),
            Failure::Message(m) | Failure::Template { message: m, .. } => write!(f, "error: {m}"),
            Failure::ExitWith(m, _) => f.write_str(m),
            Failure::Status(s) => f.write_str(&status_text(s)),
            Failure::NoResource { resource, suggestion } => {
                write!(f, "error: the server doesn't have a resource type \"{resource}\"")?;
                match suggestion {
                    Some(s) => write!(f, "\n\nDid you mean this?\n\t{s}"),
                    None => Ok(()),
                }
            }
            Failure::Connect { host, refused: true, config, .. } => {
                write!(
                    f,
                    "The connection to the server {host} was refused - did you specify the right host or port?{config}"
                )
            }
            Failure::Connect { cause, .. } => write!(f, "Unable to connect to the server: {cause}"),
            Failure::Many(all) => {
                let lines: Vec<String> = all.iter().map(Failure::listed).collect();
                f.write_str(&lines.join("\n"))
            }
            Failure::Exit(_) => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

fn status_text(s: &Value) -> String {
    let message = s["message"].as_str().unwrap_or("");
    let reason = s["reason"].as_str().unwrap_or("");
    if reason == "Invalid" {
        return invalid_text(s, message);
    }
    match reason {
        "Unauthorized" => format!("error: You must be logged in to the server ({message})"),
        "" => format!("Error from server: {message}"),
        _ => format!("Error from server ({reason}): {message}"),
    }
}

fn invalid_text(s: &Value, message: &str) -> String {
    let mut text = "The request is invalid".to_owned();
    let details = &s["details"];
    if details.is_null() {
        return if message.is_empty() { text } else { format!("{text}: {message}") };
    }
    let (kind, name) = (details["kind"].as_str().unwrap_or(""), details["name"].as_str().unwrap_or(""));
    let mut causes: Vec<String> = Vec::new();
    for cause in details["causes"].as_array().into_iter().flatten() {
        let line = format!("{}: {}", cause["field"].as_str().unwrap_or(""), cause["message"].as_str().unwrap_or(""));
        if !causes.contains(&line) {
            causes.push(line);
        }
    }
    if !kind.is_empty() || !name.is_empty() {
        text = format!("The {kind} \"{name}\" is invalid");
    } else if !message.is_empty() && causes.is_empty() {
        text = format!("{text}: {message}");
    }
    match causes.as_slice() {
        [] => text,
        [one] => format!("{text}: {one}"),
        many => format!("{text}: \n{}", many.iter().map(|c| format!("* {c}")).collect::<Vec<_>>().join("\n")),
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        // A reader that went away (`kubectl get … | head`) ends us quietly.
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Failure::Exit(1);
        }
        Failure::Message(error.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::Message(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_are_upstreams() {
        for (failure, expected) in [
            (Failure::message("no"), "error: no"),
            (
                Failure::Status(Box::new(
                    json!({"reason": "NotFound", "message": "pods \"x\" not found", "code": 404}),
                )),
                "Error from server (NotFound): pods \"x\" not found",
            ),
            (
                Failure::Status(Box::new(json!({"reason": "Unauthorized", "message": "Unauthorized"}))),
                "error: You must be logged in to the server (Unauthorized)",
            ),
            (
                Failure::Status(Box::new(json!({"reason": "Invalid", "message": "m", "details": {
                    "kind": "Pod", "name": "x", "causes": [{"field": "spec.a", "message": "Required value"}]}}))),
                "The Pod \"x\" is invalid: spec.a: Required value",
            ),
            (
                Failure::Status(Box::new(json!({"reason": "Invalid", "message": "m", "details": {
                    "kind": "Pod", "name": "x", "causes": [
                        {"field": "a", "message": "1"}, {"field": "b", "message": "2"}, {"field": "a", "message": "1"}]}}))),
                "The Pod \"x\" is invalid: \n* a: 1\n* b: 2",
            ),
            (Failure::Many(vec![Failure::message("a"), Failure::message("b")]), "a\nb"),
        ] {
            assert_eq!(failure.to_string(), expected);
        }
    }
}
