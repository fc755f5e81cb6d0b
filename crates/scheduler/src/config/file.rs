//! The configuration file, `kubescheduler.config.k8s.io/v1`, with upstream's defaults and checks.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use api::flags::{Row, only, same};
use api::pod::resources::is_extended;
use serde::Deserialize;
use serde_json::Value;

use super::legacy;

/// Fields that are not read.
const FIELDS: &[Row] = &[
    same("clientConnection.acceptContentTypes", "answers say the same in any encoding"),
    same("clientConnection.contentType", "requests say the same in any encoding"),
    same("delayCacheUntilActive", "a cache that stands by costs a watch"),
    only("enableContentionProfiling", &["false"], "waits for locks are not recorded"),
    only("leaderElection.resourceLock", &["leases"], "leaders hold leases"),
    same("parallelism", "a decision is made by one thread"),
];

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";

#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error("{path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{path}: {message}")]
    Parse { path: String, message: String },
    #[error("{0}")]
    Invalid(String),
}

/// What the scheduler does, and for whom.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Configuration {
    api_version: String,
    kind: String,
    pub(crate) leader_election: LeaderElection,
    pub(crate) client_connection: ClientConnection,
    pub(crate) percentage_of_nodes_to_score: Option<i32>,
    pub(crate) pod_initial_backoff_seconds: i64,
    pub(crate) pod_max_backoff_seconds: i64,
    pub(crate) profiles: Vec<SchedulerProfile>,
    pub(crate) extenders: Vec<Extender>,
    pub(crate) enable_profiling: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct LeaderElection {
    pub(crate) leader_elect: Option<bool>,
    pub(crate) lease_duration: GoDuration,
    pub(crate) renew_deadline: GoDuration,
    pub(crate) retry_period: GoDuration,
    pub(crate) resource_name: String,
    pub(crate) resource_namespace: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ClientConnection {
    pub(crate) kubeconfig: String,
    pub(crate) qps: f64,
    pub(crate) burst: i32,
}

impl ClientConnection {
    /// Of requests at once, where there is a rate (`RecommendedDefaultClientConnectionConfiguration`, v1.36).
    pub(crate) fn burst(&self) -> u32 {
        const USUAL: u32 = 100;
        u32::try_from(self.burst).ok().filter(|burst| *burst > 0).unwrap_or(USUAL)
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct SchedulerProfile {
    pub(crate) scheduler_name: Option<String>,
    pub(crate) percentage_of_nodes_to_score: Option<i32>,
    pub(crate) plugins: Option<Plugins>,
    pub(crate) plugin_config: Vec<PluginConfig>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PluginConfig {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) args: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Plugins {
    pub(crate) pre_enqueue: PluginSet,
    pub(crate) queue_sort: PluginSet,
    pub(crate) pre_filter: PluginSet,
    pub(crate) filter: PluginSet,
    pub(crate) post_filter: PluginSet,
    pub(crate) pre_score: PluginSet,
    pub(crate) score: PluginSet,
    pub(crate) reserve: PluginSet,
    pub(crate) permit: PluginSet,
    pub(crate) pre_bind: PluginSet,
    pub(crate) bind: PluginSet,
    pub(crate) post_bind: PluginSet,
    pub(crate) multi_point: PluginSet,
    placement_generate: PluginSet,
    placement_score: PluginSet,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PluginSet {
    pub(crate) enabled: Vec<PluginRef>,
    pub(crate) disabled: Vec<PluginRef>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PluginRef {
    pub(crate) name: String,
    pub(crate) weight: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Extender {
    #[serde(rename = "urlPrefix")]
    pub(crate) url_prefix: String,
    #[serde(rename = "filterVerb")]
    pub(crate) filter_verb: String,
    #[serde(rename = "preemptVerb")]
    pub(crate) preempt_verb: String,
    #[serde(rename = "prioritizeVerb")]
    pub(crate) prioritize_verb: String,
    pub(crate) weight: i64,
    #[serde(rename = "bindVerb")]
    pub(crate) bind_verb: String,
    #[serde(rename = "enableHTTPS", alias = "enableHttps")]
    pub(crate) enable_https: bool,
    #[serde(rename = "tlsConfig")]
    pub(crate) tls: Option<ExtenderTls>,
    #[serde(rename = "httpTimeout")]
    pub(crate) http_timeout: Option<GoDuration>,
    #[serde(rename = "nodeCacheCapable")]
    pub(crate) node_cache_capable: bool,
    #[serde(rename = "managedResources")]
    pub(crate) managed_resources: Vec<ManagedResource>,
    pub(crate) ignorable: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ExtenderTls {
    pub(crate) insecure: bool,
    pub(crate) server_name: String,
    pub(crate) cert_file: String,
    pub(crate) key_file: String,
    pub(crate) ca_file: String,
    pub(crate) cert_data: String,
    pub(crate) key_data: String,
    pub(crate) ca_data: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ManagedResource {
    pub(crate) name: String,
    pub(crate) ignored_by_scheduler: bool,
}

/// `15s`, `1m30s`, or nanoseconds as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GoDuration(pub(crate) Duration);

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(number) => Ok(GoDuration(Duration::from_nanos(number.as_u64().unwrap_or(0)))),
            Value::String(text) => text.parse().map_err(serde::de::Error::custom),
            _ => Err(serde::de::Error::custom("time: invalid duration")),
        }
    }
}

impl std::str::FromStr for GoDuration {
    type Err = api::duration::DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        api::duration::parse(text).map(GoDuration)
    }
}

impl Default for LeaderElection {
    fn default() -> Self {
        LeaderElection {
            leader_elect: None,
            lease_duration: GoDuration(Duration::from_secs(15)),
            renew_deadline: GoDuration(Duration::from_secs(10)),
            retry_period: GoDuration(Duration::from_secs(2)),
            resource_name: "kube-scheduler".into(),
            resource_namespace: "kube-system".into(),
        }
    }
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration {
            api_version: API_VERSION.into(),
            kind: "KubeSchedulerConfiguration".into(),
            leader_election: LeaderElection::default(),
            client_connection: ClientConnection::default(),
            percentage_of_nodes_to_score: None,
            pod_initial_backoff_seconds: 1,
            pod_max_backoff_seconds: 10,
            profiles: vec![SchedulerProfile {
                scheduler_name: Some("default-scheduler".into()),
                ..SchedulerProfile::default()
            }],
            extenders: Vec::new(),
            enable_profiling: true,
        }
    }
}

impl Configuration {
    /// Reads a `KubeSchedulerConfiguration`.
    pub fn read(path: &Path) -> Result<Configuration, ConfigurationError> {
        Self::parse(&read(path)?).map_err(|error| error.in_file(path))
    }

    /// Reads a legacy `Policy` (predicates and priorities) as the one profile of a configuration.
    pub fn read_policy(path: &Path) -> Result<Configuration, ConfigurationError> {
        legacy::parse(&read(path)?).map_err(|error| error.in_file(path))
    }

    /// One profile under this name, with the default plug-ins.
    pub fn named(scheduler_name: &str) -> Configuration {
        let mut configuration = Configuration::default();
        for profile in &mut configuration.profiles {
            profile.scheduler_name = Some(scheduler_name.to_owned());
        }
        configuration
    }

    pub fn parse(text: &str) -> Result<Configuration, ConfigurationError> {
        let invalid = |error: &dyn std::fmt::Display| ConfigurationError::Invalid(error.to_string());
        let mut value: serde_json::Value = yaml_serde::from_str(text).map_err(|error| invalid(&error))?;
        if let Some(parallelism) = value.get("parallelism").and_then(Value::as_i64).filter(|count| *count <= 0) {
            return Err(ConfigurationError::Invalid(format!(
                "parallelism: Invalid value: {parallelism}: should be an integer value greater than zero"
            )));
        }
        api::flags::settle(&mut value, FIELDS).map_err(|error| invalid(&error))?;
        let mut configuration: Configuration = serde_json::from_value(value).map_err(|error| invalid(&error))?;
        if configuration.api_version != API_VERSION || configuration.kind != "KubeSchedulerConfiguration" {
            return Err(ConfigurationError::Invalid(format!(
                "no kind {:?} is registered for version {:?}",
                configuration.kind, configuration.api_version
            )));
        }
        if configuration.profiles.is_empty() {
            configuration.profiles.push(SchedulerProfile::default());
        }
        if let [only] = configuration.profiles.as_mut_slice() {
            only.scheduler_name.get_or_insert_with(|| "default-scheduler".into());
        }
        configuration.validate()?;
        Ok(configuration)
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigurationError> {
        let mut errors = Vec::new();
        let mut names = HashSet::new();
        for (at, profile) in self.profiles.iter().enumerate() {
            let path = format!("profiles[{at}]");
            match profile.scheduler_name.as_deref() {
                None | Some("") => errors.push(format!("{path}.schedulerName: Required value")),
                Some(name) if !names.insert(name) => {
                    errors.push(format!("{path}.schedulerName: Duplicate value: {name:?}"));
                }
                Some(_) => {}
            }
            errors
                .extend(percentage(profile.percentage_of_nodes_to_score, &format!("{path}.percentageOfNodesToScore")));
            let plugins = profile.plugins.clone().unwrap_or_default();
            for (point, set) in
                [("placementGenerate", plugins.placement_generate), ("placementScore", plugins.placement_score)]
            {
                if set != PluginSet::default() {
                    errors.push(format!("{path}.plugins.{point} is not supported: pods are placed one by one"));
                }
            }
            let mut configured = HashSet::new();
            for (at, config) in profile.plugin_config.iter().enumerate() {
                if !configured.insert(&config.name) {
                    errors.push(format!("{path}.pluginConfig[{at}]: Duplicate value: {:?}", config.name));
                }
            }
        }
        let queue_sort = |profile: &SchedulerProfile| profile.plugins.clone().unwrap_or_default().queue_sort;
        for (at, profile) in self.profiles.iter().enumerate().skip(1) {
            if queue_sort(profile) != queue_sort(&self.profiles[0]) {
                errors.push(format!("profiles[{at}].plugins.queueSort: must be the same for all profiles"));
            }
        }
        errors.extend(percentage(self.percentage_of_nodes_to_score, "percentageOfNodesToScore"));
        let (initial, max) = (self.pod_initial_backoff_seconds, self.pod_max_backoff_seconds);
        if initial <= 0 {
            errors.push(format!("podInitialBackoffSeconds: Invalid value: {initial}: must be greater than 0"));
        }
        if max < initial {
            errors.push(format!(
                "podMaxBackoffSeconds: Invalid value: {max}: must be greater than or equal to PodInitialBackoffSeconds"
            ));
        }
        errors.extend(self.extender_errors());
        match errors.as_slice() {
            [] => Ok(()),
            [only] => Err(ConfigurationError::Invalid(only.clone())),
            many => Err(ConfigurationError::Invalid(format!("[{}]", many.join(", ")))),
        }
    }

    fn extender_errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let mut managed = HashSet::new();
        for (at, extender) in self.extenders.iter().enumerate() {
            if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
                errors.push(format!(
                    "extenders[{at}].weight: Invalid value: {}: must have a positive weight applied to it",
                    extender.weight
                ));
            }
            for (index, resource) in extender.managed_resources.iter().enumerate() {
                let path = format!("extenders[{at}].managedResources[{index}].name");
                if !is_extended(&resource.name) {
                    errors.push(format!(
                        "{path}: Invalid value: {:?}: is an invalid extended resource name",
                        resource.name
                    ));
                } else if !managed.insert(&resource.name) {
                    errors.push(format!(
                        "{path}: Invalid value: {:?}: duplicate extender managed resource name",
                        resource.name
                    ));
                }
            }
        }
        let binders = self.extenders.iter().filter(|extender| !extender.bind_verb.is_empty()).count();
        if binders > 1 {
            errors.push(format!(
                "extenders: Invalid value: \"found {binders} extenders implementing bind\": only one extender can implement bind"
            ));
        }
        errors
    }
}

fn percentage(value: Option<i32>, path: &str) -> Option<String> {
    let value = value.filter(|value| !(0..=100).contains(value))?;
    Some(format!("{path}: Invalid value: {value}: not in valid range [0-100]"))
}

fn read(path: &Path) -> Result<String, ConfigurationError> {
    let path_text = path.display().to_string();
    std::fs::read_to_string(path).map_err(|source| ConfigurationError::Read { path: path_text, source })
}

impl ConfigurationError {
    fn in_file(self, path: &Path) -> ConfigurationError {
        match self {
            ConfigurationError::Invalid(message) => {
                ConfigurationError::Parse { path: path.display().to_string(), message }
            }
            other => other,
        }
    }
}
