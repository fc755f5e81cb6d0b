//! `kubectl apply`: client side (three-way, remembered in an annotation) or server side, with pruning.

mod apply_set;
mod last_applied;
mod migrate;
pub(crate) mod prune;

use serde_json::Value;

use apply_set::ApplySet;

use super::flags;
use crate::cli::{Command, Flag};
use crate::context::{Context, DryRun, with_dry_run};
use crate::failure::{Failure, Result};
use crate::objects::{self, LAST_APPLIED, PatchKind};
use crate::request::Request;
use crate::resources::{self, Info, Options, Selection};
use crate::three_way;

pub(crate) const COMMAND: Command = Command {
    name: "apply",
    usage: "(-f FILENAME | -k DIRECTORY)",
    about: "Apply a configuration to a resource by file name or stdin",
    examples: "  kubectl apply -f deployment.yaml\n  cat pod.json | kubectl apply -f -\n  kubectl apply --server-side -f deployment.yaml",
    flags: &[
        flags::FILENAME,
        flags::OUTPUT,
        flags::SELECTOR,
        flags::DRY_RUN,
        flags::VALIDATE,
        flags::RECORD,
        &[
            Flag::bool("all", "With --prune: consider all objects of the namespace."),
            Flag::string("applyset", "[alpha] Parent object that remembers what is applied, for --prune: NAME of a Secret, or RESOURCE[.GROUP]/NAME.").gate(apply_set::GATE),
            Flag::string("cascade", "How dependents of pruned objects go: background, orphan or foreground.")
                .default("background")
                .bare("background"),
            Flag::string("field-manager", "Name that owns the fields.").default("kubectl-client-side-apply"),
            Flag::bool("force", "Delete and create objects that cannot be patched."),
            Flag::bool("force-conflicts", "With --server-side: take fields over from other managers."),
            Flag::int("grace-period", "-1", "Seconds that pruned objects get to end; negative leaves it to them."),
            Flag::bool("openapi-patch", "Use the server's schema to compute the patch.").default("true"),
            Flag::bool("overwrite", "On conflict use the values of the file.").default("true"),
            Flag::bool("prune", "Delete objects that were applied before and are not in the files now."),
            Flag::array("prune-allowlist", "group/version/kind to prune instead of the usual ones."),
            Flag::bool("server-side", "Let the server merge."),
            Flag::string("subresource", "Subresource to apply to, with --server-side."),
            Flag::duration("timeout", "0s", "How long to wait for a deletion; zero means as long as the object needs."),
            Flag::bool("wait", "Wait until deleted objects are gone."),
        ],
    ],
    subcommands: &[&last_applied::EDIT, &last_applied::SET, &last_applied::VIEW],
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

/// How often a patch that met a conflict is computed again.
const MAX_CONFLICTS: usize = 5;

async fn run(cx: &Context) -> Result<()> {
    if !cx.args().is_empty() {
        return Err(cx.usage(format!("Unexpected args: [{}]", cx.args().join(" "))));
    }
    let dry_run = cx.dry_run()?;
    if cx.flags.list("filename").is_empty() && cx.flags.string("kustomize").is_empty() {
        return Err(Failure::message("must specify one of -f and -k"));
    }
    objects::field_validation(cx)?;
    let mut apply_set = ApplySet::from_flag(cx).await?;
    if cx.flags.bool("prune") {
        prune::allowed(cx).await?;
    }
    check_flags(cx, dry_run, apply_set.as_ref()).await?;

    let selected = resources::select(cx, &Options::default()).await?;
    let (mut infos, mut failures) = (Vec::new(), selected.failures);
    for selection in selected.found {
        if let Selection::File(info) = selection {
            infos.push(*info);
        }
    }
    if infos.is_empty() && failures.is_empty() {
        return Err(Failure::message("no objects passed to apply"));
    }
    if let Some(set) = &mut apply_set {
        if let Err(e) = infos.iter_mut().try_for_each(|info| set.label(&mut info.object)) {
            infos.clear();
            failures.push(e);
        }
        set.before_apply(cx, &infos, dry_run).await?;
    }
    let mut applied: Vec<(Info, Value, &'static str)> = Vec::new();
    // Whole objects are printed at the end, together.
    let whole = !matches!(cx.flags.string("output").as_str(), "" | "name");
    let mut printer = cx.printer("", dry_run)?;
    for info in infos {
        let outcome = if cx.flags.bool("server-side") {
            apply_server_side(cx, &info, dry_run).await
        } else {
            apply_client_side(cx, &info, dry_run).await
        };
        match outcome {
            Ok((object, operation)) => {
                if !whole {
                    printer.operation = with_dry_run(operation, dry_run);
                    cx.print(&printer.print(&object)?)?;
                }
                applied.push((info, object, operation));
            }
            Err(e) => failures.push(e),
        }
    }
    Failure::all(failures)?;
    if whole {
        match applied.as_slice() {
            [(_, object, _)] => cx.print(&printer.print(object)?)?,
            all => {
                let list = serde_json::json!({"apiVersion": "v1", "kind": "List",
                    "items": all.iter().map(|(_, o, _)| o).collect::<Vec<_>>(), "metadata": {"resourceVersion": ""}});
                cx.print(&printer.print(&list)?)?;
            }
        }
    }
    match apply_set {
        Some(set) => set.prune(cx, &applied, dry_run).await,
        None if cx.flags.bool("prune") => prune::prune(cx, &applied, dry_run).await,
        None => Ok(()),
    }
}

/// Which flags exclude each other, in upstream's order.
async fn check_flags(cx: &Context, dry_run: DryRun, apply_set: Option<&ApplySet>) -> Result<()> {
    let on = |flag: &str| cx.flags.bool(flag);
    let selector = !cx.flags.string("selector").is_empty();
    let refuse = |text: &str| Err(Failure::message(text));
    if on("force-conflicts") && !on("server-side") {
        return refuse("--force-conflicts only works with --server-side");
    }
    if dry_run == DryRun::Client && on("server-side") {
        return refuse("--dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)");
    }
    if on("server-side") && on("force") {
        return refuse("--force cannot be used with --server-side");
    }
    if dry_run == DryRun::Server && on("force") {
        return refuse("--dry-run=server cannot be used with --force");
    }
    if on("all") && selector {
        return refuse("cannot set --all and --selector at the same time");
    }
    if let Some(set) = apply_set {
        if !on("prune") {
            return refuse("--applyset requires --prune");
        }
        set.validate(cx).await?;
    }
    if on("prune") {
        // An object made anew has another uid, and would be taken for one that was left out.
        if on("force") {
            return refuse("--force cannot be used with --prune");
        }
        match apply_set {
            Some(_) if on("all") => return refuse("--all is incompatible with --applyset"),
            Some(_) if selector => return refuse("--selector is incompatible with --applyset"),
            Some(_) if cx.flags.changed("prune-allowlist") => {
                return refuse("--prune-allowlist is incompatible with --applyset");
            }
            None if !on("all") && !selector => {
                return refuse(
                    "all resources selected for prune without explicitly passing --all. To prune all resources, pass the --all flag. If you did not mean to prune all resources, specify a label selector",
                );
            }
            None if on("server-side") => {
                return refuse(
                    "--prune is in alpha and doesn't currently work on objects created by server-side apply",
                );
            }
            _ => {}
        }
    }
    if !cx.flags.string("subresource").is_empty() && !on("server-side") {
        return refuse("--subresource can only be specified for --server-side");
    }
    Ok(())
}

/// A name that the server makes up is a new object every time.
fn check_name(info: &Info) -> Result<()> {
    match info.object["metadata"]["generateName"].as_str() {
        Some(prefix) if info.name.is_empty() && !prefix.is_empty() => {
            Err(Failure::message(format!("from {prefix}: cannot use generate name with apply")))
        }
        _ => Ok(()),
    }
}

fn warn_if_deleting(cx: &Context, object: &Value) {
    if !object["metadata"]["deletionTimestamp"].is_null() {
        cx.warn(&format!(
            "Detected changes to resource {} which is currently being deleted.",
            objects::text(object, "/metadata/name")
        ));
    }
}

/// Null means unset: what is created must be what a later apply would make of it.
fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

async fn apply_server_side(cx: &Context, info: &Info, dry_run: DryRun) -> Result<(Value, &'static str)> {
    check_name(info)?;
    info.named()?;
    let manager = match cx.flags.string("field-manager") {
        m if cx.flags.changed("field-manager") => m,
        _ => "kubectl".to_owned(),
    };
    let mut path = info.path();
    let subresource = cx.flags.string("subresource");
    if !subresource.is_empty() {
        path = format!("{path}/{subresource}");
    }
    let validation = objects::field_validation(cx)?.unwrap_or("Strict");
    let request = || {
        Request::patch(path.clone(), "application/apply-patch+yaml", info.object.to_string())
            .query("fieldManager", manager.clone())
            .query("fieldValidation", validation)
            .query("force", if cx.flags.bool("force-conflicts") { "true" } else { "false" })
            .query_if(dry_run == DryRun::Server, "dryRun", "All")
    };
    match request().value(cx).await {
        Ok(object) if dry_run == DryRun::None && subresource.is_empty() => {
            // The object is applied: trouble with taking ownership over is only worth a warning.
            let again = match migrate::run(cx, info, &object, &manager).await {
                Ok(moved) => moved,
                Err(e) => {
                    cx.eprintln(format!("Warning: server rejected managed fields migration to Server-Side Apply. This is non-fatal and will be retried next time you apply. Error: {}", e.inner()));
                    false
                }
            };
            let object = if again { request().value(cx).await? } else { object };
            warn_if_deleting(cx, &object);
            Ok((object, "serverside-applied"))
        }
        Ok(object) => Ok((object, "serverside-applied")),
        Err(e) if e.is_conflict() => Err(Failure::message(format!(
            "{}\nPlease review the fields above--they currently have other managers. Here\nare the ways you can resolve this warning:\n* If you intend to manage all of these fields, please re-run the apply\n  command with the `--force-conflicts` flag.\n* If you do not intend to manage all of the fields, please edit your\n  manifest to remove references to the fields that should keep their\n  current managers.\n* You may co-own fields by updating your manifest to match the existing\n  value; in this case, you'll become the manager if the other manager(s)\n  stop managing the field (remove it from their configuration).\nSee https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts",
            e.inner()
        ))),
        Err(e) => Err(e),
    }
}

async fn apply_client_side(cx: &Context, info: &Info, dry_run: DryRun) -> Result<(Value, &'static str)> {
    let manager = cx.flags.string("field-manager");
    check_name(info)?;
    let mut modified = info.object.clone();
    let text = objects::last_applied(&modified);
    objects::set_annotation(&mut modified, LAST_APPLIED, text);
    objects::record(cx, &mut modified);

    let mut current = match info.get(cx).await {
        Ok(current) => current,
        Err(e) if e.is_not_found() => {
            prune_nulls(&mut modified);
            if dry_run == DryRun::Client {
                return Ok((modified, "created"));
            }
            let created = objects::create(cx, &info.mapping, &info.namespace, &modified, dry_run, &manager).await;
            return created.map(|c| (c, "created")).map_err(|e| super::create_failure("creating", info, e));
        }
        Err(e) => return Err(e.context(format!(
            "error when retrieving current configuration of:\nResource: \"{}\", GroupVersionKind: \"{}\"\nName: \"{}\", Namespace: \"{}\"\nfrom server for: \"{}\"",
            info.mapping.resource_text(), info.mapping.kind_text(), info.name, info.namespace, info.source
        ))),
    };
    if current["metadata"]["annotations"][LAST_APPLIED].is_null() {
        cx.warn(&format!(
            "resource {}/{} is missing the {LAST_APPLIED} annotation which is required by kubectl apply. kubectl apply should only be used on resources created declaratively by either kubectl create --save-config or kubectl apply. The missing annotation will be patched automatically.",
            info.mapping.resource, info.name
        ));
    }
    let mut conflicts = 0;
    loop {
        let (kind, patch) = compute_patch(info, &modified, &current);
        if patch.as_object().is_some_and(|p| p.is_empty()) {
            warn_if_deleting(cx, &current);
            return Ok((current, "unchanged"));
        }
        if dry_run == DryRun::Client {
            return Ok((apply_locally(info, kind, &current, &patch), "configured"));
        }
        match objects::patch(cx, info.path(), kind, patch.to_string(), dry_run, &manager).await {
            Ok(object) => {
                warn_if_deleting(cx, &object);
                return Ok((object, "configured"));
            }
            Err(e) if e.is_conflict() && conflicts < MAX_CONFLICTS => {
                conflicts += 1;
                current = info.get(cx).await?;
            }
            Err(e) if cx.flags.bool("force") && (e.is_conflict() || e.reason() == "Invalid") => {
                let recreated = recreate(cx, info, &modified, &current, &manager).await?;
                return Ok((recreated, "configured"));
            }
            Err(e) => return Err(e.context(format!(
                "error when applying patch:\n{patch}\nto:\nResource: \"{}\", GroupVersionKind: \"{}\"\nName: \"{}\", Namespace: \"{}\"\nfor: \"{}\"",
                info.mapping.resource_text(), info.mapping.kind_text(), info.name, info.namespace, info.source
            ))),
        }
    }
}

/// The patch, strategic where the type's schema is known.
pub(crate) fn compute_patch(info: &Info, modified: &Value, current: &Value) -> (PatchKind, Value) {
    let original: Option<Value> =
        current["metadata"]["annotations"][LAST_APPLIED].as_str().and_then(|text| serde_json::from_str(text).ok());
    match three_way::schema(&info.mapping.group, &info.mapping.kind) {
        Some(schema) => (PatchKind::Strategic, three_way::strategic(original.as_ref(), modified, current, &schema)),
        None => (PatchKind::Merge, three_way::merge(original.as_ref(), modified, current)),
    }
}

pub(crate) fn apply_locally(info: &Info, kind: PatchKind, current: &Value, patch: &Value) -> Value {
    let mut result = current.clone();
    let done = match (kind, three_way::schema(&info.mapping.group, &info.mapping.kind)) {
        (PatchKind::Strategic, Some(schema)) => api::patch::strategic::apply(&mut result, patch, &schema),
        _ => api::patch::merge::apply(&mut result, patch),
    };
    if done.is_err() { current.clone() } else { result }
}

/// Deletes and makes anew. When the new object is refused, the old one comes back and the refusal is told.
async fn recreate(cx: &Context, info: &Info, modified: &Value, current: &Value, manager: &str) -> Result<Value> {
    Request::delete(info.path(), &super::delete::options(cx, false, DryRun::None)).send(cx).await?;
    super::delete::wait_gone(cx, info, "", cx.flags.duration("timeout")).await?;
    let create =
        async |object: &Value| objects::create(cx, &info.mapping, &info.namespace, object, DryRun::None, manager).await;
    let refused = match create(modified).await {
        Ok(created) => return Ok(created),
        Err(refused) => refused,
    };
    match create(current).await {
        Ok(_) => Err(refused),
        Err(lost) => Err(Failure::message(format!(
            "An error occurred force-replacing the existing object with the newly provided one:\n\n{}.\n\nAdditionally, an error occurred attempting to restore the original object:\n\n{}",
            refused.inner(),
            lost.inner()
        ))),
    }
}
