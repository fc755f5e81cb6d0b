//! `cox up`: starts the process that runs the cluster, shows its progress, and returns while it runs on.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args as _, FromArgMatches as _};
use futures_util::future::BoxFuture;

use crate::background::{DETACHED, Ground};
use crate::cluster_file::{ClusterFile, from_anywhere};
#[cfg(test)]
use crate::component_configs::ComponentConfigs;
use crate::flag_paths::with_whole_dirs;
use crate::join::Membership;
use crate::lock::Lock;
use crate::options::Options;
use crate::pki::private_dir;
use crate::shape::Flags;
use crate::{background, kubeconfig, nodes, preflight, progress, server};

/// Start a cluster on this machine, or resume the existing one
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// A file with these settings and the configuration of components (apiVersion: cox.dev/v1, kind: Cluster); flags take precedence
    #[arg(short, long)]
    file: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    ground: Ground,
    /// Do not change the user's kubeconfig
    #[arg(long)]
    no_kubeconfig: bool,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args))
}

impl Args {
    /// With what the file says, if there is one, and the words that say all of it to another process.
    fn with_file(self, words: Vec<OsString>) -> Result<(Args, Vec<OsString>)> {
        let Some(path) = &self.file else { return Ok((self, words)) };
        let file = ClusterFile::read(path)?;
        let command = Args::augment_args(clap::Command::new("cox").bin_name("cox up"));
        let given: Vec<OsString> = words.iter().skip(1).cloned().collect();
        let mut args = Args::from_arg_matches(&file.merge(&command, &given)?)?;
        args.take_components(&file);
        Ok((args, from_anywhere(words, path)?))
    }

    pub(crate) fn take_components(&mut self, file: &ClusterFile) {
        self.flags.components = Some(file.components.clone());
    }

    #[cfg(test)]
    pub(crate) fn components(&self) -> Option<&ComponentConfigs> {
        self.flags.components.as_ref()
    }

    #[cfg(test)]
    pub(crate) fn without_components(&self) -> Args {
        Args { flags: Flags { components: None, ..self.flags.clone() }, ..self.clone() }
    }
}

async fn run_main(args: Args) -> Result<()> {
    preflight::require()?;
    let (args, words) = args.with_file(std::env::args_os().skip(1).collect())?;
    if let Some(member) = Membership::load(&args.options)? {
        bail!("this machine is a node of {}: 'cox join' resumes it, 'cox delete' makes room", member.server);
    }
    args.flags.refuse_unreadable()?;
    if args.ground.stays()? {
        return server::run(args.options, args.flags).await;
    }
    private_dir(&args.options.data_dir)?;
    match Lock::holder(&args.options.lock_file())? {
        Some(holder) => {
            println!("cluster {:?} runs already (process {})", args.options.name, holder.pid);
            if wants_restart(args.flags.clone(), Flags::remembered(&args.options)?)? {
                progress::note(
                    "it goes on with the flags of its start: 'cox down' and this command again apply others",
                );
            }
            nodes::grow(&args.options, args.flags.nodes.unwrap_or(1)).await?;
        }
        None => {
            // Refused here rather than in a log.
            args.flags.clone().over(Flags::remembered(&args.options)?)?.settled()?;
            let words = with_whole_dirs(&args.options, args.flags.clone().with_whole_paths(words)?)?;
            let words: Vec<_> = words.into_iter().chain([DETACHED.into()]).collect();
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
            // First: what is renewed just then would leave it with a certificate that ends.
            kubeconfig::remember_user_file(&args.options, &file)?;
            let access = kubeconfig::Access::admin(&args.options.name, &server, &pki)?.with_servers(servers);
            access.merge_into(&file).with_context(|| {
                let own = args.options.admin_kubeconfig();
                format!("the cluster runs; use --kubeconfig={}, since its context cannot be added", own.display())
            })?;
            println!("\nContext {:?} is now current in {}. Try:\n", args.options.name, file.display());
        }
        None => println!("\nNo home directory: use --kubeconfig={}. Try:\n", args.options.admin_kubeconfig().display()),
    }
    println!("{}", next_steps(std::env::var_os("SUDO_USER").is_some()));
    Ok(())
}

/// Whether flags say something that a cluster that runs does not take up.
fn wants_restart(flags: Flags, remembered: Flags) -> Result<bool> {
    let without_nodes = |flags: Flags| Flags { nodes: None, ..flags };
    let wanted = flags.over(remembered.clone())?.settled()?;
    Ok(without_nodes(wanted) != without_nodes(remembered))
}

/// For who came by way of sudo, the kubeconfig is another user's.
fn next_steps(by_sudo: bool) -> String {
    let sudo = if by_sudo { "sudo " } else { "" };
    format!("  {sudo}cox kubectl get nodes\n  {sudo}cox kubectl run --image=nginx --replicas=3 --port=80 --expose")
}

fn server_url(admin_kubeconfig: &Path) -> Result<String> {
    let text = fs::read_to_string(admin_kubeconfig).with_context(|| admin_kubeconfig.display().to_string())?;
    let config: serde_json::Value = yaml_serde::from_str(&text)?;
    let server = config["clusters"][0]["cluster"]["server"].as_str();
    Ok(server.with_context(|| format!("{} names no server", admin_kubeconfig.display()))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_wait_for_a_restart_are_told_of() {
        let with = |gateway, nodes| Flags { gateway, nodes, ..Flags::default() };
        let remembered = with(Some(false), None).settled().unwrap();
        for (flags, expected) in [
            (with(None, None), false),
            (with(None, Some(3)), false),
            (with(Some(false), None), false),
            (with(Some(true), None), true),
        ] {
            assert_eq!(wants_restart(flags.clone(), remembered.clone()).unwrap(), expected, "{flags:?}");
        }
    }

    #[test]
    fn who_came_by_sudo_goes_on_with_it() {
        assert!(next_steps(false).lines().all(|line| line.starts_with("  cox kubectl ")));
        assert!(next_steps(true).lines().all(|line| line.starts_with("  sudo cox kubectl ")));
    }
}
