//! Resources that nobody may use without a quota for them (`limitedResources` of the plug-in's settings).

use api::Status;
use api::pod::resources::Amounts;
use k8s_openapi::api::core::v1::{ResourceQuota as Quota, ScopedResourceSelectorRequirement};
use registry::Object;
use serde::Deserialize;

use super::super::Attributes;
use super::super::config::{Setting, parse};
use super::scopes;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Limited {
    limited_resources: Vec<Rule>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    api_group: String,
    resource: String,
    /// Parts of quota names: `.storageclass.storage.k8s.io/requests.storage`.
    match_contains: Vec<String>,
    match_scopes: Vec<ScopedResourceSelectorRequirement>,
}

impl Limited {
    pub(super) fn new(setting: Setting) -> anyhow::Result<Self> {
        const VERSIONS: &[&str] = &["apiserver.config.k8s.io/v1", "resourcequota.admission.k8s.io/v1beta1"];
        let Some(setting) = setting else { return Ok(Self::default()) };
        let kind = if setting["kind"] == "Configuration" { "Configuration" } else { "ResourceQuotaConfiguration" };
        parse(setting, VERSIONS, kind)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.limited_resources.is_empty()
    }

    pub(super) fn check(
        &self,
        attributes: &Attributes<'_>,
        object: &dyn Object,
        usage: &Amounts,
        quotas: &[Quota],
    ) -> Result<(), Status> {
        let covering: Vec<&Quota> = quotas.iter().filter(|quota| scopes::selects(quota, object)).collect();
        for rule in &self.limited_resources {
            if rule.resource != attributes.resource.plural || rule.api_group != attributes.resource.group {
                continue;
            }
            let limited = usage.keys().filter(|key| rule.match_contains.iter().any(|part| key.contains(part)));
            let covered = |key: &str| {
                covering.iter().any(|quota| {
                    let hard = quota.status.as_ref().and_then(|status| status.hard.as_ref());
                    hard.is_some_and(|hard| hard.contains_key(key))
                })
            };
            let uncovered: Vec<&str> = limited.map(String::as_str).filter(|key| !covered(key)).collect();
            if !uncovered.is_empty() {
                let message = format!("insufficient quota to consume: {}", uncovered.join(","));
                return Err(attributes.forbidden(message));
            }
            for wanted in rule.match_scopes.iter().filter(|wanted| scopes::matches(wanted, object)) {
                let named = |quota: &&Quota| {
                    scopes::requirements(quota)
                        .iter()
                        .any(|own| own.scope_name == wanted.scope_name && scopes::matches(own, object))
                };
                if !quotas.iter().any(|quota| named(&quota)) {
                    return Err(attributes.forbidden(format!(
                        "insufficient quota to match these scopes: [{{{} {} {:?}}}]",
                        wanted.scope_name,
                        wanted.operator,
                        wanted.values.clone().unwrap_or_default()
                    )));
                }
            }
        }
        Ok(())
    }
}
