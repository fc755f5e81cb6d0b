//! Old tokens in Secrets: those made automatically by earlier versions are first marked invalid, then removed, if nobody uses them.
//!
//! The API server writes when it began to track uses, and the day of the last use, as labels; a token is touched only after a year of
//! silence, and only if its account lists it, which tells that no person made it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use client::{Client, Clock, DeleteParams, Informer, ListParams, Patch};
use futures_util::future::BoxFuture;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use serde_json::json;

use super::{ACCOUNT_NAME, TOKEN_TYPE, annotation, belongs_to};
use crate::Error;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;

const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const SYNC_PERIOD: Duration = Duration::from_secs(24 * 60 * 60);

struct Controller {
    client: Client,
    clock: Clock,
    accounts: Informer<ServiceAccount>,
    secrets: Informer<Secret>,
    pods: Informer<Pod>,
    /// `--legacy-service-account-token-clean-up-period`.
    unused_for: Duration,
}

/// There is one key: everything, once a day.
pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    const DAILY: &str = "everything is looked at again every day";
    let secrets = context.filtered::<Secret>(ListParams::fields(format!("type={TOKEN_TYPE}"))).wakes_nothing(DAILY);
    let accounts = context.informer::<ServiceAccount>().wakes_nothing(DAILY);
    let pods = context.informer::<Pod>().wakes_nothing(DAILY);
    context.queue.add("all".into());
    let unused_for = context.config.legacy_token_clean_up_period;
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        accounts,
        secrets,
        pods,
        unused_for,
    })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            self.clean(self.clock.now()).await?;
            Ok(Requeue::After(SYNC_PERIOD))
        })
    }
}

/// What becomes of one token.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Keep,
    MarkInvalid,
    Delete,
}

/// `before` is the day before which a use is too long ago.
fn judge(secret: &Secret, is_automatic: bool, is_mounted: bool, before: Date, before_time: Timestamp) -> Verdict {
    let created = secret.metadata.creation_timestamp.as_ref().map(|time| time.0);
    if created.is_none_or(|created| created >= before_time) || secret.metadata.deletion_timestamp.is_some() {
        return Verdict::Keep;
    }
    let label = |key: &str| secret.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let day = |key: &str| label(key).map(|text| text.parse::<Date>());
    // Never used since tracking began counts as long ago; an unreadable day as unknown.
    match day(LAST_USED) {
        Some(Err(_)) => return Verdict::Keep,
        Some(Ok(used)) if used >= before => return Verdict::Keep,
        _ => {}
    }
    if !is_automatic || is_mounted {
        return Verdict::Keep;
    }
    match day(INVALID_SINCE) {
        Some(Ok(since)) if since < before => Verdict::Delete,
        Some(Ok(_)) => Verdict::Keep,
        _ => Verdict::MarkInvalid,
    }
}

impl Controller {
    async fn clean(&self, now: Timestamp) -> Result<(), Error> {
        let maps = self.client.namespaced::<ConfigMap>("kube-system");
        let Some(map) = maps.get_opt(TRACKING).await? else { return Ok(()) };
        let since = map.data.as_ref().and_then(|data| data.get("since")).and_then(|text| text.parse::<Date>().ok());
        let Some(since) = since else {
            return Err(Error::object(format!("config map {TRACKING}: no day in \"since\"")));
        };
        let today = now.to_zoned(TimeZone::UTC).date();
        let Ok(before_time) = now.checked_sub(self.unused_for) else { return Ok(()) };
        let before = before_time.to_zoned(TimeZone::UTC).date();
        // The first day was tracked only in part.
        if since.saturating_add(1.day()) > before {
            return Ok(());
        }
        for secret in self.secrets.list() {
            let (is_automatic, is_mounted) = (self.is_automatic(&secret), self.is_mounted(&secret));
            let api = self.client.namespaced::<Secret>(secret.metadata.namespace());
            let name = secret.metadata.name();
            let done = match judge(&secret, is_automatic, is_mounted, before, before_time) {
                Verdict::Keep => continue,
                Verdict::MarkInvalid => {
                    let labels = json!({ INVALID_SINCE: today.to_string() });
                    let patch = Patch::merge(json!({ "metadata": { "uid": secret.metadata.uid, "labels": labels } }));
                    api.patch(name, &patch).await.map(drop)
                }
                Verdict::Delete => {
                    let resource_version = secret.metadata.resource_version.clone();
                    api.delete(name, &DeleteParams { resource_version, ..DeleteParams::default() }).await
                }
            };
            if_unchanged(done)?;
        }
        Ok(())
    }

    /// Only tokens that nobody asked for are listed by their account.
    fn is_automatic(&self, secret: &Secret) -> bool {
        let namespace = secret.metadata.namespace();
        let account = self.accounts.get(&format!("{namespace}/{}", annotation(secret, ACCOUNT_NAME)));
        account.filter(|account| belongs_to(secret, account)).is_some_and(|account| {
            account.secrets.iter().flatten().any(|reference| reference.name == secret.metadata.name)
        })
    }

    fn is_mounted(&self, secret: &Secret) -> bool {
        let pods = self.pods.by_namespace(secret.metadata.namespace());
        let name = secret.metadata.name();
        pods.iter().any(|pod| secret_names(pod).contains(name))
    }
}

/// Every Secret a pod refers to: wherever its spec says `secretName`, `secretRef`, `secretKeyRef` or names one to pull images with.
fn secret_names(pod: &Pod) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let Some(spec) = &pod.spec else { return names };
    names.extend(spec.image_pull_secrets.iter().flatten().map(|reference| reference.name.as_str()));
    for volume in spec.volumes.iter().flatten() {
        names.extend(volume.secret.as_ref().and_then(|secret| secret.secret_name.as_deref()));
        let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        names.extend(sources.filter_map(|source| source.secret.as_ref()).map(|secret| secret.name.as_str()));
    }
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    for container in containers {
        let from = container.env_from.iter().flatten().filter_map(|from| from.secret_ref.as_ref());
        names.extend(from.map(|reference| reference.name.as_str()));
        let keys = container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()?.secret_key_ref.as_ref());
        names.extend(keys.map(|reference| reference.name.as_str()));
    }
    names
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn unused_tokens_are_marked_and_later_removed() {
        let before_time: Timestamp = "2025-06-01T00:00:00Z".parse().unwrap();
        let before: Date = "2025-06-01".parse().unwrap();
        let secret = |created: &str, labels: &[(&str, &str)]| {
            let mut secret = Secret::default();
            secret.metadata.creation_timestamp = Some(Time(created.parse().unwrap()));
            secret.metadata.labels =
                Some(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
            secret
        };
        let (old, young) = ("2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z");
        for (created, labels, automatic, mounted, expected) in [
            (young, &[][..], true, false, Verdict::Keep),
            (old, &[][..], false, false, Verdict::Keep),
            (old, &[][..], true, true, Verdict::Keep),
            (old, &[][..], true, false, Verdict::MarkInvalid),
            (old, &[(LAST_USED, "2025-07-01")], true, false, Verdict::Keep),
            (old, &[(LAST_USED, "2025-01-01")], true, false, Verdict::MarkInvalid),
            (old, &[(LAST_USED, "lately")], true, false, Verdict::Keep),
            (old, &[(INVALID_SINCE, "2025-07-01")], true, false, Verdict::Keep),
            (old, &[(INVALID_SINCE, "2025-01-01")], true, false, Verdict::Delete),
            (old, &[(INVALID_SINCE, "once")], true, false, Verdict::MarkInvalid),
        ] {
            let verdict = judge(&secret(created, labels), automatic, mounted, before, before_time);
            assert_eq!(verdict, expected, "{created} {labels:?} {automatic} {mounted}");
        }
    }
}
