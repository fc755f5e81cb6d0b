//! `kubectl auth reconcile`: roles and bindings brought to what files say, permission by permission.
//!
//! [`plan_role`] and [`plan_binding`] decide from the existing and the expected object; [`run`] carries the plan out.

use serde_json::{Map, Value, json};

use crate::cli::{Command, Flag};
use crate::commands::flags;
use crate::context::{Context, DryRun};
use crate::failure::{Failure, Result};
use crate::objects::{strings, text};
use crate::rbac_rules::uncovered;
use crate::request::Request;
use crate::resources::{self, Info, Options, Selection};

pub(super) const COMMAND: Command = Command {
    name: "reconcile",
    usage: "-f FILENAME",
    about: "Reconciles rules for RBAC role, role binding, cluster role, and cluster role binding objects",
    examples: "  kubectl auth reconcile -f rbac.yaml\n  kubectl auth reconcile -f rbac.yaml --remove-extra-permissions --remove-extra-subjects",
    flags: &[
        flags::OUTPUT,
        flags::FILENAME,
        flags::DRY_RUN,
        &[
            Flag::bool("remove-extra-permissions", "Take permissions away that the files do not give."),
            Flag::bool("remove-extra-subjects", "Take subjects away that the files do not name."),
        ],
    ],
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

/// How often a change that somebody else got ahead of is planned again.
const ATTEMPTS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    None,
    Create,
    Update,
    Recreate,
}

/// What to do about one object, and what to tell people.
struct Plan {
    operation: Operation,
    object: Value,
    /// The object opted out of being changed.
    protected: bool,
    missing: Vec<Value>,
    extra: Vec<Value>,
}

async fn run(cx: &Context) -> Result<()> {
    if cx.flags.list("filename").is_empty() && cx.flags.string("kustomize").is_empty() {
        return Err(Failure::message("must specify one of -f and -k"));
    }
    if !cx.args().is_empty() {
        return Err(Failure::message("no arguments are allowed"));
    }
    let dry_run = match cx.dry_run()? {
        DryRun::Server => {
            return Err(Failure::message("--dry-run=server for command reconcile is not supported yet"));
        }
        other => other,
    };
    let mut printer = cx.printer("reconciled", dry_run)?.typed();
    let selected = resources::select(cx, &Options::default()).await?;
    // Versions that upstream's client knows and servers no longer serve.
    if let Some((version, kind)) = selected.failures.iter().find_map(|failure| older(&failure.to_string())) {
        return Err(unsupported(&version, &kind));
    }
    for selection in selected.complete()? {
        let Selection::File(info) = selection else { continue };
        if info.mapping.group != "rbac.authorization.k8s.io" {
            continue;
        }
        if info.mapping.version != "v1" {
            return Err(unsupported(&info.mapping.version, &info.mapping.kind));
        }
        let plan = reconcile(cx, &info, dry_run).await?;
        cx.print(&printer.print(&plan.object)?)?;
        explain(cx, &info, &plan);
    }
    Ok(())
}

fn unsupported(version: &str, kind: &str) -> Failure {
    Failure::message(format!("only rbac.authorization.k8s.io/v1 is supported: not *{version}.{kind}"))
}

/// Version and kind of a role or binding that the server does not know any more.
fn older(failure: &str) -> Option<(String, String)> {
    let (_, rest) = failure.split_once("no matches for kind \"")?;
    let (kind, rest) = rest.split_once("\" in version \"rbac.authorization.k8s.io/")?;
    let (version, _) = rest.split_once('"')?;
    Some((version.to_owned(), kind.to_owned()))
}

async fn reconcile(cx: &Context, info: &Info, dry_run: DryRun) -> Result<Plan> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let plan = match info.get(cx).await {
            Ok(existing) => plan(cx, info, &existing),
            Err(e) if e.is_not_found() => Plan {
                operation: Operation::Create,
                object: info.object.clone(),
                protected: false,
                missing: list(&info.object[part(info)]),
                extra: Vec::new(),
            },
            Err(e) => return Err(e),
        };
        if plan.protected || dry_run == DryRun::Client {
            return Ok(plan);
        }
        match carry_out(cx, info, &plan).await {
            Ok(object) => return Ok(Plan { object, ..plan }),
            Err(e) if attempt < ATTEMPTS && (e.is_conflict() || e.reason() == "AlreadyExists" || e.is_not_found()) => {}
            Err(e) => return Err(e),
        }
    }
}

fn is_binding(info: &Info) -> bool {
    info.mapping.kind.ends_with("Binding")
}

fn part(info: &Info) -> &'static str {
    if is_binding(info) { "subjects" } else { "rules" }
}

fn plan(cx: &Context, info: &Info, existing: &Value) -> Plan {
    if is_binding(info) {
        plan_binding(existing, &info.object, cx.flags.bool("remove-extra-subjects"))
    } else {
        plan_role(existing, &info.object, cx.flags.bool("remove-extra-permissions"))
    }
}

async fn carry_out(cx: &Context, info: &Info, plan: &Plan) -> Result<Value> {
    match plan.operation {
        Operation::None => return Ok(plan.object.clone()),
        Operation::Update => return Request::put(info.path(), &plan.object).value(cx).await,
        Operation::Recreate => {
            Request::delete(info.path(), &json!({"apiVersion": "v1", "kind": "DeleteOptions"})).send(cx).await?;
        }
        Operation::Create if info.mapping.namespaced => {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": info.namespace}});
            match Request::post("/api/v1/namespaces", &namespace).send(cx).await {
                Ok(_) => {}
                Err(e) if e.reason() == "AlreadyExists" => {}
                Err(e) => return Err(e),
            }
        }
        Operation::Create => {}
    }
    Request::post(info.mapping.path(&info.namespace), &plan.object).value(cx).await
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// The existing object with the expected labels and annotations it lacks. What is there stays.
fn with_metadata(existing: &Value, expected: &Value) -> Value {
    let mut object = existing.clone();
    for key in ["annotations", "labels"] {
        let mut merged: Map<String, Value> = expected["metadata"][key].as_object().cloned().unwrap_or_default();
        merged.extend(existing["metadata"][key].as_object().cloned().unwrap_or_default());
        if !merged.is_empty() {
            object["metadata"][key] = Value::Object(merged);
        }
    }
    object
}

fn is_protected(existing: &Value) -> bool {
    existing["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] == "false"
}

fn plan_role(existing: &Value, expected: &Value, remove_extra: bool) -> Plan {
    let mut object = with_metadata(existing, expected);
    let (owned, wanted) = (list(&existing["rules"]), list(&expected["rules"]));
    let missing = uncovered(&owned, &wanted);
    let both_aggregated = existing["aggregationRule"].is_object() && expected["aggregationRule"].is_object();
    let extra = if both_aggregated { Vec::new() } else { uncovered(&wanted, &owned) };
    if !remove_extra && !missing.is_empty() {
        object["rules"] = owned.into_iter().chain(missing.iter().cloned()).collect();
    } else if remove_extra && (!missing.is_empty() || !extra.is_empty()) {
        object["rules"] = expected["rules"].clone();
    }
    let selectors = |object: &Value| list(&object["aggregationRule"]["clusterRoleSelectors"]);
    let only = |a: &[Value], b: &[Value]| a.iter().filter(|s| !b.contains(s)).cloned().collect::<Vec<_>>();
    let lacking = only(&selectors(expected), &selectors(existing));
    let surplus = only(&selectors(existing), &selectors(expected));
    if expected["aggregationRule"].is_null() && existing["aggregationRule"].is_object() {
        if let Some(map) = object.as_object_mut() {
            map.remove("aggregationRule");
        }
    } else if remove_extra && !(lacking.is_empty() && surplus.is_empty()) {
        object["aggregationRule"] = expected["aggregationRule"].clone();
    } else if !lacking.is_empty() {
        let all: Vec<Value> = selectors(existing).into_iter().chain(lacking).collect();
        object["aggregationRule"] = json!({"clusterRoleSelectors": all});
    }
    let operation = if object == *existing { Operation::None } else { Operation::Update };
    Plan { operation, object, protected: is_protected(existing), missing, extra }
}

fn plan_binding(existing: &Value, expected: &Value, remove_extra: bool) -> Plan {
    let protected = is_protected(existing);
    // A binding cannot be pointed at another role.
    if existing["roleRef"] != expected["roleRef"] {
        let object = expected.clone();
        return Plan { operation: Operation::Recreate, object, protected, missing: Vec::new(), extra: Vec::new() };
    }
    let mut object = with_metadata(existing, expected);
    let (owned, wanted) = (list(&existing["subjects"]), list(&expected["subjects"]));
    let same =
        |a: &Value, b: &Value| ["/kind", "/apiGroup", "/name", "/namespace"].iter().all(|p| text(a, p) == text(b, p));
    let only =
        |a: &[Value], b: &[Value]| a.iter().filter(|s| !b.iter().any(|t| same(s, t))).cloned().collect::<Vec<_>>();
    let (missing, extra) = (only(&wanted, &owned), only(&owned, &wanted));
    if !remove_extra && !missing.is_empty() {
        object["subjects"] = owned.into_iter().chain(missing.iter().cloned()).collect();
    } else if remove_extra && (!missing.is_empty() || !extra.is_empty()) {
        object["subjects"] = expected["subjects"].clone();
    }
    let operation = if object == *existing { Operation::None } else { Operation::Update };
    Plan { operation, object, protected, missing, extra }
}

/// On stderr, below the object's line, in Go's notation of structures.
fn explain(cx: &Context, info: &Info, plan: &Plan) {
    let verb = match plan.operation {
        Operation::None => return,
        Operation::Create => "create",
        Operation::Update => "update",
        Operation::Recreate => "recreate",
    };
    let caveat =
        if plan.protected { ", but object opted out (rbac.authorization.kubernetes.io/autoupdate: false)" } else { "" };
    cx.eprintln(format!("\treconciliation required {verb}{caveat}"));
    let what = part(info);
    let show: fn(&Value) -> String = if is_binding(info) { show_subject } else { show_rule };
    let remove = if is_binding(info) { "remove-extra-subjects" } else { "remove-extra-permissions" };
    if !plan.missing.is_empty() {
        cx.eprintln(format!("\tmissing {what} added:"));
        plan.missing.iter().for_each(|one| cx.eprintln(format!("\t\t{}", show(one))));
    }
    if cx.flags.bool(remove) && !plan.extra.is_empty() {
        cx.eprintln(format!("\textra {what} removed:"));
        plan.extra.iter().for_each(|one| cx.eprintln(format!("\t\t{}", show(one))));
    }
}

fn show_rule(rule: &Value) -> String {
    let list = |key: &str| strings(&rule[key]).join(" ");
    format!(
        "{{Verbs:[{}] APIGroups:[{}] Resources:[{}] ResourceNames:[{}] NonResourceURLs:[{}]}}",
        list("verbs"),
        list("apiGroups"),
        list("resources"),
        list("resourceNames"),
        list("nonResourceURLs")
    )
}

fn show_subject(subject: &Value) -> String {
    format!(
        "{{Kind:{} APIGroup:{} Name:{} Namespace:{}}}",
        text(subject, "/kind"),
        text(subject, "/apiGroup"),
        text(subject, "/name"),
        text(subject, "/namespace")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(verbs: &[&str]) -> Value {
        json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]})
    }

    #[test]
    fn roles_gain_and_lose_permissions() {
        for (existing, expected, remove, operation, rules) in [
            (role(&["get"]), role(&["get"]), false, Operation::None, 1),
            (role(&["get"]), role(&["get", "list"]), false, Operation::Update, 2),
            (role(&["get", "list"]), role(&["get"]), false, Operation::None, 1),
            (role(&["get", "list"]), role(&["get"]), true, Operation::Update, 1),
        ] {
            let plan = plan_role(&existing, &expected, remove);
            assert_eq!(plan.operation, operation, "{existing} {expected}");
            assert_eq!(list(&plan.object["rules"]).len(), rules, "{existing} {expected}");
        }
        let mut labelled = role(&["get"]);
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(plan_role(&role(&["get"]), &labelled, false).operation, Operation::Update);
        let mut protected = role(&["get"]);
        protected["metadata"]["annotations"] = json!({"rbac.authorization.kubernetes.io/autoupdate": "false"});
        assert!(plan_role(&protected, &role(&["list"]), false).protected);
    }

    #[test]
    fn bindings_gain_lose_and_are_made_anew() {
        let binding = |role: &str, names: &[&str]| {
            let subjects: Vec<Value> = names.iter().map(|n| json!({"kind": "User", "name": n})).collect();
            json!({"metadata": {"name": "b"}, "roleRef": {"name": role}, "subjects": subjects})
        };
        for (existing, expected, remove, operation, subjects) in [
            (binding("r", &["a"]), binding("r", &["a"]), false, Operation::None, 1),
            (binding("r", &["a"]), binding("r", &["b"]), false, Operation::Update, 2),
            (binding("r", &["a"]), binding("r", &["b"]), true, Operation::Update, 1),
            (binding("r", &["a"]), binding("s", &["a"]), false, Operation::Recreate, 1),
        ] {
            let plan = plan_binding(&existing, &expected, remove);
            assert_eq!(plan.operation, operation, "{existing} {expected}");
            assert_eq!(list(&plan.object["subjects"]).len(), subjects, "{existing} {expected}");
        }
    }
}
