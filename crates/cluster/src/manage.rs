//! `cox down`, `status` and `logs`: the commands for a cluster that is there.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, bail};
use client::Clock;
use futures_util::future::BoxFuture;

use crate::join::Membership;
use crate::lock::Lock;
use crate::options::Options;
use crate::shape::Flags;
use crate::{backups, nodes};

/// Stop the cluster; its data and its containers stay
#[derive(Debug, Clone, clap::Args)]
pub struct DownArgs {
    #[command(flatten)]
    options: Options,
}

pub fn down(args: DownArgs) -> BoxFuture<'static, Result<()>> {
    Box::pin(stop_cluster(args))
}

async fn stop_cluster(args: DownArgs) -> Result<()> {
    match stop(&args.options)? {
        true => println!("stopped; containers run on. 'cox up' resumes, 'cox delete' removes everything"),
        false => println!("cluster {:?} does not run", args.options.name),
    }
    Ok(())
}

/// Ends the cluster's process and waits for its end; false if there is none.
pub(crate) fn stop(options: &Options) -> Result<bool> {
    match Lock::holder(&options.lock_file())? {
        Some(holder) => holder.stop().map(|()| true),
        None => Ok(false),
    }
}

/// Show whether the cluster runs, and where
#[derive(Debug, Clone, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    options: Options,
}

pub fn status(args: StatusArgs) -> BoxFuture<'static, Result<()>> {
    Box::pin(print_status(args))
}

async fn print_status(args: StatusArgs) -> Result<()> {
    let options = &args.options;
    let member = Membership::load(options)?;
    let checked = member.as_ref().map_or(Ok(()), |member| member.check_certificate(options, Clock::default().now()));
    let Some(holder) = Lock::holder(&options.lock_file())? else {
        checked?;
        match member {
            Some(member) => bail!("this node of {} does not run: start it with 'cox join'", member.server),
            None => bail!("cluster {:?} does not run: start it with 'cox up'", options.name),
        }
    };
    match &member {
        Some(member) => {
            println!("node        {} of {} (process {})", member.settings.name, member.server, holder.pid);
            if let Err(ended) = checked {
                println!("            {ended}");
            }
        }
        None => {
            println!("cluster     {} (process {})", options.name, holder.pid);
            println!("kubeconfig  {}", options.admin_kubeconfig().display());
        }
    }
    println!("data        {}", options.data_dir.display());
    println!("log         {}", options.log_file().display());
    println!("runtime     unix://{}", options.cri_socket().display());
    println!("encryption  {}", describe_encryption(options)?);
    let flags = Flags::remembered(options)?;
    if let Some(schedule) = flags.backups.schedule(&flags.etcd)? {
        println!("backups     {}", backups::describe(options, &schedule));
    }
    if options.manifests_dir().is_dir() {
        let mut lines = crate::manifests::Record::load(options)?.lines().into_iter();
        println!("manifests   {} ({})", options.manifests_dir().display(), lines.next().unwrap_or_default());
        lines.for_each(|line| println!("            {line}"));
    }
    for record in nodes::all(options)? {
        let process = match Lock::holder(&record.options(options).lock_file())? {
            Some(holder) => format!("process {}", holder.pid),
            None => "not running".to_owned(),
        };
        println!("node        {} at {} ({process})", record.name, record.address);
    }
    Ok(())
}

/// Of what pods send to pods of other nodes.
fn describe_encryption(options: &Options) -> Result<String> {
    let encryption = match Membership::load(options)? {
        Some(member) => member.settings.cluster.encryption,
        None => Flags::remembered(options)?.encryption()?,
    };
    let Some(encryption) = encryption else { return Ok("none between nodes ('cox up --encrypt')".to_owned()) };
    let [port, next] = encryption.ports();
    let who = match wireguard::present()? {
        Some(wireguard::Kind::Kernel) => "in the kernel",
        Some(wireguard::Kind::UserSpace) => "in the cluster's process, because this kernel has none",
        None => "not started yet: pods of other nodes are unreachable",
    };
    Ok(format!("WireGuard between nodes, UDP ports {port} and {next} ({who})"))
}

/// Print the cluster's log
#[derive(Debug, Clone, clap::Args)]
pub struct LogsArgs {
    #[command(flatten)]
    options: Options,
    /// Only lines of this component (apiserver, controllers, scheduler, kubelet, runtime, proxy, dns …)
    component: Option<String>,
    /// Print the log of this additional node instead of the cluster's
    #[arg(long)]
    node: Option<String>,
    /// Keep printing new lines
    #[arg(long, short)]
    follow: bool,
    /// Print only this many lines from the end
    #[arg(long)]
    tail: Option<usize>,
}

pub fn logs(args: LogsArgs) -> BoxFuture<'static, Result<()>> {
    Box::pin(print_logs(args))
}

async fn print_logs(args: LogsArgs) -> Result<()> {
    let path = match &args.node {
        Some(node) => nodes::find(&args.options, node)?.options(&args.options).log_file(),
        None => args.options.log_file(),
    };
    let mut reader = BufReader::new(File::open(&path).with_context(|| format!("no log at {}", path.display()))?);
    let wanted = |line: &str| args.component.as_ref().is_none_or(|component| line.contains(&format!(" {component}::")));
    let mut lines = Vec::new();
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        if wanted(&line) {
            lines.push(std::mem::take(&mut line));
        }
        line.clear();
    }
    let skip = args.tail.map_or(0, |tail| lines.len().saturating_sub(tail));
    let mut out = std::io::stdout();
    for line in &lines[skip..] {
        out.write_all(line.as_bytes())?;
    }
    if !args.follow {
        return Ok(());
    }
    let watch = kubelet::FileWatch::new(&path);
    let mut successor = None;
    loop {
        let position = reader.stream_position()?;
        line.clear();
        if reader.read_line(&mut line)? > 0 && line.ends_with('\n') {
            if wanted(&line) {
                out.write_all(line.as_bytes())?;
            }
            continue;
        }
        // The end, or half a line. What came before the log was put aside is read before its successor is.
        if let Some(next) = successor.take() {
            reader = BufReader::new(next);
            watch.add_file(&path);
            continue;
        }
        reader.seek(SeekFrom::Start(if reader.get_ref().metadata()?.len() < position { 0 } else { position }))?;
        successor = File::open(&path).ok().filter(|found| !is_same(found, reader.get_ref()));
        if successor.is_none() {
            watch.changed().await;
        }
    }
}

fn is_same(one: &File, other: &File) -> bool {
    let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
    identity(one) == identity(other)
}
