//! A machine's part in `cox upgrade --all`: it waits for an order, fetches the program, has a process of its own replace the one
//! that runs here, and says how that ended.
//!
//! The process outlives this one, which it stops; what it came to is in a file, which whoever runs here next reads. It does what
//! `cox upgrade` does when it is typed on this machine, the way back included.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Client, Informer, ListParams, Patch};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::command;
use super::order::{self, Order, Outcome, Said, Seen};
use super::program::{self, Identity};
use crate::join::{self, Membership};
use crate::kubeconfig;
use crate::lock::Lock;
use crate::options::Options;
use crate::pki::{private_dir, write_private};
use crate::role::{self, GROUP, Role};
use crate::turns::Turns;

/// Between looks at an attempt that is under way.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// No order asks for more patience.
const MAX_SECONDS: u64 = 3600;
const PROGRAM: &str = "/proc/self/exe";

/// A machine of the cluster while it runs.
#[derive(Clone)]
pub(crate) struct Machine {
    options: Options,
    node: String,
    client: Client,
    /// On one that has joined as a node.
    member: Option<Membership>,
}

/// What a machine made of an order.
#[derive(Debug, Serialize, Deserialize)]
struct Attempt {
    id: String,
    /// None until it has ended.
    outcome: Option<Outcome>,
}

impl Attempt {
    fn file(options: &Options) -> PathBuf {
        options.data_dir.join("upgrade-order.json")
    }

    fn load(options: &Options) -> Result<Option<Attempt>> {
        let path = Attempt::file(options);
        match fs::read(&path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text).with_context(|| path.display().to_string())?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    fn save(&self, options: &Options) -> Result<()> {
        write_private(&Attempt::file(options), &serde_json::to_vec_pretty(self)?)
    }
}

/// Writes down how the process that obeyed an order ended.
pub(super) fn report(options: &Options, id: &str, ended: &Result<()>) -> Result<()> {
    let outcome = match ended {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    };
    Attempt { id: id.to_owned(), outcome: Some(outcome) }.save(options)
}

/// Lets nodes see the order and fetch programs.
pub(crate) async fn ensure_role(admin: &Client) -> Result<()> {
    let nodes = [json!({"apiGroup": GROUP, "kind": "Group", "name": "system:nodes"})];
    let verbs = ["get", "list", "watch"];
    let reading = join::allow_reading(admin, order::NAMESPACE, "cox:upgrade", order::NAME, &verbs, &nodes);
    reading.await.context("letting nodes see orders")?;
    let subjects = json!(nodes);
    let rules = json!([{"nonResourceURLs": ["/cox/program/*"], "verbs": ["get"]}]);
    role::ensure(admin, Role { name: "cox:programs", whose: "nodes that are upgraded", rules, subjects }).await
}

impl Machine {
    pub(crate) fn server(options: &Options, node: &str, admin: &Client) -> Machine {
        Machine { options: options.clone(), node: node.to_owned(), client: admin.clone(), member: None }
    }

    pub(crate) fn node(options: &Options, member: &Membership, client: &Client) -> Machine {
        let node = member.settings.name.clone();
        Machine { options: options.clone(), node, client: client.clone(), member: Some(member.clone()) }
    }

    /// Obeys orders until `stop`.
    pub(crate) async fn follow(self, stop: CancellationToken) -> Result<()> {
        let named = ListParams::fields(format!("metadata.name={}", order::NAME));
        let orders: Informer<ConfigMap> = Informer::new(self.client.namespaced(order::NAMESPACE), named);
        let (changed, changes) = watch::channel(());
        orders.subscribe(move |_| changed.send_replace(()));
        let mut turns = Turns::new(changes, stop.child_token());
        let turning = async {
            orders.synced().await;
            let mut following = Following::default();
            loop {
                turns.begin();
                let order = orders.list().into_iter().next().and_then(|map| Order::read(&map));
                let turn = self.turn(order.as_ref(), &mut following).await;
                if let Err(error) = &turn {
                    tracing::warn!("upgrades of this machine: {error:#}");
                }
                let next = turns.next(turn.is_err());
                let next = match turn {
                    Ok(Said::UnderWay { .. }) => tokio::time::timeout(LOOK_INTERVAL, next).await.unwrap_or(Ok(true)),
                    _ => next.await,
                };
                if !next? {
                    return anyhow::Ok(());
                }
            }
        };
        tokio::select! {
            () = orders.run(stop.clone()) => Ok(()),
            ended = turning => ended,
        }
    }

    /// One look at the order that there is; what this machine says then.
    async fn turn(&self, order: Option<&Order>, following: &mut Following) -> Result<Said> {
        let mut attempt = self.attempt(following)?;
        let is_under_way = attempt.as_ref().is_some_and(|attempt| attempt.outcome.is_none());
        let last = attempt.as_ref().map(|attempt| attempt.id.as_str());
        let is_due = following.seen.is_due(order, &self.node, last, Instant::now()) && !is_under_way;
        if let Some(order) = order.filter(|_| is_due) {
            tracing::info!(program = order.program, "this machine is told to run another program");
            attempt = Some(self.obey(order, following).await?);
            // A node that was made anew says nothing.
            following.said = None;
        }
        let said = match attempt {
            None => Said::Ready,
            Some(Attempt { id, outcome: None }) => Said::UnderWay { id },
            Some(Attempt { id, outcome: Some(outcome) }) => Said::Ended { id, outcome },
        };
        if following.said.as_ref() != Some(&said) {
            let annotations = json!({order::SAID: said.text()});
            let patch = Patch::merge(json!({"metadata": {"annotations": annotations}}));
            let written = self.client.all::<Node>().patch(&self.node, &patch).await;
            written.with_context(|| format!("saying how far {} is", self.node))?;
            following.said = Some(said.clone());
        }
        Ok(said)
    }

    /// The last attempt of this machine. One whose process is gone without a word has failed.
    fn attempt(&self, following: &mut Following) -> Result<Option<Attempt>> {
        if let Some(child) = &mut following.child
            && child.try_wait()?.is_some()
        {
            following.child = None;
        }
        let is_gone = following.child.is_none() && Lock::holder(&self.options.change_lock_file())?.is_none();
        // Read after the look at its process, which writes before it ends.
        let Some(mut attempt) = Attempt::load(&self.options)? else { return Ok(None) };
        if attempt.outcome.is_none() && is_gone {
            let why = "its upgrade was broken off: 'cox upgrade' on that machine returns from it".to_owned();
            attempt.outcome = Some(Outcome::Failed(why));
            attempt.save(&self.options)?;
        }
        if attempt.outcome.is_some() {
            remove(&program::fetched(&self.options))?;
        }
        Ok(Some(attempt))
    }

    /// Does what an order says, as far as it is done here.
    async fn obey(&self, order: &Order, following: &mut Following) -> Result<Attempt> {
        let wanted = Identity { digest: order.program.clone(), size: order.size };
        let mut attempt = Attempt { id: order.id.clone(), outcome: None };
        attempt.outcome = match Identity::of(PathBuf::from(PROGRAM)).await {
            // One that was started and not watched over to the end is not done; that process says so, or why nobody knows.
            Ok(own) if own == wanted && !command::is_unfinished(&self.options).unwrap_or(true) => Some(Outcome::Done),
            _ => {
                let file = program::fetched(&self.options);
                let fetched = async { program::fetch(&self.servers()?, &wanted, &file).await };
                fetched.await.err().map(|error| Outcome::Failed(format!("{error:#}")))
            }
        };
        // Before its process is there: killed in between, this machine has not obeyed, and says so.
        attempt.save(&self.options)?;
        if attempt.outcome.is_none() {
            match self.start(order) {
                Ok(child) => following.child = Some(child),
                Err(error) => {
                    attempt.outcome = Some(Outcome::Failed(format!("{error:#}")));
                    attempt.save(&self.options)?;
                }
            }
        }
        Ok(attempt)
    }

    /// Every server that this machine knows of: one of them has the program.
    fn servers(&self) -> Result<Vec<Client>> {
        if let Some(member) = &self.member {
            return join::clients(&self.options, member);
        }
        servers_of(&self.options)
    }

    /// Starts the process that replaces this one.
    fn start(&self, order: &Order) -> Result<Child> {
        let log = self.options.data_dir.join("logs/upgrade.log");
        private_dir(log.parent().unwrap_or(Path::new("/")))?;
        let output = OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
        let output = output.with_context(|| log.display().to_string())?;
        let mut command = Command::new(PROGRAM);
        command.args(arguments(order, &self.options)).current_dir("/");
        // Of a group of its own: what ends this process does not end that one.
        command.process_group(0).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        command.spawn().context("starting 'cox upgrade'")
    }
}

/// Every server that a server knows of, as its administrator.
pub(super) fn servers_of(options: &Options) -> Result<Vec<Client>> {
    let path = options.admin_kubeconfig();
    let config = Kubeconfig::read(&path).with_context(|| path.display().to_string())?;
    let servers = kubeconfig::servers_in(&path, &options.name)?;
    let connect = |server: &String| {
        let context = Some(format!("{}@{server}", options.name));
        Ok(Client::from_kubeconfig(&config, &Overrides { context, ..Overrides::default() })?)
    };
    servers.iter().map(connect).collect()
}

fn arguments(order: &Order, options: &Options) -> Vec<OsString> {
    let seconds = |count: u64| OsString::from(format!("{}s", count.min(MAX_SECONDS)));
    let mut words: Vec<OsString> = vec!["upgrade".into(), program::fetched(options).into_os_string()];
    for (flag, value) in [
        ("--order", OsString::from(&order.id)),
        ("--timeout", seconds(order.timeout_seconds)),
        ("--observe", seconds(order.observe_seconds)),
        ("--name", OsString::from(&options.name)),
        ("--data-dir", options.data_dir.clone().into_os_string()),
        ("--run-dir", options.run_dir.clone().into_os_string()),
    ] {
        words.extend([OsString::from(flag), value]);
    }
    words.extend(order.force.then(|| "--force".into()));
    words
}

/// What this process has seen, said and started.
#[derive(Default)]
struct Following {
    seen: Seen,
    said: Option<Said>,
    child: Option<Child>,
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_whose_process_is_gone_without_a_word_has_failed() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "c".into() };
        let handler: client::Handler = std::sync::Arc::new(|_| Box::pin(std::future::pending()));
        let machine = Machine::server(&options, "n", &Client::in_process(handler, api::UserInfo::default()));
        let mut following = Following::default();
        assert!(machine.attempt(&mut following).unwrap().is_none());
        Attempt { id: "1".into(), outcome: None }.save(&options).unwrap();
        fs::write(program::fetched(&options), "").unwrap();
        // Its process holds the lock.
        let lock = Lock::for_change(&options).unwrap();
        assert_eq!(machine.attempt(&mut following).unwrap().unwrap().outcome, None);
        assert!(program::fetched(&options).exists());
        drop(lock);
        // It has just been started, and has no lock yet.
        following.child = Some(Command::new("sleep").arg("3600").spawn().unwrap());
        assert_eq!(machine.attempt(&mut following).unwrap().unwrap().outcome, None);
        let child = following.child.as_mut().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let Some(Outcome::Failed(why)) = machine.attempt(&mut following).unwrap().unwrap().outcome else { panic!() };
        assert!(why.contains("broken off"), "{why}");
        assert!(!program::fetched(&options).exists());
        report(&options, "2", &Ok(())).unwrap();
        assert_eq!(machine.attempt(&mut following).unwrap().unwrap().outcome, Some(Outcome::Done));
    }

    #[test]
    fn an_order_becomes_the_command_that_could_be_typed() {
        let options = Options { data_dir: "/d".into(), run_dir: "/r".into(), name: "c".into() };
        let order = Order {
            id: "1f".into(),
            node: "n".into(),
            program: String::new(),
            size: 0,
            timeout_seconds: 300,
            observe_seconds: u64::MAX,
            force: true,
            beat: 0,
        };
        let words: Vec<String> =
            arguments(&order, &options).into_iter().map(|word| word.into_string().unwrap()).collect();
        assert_eq!(
            words.join(" "),
            "upgrade /d/upgrade.program --order 1f --timeout 300s --observe 3600s --name c --data-dir /d --run-dir /r --force"
        );
    }
}
