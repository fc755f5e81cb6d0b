//! `--authorization-config`: the authorizers in order, with any number of webhooks.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;

use super::conditions::Conditions;
use crate::config::{Authorizer, FailurePolicy, WebhookConfig};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    authorizers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    name: String,
    webhook: Option<Settings>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Settings {
    #[serde(rename = "authorizedTTL")]
    authorized_ttl: Option<String>,
    #[serde(rename = "unauthorizedTTL")]
    unauthorized_ttl: Option<String>,
    timeout: String,
    subject_access_review_version: String,
    #[serde(rename = "matchConditionSubjectAccessReviewVersion", default)]
    match_version: String,
    failure_policy: String,
    connection_info: Connection,
    #[serde(default)]
    match_conditions: Vec<MatchCondition>,
    #[serde(default = "yes")]
    cache_authorized_requests: bool,
    #[serde(default = "yes")]
    cache_unauthorized_requests: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchCondition {
    #[serde(default)]
    expression: String,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Connection {
    #[serde(rename = "type")]
    kind: String,
    kube_config_file: Option<std::path::PathBuf>,
}

/// The authorizers a configuration file names.
pub(crate) fn load(path: &Path) -> anyhow::Result<Vec<Authorizer>> {
    let named = || format!("authorization configuration {}", path.display());
    let bytes = std::fs::read(path).with_context(named)?;
    parse(&bytes).with_context(named)
}

fn parse(bytes: &[u8]) -> anyhow::Result<Vec<Authorizer>> {
    let file: File = serde_json::from_value(api::codec::from_yaml(bytes)?.value)?;
    anyhow::ensure!(
        file.kind == "AuthorizationConfiguration"
            && ["v1", "v1beta1", "v1alpha1"]
                .iter()
                .any(|version| file.api_version == format!("apiserver.config.k8s.io/{version}")),
        "not an AuthorizationConfiguration of apiserver.config.k8s.io"
    );
    anyhow::ensure!(
        !file.authorizers.is_empty(),
        "authorizers: Required value: at least one authorization mode must be defined"
    );
    let mut found = Vec::new();
    for (index, entry) in file.authorizers.into_iter().enumerate() {
        let name = entry.name.clone();
        found
            .push(authorizer(entry, &format!("authorizers[{index}]")).with_context(|| format!("authorizer {name:?}"))?);
    }
    Ok(found)
}

fn authorizer(entry: Entry, path: &str) -> anyhow::Result<Authorizer> {
    if entry.kind != "Webhook" {
        anyhow::ensure!(entry.webhook.is_none(), "webhook may only be specified when type=Webhook");
        return entry.kind.parse();
    }
    let settings = entry.webhook.context("webhook: Required value: required when type=Webhook")?;
    let match_conditions: Vec<String> =
        settings.match_conditions.into_iter().map(|condition| condition.expression).collect();
    let mut errors = api::field::FieldErrors::default();
    match settings.match_version.as_str() {
        "v1" => {}
        "" if match_conditions.is_empty() => {}
        "" => errors.required(
            format!("{path}.webhook.matchConditionSubjectAccessReviewVersion"),
            "required if match conditions are specified",
        ),
        other => {
            errors.not_supported(format!("{path}.webhook.matchConditionSubjectAccessReviewVersion"), other, &["v1"]);
        }
    }
    let conditions = Conditions::new(&match_conditions, &format!("{path}.webhook.matchConditions"));
    errors.extend(conditions.err().into_iter().flatten());
    anyhow::ensure!(errors.is_empty(), "{errors}");
    let duration = |text: &str| api::duration::parse(text).map_err(anyhow::Error::msg);
    let life = |given: &Option<String>, default: u64, kept: bool| {
        let given = given.as_deref().map(duration).transpose()?.filter(|life| !life.is_zero());
        anyhow::Ok(if kept { given.unwrap_or(Duration::from_secs(default)) } else { Duration::ZERO })
    };
    let timeout = duration(&settings.timeout)?;
    anyhow::ensure!(
        !timeout.is_zero() && timeout <= Duration::from_secs(30),
        "timeout: Invalid value: {:?}: must be > 0s and <= 30s",
        settings.timeout
    );
    let failure_policy = match settings.failure_policy.as_str() {
        "NoOpinion" => FailurePolicy::NoOpinion,
        "Deny" => FailurePolicy::Deny,
        other => {
            anyhow::bail!("failurePolicy: Unsupported value: {other:?}: supported values: \"Deny\", \"NoOpinion\"")
        }
    };
    let connection = settings.connection_info;
    anyhow::ensure!(
        connection.kind == "KubeConfigFile",
        "connectionInfo.type: Unsupported value: {:?}",
        connection.kind
    );
    Ok(Authorizer::Webhook(WebhookConfig {
        name: entry.name,
        config_file: connection.kube_config_file.context("connectionInfo.kubeConfigFile: Required value")?,
        version: settings.subject_access_review_version,
        authorized_ttl: life(&settings.authorized_ttl, 300, settings.cache_authorized_requests)?,
        unauthorized_ttl: life(&settings.unauthorized_ttl, 30, settings.cache_unauthorized_requests)?,
        timeout,
        failure_policy,
        match_conditions,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEBHOOK: &str = "{type: Webhook, name: w, webhook: {timeout: 3s, subjectAccessReviewVersion: v1, \
        failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: /w}}}";

    fn file(authorizers: &str) -> anyhow::Result<Vec<Authorizer>> {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{authorizers}]\n"
        );
        parse(text.as_bytes())
    }

    #[test]
    fn order_and_settings_are_kept() {
        let found = file(&format!("{{type: Node, name: node}}, {WEBHOOK}, {{type: RBAC, name: rbac}}")).unwrap();
        let [Authorizer::Node, Authorizer::Webhook(webhook), Authorizer::Rbac] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!((webhook.timeout, webhook.failure_policy), (Duration::from_secs(3), FailurePolicy::Deny));
        assert_eq!(webhook.authorized_ttl, Duration::from_secs(300));
    }

    #[test]
    fn mistakes_are_refused() {
        for authorizers in [
            "",
            "{type: Nothing, name: node}",
            "{type: Webhook, name: w}",
            "{type: RBAC, name: r, extra: 1}",
            &WEBHOOK.replace("3s", "31s"),
            &WEBHOOK.replace("Deny", "Allow"),
            &WEBHOOK.replace("timeout: 3s", "timeout: 3s, matchConditions: [{expression: 'true'}]"),
        ] {
            assert!(file(authorizers).is_err(), "{authorizers}");
        }
        assert!(parse(b"apiVersion: v1\nkind: Pod\n").is_err());
        let with = |version: &str, expression: &str| {
            let conditions = format!("timeout: 3s, {version}matchConditions: [{{expression: {expression}}}]");
            file(&WEBHOOK.replace("timeout: 3s", &conditions)).map(drop).map_err(|error| format!("{error:#}"))
        };
        let v1 = "matchConditionSubjectAccessReviewVersion: v1, ";
        assert_eq!(with(v1, "\"request.user == 'ann'\""), Ok(()));
        let error = with("", "'true'").unwrap_err();
        assert!(error.contains("Required value: required if match conditions are specified"), "{error}");
        let error = with(v1, "'1'").unwrap_err();
        let expected =
            "authorizers[0].webhook.matchConditions[0].expression: Invalid value: \"1\": must evaluate to bool";
        assert!(error.contains(expected), "{error}");
    }
}
