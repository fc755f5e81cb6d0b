//! Many watchers of one namespace: how many events a second arrive, all together.

use anyhow::{Context, bail, ensure};

use super::objects::resource_version;
use super::requests::{Case, Until, Workers};
use super::{Outcome, Side, compare};
use crate::Args;
use crate::load::{Event, Handler, Request, Requests};
use crate::report::Better;

/// Streams of one connection; a server may refuse more than a hundred.
const WATCHES_PER_CONNECTION: usize = 50;
const WRITERS: usize = 16;

pub(super) async fn measure(args: &Args, sides: &[Side]) -> anyhow::Result<()> {
    if !args.wants("watch") {
        return Ok(());
    }
    let counts: &[(usize, usize)] = if args.quick { &[(20, 50)] } else { &[(100, 2000), (1000, 400)] };
    for &(watchers, events) in counts {
        let (mut rates, mut cpu) = (Vec::new(), Vec::new());
        for side in sides {
            let (rate, each) = fan_out(side, watchers, events / WRITERS).await?;
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

/// Each writer patches its pod so often. Deliveries per second, and the server's CPU time for each in microseconds.
async fn fan_out(side: &Side, watchers: usize, each: usize) -> anyhow::Result<(f64, f64)> {
    Case::Patch.prepare(side, WRITERS).await?;
    let from = side.get(&format!("{}?limit=1", side.path("pods"))).await?;
    let until = Until::Counts(vec![each; WRITERS]);
    let writers = Workers::new(side, Case::Patch, WRITERS, format!("w{watchers}"), until).await?;
    let mut watch = Watch {
        path: format!("{}?watch=true&resourceVersion=", side.path("pods")),
        from: resource_version(&from).to_owned(),
        events: each * WRITERS,
        to_open: watchers,
        to_answer: watchers,
        to_finish: watchers,
        writers: None,
        streams: (0..watchers.div_ceil(WATCHES_PER_CONNECTION)).map(|_| Vec::new()).collect(),
    };
    let mut load = side.connect(WRITERS + watch.streams.len())?;
    load.run(&mut watch)?;
    watch.writers = Some(writers);
    let mut outcome = Outcome::default();
    outcome.turn(side, || load.run(&mut watch))?;
    let deliveries = (watchers * watch.events) as f64;
    Ok((deliveries / outcome.elapsed.as_secs_f64(), outcome.cpu.as_secs_f64() * 1e6 / deliveries))
}

/// First the watches are opened, then the writers write: they have the first connections.
struct Watch<'a> {
    path: String,
    from: String,
    /// So many everyone must see.
    events: usize,
    to_open: usize,
    to_answer: usize,
    to_finish: usize,
    writers: Option<Workers<'a>>,
    /// The followers on the streams of each connection, in the order of the streams.
    streams: Vec<Vec<Option<Follower>>>,
}

/// One watcher. A server may end the watch of a client that it finds slow; the client goes on where it was.
struct Follower {
    /// The version in the last whole event, and in the one that is arriving.
    version: String,
    arriving: String,
    seen: usize,
}

impl Watch<'_> {
    fn open(&mut self, connection: usize, follower: Follower, requests: &mut Requests) -> anyhow::Result<()> {
        let path = format!("{}{}", self.path, follower.version);
        let slot = slot(requests.send(&Request::get(&path))?);
        let streams = &mut self.streams[connection];
        streams.resize_with(streams.len().max(slot + 1), || None);
        streams[slot] = Some(follower);
        Ok(())
    }
}

/// Clients count streams 1, 3, 5.
fn slot(stream: u32) -> usize {
    stream as usize / 2
}

impl Handler for Watch<'_> {
    fn start(&mut self, at: usize, requests: &mut Requests) -> anyhow::Result<()> {
        match (&mut self.writers, at.checked_sub(WRITERS)) {
            (Some(writers), None) => writers.start(at, requests),
            (None, Some(connection)) => {
                let count = self.to_open.min(WATCHES_PER_CONNECTION);
                self.to_open -= count;
                for _ in 0..count {
                    let (version, arriving) = (self.from.clone(), String::new());
                    self.open(connection, Follower { version, arriving, seen: 0 }, requests)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on(&mut self, at: usize, event: Event<'_>, requests: &mut Requests) -> anyhow::Result<()> {
        let Some(connection) = at.checked_sub(WRITERS) else {
            return self.writers.as_mut().context("an answer before a request")?.on(at, event, requests);
        };
        let streams = &mut self.streams[connection];
        match event {
            Event::Head { code, .. } => {
                ensure!(code == 200, "watch: {code}");
                self.to_answer = self.to_answer.saturating_sub(1);
            }
            Event::Data { stream, data } => {
                let Some(Some(follower)) = streams.get_mut(slot(stream)) else { bail!("data that nobody asked for") };
                let before = follower.seen;
                follower.take(data);
                if before < self.events && follower.seen >= self.events {
                    self.to_finish -= 1;
                }
            }
            Event::End { stream } | Event::Reset { stream } => {
                if let Some(follower) = streams.get_mut(slot(stream)).and_then(Option::take) {
                    self.open(connection, follower, requests)?;
                }
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        match self.writers {
            None => self.to_answer == 0,
            Some(_) => self.to_finish == 0,
        }
    }
}

impl Follower {
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
