//! ResourceQuota: charges what an object uses to the quotas of its namespace, before it is stored.
//!
//! Flow: quotas of the namespace from the cache -> `scopes` (which of them are about the object) -> `usage` (what it
//! counts for, less what it counted for before) -> one charge per quota. A charge is a compare-and-swap on the quota's
//! status, so concurrent creates can never spend the same room twice; those of one namespace stand in line, because
//! losing the race costs more than waiting. The quota controller later corrects what failed or deleted objects leave.

mod limited;
mod scopes;
mod usage;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use api::Status;
use api::meta::Meta as _;
use api::pod::resources::{Amounts, add, parse};
use api::quota;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota as Quota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use parking_lot::Mutex;
use registry::{AnyObject, Object};

use super::config::Setting;
use super::{Admitted, Attributes, Plugin, Verb, admitted, later};
use crate::cluster::Cluster;
use limited::Limited;

pub(super) struct ResourceQuota {
    limited: Limited,
    lines: Lines,
}

impl ResourceQuota {
    pub(super) fn new(setting: Setting) -> anyhow::Result<Self> {
        Ok(Self { limited: Limited::new(setting)?, lines: Lines::default() })
    }
}

impl Plugin for ResourceQuota {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if !concerns(attributes) {
            return admitted();
        }
        // Most namespaces have no quota; this look must cost nothing.
        let quotas = match cluster.objects().list::<Quota>(Some(attributes.namespace)) {
            Ok(quotas) => quotas,
            Err(unreadable) => return Err(unreadable.into()).into(),
        };
        if quotas.is_empty() && self.limited.is_empty() {
            return admitted();
        }
        later(self.check(cluster, attributes, quotas))
    }
}

/// Writes that can change what a namespace uses.
fn concerns(attributes: &Attributes<'_>) -> bool {
    if !attributes.resource.is_namespaced() || attributes.namespace.is_empty() {
        return false;
    }
    match (attributes.verb, attributes.subresource) {
        (Verb::Create, "") => true,
        (Verb::Update, "resize") => attributes.is("", "pods"),
        (Verb::Update, "") if attributes.is("", "pods") => {
            // A deadline moves a pod from one scope to another.
            let pods = attributes.object_ref::<Pod>().zip(attributes.old_ref::<Pod>());
            pods.is_some_and(|(new, old)| quota::is_terminating(new) != quota::is_terminating(old))
        }
        (Verb::Update, "") => {
            let kinds = [("", "services"), ("", "persistentvolumeclaims"), ("resource.k8s.io", "resourceclaims")];
            kinds.iter().any(|(group, plural)| attributes.is(group, plural))
        }
        (Verb::Update, "status") if attributes.is("", "persistentvolumeclaims") => {
            let claims =
                attributes.object_ref::<PersistentVolumeClaim>().zip(attributes.old_ref::<PersistentVolumeClaim>());
            claims.is_some_and(|(new, old)| {
                quota::volume_attributes_classes(new) != quota::volume_attributes_classes(old)
                    || quota::of_volume_claim(new) != quota::of_volume_claim(old)
            })
        }
        _ => false,
    }
}

impl ResourceQuota {
    async fn check(
        &self,
        cluster: &Arc<Cluster>,
        attributes: &Attributes<'_>,
        quotas: Vec<Quota>,
    ) -> Result<(), Status> {
        let Some(object) = attributes.object.as_deref().map(|object| &**object) else { return Ok(()) };
        let usage = usage::usage_of(attributes.resource, object);
        let negative: Vec<&str> =
            usage.iter().filter(|(_, amount)| amount.is_negative()).map(|(name, _)| name.as_str()).collect();
        if !negative.is_empty() {
            let message = format!("quota usage is negative for resource(s): {}", negative.join(","));
            return Err(attributes.forbidden(message));
        }
        let before = attributes.old.map(|old| usage::usage_of(attributes.resource, old));
        let mut charges = Vec::new();
        for quota in quotas.iter().filter(|quota| scopes::selects(quota, object)) {
            let hard = quota.status.as_ref().and_then(|status| status.hard.as_ref());
            let name = quota.metadata.name();
            if let Some(pod) = attributes.object_ref::<Pod>() {
                let missing = usage::missing(pod, hard.into_iter().flat_map(BTreeMap::keys));
                if !missing.is_empty() {
                    let message = format!("failed quota: {name}: must specify {}", missing.join("; "));
                    return Err(attributes.forbidden(message));
                }
            }
            // What this quota already counted for the object is not charged again.
            let counted = attributes.old.filter(|old| scopes::selects(quota, *old)).and(before.as_ref());
            let charge: Amounts = increase(&usage, counted)
                .into_iter()
                .filter(|(key, _)| hard.is_some_and(|hard| hard.contains_key(key)))
                .collect();
            charges.push((name.to_owned(), charge));
        }
        self.limited.check(attributes, object, &usage, &quotas)?;
        charges.retain(|(_, charge)| !charge.is_empty());
        if charges.is_empty() {
            return Ok(());
        }
        let line = self.lines.of(attributes.namespace);
        let _turn = line.lock().await;
        for (name, charge) in charges {
            self.charge(cluster, attributes, &name, &charge).await?;
        }
        Ok(())
    }

    async fn charge(
        &self,
        cluster: &Arc<Cluster>,
        attributes: &Attributes<'_>,
        name: &str,
        charge: &Amounts,
    ) -> Result<(), Status> {
        let Some(resource) = cluster.registry.find("", "v1", "resourcequotas") else { return Ok(()) };
        if attributes.dry_run {
            let quota = cluster.objects().get::<Quota>(attributes.namespace, name)?;
            let outcome = quota.map_or(Ok(()), |quota| spend(&quota, name, charge).map(drop));
            return outcome.map_err(|problem| attributes.forbidden(problem));
        }
        let refused = Mutex::new(None);
        let change = |old: &dyn Object| -> Result<AnyObject, Status> {
            let old = old.downcast_ref::<Quota>().ok_or_else(|| Status::internal("not a quota"))?;
            match spend(old, name, charge) {
                Ok(new) => Ok(Box::new(new)),
                Err(problem) => {
                    *refused.lock() = Some(problem.clone());
                    Err(Status::internal(problem))
                }
            }
        };
        let outcome = cluster.own()?.modify_status(&resource, attributes.namespace, name, None, &change).await;
        match (outcome, refused.into_inner()) {
            (_, Some(problem)) => Err(attributes.forbidden(problem)),
            (Ok(()), None) => Ok(()),
            // The quota was deleted meanwhile: nothing to charge.
            (Err(status), None) if status.is_not_found() => Ok(()),
            (Err(status), None) => Err(status),
        }
    }
}

/// What is used more than before; nothing is ever given back here.
fn increase(usage: &Amounts, before: Option<&Amounts>) -> Amounts {
    let mut more = Amounts::new();
    for (key, amount) in usage {
        let mut rest = amount.clone();
        if let Some(old) = before.and_then(|before| before.get(key)) {
            rest.sub(old);
        }
        if !rest.is_zero() && !rest.is_negative() {
            more.insert(key.clone(), rest);
        }
    }
    more
}

/// Why a charge does not fit into a quota.
#[derive(Clone, Debug, thiserror::Error)]
enum NoRoom {
    #[error("status unknown for quota: {quota}, resources: {resources}")]
    Unknown { quota: String, resources: String },
    #[error("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}")]
    Exceeded { quota: String, requested: String, used: String, limited: String },
}

/// The quota with the charge added, or why it does not fit.
fn spend(quota: &Quota, name: &str, charge: &Amounts) -> Result<Quota, NoRoom> {
    let mut new = quota.clone();
    new.metadata.resource_version = None;
    let status = new.status.get_or_insert_default();
    let hard = parse(status.hard.as_ref());
    let mut used = parse(status.used.as_ref());
    let unknown: Vec<&str> = charge.keys().filter(|key| !used.contains_key(*key)).map(String::as_str).collect();
    if !unknown.is_empty() {
        return Err(NoRoom::Unknown { quota: name.to_owned(), resources: unknown.join(",") });
    }
    let before = used.clone();
    add(&mut used, charge);
    let exceeded: Vec<&String> =
        charge.keys().filter(|key| hard.get(*key).is_some_and(|limit| used[*key] > *limit)).collect();
    if exceeded.is_empty() {
        let shown = used.into_iter().map(|(key, amount)| (key, Quantity(amount.to_string())));
        status.used = Some(shown.collect());
        return Ok(new);
    }
    let list = |amounts: &Amounts| {
        let shown = exceeded.iter().filter_map(|key| Some(format!("{key}={}", amounts.get(*key)?)));
        shown.collect::<Vec<_>>().join(",")
    };
    Err(NoRoom::Exceeded { quota: name.to_owned(), requested: list(charge), used: list(&before), limited: list(&hard) })
}

/// One line per namespace; a line exists while somebody stands in it.
#[derive(Default)]
struct Lines(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Lines {
    fn of(&self, namespace: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut lines = self.0.lock();
        if let Some(line) = lines.get(namespace).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(tokio::sync::Mutex::new(()));
        lines.insert(namespace.to_owned(), Arc::downgrade(&line));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ResourceQuotaStatus;

    fn amounts(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
    }

    #[test]
    fn spending_stops_at_the_limit() {
        let status =
            ResourceQuotaStatus { hard: Some(amounts(&[("pods", "2")])), used: Some(amounts(&[("pods", "0")])) };
        let mut quota = Quota { status: Some(status), ..Default::default() };
        let charge = parse(Some(&amounts(&[("pods", "1")])));
        for _ in 0..2 {
            quota = spend(&quota, "q", &charge).unwrap();
        }
        let refused = spend(&quota, "q", &charge).unwrap_err();
        assert_eq!(refused.to_string(), "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2");
        let unknown = parse(Some(&amounts(&[("secrets", "1")])));
        let refused = spend(&quota, "q", &unknown).unwrap_err();
        assert_eq!(refused.to_string(), "status unknown for quota: q, resources: secrets");
    }

    #[test]
    fn only_increases_are_charged() {
        let usage = parse(Some(&amounts(&[("cpu", "2"), ("memory", "1Gi"), ("pods", "1")])));
        let before = parse(Some(&amounts(&[("cpu", "500m"), ("memory", "2Gi"), ("pods", "1")])));
        let more: Vec<String> =
            increase(&usage, Some(&before)).iter().map(|(key, amount)| format!("{key}={amount}")).collect();
        assert_eq!(more, ["cpu=1500m"]);
        assert_eq!(increase(&usage, None).len(), 3);
    }
}
