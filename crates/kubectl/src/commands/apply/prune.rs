//! `apply --prune`: objects that carry the annotation, match the selector and were not applied this time.

use std::collections::BTreeSet;

use api::sort::CompactCollect as _;
use serde_json::Value;

use crate::context::{Context, DryRun};
use crate::discovery::Mapping;
use crate::failure::{Failure, Result};
use crate::objects::LAST_APPLIED;
use crate::request::Request;
use crate::resources::{self, Info};

/// (apiVersion, kind), namespaced ones first.
const USUAL: &[(&str, &str)] = &[
    ("v1", "ConfigMap"),
    ("v1", "Endpoints"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Pod"),
    ("v1", "ReplicationController"),
    ("v1", "Secret"),
    ("v1", "Service"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    ("networking.k8s.io/v1", "Ingress"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
    ("v1", "Namespace"),
    ("v1", "PersistentVolume"),
];

pub(super) async fn prune(cx: &Context, applied: &[(Info, Value, &'static str)], dry_run: DryRun) -> Result<()> {
    let kept: Vec<(&Info, &Value)> = applied.iter().map(|(info, object, _)| (info, object)).collect();
    let mut printer = cx.printer("pruned", dry_run)?;
    for info in candidates(cx, &kept).await? {
        delete(cx, &info, dry_run).await?;
        cx.print(&printer.print(&info.object)?)?;
    }
    Ok(())
}

pub(super) async fn delete(cx: &Context, info: &Info, dry_run: DryRun) -> Result<()> {
    if dry_run != DryRun::Client {
        Request::delete(info.path(), &super::super::delete::options(cx, false, dry_run)).send(cx).await?;
    }
    Ok(())
}

/// The types of `--prune-allowlist`; none means the usual ones.
pub(super) async fn allowed(cx: &Context) -> Result<Vec<Mapping>> {
    let mut out = Vec::new();
    for row in cx.flags.list("prune-allowlist") {
        let parts: Vec<&str> = row.split('/').collect();
        let [group, version, kind] = parts.as_slice() else {
            return Err(Failure::message(format!(
                "invalid GroupVersionKind format: {row}, please follow <group/version/kind>"
            )));
        };
        let api_version = crate::discovery::group_version(if *group == "core" { "" } else { group }, version);
        let mapping = cx.discovery()?.of_kind(cx, &api_version, kind).await?;
        out.push(
            mapping.ok_or_else(|| {
                Failure::message(format!("no matches for kind \"{kind}\" in version \"{api_version}\""))
            })?,
        );
    }
    Ok(out)
}

/// Objects of the usual (or the allowed) types that were applied before and are not among `kept`.
pub(crate) async fn candidates(cx: &Context, kept: &[(&Info, &Value)]) -> Result<Vec<Info>> {
    let uids: BTreeSet<&str> = kept.iter().filter_map(|(_, o)| o["metadata"]["uid"].as_str()).compact_collect();
    let (namespace, explicit) = cx.namespace()?;
    let mut namespaces: BTreeSet<&str> =
        kept.iter().filter(|(i, _)| i.mapping.namespaced).map(|(i, _)| i.namespace.as_str()).compact_collect();
    if explicit {
        namespaces.insert(&namespace);
    }
    let mut mappings = allowed(cx).await?;
    if mappings.is_empty() {
        cx.klog(
            'W',
            "prune.go:71",
            "Deprecated: kubectl apply will no longer prune non-namespaced resources by default when used with the --namespace flag in a future release. To preserve the current behaviour, list the resources you want to target explicitly in the --prune-allowlist flag.",
        );
        for (api_version, kind) in USUAL {
            mappings.extend(cx.discovery()?.of_kind(cx, api_version, kind).await?);
        }
    }
    let mut out = Vec::new();
    for mapping in mappings {
        let scopes: Vec<&str> = if mapping.namespaced { namespaces.iter().copied().collect() } else { vec![""] };
        for namespace in scopes {
            for object in resources::items(&resources::list(cx, &mapping, namespace).await?) {
                let meta = &object["metadata"];
                if meta["annotations"][LAST_APPLIED].is_null() || meta["uid"].as_str().is_some_and(|u| uids.contains(u))
                {
                    continue;
                }
                out.push(Info {
                    mapping: mapping.clone(),
                    namespace: namespace.to_owned(),
                    name: meta["name"].as_str().unwrap_or("").to_owned(),
                    object: object.clone(),
                    source: String::new(),
                });
            }
        }
    }
    Ok(out)
}
