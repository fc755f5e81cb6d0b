//! Requests about one object, each client the next when the last is answered.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use super::objects::{self, JSON, STRATEGIC};
use super::{Outcome, Side, report};
use crate::Args;
use crate::load::{Event, Handler, Request, Requests, resource_version};
use crate::report::Times;

/// One kind of request, made again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
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

    fn resource(self, side: &Side) -> String {
        match self {
            Case::Update => side.path("configmaps"),
            Case::LeaseRenewal => format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", side.namespace),
            _ => side.path("pods"),
        }
    }

    /// The objects of those workers that have one of their own.
    pub(super) async fn prepare(self, side: &Side, clients: usize) -> anyhow::Result<()> {
        for worker in 0..clients {
            let body = match self {
                Case::Get | Case::Patch => objects::pod(&format!("own-{worker}")),
                Case::Update => objects::config_map(worker, 0, ""),
                Case::LeaseRenewal => objects::lease(&side.namespace, worker, 0, ""),
                Case::Create | Case::Delete => return Ok(()),
            };
            side.create(&self.resource(side), body).await?;
        }
        Ok(())
    }

    /// Method, name of the object if it is in the path, type of the body, body of the `n`th request of a worker. `version` is the
    /// resource version of its last answer.
    fn request(self, side: &Side, round: &str, worker: usize, n: usize, version: &str) -> Parts {
        let own = || format!("/own-{worker}");
        match self {
            Case::Create => ("POST", String::new(), JSON, objects::pod(&format!("new-{round}-{worker}-{n}"))),
            Case::Delete => ("DELETE", format!("/new-{round}-{worker}-{n}?gracePeriodSeconds=0"), JSON, String::new()),
            Case::Get => ("GET", own(), JSON, String::new()),
            Case::Patch => {
                let patch = format!(r#"{{"metadata":{{"labels":{{"turn":"{round}-{n}"}}}}}}"#);
                ("PATCH", own(), STRATEGIC, patch)
            }
            Case::Update => ("PUT", own(), JSON, objects::config_map(worker, n, version)),
            Case::LeaseRenewal => ("PUT", own(), JSON, objects::lease(&side.namespace, worker, n, version)),
        }
    }
}

type Parts = (&'static str, String, &'static str, String);

/// How long workers go on: for a time, or for a number of requests each.
#[derive(Clone)]
pub(super) enum Until {
    Time(Duration),
    Counts(Vec<usize>),
}

pub(super) async fn measure(args: &Args, sides: &[Side], clients: usize) -> anyhow::Result<()> {
    let (rounds, turn) = if args.quick { (1, Duration::from_millis(500)) } else { (3, Duration::from_secs(2)) };
    // What each side created in each round, for the deletes.
    let mut created: Vec<Vec<Vec<usize>>> = vec![Vec::new(); sides.len()];
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
                let mut workers = Workers::new(side, case, clients, format!("{clients}-{round}"), until).await?;
                let mut load = side.connect(clients)?;
                outcomes[at].turn(side, || load.run(&mut workers))?;
                if case == Case::Create {
                    created[at].push(workers.counts());
                }
                outcomes[at].times.join(workers.into_times());
            }
        }
        if args.wants(case.name()) {
            report(case.name(), &format!("clients={clients}"), &mut outcomes, sides);
        }
    }
    Ok(())
}

/// Clients of a side, one to a connection.
pub(super) struct Workers<'a> {
    side: &'a Side,
    case: Case,
    resource: String,
    round: String,
    until: Until,
    started: Option<Instant>,
    workers: Vec<Worker>,
    busy: usize,
}

#[derive(Default)]
struct Worker {
    sent: usize,
    before: Option<Instant>,
    /// The resource version in the last answer.
    version: String,
    code: u16,
    answer: Vec<u8>,
    times: Times,
}

impl<'a> Workers<'a> {
    pub(super) async fn new(
        side: &'a Side,
        case: Case,
        clients: usize,
        round: String,
        until: Until,
    ) -> anyhow::Result<Self> {
        let resource = case.resource(side);
        let mut workers = Vec::new();
        for worker in 0..clients {
            let mut version = String::new();
            if matches!(case, Case::Update | Case::LeaseRenewal) {
                version = resource_version(&side.get(&format!("{resource}/own-{worker}")).await?).to_owned();
            }
            workers.push(Worker { version, ..Worker::default() });
        }
        Ok(Self { side, case, resource, round, until, started: None, workers, busy: 0 })
    }

    /// How many requests each made.
    fn counts(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.times.count()).collect()
    }

    fn into_times(self) -> Times {
        let mut all = Times::default();
        self.workers.into_iter().for_each(|worker| all.join(worker.times));
        all
    }

    /// The next request of a worker, if it is to make one.
    fn next(&mut self, at: usize, requests: &mut Requests) -> anyhow::Result<bool> {
        let now = Instant::now();
        let started = *self.started.get_or_insert(now);
        let worker = &mut self.workers[at];
        let over = match &self.until {
            Until::Time(time) => now - started >= *time,
            Until::Counts(counts) => worker.sent >= counts[at],
        };
        if over {
            return Ok(false);
        }
        let (method, name, content_type, body) =
            self.case.request(self.side, &self.round, at, worker.sent, &worker.version);
        let path = format!("{}{name}", self.resource);
        requests.send(&Request {
            method,
            path: &path,
            content_type,
            accept: None,
            accept_encoding: None,
            body: body.as_bytes(),
        })?;
        worker.sent += 1;
        worker.before = Some(now);
        worker.answer.clear();
        Ok(true)
    }
}

impl Handler for Workers<'_> {
    fn start(&mut self, at: usize, requests: &mut Requests) -> anyhow::Result<()> {
        self.busy += usize::from(self.next(at, requests)?);
        Ok(())
    }

    fn on(&mut self, at: usize, event: Event<'_>, requests: &mut Requests) -> anyhow::Result<()> {
        let worker = &mut self.workers[at];
        match event {
            Event::Head { code, .. } => worker.code = code,
            Event::Data { data, .. } => worker.answer.extend_from_slice(data),
            Event::End { .. } => {
                worker.times.add(worker.before.map_or(Duration::ZERO, |before| before.elapsed()));
                let text = || String::from_utf8_lossy(&worker.answer);
                ensure!((200..300).contains(&worker.code), "{:?}: {}: {}", self.case, worker.code, text());
                worker.version.clear();
                worker.version.push_str(resource_version(&worker.answer));
                if !self.next(at, requests)? {
                    self.busy -= 1;
                }
            }
            Event::Reset { .. } => bail!("{:?}: the server gave up", self.case),
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.busy == 0
    }
}
