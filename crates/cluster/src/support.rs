//! `cox support`: everything that helps to find out what is wrong with a cluster, in one file, without its secrets.
//!
//! What cannot be had is noted beside the rest: a bundle is wanted most when something is broken. No manifest is in it: of pods,
//! only how they fare. Every text passes `redact`.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use api::sort::CompactSort as _;
use client::{Client, ListParams};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret};
use serde_json::{Value, json};

use crate::lock::Lock;
use crate::options::Options;
use crate::pki::Pki;
use crate::redact::Redactor;
use crate::{connection, manifests, nodes};

/// The end of each log.
const LOG_BYTES: u64 = 8 << 20;
/// For each thing that is asked of the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
const PAGE: u32 = 500;

/// Collect versions, state, events and logs of the cluster in a file, without its secrets
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// The file to write; it must not exist (default: cox-support-TIME.tar.gz)
    #[arg(short, long)]
    output: Option<PathBuf>,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> Result<()> {
    let now = Timestamp::now();
    let usual = || PathBuf::from(format!("cox-support-{}.tar.gz", now.strftime("%Y%m%dT%H%M%SZ")));
    let path = args.output.unwrap_or_else(usual);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut bundle = Bundle::new(file.with_context(|| path.display().to_string())?, now);
    let client = connection::connect(&args.options.admin_kubeconfig());
    collect(&args.options, client, now, &mut bundle).await?;
    let missing = bundle.missing.len();
    bundle.finish()?;
    match missing {
        0 => println!("{}", path.display()),
        count => println!("{}: {count} things could not be had, missing.txt in it says which", path.display()),
    }
    Ok(())
}

/// What is written, and what could not be had.
struct Bundle<W: Write> {
    archive: tar::Builder<GzEncoder<W>>,
    redactor: Redactor,
    missing: Vec<String>,
    now: Timestamp,
}

impl<W: Write> Bundle<W> {
    fn new(out: W, now: Timestamp) -> Bundle<W> {
        let archive = tar::Builder::new(GzEncoder::new(out, Compression::default()));
        Bundle { archive, redactor: Redactor::default(), missing: Vec::new(), now }
    }

    fn add(&mut self, name: &str, found: Result<String>) -> Result<()> {
        match found {
            Ok(text) => self.write(name, &self.redactor.clean(&text)),
            Err(error) => {
                self.missing.push(format!("{name}: {error:#}"));
                Ok(())
            }
        }
    }

    fn write(&mut self, name: &str, text: &str) -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(self.now.as_second()).unwrap_or_default());
        self.archive.append_data(&mut header, Path::new("cox-support").join(name), text.as_bytes())?;
        Ok(())
    }

    fn finish(mut self) -> Result<W> {
        if !self.missing.is_empty() {
            let text = self.redactor.clean(&(self.missing.join("\n") + "\n"));
            self.write("missing.txt", &text)?;
        }
        Ok(self.archive.into_inner()?.finish()?)
    }
}

async fn collect<W: Write>(
    options: &Options,
    client: Result<Client>,
    now: Timestamp,
    bundle: &mut Bundle<W>,
) -> Result<()> {
    let client = match client {
        Ok(client) => Some(client),
        Err(error) => {
            bundle.missing.push(format!("api: {error:#}"));
            None
        }
    };
    learn_files(&options.pki_dir(), &mut bundle.redactor);
    if let Some(client) = &client
        && let Err(error) = within(learn_secrets(client, &mut bundle.redactor)).await
    {
        // Without these the bundle still has no secrets of ours, but a log may have repeated one of theirs.
        bundle.missing.push(format!("the values of Secrets, so that they can be left out: {error:#}"));
    }
    bundle.add("about.json", about(now))?;
    bundle.add("flags.json", read(&options.data_dir.join("flags.json")))?;
    bundle.add("processes.txt", processes(options))?;
    bundle.add("certificates.txt", certificates(options))?;
    bundle.add("manifests.json", manifests::Record::load(options).and_then(|record| pretty(&record)))?;
    bundle.add("logs/server.log", tail(&options.log_file()))?;
    for record in nodes::all(options).unwrap_or_default() {
        bundle.add(&format!("logs/{}.log", record.name), tail(&record.options(options).log_file()))?;
    }
    for (name, path) in [
        ("host/meminfo", "/proc/meminfo"),
        ("host/loadavg", "/proc/loadavg"),
        ("host/mounts", "/proc/self/mounts"),
        ("host/os-release", "/etc/os-release"),
    ] {
        bundle.add(name, read(Path::new(path)))?;
    }
    let Some(client) = client else { return Ok(()) };
    for (name, path) in [
        ("api/version.json", "/version"),
        ("api/readyz.txt", "/readyz?verbose"),
        ("api/livez.txt", "/livez?verbose"),
        ("api/metrics.txt", "/metrics"),
        ("api/history.json", "/cox/history?minutes=360"),
    ] {
        bundle.add(name, within(text(&client, path)).await)?;
    }
    bundle.add("api/nodes.json", within(state_of_nodes(&client)).await)?;
    bundle.add("api/pods.json", within(state_of_pods(&client)).await)?;
    bundle.add("api/events.txt", within(events(&client)).await)
}

async fn within<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(REQUEST_TIMEOUT, work).await.context("no answer in time")?
}

/// What is at a path. Checks that fail are an answer too, the more so.
async fn text(client: &Client, path: &str) -> Result<String> {
    match client.get_text(path).await {
        Err(error) if error.code().is_some_and(|code| code >= 500) => Ok(error.to_string()),
        answer => Ok(answer?),
    }
}

/// Keys of the cluster: private ones, and those that encrypt.
fn learn_files(pki: &Path, redactor: &mut Redactor) {
    for entry in std::fs::read_dir(pki).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_key = path.extension().is_some_and(|end| end == "key" || end == "pem");
        if let Ok(text) = std::fs::read(&path)
            && is_key
        {
            redactor.add(&text);
        }
    }
    let configuration = std::fs::read_to_string(pki.join("encryption.yaml")).unwrap_or_default();
    for (_, secret) in configuration.lines().filter_map(|line| line.split_once("secret:")) {
        redactor.add(secret.trim().as_bytes());
    }
}

async fn learn_secrets(client: &Client, redactor: &mut Redactor) -> Result<()> {
    for secret in client.all::<Secret>().list_all(&ListParams::default(), PAGE).await?.items {
        let kind = secret.type_.unwrap_or_default();
        let data = secret.data.unwrap_or_default();
        for (name, value) in &data {
            // The others say what kind of token it is, in words that are everywhere.
            let is_secret = match kind.as_str() {
                "kubernetes.io/service-account-token" => name == "token",
                "bootstrap.kubernetes.io/token" => name == "token-secret",
                "kubernetes.io/tls" => name == "tls.key",
                _ => true,
            };
            if is_secret {
                redactor.add(&value.0);
            }
        }
    }
    Ok(())
}

fn about(now: Timestamp) -> Result<String> {
    let host = nix::sys::utsname::uname().context("asking for the kernel's version")?;
    pretty(&json!({
        "cox": env!("CARGO_PKG_VERSION"),
        "kubernetes": api::version::GIT,
        "time": now.to_string(),
        "kernel": host.release().to_string_lossy(),
        "machine": host.machine().to_string_lossy(),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
    }))
}

fn processes(options: &Options) -> Result<String> {
    let say = |name: &str, options: &Options| -> Result<String> {
        Ok(match Lock::holder(&options.lock_file())? {
            Some(holder) => {
                let status = std::fs::read_to_string(format!("/proc/{}/status", holder.pid)).unwrap_or_default();
                let memory = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
                format!("{name}: process {} {memory}\n", holder.pid)
            }
            None => format!("{name}: not running\n"),
        })
    };
    let mut text = say("server", options)?;
    for record in nodes::all(options)? {
        text += &say(&record.name, &record.options(options))?;
    }
    Ok(text)
}

fn certificates(options: &Options) -> Result<String> {
    let all = Pki::open(&options.pki_dir()).certificates()?;
    let lines = all.iter().map(|(name, one)| format!("{name} {} {}\n", one.not_after, one.subject));
    Ok(lines.collect())
}

async fn state_of_nodes(client: &Client) -> Result<String> {
    let nodes = client.all::<Node>().list_all(&ListParams::default(), PAGE).await?.items;
    let state = nodes.iter().map(|node| {
        let metadata = &node.metadata;
        json!({
            "name": metadata.name,
            "created": metadata.creation_timestamp,
            "labels": metadata.labels,
            "spec": node.spec,
            "status": node.status,
        })
    });
    pretty(&state.collect::<Vec<_>>())
}

/// How pods fare. What they run with may be anything, and what they said last too.
async fn state_of_pods(client: &Client) -> Result<String> {
    let pods = client.all::<Pod>().list_all(&ListParams::default(), PAGE).await?.items;
    let state = pods.iter().map(|pod| {
        let status = pod.status.as_ref();
        let containers = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
        let containers = containers.map(|container| {
            let state = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| -> Value {
                let mut state = serde_json::to_value(state).unwrap_or_default();
                for kind in ["terminated", "waiting"] {
                    if let Some(found) = state.get_mut(kind).and_then(Value::as_object_mut) {
                        found.remove("message");
                    }
                }
                state
            };
            json!({
                "name": container.name, "image": container.image, "ready": container.ready,
                "restarts": container.restart_count, "state": state(&container.state), "last": state(&container.last_state),
            })
        });
        json!({
            "namespace": pod.metadata.namespace,
            "name": pod.metadata.name,
            "uid": pod.metadata.uid,
            "created": pod.metadata.creation_timestamp,
            "deleted": pod.metadata.deletion_timestamp,
            "node": pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()),
            "phase": status.and_then(|status| status.phase.as_ref()),
            "reason": status.and_then(|status| status.reason.as_ref()),
            "conditions": status.and_then(|status| status.conditions.as_ref()),
            "containers": containers.collect::<Vec<_>>(),
        })
    });
    pretty(&state.collect::<Vec<_>>())
}

async fn events(client: &Client) -> Result<String> {
    let events = client.all::<Event>().list_all(&ListParams::default(), PAGE).await?.items;
    let line = |event: &Event| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let at = event.last_timestamp.as_ref().map(|at| at.0.to_string());
        let about = &event.involved_object;
        format!(
            "{} {} x{} {} {}/{}/{}: {}\n",
            at.unwrap_or_default(),
            text(&event.type_),
            event.count.unwrap_or(1),
            text(&event.reason),
            text(&about.namespace),
            text(&about.kind),
            text(&about.name),
            text(&event.message)
        )
    };
    let mut lines: Vec<String> = events.iter().map(line).collect();
    lines.compact_sort();
    Ok(lines.concat())
}

fn pretty(value: &impl serde::Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// The end of a file, from the beginning of a line.
fn tail(path: &Path) -> Result<String> {
    let mut file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    let skipped = file.metadata()?.len().saturating_sub(LOG_BYTES);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(match (skipped, text.split_once('\n')) {
        (1.., Some((_, rest))) => rest.to_owned(),
        _ => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn unpacked(bundle: &[u8]) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bundle));
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            assert_eq!(entry.header().mode().unwrap(), 0o600);
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (entry.path().unwrap().strip_prefix("cox-support").unwrap().display().to_string(), text)
        });
        entries.collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn security_a_support_bundle_has_no_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().join("d"), run_dir: dir.path().join("r"), name: "c".into() };
        let hosts = ["localhost".to_owned()];
        let hour = Duration::from_secs(3600);
        let pki = Pki::prepare(&options.pki_dir(), hour, "n1", &hosts, &["127.0.0.1".parse().unwrap()]).unwrap();
        let key = std::fs::read_to_string(pki.key("ca")).unwrap();
        std::fs::write(options.encryption_file(), "keys:\n- name: key1\n  secret: c2VhbGluZyBrZXkgb2YgaXQ=\n").unwrap();
        let client = crate::test_server::start(dir.path()).await;
        let make = |path: &str, body: Value| {
            let gvr = api::Gvr { group: "".into(), version: "v1".into(), resource: path.to_owned().into() };
            let api = client.dynamic(&gvr, Some("default"));
            async move { api.create(&body).await.unwrap() }
        };
        let password = "correct horse battery";
        make("secrets", json!({"metadata": {"name": "s"}, "stringData": {"password": password}})).await;
        make(
            "pods",
            json!({"metadata": {"name": "p", "annotations": {"note": "annotated-value"}}, "spec": {"containers": [
                {"name": "c", "image": "i", "env": [{"name": "PLAIN", "value": "environment-value"}]}]}}),
        )
        .await;
        make(
            "events",
            json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
                "reason": "Unhealthy", "message": format!("probe said {password} and eyJhbGciOi.eyJpc3MiOi.c2ln")}),
        )
        .await;
        let log = options.log_file();
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        std::fs::write(
            &log,
            format!("a line\n{key}said {password}\nBearer abcdefgh\n8ewxnm.g5sjw8ub4pbjzv7g\nthe end\n"),
        )
        .unwrap();

        let mut bundle = Bundle::new(Vec::new(), Timestamp::UNIX_EPOCH);
        collect(&options, Ok(client), Timestamp::now(), &mut bundle).await.unwrap();
        let files = unpacked(&bundle.finish().unwrap());
        let has = |name: &str, text: &str| assert!(files[name].contains(text), "{name}: {}", files[name]);
        has("logs/server.log", "a line\n");
        has("logs/server.log", "the end");
        has("api/pods.json", "\"name\": \"p\"");
        has("api/events.txt", "Unhealthy default/Pod/p: probe said [redacted]");
        has("api/readyz.txt", "readyz");
        has("certificates.txt", "kubernetes-admin");
        has("about.json", "v1.36.0");
        let key_lines = key.lines().filter(|line| !line.starts_with("-----")).map(str::to_owned);
        let secrets = [password, "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5", "annotated-value", "environment-value", "eyJpc3MiOi"]
            .map(str::to_owned);
        let more = ["abcdefgh", "g5sjw8ub4pbjzv7g", "c2VhbGluZyBrZXkgb2YgaXQ", "PRIVATE KEY"].map(str::to_owned);
        for secret in secrets.into_iter().chain(more).chain(key_lines) {
            for (name, text) in &files {
                assert!(!text.contains(&secret), "{name} tells {secret}: {text}");
            }
        }
    }

    #[tokio::test]
    async fn a_bundle_is_written_for_a_cluster_that_does_not_run() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().join("d"), run_dir: dir.path().join("r"), name: "c".into() };
        let output = dir.path().join("bundle.tar.gz");
        let args = || Args { options: options.clone(), output: Some(output.clone()) };
        run_main(args()).await.unwrap();
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&output).unwrap().permissions()) & 0o777,
            0o600
        );
        let files = unpacked(&std::fs::read(&output).unwrap());
        assert!(files["missing.txt"].contains("api: ") && files.contains_key("about.json"), "{files:?}");
        let again = run_main(args()).await.unwrap_err().to_string();
        assert!(again.contains("bundle.tar.gz"), "nothing is written over: {again}");
    }
}
