//! Many watchers of one namespace: how many events a second arrive, all together.

use anyhow::Context;

use super::requests::{Case, Until, Workers};
use super::{Outcome, Side, compare};
use crate::Args;
use crate::load::{Came, Event, Handler, Requests, Watches, resource_version};
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
    let deliveries = watchers * each * WRITERS;
    let connections = watchers.div_ceil(WATCHES_PER_CONNECTION);
    let mut watch = Watch {
        from: resource_version(&from).to_owned(),
        to_open: watchers,
        to_answer: watchers,
        to_see: deliveries,
        writers: None,
        connections: (0..connections).map(|_| Watches::of(&side.path("pods"))).collect(),
    };
    let mut load = side.connect(WRITERS + connections)?;
    load.run(&mut watch)?;
    watch.writers = Some(writers);
    let mut outcome = Outcome::default();
    outcome.turn(side, || load.run(&mut watch))?;
    let deliveries = deliveries as f64;
    Ok((deliveries / outcome.elapsed.as_secs_f64(), outcome.cpu.as_secs_f64() * 1e6 / deliveries))
}

/// First the watches are opened, then the writers write: they have the first connections.
struct Watch<'a> {
    from: String,
    to_open: usize,
    to_answer: usize,
    /// Events that are still to come, all watchers together.
    to_see: usize,
    writers: Option<Workers<'a>>,
    connections: Vec<Watches>,
}

impl Handler for Watch<'_> {
    fn start(&mut self, at: usize, requests: &mut Requests) -> anyhow::Result<()> {
        match (&mut self.writers, at.checked_sub(WRITERS)) {
            (Some(writers), None) => writers.start(at, requests),
            (None, Some(connection)) => {
                let count = self.to_open.min(WATCHES_PER_CONNECTION);
                self.to_open -= count;
                (0..count).try_for_each(|_| self.connections[connection].open(&self.from, requests))
            }
            _ => Ok(()),
        }
    }

    fn on(&mut self, at: usize, event: Event<'_>, requests: &mut Requests) -> anyhow::Result<()> {
        let Some(connection) = at.checked_sub(WRITERS) else {
            return self.writers.as_mut().context("an answer before a request")?.on(at, event, requests);
        };
        match self.connections[connection].on(event, requests)? {
            // One that was ended and opened again answers once more.
            Came::Opened => self.to_answer = self.to_answer.saturating_sub(1),
            Came::Events(count) => self.to_see = self.to_see.saturating_sub(count),
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        match self.writers {
            None => self.to_answer == 0,
            Some(_) => self.to_see == 0,
        }
    }
}
