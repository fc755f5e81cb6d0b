//! `cox systemd-unit`: the unit that starts the cluster with the machine.

use std::path::Path;

use anyhow::{Context, Result};
use futures_util::future::BoxFuture;

/// Print a systemd unit that runs the cluster
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Install it with:\n  cox systemd-unit > /etc/systemd/system/cox.service\n  \
    systemctl daemon-reload\n  systemctl enable --now cox\n\nFlags after -- are those of 'cox up'.")]
pub struct Args {
    /// Flags for `cox up`
    #[arg(last = true)]
    up: Vec<String>,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let program = std::env::current_exe().context("finding this program")?;
        print!("{}", unit(&program, &args.up));
        Ok(())
    })
}

/// Containers must outlive the service: only the main process is killed, and their cgroups are delegated.
fn unit(program: &Path, flags: &[String]) -> String {
    let flags: String = flags.iter().map(|flag| format!(" {}", quoted(flag))).collect();
    format!(
        "[Unit]\n\
         Description=Coxswain: Kubernetes\n\
         Wants=network-online.target\n\
         After=network-online.target\n\
         \n\
         [Service]\n\
         Type=exec\n\
         ExecStart={} up --foreground{flags}\n\
         Restart=always\n\
         RestartSec=1\n\
         KillMode=process\n\
         Delegate=yes\n\
         LimitNOFILE=1048576\n\
         TasksMax=infinity\n\
         OOMScoreAdjust=-999\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        quoted(&program.display().to_string())
    )
}

/// As one word of a command line in a unit.
fn quoted(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    match word.is_empty() || word.contains(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\' | ';')) {
        true => format!("\"{escaped}\""),
        false => escaped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_systemd() {
        for (word, expected) in [
            ("--nodes=3", "--nodes=3"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("100%", "100%%"),
            ("$HOME", "$$HOME"),
            ("say \"x\"", "\"say \\\"x\\\"\""),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn the_unit_runs_this_program_in_the_foreground() {
        let unit = unit(Path::new("/usr/local/bin/cox"), &["--node-name".into(), "n 1".into()]);
        assert!(unit.contains("\nExecStart=/usr/local/bin/cox up --foreground --node-name \"n 1\"\n"), "{unit}");
        assert!(unit.contains("\nKillMode=process\n"), "containers go on when the service stops: {unit}");
    }
}
