//! An API server and a peer, both reached over TLS and HTTP/2 through their kubeconfigs: writes, reads, lists, watches.
//! Without a kubeconfig ours is started in a process of its own.
//!
//! Requests are bytes made beforehand and answers are read but not parsed, so that what is measured is the server.
//! Both sides take short turns in rotation: a machine that is shared is fast in one second and slow in the next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use client::Client;
use client::kubeconfig::{Kubeconfig, Overrides};
use http::{Method, Request, header};
use http_body_util::BodyExt;

use crate::Args;
use crate::own_server::{self, OwnServer};
use crate::process::Processes;
use crate::report::{self, Better, Times};

/// Streams of one connection; a server may refuse more than a hundred.
const WATCHES_PER_CONNECTION: usize = 50;

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    if let Some(dir) = &args.inside {
        return own_server::serve(dir).await;
    }
    // One thread for all clients: waking another for every answer would cost more than the answer, and the servers need
    // the rest of the machine.
    let clients = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::spawn_blocking(move || clients.block_on(measure(args))).await?
}

async fn measure(args: Args) -> anyhow::Result<()> {
    let own = match args.kubeconfig {
        Some(_) => None,
        None => Some(OwnServer::start("api", &args.dir).await?),
    };
    let ours = args.kubeconfig.clone().or_else(|| own.as_ref().map(OwnServer::kubeconfig));
    let ours = &ours.context("either is there")?;
    if args.peer_kubeconfig.is_none() {
        eprintln!("--peer-kubeconfig compares with a kube-apiserver and its etcd, started by hand on this machine");
    }
    let mut sides = vec![Side::new(ours)?];
    if let Some(peer) = &args.peer_kubeconfig {
        sides.push(Side::new(peer)?);
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
    let clients: &[usize] = if args.quick { &[1, 16] } else { &[1, 16, 64] };
    for &clients in clients {
        requests(&args, &sides, clients).await?;
    }
    watches(&args, &sides).await?;
    lists(&args, &sides).await
}

/// One server.
struct Side {
    kubeconfig: Kubeconfig,
    url: String,
    /// For preparations.
    client: Client,
    /// One namespace per run, so that runs do not see each other's objects.
    namespace: String,
    processes: Processes,
}

impl Side {
    fn new(path: &std::path::Path) -> anyhow::Result<Self> {
        let kubeconfig = Kubeconfig::load(Some(path)).with_context(|| path.display().to_string())?;
        let client = Client::from_kubeconfig(&kubeconfig, &Overrides::default())?;
        let url = client.server().context("the kubeconfig names no server")?;
        let port = url.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(443);
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis();
        let namespace = format!("bench-{started}");
        Ok(Self { kubeconfig, url, client, namespace, processes: Processes::behind(port) })
    }

    /// A client with a connection of its own.
    fn connect(&self) -> anyhow::Result<Client> {
        Ok(Client::from_kubeconfig(&self.kubeconfig, &Overrides::default())?)
    }

    /// The namespace and the account that pods in it run as: nobody makes it where no controllers run.
    async fn prepare(&self) -> anyhow::Result<()> {
        let namespace = format!(r#"{{"metadata":{{"name":"{}"}}}}"#, self.namespace);
        self.create("/api/v1/namespaces", namespace).await?;
        self.create(&self.path("serviceaccounts"), r#"{"metadata":{"name":"default"}}"#.to_owned()).await
    }

    async fn create(&self, path: &str, body: String) -> anyhow::Result<()> {
        let response = self.client.send(request(Method::POST, path, JSON, body)).await?;
        let code = response.status();
        let answer = response.into_body().collect().await.map_err(anyhow::Error::from_boxed)?.to_bytes();
        ensure!(code.is_success() || code == 409, "{path}: {code}: {}", String::from_utf8_lossy(&answer));
        Ok(())
    }

    fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }
}

const JSON: &str = "application/json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

fn request(method: Method, path: &str, content_type: &'static str, body: String) -> Request<Bytes> {
    let mut request = Request::new(Bytes::from(body));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().expect("paths here are made of letters, digits and dashes");
    let headers = request.headers_mut();
    headers.insert(header::ACCEPT, header::HeaderValue::from_static(JSON));
    if !request.body().is_empty() {
        request.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    }
    request
}

/// A pod as a Deployment would make it.
fn pod(name: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","labels":{{"app":"bench","tier":"web","pod-template-hash":"5d8f9c7b6"}},"annotations":{{"example.com/checksum":"0123456789abcdef0123456789abcdef"}}}},"spec":{{"containers":[{{"name":"web","image":"registry.example.com/team/web:1.2.3","ports":[{{"containerPort":8080,"name":"http"}}],"env":[{{"name":"MODE","value":"production"}},{{"name":"POD","valueFrom":{{"fieldRef":{{"fieldPath":"metadata.name"}}}}}}],"resources":{{"requests":{{"cpu":"100m","memory":"64Mi"}},"limits":{{"memory":"128Mi"}}}},"readinessProbe":{{"httpGet":{{"path":"/ready","port":"http"}}}}}}],"nodeSelector":{{"kubernetes.io/os":"linux"}},"terminationGracePeriodSeconds":10}}}}"#
    )
}

/// One kind of request, made again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Create,
    Get,
    Patch,
    Update,
    Delete,
    LeaseRenewal,
}

impl Case {
    const ALL: [Case; 6] = [Case::Create, Case::Get, Case::Patch, Case::Update, Case::LeaseRenewal, Case::Delete];

    fn name(self) -> &'static str {
        match self {
            Case::Create => "create",
            Case::Get => "get",
            Case::Patch => "patch",
            Case::Update => "update",
            Case::Delete => "delete",
            Case::LeaseRenewal => "lease-renewal",
        }
    }

    /// The object that worker `worker` works on, where each has its own.
    async fn prepare(self, side: &Side, clients: usize) -> anyhow::Result<()> {
        for worker in 0..clients {
            match self {
                Case::Get | Case::Patch => side.create(&side.path("pods"), pod(&format!("own-{worker}"))).await?,
                Case::Update => side.create(&side.path("configmaps"), config_map(worker, 0, "")).await?,
                Case::LeaseRenewal => side.create(&leases(side), lease(side, worker, 0, "")).await?,
                Case::Create | Case::Delete => {}
            }
        }
        Ok(())
    }

    /// The `n`th request of a worker. `version` is the resource version of its last answer.
    fn request(self, side: &Side, round: &str, worker: usize, n: usize, version: &str) -> Request<Bytes> {
        let pods = side.path("pods");
        match self {
            Case::Create => request(Method::POST, &pods, JSON, pod(&format!("new-{round}-{worker}-{n}"))),
            Case::Delete => {
                let path = format!("{pods}/new-{round}-{worker}-{n}?gracePeriodSeconds=0");
                request(Method::DELETE, &path, JSON, String::new())
            }
            Case::Get => request(Method::GET, &format!("{pods}/own-{worker}"), JSON, String::new()),
            Case::Patch => {
                let patch = format!(r#"{{"metadata":{{"labels":{{"turn":"{round}-{n}"}}}}}}"#);
                request(Method::PATCH, &format!("{pods}/own-{worker}"), STRATEGIC, patch)
            }
            Case::Update => {
                let path = format!("{}/own-{worker}", side.path("configmaps"));
                request(Method::PUT, &path, JSON, config_map(worker, n, version))
            }
            Case::LeaseRenewal => {
                let path = format!("{}/own-{worker}", leases(side));
                request(Method::PUT, &path, JSON, lease(side, worker, n, version))
            }
        }
    }
}

fn leases(side: &Side) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", side.namespace)
}

fn lease(side: &Side, worker: usize, n: usize, version: &str) -> String {
    format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"own-{worker}","namespace":"{}","resourceVersion":"{version}"}},"spec":{{"holderIdentity":"node-{worker}","leaseDurationSeconds":40,"renewTime":"2026-01-01T00:00:00.{:06}Z"}}}}"#,
        side.namespace,
        n % 1_000_000
    )
}

fn config_map(worker: usize, n: usize, version: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"own-{worker}","resourceVersion":"{version}"}},"data":{{"turn":"{n}","file":"{}"}}}}"#,
        "line of text\\n".repeat(40)
    )
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
}

/// How long a worker goes on: for a time, or for a number of requests each.
#[derive(Clone)]
enum Until {
    Time(Duration),
    Counts(Arc<Vec<usize>>),
}

async fn requests(args: &Args, sides: &[Side], clients: usize) -> anyhow::Result<()> {
    let (rounds, turn) = if args.quick { (1, Duration::from_millis(500)) } else { (3, Duration::from_secs(2)) };
    // What each side created in each round, for the deletes.
    let mut created: Vec<Vec<Arc<Vec<usize>>>> = vec![Vec::new(); sides.len()];
    for case in Case::ALL {
        // Deletes need something to delete.
        let wanted = args.wants(case.name()) || case == Case::Create && args.wants(Case::Delete.name());
        if !wanted {
            continue;
        }
        let mut outcomes: Vec<Outcome> = sides.iter().map(|_| Outcome::default()).collect();
        for side in sides {
            case.prepare(side, clients).await?;
        }
        for round in 0..rounds {
            for (at, side) in sides.iter().enumerate() {
                let until = match case {
                    Case::Delete => Until::Counts(created[at][round].clone()),
                    _ => Until::Time(turn),
                };
                let name = format!("{clients}-{round}");
                let counts = drive(side, case, clients, &name, until, &mut outcomes[at]).await?;
                if case == Case::Create {
                    created[at].push(Arc::new(counts));
                }
            }
        }
        if args.wants(case.name()) {
            report(case.name(), &format!("clients={clients}"), &mut outcomes, sides);
        }
    }
    Ok(())
}

/// Runs `clients` workers with a connection each. Returns how many requests each made.
async fn drive(
    side: &Side,
    case: Case,
    clients: usize,
    round: &str,
    until: Until,
    outcome: &mut Outcome,
) -> anyhow::Result<Vec<usize>> {
    let mut connections = Vec::new();
    for _ in 0..clients {
        let client = side.connect()?;
        // Handshakes are not what is measured.
        exchange(&client, request(Method::GET, "/version", JSON, String::new())).await?;
        connections.push(client);
    }
    let (started, cpu) = (Instant::now(), side.processes.cpu());
    let workers = connections.iter().enumerate().map(|(worker, client)| {
        let until = until.clone();
        async move {
            let mut times = Times::default();
            let mut version = String::new();
            if matches!(case, Case::Update | Case::LeaseRenewal) {
                let mut read = case.request(side, round, worker, 0, "");
                *read.method_mut() = Method::GET;
                version = resource_version(&exchange(client, read).await?).to_owned();
            }
            for n in 0.. {
                let over = match &until {
                    Until::Time(time) => started.elapsed() >= *time,
                    Until::Counts(counts) => n >= counts[worker],
                };
                if over {
                    break;
                }
                let request = case.request(side, round, worker, n, &version);
                let before = Instant::now();
                let answer = exchange(client, request).await?;
                times.add(before.elapsed());
                version = resource_version(&answer).to_owned();
            }
            anyhow::Ok(times)
        }
    });
    let finished = futures_util::future::try_join_all(workers).await?;
    outcome.elapsed += started.elapsed();
    outcome.cpu += side.processes.cpu().saturating_sub(cpu);
    let counts = finished.iter().map(Times::count).collect();
    finished.into_iter().for_each(|times| outcome.times.join(times));
    Ok(counts)
}

/// Sends a request and reads the whole answer, which must be a success.
async fn exchange(client: &Client, request: Request<Bytes>) -> anyhow::Result<Bytes> {
    let (method, path) = (request.method().clone(), request.uri().clone());
    let response = client.send(request).await?;
    let code = response.status();
    let body = response.into_body().collect().await.map_err(anyhow::Error::from_boxed)?.to_bytes();
    ensure!(code.is_success(), "{method} {path}: {code}: {}", String::from_utf8_lossy(&body));
    Ok(body)
}

/// The first resource version in an answer: that of the object.
fn resource_version(answer: &[u8]) -> &str {
    const KEY: &[u8] = b"\"resourceVersion\":\"";
    let digits = memchr::memmem::find(answer, KEY).map_or(&[][..], |at| &answer[at + KEY.len()..]);
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&digits[..length]).unwrap_or_default()
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

/// Lists of many pods, plain and compressed, and the memory that so many pods take.
async fn lists(args: &Args, sides: &[Side]) -> anyhow::Result<()> {
    if !args.wants("list") && !args.wants("memory") {
        return Ok(());
    }
    let sizes: &[usize] = if args.quick { &[500] } else { &[5_000, 10_000, 20_000] };
    let mut filled = 0;
    for &pods in sizes {
        for side in sides {
            fill(side, filled..pods).await?;
        }
        filled = pods;
        if args.wants("memory") {
            memory(sides, &format!("pods={pods}"))?;
        }
        if !args.wants("list") || pods == 10_000 {
            continue;
        }
        for (case, coding) in [("list", "identity"), ("list-gzip", "gzip")] {
            for clients in [1, 16] {
                if pods > 5_000 && clients > 1 {
                    continue;
                }
                let mut outcomes: Vec<Outcome> = sides.iter().map(|_| Outcome::default()).collect();
                for _ in 0..if args.quick { 1 } else { 3 } {
                    for (side, outcome) in sides.iter().zip(&mut outcomes) {
                        list_turn(side, clients, coding, pods, outcome).await?;
                    }
                }
                report(case, &format!("pods={pods} clients={clients}"), &mut outcomes, sides);
            }
        }
    }
    Ok(())
}

/// Pods with numbers in `range`, by several writers.
async fn fill(side: &Side, range: std::ops::Range<usize>) -> anyhow::Result<()> {
    const WRITERS: usize = 32;
    let path = side.path("pods");
    let writers = (0..WRITERS).map(|writer| {
        let (path, range) = (&path, range.clone());
        async move {
            for n in range.skip(writer).step_by(WRITERS) {
                let create = request(Method::POST, path, JSON, labelled(pod(&format!("listed-{n:06}"))));
                exchange(&side.client, create).await?;
            }
            anyhow::Ok(())
        }
    });
    futures_util::future::try_join_all(writers).await?;
    Ok(())
}

/// Marks a pod as one of those that lists ask for.
fn labelled(pod: String) -> String {
    pod.replace(r#""app":"bench""#, r#""app":"listed""#)
}

async fn list_turn(
    side: &Side,
    clients: usize,
    coding: &'static str,
    pods: usize,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    const EACH: usize = 5;
    let path = format!("{}?labelSelector=app%3Dlisted", side.path("pods"));
    let (started, cpu) = (Instant::now(), side.processes.cpu());
    let readers = (0..clients).map(|_| {
        let path = &path;
        async move {
            let client = side.connect()?;
            let mut times = Times::default();
            for _ in 0..EACH {
                let mut list = request(Method::GET, path, JSON, String::new());
                list.headers_mut().insert(header::ACCEPT_ENCODING, header::HeaderValue::from_static(coding));
                let before = Instant::now();
                let mut body = client.send(list).await?.into_body();
                let mut size = 0;
                while let Some(frame) = body.frame().await {
                    size += frame.map_err(anyhow::Error::from_boxed)?.data_ref().map_or(0, Bytes::len);
                }
                times.add(before.elapsed());
                ensure!(size > pods * 20, "a list of {pods} pods in {size} bytes");
            }
            anyhow::Ok(times)
        }
    });
    let finished = futures_util::future::try_join_all(readers).await?;
    outcome.elapsed += started.elapsed();
    outcome.cpu += side.processes.cpu().saturating_sub(cpu);
    finished.into_iter().for_each(|times| outcome.times.join(times));
    Ok(())
}

/// Many watchers of one namespace: how many events a second arrive, all together.
async fn watches(args: &Args, sides: &[Side]) -> anyhow::Result<()> {
    if !args.wants("watch") {
        return Ok(());
    }
    let counts: &[(usize, usize)] = if args.quick { &[(20, 50)] } else { &[(100, 2000), (1000, 400)] };
    for &(watchers, events) in counts {
        let (mut rates, mut cpu) = (Vec::new(), Vec::new());
        for side in sides {
            let (rate, each) = fan_out(side, watchers, events).await?;
            rates.push(rate);
            cpu.push(each);
        }
        let parameters = format!("watchers={watchers} events={events}");
        compare("watch", &parameters, "/s", &rates, Better::More);
        if sides.iter().all(|side| side.processes.are_known()) {
            compare("watch-cpu", &parameters, "us", &cpu, Better::Less);
        }
    }
    Ok(())
}

/// Deliveries per second, and the server's CPU time for each in microseconds.
async fn fan_out(side: &Side, watchers: usize, events: usize) -> anyhow::Result<(f64, f64)> {
    const WRITERS: usize = 16;
    let events = events / WRITERS * WRITERS;
    Case::Patch.prepare(side, WRITERS).await?;
    let from =
        exchange(&side.client, request(Method::GET, &format!("{}?limit=1", side.path("pods")), JSON, String::new()));
    let from = resource_version(&from.await?).to_owned();
    let path = format!("{}?watch=true&resourceVersion=", side.path("pods"));
    let mut followers = tokio::task::JoinSet::new();
    for connection in 0..watchers.div_ceil(WATCHES_PER_CONNECTION) {
        let client = side.connect()?;
        for _ in 0..WATCHES_PER_CONNECTION.min(watchers - connection * WATCHES_PER_CONNECTION) {
            let follower = Follower::open(client.clone(), path.clone(), from.clone()).await?;
            followers.spawn(follower.follow(events));
        }
    }
    let (started, cpu) = (Instant::now(), side.processes.cpu());
    let round = format!("w{watchers}");
    let counts = Until::Counts(Arc::new(vec![events / WRITERS; WRITERS]));
    drive(side, Case::Patch, WRITERS, &round, counts, &mut Outcome::default()).await?;
    while let Some(done) = followers.join_next().await {
        done??;
    }
    let deliveries = (watchers * events) as f64;
    let used = side.processes.cpu().saturating_sub(cpu).as_secs_f64() * 1e6;
    Ok((deliveries / started.elapsed().as_secs_f64(), used / deliveries))
}

/// One watcher. A server may end the watch of a client that it finds slow; the client goes on where it was.
struct Follower {
    client: Client,
    path: String,
    body: client::Body,
    /// The version in the last whole event, and in the one that is arriving.
    version: String,
    arriving: String,
    seen: usize,
}

impl Follower {
    async fn open(client: Client, path: String, version: String) -> anyhow::Result<Self> {
        let body = Self::watch(&client, &path, &version).await?;
        Ok(Self { client, path, body, arriving: version.clone(), version, seen: 0 })
    }

    async fn watch(client: &Client, path: &str, version: &str) -> anyhow::Result<client::Body> {
        let response = client.send(request(Method::GET, &format!("{path}{version}"), JSON, String::new())).await?;
        ensure!(response.status().is_success(), "watch from {version}: {}", response.status());
        Ok(response.into_body())
    }

    async fn follow(mut self, events: usize) -> anyhow::Result<()> {
        while self.seen < events {
            match self.body.frame().await {
                Some(frame) => self.take(frame.map_err(anyhow::Error::from_boxed)?.data_ref().map_or(&[], |data| data)),
                None => self.body = Self::watch(&self.client, &self.path, &self.version).await?,
            }
        }
        Ok(())
    }

    /// One event a line, wherever frames begin and end.
    fn take(&mut self, data: &[u8]) {
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', data) {
            self.look(&data[start..end]);
            self.version.clone_from(&self.arriving);
            self.seen += 1;
            start = end + 1;
        }
        self.look(&data[start..]);
    }

    fn look(&mut self, part: &[u8]) {
        let version = resource_version(part);
        if !version.is_empty() {
            self.arriving.clear();
            self.arriving.push_str(version);
        }
    }
}
