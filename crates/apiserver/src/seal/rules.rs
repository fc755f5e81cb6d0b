//! Which key of the store is sealed how: the configuration, exchanged whole when its file changes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::{Mutex, RwLock};
use ring::digest::{SHA256, digest};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::SealError;
use super::config::{EncryptionConfiguration, Pattern};
use super::kms::Kms;
use super::providers::Providers;
use crate::watch_cache::ROOT;

/// The configuration in force, and the file it comes from.
pub(crate) struct Seals {
    /// Built-in resources by what follows the root of their keys.
    resources: Vec<(Box<str>, Pattern)>,
    file: Option<PathBuf>,
    reload: bool,
    current: RwLock<Arc<Rules>>,
    /// The text of the file that was read last, good or bad.
    seen: Mutex<Vec<u8>>,
    /// SHA-256 of the file whose rules are in force; zeros without a file.
    in_force: watch::Sender<[u8; 32]>,
}

/// Why key services do not answer as they should, one reason each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", api::field::aggregate(.0))]
pub(crate) struct UnhealthyKeyServices(Vec<String>);

/// One configuration.
#[derive(Default)]
pub(super) struct Rules {
    /// Of every built-in resource.
    by_prefix: HashMap<Box<str>, Option<Arc<Providers>>>,
    by_pattern: HashMap<Pattern, Arc<Providers>>,
    services: Vec<Arc<Kms>>,
    /// Ends with the configuration.
    _following: JoinSet<()>,
}

impl Seals {
    /// `resources` are the built-in ones: prefix, plural and group. Without a file nothing is sealed.
    pub(crate) async fn new<'r>(
        resources: impl Iterator<Item = (&'r str, &'r str, &'r str)>,
        file: Option<PathBuf>,
        reload: bool,
    ) -> anyhow::Result<Self> {
        let mut known: Vec<(Box<str>, Pattern)> = Vec::new();
        for (prefix, plural, group) in resources {
            // Versions share a prefix, and events are those of the core group whoever asks.
            let group = if prefix == "events" { "" } else { group };
            if !known.iter().any(|(known, _)| **known == *prefix) {
                known.push((prefix.into(), Pattern::new(plural, group)));
            }
        }
        let (in_force, _) = watch::channel([0; 32]);
        let seals =
            Self { resources: known, file, reload, current: RwLock::default(), seen: Mutex::default(), in_force };
        if let Some(file) = &seals.file {
            let (configuration, text) = EncryptionConfiguration::load_text(file, reload)?;
            let rules = Rules::new(&configuration, &seals.resources)?;
            for service in &rules.services {
                if let Err(error) = service.probe().await {
                    tracing::error!(%error, "a key management service fails");
                }
            }
            seals.put_in_force(rules, text);
        }
        Ok(seals)
    }

    fn put_in_force(&self, rules: Rules, text: Vec<u8>) {
        *self.current.write() = Arc::new(rules.followed());
        let mut sum = [0; 32];
        sum.copy_from_slice(digest(&SHA256, &text).as_ref());
        *self.seen.lock() = text;
        // Last: whoever hears of it may rely on the rules.
        self.in_force.send_replace(sum);
    }

    /// SHA-256 of the file whose rules are in force.
    pub(crate) fn in_force(&self) -> watch::Receiver<[u8; 32]> {
        self.in_force.subscribe()
    }

    pub(super) fn rules(&self) -> Arc<Rules> {
        self.current.read().clone()
    }

    /// Something may change while the server runs.
    pub(super) fn is_followed(&self) -> bool {
        self.reload || self.has_services()
    }

    pub(super) fn has_services(&self) -> bool {
        !self.rules().services.is_empty()
    }

    /// Reads the file again if it changed. A configuration that is wrong, or whose services do not answer, leaves the
    /// one before in force. Returns whether there is a new one.
    pub(super) async fn reload(&self) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| self.reload) else { return false };
        let Ok(text) = std::fs::read(file) else { return false };
        if *self.seen.lock() == text {
            return false;
        }
        let parsed = EncryptionConfiguration::parse(&text, true).and_then(|found| Rules::new(&found, &self.resources));
        let rules = match parsed {
            Ok(rules) => rules,
            Err(error) => {
                *self.seen.lock() = text;
                tracing::error!(file = %file.display(), "changed, but kept as it was: {error:#}");
                return false;
            }
        };
        for service in &rules.services {
            // Tried again as long as it is so.
            if let Err(error) = service.probe().await {
                tracing::error!(file = %file.display(), "changed, but not used yet: {error}");
                return false;
            }
        }
        self.put_in_force(rules, text);
        tracing::info!(file = %file.display(), "read again");
        true
    }

    /// Name and outcome of the health check of every key service.
    pub(crate) async fn health(&self) -> Vec<(String, Result<(), UnhealthyKeyServices>)> {
        let rules = self.rules();
        let mut checks = Vec::new();
        for (index, service) in rules.services.iter().enumerate() {
            let outcome = service.health().await.map_err(|error| UnhealthyKeyServices(vec![error.to_string()]));
            checks.push((format!("kms-provider-{index}"), outcome));
        }
        if !self.reload || checks.is_empty() {
            return checks;
        }
        // How many there are may change, so there is one check for all of them.
        let failed: Vec<String> =
            checks.into_iter().filter_map(|(_, outcome)| outcome.err()).flat_map(|of| of.0).collect();
        let outcome = if failed.is_empty() { Ok(()) } else { Err(UnhealthyKeyServices(failed)) };
        vec![("kms-providers".to_owned(), outcome)]
    }
}

impl Rules {
    fn new(configuration: &EncryptionConfiguration, resources: &[(Box<str>, Pattern)]) -> anyhow::Result<Self> {
        let mut services = Vec::new();
        // A resource that several rules name has the providers of all of them, in order.
        let mut configured: HashMap<Pattern, Vec<_>> = HashMap::new();
        for rule in &configuration.resources {
            for resource in &rule.resources {
                configured.entry(Pattern::parse(resource)).or_default().extend(rule.providers.iter().cloned());
            }
        }
        let mut by_pattern = HashMap::new();
        let mut made: Vec<(String, Arc<Providers>)> = Vec::new();
        for (pattern, providers) in configured {
            // Resources of one rule share its key services.
            let text = serde_json::to_string(&providers)?;
            let known = made.iter().find(|(known, _)| *known == text).map(|(_, providers)| providers.clone());
            let shared = match known {
                Some(shared) => shared,
                None => {
                    let new = Arc::new(Providers::new(&providers, &mut services)?);
                    made.push((text, new.clone()));
                    new
                }
            };
            by_pattern.insert(pattern, shared);
        }
        let mut rules = Self { by_pattern, services, ..Default::default() };
        rules.by_prefix = resources
            .iter()
            .map(|(prefix, pattern)| (prefix.clone(), rules.named(&pattern.resource, &pattern.group).cloned()))
            .collect();
        Ok(rules)
    }

    /// With a task that follows each key service for as long as the rules are in force.
    fn followed(mut self) -> Self {
        for service in &self.services {
            self._following.spawn(FutureExt::boxed(service.clone().follow()));
        }
        self
    }

    /// The providers of a resource: those of its own name before those of its group before those of everything.
    fn named(&self, resource: &str, group: &str) -> Option<&Arc<Providers>> {
        [Pattern::new(resource, group), Pattern::new("*", group), Pattern::new("*", "*")]
            .iter()
            .find_map(|pattern| self.by_pattern.get(pattern))
    }

    /// The providers of a key of the store; `None` where nothing is sealed.
    pub(super) fn of(&self, key: &str) -> Option<&Arc<Providers>> {
        let rest = key.strip_prefix(ROOT)?;
        let (first, inner) = rest.split_once('/')?;
        if let Some(found) = self.by_prefix.get(first) {
            return found.as_ref();
        }
        let (second, _) = inner.split_once('/')?;
        if let Some(found) = self.by_prefix.get(&rest[..first.len() + 1 + second.len()]) {
            return found.as_ref();
        }
        // Objects of definitions are below their group, which is a domain.
        if first.contains('.') { self.named(second, first) } else { None }
    }

    /// `place` is where the key is in the store beneath, which goes into what is sealed.
    pub(super) fn seal(&self, key: &str, place: &str, plain: &[u8]) -> Result<Option<bytes::Bytes>, SealError> {
        self.of(key).map_or(Ok(None), |providers| providers.seal(place, plain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOURCES: [(&str, &str, &str); 5] = [
        ("secrets", "secrets", ""),
        ("configmaps", "configmaps", ""),
        ("deployments", "deployments", "apps"),
        ("services/specs", "services", ""),
        ("events", "events", "events.k8s.io"),
    ];

    fn configuration(rules: &[(&str, &str)]) -> String {
        let mut text = "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n".to_owned();
        for (resources, name) in rules {
            text.push_str(&format!(
                "- resources: [{resources}]\n  providers:\n  - aesgcm: {{keys: [{{name: {name}, secret: AAAAAAAAAAAAAAAAAAAAAA==}}]}}\n"
            ));
        }
        text
    }

    fn key_of(rules: &Rules, key: &str) -> String {
        let sealed = rules.seal(key, key, b"plain").unwrap().unwrap_or_default();
        let text = String::from_utf8_lossy(&sealed[..sealed.len().min(24)]).into_owned();
        text.split(':').nth(4).unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn the_closest_rule_counts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let rules = [
            ("secrets", "own"),
            ("'*.'", "core"),
            ("widgets.example.com", "custom"),
            ("'*.apps'", "apps"),
            ("'*.*'", "all"),
        ];
        for (count, expected) in [
            (5, ["own", "core", "apps", "core", "core", "custom", "all", ""]),
            (4, ["own", "core", "apps", "core", "core", "custom", "", ""]),
            (2, ["own", "core", "", "core", "core", "", "", ""]),
            (1, ["own", "", "", "", "", "", "", ""]),
        ] {
            std::fs::write(&file, configuration(&rules[..count])).unwrap();
            let seals = Seals::new(RESOURCES.into_iter(), Some(file.clone()), false).await.unwrap();
            let keys = [
                "/registry/secrets/a/b",
                "/registry/configmaps/a/b",
                "/registry/deployments/a/b",
                "/registry/services/specs/a/b",
                "/registry/events/a/b",
                "/registry/example.com/widgets/a/b",
                "/registry/example.com/gadgets/a",
                // No resource.
                "/registry/ranges/servicenodeports",
            ];
            let found = keys.map(|key| key_of(&seals.rules(), key));
            assert_eq!(found, expected.map(str::to_owned), "{count} rules");
        }
    }

    #[tokio::test]
    async fn a_changed_file_is_read_and_a_wrong_one_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        std::fs::write(&file, configuration(&[("secrets", "one")])).unwrap();
        let seals = Seals::new(RESOURCES.into_iter(), Some(file.clone()), true).await.unwrap();
        let written = || key_of(&seals.rules(), "/registry/secrets/a/b");
        let in_force = seals.in_force();
        let is_in_force = |name: &str| {
            let sum = digest(&SHA256, configuration(&[("secrets", name)]).as_bytes());
            let wanted: &[u8] = sum.as_ref();
            in_force.borrow().as_slice() == wanted
        };
        assert!(!seals.reload().await && is_in_force("one"));
        std::fs::write(&file, configuration(&[("secrets", "two")])).unwrap();
        assert!(seals.reload().await && is_in_force("two"));
        assert_eq!(written(), "two");
        for wrong in ["", "kind: Pod", &configuration(&[("'*'", "three")])] {
            std::fs::write(&file, wrong).unwrap();
            assert!(!seals.reload().await);
            assert_eq!(written(), "two");
            assert!(is_in_force("two"));
        }
        std::fs::remove_file(&file).unwrap();
        assert!(!seals.reload().await && written() == "two");
        // A key service that nobody serves.
        let kms = "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n- resources: [secrets]\n  \
                   providers: [{kms: {apiVersion: v2, name: k, endpoint: 'unix:///nobody.sock'}}]\n";
        std::fs::write(&file, kms).unwrap();
        assert!(!seals.reload().await && written() == "two");
        std::fs::write(&file, configuration(&[("secrets", "four")])).unwrap();
        assert!(seals.reload().await && written() == "four");
        assert!(seals.health().await.is_empty());
    }

    #[tokio::test]
    async fn key_services_have_health_checks() {
        let dir = tempfile::tempdir().unwrap();
        let (file, socket) = (dir.path().join("config"), dir.path().join("kms.sock"));
        let plugin = super::super::kms::tests::Plugin::default();
        *plugin.key.lock() = 1;
        let serving = plugin.serve(&socket);
        let text = format!(
            "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n- resources: [secrets, configmaps]\n  \
             providers: [{{kms: {{apiVersion: v2, name: k, endpoint: 'unix://{}', timeout: 60s}}}}]\n",
            socket.display()
        );
        std::fs::write(&file, text).unwrap();
        let fixed = Seals::new(RESOURCES.into_iter(), Some(file.clone()), false).await.unwrap();
        assert_eq!(fixed.health().await, [("kms-provider-0".to_owned(), Ok(()))], "two resources, one service");
        let followed = Seals::new(RESOURCES.into_iter(), Some(file.clone()), true).await.unwrap();
        assert_eq!(followed.health().await, [("kms-providers".to_owned(), Ok(()))]);
        let key = "/registry/secrets/a/b";
        let sealed = fixed.rules().seal(key, key, b"plain").unwrap().unwrap();
        assert!(sealed.starts_with(b"k8s:enc:kms:v2:k:"));
        let opened = followed.rules().of(key).unwrap().open(key, &sealed).await.unwrap();
        assert_eq!((&opened.plain[..], opened.stale), (&b"plain"[..], false));
        serving.abort();
    }
}
