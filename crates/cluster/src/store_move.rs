//! `cox store move`: carries the objects of a cluster from the store of its one server into etcd, and back.
//!
//! The server is stopped meanwhile; containers run on. Which store counts is said by the flags that are remembered, and these
//! change last: whatever fails before leaves the cluster as it was. What was left behind is kept beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use store::KeyValue;
use store::etcd::Members;
use store::transfer::Carried;

use crate::background;
use crate::etcd::{self, Etcd, PREFIX, ROOT, SERVERS, TRANSFER};
use crate::ha::Ha;
use crate::join::Membership;
use crate::lock::Lock;
use crate::members::{self, Member};
use crate::node_roles::CONTROL_PLANE;
use crate::nodes::Network;
use crate::options::Options;
use crate::pki::Pki;
use crate::shape::Flags;
use crate::{encryption, manage, server_pki};

/// Nodes, in a store.
const NODES: &str = "/registry/minions/";
/// Part of the name of what was left behind.
const MOVED: &str = "moved";
/// For this server's member of etcd to answer.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(180);
/// Whoever only looks at a lock has it for a moment.
const LOOKS: u32 = 20;
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    etcd: Etcd,
    #[command(flatten)]
    ha: Ha,
    /// Into a store of this server's own
    #[arg(long, conflicts_with_all = ["ha", "etcd_servers"])]
    embedded: bool,
}

/// Where objects are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Embedded,
    /// An etcd that others look after.
    Etcd,
    /// The cluster's own etcd.
    Members,
}

impl Place {
    fn of(flags: &Flags) -> Place {
        match (flags.ha.ha, flags.etcd.is_used()) {
            (true, _) => Place::Members,
            (false, true) => Place::Etcd,
            (false, false) => Place::Embedded,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Place::Embedded => "a store of the server's own",
            Place::Etcd => "an etcd of others",
            Place::Members => "an etcd of the cluster's own",
        }
    }
}

/// The flags of the cluster once it has moved.
fn plan(now: &Flags, etcd: Etcd, ha: Ha, embedded: bool) -> Result<Flags> {
    if now.machine.node_name.is_none() {
        bail!("there is no cluster here");
    }
    let wanted = Flags { etcd, ha, ..now.clone() };
    let (from, to) = (Place::of(now), Place::of(&wanted));
    if to == Place::Embedded && !embedded {
        bail!("where to? Say --ha, --etcd-servers or --embedded");
    }
    match (from, to) {
        (from, to) if from == to => bail!("the objects are in {} already", to.name()),
        (Place::Embedded, _) | (_, Place::Embedded) => {}
        (from, to) => {
            bail!("from {} into {}: move them into a store of the server's own first", from.name(), to.name())
        }
    }
    for flags in [now, &wanted] {
        if let Some(prefix) = flags.etcd.prefix().filter(|prefix| *prefix != PREFIX) {
            bail!("--etcd-prefix={prefix}: only objects below {PREFIX} can be moved");
        }
    }
    wanted.etcd.check()?;
    wanted.ha.check()?;
    // Before anything is stopped. What was named earlier is no matter of this command.
    Flags { etcd: wanted.etcd.clone(), ha: wanted.ha.clone(), ..Flags::default() }.refuse_unreadable()?;
    Ok(wanted)
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let options = &args.options;
    if let Some(member) = Membership::load(options)? {
        bail!("this machine is a node of {}: servers have the store", member.server);
    }
    let _alone = Lock::for_change(options)?;
    let now = Flags::remembered(options)?;
    let wanted = plan(&now, args.etcd, args.ha, args.embedded)?;
    let wanted = members::completed(wanted, options)?.settled()?;
    if let Some(holder) = Lock::holder(&options.lock_file())? {
        holder.refuse_foreground("stop the service, move the objects, and start it again")?;
    }
    let was_running = manage::stop(options)?;
    // Nobody starts the cluster while its objects are on the way.
    let lock = hold(options).await?;
    let carried = carry(options, &now, &wanted).await;
    drop(lock);
    match &carried {
        Ok((carried, left)) => println!(
            "{} objects are in {} now, from revision {} on{}",
            carried.keys,
            Place::of(&wanted).name(),
            carried.revision,
            left.as_ref().map(|left| format!("; what they were in is kept at {}", left.display())).unwrap_or_default()
        ),
        Err(_) => println!("the objects stay in {}", Place::of(&now).name()),
    }
    if was_running {
        background::start_again(options, "up", &[])?;
    }
    carried.map(drop)
}

/// The lock of a cluster that was stopped: nobody starts it as long as this is held.
pub(crate) async fn hold(options: &Options) -> Result<Lock> {
    let mut looks = 0;
    loop {
        match Lock::take(&options.lock_file())? {
            Ok(lock) => return Ok(lock),
            Err(holder) if looks >= LOOKS => bail!("process {} has started this cluster again", holder.pid),
            Err(_) => looks += 1,
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Fills the new store, has it count, and puts the old one aside; returns where that is.
async fn carry(options: &Options, now: &Flags, wanted: &Flags) -> Result<(Carried, Option<PathBuf>)> {
    // Whichever of the two has members needs this server's to run.
    let flags = if now.ha.ha { now } else { wanted };
    let member = match flags.ha.ha {
        true => {
            let shape = flags.shape()?;
            let pki = server_pki::prepare_keys(options, &shape, &Network::load(options)?)?;
            Some(Member::start(options, &shape, &pki).await?)
        }
        false => None,
    };
    let carried = fill(options, now, wanted, member.as_ref()).await;
    if let Some(member) = member {
        member.stop().await?;
    }
    let carried = carried?;
    wanted.remember(options)?;
    // Members have ended; a server that starts does the same.
    if Place::of(wanted) == Place::Etcd
        && let Err(error) = take_over(&wanted.etcd).await
    {
        println!(" ! etcd still says that objects are on their way there, until the cluster starts: {error:#}");
    }
    let left = match Place::of(now) {
        Place::Embedded => Some(put_aside(&options.store_dir(), MOVED)?),
        Place::Members => Some(members::forget(options, |dir| put_aside(dir, MOVED))?),
        Place::Etcd => None,
    };
    Ok((carried, left))
}

async fn fill(options: &Options, now: &Flags, wanted: &Flags, member: Option<&Member>) -> Result<Carried> {
    if let Some(member) = member {
        let ready = tokio::time::timeout(MEMBER_TIMEOUT, member.ready()).await;
        ready.context("the etcd member does not become ready: do the others run?")??;
    }
    match Place::of(wanted) {
        Place::Embedded => out_of_etcd(options, now).await,
        Place::Etcd | Place::Members => into_etcd(options, &wanted.etcd).await,
    }
}

async fn into_etcd(options: &Options, etcd: &Etcd) -> Result<Carried> {
    let from = encryption::open(&options.store_dir()).await?;
    let to = etcd.connect().await?;
    let authority = fs::read_to_string(Pki::open(&options.pki_dir()).certificate("ca"))?;
    etcd::refuse_others(&*to, &authority).await?;
    let carried = TRANSFER.into_store(&*from, &*to).await.context("carrying objects into etcd")?;
    etcd::claim(&*to, &authority).await?;
    Ok(carried)
}

async fn take_over(etcd: &Etcd) -> Result<()> {
    Ok(TRANSFER.taken_over(&*etcd.connect().await?).await?)
}

async fn out_of_etcd(options: &Options, now: &Flags) -> Result<Carried> {
    let from = now.etcd.connect().await?;
    if now.ha.ha {
        let members = Members::new(&now.etcd.options())?.list().await?;
        if members.len() > 1 {
            bail!("the cluster has {} servers: take the others out first ('cox delete' there)", members.len());
        }
    }
    let own = now.shape()?.node_ip()?.to_string();
    let servers = from.range(store::Range::prefix(SERVERS).keys_only()).await?.kvs;
    if let Some(other) = servers.iter().find_map(|kv| kv.key.strip_prefix(SERVERS).filter(|name| *name != own)) {
        bail!("the server at {other} runs, or did some seconds ago: take all others out first ('cox delete' there)");
    }
    if !now.ha.ha {
        let mut nodes = from.range(store::Range::prefix(NODES)).await?.kvs;
        let file = options.encryption_file();
        let file = file.try_exists()?.then_some(&*file);
        apiserver::open_others(&mut nodes, ROOT, file).await.context("looking for other servers")?;
        if let Some(other) = other_server(&nodes, &now.shape()?.node_name)? {
            bail!(
                "the server {other} would go on with what stays in etcd when it starts again: 'cox delete' there, then 'cox \
                 kubectl delete node {other}' here"
            );
        }
    }
    let dir = options.store_dir();
    // From an attempt that was broken off: nothing has used it.
    if dir.try_exists()? {
        put_aside(&dir, MOVED)?;
    }
    TRANSFER.into_directory(&*from, &dir).await.context("carrying objects out of etcd")
}

/// A server beside `own`, whether it runs or not, by the nodes that are stored.
fn other_server(nodes: &[KeyValue], own: &str) -> Result<Option<String>> {
    for kv in nodes {
        let name = kv.key.strip_prefix(NODES).unwrap_or_default();
        let node: Value = serde_json::from_slice(&kv.value).with_context(|| kv.key.to_string())?;
        if name != own && node["metadata"]["labels"].get(CONTROL_PLANE).is_some() {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

/// Gives a directory another name beside its own, which is free then.
pub(crate) fn put_aside(dir: &Path, why: &str) -> Result<PathBuf> {
    let name = dir.file_name().context("a directory without a name")?.to_string_lossy().into_owned();
    let free = (1u32..).map(|number| dir.with_file_name(format!("{name}.{why}-{number}"))).find(|path| !path.exists());
    let aside = free.ok_or_else(|| anyhow!("no name is free beside {}", dir.display()))?;
    fs::rename(dir, &aside).with_context(|| dir.display().to_string())?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use store::{EmbeddedStore, Store};

    use super::*;
    use crate::shape::Machine;

    #[test]
    fn stores_move_one_step_at_a_time() {
        let machine = Machine { node_name: Some("n".into()), ..Machine::default() };
        let embedded = Flags { machine, ..Flags::default() };
        let servers = |prefix: Option<&str>| Etcd {
            etcd_servers: vec!["http://192.0.2.1:2379".into()],
            etcd_prefix: prefix.map(str::to_owned),
            ..Etcd::default()
        };
        let own = || Ha { ha: true, ..Ha::default() };
        let in_etcd = Flags { etcd: servers(Some("/registry")), ..embedded.clone() };
        let in_members = Flags { ha: own(), etcd: servers(None), ..embedded.clone() };
        let refused = |now: &Flags, etcd, ha, embedded| plan(now, etcd, ha, embedded).unwrap_err().to_string();

        assert_eq!(Place::of(&plan(&embedded, Etcd::default(), own(), false).unwrap()), Place::Members);
        assert_eq!(Place::of(&plan(&embedded, servers(None), Ha::default(), false).unwrap()), Place::Etcd);
        for now in [&in_etcd, &in_members] {
            let moved = plan(now, Etcd::default(), Ha::default(), true).unwrap();
            assert_eq!((Place::of(&moved), &moved.machine), (Place::Embedded, &now.machine));
        }
        assert!(refused(&embedded, Etcd::default(), Ha::default(), false).contains("where to?"));
        assert!(refused(&embedded, Etcd::default(), Ha::default(), true).contains("already"));
        assert!(refused(&in_members, Etcd::default(), own(), false).contains("already"));
        assert!(refused(&in_etcd, Etcd::default(), own(), false).contains("of the server's own first"));
        assert!(refused(&embedded, servers(Some("/two")), Ha::default(), false).contains("only objects below"));
        assert!(refused(&Flags::default(), Etcd::default(), own(), false).contains("no cluster"));
        let unreadable = Etcd { etcd_cafile: Some("/nonexistent/ca.crt".into()), ..servers(None) };
        assert!(refused(&embedded, unreadable, Ha::default(), false).contains("--etcd-cafile=/nonexistent/ca.crt"));
        let unreadable = Ha { etcd_binary: Some("/nonexistent/etcd".into()), ..own() };
        assert!(refused(&embedded, Etcd::default(), unreadable, false).contains("--etcd-binary=/nonexistent/etcd"));
        let mut elsewhere = in_etcd;
        elsewhere.etcd.etcd_prefix = Some("/two".into());
        assert!(refused(&elsewhere, Etcd::default(), Ha::default(), true).contains("only objects below"));
    }

    #[tokio::test]
    async fn a_server_that_is_stopped_is_another_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(dir.path(), Default::default()).unwrap());
        let labelled = format!(r#"{{"metadata":{{"labels":{{"{CONTROL_PLANE}":""}}}}}}"#);
        for (name, node, expected) in [
            ("own", &*labelled, None),
            ("worker", r#"{"metadata":{"labels":{"a":"b"}}}"#, None),
            ("plain", r#"{"metadata":{}}"#, None),
            ("second", &*labelled, Some("second")),
        ] {
            store.put(&format!("{NODES}{name}"), node.to_owned()).await.unwrap();
            let nodes = store.range(store::Range::prefix(NODES)).await.unwrap().kvs;
            assert_eq!(other_server(&nodes, "own").unwrap().as_deref(), expected, "{name}");
        }
        store.put(&format!("{NODES}broken"), "no json").await.unwrap();
        let nodes = store.range(store::Range::prefix(NODES)).await.unwrap().kvs;
        assert!(other_server(&nodes, "own").is_err(), "what cannot be read may be one");
    }

    #[tokio::test]
    async fn nothing_moves_while_another_command_changes_the_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "c".into() };
        let args = Args { options: options.clone(), etcd: Etcd::default(), ha: Ha::default(), embedded: true };
        let held = Lock::for_change(&options).unwrap();
        let refused = run(args.clone()).await.unwrap_err().to_string();
        assert!(refused.contains("another command changes this cluster"), "{refused}");
        drop(held);
        assert!(run(args).await.unwrap_err().to_string().contains("no cluster"));
    }

    #[test]
    fn what_is_left_behind_stays_beside() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        for number in 1..3 {
            fs::create_dir(&store).unwrap();
            assert_eq!(put_aside(&store, MOVED).unwrap(), dir.path().join(format!("store.moved-{number}")));
            assert!(!store.exists());
        }
    }
}
