//! Three servers over three etcd members, one of which is always in trouble, while somebody writes: what was acknowledged must
//! be there afterwards, what was deleted must not, and one order must explain all that was read and written meanwhile.
//!
//! The run always ends with figures and a verdict, whatever goes wrong on its way.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use client::{Api, Client, DeleteParams, Event, Informer, ListParams};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Args;
use crate::history::{self, Kind, Operation, Outcome, State};
use crate::machines::{self, COUNT, Clock, Disk, OURS, Place, Process};

/// Half of them go from server to server, and meet one that does not answer at once; the others stay while theirs answers.
const WRITERS: usize = 2 * COUNT;
/// After so many turns those return to their own server, wherever they are.
const TURNS_AWAY: u64 = 200;
/// Objects that all writers read and replace.
const REGISTERS: usize = 3;
/// So many objects of its own a writer leaves standing; older ones it deletes, so that an hour fits on the disks.
const KEPT: usize = 200;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long trouble lasts, and how long nothing happens afterwards.
const FAULT_PERIOD: Duration = Duration::from_secs(6);
const REST_PERIOD: Duration = Duration::from_secs(4);
/// Two of three are well at any time: writes go on long before this.
const MAX_STALL: Duration = Duration::from_secs(30);
const END_TIMEOUT: Duration = Duration::from_secs(120);
/// How many problems of a kind are told.
const TOLD: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// etcd and the API server of a machine are killed, and started again.
    Kill,
    /// Both stand still.
    Pause,
    /// Nobody reaches the machine.
    Partition,
    /// Nothing is left of its disk.
    FullDisk,
    /// Its disk takes nothing for most of the time.
    SlowDisk,
    /// The clock of its API server goes forward, and back, by half an hour.
    ClockJump,
}

impl Fault {
    const ALL: [Fault; 6] =
        [Fault::Kill, Fault::Pause, Fault::Partition, Fault::FullDisk, Fault::SlowDisk, Fault::ClockJump];

    fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Pause => "pause",
            Fault::Partition => "partition",
            Fault::FullDisk => "full-disk",
            Fault::SlowDisk => "slow-disk",
            Fault::ClockJump => "clock-jump",
        }
    }
}

/// Which machine has which trouble: in eighteen rounds every machine has had every one.
fn plan(round: usize) -> (Fault, usize) {
    (Fault::ALL[round % Fault::ALL.len()], (round + round / Fault::ALL.len()) % COUNT)
}

pub(crate) async fn run(args: Args) -> Result<()> {
    match &args.inside {
        None => machines::inside(&args.dir, Disk::Freezable),
        Some(dir) => under_faults(&args, &Place::of(dir)).await,
    }
}

/// What writers have done so far.
#[derive(Default)]
struct Tally {
    /// Acknowledged and not deleted, and deleted.
    standing: Mutex<BTreeSet<String>>,
    deleted: Mutex<BTreeSet<String>>,
    acknowledged: AtomicU64,
    refused: AtomicU64,
    /// What is wrong already.
    problems: Mutex<Vec<String>>,
    history: Mutex<Vec<Operation>>,
    /// Of the history.
    clock: AtomicU64,
    /// When something was acknowledged last, and the longest time without since it was last asked for.
    silence: Mutex<Option<(Instant, Duration)>>,
    stop: AtomicBool,
}

impl Tally {
    fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        let mut silence = self.silence.lock();
        let (last, longest) = silence.unwrap_or((Instant::now(), Duration::ZERO));
        *silence = Some((Instant::now(), longest.max(last.elapsed())));
    }

    /// The longest time without an answer since this was asked last.
    fn take_silence(&self) -> Duration {
        let mut silence = self.silence.lock();
        let (last, longest) = silence.unwrap_or((Instant::now(), Duration::ZERO));
        *silence = Some((last, Duration::ZERO));
        longest.max(last.elapsed())
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn record(&self, register: usize, started: u64, kind: Kind) {
        let ended = self.tick();
        self.history.lock().push(Operation { register, started, ended, kind });
    }

    fn problem(&self, what: String) {
        eprintln!("faults: {what}");
        self.problems.lock().push(what);
    }
}

struct Machine {
    etcd: Process,
    server: Process,
}

async fn under_faults(args: &Args, place: &Place) -> Result<()> {
    let cox = machines::cox(args.cox.as_deref())?;
    let etcd = args.etcd_binary.clone().unwrap_or_else(|| "etcd".into());
    let mut all = Vec::new();
    let has_clocks = Clock::library().is_some();
    if !has_clocks {
        eprintln!("faults: no clock jumps without libfaketime");
    }
    for number in 0..COUNT {
        let mut machine =
            Machine { etcd: Process::etcd(place, number, &etcd)?, server: Process::server(place, number, &cox)? };
        // Its disk is small: an hour of what was written must not gather there.
        machine.etcd.add_flags(&["--snapshot-count=10000", "--max-wals=1", "--max-snapshots=1"]);
        machine.server.add_flags(&["--etcd-compaction-interval=1m"]);
        Clock::of(place, number).give_to(&mut machine.server)?;
        machine.etcd.start()?;
        machine.server.start()?;
        all.push(machine);
    }
    let clients: Vec<Client> = (0..COUNT).map(|number| machines::client(place, number, OURS)).collect::<Result<_>>()?;
    for client in &clients {
        machines::until_served(client, || look_after(&mut all)).await?;
    }
    let tally = Arc::new(Tally::default());
    let stop = CancellationToken::new();
    let informer: Informer<ConfigMap> = Informer::new(clients[0].namespaced("default"), ListParams::default());
    follow(&informer, tally.clone());
    let (watched, watch_stop) = (informer.clone(), stop.clone());
    let watching = tokio::spawn(async move { watched.run(watch_stop).await });
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        writers.spawn(Writer::new(number, clients.clone(), tally.clone()).run());
    }
    let minutes = if args.quick { 1 } else { args.minutes };
    let deadline = Instant::now() + Duration::from_secs(60 * minutes);
    let mut stalls = [(Duration::ZERO, 0u32); Fault::ALL.len()];
    let mut round = 0;
    while Instant::now() < deadline {
        let (fault, number) = plan(round);
        let stall = &mut stalls[round % Fault::ALL.len()];
        round += 1;
        if fault == Fault::ClockJump && !has_clocks {
            continue;
        }
        tally.take_silence();
        match make_trouble(fault, place, number, &mut all[number]).await {
            Ok(()) => stall.1 += 1,
            Err(error) => {
                tally.problem(format!("{} of machine {number} could not be made: {error:#}", fault.name()));
                end_trouble(place, number, &all[number]);
            }
        }
        if let Err(error) = look_after(&mut all) {
            tally.problem(format!("what has ended is not started again: {error:#}"));
        }
        tokio::time::sleep(REST_PERIOD).await;
        // Only now: writes may stand still for longer than the trouble lasts.
        stall.0 = stall.0.max(tally.take_silence());
    }
    tally.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = writers.join_next().await {
        if let Err(error) = ended {
            tally.problem(format!("a writer did not end well: {error}"));
        }
    }
    for (number, client) in clients.iter().enumerate() {
        if let Err(error) = machines::until_served(client, || look_after(&mut all)).await {
            tally.problem(format!("server {number} is not back: {error:#}"));
        }
    }
    for number in 0..COUNT {
        if let Err(error) = until_member_is_back(number, &mut all).await {
            tally.problem(format!("etcd member {number} is not back: {error:#}"));
        }
    }
    verify(&clients, &informer, &tally).await;
    stop.cancel();
    match tokio::time::timeout(END_TIMEOUT, watching).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tally.problem(format!("the watch did not end well: {error}")),
        Err(_) => tally.problem("the watch does not end".to_owned()),
    }
    conclude(minutes, round, &stalls, &tally)
}

/// Prints the figures; an error if anything was wrong.
fn conclude(minutes: u64, rounds: usize, stalls: &[(Duration, u32)], tally: &Tally) -> Result<()> {
    let history = std::mem::take(&mut *tally.history.lock());
    let violations = history::violations(&history);
    for violation in violations.iter().take(TOLD) {
        tally.problem(format!("not linearizable: {violation}"));
    }
    for (fault, (stall, _)) in Fault::ALL.iter().zip(stalls).filter(|(_, (stall, _))| *stall > MAX_STALL) {
        tally.problem(format!("nothing was acknowledged for {:.0} s at a {}", stall.as_secs_f64(), fault.name()));
    }
    if rounds == 0 || tally.acknowledged.load(Ordering::Relaxed) == 0 {
        tally.problem("nothing was written under faults, so that nothing is known".to_owned());
    }
    let problems = tally.problems.lock();
    println!(
        "faults minutes={minutes} rounds={rounds} acknowledged={} retried={} standing={} deleted={} operations={} \
         violations={} problems={}",
        tally.acknowledged.load(Ordering::Relaxed),
        tally.refused.load(Ordering::Relaxed),
        tally.standing.lock().len(),
        tally.deleted.lock().len(),
        history.len(),
        violations.len(),
        problems.len(),
    );
    for (fault, (stall, times)) in Fault::ALL.iter().zip(stalls) {
        println!("faults {} times={times} longest-stall={:.1}s", fault.name(), stall.as_secs_f64());
    }
    let text = problems.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join("; ");
    ensure!(problems.is_empty(), "{text}");
    println!("faults verdict=good: nothing lost, nothing back from the dead, linearizable");
    Ok(())
}

/// Waits until a member of etcd answers by itself, and knows who leads.
async fn until_member_is_back(number: usize, all: &mut [Machine]) -> Result<()> {
    let options = store::etcd::Options::new([format!("http://{}:2379", machines::address(number))]);
    let member = store::etcd::Members::new(&options)?;
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        let status = member.status().await;
        if status.as_ref().is_ok_and(|status| status.leader != 0) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{status:?}");
        look_after(all)?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Starts what has ended by itself.
fn look_after(machines: &mut [Machine]) -> Result<()> {
    machines.iter_mut().try_for_each(|machine| {
        machine.etcd.look_after()?;
        machine.server.look_after()
    })
}

/// Takes back whatever trouble a machine may still have.
fn end_trouble(place: &Place, number: usize, machine: &Machine) {
    let results = [
        machine.etcd.signal(Signal::SIGCONT),
        machine.server.signal(Signal::SIGCONT),
        place.set_link(number, true),
        place.thaw_disk(number),
        place.empty_disk(number),
        Clock::of(place, number).set(0),
    ];
    // Most of it was never there.
    for error in results.into_iter().filter_map(Result::err) {
        eprintln!("faults: {error:#}");
    }
}

async fn make_trouble(fault: Fault, place: &Place, number: usize, machine: &mut Machine) -> Result<()> {
    match fault {
        Fault::Kill => {
            machine.etcd.kill()?;
            machine.server.kill()?;
            tokio::time::sleep(FAULT_PERIOD).await;
        }
        Fault::Pause => {
            machine.etcd.signal(Signal::SIGSTOP)?;
            machine.server.signal(Signal::SIGSTOP)?;
            tokio::time::sleep(FAULT_PERIOD).await;
            machine.etcd.signal(Signal::SIGCONT)?;
            machine.server.signal(Signal::SIGCONT)?;
        }
        Fault::Partition => {
            place.set_link(number, false)?;
            tokio::time::sleep(FAULT_PERIOD).await;
            place.set_link(number, true)?;
        }
        Fault::FullDisk => {
            let (filled, emptied) = (place.clone(), place.clone());
            tokio::task::spawn_blocking(move || filled.fill_disk(number)).await??;
            tokio::time::sleep(FAULT_PERIOD).await;
            emptied.empty_disk(number)?;
        }
        Fault::SlowDisk => {
            let slow = place.clone();
            tokio::task::spawn_blocking(move || slow.slow_disk(number, FAULT_PERIOD)).await??;
        }
        Fault::ClockJump => {
            let clock = Clock::of(place, number);
            for minutes in [30, -30, 0] {
                clock.set(minutes)?;
                tokio::time::sleep(FAULT_PERIOD / 2).await;
            }
        }
    }
    Ok(())
}

fn config_map(name: &str, value: u64, version: Option<String>) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), resource_version: version, ..ObjectMeta::default() },
        data: Some([("value".to_owned(), value.to_string())].into()),
        ..ConfigMap::default()
    }
}

fn value_of(map: &ConfigMap) -> Option<u64> {
    map.data.as_ref()?.get("value")?.parse().ok()
}

fn version_of(map: &ConfigMap) -> Option<u64> {
    map.metadata.resource_version.as_deref()?.parse().ok()
}

/// None for what nobody here wrote.
fn state_of(map: &ConfigMap) -> Option<State> {
    Some(State { version: version_of(map)?, value: value_of(map)? })
}

fn register(number: usize) -> String {
    format!("register-{number}")
}

/// A watch never goes back to an older state of an object, wherever it is opened again.
fn follow(informer: &Informer<ConfigMap>, tally: Arc<Tally>) {
    let seen: Mutex<HashMap<String, u64>> = Mutex::default();
    informer.subscribe(move |event| {
        let object = event.object();
        let (Some(name), Some(version)) = (object.metadata.name.clone(), version_of(object)) else { return };
        if matches!(event, Event::Deleted(_)) {
            seen.lock().remove(&name);
            return;
        }
        let before = seen.lock().insert(name.clone(), version);
        if before.is_some_and(|before| before > version) {
            tally.problem(format!("a watch showed {name} at {version} after {before:?}"));
        }
    });
}

/// Creates objects and deletes them again later, and replaces registers that others replace too, through whichever server
/// answers.
struct Writer {
    number: usize,
    clients: Vec<Client>,
    tally: Arc<Tally>,
    /// Whose turn it is to be asked, and for those that stay, which server is theirs.
    turn: usize,
    home: Option<usize>,
    /// Of the next object, and of the next value of a register.
    next: u64,
    next_value: u64,
    standing: VecDeque<Mark>,
    /// A request to create the next object was not answered. It may be carried out at any time, even after a delete.
    is_creating: bool,
    /// A request to delete the oldest was not answered.
    is_deleting: bool,
}

/// An object of a writer's own.
#[derive(Clone)]
struct Mark {
    name: String,
    may_come_back: bool,
}

impl Writer {
    fn new(number: usize, clients: Vec<Client>, tally: Arc<Tally>) -> Self {
        let next_value = number as u64 * 1_000_000_000;
        let standing = VecDeque::new();
        let (is_creating, is_deleting) = (false, false);
        let home = (number % 2 == 1).then_some(number / 2);
        let turn = home.unwrap_or(number);
        Self { number, clients, tally, turn, home, next: 0, next_value, standing, is_creating, is_deleting }
    }

    async fn run(mut self) {
        let mut turns: u64 = 0;
        while !self.tally.stop.load(Ordering::Relaxed) {
            let maps = self.clients[self.turn % self.clients.len()].namespaced::<ConfigMap>("default");
            // One that does not answer is not asked for the rest.
            let answered = self.create(&maps).await && self.delete(&maps).await && self.replace(&maps).await;
            turns += 1;
            match self.home {
                Some(home) if turns.is_multiple_of(TURNS_AWAY) => self.turn = home,
                Some(_) if answered => {}
                _ => self.turn += 1,
            }
        }
    }

    async fn create(&mut self, maps: &Api<ConfigMap>) -> bool {
        let name = format!("mark-{}-{}", self.number, self.next);
        let created = tokio::time::timeout(REQUEST_TIMEOUT, maps.create(&config_map(&name, self.next, None))).await;
        let is_there = match created {
            Ok(Ok(_)) => true,
            // By this writer, whose answer was lost.
            Ok(Err(error)) => error.is_already_exists(),
            Err(_) => false,
        };
        if !is_there {
            self.is_creating = true;
            self.tally.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.tally.acknowledge();
        self.tally.standing.lock().insert(name.clone());
        self.standing.push_back(Mark { name, may_come_back: self.is_creating });
        self.is_creating = false;
        self.next += 1;
        true
    }

    /// Deletes the oldest of its objects, if there are enough.
    async fn delete(&mut self, maps: &Api<ConfigMap>) -> bool {
        let oldest = self.standing.front().filter(|_| self.standing.len() > KEPT);
        let Some(Mark { name, may_come_back }) = oldest.cloned() else { return true };
        // From now on it may be gone.
        self.tally.standing.lock().remove(&name);
        let deleted = tokio::time::timeout(REQUEST_TIMEOUT, maps.delete(&name, &DeleteParams::default())).await;
        match deleted {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.is_not_found() => {
                if !self.is_deleting {
                    self.tally.problem(format!("{name} was acknowledged, and is not there"));
                }
            }
            _ => {
                self.is_deleting = true;
                self.tally.refused.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        self.is_deleting = false;
        self.tally.acknowledge();
        self.tally.deleted.lock().extend((!may_come_back).then_some(name));
        self.standing.pop_front();
        true
    }

    /// Reads a register and replaces what it found.
    async fn replace(&mut self, maps: &Api<ConfigMap>) -> bool {
        let number = (self.next_value % REGISTERS as u64) as usize;
        let started = self.tally.tick();
        let found = match tokio::time::timeout(REQUEST_TIMEOUT, maps.get(&register(number))).await {
            Ok(Ok(found)) => Some(found),
            Ok(Err(error)) if error.is_not_found() => None,
            _ => return false,
        };
        let state = found.as_ref().map_or(Some(State::default()), state_of);
        let Some(state) = state else {
            self.tally.problem(format!("{} is not as anybody wrote it: {found:?}", register(number)));
            return true;
        };
        self.tally.record(number, started, Kind::Read(state));

        let value = self.next_value;
        self.next_value += 1;
        let started = self.tally.tick();
        let version = found.and_then(|found| found.metadata.resource_version);
        let is_new = version.is_none();
        let next = config_map(&register(number), value, version);
        let written = async {
            match is_new {
                true => maps.create(&next).await,
                false => maps.update(&next).await,
            }
        };
        let outcome = match tokio::time::timeout(REQUEST_TIMEOUT, written).await {
            Ok(Ok(written)) => version_of(&written).map_or(Outcome::Open, Outcome::Written),
            Ok(Err(error)) if error.is_conflict() || error.is_already_exists() => Outcome::Refused,
            _ => Outcome::Open,
        };
        self.tally.record(number, started, Kind::Write { value, expected: state.version, outcome });
        match outcome {
            Outcome::Written(_) => self.tally.acknowledge(),
            Outcome::Refused => {}
            Outcome::Open => return false,
        }
        true
    }
}

/// What is left of the registers is part of the history: the last write must be there as well.
fn read_registers(listed: &[ConfigMap], started: u64, tally: &Tally) {
    for number in 0..REGISTERS {
        let found = listed.iter().find(|map| map.metadata.name == Some(register(number)));
        match found.map_or(Some(State::default()), state_of) {
            Some(state) => tally.record(number, started, Kind::Read(state)),
            None => tally.problem(format!("{} is not as anybody wrote it: {found:?}", register(number))),
        }
    }
}

/// Whether what was acknowledged is at every server, and in the cache that has followed all the time, and what was deleted is
/// at none.
async fn verify(clients: &[Client], informer: &Informer<ConfigMap>, tally: &Tally) {
    let (standing, deleted) = (tally.standing.lock().clone(), tally.deleted.lock().clone());
    let wrong = |found: &BTreeSet<String>| -> Option<String> {
        let missing: Vec<_> = standing.difference(found).collect();
        let back: Vec<_> = deleted.intersection(found).collect();
        let (lost, risen) = (missing.len(), back.len());
        (lost + risen > 0).then(|| format!("{lost} lost ({:?}), {risen} back ({:?})", missing.first(), back.first()))
    };
    for client in clients {
        let deadline = Instant::now() + END_TIMEOUT;
        let wrong = loop {
            let maps = client.namespaced::<ConfigMap>("default");
            let started = tally.tick();
            let failure = match tokio::time::timeout(REQUEST_TIMEOUT, maps.list(&ListParams::default())).await {
                Ok(Ok(listed)) => {
                    read_registers(&listed.items, started, tally);
                    break wrong(&listed.items.into_iter().filter_map(|map| map.metadata.name).collect());
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() >= deadline {
                break Some(format!("cannot be listed: {failure}"));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        if let Some(wrong) = wrong {
            tally.problem(format!("{:?}: {wrong}", client.server()));
        }
    }
    let deadline = Instant::now() + END_TIMEOUT;
    while let Some(wrong) = wrong(&informer.list().iter().filter_map(|map| map.metadata.name.clone()).collect()) {
        if Instant::now() >= deadline {
            return tally.problem(format!("a watch shows: {wrong}"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_whose_last_write_is_lost_is_found_in_the_end() {
        let tally = Tally::default();
        let started = tally.tick();
        let outcome = Outcome::Written(7);
        tally.record(0, started, Kind::Write { value: 5, expected: 0, outcome });
        let found = |version: &str| config_map(&register(0), 5, Some(version.to_owned()));
        read_registers(&[found("7")], tally.tick(), &tally);
        assert!(history::violations(&tally.history.lock()).is_empty());
        read_registers(&[], tally.tick(), &tally);
        assert_eq!(history::violations(&tally.history.lock()).len(), 1);
        assert!(tally.problems.lock().is_empty());
        read_registers(&[found("x")], tally.tick(), &tally);
        assert_eq!(tally.problems.lock().len(), 1);
    }

    #[test]
    fn every_machine_has_every_trouble() {
        let all: BTreeSet<(&str, usize)> = (0..18).map(plan).map(|(fault, machine)| (fault.name(), machine)).collect();
        assert_eq!(all.len(), Fault::ALL.len() * COUNT);
    }
}
