//! The webhooks that are configured, read from the watch cache and parsed once per change.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
    WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use parking_lot::RwLock;
use registry::parts::Parts;

use super::super::config::{self, Setting};
use super::super::expressions::Conditions;
use super::super::matching::Criteria;
use crate::cluster::Cluster;
use crate::remote::Identities;
use crate::remote::webhook::{NoClient, WebhookClient};
use crate::watch_cache::Unreadable;

/// Upstream's default when a webhook sets no timeout of its own.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// One webhook of one configuration, ready to be asked.
pub(super) struct Hook {
    pub(super) configuration: String,
    pub(super) name: String,
    /// Unique among all webhooks of its kind.
    pub(super) uid: String,
    pub(super) criteria: Criteria,
    pub(super) conditions: Conditions,
    /// `failurePolicy: Ignore`.
    pub(super) ignores_failure: bool,
    pub(super) timeout: Duration,
    pub(super) if_needed: bool,
    pub(super) side_effects: String,
    pub(super) review_versions: Vec<String>,
    pub(super) client: Result<Arc<WebhookClient>, NoClient>,
}

/// A kind of configuration.
pub(super) trait Configuration: Parts {
    const PREFIX: &'static str;
    fn hooks(self) -> (String, Vec<Declared>);
}

/// What both kinds of webhooks declare.
pub(super) struct Declared {
    name: String,
    rules: Option<Vec<RuleWithOperations>>,
    match_policy: Option<String>,
    namespace_selector: Option<LabelSelector>,
    object_selector: Option<LabelSelector>,
    match_conditions: Option<Vec<MatchCondition>>,
    failure_policy: Option<String>,
    timeout_seconds: Option<i32>,
    reinvocation_policy: Option<String>,
    side_effects: String,
    admission_review_versions: Vec<String>,
    client_config: WebhookClientConfig,
}

macro_rules! configuration {
    ($kind:ty, $prefix:literal, |$hook:ident| $reinvocation:expr) => {
        impl Configuration for $kind {
            const PREFIX: &'static str = $prefix;

            fn hooks(self) -> (String, Vec<Declared>) {
                let declared = self.webhooks.into_iter().flatten().map(|$hook| Declared {
                    reinvocation_policy: $reinvocation,
                    name: $hook.name,
                    rules: $hook.rules,
                    match_policy: $hook.match_policy,
                    namespace_selector: $hook.namespace_selector,
                    object_selector: $hook.object_selector,
                    match_conditions: $hook.match_conditions,
                    failure_policy: $hook.failure_policy,
                    timeout_seconds: $hook.timeout_seconds,
                    side_effects: $hook.side_effects,
                    admission_review_versions: $hook.admission_review_versions,
                    client_config: $hook.client_config,
                });
                (self.metadata.name.unwrap_or_default(), declared.collect())
            }
        }
    };
}

configuration!(MutatingWebhookConfiguration, "mutatingwebhookconfigurations", |hook| hook.reinvocation_policy);
configuration!(ValidatingWebhookConfiguration, "validatingwebhookconfigurations", |_hook| None);

/// All webhooks of one kind. Reading costs a look at the cache's revision; parsing happens when that has moved.
pub(super) struct Source {
    built: RwLock<Built>,
    /// Who we are to webhooks.
    identities: Identities,
}

/// The plug-ins' own settings.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    #[serde(default)]
    kube_config_file: PathBuf,
}

#[derive(Default)]
struct Built {
    /// The cache's revision when the hooks were built.
    revision: Option<u64>,
    hooks: Arc<Vec<Hook>>,
    /// Clients outlive a change of unrelated fields, and with them their connections.
    clients: Clients,
}

/// By their configuration.
type Clients = HashMap<String, Arc<WebhookClient>>;

impl Source {
    pub(super) fn new(setting: Setting) -> anyhow::Result<Self> {
        let path = match setting {
            Some(setting) => {
                let stable = setting["apiVersion"] == "apiserver.config.k8s.io/v1";
                let kind = if stable { "WebhookAdmissionConfiguration" } else { "WebhookAdmission" };
                let versions = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1alpha1"];
                config::parse::<Settings>(setting, &versions, kind)?.kube_config_file
            }
            None => PathBuf::new(),
        };
        let identities = match path.to_str() {
            Some("") => Identities::default(),
            _ if path.is_absolute() => Identities::load(&path)?,
            _ => anyhow::bail!("kubeConfigFile: Invalid value: {path:?}: must be an absolute file path"),
        };
        Ok(Self { built: RwLock::default(), identities })
    }

    /// All webhooks of one kind. While one of their configurations cannot be read, nobody knows whom to ask.
    pub(super) fn hooks<C: Configuration>(&self, cluster: &Cluster) -> Result<Arc<Vec<Hook>>, Unreadable> {
        let Some(cache) = cluster.caches.get(C::PREFIX) else { return Ok(Arc::default()) };
        let revision = Some(cache.revision());
        {
            let built = self.built.read();
            if built.revision == revision {
                return Ok(built.hooks.clone());
            }
        }
        let mut built = self.built.write();
        let snapshot = cache.snapshot();
        if built.revision >= Some(snapshot.revision) {
            return Ok(built.hooks.clone());
        }
        let mut clients = HashMap::new();
        let mut hooks = Vec::new();
        // In the order of names: that is the order in which mutating webhooks run.
        for entry in snapshot.range(None, None) {
            let (name, declared) = entry.object::<C>()?.hooks();
            let mut seen: HashMap<String, usize> = HashMap::new();
            for declared in declared {
                let number = seen.entry(declared.name.clone()).or_default();
                let uid = format!("{name}/{}/{number}", declared.name);
                *number += 1;
                let client = self.client(&declared.client_config, &built.clients, &mut clients);
                hooks.push(hook(&name, uid, declared, client));
            }
        }
        *built = Built { revision: Some(snapshot.revision), hooks: Arc::new(hooks), clients };
        Ok(built.hooks.clone())
    }

    /// A client that is there already, or a new one.
    fn client(
        &self,
        config: &WebhookClientConfig,
        known: &Clients,
        clients: &mut Clients,
    ) -> Result<Arc<WebhookClient>, NoClient> {
        let key = serde_json::to_string(config).unwrap_or_default();
        let client = match clients.get(&key).or_else(|| known.get(&key)) {
            Some(client) => client.clone(),
            None => Arc::new(WebhookClient::configured(config, &self.identities)?),
        };
        clients.insert(key, client.clone());
        Ok(client)
    }
}

fn hook(configuration: &str, uid: String, declared: Declared, client: Result<Arc<WebhookClient>, NoClient>) -> Hook {
    let (namespaces, objects) = (declared.namespace_selector.as_ref(), declared.object_selector.as_ref());
    let criteria = Criteria::of_rules(declared.rules, declared.match_policy.as_deref(), namespaces, objects);
    let seconds = declared.timeout_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Hook {
        configuration: configuration.to_owned(),
        uid,
        criteria,
        conditions: Conditions::new(declared.match_conditions.as_deref().unwrap_or_default(), false),
        ignores_failure: declared.failure_policy.as_deref() == Some("Ignore"),
        timeout: seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
        if_needed: declared.reinvocation_policy.as_deref() == Some("IfNeeded"),
        side_effects: declared.side_effects,
        review_versions: declared.admission_review_versions,
        name: declared.name,
        client,
    }
}
