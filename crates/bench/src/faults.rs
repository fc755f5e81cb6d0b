//! Three servers over three etcd members, one of which is always in trouble, while somebody writes: what was acknowledged must
//! be there afterwards, and nobody may read something older than what they were told before.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use client::{Client, Informer, ListParams};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Args;
use crate::machines::{self, COUNT, Clock, Disk, OURS, Place, Process};

const WRITERS: usize = 4;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long trouble lasts, and how long nothing happens afterwards.
const TROUBLE: Duration = Duration::from_secs(6);
const REST: Duration = Duration::from_secs(4);
const END_TIMEOUT: Duration = Duration::from_secs(120);

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
    acknowledged: Mutex<Vec<String>>,
    refused: AtomicU64,
    /// Reads that showed less than what had been acknowledged to the reader.
    stale: AtomicU64,
    /// When something was acknowledged last, and the longest time without since it was last asked for.
    silence: Mutex<Option<(Instant, Duration)>>,
    stop: AtomicBool,
}

impl Tally {
    fn acknowledge(&self, name: Option<String>) {
        self.acknowledged.lock().extend(name);
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
    let mut tasks = JoinSet::new();
    let watched = informer.clone();
    let watch_stop = stop.clone();
    tasks.spawn(async move {
        watched.run(watch_stop).await;
        Ok(())
    });
    for writer in 0..WRITERS {
        tasks.spawn(write(writer, clients.clone(), tally.clone()));
    }
    let minutes = if args.quick { 1 } else { args.minutes };
    let deadline = Instant::now() + Duration::from_secs(60 * minutes);
    let mut stalls = [(Duration::ZERO, 0u32); Fault::ALL.len()];
    let mut round = 0;
    while Instant::now() < deadline {
        let (fault, number) = plan(round);
        if fault == Fault::ClockJump && !has_clocks {
            round += 1;
            continue;
        }
        tally.take_silence();
        make_trouble(fault, place, number, &mut all[number]).await?;
        let stall = &mut stalls[round % Fault::ALL.len()];
        *stall = (stall.0.max(tally.take_silence()), stall.1 + 1);
        look_after(&mut all)?;
        tokio::time::sleep(REST).await;
        round += 1;
    }
    tally.stop.store(true, Ordering::Relaxed);
    for client in &clients {
        machines::until_served(client, || look_after(&mut all)).await?;
    }
    let lost = verify(&clients, &informer, &tally).await?;
    stop.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let (count, refused) = (tally.acknowledged.lock().len(), tally.refused.load(Ordering::Relaxed));
    let stale = tally.stale.load(Ordering::Relaxed);
    println!(
        "faults minutes={minutes} rounds={round} acknowledged={count} retried={refused} lost={lost} stale={stale}"
    );
    for (fault, (stall, times)) in Fault::ALL.iter().zip(stalls) {
        println!("faults {} times={times} longest-stall={:.1}s", fault.name(), stall.as_secs_f64());
    }
    ensure!(lost == 0 && stale == 0, "acknowledged writes were lost, or older states were read");
    Ok(())
}

/// Starts what has ended by itself.
fn look_after(machines: &mut [Machine]) -> Result<()> {
    machines.iter_mut().try_for_each(|machine| {
        machine.etcd.look_after()?;
        machine.server.look_after()
    })
}

async fn make_trouble(fault: Fault, place: &Place, number: usize, machine: &mut Machine) -> Result<()> {
    match fault {
        Fault::Kill => {
            machine.etcd.kill()?;
            machine.server.kill()?;
            tokio::time::sleep(TROUBLE).await;
        }
        Fault::Pause => {
            machine.etcd.signal(Signal::SIGSTOP)?;
            machine.server.signal(Signal::SIGSTOP)?;
            tokio::time::sleep(TROUBLE).await;
            machine.etcd.signal(Signal::SIGCONT)?;
            machine.server.signal(Signal::SIGCONT)?;
        }
        Fault::Partition => {
            place.set_link(number, false)?;
            tokio::time::sleep(TROUBLE).await;
            place.set_link(number, true)?;
        }
        Fault::FullDisk => {
            let (filled, emptied) = (place.clone(), place.clone());
            tokio::task::spawn_blocking(move || filled.fill_disk(number)).await??;
            tokio::time::sleep(TROUBLE).await;
            emptied.empty_disk(number)?;
        }
        Fault::SlowDisk => {
            let slow = place.clone();
            tokio::task::spawn_blocking(move || slow.slow_disk(number, TROUBLE)).await??;
        }
        Fault::ClockJump => {
            let clock = Clock::of(place, number);
            for minutes in [30, -30, 0] {
                clock.set(minutes)?;
                tokio::time::sleep(TROUBLE / 2).await;
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

/// Creates one object after the other, and counts in one of its own, through whichever server answers.
async fn write(writer: usize, clients: Vec<Client>, tally: Arc<Tally>) -> Result<()> {
    let counter = format!("counter-{writer}");
    let (mut turn, mut number, mut counted) = (writer, 0u64, 0u64);
    while !tally.stop.load(Ordering::Relaxed) {
        let name = format!("mark-{writer}-{number}");
        let maps = clients[turn % clients.len()].namespaced::<ConfigMap>("default");
        let created = tokio::time::timeout(REQUEST_TIMEOUT, maps.create(&config_map(&name, number, None))).await;
        match created {
            Ok(Ok(_)) => {
                tally.acknowledge(Some(name));
                number += 1;
            }
            // By this writer, whose answer was lost.
            Ok(Err(error)) if error.is_already_exists() => {
                tally.acknowledge(Some(name));
                number += 1;
            }
            _ => {
                tally.refused.fetch_add(1, Ordering::Relaxed);
                turn += 1;
                continue;
            }
        }
        let found = match tokio::time::timeout(REQUEST_TIMEOUT, maps.get(&counter)).await {
            Ok(Ok(found)) => Some(found),
            Ok(Err(error)) if error.is_not_found() => None,
            _ => {
                turn += 1;
                continue;
            }
        };
        let value = found.as_ref().and_then(value_of).unwrap_or(0);
        if value < counted {
            eprintln!(
                "{counter} was {counted} and is read as {value} from {:?}",
                clients[turn % clients.len()].server()
            );
            tally.stale.fetch_add(1, Ordering::Relaxed);
        }
        let version = found.and_then(|found| found.metadata.resource_version);
        let is_new = version.is_none();
        let next = config_map(&counter, value + 1, version);
        let written = async {
            match is_new {
                true => maps.create(&next).await,
                false => maps.update(&next).await,
            }
        };
        if let Ok(Ok(_)) = tokio::time::timeout(REQUEST_TIMEOUT, written).await {
            counted = value + 1;
            tally.acknowledge(None);
        }
        turn += 1;
    }
    Ok(())
}

/// How many acknowledged objects are missing at any server, or in the cache that has followed all the time.
async fn verify(clients: &[Client], informer: &Informer<ConfigMap>, tally: &Tally) -> Result<usize> {
    let acknowledged: Vec<String> = tally.acknowledged.lock().clone();
    let missing = |found: &BTreeSet<String>| -> Vec<String> {
        acknowledged.iter().filter(|name| !found.contains(*name)).cloned().collect()
    };
    let mut lost = 0;
    for client in clients {
        let listed = client.namespaced::<ConfigMap>("default").list(&ListParams::default()).await;
        let listed = listed.with_context(|| format!("{:?}", client.server()))?;
        let gone = missing(&listed.items.into_iter().filter_map(|map| map.metadata.name).collect());
        if !gone.is_empty() {
            eprintln!("{:?} does not have {}", client.server(), gone.join(", "));
            lost += gone.len();
        }
    }
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        let known: BTreeSet<String> = informer.list().iter().filter_map(|map| map.metadata.name.clone()).collect();
        let gone = missing(&known);
        if gone.is_empty() {
            return Ok(lost);
        }
        ensure!(Instant::now() < deadline, "a watch never showed {}", gone.join(", "));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_every_trouble() {
        let all: BTreeSet<(&str, usize)> = (0..18).map(plan).map(|(fault, machine)| (fault.name(), machine)).collect();
        assert_eq!(all.len(), Fault::ALL.len() * COUNT);
    }
}
