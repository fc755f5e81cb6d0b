//! Pod lifecycle events: notices when containers start, end or vanish, and wakes their pods.
//!
//! The runtime's event stream tells at once; a slow relist catches what it missed. A runtime without
//! the stream is relisted every second, as upstream's generic PLEG does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use api::sort::CompactSort as _;
use client::Clock;
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::objects::Wake;
use crate::runtime::Runtime;
use crate::state::label;

const RELIST_INTERVAL: Duration = Duration::from_secs(1);
/// Only a safety net while the stream is up.
const RELIST_INTERVAL_WITH_EVENTS: Duration = Duration::from_secs(60);

/// Sandboxes and containers by id: the pod they belong to and their state.
type Seen = HashMap<String, (String, i32)>;

pub(crate) async fn run(runtime: Runtime, clock: Clock, wake: Wake, stop: CancellationToken) {
    let mut seen = Seen::new();
    while !stop.is_cancelled() {
        let stream = tokio::select! {
            stream = runtime.events() => stream,
            () = stop.cancelled() => return,
        };
        let mut stream = match stream {
            Ok(Some(stream)) => stream,
            Ok(None) => return relist_forever(&runtime, &clock, &wake, &mut seen, &stop).await,
            Err(error) => {
                tracing::warn!(%error, "no runtime events, will retry");
                pause(&stop).await;
                continue;
            }
        };
        let mut relist = tokio::time::interval(RELIST_INTERVAL_WITH_EVENTS);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = relist.tick() => compare(&runtime, &clock, &wake, &mut seen).await,
                event = stream.next() => match event {
                    Some(Ok(event)) => {
                        let status = event.pod_sandbox_status.and_then(|status| status.metadata).map(|metadata| metadata.uid);
                        let labelled = event.containers_statuses.iter().find_map(|status| status.labels.get(label::POD_UID).cloned());
                        match status.or(labelled).filter(|uid| !uid.is_empty()) {
                            Some(uid) => wake(&uid),
                            // A removed sandbox has no status to name its pod.
                            None => compare(&runtime, &clock, &wake, &mut seen).await,
                        }
                    }
                    Some(Err(_)) | None => {
                        tracing::info!("runtime events ended, reconnecting");
                        pause(&stop).await;
                        break;
                    }
                },
            }
        }
    }
}

async fn relist_forever(runtime: &Runtime, clock: &Clock, wake: &Wake, seen: &mut Seen, stop: &CancellationToken) {
    let mut ticks = tokio::time::interval(RELIST_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => compare(runtime, clock, wake, seen).await,
        }
    }
}

async fn pause(stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = tokio::time::sleep(RELIST_INTERVAL) => {}
    }
}

/// Wakes the pods of everything that changed since the last look.
async fn compare(runtime: &Runtime, clock: &Clock, wake: &Wake, seen: &mut Seen) {
    let began = Instant::now();
    let looked = look(runtime).await;
    runtime.metrics.relisted(began.elapsed(), clock.now());
    let now = match looked {
        Ok(now) => now,
        Err(error) => {
            tracing::warn!(%error, "runtime not listed");
            return;
        }
    };
    for uid in changed(seen, &now) {
        wake(uid);
    }
    *seen = now;
}

async fn look(runtime: &Runtime) -> crate::runtime::Result<Seen> {
    let (sandboxes, containers) = tokio::try_join!(runtime.sandboxes(None), runtime.containers(None))?;
    let mut seen = Seen::new();
    for sandbox in sandboxes {
        if let Some(metadata) = sandbox.metadata {
            seen.insert(sandbox.id, (metadata.uid, sandbox.state));
        }
    }
    for container in containers {
        if let Some(uid) = container.labels.get(label::POD_UID) {
            seen.insert(container.id, (uid.clone(), container.state));
        }
    }
    Ok(seen)
}

fn changed<'a>(before: &'a Seen, now: &'a Seen) -> Vec<&'a str> {
    let appeared = now.iter().filter(|(id, entry)| before.get(*id) != Some(entry));
    let vanished = before.iter().filter(|(id, _)| !now.contains_key(*id));
    let mut uids: Vec<&str> = appeared.chain(vanished).map(|(_, (uid, _))| uid.as_str()).collect();
    uids.compact_sort();
    uids.dedup();
    uids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_name_their_pods() {
        let seen = |entries: &[(&str, &str, i32)]| -> Seen {
            entries.iter().map(|(id, uid, state)| ((*id).into(), ((*uid).into(), *state))).collect()
        };
        for (before, now, expected) in [
            (seen(&[]), seen(&[("a", "p", 0)]), vec!["p"]),
            (seen(&[("a", "p", 0)]), seen(&[("a", "p", 0)]), vec![]),
            (seen(&[("a", "p", 0), ("b", "q", 1)]), seen(&[("a", "p", 1), ("b", "q", 1)]), vec!["p"]),
            (seen(&[("a", "p", 0), ("b", "p", 0)]), seen(&[]), vec!["p"]),
        ] {
            assert_eq!(changed(&before, &now), expected);
        }
    }
}
