//! `kubectl wait`

use std::time::Duration;

use serde_json::Value;

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::printers::jsonpath::{JsonPath, relaxed, text_of};
use crate::resources::{self, Info, Options};
use crate::watch::{Watch, persist};

pub(crate) const COMMAND: Command = Command {
    name: "wait",
    usage: "([-f FILENAME] | resource.group/resource.name | resource.group [(-l label | --all)]) [--for=create|--for=delete|--for condition=available|--for=jsonpath='{}'[=value]]",
    about: "Wait for a specific condition on one or many resources",
    examples: "  kubectl wait --for=condition=Ready pod/web\n  kubectl wait --for=delete pod/web --timeout=60s\n  kubectl wait --for=jsonpath='{.status.phase}'=Running pod/web",
    flags: &[
        flags::FILES_BELOW,
        flags::SELECTOR,
        flags::FIELD_SELECTOR,
        flags::ALL_NAMESPACES,
        flags::ALL,
        flags::OUTPUT,
        flags::LOCAL,
        &[
            Flag::array("for", "create, delete, condition=name[=value] or jsonpath='{expression}'[=value]."),
            Flag::duration("timeout", "30s", "How long to wait; zero looks once, negative waits a week."),
        ],
    ],
    words: Words::Objects,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

enum Wanted {
    Create,
    Delete,
    Condition { name: String, status: String },
    Path { path: JsonPath, value: Option<String> },
}

fn parse(text: &str) -> Result<Wanted> {
    let lower = text.to_lowercase();
    if lower == "delete" {
        return Ok(Wanted::Delete);
    }
    if lower == "create" {
        return Ok(Wanted::Create);
    }
    if let Some(rest) = text.strip_prefix("condition=") {
        let (name, status) = rest.split_once('=').unwrap_or((rest, "true"));
        return Ok(Wanted::Condition { name: name.to_owned(), status: status.to_owned() });
    }
    if let Some(rest) = text.strip_prefix("jsonpath=") {
        let parts = split_path(rest);
        let (path, value) = match parts.as_slice() {
            [path] => (path, None),
            [path, value] => (path, Some(value.trim_matches(['\'', '"']).to_owned())),
            _ => {
                return Err(Failure::message(
                    "jsonpath wait format must be --for=jsonpath='{.status.readyReplicas}'=3 or --for=jsonpath='{.status.readyReplicas}'",
                ));
            }
        };
        let path = relaxed(path.trim_matches(['\'', '"'])).map_err(Failure::of)?;
        if value.as_deref() == Some("") {
            return Err(Failure::message(
                "jsonpath wait has to have a value after equal sign, like --for=jsonpath='{.status.readyReplicas}'=3",
            ));
        }
        if path.is_empty() {
            return Err(Failure::message("jsonpath expression cannot be empty"));
        }
        let path = JsonPath::parse(&path).map_err(Failure::of)?;
        return Ok(Wanted::Path { path: path.allow_missing(true), value });
    }
    Err(Failure::message(format!("unrecognized condition: \"{text}\"")))
}

/// A path and a value around a single `=`; `==` belongs to the path.
fn split_path(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = text;
    while let Some(at) = rest.find('=') {
        let last = parts.len() - 1;
        parts[last].push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match rest.strip_prefix('=') {
            Some(after) => {
                parts[last].push_str("==");
                rest = after;
            }
            None => parts.push(String::new()),
        }
    }
    let last = parts.len() - 1;
    parts[last].push_str(rest);
    parts
}

impl Wanted {
    /// Waits for it; returns the object that has it.
    async fn met(&self, cx: &Context, info: &Info, deadline: tokio::time::Instant) -> Result<Value> {
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        match self {
            Wanted::Create => Ok(info.object.clone()),
            Wanted::Delete => {
                let uid = text(&info.object, "/metadata/uid").to_owned();
                let left = left.max(Duration::from_millis(1));
                super::delete::wait_gone(cx, info, &uid, left).await.map(|()| info.object.clone())
            }
            other => until(cx, info, left, |o| other.holds(o)).await,
        }
    }

    fn holds(&self, object: &Value) -> bool {
        match self {
            Wanted::Create => true,
            Wanted::Delete => false,
            Wanted::Condition { name, status } => {
                let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
                let found = conditions.find(|c| text(c, "/type").eq_ignore_ascii_case(name));
                found.is_some_and(|c| is_current(object, c) && text(c, "/status").eq_ignore_ascii_case(status))
            }
            Wanted::Path { path, value } => match path.find(object) {
                Ok(found) => match value {
                    Some(v) => found.len() == 1 && text_of(&found[0]) == *v,
                    None => !found.is_empty() && found.iter().all(|f| !f.is_null()),
                },
                Err(_) => false,
            },
        }
    }
}

/// Whether a condition is about the newest spec, by its own word or by that of the status.
fn is_current(object: &Value, condition: &Value) -> bool {
    let of = |part: &Value| part["observedGeneration"].as_i64();
    let observed = of(condition).or_else(|| of(&object["status"]));
    observed.is_none_or(|observed| Some(observed) >= object["metadata"]["generation"].as_i64())
}

async fn run(cx: &Context) -> Result<()> {
    let wanted = cx.flags.list("for").iter().map(|text| parse(text)).collect::<Result<Vec<Wanted>>>()?;
    if wanted.is_empty() {
        return Err(Failure::message("unrecognized condition: []"));
    }
    let nanos = api::duration::parse_signed(&cx.flags.string("timeout")).unwrap_or(0);
    let timeout = if nanos < 0 { Duration::from_secs(7 * 24 * 3600) } else { cx.flags.duration("timeout") };
    let deadline = tokio::time::Instant::now() + timeout;
    let mut printer = cx.printer("condition met", crate::context::DryRun::None)?;
    let (create, delete) =
        (wanted.iter().any(|w| matches!(w, Wanted::Create)), wanted.iter().any(|w| matches!(w, Wanted::Delete)));
    let options = Options { latest: !create && !delete, ..Options::default() };
    let (mut infos, mut failures) = resources::infos(cx, &options).await?;
    if create || delete {
        // Absent is what we wait for, or how it begins.
        failures.retain(|failure| !failure.is_not_found());
        if create && infos.is_empty() {
            infos = wait_created(cx, &options, timeout).await?;
        }
        if infos.is_empty() && failures.is_empty() {
            return Ok(());
        }
    }
    if infos.is_empty() && failures.is_empty() {
        return Err(Failure::message("no matching resources found"));
    }
    let unread = std::mem::take(&mut failures);
    for info in infos {
        for wanted in &wanted {
            match wanted.met(cx, &info, deadline).await {
                Ok(object) => cx.print(&printer.print(&object)?)?,
                Err(e) => {
                    failures.push(e);
                    break;
                }
            }
        }
    }
    failures.extend(unread);
    Failure::all(failures)
}

async fn wait_created(cx: &Context, options: &Options, timeout: Duration) -> Result<Vec<Info>> {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let infos = match resources::infos(cx, options).await {
            Ok((infos, _)) => infos,
            Err(failure) if failure.is_transient() => Vec::new(),
            Err(failure) => return Err(failure),
        };
        if !infos.is_empty() {
            return Ok(infos);
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(Failure::message("timed out waiting for the condition"));
        }
        // Nothing to watch by name before the type and selector have a match: look again, as upstream does.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Watches one object until `holds`, and returns it.
pub(crate) async fn until(
    cx: &Context,
    info: &Info,
    timeout: Duration,
    holds: impl Fn(&Value) -> bool,
) -> Result<Value> {
    if holds(&info.object) {
        return Ok(info.object.clone());
    }
    let work = async {
        let live = persist(async || info.get(cx).await).await?;
        if holds(&live) {
            return Ok(live);
        }
        let version = text(&live, "/metadata/resourceVersion");
        let mut watch = Watch::object(cx, info.mapping.path(&info.namespace), &info.name, version);
        loop {
            let event = watch.next().await?;
            if event.kind != "DELETED" && holds(&event.object) {
                return Ok(event.object);
            }
        }
    };
    match tokio::time::timeout(timeout, work).await {
        Ok(result) => result,
        Err(_) => Err(Failure::message(format!(
            "timed out waiting for the condition on {}/{}",
            info.mapping.resource, info.name
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_hold() {
        let pod = json!({"metadata": {"generation": 1}, "status": {"phase": "Running", "n": 3,
            "conditions": [{"type": "Ready", "status": "True"}]}});
        for (condition, expected) in [
            ("condition=Ready", true),
            ("condition=ready=true", true),
            ("condition=Ready=False", false),
            ("jsonpath={.status.phase}=Running", true),
            ("jsonpath='{.status.phase}'=Pending", false),
            ("jsonpath={.status.n}=3", true),
            ("jsonpath={.status.nothing}", false),
            ("jsonpath={.status.phase}", true),
        ] {
            assert_eq!(parse(condition).unwrap().holds(&pod), expected, "{condition}");
        }
        assert!(parse("sunshine").is_err());
    }

    #[test]
    fn conditions_of_an_older_spec_do_not_hold() {
        for (of_condition, of_status, expected) in [
            (Value::Null, Value::Null, true),
            (Value::Null, json!(2), true),
            (Value::Null, json!(1), false),
            (json!(1), Value::Null, false),
            (json!(1), json!(2), false),
            (json!(2), json!(1), true),
        ] {
            let object = json!({"metadata": {"generation": 2}, "status": {"observedGeneration": of_status,
                "conditions": [{"type": "Ready", "status": "True", "observedGeneration": of_condition}]}});
            assert_eq!(parse("condition=Ready").unwrap().holds(&object), expected, "{object}");
        }
    }
}
