//! The embedded store and a real etcd: durable puts, large ranges, watch fan-out, reopening, memory.

use crate::Args;
use crate::peer::Etcd;
use crate::report::{self, Better, Times, line, line_alone};
use ::store::embedded::Options;
use ::store::{EmbeddedStore, Op, Range, Store, Txn, Watch};
use anyhow::Context;
use bytes::Bytes;
use futures_util::StreamExt;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that our log writes for a put besides its value: the record and the key (`docs/store-format.md`).
const AROUND_VALUE: usize = 30 + "/registry/bench/put/00000000".len();

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    if let Some(dir) = &args.inside {
        return open_inside(dir);
    }
    let dir = tempfile::tempdir_in(&args.dir).with_context(|| format!("{}", args.dir.display()))?;
    if args.wants("put") {
        puts(&args, dir.path()).await?;
    }
    if args.wants("range") {
        ranges(&args, dir.path()).await?;
    }
    if args.wants("watch") {
        watches(&args, dir.path()).await?;
    }
    let sizes: &[u64] = if args.quick { &[10_000] } else { &[100_000, 1_000_000] };
    for keys in sizes {
        if args.wants("reopen") || args.wants("memory") {
            reopening(*keys, dir.path()).await?;
        }
    }
    Ok(())
}

fn open(dir: &Path) -> anyhow::Result<Arc<EmbeddedStore>> {
    Ok(Arc::new(EmbeddedStore::open(dir, Options::default())?))
}

async fn puts(args: &Args, dir: &Path) -> anyhow::Result<()> {
    // Short turns, taken by each in rotation: a disk that is shared is fast in one second and slow in the next.
    let (rounds, turn) = (if args.quick { 1 } else { 5 }, Duration::from_secs(1));
    let etcd = Etcd::start(&dir.join("put-etcd")).await?;
    let embedded = open(&dir.join("put-ours"))?;
    let ours: [Arc<dyn Store>; 1] = [embedded.clone()];
    for value in [1024, 3072] {
        for writers in [1, 64, 256] {
            let parameters = format!("writers={writers} value={value}");
            // etcd gets several connections: one would be the bottleneck, not etcd.
            let mut peers: Vec<Arc<dyn Store>> = Vec::new();
            for _ in 0..writers.min(8) {
                peers.push(Arc::new(etcd.connect().await?));
            }
            let (mut our_times, mut peer_times) = (Times::default(), Times::default());
            let (mut our_rate, mut peer_rate, mut appends, mut alike, mut group) = (0.0, 0.0, 0.0, 0.0, 0.0);
            let (mut puts, mut syncs, mut our_cpu, mut group_cpu) = (0, 0, 0.0, 0.0);
            for _ in 0..rounds {
                peer_rate += put_from(&peers, writers, value, turn, &mut peer_times).await? / f64::from(rounds);
                let (puts_before, syncs_before) = (our_times.count(), embedded.frames_written());
                let cpu_before = report::cpu_seconds()?;
                our_rate += put_from(&ours, writers, value, turn, &mut our_times).await? / f64::from(rounds);
                our_cpu += report::cpu_seconds()? - cpu_before;
                puts += our_times.count() - puts_before;
                syncs += embedded.frames_written() - syncs_before;
                let batch = (puts as f64 / syncs.max(1) as f64).round() as usize;
                let record = value + AROUND_VALUE;
                alike += raw_appends(&dir.join("raw"), batch.max(1), record, turn)? / f64::from(rounds);
                appends += raw_appends(&dir.join("raw"), writers, record, turn)? / f64::from(rounds);
                let cpu_before = report::cpu_seconds()?;
                group += raw_group_commit(&dir.join("raw"), writers, record, turn).await? / f64::from(rounds);
                group_cpu += report::cpu_seconds()? - cpu_before;
            }
            line("put", &parameters, "/s", our_rate, peer_rate, Better::More);
            for percent in [50, 99] {
                let (ours, peer) = (our_times.percentile(percent), peer_times.percentile(percent));
                line(&format!("put-p{percent}"), &parameters, "ms", ours, peer, Better::Less);
            }
            // The ceilings, all with the bytes that our log writes per put. Appending what all writers together can have
            // outstanding per sync, with nobody to answer, is the most that a disk could give them. The second takes
            // as many per sync as we did on average. The third serves as many writers that each wait for theirs.
            line("put-of-raw-append", &parameters, "/s", our_rate, appends, Better::More);
            let batch = puts as f64 / syncs.max(1) as f64;
            let alike_parameters = format!("{parameters} batch={batch:.1}");
            line("put-of-raw-append-like-ours", &alike_parameters, "/s", our_rate, alike, Better::More);
            line("put-of-raw-group-commit", &parameters, "/s", our_rate, group, Better::More);
            // Where the time goes: the whole process's CPU per put, and how long a sync of all writers' records takes.
            let (per_put, group_puts) =
                (our_cpu * 1e6 / puts.max(1) as f64, group * turn.as_secs_f64() * f64::from(rounds));
            line("put-cpu-of-raw-group-commit", &parameters, "us", per_put, group_cpu * 1e6 / group_puts, Better::Less);
            line_alone("raw-append-sync", &parameters, "us", writers as f64 * 1e6 / appends);
        }
    }
    Ok(())
}

/// Writers that each put one key after the other, all over 10,000 keys. Returns puts per second.
async fn put_from(
    stores: &[Arc<dyn Store>],
    writers: usize,
    size: usize,
    time: Duration,
    times: &mut Times,
) -> anyhow::Result<f64> {
    let value = Bytes::from(vec![b'v'; size]);
    let mut tasks = tokio::task::JoinSet::new();
    let started = Instant::now();
    for writer in 0..writers {
        let (store, value) = (stores[writer % stores.len()].clone(), value.clone());
        tasks.spawn(async move {
            let mut times = Times::default();
            let mut n = writer;
            while started.elapsed() < time {
                let key = format!("/registry/bench/put/{:08}", n % 10_000);
                let before = Instant::now();
                store.put(&key, value.clone()).await?;
                times.add(before.elapsed());
                n += writers;
            }
            anyhow::Ok(times)
        });
    }
    let before = times.count();
    while let Some(of_one) = tasks.join_next().await {
        times.join(of_one??);
    }
    Ok((times.count() - before) as f64 / started.elapsed().as_secs_f64())
}

/// What one loop gets from the disk that writes so many records per sync and has nobody to answer: in puts per second.
fn raw_appends(file: &Path, records: usize, size: usize, time: Duration) -> anyhow::Result<f64> {
    let mut out = std::fs::File::create(file)?;
    let batch = vec![b'v'; records * size];
    let started = Instant::now();
    let mut syncs = 0;
    while started.elapsed() < time {
        out.write_all(&batch)?;
        out.sync_data()?;
        syncs += 1;
    }
    let rate = (syncs * records) as f64 / started.elapsed().as_secs_f64();
    std::fs::remove_file(file)?;
    Ok(rate)
}

/// What as many writers get from a thread that appends whatever waits, syncs, and answers: the ceiling of any log that
/// several write to, without index, revisions or checksums. In puts per second.
async fn raw_group_commit(file: &Path, writers: usize, size: usize, time: Duration) -> anyhow::Result<f64> {
    let (queue, waiting) = std::sync::mpsc::channel::<(Bytes, tokio::sync::oneshot::Sender<()>)>();
    let mut out = std::fs::File::create(file)?;
    let appender = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut batch, mut answers) = (Vec::new(), Vec::new());
        while let Ok(first) = waiting.recv() {
            for (bytes, answer) in std::iter::once(first).chain(waiting.try_iter()) {
                batch.extend_from_slice(&bytes);
                answers.push(answer);
            }
            out.write_all(&batch)?;
            out.sync_data()?;
            batch.clear();
            for answer in answers.drain(..) {
                // A writer whose time was up has left.
                let _ = answer.send(());
            }
        }
        Ok(())
    });
    let (record, started) = (Bytes::from(vec![b'v'; size]), Instant::now());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..writers {
        let (queue, record) = (queue.clone(), record.clone());
        tasks.spawn(async move {
            let mut puts = 0_u64;
            while started.elapsed() < time {
                let (answer, answered) = tokio::sync::oneshot::channel();
                queue.send((record.clone(), answer)).context("the appender ended")?;
                answered.await?;
                puts += 1;
            }
            anyhow::Ok(puts)
        });
    }
    drop(queue);
    let mut puts = 0;
    while let Some(of_one) = tasks.join_next().await {
        puts += of_one??;
    }
    let rate = puts as f64 / started.elapsed().as_secs_f64();
    appender.join().map_err(|_| anyhow::anyhow!("the appender panicked"))??;
    std::fs::remove_file(file)?;
    Ok(rate)
}

async fn fill(store: &Arc<dyn Store>, keys: u64, size: usize) -> anyhow::Result<()> {
    const PER_TXN: u64 = 100; // etcd allows 128
    const WRITERS: u64 = 16;
    let value = Bytes::from(vec![b'v'; size]);
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (store, value) = (store.clone(), value.clone());
        tasks.spawn(async move {
            let mut first = writer * PER_TXN;
            while first < keys {
                let ops = (first..keys.min(first + PER_TXN)).map(|n| Op::put(fill_key(n), value.clone()));
                store.txn(Txn { success: ops.collect(), ..Txn::new() }).await?;
                first += WRITERS * PER_TXN;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

fn fill_key(n: u64) -> String {
    format!("/registry/bench/namespace-{:03}/{n:010}", n % 100)
}

async fn ranges(args: &Args, dir: &Path) -> anyhow::Result<()> {
    let rounds = if args.quick { 5 } else { 40 };
    let etcd = Etcd::start(&dir.join("range-etcd")).await?;
    let peer: Arc<dyn Store> = Arc::new(etcd.connect().await?);
    let ours: Arc<dyn Store> = open(&dir.join("range-ours"))?;
    let mut medians = Vec::new();
    for store in [&ours, &peer] {
        fill(store, 10_000, 1024).await?;
        let mut times = Times::default();
        for _ in 0..rounds {
            let before = Instant::now();
            let found = store.range(Range::prefix("/registry/bench/")).await?;
            times.add(before.elapsed());
            anyhow::ensure!(found.kvs.len() == 10_000, "{} keys", found.kvs.len());
        }
        medians.push(times.percentile(50));
    }
    line("range", "keys=10000 value=1024", "ms", medians[0], medians[1], Better::Less);
    Ok(())
}

async fn watches(args: &Args, dir: &Path) -> anyhow::Result<()> {
    let (watchers, events) = if args.quick { (50, 20) } else { (1000, 200) };
    let etcd = Etcd::start(&dir.join("watch-etcd")).await?;
    let peer: Arc<dyn Store> = Arc::new(etcd.connect().await?);
    let ours: Arc<dyn Store> = open(&dir.join("watch-ours"))?;
    let mut rates = Vec::new();
    for store in [&ours, &peer] {
        let mut followers = tokio::task::JoinSet::new();
        for _ in 0..watchers {
            let mut watch = store.watch(Watch::prefix("/registry/bench/")).await?;
            followers.spawn(async move {
                for _ in 0..events {
                    watch.next().await.context("the watch ended")??;
                }
                anyhow::Ok(())
            });
        }
        let started = Instant::now();
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..10 {
            let store = store.clone();
            writers.spawn(async move {
                for n in 0..events / 10 {
                    store.put(&format!("/registry/bench/{writer}-{n}"), vec![b'v'; 1024]).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = writers.join_next().await {
            done??;
        }
        while let Some(done) = followers.join_next().await {
            done??;
        }
        rates.push((watchers * events) as f64 / started.elapsed().as_secs_f64());
    }
    let parameters = format!("watchers={watchers} events={events} value=1024");
    line("watch", parameters, "/s", rates[0], rates[1], Better::More);
    Ok(())
}

async fn reopening(keys: u64, dir: &Path) -> anyhow::Result<()> {
    let parameters = format!("keys={keys} value=1024");
    let (our_dir, peer_dir) = (dir.join(format!("open-ours-{keys}")), dir.join(format!("open-etcd-{keys}")));
    let mut etcd = Etcd::start(&peer_dir).await?;
    let peer: Arc<dyn Store> = Arc::new(etcd.connect().await?);
    fill(&peer, keys, 1024).await?;
    drop(peer);
    let peer_time = etcd.restart().await?;
    let peer: Arc<dyn Store> = Arc::new(etcd.connect().await?);
    // etcd maps its file: its pages count once they are read.
    let mut after = None;
    loop {
        let mut page = Range::prefix("/registry/bench/").limit(10_000);
        page.start_after = after;
        let found = peer.range(page).await?;
        after = found.kvs.last().map(|kv| kv.key.clone());
        if !found.more {
            break;
        }
    }
    let peer_memory = report::resident(etcd.pid())? as f64;
    drop(etcd);

    let ours: Arc<dyn Store> = open(&our_dir)?;
    fill(&ours, keys, 1024).await?;
    drop(ours);
    // In a process of its own: the memory of this one is full of other things.
    let me = std::env::current_exe()?;
    let done = Command::new(me).args(["store", "--inside"]).arg(&our_dir).output()?;
    let text = String::from_utf8_lossy(&done.stdout);
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    let mut number = || numbers.next().context("no figures from the child")?.context("not a figure");
    let (our_time, our_memory, found) = (number()?, number()?, number()?);
    anyhow::ensure!(done.status.success() && found == keys as f64, "{done:?}");

    line("reopen", &parameters, "s", our_time, peer_time.as_secs_f64(), Better::Less);
    let per_key = |memory: f64| memory / keys as f64;
    line("memory-per-key", &parameters, "B", per_key(our_memory), per_key(peer_memory), Better::Less);
    let raw = (fill_key(0).len() + 1024) as f64;
    // The peer of this line is the bytes themselves.
    line("memory-of-raw-bytes", &parameters, "B", per_key(our_memory), raw, Better::Less);
    std::fs::remove_dir_all(our_dir)?;
    std::fs::remove_dir_all(peer_dir)?;
    Ok(())
}

fn open_inside(dir: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    let store = EmbeddedStore::open(dir, Options::default())?;
    let elapsed = started.elapsed().as_secs_f64();
    println!("{elapsed} {} {}", report::resident(std::process::id())?, store.live_keys());
    Ok(())
}
