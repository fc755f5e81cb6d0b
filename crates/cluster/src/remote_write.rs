//! Where the history of metrics goes besides the server's own file.

use std::path::PathBuf;

use apiserver::RemoteWrite;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct RemoteWriteFlags {
    /// Prometheus remote-write endpoint for the history of metrics, such as http://prometheus:9090/api/v1/write
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) history_remote_write_url: Option<String>,
    /// Kubeconfig file with the place of that endpoint, the authorities that vouch for it, and credentials
    #[arg(long, value_name = "FILE", conflicts_with = "history_remote_write_url")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) history_remote_write_config_file: Option<PathBuf>,
}

impl RemoteWriteFlags {
    /// Either of them takes the place of both.
    pub(crate) fn over(self, remembered: Self) -> Self {
        if self == Self::default() { remembered } else { self }
    }

    pub(crate) fn target(&self) -> Option<RemoteWrite> {
        let file = self.history_remote_write_config_file.clone().map(RemoteWrite::File);
        file.or_else(|| self.history_remote_write_url.clone().map(RemoteWrite::Url))
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
    }
}
