//! `EncryptionConfiguration` of `apiserver.config.k8s.io/v1`: read, checked with upstream's words.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use api::field::{ErrorType, FieldError, FieldErrors};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) const API_VERSION: &str = "apiserver.config.k8s.io/v1";
pub(crate) const KIND: &str = "EncryptionConfiguration";

const AES_KEYS: &[usize] = &[16, 24, 32];
const SECRETBOX_KEYS: &[usize] = &[32];
const KMS_TIMEOUT: Duration = Duration::from_secs(3);

/// Which resources are sealed, and with what.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EncryptionConfiguration {
    pub kind: String,
    pub api_version: String,
    pub resources: Vec<ResourceConfiguration>,
}

/// The first provider writes, all of them read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceConfiguration {
    pub resources: Vec<String>,
    pub providers: Vec<ProviderConfiguration>,
}

/// Exactly one of these.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProviderConfiguration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aesgcm: Option<Keys>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aescbc: Option<Keys>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secretbox: Option<Keys>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kms: Option<KmsConfiguration>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Keys {
    pub keys: Vec<Key>,
}

/// A key; its secret is in base64.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Key {
    pub name: String,
    pub secret: String,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Key {
    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.secret).ok()
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KmsConfiguration {
    pub api_version: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cachesize: Option<i32>,
    pub endpoint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

impl KmsConfiguration {
    fn version(&self) -> &str {
        if self.api_version.is_empty() { "v1" } else { &self.api_version }
    }

    /// `None` is a time that is none, or not a positive one.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match &self.timeout {
            None => Some(KMS_TIMEOUT),
            Some(text) => api::duration::parse(text).ok().filter(|timeout| !timeout.is_zero()),
        }
    }
}

/// A resource as the configuration names it: `secrets`, `deployments.apps`, `*.`, `*.apps` or `*.*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pattern {
    pub(super) resource: String,
    pub(super) group: String,
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        Self { resource: resource.to_owned(), group: group.to_owned() }
    }

    pub(super) fn new(resource: &str, group: &str) -> Self {
        Self { resource: resource.to_owned(), group: group.to_owned() }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.resource.as_str(), self.group.as_str()) {
            ("*", "") => f.write_str("*."),
            (resource, "") => f.write_str(resource),
            (resource, group) => write!(f, "{resource}.{group}"),
        }
    }
}

impl EncryptionConfiguration {
    pub fn new(resources: Vec<ResourceConfiguration>) -> Self {
        Self { kind: KIND.to_owned(), api_version: API_VERSION.to_owned(), resources }
    }

    /// Reads and checks a file. `reload` is whether it may change under a running server.
    pub fn load(path: &Path, reload: bool) -> anyhow::Result<Self> {
        Self::load_text(path, reload).map(|(found, _)| found)
    }

    /// As [`Self::load`], with the text that was read.
    pub(super) fn load_text(path: &Path, reload: bool) -> anyhow::Result<(Self, Vec<u8>)> {
        let name = api::field::quote(&path.display().to_string());
        let bytes = std::fs::read(path)
            .with_context(|| format!("error opening encryption provider configuration file {name}"))?;
        anyhow::ensure!(!bytes.is_empty(), "encryption provider configuration file {name} is empty");
        let found = Self::parse(&bytes, reload)
            .with_context(|| format!("error while parsing encryption configuration file {name}"))?;
        Ok((found, bytes))
    }

    /// As [`Self::load`], from the text of a file.
    pub fn parse(bytes: &[u8], reload: bool) -> anyhow::Result<Self> {
        let found: Self = serde_json::from_value(api::codec::from_yaml(bytes)?.value).map_err(without_value)?;
        anyhow::ensure!(
            found.kind == KIND && found.api_version == API_VERSION,
            "no kind {:?} is registered for version {:?}",
            found.kind,
            found.api_version
        );
        let errors = found.validate(reload);
        anyhow::ensure!(errors.is_empty(), "{errors}");
        found.check_order()?;
        Ok(found)
    }

    fn validate(&self, reload: bool) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if self.resources.is_empty() {
            errors.required("resources", "at least one resources is required");
        }
        let mut kms_names = HashSet::new();
        for (index, rule) in self.resources.iter().enumerate() {
            let resources = format!("resources[{index}].resources");
            let providers = format!("resources[{index}].providers");
            if rule.resources.is_empty() {
                errors.required(&resources, format!("at least one {resources} is required"));
            }
            overlap(&rule.resources, &resources, &mut errors);
            names(&rule.resources, &resources, &mut errors);
            if rule.providers.is_empty() {
                errors.required(&providers, format!("at least one {providers} is required"));
            }
            for (index, provider) in rule.providers.iter().enumerate() {
                let path = format!("{providers}[{index}]");
                provider.validate(&path, &mut kms_names, reload, &mut errors);
            }
        }
        errors
    }

    /// An earlier wildcard leaves nothing to a later rule.
    fn check_order(&self) -> anyhow::Result<()> {
        let everything = Pattern::new("*", "*");
        let mut seen = HashSet::new();
        for rule in &self.resources {
            for resource in &rule.resources {
                let found = Pattern::parse(resource);
                for earlier in [Pattern::new("*", &found.group), everything.clone()] {
                    anyhow::ensure!(
                        !seen.contains(&earlier),
                        "resource \"{found}\" is masked by earlier rule \"{earlier}\""
                    );
                }
                seen.insert(found);
            }
        }
        Ok(())
    }
}

impl ProviderConfiguration {
    fn validate(&self, path: &str, kms_names: &mut HashSet<String>, reload: bool, errors: &mut FieldErrors) {
        let given = [
            ("kms", self.kms.is_some()),
            ("aesgcm", self.aesgcm.is_some()),
            ("aescbc", self.aescbc.is_some()),
            ("secretbox", self.secretbox.is_some()),
            ("identity", self.identity.is_some()),
        ];
        // The names only: what else is here are keys.
        let given: Vec<&str> = given.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
        match given.len() {
            1 => {}
            0 => errors.invalid(
                path,
                &given,
                "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
            ),
            _ => errors.invalid(
                path,
                &given,
                "more than one provider specified in a single element, should split into different list elements",
            ),
        }
        if let Some(kms) = &self.kms {
            kms.validate(&format!("{path}.kms"), kms_names, reload, errors);
            kms_names.insert(kms.name.clone());
        } else if let Some(provider) = &self.aesgcm {
            provider.validate(&format!("{path}.aesgcm.keys"), AES_KEYS, errors);
        } else if let Some(provider) = &self.aescbc {
            provider.validate(&format!("{path}.aescbc.keys"), AES_KEYS, errors);
        } else if let Some(provider) = &self.secretbox {
            provider.validate(&format!("{path}.secretbox.keys"), SECRETBOX_KEYS, errors);
        }
    }
}

impl Keys {
    fn validate(&self, path: &str, lengths: &[usize], errors: &mut FieldErrors) {
        if self.keys.is_empty() {
            errors.required(path, "at least one keys is required");
        }
        for (index, key) in self.keys.iter().enumerate() {
            if key.name.is_empty() {
                errors.required(format!("{path}[{index}].name"), "name is a mandatory field for a key");
            }
            let path = format!("{path}[{index}].secret");
            if key.secret.is_empty() {
                errors.required(path, "secret is a mandatory field for a key");
                continue;
            }
            match key.bytes() {
                None => errors.invalid(path, "REDACTED", "secrets must be base64 encoded"),
                Some(secret) if !lengths.contains(&secret.len()) => {
                    let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
                    let (got, expected) = (secret.len(), lengths.join(" "));
                    let detail =
                        format!("secret is not of the expected length, got {got}, expected one of [{expected}]");
                    errors.invalid(path, "REDACTED", detail);
                }
                Some(_) => {}
            }
        }
    }
}

impl KmsConfiguration {
    fn validate(&self, path: &str, names: &HashSet<String>, reload: bool, errors: &mut FieldErrors) {
        let (is_v1, name) = (self.version() == "v1", &self.name);
        if name.is_empty() {
            errors.required(format!("{path}.name"), "name is a mandatory field for a provider");
        }
        if !is_v1 && name.contains(':') {
            let detail = format!("invalid KMS provider name {name}, must not contain ':'");
            errors.invalid(format!("{path}.name"), name, detail);
        }
        if (reload || !is_v1) && names.contains(name) {
            let detail = format!("duplicate KMS provider name {name}, names must be unique");
            errors.invalid(format!("{path}.name"), name, detail);
        }
        if self.timeout().is_none() {
            errors.push(FieldError {
                error_type: ErrorType::Invalid,
                field: format!("{path}.timeout"),
                value: self.timeout.clone(),
                detail: "timeout should be a positive value".to_owned(),
            });
        }
        if self.endpoint.is_empty() {
            errors.invalid(format!("{path}.endpoint"), "", "endpoint is a mandatory field for a kms");
        } else {
            let scheme = self.endpoint.split_once(':').map_or("", |(scheme, _)| scheme);
            if scheme != "unix" {
                let detail = format!("unsupported scheme {scheme:?} for KMS provider, only unix is supported");
                errors.invalid(format!("{path}.endpoint"), &self.endpoint, detail);
            }
        }
        match self.cachesize {
            Some(size) if !is_v1 => {
                errors.invalid(format!("{path}.cachesize"), size, "cachesize is not supported in v2");
            }
            Some(0) => {
                let detail = "cachesize should be a positive value, or negative to disable";
                errors.invalid(format!("{path}.cachesize"), 0, detail);
            }
            _ => {}
        }
        if !matches!(self.version(), "v1" | "v2") {
            let detail = "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported";
            errors.invalid(format!("{path}.apiVersion"), self.version(), detail);
        }
    }

    /// The first version of the protocol asks the plug-in for every object; upstream has it behind a gate that is off.
    pub(super) fn check_version(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.version() == "v2",
            "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead."
        );
        Ok(())
    }
}

/// What was expected, without what was found: that may be a key.
fn without_value(error: serde_json::Error) -> anyhow::Error {
    match error.to_string().rsplit_once(", expected ") {
        Some((_, expected)) => anyhow::anyhow!("a value has the wrong type: expected {expected}"),
        None => anyhow::anyhow!("not of the form of an {KIND}"),
    }
}

fn overlap(resources: &[String], path: &str, errors: &mut FieldErrors) {
    let parsed: Vec<Pattern> = resources.iter().map(|text| Pattern::parse(text)).collect();
    let everything = Pattern::new("*", "*");
    let (mut repeated, mut overlaps) = (false, false);
    for (at, one) in parsed.iter().enumerate() {
        for other in parsed.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other) {
            if one == other && !repeated {
                repeated = true;
                continue;
            }
            let shares_group = one.group == other.group && (one.resource == "*" || other.resource == "*");
            overlaps |= *one == everything || shares_group;
        }
    }
    if repeated {
        errors.invalid(path, resources, "the same resource cannot be specified multiple times");
    }
    if overlaps {
        errors.invalid(
            path,
            resources,
            "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they \
             will be masked",
        );
    }
}

fn names(resources: &[String], path: &str, errors: &mut FieldErrors) {
    for (index, resource) in resources.iter().enumerate() {
        let parsed = Pattern::parse(resource);
        let problem = match resource.as_str() {
            text if text.to_lowercase() != text => "resource name should not contain capital letters",
            "*" => "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
            "apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations" => {
                "resources which do not have REST API/s cannot be encrypted"
            }
            _ if parsed.group == "events.k8s.io" => {
                "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in \
                 the config file"
            }
            _ if parsed.group == "extensions" => {
                "'extensions' group has been removed and cannot be used for encryption"
            }
            _ if parsed.group == "*" && parsed.resource != "*" => {
                "encrypting the same resource across groups is not supported"
            }
            _ => continue,
        };
        errors.invalid(format!("{path}[{index}]"), resource, problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

    #[test]
    fn security_a_mistake_does_not_show_keys() {
        let secret = "c2VjcmV0LWtleQ";
        for rules in [
            format!("{{resources: [secrets], providers: [{{secretbox: {{keys: [{secret}]}}}}]}}"),
            format!("{{resources: [secrets], providers: [{{secretbox: {{keys: {secret}}}}}]}}"),
            format!("{{resources: [secrets], providers: [{{aescbc: '{secret}, expected x'}}]}}"),
            format!("{{resources: [secrets], providers: [{{aescbc: {{keys: [{{name: a, secret: [{secret}]}}]}}}}]}}"),
            format!("{{resources: [secrets], providers: [{{aescbc: {{keys: [{{name: a, secret: {secret}}}]}}}}]}}"),
        ] {
            let error = refusal(&rules);
            assert!(!error.is_empty() && !error.contains(secret), "{error}");
        }
        let number = refusal("{resources: [secrets], providers: [{aescbc: {keys: [{name: a, secret: 12345678}]}}]}");
        assert!(number.contains("expected a string") && !number.contains("12345678"), "{number}");
    }

    fn refusal(rules: &str) -> String {
        let text = format!("kind: {KIND}\napiVersion: {API_VERSION}\nresources: [{rules}]\n");
        match EncryptionConfiguration::parse(text.as_bytes(), false) {
            Ok(_) => String::new(),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn configurations_are_read() {
        let key = format!("{{name: key1, secret: {KEY}}}");
        for rules in [
            format!("{{resources: [secrets], providers: [{{aescbc: {{keys: [{key}]}}}}, {{identity: {{}}}}]}}"),
            format!("{{resources: ['*.apps', '*.'], providers: [{{aesgcm: {{keys: [{key}]}}}}]}}"),
            format!("{{resources: ['*.*'], providers: [{{secretbox: {{keys: [{key}]}}}}], unknown: 1}}"),
            "{resources: [secrets], providers: [{kms: {apiVersion: v2, name: k, endpoint: 'unix:///k.sock'}}]}".into(),
        ] {
            assert_eq!(refusal(&rules), "", "{rules}");
        }
    }

    #[test]
    fn mistakes_get_the_words_of_upstream() {
        let identity = "{resources: [R], providers: [{identity: {}}]}";
        let keys = "{resources: [secrets], providers: [{aescbc: {keys: [K]}}]}";
        let kms = "{resources: [secrets], providers: [{kms: {apiVersion: v2, name: k, endpoint: 'unix:///k', K}}]}";
        for (rules, expected) in [
            (String::new(), "resources: Required value: at least one resources is required"),
            (
                "{resources: [], providers: [{identity: {}}]}".to_owned(),
                "resources[0].resources: Required value: at least one resources[0].resources is required",
            ),
            (
                "{resources: [secrets]}".to_owned(),
                "resources[0].providers: Required value: at least one resources[0].providers is required",
            ),
            (
                "{resources: [secrets], providers: [{}]}".to_owned(),
                "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
            ),
            (
                format!(
                    "{{resources: [secrets], providers: [{{identity: {{}}, aescbc: {{keys: [{{name: k, secret: {KEY}}}]}}}}]}}"
                ),
                "more than one provider specified in a single element, should split into different list elements",
            ),
            (
                identity.replace('R', "Secrets"),
                "resources[0].resources[0]: Invalid value: \"Secrets\": resource name should not contain capital letters",
            ),
            (
                identity.replace('R', "'*'"),
                "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
            ),
            (
                identity.replace('R', "events.events.k8s.io"),
                "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file",
            ),
            (identity.replace('R', "'secrets.*'"), "encrypting the same resource across groups is not supported"),
            (
                identity.replace('R', "serviceipallocations"),
                "resources which do not have REST API/s cannot be encrypted",
            ),
            (
                identity.replace('R', "ingresses.extensions"),
                "'extensions' group has been removed and cannot be used for encryption",
            ),
            (identity.replace('R', "secrets, secrets"), "the same resource cannot be specified multiple times"),
            (
                identity.replace('R', "secrets, '*.'"),
                "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked",
            ),
            (
                format!("{}, {}", identity.replace('R', "'*.'"), identity.replace('R', "secrets")),
                "resource \"secrets\" is masked by earlier rule \"*.\"",
            ),
            (
                format!("{}, {}", identity.replace('R', "'*.*'"), identity.replace('R', "deployments.apps")),
                "resource \"deployments.apps\" is masked by earlier rule \"*.*\"",
            ),
            (
                keys.replace('K', ""),
                "resources[0].providers[0].aescbc.keys: Required value: at least one keys is required",
            ),
            (keys.replace('K', "{secret: AAAA}"), "keys[0].name: Required value: name is a mandatory field for a key"),
            (keys.replace('K', "{name: a}"), "keys[0].secret: Required value: secret is a mandatory field for a key"),
            (
                keys.replace('K', "{name: a, secret: '%'}"),
                "Invalid value: \"REDACTED\": secrets must be base64 encoded",
            ),
            (
                keys.replace('K', "{name: a, secret: AAAA}"),
                "secret is not of the expected length, got 3, expected one of [16 24 32]",
            ),
            (kms.replace(", K", ", timeout: 0s"), "kms.timeout: Invalid value: 0s: timeout should be a positive value"),
            (kms.replace(", K", ", cachesize: 5"), "kms.cachesize: Invalid value: 5: cachesize is not supported in v2"),
            (
                kms.replace(", K", "").replace("unix:///k", "http://k"),
                "unsupported scheme \"http\" for KMS provider, only unix is supported",
            ),
            (
                kms.replace(", K", "").replace("name: k", "name: 'a:b'"),
                "invalid KMS provider name a:b, must not contain ':'",
            ),
            (kms.replace(", K", "").replace("v2", "v3"), "only v1 and v2 are supported"),
        ] {
            let found = refusal(&rules);
            assert!(found.contains(expected), "{rules}: {found}");
        }
        assert!(EncryptionConfiguration::parse(b"kind: Pod\napiVersion: v1\n", false).is_err());
    }

    #[test]
    fn security_keys_are_not_shown() {
        let key = Key { name: "a".into(), secret: KEY.into() };
        assert!(!format!("{key:?}").contains("AAAA"));
    }
}
