//! This program once more, in the background: its progress is passed on until it is ready, then it runs on alone.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use tokio_util::task::AbortOnDropHandle;

use crate::options::Options;
use crate::path_value::whole;
use crate::pki::private_dir;
use crate::progress;

/// Whether a command that starts a process becomes that process.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Ground {
    /// Stay in the foreground, as a service manager wants it
    #[arg(long)]
    foreground: bool,
    /// Detach from the terminal that started this process.
    #[arg(long, hide = true)]
    detached: bool,
}

impl Ground {
    /// Whether the caller is to go on as the process that stays; it has left its terminal if it was told to.
    pub(crate) fn stays(self) -> Result<bool> {
        if self.detached {
            detach()?;
        }
        Ok(self.foreground || self.detached)
    }
}

/// What makes this program the process in the background.
pub(crate) const DETACHED: &str = "--detached";

/// Starts this program with the given words; returns when it reports that it is ready. `secrets` are variables that it does
/// not inherit.
pub(crate) fn start(options: &Options, words: &[OsString], secrets: &[&str]) -> Result<()> {
    let log = options.log_file();
    private_dir(log.parent().unwrap_or(Path::new("/")))?;
    let log_file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log)
        .with_context(|| format!("opening {}", log.display()))?;
    let mut command = Command::new("/proc/self/exe");
    command.args(words).current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
    for name in secrets {
        command.env_remove(name);
    }
    let mut child = command.spawn().context("starting a process in the background")?;
    let output = child.stdout.take().context("the process in the background has no output")?;
    let _watch = tell_when_interrupted(log.clone());
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line == progress::READY {
            return Ok(());
        }
        println!("{line}");
    }
    let status = child.wait()?;
    bail!("it did not start ({status}); the end of {}:\n{}", log.display(), tail(&log, 12));
}

/// An interrupt ends the command, and not what it has started: says so, as long as the result is held.
fn tell_when_interrupted(log: PathBuf) -> Option<AbortOnDropHandle<()>> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    let watch = async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            eprintln!("\nit goes on in the background: 'cox down' stops it, and its log is {}", log.display());
            std::process::exit(128 + Signal::SIGINT as i32);
        }
    };
    Some(AbortOnDropHandle::new(runtime.spawn(watch)))
}

/// This program again as the process of a cluster that is known, without what this command was told.
pub(crate) fn start_again(options: &Options, command: &str, secrets: &[&str]) -> Result<()> {
    let mut words = vec![command.into(), DETACHED.into(), "--name".into(), options.name.clone().into()];
    for (flag, dir) in [("--data-dir", &options.data_dir), ("--run-dir", &options.run_dir)] {
        words.extend([flag.into(), whole(dir)?.into_os_string()]);
    }
    start(options, &words, secrets)
}

/// Keeps this process out of cores, which would have every Secret in them that it holds.
pub fn leave_no_core() -> Result<()> {
    nix::sys::prctl::set_dumpable(false).context("keeping this process out of cores")
}

/// Leaves the terminal that started this process.
fn detach() -> Result<()> {
    nix::unistd::setsid().map(drop).context("leaving the terminal's session")
}

pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_process_with_secrets_leaves_no_core() {
        leave_no_core().unwrap();
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
    }
}
