//! HTTP extenders: services outside that filter, score, preempt and bind.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::meta::Meta as _;
use bytes::Bytes;
use client::Client;
use client::kubeconfig::{AuthInfo, Cluster, Kubeconfig, Overrides};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::NodeId;
use crate::config::{Extender as Configured, ExtenderTls};
use crate::framework::{Candidate, Diagnosis, EXTENDER, MAX_SCORE, Placement, Rejection};
use crate::pod::PodInfo;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Extenders score from 0 to this.
const MAX_EXTENDER_SCORE: i64 = 10;
/// What an extender may say besides twice what it was asked: why it rejects nodes.
const MAX_REASONS: usize = 16 << 20;

pub(crate) struct Extender {
    configured: Configured,
    client: Client,
    timeout: Duration,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Args<'a> {
    pod: Pod,
    nodes: Option<NodeList>,
    node_names: Option<Vec<&'a str>>,
}

#[derive(Serialize)]
struct NodeList {
    items: Vec<Node>,
}

/// The nodes that passed, of which only the names are looked at.
#[derive(Deserialize)]
struct Passed {
    /// Go writes a list without anything in it as null.
    items: Option<Vec<Value>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct FilterResult {
    nodes: Option<Passed>,
    node_names: Option<Vec<String>>,
    failed_nodes: Option<BTreeMap<String, String>>,
    failed_and_unresolvable_nodes: Option<BTreeMap<String, String>>,
    error: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostPriority {
    host: String,
    score: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct PreemptionArgs<'a> {
    pod: Pod,
    node_name_to_victims: Option<BTreeMap<&'a str, Victims>>,
    node_name_to_meta_victims: Option<BTreeMap<&'a str, MetaVictims>>,
}

#[derive(Serialize)]
struct Victims {
    #[serde(rename = "Pods")]
    pods: Vec<Pod>,
    #[serde(rename = "NumPDBViolations")]
    violations: usize,
}

#[derive(Serialize, Deserialize)]
struct MetaVictims {
    #[serde(rename = "Pods", default)]
    pods: Vec<MetaPod>,
    #[serde(rename = "NumPDBViolations", default)]
    violations: usize,
}

#[derive(Serialize, Deserialize)]
struct MetaPod {
    #[serde(rename = "UID")]
    uid: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct PreemptionResult {
    node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

#[derive(Serialize)]
struct BindingArgs<'a> {
    #[serde(rename = "PodName")]
    pod_name: &'a str,
    #[serde(rename = "PodNamespace")]
    pod_namespace: &'a str,
    #[serde(rename = "PodUID")]
    pod_uid: &'a str,
    #[serde(rename = "Node")]
    node: &'a str,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct BindingResult {
    error: String,
}

/// Why an extender gave no answer that counts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExtenderError {
    /// What it says itself.
    #[error("{0}")]
    Said(String),
    #[error("failed {verb} with extender at URL {prefix}/{verb}, code {code}")]
    Code { verb: String, prefix: String, code: u16 },
    #[error("Post \"{prefix}/{verb}\": context deadline exceeded")]
    Timeout { verb: String, prefix: String },
    #[error("expected at least one victim pod on node {0:?}")]
    NoVictims(String),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error("{0}")]
    Body(client::BoxError),
}

impl Extender {
    pub(crate) fn new(configured: Configured) -> Result<Extender, client::Error> {
        let tls = configured.tls.clone().unwrap_or_default();
        let kubeconfig = Kubeconfig::single("extender", server(&configured, &tls), identity(&tls), None);
        let client = Client::from_kubeconfig(&kubeconfig, &Overrides::default())?;
        let timeout = configured.http_timeout.map(|timeout| timeout.0).filter(|timeout| !timeout.is_zero());
        Ok(Extender { client, timeout: timeout.unwrap_or(DEFAULT_TIMEOUT), configured })
    }

    /// Extenders that manage resources are asked only about pods that use one of them.
    pub(crate) fn is_interested(&self, pod: &PodInfo) -> bool {
        if self.configured.managed_resources.is_empty() {
            return true;
        }
        let spec = pod.pod.spec.iter();
        let mut containers = spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
        containers.any(|container| {
            let lists = container.resources.iter().flat_map(|resources| [&resources.requests, &resources.limits]);
            let mut names = lists.flatten().flat_map(|list| list.keys());
            names.any(|name| self.configured.managed_resources.iter().any(|managed| managed.name == *name))
        })
    }

    pub(crate) fn binds(&self) -> bool {
        !self.configured.bind_verb.is_empty()
    }

    /// Resources that the extender alone looks after.
    pub(crate) fn ignored_resources(configured: &Configured) -> impl Iterator<Item = String> {
        let ignored = configured.managed_resources.iter().filter(|resource| resource.ignored_by_scheduler);
        ignored.map(|resource| resource.name.clone())
    }

    fn args<'a>(&self, pod: &'a PodInfo, nodes: &'a [(NodeId, Arc<Node>)]) -> Args<'a> {
        let names = || nodes.iter().map(|(_, node)| name_of(node)).collect();
        let list = || NodeList { items: nodes.iter().map(|(_, node)| (**node).clone()).collect() };
        let is_capable = self.configured.node_cache_capable;
        Args { pod: pod.pod.complete(), nodes: (!is_capable).then(list), node_names: is_capable.then(names) }
    }

    pub(crate) async fn bind(&self, placement: &Placement) -> Result<(), ExtenderError> {
        let args = BindingArgs {
            pod_name: placement.pod.name(),
            pod_namespace: placement.pod.namespace(),
            pod_uid: &placement.pod.uid,
            node: &placement.node,
        };
        let result: BindingResult = self.send(&self.configured.bind_verb, &args).await?;
        if result.error.is_empty() { Ok(()) } else { Err(ExtenderError::Said(result.error)) }
    }

    async fn send<T: DeserializeOwned>(&self, verb: &str, args: &impl Serialize) -> Result<T, ExtenderError> {
        let prefix = self.configured.url_prefix.trim_end_matches('/');
        let path = prefix.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
        let slash = if path.is_empty() { "" } else { "/" };
        let body = serde_json::to_vec(args)?;
        let most = body.len().saturating_mul(2).saturating_add(MAX_REASONS);
        let request = http::Request::post(format!("/{path}{slash}{verb}"))
            .header("content-type", "application/json")
            .body(Bytes::from(body))?;
        let answer = async {
            let response = self.client.send(request).await?;
            if response.status() != http::StatusCode::OK {
                let code = response.status().as_u16();
                return Err(ExtenderError::Code { verb: verb.to_owned(), prefix: prefix.to_owned(), code });
            }
            let body = client::read_at_most(response.into_body(), most).await.map_err(ExtenderError::Body)?;
            Ok(serde_json::from_slice(&body)?)
        };
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(ExtenderError::Timeout { verb: verb.to_owned(), prefix: prefix.to_owned() }),
        }
    }
}

fn name_of(node: &Node) -> &str {
    node.metadata.name()
}

fn server(configured: &Configured, tls: &ExtenderTls) -> Cluster {
    let authority = configured.url_prefix.split('/').take(3).collect::<Vec<_>>().join("/");
    let text = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
    let has_authority = !tls.ca_file.is_empty() || !tls.ca_data.is_empty();
    Cluster {
        server: Some(authority),
        certificate_authority: text(&tls.ca_file),
        certificate_authority_data: text(&tls.ca_data),
        tls_server_name: text(&tls.server_name),
        // Without an authority nobody could be verified: HTTPS then only hides.
        insecure_skip_tls_verify: Some(tls.insecure || configured.enable_https && !has_authority),
        ..Cluster::default()
    }
}

fn identity(tls: &ExtenderTls) -> AuthInfo {
    let text = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
    AuthInfo {
        client_certificate: text(&tls.cert_file),
        client_certificate_data: text(&tls.cert_data),
        client_key: text(&tls.key_file),
        client_key_data: text(&tls.key_data),
        ..AuthInfo::default()
    }
}

/// Nodes that every interested extender lets pass, asked one after the other. What they reject goes into the diagnosis.
pub(crate) async fn filter(
    extenders: &[Extender],
    pod: &PodInfo,
    mut nodes: Vec<(NodeId, Arc<Node>)>,
    diagnosis: &mut Diagnosis,
) -> Result<Vec<(NodeId, Arc<Node>)>, ExtenderError> {
    let filtering = extenders.iter().filter(|extender| !extender.configured.filter_verb.is_empty());
    for extender in filtering.filter(|extender| extender.is_interested(pod)) {
        if nodes.is_empty() {
            break;
        }
        let sent = extender.send::<FilterResult>(&extender.configured.filter_verb, &extender.args(pod, &nodes)).await;
        let result = match sent {
            Ok(result) if result.error.is_empty() => Ok(result),
            Ok(result) => Err(ExtenderError::Said(result.error)),
            Err(error) => Err(error),
        };
        let result = match result {
            Ok(result) => result,
            Err(error) if extender.configured.ignorable => {
                tracing::warn!(extender = extender.configured.url_prefix, %error, "extender skipped");
                continue;
            }
            Err(error) => return Err(error),
        };
        let unresolvable = result.failed_and_unresolvable_nodes.unwrap_or_default();
        let failed = result.failed_nodes.unwrap_or_default();
        let name = |node: &Value| node["metadata"]["name"].as_str().map(str::to_owned);
        let listed = result.nodes.map(|list| list.items.iter().flatten().filter_map(name).collect());
        let passed: Vec<String> = result.node_names.or(listed).unwrap_or_default();
        let before = nodes.len();
        for (id, node) in &nodes {
            let name = name_of(node);
            if let Some(reason) = unresolvable.get(name) {
                diagnosis.add(*id, &Rejection::new(EXTENDER, reason.clone()).unresolvable());
            } else if let Some(reason) = failed.get(name) {
                diagnosis.add(*id, &Rejection::new(EXTENDER, reason.clone()));
            }
        }
        let passed: HashSet<&str> = passed.iter().map(String::as_str).collect();
        nodes.retain(|(_, node)| passed.contains(name_of(node)));
        diagnosis.by_extender |= nodes.len() != before;
    }
    Ok(nodes)
}

/// Adds the scores of every interested extender. One that fails gives none.
pub(crate) async fn prioritize(
    extenders: &[Extender],
    pod: &PodInfo,
    nodes: &[(NodeId, Arc<Node>)],
    totals: &mut [i64],
) {
    let scoring = extenders.iter().filter(|extender| !extender.configured.prioritize_verb.is_empty());
    for extender in scoring.filter(|extender| extender.is_interested(pod)) {
        let args = extender.args(pod, nodes);
        match extender.send::<Vec<HostPriority>>(&extender.configured.prioritize_verb, &args).await {
            Ok(scores) => {
                let names = nodes.iter().map(|(_, node)| name_of(node));
                add_scores(totals, names, &scores, extender.configured.weight);
            }
            Err(error) => {
                tracing::warn!(extender = extender.configured.url_prefix, %error, "no scores from extender");
            }
        }
    }
}

/// Adds what an extender says of nodes to their totals. It may name any of them, as often as it likes and with any number.
fn add_scores<'n>(totals: &mut [i64], nodes: impl Iterator<Item = &'n str>, scores: &[HostPriority], weight: i64) {
    let mut sums: HashMap<&str, i64> = HashMap::new();
    for HostPriority { host, score } in scores {
        let sum = sums.entry(host).or_default();
        *sum = sum.saturating_add(*score);
    }
    for (total, node) in totals.iter_mut().zip(nodes) {
        let sum = sums.get(node).copied().unwrap_or_default();
        let weighted = sum.saturating_mul(weight).saturating_mul(MAX_SCORE / MAX_EXTENDER_SCORE);
        *total = total.saturating_add(weighted);
    }
}

/// Candidates for preemption that every interested extender agrees to, with the victims it wants.
pub(crate) async fn preempt(
    extenders: &[Extender],
    pod: &PodInfo,
    mut candidates: Vec<Candidate>,
) -> Result<Vec<Candidate>, ExtenderError> {
    let preempting = extenders.iter().filter(|extender| !extender.configured.preempt_verb.is_empty());
    for extender in preempting.filter(|extender| extender.is_interested(pod)) {
        if candidates.is_empty() {
            break;
        }
        let is_capable = extender.configured.node_cache_capable;
        let full = || {
            let victims = |candidate: &'_ Candidate| candidate.violations;
            candidates.iter().map(move |candidate| {
                let pods = candidate.victims.iter().map(|victim| victim.pod.complete()).collect();
                (&*candidate.node, Victims { pods, violations: victims(candidate) })
            })
        };
        let meta = || {
            candidates.iter().map(|candidate| {
                let pods = candidate.victims.iter().map(|victim| MetaPod { uid: victim.uid.to_string() }).collect();
                (&*candidate.node, MetaVictims { pods, violations: candidate.violations })
            })
        };
        let args = PreemptionArgs {
            pod: pod.pod.complete(),
            node_name_to_victims: (!is_capable).then(|| full().collect()),
            node_name_to_meta_victims: is_capable.then(|| meta().collect()),
        };
        let result = match extender.send::<PreemptionResult>(&extender.configured.preempt_verb, &args).await {
            Ok(result) => result,
            Err(_) if extender.configured.ignorable => continue,
            Err(error) => return Err(error),
        };
        candidates = agreed(candidates, result, extender.configured.ignorable)?;
    }
    Ok(candidates)
}

fn agreed(
    candidates: Vec<Candidate>,
    result: PreemptionResult,
    ignorable: bool,
) -> Result<Vec<Candidate>, ExtenderError> {
    let mut kept = Vec::new();
    for mut candidate in candidates {
        let Some(wanted) = result.node_name_to_meta_victims.get(&*candidate.node) else { continue };
        let is_wanted = |victim: &&Arc<PodInfo>| wanted.pods.iter().any(|pod| *pod.uid == *victim.uid);
        candidate.victims = candidate.victims.iter().filter(is_wanted).cloned().collect();
        candidate.violations = wanted.violations;
        if !candidate.victims.is_empty() {
            kept.push(candidate);
        } else if !ignorable {
            return Err(ExtenderError::NoVictims(candidate.node.to_string()));
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn security_extenders_score_with_any_number() {
        let scores = |list: &[(&str, i64)]| -> Vec<HostPriority> {
            list.iter().map(|(host, score)| HostPriority { host: (*host).to_owned(), score: *score }).collect()
        };
        for (list, weight, expected) in [
            (scores(&[("a", 1), ("b", 10), ("a", 2), ("elsewhere", 5)]), 5, [7 + 150, 7 + 500]),
            (scores(&[("a", i64::MAX), ("b", i64::MIN)]), 1, [i64::MAX, i64::MIN + 7]),
            (scores(&[("a", i64::MAX), ("a", i64::MAX)]), i64::MAX, [i64::MAX, 7]),
        ] {
            let mut totals = [7, 7];
            add_scores(&mut totals, ["a", "b"].into_iter(), &list, weight);
            assert_eq!(totals, expected);
        }
        // Each list is looked through once.
        let names: Vec<String> = (0..100_000).map(|number| format!("node-{number}")).collect();
        let list: Vec<HostPriority> = names.iter().map(|name| HostPriority { host: name.clone(), score: 1 }).collect();
        let mut totals = vec![0; names.len()];
        add_scores(&mut totals, names.iter().map(String::as_str), &list, 1);
        assert!(totals.iter().all(|total| *total == MAX_SCORE / MAX_EXTENDER_SCORE));
    }

    #[test]
    fn an_extender_may_let_no_node_pass() {
        for nodes in [json!({"metadata": {}, "items": null}), json!({"metadata": {}})] {
            let answer = json!({"Nodes": nodes, "NodeNames": null, "FailedNodes": null, "Error": ""});
            let result: FilterResult = serde_json::from_value(answer).unwrap();
            assert!(result.nodes.unwrap().items.is_none() && result.error.is_empty());
        }
    }

    #[tokio::test]
    async fn security_an_extender_that_answers_without_end_is_cut_off() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url_prefix = format!("http://{}", listener.local_addr().unwrap());
        let endless = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n[").await.unwrap();
            let piece = vec![b' '; 1 << 20];
            while stream.write_all(&piece).await.is_ok() {}
        });
        let http_timeout = serde_json::from_value(json!("60s")).unwrap();
        let configured = Configured { url_prefix, http_timeout, ..Configured::default() };
        let extender = Extender::new(configured).unwrap();
        let answer = extender.send::<Value>("filter", &json!({})).await;
        assert!(matches!(answer, Err(ExtenderError::Body(_))), "{answer:?}");
        endless.await.unwrap();
    }
}
