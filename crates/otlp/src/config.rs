//! `TracingConfiguration`, as the API server reads it from a file and the kubelet from its own, checked with upstream's words.

use std::path::Path;

use api::field::FieldErrors;
use serde::{Deserialize, Serialize};

const API_VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];
/// Where a collector listens.
const DEFAULT_ENDPOINT: &str = "localhost:4317";
const MAX_RATE: i32 = 1_000_000;

/// Where traces go, and how many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct TracingConfiguration {
    /// Of the collector; the connection has no TLS.
    pub endpoint: Option<String>,
    /// Of so many traces that begin here, per million. Traces that somebody trusted began go on as they say.
    pub sampling_rate_per_million: Option<i32>,
}

/// The file of the API server.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("tracing-config-file {0} does not exist")]
    Missing(String),
    #[error("failed to read tracing config: unable to read tracing configuration from {path:?}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("failed to read tracing config: unable to decode tracing configuration data: {0}")]
    Decode(String),
    #[error("failed to validate tracing configuration: {0}")]
    Invalid(FieldErrors),
}

impl TracingConfiguration {
    /// Reads `--tracing-config-file`.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let shown = || path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => ConfigError::Missing(shown()),
            _ => ConfigError::Read { path: shown(), source },
        })?;
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let undecoded = |error: &dyn std::fmt::Display| ConfigError::Decode(error.to_string());
        let value = api::codec::from_yaml(bytes).map_err(|error| undecoded(&error))?.value;
        let file: File = serde_json::from_value(value).map_err(|error| undecoded(&error))?;
        if file.kind != "TracingConfiguration" || !API_VERSIONS.contains(&file.api_version.as_str()) {
            let found = format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version);
            return Err(ConfigError::Decode(found));
        }
        let found: Self = serde_json::from_value(file.rest.into()).map_err(|error| undecoded(&error))?;
        let errors = found.validate("");
        if errors.is_empty() { Ok(found) } else { Err(ConfigError::Invalid(errors)) }
    }

    /// What is wrong with it; `path` leads to it, as in `tracing.`.
    pub fn validate(&self, path: &str) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let rate = self.sampling_rate_per_million.unwrap_or_default();
        let field = format!("{path}samplingRatePerMillion");
        if rate < 0 {
            errors.invalid(&field, rate, "sampling rate must be positive");
        }
        if rate > MAX_RATE {
            errors.invalid(&field, rate, "sampling rate per million must be less than or equal to one million");
        }
        if let Some(endpoint) = &self.endpoint {
            let endpoint = match endpoint.contains("//") {
                true => endpoint.clone(),
                false => format!("dns://{endpoint}"),
            };
            let scheme = endpoint.split_once(':').map_or("", |(scheme, _)| scheme);
            if !matches!(scheme, "dns" | "unix" | "unix-abstract") {
                let detail = format!(
                    "unsupported scheme: {scheme}.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md"
                );
                errors.invalid(format!("{path}endpoint"), &endpoint, detail);
            }
        }
        errors
    }

    /// Traces that begin here and are exported, of a million.
    pub fn rate(&self) -> u32 {
        self.sampling_rate_per_million.and_then(|rate| u32::try_from(rate).ok()).unwrap_or_default()
    }

    pub(crate) fn target(&self) -> Target {
        let endpoint = self.endpoint.as_deref().filter(|endpoint| !endpoint.is_empty()).unwrap_or(DEFAULT_ENDPOINT);
        if let Some(name) = endpoint.strip_prefix("unix-abstract:") {
            return Target::Socket(format!("\0{}", name.trim_start_matches("//")));
        }
        if endpoint.starts_with("unix:") {
            return Target::Socket(endpoint.to_owned());
        }
        // `dns://resolver/host`, `dns:///host`, `dns:host`.
        let host = match endpoint.strip_prefix("dns:") {
            Some(rest) => {
                rest.strip_prefix("//").map_or(rest, |rest| rest.split_once('/').map_or(rest, |(_, host)| host))
            }
            None => endpoint,
        };
        Target::Host(host.to_owned())
    }
}

/// Where the collector is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Socket(String),
    Host(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(rest: &str) -> String {
        format!("apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n{rest}")
    }

    #[test]
    fn files_are_read_as_upstream_reads_them() {
        let read =
            TracingConfiguration::parse(file("endpoint: a:4317\nsamplingRatePerMillion: 100").as_bytes()).unwrap();
        assert_eq!((read.endpoint.as_deref(), read.rate()), (Some("a:4317"), 100));
        assert_eq!(TracingConfiguration::parse(file("").as_bytes()).unwrap().rate(), 0);
        for (rest, expected) in [
            ("samplingRatePerMillion: -1", "samplingRatePerMillion: Invalid value: -1: sampling rate must be positive"),
            (
                "samplingRatePerMillion: 1000001",
                "samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal to one million",
            ),
            (
                "endpoint: http://a:4317",
                "endpoint: Invalid value: \"http://a:4317\": unsupported scheme: http.  Options are none, dns, unix, or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md",
            ),
        ] {
            let error = TracingConfiguration::parse(file(rest).as_bytes()).unwrap_err().to_string();
            assert_eq!(error, format!("failed to validate tracing configuration: {expected}"));
        }
        for wrong in ["kind: TracingConfiguration\n", "", "[]", &file("other: 1"), &file("endpoint: [a]")] {
            let error = TracingConfiguration::parse(wrong.as_bytes()).unwrap_err();
            assert!(matches!(error, ConfigError::Decode(_)), "{wrong}: {error}");
        }
        let missing = TracingConfiguration::load(Path::new("/nonexistent/tracing.yaml")).unwrap_err().to_string();
        assert_eq!(missing, "tracing-config-file /nonexistent/tracing.yaml does not exist");
    }

    #[test]
    fn endpoints_are_found_as_grpc_names_them() {
        for (endpoint, expected) in [
            (None, Target::Host("localhost:4317".into())),
            (Some("collector:4317"), Target::Host("collector:4317".into())),
            (Some("dns:///collector:4317"), Target::Host("collector:4317".into())),
            (Some("dns://8.8.8.8/collector:4317"), Target::Host("collector:4317".into())),
            (Some("unix:///run/otel.sock"), Target::Socket("unix:///run/otel.sock".into())),
            (Some("unix-abstract://otel"), Target::Socket("\0otel".into())),
        ] {
            let config = TracingConfiguration { endpoint: endpoint.map(str::to_owned), ..Default::default() };
            assert_eq!(config.target(), expected);
        }
    }
}
