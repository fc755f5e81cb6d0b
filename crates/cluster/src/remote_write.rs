//! Where the history of metrics goes besides the server's own file.

use std::path::PathBuf;

use apiserver::RemoteWrite;
use serde::{Deserialize, Serialize};

use crate::path_value::{named, path_or_empty};

#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct RemoteWriteFlags {
    /// Prometheus remote-write endpoint for the history of metrics, such as http://prometheus:9090/api/v1/write; an empty one
    /// ends it
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) history_remote_write_url: Option<String>,
    /// Kubeconfig file with the place of that endpoint, the authorities that vouch for it, and credentials
    #[arg(long, value_name = "FILE", conflicts_with = "history_remote_write_url", value_parser = path_or_empty())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) history_remote_write_config_file: Option<PathBuf>,
}

impl RemoteWriteFlags {
    /// Either of them takes the place of both; an empty one leaves none.
    pub(crate) fn over(self, remembered: Self) -> Self {
        match (self == Self::default(), self.target()) {
            (true, _) => remembered,
            (false, None) => Self::default(),
            (false, Some(_)) => self,
        }
    }

    pub(crate) fn target(&self) -> Option<RemoteWrite> {
        let file = named(&self.history_remote_write_config_file).map(|file| RemoteWrite::File(file.to_owned()));
        let url = self.history_remote_write_url.clone().filter(|url| !url.is_empty());
        file.or_else(|| url.map(RemoteWrite::Url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_target_takes_the_place_of_the_other() {
        let url = || RemoteWriteFlags { history_remote_write_url: Some("http://a".to_owned()), ..Default::default() };
        let file = || RemoteWriteFlags { history_remote_write_config_file: Some("/f".into()), ..Default::default() };
        assert_eq!(RemoteWriteFlags::default().over(url()), url());
        assert_eq!(file().over(url()), file());
        assert_eq!(url().over(file()), url());
        assert!(matches!(file().target(), Some(RemoteWrite::File(_))));
        assert!(matches!(url().target(), Some(RemoteWrite::Url(_))));
        assert!(RemoteWriteFlags::default().target().is_none());
        let no_url = || RemoteWriteFlags { history_remote_write_url: Some(String::new()), ..Default::default() };
        let no_file = || RemoteWriteFlags { history_remote_write_config_file: Some("".into()), ..Default::default() };
        for (flags, remembered) in [(no_url(), file()), (no_url(), url()), (no_file(), file()), (no_file(), url())] {
            assert!(flags.target().is_none());
            assert_eq!(flags.over(remembered), RemoteWriteFlags::default());
        }
    }
}
