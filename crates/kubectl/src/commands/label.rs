//! `kubectl label` and `kubectl annotate`: keys and values on an object's metadata.

use serde_json::{Value, json};

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::{Context, DryRun};
use crate::failure::{Failure, Result};
use crate::objects::{self, PatchKind};
use crate::resources::{self, Options};

const FLAGS: &[Flag] = &[
    Flag::bool("overwrite", "Change values that are there already."),
    Flag::bool("list", "Show what the objects have."),
    Flag::string("resource-version", "Only change when this is the current version."),
];

macro_rules! command {
    ($name:literal, $field:literal, $examples:literal) => {
        Command {
            name: $name,
            usage: "[--overwrite] (-f FILENAME | TYPE NAME) KEY_1=VAL_1 ... KEY_N=VAL_N [--resource-version=version]",
            about: concat!("Update the ", $field, " on a resource"),
            examples: $examples,
            flags: &[
                FLAGS,
                &[Flag::string("field-manager", "Name that owns the fields.").default(concat!("kubectl-", $name))],
                flags::FILENAME,
                flags::SELECTOR,
                flags::FIELD_SELECTOR,
                flags::ALL,
                flags::ALL_NAMESPACES,
                flags::OUTPUT,
                flags::DRY_RUN,
                flags::RECORD,
                flags::LOCAL,
            ],
            words: Words::Objects,
            run: Some(|cx| Box::pin(run(cx, $field))),
            ..Command::EMPTY
        }
    };
}

pub(crate) const LABEL: Command = command!(
    "label",
    "labels",
    "  kubectl label pods web unhealthy=true\n  kubectl label --overwrite pods web status=bad\n  kubectl label pods web status-"
);
pub(crate) const ANNOTATE: Command = command!(
    "annotate",
    "annotations",
    "  kubectl annotate pods web description='my frontend'\n  kubectl annotate pods web description-"
);

/// Words that name objects, pairs to set, keys to remove.
type Split = (Vec<String>, Vec<(String, String)>, Vec<String>);

/// `k=v` sets, `k-` removes; everything before the first such word names objects.
fn split(words: &[String], field: &str) -> Result<Split> {
    let is_pair = |w: &String| (w.contains('=') && !w.starts_with('=')) || (w.ends_with('-') && w.len() > 1);
    let at = words.iter().position(is_pair).unwrap_or(words.len());
    let (mut set, mut removed) = (Vec::new(), Vec::new());
    for word in &words[at..] {
        if let Some((k, v)) = word.split_once('=') {
            if field == "labels" {
                let problems = api::validation::label_value(v);
                if k.is_empty() || !problems.is_empty() {
                    return Err(Failure::message(format!("invalid label value: \"{word}\": {}", problems.join(";"))));
                }
            } else if k.is_empty() {
                return Err(Failure::message(format!("invalid annotation format: {word}")));
            }
            set.push((k.to_owned(), v.to_owned()));
        } else if let Some(k) = word.strip_suffix('-').filter(|k| !k.is_empty()) {
            removed.push(k.to_owned());
        } else {
            let what = if field == "labels" { "label" } else { "annotation" };
            return Err(Failure::message(format!("all resources must be specified before {what} changes: {word}")));
        }
    }
    if let Some((k, _)) = set.iter().find(|(k, _)| removed.contains(k)) {
        let what = if field == "labels" { "a label" } else { "the following annotation(s)" };
        return Err(Failure::message(format!("can not both modify and remove {what} in the same command: {k}")));
    }
    Ok((words[..at].to_vec(), set, removed))
}

async fn run(cx: &Context, field: &'static str) -> Result<()> {
    let (words, set, removed) = split(cx.args(), field)?;
    let list = cx.flags.bool("list");
    if words.is_empty() && cx.flags.list("filename").is_empty() && cx.flags.string("kustomize").is_empty() {
        return Err(Failure::message(
            "one or more resources must be specified as <resource> <name> or <resource>/<name>",
        ));
    }
    let what = if field == "labels" { "label" } else { "annotation" };
    if set.is_empty() && removed.is_empty() && !list {
        return Err(Failure::message(format!("at least one {what} update is required")));
    }
    let dry_run = cx.dry_run()?;
    let manager = cx.flags.string("field-manager");
    let mut printer = cx.printer("", dry_run)?;
    let local = cx.flags.bool("local");
    let options = Options { latest: !local, args: Some(words), ..Options::default() };
    let (infos, unread) = resources::infos(cx, &options).await?;
    let mut failures = Vec::new();
    for info in infos {
        let current = info.object["metadata"][field].as_object().cloned().unwrap_or_default();
        if list {
            for (k, v) in &current {
                cx.println(format!("{k}={}", v.as_str().unwrap_or("")))?;
            }
            continue;
        }
        if !cx.flags.bool("overwrite") {
            let clash: Vec<String> = set
                .iter()
                .filter(|(k, v)| current.get(k).is_some_and(|old| old != v.as_str()))
                .map(|(k, _)| format!("'{k}' already has a value ({})", current[k].as_str().unwrap_or("")))
                .collect();
            if !clash.is_empty() {
                failures.extend(refusals(field, clash));
                continue;
            }
        }
        for k in removed.iter().filter(|k| !current.contains_key(*k)) {
            cx.println(format!("{what} \"{k}\" not found."))?;
        }
        let mut changes = serde_json::Map::new();
        set.iter().filter(|(k, v)| current.get(k).is_none_or(|old| old != v.as_str())).for_each(|(k, v)| {
            changes.insert(k.clone(), json!(v));
        });
        let changed = !changes.is_empty();
        let mut gone = false;
        for k in removed.iter().filter(|k| current.contains_key(*k)) {
            changes.insert(k.clone(), Value::Null);
            gone = true;
        }
        let done = match (field, changed, gone) {
            ("annotations", ..) => "annotated",
            (_, false, true) => "unlabeled",
            (_, true, _) => "labeled",
            (_, false, false) => "not labeled",
        };
        let mut patch = json!({"metadata": {field: changes}});
        let version = cx.flags.string("resource-version");
        if !version.is_empty() {
            patch["metadata"]["resourceVersion"] = json!(version);
        }
        objects::record(cx, &mut patch);
        let object = if local || dry_run == DryRun::Client || (!changed && !gone) {
            let mut object = info.object.clone();
            api::patch::merge::apply(&mut object, &patch).map_err(|e| Failure::message(e.to_string()))?;
            object
        } else {
            objects::patch(cx, info.path(), PatchKind::Merge, patch.to_string(), dry_run, &manager).await?
        };
        printer.operation = crate::context::with_dry_run(done, dry_run);
        cx.print(&printer.print(&object)?)?;
    }
    failures.extend(unread);
    Failure::all(failures)
}

/// What is said about keys that have another value already.
fn refusals(field: &str, clash: Vec<String>) -> Vec<Failure> {
    if field == "labels" {
        return clash.into_iter().map(|c| Failure::message(format!("{c}, and --overwrite is false"))).collect();
    }
    let all = clash.join("; ");
    let text = format!("--overwrite is false but found the following declared annotation(s): {all}");
    vec![Failure::message(text)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_split() {
        let words = |s: &str| s.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (objects, set, removed) = split(&words("pods web a=b c- d="), "labels").unwrap();
        assert_eq!(objects, ["pods", "web"]);
        assert_eq!(set, [("a".to_owned(), "b".to_owned()), ("d".to_owned(), String::new())]);
        assert_eq!(removed, ["c"]);
        assert!(split(&words("pods web a=b a-"), "labels").is_err());
    }
}
