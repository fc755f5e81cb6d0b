//! `cox up`: starts the process that runs the cluster, shows its progress, and returns while it runs on.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use futures_util::future::BoxFuture;

use crate::lock::Lock;
use crate::options::{Options, Shape};
use crate::pki::private_dir;
use crate::{kubeconfig, nodes, preflight, progress, server};

/// Start a cluster on this machine, or resume the one that is here
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    shape: Shape,
    /// Stay in the foreground, as a service manager wants it
    #[arg(long)]
    foreground: bool,
    /// Leave the user's kubeconfig alone
    #[arg(long)]
    no_kubeconfig: bool,
    /// Detach from the terminal that started this process.
    #[arg(long, hide = true)]
    detached: bool,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> Result<()> {
    preflight::require()?;
    if args.foreground {
        if args.detached {
            nix::unistd::setsid().context("leaving the terminal's session")?;
        }
        return server::run(args.options, args.shape).await;
    }
    private_dir(&args.options.data_dir)?;
    match Lock::holder(&args.options.lock_file())? {
        Some(holder) => {
            println!("cluster {:?} runs already (process {})", args.options.name, holder.pid);
            nodes::grow(&args.options, args.shape.nodes).await?;
        }
        None => start(&args.options)?,
    }
    let server = server_url(&args.options.admin_kubeconfig())?;
    if args.no_kubeconfig {
        println!("\nkubeconfig: {}", args.options.admin_kubeconfig().display());
        return Ok(());
    }
    match kubeconfig::user_file() {
        Some(file) => {
            let pki = crate::pki::Pki::open(&args.options.pki_dir());
            kubeconfig::Access::admin(&args.options.name, &server, &pki)?.merge_into(&file)?;
            println!("\nContext {:?} is now current in {}. Try:\n", args.options.name, file.display());
        }
        None => println!("\nNo home directory: use --kubeconfig={}. Try:\n", args.options.admin_kubeconfig().display()),
    }
    println!("  cox kubectl get nodes\n  cox kubectl run --image=nginx --replicas=3 --port=80 --expose");
    Ok(())
}

/// Runs this same command line in the foreground of a process of its own and passes its progress on.
fn start(options: &Options) -> Result<()> {
    let log = options.log_file();
    private_dir(log.parent().unwrap_or(Path::new("/")))?;
    let log_file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log)
        .with_context(|| format!("opening {}", log.display()))?;
    let mut child = Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .args(["--foreground", "--detached"])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()
        .context("starting the cluster's process")?;
    let output = child.stdout.take().context("the cluster's process has no output")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line == progress::READY {
            return Ok(());
        }
        println!("{line}");
    }
    let status = child.wait()?;
    bail!("the cluster did not start ({status}); the end of {}:\n{}", log.display(), tail(&log, 12));
}

fn server_url(admin_kubeconfig: &Path) -> Result<String> {
    let text = fs::read_to_string(admin_kubeconfig).with_context(|| admin_kubeconfig.display().to_string())?;
    let config: serde_json::Value = yaml_serde::from_str(&text)?;
    let server = config["clusters"][0]["cluster"]["server"].as_str();
    Ok(server.with_context(|| format!("{} names no server", admin_kubeconfig.display()))?.to_owned())
}

fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
