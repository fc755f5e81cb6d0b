//! `apply --applyset=PARENT --prune`: members carry a label, and a parent object remembers which kinds and namespaces hold
//! some, so that pruning looks there and nowhere else.
//!
//! Flow: the parent grows to what was and what will be ([`ApplySet::before_apply`]) -> the objects are applied -> members that
//! were not among them go, and the parent shrinks to what is ([`ApplySet::prune`]). A run that ends in between leaves the
//! larger set, so that the next one still finds every member.

use std::collections::{BTreeMap, BTreeSet};

use api::sort::CompactCollect as _;
use base64::Engine;
use serde_json::{Value, json};
use sha2::Digest;

use crate::context::{Context, DryRun};
use crate::discovery::Mapping;
use crate::failure::{Failure, Result};
use crate::objects;
use crate::request::Request;
use crate::resources::{self, Info};

/// The variable that turns the flag on.
pub(super) const GATE: &str = "KUBECTL_APPLYSET";

const TOOLING: &str = "applyset.kubernetes.io/tooling";
const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";
const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
/// What early versions wrote instead of [`KINDS`].
const RESOURCES: &str = "applyset.kubernetes.io/contains-group-resources";
const ID: &str = "applyset.kubernetes.io/id";
const PART_OF: &str = "applyset.kubernetes.io/part-of";
/// On a CRD: its objects may be parents.
const PARENT_TYPE: &str = "applyset.kubernetes.io/is-parent-type";

const TOOL: &str = "kubectl";
const MANAGER: &str = "kubectl-applyset";

/// Where members may be.
#[derive(Clone, Default)]
struct Reach {
    /// By `Kind.group`.
    kinds: BTreeMap<String, Mapping>,
    namespaces: BTreeSet<String>,
}

pub(super) struct ApplySet {
    mapping: Mapping,
    namespace: String,
    name: String,
    /// As the parent said when we began.
    current: Reach,
    /// After this command.
    updated: Reach,
}

impl ApplySet {
    /// The set that `--applyset` names, if it was given: `NAME` of a Secret, or `RESOURCE[.GROUP]/NAME`.
    pub(super) async fn from_flag(cx: &Context) -> Result<Option<ApplySet>> {
        let reference = if cx.flags.has_flag("applyset") { cx.flags.string("applyset") } else { String::new() };
        if reference.is_empty() {
            return Ok(None);
        }
        let invalid = |why: String| Failure::message(format!("invalid parent reference \"{reference}\": {why}"));
        let (resource, name) = reference.split_once('/').unwrap_or(("secrets", &reference));
        if name.is_empty() {
            return Err(invalid("name cannot be blank".to_owned()));
        }
        let mapping = cx.discovery()?.resolve(cx, resource).await.map_err(|e| match e {
            Failure::NoResource { .. } => {
                let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
                invalid(format!("no matches for {group}/, Resource={resource}"))
            }
            other => invalid(other.inner()),
        })?;
        // Where a set lives must be said: the context's namespace is too easily another one tomorrow.
        let (namespace, explicit) = cx.namespace()?;
        let namespace = if explicit && mapping.namespaced { namespace } else { String::new() };
        let (current, updated) = (Reach::default(), Reach::default());
        Ok(Some(ApplySet { mapping, namespace, name: name.to_owned(), current, updated }))
    }

    /// Whether the parent may be one.
    pub(super) async fn validate(&self, cx: &Context) -> Result<()> {
        let mut failures = Vec::new();
        if self.mapping.namespaced && self.namespace.is_empty() {
            failures.push(Failure::message("namespace is required to use namespace-scoped ApplySet"));
        }
        if !self.may_be_created() {
            let permitted = Request::get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
                .query("labelSelector", PARENT_TYPE)
                .value(cx)
                .await;
            let names = match permitted {
                Ok(list) => resources::items(&list),
                Err(e) => {
                    let text = format!("identifying allowed custom resource parent types: {}", e.inner());
                    failures.push(Failure::message(text));
                    Vec::new()
                }
            };
            if !names.iter().any(|crd| crd["metadata"]["name"] == self.mapping.group_resource()) {
                failures.push(Failure::message(format!(
                    "resource \"{}\" is not permitted as an ApplySet parent",
                    self.mapping.resource_text()
                )));
            }
        }
        Failure::all(failures)
    }

    /// Secrets and ConfigMaps need no content of their own.
    fn may_be_created(&self) -> bool {
        self.mapping.api_version() == "v1" && ["secrets", "configmaps"].contains(&self.mapping.resource.as_str())
    }

    fn id(&self) -> String {
        id(&self.name, &self.namespace, &self.mapping.kind, &self.mapping.group)
    }

    /// `secrets./web`
    fn reference(&self) -> String {
        format!("{}.{}/{}", self.mapping.resource, self.mapping.group, self.name)
    }

    fn path(&self) -> String {
        self.mapping.object_path(&self.namespace, &self.name)
    }

    /// Makes an object from a file a member.
    pub(super) fn label(&self, object: &mut Value) -> Result<()> {
        if !object["metadata"]["labels"][PART_OF].is_null() {
            return Err(Failure::message(format!("ApplySet label \"{PART_OF}\" already set in input data")));
        }
        if !object["metadata"]["labels"].is_object() {
            object["metadata"]["labels"] = json!({});
        }
        object["metadata"]["labels"][PART_OF] = json!(self.id());
        Ok(())
    }

    /// Reads the parent and makes it cover everything that is about to be applied.
    pub(super) async fn before_apply(&mut self, cx: &Context, infos: &[Info], dry_run: DryRun) -> Result<()> {
        self.fetch_parent(cx).await?;
        for info in infos {
            self.updated.kinds.entry(info.mapping.group_kind()).or_insert_with(|| info.mapping.clone());
            if info.mapping.namespaced && !info.namespace.is_empty() {
                self.updated.namespaces.insert(info.namespace.clone());
            }
        }
        let mut both = self.current.clone();
        both.kinds.extend(self.updated.kinds.clone());
        both.namespaces.extend(self.updated.namespaces.iter().cloned());
        self.update_parent(cx, &both, dry_run).await
    }

    async fn fetch_parent(&mut self, cx: &Context) -> Result<()> {
        let reference = self.reference();
        let parent = match Request::get(self.path()).value(cx).await {
            Ok(parent) => parent,
            Err(e) if e.is_not_found() && self.may_be_created() => return Ok(()),
            Err(e) if e.is_not_found() => {
                return Err(Failure::message("custom resource ApplySet parents cannot be created automatically"));
            }
            Err(e) => {
                return Err(Failure::message(format!(
                    "failed to fetch ApplySet parent object \"{reference}\": {}",
                    e.inner()
                )));
            }
        };
        check_parent(&parent, &reference, &self.id())?;
        let annotation = |key: &str| parent["metadata"]["annotations"][key].as_str();
        self.current.kinds = self.parse_kinds(cx, annotation(KINDS), annotation(RESOURCES)).await.map_err(|why| {
            Failure::message(format!("parsing ApplySet annotation on \"{reference}\": {}", why.inner()))
        })?;
        self.current.namespaces = words(annotation(NAMESPACES).unwrap_or("")).map(str::to_owned).collect();
        if self.mapping.namespaced {
            self.current.namespaces.insert(self.namespace.clone());
        }
        Ok(())
    }

    async fn parse_kinds(
        &self,
        cx: &Context,
        kinds: Option<&str>,
        resources: Option<&str>,
    ) -> Result<BTreeMap<String, Mapping>> {
        let mut out = BTreeMap::new();
        let discovery = cx.discovery()?;
        let Some(kinds) = kinds else {
            let resources = resources.filter(|r| !r.is_empty()).ok_or_else(|| {
                Failure::message(format!(
                    "kubectl requires the \"{KINDS}\" annotation to be set on all ApplySet parent objects"
                ))
            })?;
            for word in words(resources) {
                let mapping = discovery.resolve(cx, word).await.map_err(|_| {
                    let (resource, group) = word.split_once('.').unwrap_or((word, ""));
                    Failure::message(format!(
                        "invalid group resource in \"{RESOURCES}\" annotation: no matches for {group}/, Resource={resource}"
                    ))
                })?;
                out.insert(mapping.group_kind(), mapping);
            }
            return Ok(out);
        };
        for word in words(kinds) {
            let (kind, group) = word.split_once('.').unwrap_or((word, ""));
            let mapping = discovery.of_group_kind(cx, group, kind).await?.ok_or_else(|| {
                Failure::message(format!(
                    "could not find mapping for kind in \"{KINDS}\" annotation: no matches for kind \"{kind}\" in group \"{group}\""
                ))
            })?;
            out.insert(mapping.group_kind(), mapping);
        }
        Ok(out)
    }

    /// Deletes the members that were not applied; then the parent covers only what was.
    pub(super) async fn prune(
        &self,
        cx: &Context,
        applied: &[(Info, Value, &'static str)],
        dry_run: DryRun,
    ) -> Result<()> {
        let uids: BTreeSet<&str> =
            applied.iter().filter_map(|(_, o, _)| o["metadata"]["uid"].as_str()).compact_collect();
        let mut gone = Vec::new();
        for mapping in self.current.kinds.values() {
            let places = if mapping.namespaced { self.current.namespaces.clone() } else { [String::new()].into() };
            for namespace in places {
                let list = resources::list_chunks(cx, mapping, &namespace, |r| {
                    r.query("labelSelector", format!("{PART_OF}={}", self.id()))
                });
                let list = list.await.map_err(|e| {
                    Failure::message(format!("listing {} objects for pruning: {}", mapping.kind_text(), e.inner()))
                })?;
                gone.extend(
                    resources::items(&list)
                        .into_iter()
                        .filter(|o| o["metadata"]["uid"].as_str().is_none_or(|uid| !uids.contains(uid)))
                        .map(|object| Info {
                            mapping: mapping.clone(),
                            namespace: namespace.clone(),
                            name: objects::text(&object, "/metadata/name").to_owned(),
                            object,
                            source: String::new(),
                        }),
                );
            }
        }
        let mut printer = cx.printer("pruned", dry_run)?;
        for info in gone {
            super::prune::delete(cx, &info, dry_run).await.map_err(|e| {
                let place = if info.namespace.is_empty() { String::new() } else { format!("{}/", info.namespace) };
                Failure::message(format!("pruning {} {place}{}: {}", info.mapping.group_kind(), info.name, e.inner()))
            })?;
            cx.print(&printer.print(&info.object)?)?;
        }
        self.update_parent(cx, &self.updated, dry_run).await.map_err(|e| {
            Failure::message(format!("apply and prune succeeded, but ApplySet update failed: {}", e.inner()))
        })
    }

    /// Server-side apply, so that what we no longer say goes away, the early annotation with it.
    async fn update_parent(&self, cx: &Context, reach: &Reach, dry_run: DryRun) -> Result<()> {
        if dry_run == DryRun::Client {
            return Ok(());
        }
        let parent = self.parent(reach);
        let validation = objects::field_validation(cx)?.unwrap_or("Strict");
        let send = |force: &'static str| {
            Request::patch(self.path(), "application/apply-patch+yaml", parent.to_string())
                .query("fieldManager", MANAGER)
                .query("fieldValidation", validation)
                .query("force", force)
                .query_if(dry_run == DryRun::Server, "dryRun", "All")
                .value(cx)
        };
        let result = match send("false").await {
            Err(e) if e.is_conflict() => {
                cx.klog('W', "applyset.go:435", &format!(
                    "WARNING: failed to update ApplySet: {}\nApplySet field manager {MANAGER} should own these fields. Retrying with conflicts forced.",
                    e.inner()
                ));
                send("true").await
            }
            other => other,
        };
        result.map(|_| ()).map_err(|e| Failure::message(format!("failed to update ApplySet: {}", e.inner())))
    }

    fn parent(&self, reach: &Reach) -> Value {
        let kinds: Vec<&str> = reach.kinds.keys().map(String::as_str).collect();
        let others: Vec<&str> = reach.namespaces.iter().map(String::as_str).filter(|n| *n != self.namespace).collect();
        let mut parent = json!({
            "apiVersion": self.mapping.api_version(),
            "kind": self.mapping.kind,
            "metadata": {
                "name": self.name,
                "labels": {ID: self.id()},
                "annotations": {
                    TOOLING: format!("{TOOL}/{}", crate::VERSION),
                    KINDS: kinds.join(","),
                    NAMESPACES: others.join(","),
                },
            },
        });
        if !self.namespace.is_empty() {
            parent["metadata"]["namespace"] = json!(self.namespace);
        }
        parent
    }
}

/// The value of both labels.
fn id(name: &str, namespace: &str, kind: &str, group: &str) -> String {
    let digest = sha2::Sha256::digest(format!("{name}.{namespace}.{kind}.{group}"));
    // Label values begin and end with a letter or digit, which this encoding does not promise.
    format!("applyset-{}-v1", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest))
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|w| !w.is_empty())
}

/// Whether an object that is there already is our set's parent.
fn check_parent(parent: &Value, reference: &str, id: &str) -> Result<()> {
    let meta = &parent["metadata"];
    let Some(tooling) = meta["annotations"][TOOLING].as_str() else {
        return Err(Failure::message(format!(
            "ApplySet parent object \"{reference}\" already exists and is missing required annotation \"{TOOLING}\""
        )));
    };
    let tool = tooling.rsplit_once('/').map_or(tooling, |(tool, _)| tool);
    if tool != TOOL {
        return Err(Failure::message(format!(
            "ApplySet parent object \"{reference}\" already exists and is managed by tooling \"{tool}\" instead of \"{TOOL}\""
        )));
    }
    match meta["labels"][ID].as_str() {
        None => Err(Failure::message(format!(
            "ApplySet parent object \"{reference}\" exists and does not have required label {ID}"
        ))),
        Some(found) if found != id => Err(Failure::message(format!(
            "ApplySet parent object \"{reference}\" exists and has incorrect value for label \"{ID}\" (got: {found}, want: {id})"
        ))),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_specification() {
        // printf 'my-set.default.Secret.' | sha256sum, in URL-safe base64
        assert_eq!(id("my-set", "default", "Secret", ""), "applyset-kdySOVBWs584aaOTmku9Ul1xDuN7LXBjs-R96jQcisk-v1");
    }

    #[test]
    fn a_stranger_is_no_parent() {
        let with = |tooling: Value, label: Value| json!({"metadata": {"annotations": {TOOLING: tooling}, "labels": {ID: label}}});
        for (parent, expected) in [
            (json!({"metadata": {}}), "is missing required annotation"),
            (with(json!("helm/v3"), json!("a")), "managed by tooling \"helm\" instead of \"kubectl\""),
            (with(json!("a/kubectl/v1"), json!("a")), "managed by tooling \"a/kubectl\""),
            (with(json!("kubectl/v1"), Value::Null), "does not have required label"),
            (with(json!("kubectl/v1"), json!("b")), "(got: b, want: a)"),
            (with(json!("kubectl/v1"), json!("a")), ""),
        ] {
            let found = check_parent(&parent, "secrets./x", "a").map_or_else(|e| e.inner(), |()| String::new());
            assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{found}");
        }
    }
}
