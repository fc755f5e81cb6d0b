//! What `cox up` can be told about several servers.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::path_value::path_or_empty;

const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(12 * 3600);

#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct Ha {
    /// Keep the objects in etcd, with one member per server; 'cox server add' prints how other servers join
    #[arg(long, conflicts_with = "etcd_servers")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ha: bool,
    /// The etcd program for --ha, version 3.5 or 3.6 (default: the one in $PATH)
    #[arg(long, value_parser = path_or_empty())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_binary: Option<PathBuf>,
    /// How often a server with --ha writes a snapshot of etcd below its data directory; 0 for never (default: 12h)
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_interval: Option<String>,
}

impl Ha {
    /// These flags where they say something, else the remembered ones.
    pub(crate) fn over(self, remembered: Ha) -> Ha {
        Ha {
            ha: self.ha || remembered.ha,
            etcd_binary: self.etcd_binary.or(remembered.etcd_binary),
            etcd_snapshot_interval: self.etcd_snapshot_interval.or(remembered.etcd_snapshot_interval),
        }
    }

    /// What makes no sense is refused before anything is started.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.ha && (self.etcd_binary.is_some() || self.etcd_snapshot_interval.is_some()) {
            bail!("--etcd-binary and --etcd-snapshot-interval are of no use without --ha");
        }
        self.snapshot_interval().map(drop)
    }

    /// None where nobody wants snapshots.
    pub(crate) fn snapshot_interval(&self) -> Result<Option<Duration>> {
        let Some(text) = &self.etcd_snapshot_interval else { return Ok(Some(SNAPSHOT_INTERVAL)) };
        let wrong = |why: String| anyhow!("--etcd-snapshot-interval={text}: {why}");
        if text == "0" {
            return Ok(None);
        }
        let parsed = text.parse::<SignedDuration>().map_err(|error| wrong(error.to_string()))?;
        match Duration::try_from(parsed) {
            Ok(interval) if interval.is_zero() => Ok(None),
            Ok(interval) => Ok(Some(interval)),
            Err(_) => Err(wrong("it must not be negative".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_members_are_checked() {
        let ha = |interval: Option<&str>| Ha {
            ha: true,
            etcd_snapshot_interval: interval.map(str::to_owned),
            ..Ha::default()
        };
        for (interval, expected) in [
            (None, Some(Some(43_200))),
            (Some("0"), Some(None)),
            (Some("90m"), Some(Some(5400))),
            (Some("-1h"), None),
            (Some("often"), None),
        ] {
            let found = ha(interval).snapshot_interval().ok().map(|found| found.map(|interval| interval.as_secs()));
            assert_eq!(found, expected, "{interval:?}");
        }
        let lonely = Ha { etcd_binary: Some("/bin/etcd".into()), ..Ha::default() };
        assert!(lonely.check().unwrap_err().to_string().contains("of no use"));
        ha(None).check().unwrap();
    }
}
