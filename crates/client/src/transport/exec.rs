//! Credentials from an exec plug-in (`client.authentication.k8s.io`).

use std::io::IsTerminal as _;
use std::process::Stdio;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::Error;
use crate::kubeconfig::ExecConfig;

/// Runs the configured command when a credential is needed and keeps the answer until it expires.
pub(super) struct ExecPlugin {
    config: ExecConfig,
    server: String,
    /// Held while the command runs, so that concurrent requests start it once.
    cached: Mutex<Option<Credential>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Credential {
    pub(super) token: Option<String>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key_data: Option<String>,
    expiration_timestamp: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    status: Option<Credential>,
}

impl ExecPlugin {
    pub(super) fn new(config: ExecConfig, server: &str) -> Self {
        Self { config, server: server.into(), cached: Mutex::new(None) }
    }

    pub(super) async fn credential(&self) -> Result<Credential, Error> {
        let mut cached = self.cached.lock().await;
        if let Some(credential) = &*cached
            && credential.expiration_timestamp.is_none_or(|expiry| Timestamp::now() < expiry)
        {
            return Ok(credential.clone());
        }
        let credential = self.run().await?;
        *cached = Some(credential.clone());
        Ok(credential)
    }

    pub(super) async fn forget(&self) -> bool {
        self.cached.lock().await.take().is_some()
    }

    async fn run(&self) -> Result<Credential, Error> {
        let command = &self.config.command;
        let failed = |what: String| Error::config(format!("getting credentials: exec: executable {command} {what}"));
        let interactive = is_interactive(&self.config, std::io::stdin().is_terminal()).map_err(|why| {
            Error::config(format!("getting credentials: exec plugin cannot support interactive mode: {why}"))
        })?;
        let mut spec = serde_json::json!({ "interactive": interactive });
        if self.config.provide_cluster_info.unwrap_or_default() {
            spec["cluster"] = serde_json::json!({ "server": self.server });
        }
        let info = serde_json::json!({ "kind": "ExecCredential", "apiVersion": self.config.api_version, "spec": spec });
        let output = tokio::process::Command::new(command)
            .args(self.config.args.iter().flatten())
            .envs(self.config.env.iter().flatten().map(|variable| (&variable.name, &variable.value)))
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdin(if interactive { Stdio::inherit() } else { Stdio::null() })
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| match (&self.config.install_hint, error.kind()) {
                (Some(hint), std::io::ErrorKind::NotFound) => failed(format!("not found\n\n{hint}")),
                _ => failed(format!("failed: {error}")),
            })?;
        if !output.status.success() {
            return Err(failed(format!("failed with exit code {}", output.status.code().unwrap_or(-1))));
        }
        let answer: ExecCredential = serde_json::from_slice(&output.stdout).map_err(|error| {
            failed(format!("failed: decoding stdout: couldn't get version/kind; json parse error: {error}"))
        })?;
        if Some(&answer.api_version) != self.config.api_version.as_ref() {
            return Err(failed(format!("is configured for another API version than {}", answer.api_version)));
        }
        let credential = answer.status.ok_or_else(|| failed("returned no status".into()))?;
        if credential.token.is_none() && credential.client_certificate_data.is_none() {
            return Err(failed("returned neither token nor client certificate".into()));
        }
        Ok(credential)
    }
}

/// Why a command that asks for the terminal does not get it.
#[derive(Debug, thiserror::Error)]
enum NoTerminal {
    #[error("standard input is not a terminal")]
    NotTerminal,
    #[error("standard input is unavailable: used by {0}")]
    Used(&'static str),
    #[error("unknown interactiveMode: {0:?}")]
    UnknownMode(String),
}

/// Whether the command gets the terminal.
fn is_interactive(config: &ExecConfig, terminal: bool) -> Result<bool, NoTerminal> {
    match config.interactive_mode.as_deref() {
        Some("Never") => Ok(false),
        None | Some("IfAvailable") => Ok(terminal && config.stdin_used_by.is_none()),
        Some("Always") if !terminal => Err(NoTerminal::NotTerminal),
        Some("Always") => match config.stdin_used_by {
            Some(user) => Err(NoTerminal::Used(user)),
            None => Ok(true),
        },
        Some(other) => Err(NoTerminal::UnknownMode(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_gets_the_terminal_if_it_may_and_nobody_else_reads_it() {
        let reader = Some("stdin resource manifest reader");
        for (mode, terminal, stdin_used_by, expected) in [
            (None, true, None, Ok(true)),
            (Some("IfAvailable"), true, reader, Ok(false)),
            (Some("IfAvailable"), false, None, Ok(false)),
            (Some("Never"), true, None, Ok(false)),
            (Some("Always"), true, None, Ok(true)),
            (Some("Always"), false, None, Err("standard input is not a terminal")),
            (
                Some("Always"),
                true,
                reader,
                Err("standard input is unavailable: used by stdin resource manifest reader"),
            ),
            (Some("Often"), true, None, Err("unknown interactiveMode: \"Often\"")),
        ] {
            let interactive_mode = mode.map(str::to_owned);
            let config = ExecConfig { interactive_mode, stdin_used_by, ..ExecConfig::default() };
            let decided = is_interactive(&config, terminal).map_err(|why| why.to_string());
            assert_eq!(decided, expected.map_err(str::to_owned), "{mode:?} {terminal}");
        }
    }

    fn plugin(script: &str) -> ExecPlugin {
        let config = ExecConfig {
            api_version: Some("client.authentication.k8s.io/v1".into()),
            command: "/bin/sh".into(),
            args: Some(vec!["-c".into(), script.into()]),
            ..ExecConfig::default()
        };
        ExecPlugin::new(config, "https://cluster")
    }

    #[tokio::test]
    async fn a_plugin_answers_with_a_token_once() {
        let plugin = plugin(
            r#"test -n "$KUBERNETES_EXEC_INFO" && echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"'$$'"}}'"#,
        );
        let first = plugin.credential().await.unwrap().token;
        assert_eq!(first, plugin.credential().await.unwrap().token, "kept while it has not expired");
        assert!(plugin.forget().await);
        assert_ne!(first, plugin.credential().await.unwrap().token, "asked again after a refusal");
    }

    #[tokio::test]
    async fn failures_name_the_command() {
        for script in
            ["exit 3", "echo nonsense", r#"echo '{"apiVersion":"client.authentication.k8s.io/v1","status":{}}'"#]
        {
            let error = plugin(script).credential().await.unwrap_err().to_string();
            assert!(error.contains("executable /bin/sh"), "{error}");
        }
    }
}
