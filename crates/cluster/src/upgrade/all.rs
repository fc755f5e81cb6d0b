//! `cox upgrade --all`: this server, then the other servers, then the nodes; one after the other, until one fails.
//!
//! Each machine does its part and its way back by itself. Killed anywhere, this command leaves at most one machine under way,
//! which comes to its end alone; given again, it goes on with those that do not run the program yet.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::{Client, DeleteParams, Patch};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use serde_json::json;
use tokio::time::Instant;

use super::command::{Args, here, is_unfinished, running, version_of};
use super::order::{FIELD, NAME, NAMESPACE, Order, Outcome, Said};
use super::program::{self, Identity};
use super::{drain, skew, turn};
use crate::components::interrupted;
use crate::connection::connect;
use crate::join::Membership;
use crate::lock::Lock;
use crate::options::Options;
use crate::role::MANAGER;
use crate::shape::Flags;

/// Between raises of the counter in an order, which show machines that somebody waits for its end.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// What a machine may take besides, above all to fetch the program.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(900);

/// Who is upgraded, in this order, after this server.
#[derive(Debug, Default, PartialEq, Eq)]
struct Machines {
    ordered: Vec<String>,
    /// Those that obey no orders: a kubelet of others, a further node beside a server, a version that knows none.
    left: Vec<String>,
}

/// These would be upgraded and cannot be watched over.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not Ready: {}. Mend or delete them, or say --force to leave them as they are", .0.join(", "))]
struct NotReady(Vec<String>);

fn machines(nodes: &[Node], own: &str, force: bool) -> Result<Machines, NotReady> {
    let (mut found, mut away) = (Machines::default(), Vec::new());
    let mut known: Vec<(bool, String, &Node)> = nodes
        .iter()
        .map(|node| (!skew::is_server(node), node.metadata.name().to_owned(), node))
        .filter(|(_, name, _)| name != own)
        .collect();
    known.compact_sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
    for (_, name, node) in known {
        match (Said::by(node), api::node::is_ready(node)) {
            (None, _) => found.left.push(name),
            (Some(_), true) => found.ordered.push(name),
            (Some(_), false) => away.push(name),
        }
    }
    if !away.is_empty() && !force {
        return Err(NotReady(away));
    }
    found.left.extend(away);
    Ok(found)
}

/// Upgrades everything. The caller holds the lock of changes.
pub(super) async fn run(args: &Args) -> Result<()> {
    let options = &args.options;
    let binary = args.binary.as_ref().context("which program? Give the path of the new one")?;
    if Membership::load(options)?.is_some() {
        bail!("this machine is a node: give the command on a server");
    }
    let holder =
        Lock::holder(&options.lock_file())?.context("no server runs here: start it, or give the command on another")?;
    let own = Flags::remembered(options)?.shape()?.node_name;
    let nodes = turn::nodes(&connect(&options.admin_kubeconfig())?).await?;
    let machines = machines(&nodes, &own, args.force)?;
    if !args.force {
        // Each machine looks for itself again; here, before anything is begun.
        skew::check_server(&own, version_of(binary).await?, &nodes)?;
    }
    let laid_out = program::lay_out(options, binary).await?;
    let ended = one_by_one(args, &laid_out, &own, &running(&holder), &machines).await;
    // Both are of no use to anybody now, and of no harm if they stay.
    let withdrawn = withdraw(options).await;
    let cleared = program::clear(options);
    ended.and(withdrawn).and(cleared)
}

async fn one_by_one(args: &Args, new: &Identity, own: &str, running: &str, machines: &Machines) -> Result<()> {
    for name in &machines.left {
        println!(" - {name:<14} is left as it is");
    }
    let (timeout, observe) = (Duration::try_from(args.timeout)?, Duration::try_from(args.observe)?);
    let drain_timeout = args.drain.then_some(timeout);
    // One that was started and not watched over to the end is not done: `here` says what is to be done about it.
    match Identity::of(running.into()).await? == *new && !is_unfinished(&args.options)? {
        true => println!(" ✓ {own:<14} runs it already"),
        false => {
            // What is laid out is what all others get, whatever becomes of the file.
            let binary = args.options.programs_dir().join(&new.digest);
            make_executable(&binary)?;
            let own_part = Args { binary: Some(binary), ..args.clone() };
            let replaced = drain::without_pods(drain_timeout, &args.options, own, here(&own_part)).await;
            replaced.with_context(|| own.to_owned())?;
            println!(" ✓ {own}");
        }
    }
    let mut done = vec![own];
    for name in &machines.ordered {
        let order = Order {
            id: format!("{:016x}", rand::random::<u64>()),
            node: name.clone(),
            program: new.digest.clone(),
            size: new.size,
            timeout_seconds: timeout.as_secs(),
            observe_seconds: observe.as_secs(),
            force: args.force,
            beat: 0,
        };
        let obeyed = async {
            tokio::select! {
                // There, and back if need be.
                ended = until_ended(&args.options, order, MACHINE_TIMEOUT + observe + 2 * timeout) => ended,
                // The order is withdrawn then.
                stopped = interrupted() => {
                    stopped.and(Err(anyhow!("interrupted: if that machine has begun, it comes to its end by itself")))
                }
            }
        };
        if let Err(error) = drain::without_pods(drain_timeout, &args.options, name, obeyed).await {
            println!(" ✗ {name}");
            if error.is::<drain::StillClosed>() {
                return Err(error.context(name.clone()));
            }
            let message =
                format!("{name} was not upgraded; {} run the new program, and the rest is as it was", done.join(", "));
            return Err(error.context(message));
        }
        println!(" ✓ {name}");
        done.push(name);
    }
    Ok(())
}

fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).with_context(|| path.display().to_string())
}

/// Gives an order and waits for its end. A cluster that does not answer for a while is asked again.
async fn until_ended(options: &Options, mut order: Order, longest: Duration) -> Result<()> {
    let deadline = Instant::now() + longest;
    loop {
        let outcome = async {
            let client = connect(&options.admin_kubeconfig())?;
            give(&client, &order).await?;
            let node = client.all::<Node>().get(&order.node).await.context("asking for the node")?;
            anyhow::Ok(ended(Said::by(&node), &order.id))
        };
        let failed = match tokio::time::timeout_at(deadline, outcome).await {
            Ok(Ok(Some(Outcome::Done))) => return Ok(()),
            Ok(Ok(Some(Outcome::Failed(why)))) => return Err(anyhow!(why)),
            Ok(Ok(None)) => {
                anyhow!("it has not ended: logs/upgrade.log there says how far it is, and it goes on by itself")
            }
            Ok(Err(error)) => error,
            Err(_) => anyhow!("the cluster does not answer"),
        };
        if Instant::now() + HEARTBEAT_INTERVAL >= deadline {
            return Err(failed);
        }
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        order.beat += 1;
    }
}

/// How a machine says that this order ended.
fn ended(said: Option<Said>, order: &str) -> Option<Outcome> {
    match said {
        Some(Said::Ended { id, outcome }) if id == order => Some(outcome),
        _ => None,
    }
}

async fn give(client: &Client, order: &Order) -> Result<()> {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {FIELD: serde_json::to_string(order)?},
    });
    let maps = client.namespaced::<ConfigMap>(NAMESPACE);
    maps.patch(NAME, &Patch::apply(MANAGER, map).force()).await.context("giving the order").map(drop)
}

async fn withdraw(options: &Options) -> Result<()> {
    let client = connect(&options.admin_kubeconfig())?;
    match client.namespaced::<ConfigMap>(NAMESPACE).delete(NAME, &DeleteParams::default()).await {
        Err(error) if !error.is_not_found() => Err(error).context("withdrawing the last order"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_roles::CONTROL_PLANE;
    use crate::upgrade::order::SAID;

    fn node(name: &str, is_server: bool, obeys: bool, ready: &str) -> Node {
        let labels = if is_server { json!({CONTROL_PLANE: ""}) } else { json!({}) };
        let annotations = if obeys { json!({SAID: "ready"}) } else { json!({}) };
        let conditions = json!([{"type": "Ready", "status": ready}]);
        let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": conditions}})).unwrap()
    }

    #[test]
    fn servers_come_before_nodes_and_who_is_away_is_told() {
        let nodes = |ready| {
            vec![
                node("a-node", false, true, "True"),
                node("s3", true, true, "True"),
                node("s2", true, true, ready),
                node("s1", true, true, "True"),
                node("theirs", false, false, "True"),
            ]
        };
        let expected = |ordered: &[&str], left: &[&str]| Machines {
            ordered: ordered.iter().map(|name| (*name).to_owned()).collect(),
            left: left.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert_eq!(machines(&nodes("True"), "s1", false), Ok(expected(&["s2", "s3", "a-node"], &["theirs"])));
        let refused = machines(&nodes("Unknown"), "s1", false).unwrap_err();
        assert_eq!(refused, NotReady(vec!["s2".into()]));
        assert_eq!(machines(&nodes("Unknown"), "s1", true), Ok(expected(&["s3", "a-node"], &["theirs", "s2"])));
    }

    #[test]
    fn only_the_order_that_is_waited_for_ends() {
        let said = |id: &str, outcome| Some(Said::Ended { id: id.to_owned(), outcome });
        assert_eq!(ended(said("1", Outcome::Done), "1"), Some(Outcome::Done));
        assert_eq!(ended(said("0", Outcome::Done), "1"), None);
        for other in [None, Some(Said::Ready), Some(Said::UnderWay { id: "1".into() })] {
            assert_eq!(ended(other, "1"), None);
        }
    }
}
