//! One and three API servers over an etcd of three members: writes, and watches of what is written. The peer is an upstream
//! kube-apiserver that is named, over the same etcd.
//!
//! Both sides take turns, and the servers whose turn it is not stand still: what they do when nobody asks them anything is not
//! what is compared. Clients cost as little as they can (`crate::load`), a connection for each, JSON from both sides. All of
//! it shares the machine, so besides rates there is the CPU time that a write takes in the API servers, and in etcd.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use client::{Client, Endpoint};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nix::sys::signal::Signal;

use crate::Args;
use crate::load::{Came, Event, Handler, Load, Request, Requests, Watches, resource_version};
use crate::machines::{self, COUNT, OURS, PEER, Place, Process};
use crate::process::Processes;
use crate::report::{self, Better, Times};

const WRITERS: usize = 48;
/// Followers of everything that is written, spread over the servers.
const WATCHES: usize = 12;
/// A server that goes on after it stood still finds out which of its connections are still there.
const WAKE_TIME: Duration = Duration::from_secs(1);

/// What writers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Create,
    /// Each of an object of its own, by the version it knows.
    Update,
}

impl Case {
    const ALL: [Case; 2] = [Case::Create, Case::Update];

    fn name(self) -> &'static str {
        match self {
            Case::Create => "create",
            Case::Update => "update",
        }
    }
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let Some(dir) = &args.inside else { return machines::inside(&args.dir, machines::Disk::Memory) };
    let place = Place::of(dir);
    let cox = machines::cox(args.cox.as_deref())?;
    let etcd = args.etcd_binary.clone().unwrap_or_else(|| "etcd".into());
    let mut members = (0..COUNT).map(|number| Process::etcd(&place, number, &etcd)).collect::<Result<Vec<_>>>()?;
    for member in &mut members {
        member.start()?;
    }
    if args.kube_apiserver.is_none() {
        eprintln!("--kube-apiserver compares with an upstream kube-apiserver over the same etcd");
    }
    let (rounds, turn) = if args.quick { (1, Duration::from_secs(1)) } else { (3, Duration::from_secs(4)) };
    let mut sides = vec![Side::default()];
    sides.extend(args.kube_apiserver.iter().map(|_| Side::default()));
    for servers in [1, COUNT] {
        while sides[0].servers.len() < servers {
            let number = sides[0].servers.len();
            sides[0].add(Process::server(&place, number, &cox)?, machines::client(&place, number, OURS)?).await?;
            if let (Some(peer), Some(side)) = (&args.kube_apiserver, sides.get_mut(1)) {
                side.add(Process::peer(&place, number, peer)?, machines::client(&place, number, PEER)?).await?;
            }
        }
        wake_all(&mut members, &mut sides).await?;
        for case in Case::ALL.into_iter().filter(|case| args.wants(case.name())) {
            let mut outcomes: Vec<Outcome> = sides.iter().map(|_| Outcome::default()).collect();
            for round in 0..rounds {
                let namespace = format!("ha-{servers}-{}-{round}", case.name());
                for (at, outcome) in outcomes.iter_mut().enumerate() {
                    wake_only(&sides, at).await?;
                    write_and_watch(&sides[at], &members, (case, &namespace, turn), outcome).await?;
                }
            }
            let parameters = format!("servers={servers} writers={WRITERS} watches={WATCHES}");
            report_case(case, &parameters, &mut outcomes);
        }
    }
    Ok(())
}

/// API servers of one kind, as many as there are so far.
#[derive(Default)]
struct Side {
    servers: Vec<Process>,
    clients: Vec<Client>,
    endpoints: Vec<Endpoint>,
}

impl Side {
    async fn add(&mut self, mut server: Process, client: Client) -> Result<()> {
        server.start()?;
        self.servers.push(server);
        self.endpoints.push(client.endpoint().await?);
        self.clients.push(client);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.servers.iter().try_for_each(|server| server.signal(signal))
    }
}

/// Has every server run, and waits until all of them serve.
async fn wake_all(members: &mut [Process], sides: &mut [Side]) -> Result<()> {
    sides.iter().try_for_each(|side| side.signal(Signal::SIGCONT))?;
    let clients: Vec<Client> = sides.iter().flat_map(|side| side.clients.clone()).collect();
    for client in clients {
        let mut look_after = || {
            let servers = sides.iter_mut().flat_map(|side| &mut side.servers);
            members.iter_mut().chain(servers).try_for_each(Process::look_after)
        };
        machines::until_served(&client, &mut look_after).await?;
    }
    Ok(())
}

/// Has one side run, and nobody else.
async fn wake_only(sides: &[Side], at: usize) -> Result<()> {
    for (number, side) in sides.iter().enumerate() {
        side.signal(if number == at { Signal::SIGCONT } else { Signal::SIGSTOP })?;
    }
    tokio::time::sleep(WAKE_TIME).await;
    for client in &sides[at].clients {
        machines::until_serving(client).await?;
    }
    Ok(())
}

/// What one side did in its turns.
#[derive(Default)]
struct Outcome {
    times: Times,
    writing: Duration,
    /// Until everybody had seen everything.
    watching: Duration,
    delivered: usize,
    /// CPU time of the API servers, and of etcd.
    server_cpu: Duration,
    etcd_cpu: Duration,
}

impl Outcome {
    /// In milliseconds, of a time that all writes took together.
    fn each(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e3 / self.times.count().max(1) as f64
    }
}

fn report_case(case: Case, parameters: &str, outcomes: &mut [Outcome]) {
    let mut line = |name: &str, unit: &str, better: Better, of: &dyn Fn(&mut Outcome) -> f64| {
        let values: Vec<f64> = outcomes.iter_mut().map(of).collect();
        let case = format!("{}{name}", case.name());
        report::line(
            &case,
            parameters,
            unit,
            values.first().copied().unwrap_or_default(),
            values.get(1).copied(),
            better,
        );
    };
    line("", "/s", Better::More, &|outcome| outcome.times.count() as f64 / outcome.writing.as_secs_f64());
    line("-p50", "ms", Better::Less, &|outcome| outcome.times.percentile(50));
    line("-p99", "ms", Better::Less, &|outcome| outcome.times.percentile(99));
    line("-server-cpu", "ms", Better::Less, &|outcome| outcome.each(outcome.server_cpu));
    line("-etcd-cpu", "ms", Better::Less, &|outcome| outcome.each(outcome.etcd_cpu));
    line("-watch", "/s", Better::More, &|outcome| outcome.delivered as f64 / outcome.watching.as_secs_f64());
}

/// Writers write for a time; everyone who watches must see all of it.
async fn write_and_watch(
    side: &Side,
    members: &[Process],
    (case, namespace, time): (Case, &str, Duration),
    outcome: &mut Outcome,
) -> Result<()> {
    let first = side.clients.first().context("no server")?;
    let named = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let made =
        first.all::<Namespace>().create(&Namespace { metadata: named(namespace), ..Namespace::default() }).await?;
    let mut from = made.metadata.resource_version.unwrap_or_default();
    let mut versions = vec![String::new(); WRITERS];
    if case == Case::Update {
        for (number, version) in versions.iter_mut().enumerate() {
            let object = ConfigMap { metadata: named(&own_name(number)), ..ConfigMap::default() };
            let made = first.namespaced::<ConfigMap>(namespace).create(&object).await?;
            *version = made.metadata.resource_version.unwrap_or_default();
            from.clone_from(version);
        }
    }
    let mut turn = Turn::new(case, namespace, from, versions, time);
    let mut load = Load::connect_to((0..WRITERS + WATCHES).map(|at| &side.endpoints[at % side.endpoints.len()]))?;
    load.run(&mut turn)?;
    let servers = Processes::these(side.servers.iter().filter_map(Process::id));
    let etcd = Processes::these(members.iter().filter_map(Process::id));
    let before = (servers.cpu(), etcd.cpu());
    let began = Instant::now();
    turn.is_writing = true;
    load.run(&mut turn)?;
    outcome.watching += began.elapsed();
    outcome.writing += turn.ended.context("nobody wrote")? - began;
    outcome.server_cpu += servers.cpu().saturating_sub(before.0);
    outcome.etcd_cpu += etcd.cpu().saturating_sub(before.1);
    outcome.delivered += turn.seen;
    turn.writers.into_iter().for_each(|writer| outcome.times.join(writer.times));
    Ok(())
}

fn own_name(writer: usize) -> String {
    format!("own-{writer}")
}

/// First the watches are opened, then writers write, each the next when the last is answered. Writers have the first
/// connections.
struct Turn {
    case: Case,
    collection: String,
    /// The version that watches begin after.
    from: String,
    time: Duration,
    watches: Vec<Watches>,
    to_open: usize,
    is_writing: bool,
    began: Option<Instant>,
    writers: Vec<Writer>,
    busy: usize,
    /// When the last write was answered.
    ended: Option<Instant>,
    written: usize,
    seen: usize,
}

#[derive(Default)]
struct Writer {
    sent: usize,
    at: Option<Instant>,
    code: u16,
    answer: Vec<u8>,
    /// The version of its object.
    version: String,
    times: Times,
}

impl Turn {
    fn new(case: Case, namespace: &str, from: String, versions: Vec<String>, time: Duration) -> Self {
        let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
        Self {
            case,
            from,
            time,
            watches: (0..WATCHES).map(|_| Watches::of(&collection)).collect(),
            collection,
            to_open: WATCHES,
            is_writing: false,
            began: None,
            writers: versions.into_iter().map(|version| Writer { version, ..Writer::default() }).collect(),
            busy: 0,
            ended: None,
            written: 0,
            seen: 0,
        }
    }

    /// The next request of a writer, while there is time.
    fn write(&mut self, at: usize, requests: &mut Requests) -> Result<()> {
        let now = Instant::now();
        if now - *self.began.get_or_insert(now) >= self.time {
            self.busy -= 1;
            return Ok(());
        }
        let writer = &mut self.writers[at];
        let (method, path, name) = match self.case {
            Case::Create => ("POST", self.collection.clone(), format!("w-{at}-{}", writer.sent)),
            Case::Update => ("PUT", format!("{}/{}", self.collection, own_name(at)), own_name(at)),
        };
        let body = config_map(&name, writer.sent, &writer.version);
        let body = body.as_bytes();
        requests.send(&Request {
            method,
            path: &path,
            content_type: "application/json",
            accept: None,
            accept_encoding: None,
            body,
        })?;
        writer.sent += 1;
        writer.at = Some(now);
        writer.answer.clear();
        Ok(())
    }
}

/// The `n`th state of an object; one that is to be created has no version.
fn config_map(name: &str, n: usize, version: &str) -> String {
    let version = if version.is_empty() { String::new() } else { format!(r#","resourceVersion":"{version}""#) };
    let data = "x".repeat(256);
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"{version}}},"data":{{"turn":"{n}","key":"{data}"}}}}"#
    )
}

impl Handler for Turn {
    fn start(&mut self, at: usize, requests: &mut Requests) -> Result<()> {
        match (self.is_writing, at.checked_sub(WRITERS)) {
            (true, None) => {
                self.busy += 1;
                self.write(at, requests)
            }
            (false, Some(watch)) => self.watches[watch].open(&self.from, requests),
            _ => Ok(()),
        }
    }

    fn on(&mut self, at: usize, event: Event<'_>, requests: &mut Requests) -> Result<()> {
        if let Some(watch) = at.checked_sub(WRITERS) {
            match self.watches[watch].on(event, requests)? {
                // One that was ended and opened again answers once more.
                Came::Opened => self.to_open = self.to_open.saturating_sub(1),
                Came::Events(count) => self.seen += count,
            }
            return Ok(());
        }
        let writer = &mut self.writers[at];
        match event {
            Event::Head { code, .. } => writer.code = code,
            Event::Data { data, .. } => writer.answer.extend_from_slice(data),
            Event::Reset { .. } => bail!("{:?}: the server gave up", self.case),
            Event::End { .. } => {
                let now = Instant::now();
                let answer = &writer.answer;
                ensure!(
                    (200..300).contains(&writer.code),
                    "{:?}: {}: {}",
                    self.case,
                    writer.code,
                    String::from_utf8_lossy(answer)
                );
                writer.times.add(now - writer.at.context("an answer before a request")?);
                if self.case == Case::Update {
                    writer.version = resource_version(answer).to_owned();
                }
                self.written += 1;
                self.ended = Some(now);
                self.write(at, requests)?;
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        match self.is_writing {
            false => self.to_open == 0,
            true => self.busy == 0 && self.seen >= self.written * WATCHES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_objects_and_name_a_version_only_if_there_is_one() {
        for (version, expected) in [("", None), ("17", Some("17"))] {
            let body: ConfigMap = serde_json::from_str(&config_map("own-1", 3, version)).expect("JSON");
            assert_eq!(body.metadata.resource_version.as_deref(), expected);
            assert_eq!(body.data.expect("data")["turn"], "3");
        }
    }
}
