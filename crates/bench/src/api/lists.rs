//! Lists of many pods, plain, compressed and as protobuf, and the memory that so many pods take.

use std::ops::Range;
use std::time::Instant;

use anyhow::{bail, ensure};
use http::Method;

use super::{Outcome, Side, memory, objects, report};
use crate::Args;
use crate::load::{Event, Handler, Request, Requests};
use crate::report::Times;

pub(super) async fn measure(args: &Args, sides: &[Side]) -> anyhow::Result<()> {
    if !args.wants("list") && !args.wants("memory") {
        return Ok(());
    }
    let sizes: &[usize] = if args.quick { &[500] } else { &[5_000, 10_000, 20_000] };
    let mut filled = 0;
    for &pods in sizes {
        for side in sides {
            fill(side, filled..pods)?;
        }
        filled = pods;
        if args.wants("memory") {
            memory(sides, &format!("pods={pods}"))?;
        }
        if !args.wants("list") || pods == 10_000 {
            continue;
        }
        for (case, form, coding) in [
            ("list", None, "identity"),
            ("list-gzip", None, "gzip"),
            ("list-protobuf", Some(objects::PROTOBUF), "identity"),
        ] {
            for clients in [1, 16] {
                if pods > 5_000 && clients > 1 || !args.wants(case) {
                    continue;
                }
                let mut outcomes: Vec<Outcome> = sides.iter().map(|_| Outcome::default()).collect();
                for _ in 0..if args.quick { 1 } else { 3 } {
                    for (side, outcome) in sides.iter().zip(&mut outcomes) {
                        let mut load = side.connect(clients)?;
                        let mut readers = Readers::new(side, clients, (form, coding), pods);
                        outcome.turn(side, || load.run(&mut readers))?;
                        readers.readers.into_iter().for_each(|reader| outcome.times.join(reader.times));
                    }
                }
                report(case, &format!("pods={pods} clients={clients}"), &mut outcomes, sides);
            }
        }
    }
    for side in sides {
        clear(side).await?;
    }
    Ok(())
}

/// Removes the pods, page by page: all at once would take longer than a server gives a request.
async fn clear(side: &Side) -> anyhow::Result<()> {
    let pods = side.path("pods");
    loop {
        let page = side.get(&format!("{pods}?limit=1")).await?;
        let page: serde_json::Value = serde_json::from_slice(&page)?;
        if page["items"].as_array().is_none_or(Vec::is_empty) {
            return Ok(());
        }
        let url = format!("{pods}?limit=500&gracePeriodSeconds=0");
        let (code, answer) = side.exchange(Method::DELETE, &url, String::new()).await?;
        ensure!(code.is_success(), "{url}: {code}: {}", String::from_utf8_lossy(&answer));
    }
}

/// Pods with numbers in `range`, by several writers.
fn fill(side: &Side, range: Range<usize>) -> anyhow::Result<()> {
    const WRITERS: usize = 32;
    side.connect(WRITERS)?.run(&mut Fill { path: side.path("pods"), left: range, busy: 0, code: [0; WRITERS] })
}

struct Fill<const WRITERS: usize> {
    path: String,
    left: Range<usize>,
    busy: usize,
    code: [u16; WRITERS],
}

impl<const WRITERS: usize> Handler for Fill<WRITERS> {
    fn start(&mut self, _: usize, requests: &mut Requests) -> anyhow::Result<()> {
        let Some(n) = self.left.next() else { return Ok(()) };
        self.busy += 1;
        let (path, body) = (&*self.path, objects::listed_pod(n));
        let body = body.as_bytes();
        let create =
            Request { method: "POST", path, content_type: objects::JSON, accept: None, accept_encoding: None, body };
        requests.send(&create).map(drop)
    }

    fn on(&mut self, at: usize, event: Event<'_>, requests: &mut Requests) -> anyhow::Result<()> {
        match event {
            Event::Head { code, .. } => self.code[at] = code,
            Event::Data { data, .. } => {
                ensure!(self.code[at] == 201, "create: {}: {}", self.code[at], String::from_utf8_lossy(data));
            }
            Event::End { .. } => {
                self.busy -= 1;
                self.start(at, requests)?;
            }
            Event::Reset { .. } => bail!("create: the server gave up"),
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.busy == 0
    }
}

/// Clients that ask for the same list, one to a connection.
struct Readers {
    path: String,
    form: Option<&'static str>,
    coding: &'static str,
    pods: usize,
    readers: Vec<Reader>,
    busy: usize,
}

#[derive(Default)]
struct Reader {
    asked: usize,
    before: Option<Instant>,
    size: usize,
    times: Times,
}

impl Readers {
    fn new(side: &Side, clients: usize, (form, coding): (Option<&'static str>, &'static str), pods: usize) -> Self {
        let path = format!("{}?labelSelector=app%3Dlisted", side.path("pods"));
        let readers = (0..clients).map(|_| Reader::default()).collect();
        Self { path, form, coding, pods, readers, busy: clients }
    }
}

impl Handler for Readers {
    fn start(&mut self, at: usize, requests: &mut Requests) -> anyhow::Result<()> {
        const EACH: usize = 5;
        let reader = &mut self.readers[at];
        if reader.asked == EACH {
            self.busy -= 1;
            return Ok(());
        }
        reader.asked += 1;
        reader.size = 0;
        reader.before = Some(Instant::now());
        let (accept, accept_encoding) = (self.form, Some(self.coding));
        requests.send(&Request { accept, accept_encoding, ..Request::get(&self.path) }).map(drop)
    }

    fn on(&mut self, at: usize, event: Event<'_>, requests: &mut Requests) -> anyhow::Result<()> {
        let (pods, is_protobuf, reader) = (self.pods, self.form.is_some(), &mut self.readers[at]);
        match event {
            Event::Head { code, .. } => ensure!(code == 200, "list: {code}"),
            Event::Data { data, .. } => {
                let begins = reader.size == 0 && data.len() >= 4;
                ensure!(!begins || data.starts_with(b"k8s\0") == is_protobuf, "a list in another form");
                reader.size += data.len();
            }
            Event::End { .. } => {
                let size = reader.size;
                reader.times.add(reader.before.map_or_else(Default::default, |before| before.elapsed()));
                ensure!(size > pods * 20, "a list of {pods} pods in {size} bytes");
                self.start(at, requests)?;
            }
            Event::Reset { .. } => bail!("list: the server gave up"),
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.busy == 0
    }
}
