//! `cox up`: starts the process that runs the cluster, shows its progress, and returns while it runs on.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use futures_util::future::BoxFuture;

use crate::background::{DETACHED, Ground};
use crate::join::Membership;
use crate::lock::Lock;
use crate::options::Options;
use crate::pki::private_dir;
use crate::shape::Flags;
use crate::{background, kubeconfig, nodes, preflight, server};

/// Start a cluster on this machine, or resume the one that is here
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    ground: Ground,
    /// Leave the user's kubeconfig alone
    #[arg(long)]
    no_kubeconfig: bool,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> Result<()> {
    preflight::require()?;
    if let Some(member) = Membership::load(&args.options)? {
        bail!("this machine is a node of {}: 'cox join' resumes it, 'cox delete' makes room", member.server);
    }
    if args.ground.stays()? {
        return server::run(args.options, args.flags).await;
    }
    private_dir(&args.options.data_dir)?;
    match Lock::holder(&args.options.lock_file())? {
        Some(holder) => {
            println!("cluster {:?} runs already (process {})", args.options.name, holder.pid);
            nodes::grow(&args.options, args.flags.nodes.unwrap_or(1)).await?;
        }
        None => {
            // Refused here rather than in a log.
            args.flags.clone().over(Flags::remembered(&args.options)?)?.shape()?;
            let words: Vec<_> = std::env::args_os().skip(1).chain([DETACHED.into()]).collect();
            background::start(&args.options, &words, &[])?;
        }
    }
    let server = server_url(&args.options.admin_kubeconfig())?;
    if args.no_kubeconfig {
        println!("\nkubeconfig: {}", args.options.admin_kubeconfig().display());
        return Ok(());
    }
    match kubeconfig::user_file() {
        Some(file) => {
            let pki = crate::pki::Pki::open(&args.options.pki_dir());
            let servers = kubeconfig::servers_in(&args.options.admin_kubeconfig(), &args.options.name)?;
            kubeconfig::Access::admin(&args.options.name, &server, &pki)?.with_servers(servers).merge_into(&file)?;
            kubeconfig::remember_user_file(&args.options, &file)?;
            println!("\nContext {:?} is now current in {}. Try:\n", args.options.name, file.display());
        }
        None => println!("\nNo home directory: use --kubeconfig={}. Try:\n", args.options.admin_kubeconfig().display()),
    }
    println!("  cox kubectl get nodes\n  cox kubectl run --image=nginx --replicas=3 --port=80 --expose");
    Ok(())
}

fn server_url(admin_kubeconfig: &Path) -> Result<String> {
    let text = fs::read_to_string(admin_kubeconfig).with_context(|| admin_kubeconfig.display().to_string())?;
    let config: serde_json::Value = yaml_serde::from_str(&text)?;
    let server = config["clusters"][0]["cluster"]["server"].as_str();
    Ok(server.with_context(|| format!("{} names no server", admin_kubeconfig.display()))?.to_owned())
}
