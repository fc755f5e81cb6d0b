//! The same command lines with a kubectl nobody here wrote and with ours, against one server: what both print, complain
//! about and end with is compared byte by byte.
//!
//! Flow: `scenarios/*.txt` (command lines, and which differences are known and why) -> `scenario` -> each line once per
//! side in namespaces of its own (`sides`) -> `normal` takes out what cannot be equal (uids, times, addresses) -> compared.
//! Objects and their status come from `objects/`, the files that lines name from `files/`; no controller runs. What has no
//! peer is in `alone`, `lines` and `apply_set`.
//!
//! `KUBECTL_PEER=/path/to/kubectl` compares with another one; `COMPARE_ONLY=get` runs one scenario.

#![allow(clippy::unwrap_used, reason = "tests")]

mod alone;
mod apply_set;
mod lines;
mod normal;
mod peer;
mod proxy;
mod scenario;
mod server;
mod sides;

use futures_util::StreamExt;

use peer::Peer;
use scenario::{Scenario, Step};
use server::Server;
use sides::{Outcome, Side};

/// The minor version of Debian's kubectl, for which the list of differences holds exactly.
const DEBIAN: u32 = 20;

/// How many scenarios run at once: the peer takes most of a core.
const AT_ONCE: usize = 4;

/// Walk 1.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_read_the_same_with_both() {
    let peer = Peer::find();
    let scenarios = scenario::all();
    let lines: usize = scenarios.iter().map(Scenario::lines).sum();
    assert!(lines >= 300, "only {lines} command lines are compared");
    let only = std::env::var("COMPARE_ONLY").ok();
    let chosen: Vec<&Scenario> =
        scenarios.iter().filter(|s| only.as_deref().is_none_or(|only| s.name.starts_with(only))).collect();

    let server = Server::start().await;
    let sides = Side::both(&server, &peer);
    for scenario in &chosen {
        for side in &sides {
            side.prepare(&server, scenario).await;
        }
    }
    let differences: Vec<String> = futures_util::stream::iter(&chosen)
        .map(|scenario| run(scenario, &server, &sides, &peer))
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await
        .concat();
    let ran: usize = chosen.iter().map(|s| s.lines()).sum();
    eprintln!("{ran} command lines compared with {}: {} differ", peer.describe(), differences.len());
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

/// The lines of one scenario in order; returns what differs without being listed, or is listed without differing.
async fn run(scenario: &Scenario, server: &Server, sides: &[Side; 2], peer: &Peer) -> Vec<String> {
    let mut out = Vec::new();
    // Those before the first line are there already.
    for step in scenario.steps.iter().skip_while(|step| matches!(step, Step::Objects(_))) {
        let line = match step {
            Step::Objects(file) => {
                for side in sides {
                    side.load(server, scenario, file).await;
                }
                continue;
            }
            Step::Line(line) => line,
        };
        let (theirs, ours) = tokio::join!(sides[0].run(scenario, line), sides[1].run(scenario, line));
        let known = line.differences.iter().filter(|d| d.applies(peer.minor)).collect::<Vec<_>>();
        for (stream, theirs, ours) in Outcome::pairs(&theirs, &ours) {
            let listed = known.iter().any(|d| d.streams.iter().any(|s| s == stream));
            match (theirs == ours, listed) {
                (true, false) | (false, true) => {}
                // The bounds say when we know of a difference, not when it ended.
                (true, true) if peer.minor > DEBIAN => {}
                (true, true) => out.push(format!(
                    "== {}: kubectl {}\n{stream} is listed as different and is not",
                    scenario.name, line.text
                )),
                (false, false) => out.push(format!(
                    "== {}: kubectl {}\n-- {stream} of {}\n{theirs}\n-- {stream} of ours\n{ours}",
                    scenario.name,
                    line.text,
                    peer.describe()
                )),
            }
        }
    }
    out
}
