//! An API server and a peer, both reached over TLS and HTTP/2 through their kubeconfigs: writes, reads, lists, watches.
//! Without a kubeconfig ours is started in a process of its own.
//!
//! Answers are read but not parsed, by a client that costs as little as one can (`crate::load`), so that what is measured
//! is the server. Both sides take short turns in rotation: a machine that is shared is fast in one second and slow in the
//! next.

mod lists;
mod objects;
mod requests;
mod watches;

use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Client, Endpoint};
use http::{Method, header};
use http_body_util::BodyExt;

use crate::Args;
use crate::load::Load;
use crate::own_server::{self, OwnServer};
use crate::process::Processes;
use crate::report::{self, Better, Times};

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    if let Some(dir) = &args.inside {
        return own_server::serve(dir).await;
    }
    let own = match args.kubeconfig {
        Some(_) => None,
        None => Some(OwnServer::start("api", &args.dir).await?),
    };
    let ours = args.kubeconfig.clone().or_else(|| own.as_ref().map(OwnServer::kubeconfig));
    let ours = &ours.context("either is there")?;
    if args.peer_kubeconfig.is_none() {
        eprintln!("--peer-kubeconfig compares with a kube-apiserver and its etcd, started by hand on this machine");
    }
    let mut sides = vec![Side::new(ours).await?];
    if let Some(peer) = &args.peer_kubeconfig {
        sides.push(Side::new(peer).await?);
    }
    for side in &sides {
        side.prepare().await?;
        if !side.processes.are_known() {
            eprintln!("{}: not on this machine: neither its CPU nor its memory is measured", side.url);
        }
    }
    if args.wants("memory") {
        memory(&sides, "idle")?;
    }
    // First, while there is nothing in memory but those pods: what many writes leave behind is another question.
    lists::measure(&args, &sides).await?;
    let clients: &[usize] = if args.quick { &[1, 16] } else { &[1, 16, 64] };
    for &clients in clients {
        requests::measure(&args, &sides, clients).await?;
    }
    watches::measure(&args, &sides).await
}

/// One server.
struct Side {
    url: String,
    endpoint: Endpoint,
    /// For preparations.
    client: Client,
    /// One namespace per run, so that runs do not see each other's objects.
    namespace: String,
    processes: Processes,
}

impl Side {
    async fn new(path: &std::path::Path) -> anyhow::Result<Self> {
        let kubeconfig = Kubeconfig::load(Some(path)).with_context(|| path.display().to_string())?;
        let client = Client::from_kubeconfig(&kubeconfig, &Overrides::default())?;
        let url = client.server().context("the kubeconfig names no server")?;
        let endpoint = client.endpoint().await?;
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis();
        let namespace = format!("bench-{started}");
        let processes = Processes::behind(endpoint.port);
        Ok(Self { url, endpoint, client, namespace, processes })
    }

    /// Clients with a connection each.
    fn connect(&self, clients: usize) -> anyhow::Result<Load> {
        Load::connect(&self.endpoint, clients).with_context(|| self.url.clone())
    }

    /// The namespace and the account that pods in it run as: nobody makes it where no controllers run.
    async fn prepare(&self) -> anyhow::Result<()> {
        let namespace = format!(r#"{{"metadata":{{"name":"{}"}}}}"#, self.namespace);
        self.create("/api/v1/namespaces", namespace).await?;
        self.create(&self.path("serviceaccounts"), r#"{"metadata":{"name":"default"}}"#.to_owned()).await
    }

    async fn create(&self, path: &str, body: String) -> anyhow::Result<()> {
        match self.exchange(Method::POST, path, body).await? {
            (code, _) if code.is_success() || code == 409 => Ok(()),
            (code, answer) => anyhow::bail!("{path}: {code}: {}", String::from_utf8_lossy(&answer)),
        }
    }

    async fn get(&self, path: &str) -> anyhow::Result<Bytes> {
        let (code, answer) = self.exchange(Method::GET, path, String::new()).await?;
        ensure!(code.is_success(), "{path}: {code}: {}", String::from_utf8_lossy(&answer));
        Ok(answer)
    }

    async fn exchange(&self, method: Method, path: &str, body: String) -> anyhow::Result<(http::StatusCode, Bytes)> {
        let request = http::Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, objects::JSON);
        let response = self.client.send(request.body(Bytes::from(body))?).await?;
        let code = response.status();
        Ok((code, response.into_body().collect().await.map_err(anyhow::Error::from_boxed)?.to_bytes()))
    }

    fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }
}

/// What one side did in its turns.
#[derive(Default)]
struct Outcome {
    times: Times,
    elapsed: Duration,
    cpu: Duration,
}

impl Outcome {
    fn rate(&self) -> f64 {
        self.times.count() as f64 / self.elapsed.as_secs_f64()
    }

    fn cpu_each(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e3 / self.times.count().max(1) as f64
    }

    /// Counts a turn of `side`: what `work` did, while it lasted.
    fn turn<T>(&mut self, side: &Side, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let (started, cpu) = (std::time::Instant::now(), side.processes.cpu());
        let done = work().with_context(|| side.url.clone())?;
        self.elapsed += started.elapsed();
        self.cpu += side.processes.cpu().saturating_sub(cpu);
        Ok(done)
    }
}

/// Rate, latencies and CPU of one case.
fn report(case: &str, parameters: &str, outcomes: &mut [Outcome], sides: &[Side]) {
    let both = |of: &dyn Fn(&mut Outcome) -> f64, outcomes: &mut [Outcome]| -> Vec<f64> {
        outcomes.iter_mut().map(of).collect()
    };
    compare(case, parameters, "/s", &both(&|outcome| outcome.rate(), outcomes), Better::More);
    for percent in [50, 99] {
        let values = both(&|outcome| outcome.times.percentile(percent), outcomes);
        compare(&format!("{case}-p{percent}"), parameters, "ms", &values, Better::Less);
    }
    if sides.iter().all(|side| side.processes.are_known()) {
        let values = both(&|outcome| outcome.cpu_each(), outcomes);
        compare(&format!("{case}-cpu"), parameters, "ms", &values, Better::Less);
    }
}

/// One line: with a peer if there is one.
fn compare(case: &str, parameters: &str, unit: &str, values: &[f64], better: Better) {
    match values {
        [ours, peer] => report::line(case, parameters, unit, *ours, *peer, better),
        [ours] => report::line_alone(case, parameters, unit, *ours),
        _ => {}
    }
}

fn memory(sides: &[Side], when: &str) -> anyhow::Result<()> {
    if sides.iter().any(|side| !side.processes.are_known()) {
        return Ok(());
    }
    let values =
        sides.iter().map(|side| Ok(side.processes.memory()? as f64 / 1e6)).collect::<anyhow::Result<Vec<_>>>()?;
    compare("memory", when, "MB", &values, Better::Less);
    Ok(())
}
