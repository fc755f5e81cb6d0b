//! Candidates that only the kubeconfig or the server knows.

use std::time::Duration;

use api::sort::CompactSort as _;
use serde_json::Value;

use super::{Candidates, Directive};
use crate::cli::Words;
use crate::context::Context;
use crate::failure::Result;
use crate::objects::text;
use crate::pods;
use crate::request::{Request, name_segment, namespace_segment};
use crate::resources::items;

/// Nobody waits longer at a prompt.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Types whose objects lead to pods.
const WITH_PODS: &[&str] =
    &["daemonsets", "deployments", "pods", "jobs", "replicasets", "replicationcontrollers", "services", "statefulsets"];

pub(super) fn words(cx: &Context, words: &Words, last: &str) -> Candidates {
    asked(async {
        match words {
            Words::Objects => objects(cx, None, last).await,
            Words::ObjectsOf(types) => objects(cx, Some(types), last).await,
            Words::Named(kind) if cx.args().is_empty() => Ok(plain(fitting(names(cx, kind).await?, last))),
            Words::Types if cx.args().is_empty() => Ok(plain(types(cx, last).await?)),
            Words::Pods | Words::PodThenContainer | Words::PodThenPort if cx.args().is_empty() => {
                pods_or_types(cx, last).await
            }
            Words::PodThenContainer if cx.args().len() == 1 => Ok(plain(fitting(containers(cx).await?, last))),
            Words::PodThenPort if cx.args().len() == 1 => Ok(plain(fitting(ports(cx).await?, last))),
            Words::Contexts | Words::Clusters | Words::Users if cx.args().is_empty() => {
                Ok(plain(fitting(configured(cx, words)?, last)))
            }
            _ => Ok(plain(Vec::new())),
        }
    })
}

pub(super) fn flag(cx: &Context, flag: &str, last: &str) -> Candidates {
    asked(async {
        Ok(plain(match flag {
            "namespace" => fitting(names(cx, "namespaces").await?, last),
            "context" => fitting(configured(cx, &Words::Contexts)?, last),
            "cluster" => fitting(configured(cx, &Words::Clusters)?, last),
            "user" => fitting(configured(cx, &Words::Users)?, last),
            "container" => fitting(containers(cx).await?, last),
            _ => return Ok(Candidates { directive: Some(Directive::Files), ..Candidates::default() }),
        }))
    })
}

fn asked(work: impl Future<Output = Result<Candidates>>) -> Candidates {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Candidates::default();
    };
    let found = runtime.block_on(async { tokio::time::timeout(PROMPT_TIMEOUT, work).await });
    found.ok().and_then(Result::ok).unwrap_or_default()
}

fn plain(values: Vec<String>) -> Candidates {
    Candidates::values(values, Directive::NoFiles)
}

fn fitting(values: Vec<String>, prefix: &str) -> Vec<String> {
    values.into_iter().filter(|v| v.starts_with(prefix)).collect()
}

async fn names(cx: &Context, kind: &str) -> Result<Vec<String>> {
    let mapping = cx.discovery()?.resolve(cx, kind).await?;
    let list = Request::get(mapping.path(&cx.namespace()?.0)).value(cx).await?;
    Ok(items(&list).iter().map(|o| text(o, "/metadata/name").to_owned()).collect())
}

/// `pods`, `deployments.apps`; the last of several after commas.
async fn types(cx: &Context, last: &str) -> Result<Vec<String>> {
    let (head, tail) = last.rfind(',').map_or(("", last), |at| last.split_at(at + 1));
    let mut out: Vec<String> =
        cx.discovery()?.preferred(cx).await?.iter().filter(|m| m.supports("get")).map(|m| m.group_resource()).collect();
    out.compact_sort();
    Ok(fitting(out, tail).into_iter().map(|t| format!("{head}{t}")).collect())
}

async fn objects(cx: &Context, allowed: Option<&[&str]>, last: &str) -> Result<Candidates> {
    if let Some(kind) = cx.args().first().filter(|a| !a.contains('/')) {
        let taken = &cx.args()[1..];
        let mut found = fitting(names(cx, kind).await?, last);
        found.retain(|n| !taken.contains(n));
        return Ok(plain(found));
    }
    if let Some((kind, name)) = last.split_once('/') {
        let found = fitting(names(cx, kind).await?, name);
        return Ok(plain(found.into_iter().map(|n| format!("{kind}/{n}")).collect()));
    }
    let kinds = match allowed {
        Some(allowed) => fitting(allowed.iter().map(|a| (*a).to_owned()).collect(), last),
        None => types(cx, last).await?,
    };
    if cx.args().is_empty() {
        return Ok(plain(kinds));
    }
    Ok(Candidates::values(kinds.into_iter().map(|k| k + "/"), Directive::Unfinished))
}

async fn pods_or_types(cx: &Context, last: &str) -> Result<Candidates> {
    if let Some((kind, name)) = last.split_once('/') {
        let found = fitting(names(cx, kind).await?, name);
        return Ok(plain(found.into_iter().map(|n| format!("{kind}/{n}")).collect()));
    }
    let mut found = fitting(names(cx, "pods").await?, last);
    let kinds: Vec<String> = WITH_PODS.iter().filter(|k| k.starts_with(last)).map(|k| format!("{k}/")).collect();
    // After a whole pod name a space; after `deployments/` the name.
    let directive = if found.is_empty() || !kinds.is_empty() { Directive::Unfinished } else { Directive::NoFiles };
    found.extend(kinds);
    Ok(Candidates::values(found, directive))
}

async fn pod(cx: &Context) -> Result<Value> {
    let word = cx.args().first().cloned().unwrap_or_default();
    Ok(pods::of_object(cx, &cx.namespace()?.0, &word, "attach to", Duration::ZERO)
        .await?
        .into_iter()
        .next()
        .unwrap_or(Value::Null))
}

async fn containers(cx: &Context) -> Result<Vec<String>> {
    Ok(pods::container_names(&pod(cx).await?))
}

/// `80:80`, from the pod's containers or the service.
async fn ports(cx: &Context) -> Result<Vec<String>> {
    let word = cx.args().first().cloned().unwrap_or_default();
    let numbers: Vec<Value> = match word.split_once('/') {
        Some(("service" | "services" | "svc", name)) => {
            let (namespace, name) = (namespace_segment(&cx.namespace()?.0)?, name_segment(name)?);
            let service = Request::get(format!("/api/v1/namespaces/{namespace}/services/{name}")).value(cx).await?;
            service["spec"]["ports"].as_array().into_iter().flatten().map(|p| p["port"].clone()).collect()
        }
        _ => pod(cx).await?["spec"]["containers"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|c| c["ports"].as_array().into_iter().flatten())
            .map(|p| p["containerPort"].clone())
            .collect(),
    };
    Ok(numbers.iter().map(|n| format!("{n}:{n}")).collect())
}

fn configured(cx: &Context, words: &Words) -> Result<Vec<String>> {
    let config = cx.kubeconfig()?;
    let mut out: Vec<String> = match words {
        Words::Contexts => config.contexts.iter().map(|c| c.name.clone()).collect(),
        Words::Clusters => config.clusters.iter().map(|c| c.name.clone()).collect(),
        _ => config.users.iter().map(|u| u.name.clone()).collect(),
    };
    out.compact_sort();
    Ok(out)
}
