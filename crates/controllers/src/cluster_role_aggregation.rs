//! ClusterRole aggregation: roles made of the rules of other roles, chosen by label.

use std::sync::Arc;

use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::{Client, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::{Error, pods};

struct Controller {
    client: Client,
    roles: Informer<ClusterRole>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let roles = context.informer::<ClusterRole>();
    let (all, queue) = (roles.shared(), context.queue.clone());
    // Any role may be part of any aggregate.
    let roles = roles.wakes(move |_| {
        for role in all.list().iter().filter(|role| role.aggregation_rule.is_some()) {
            queue.add(role.metadata.name().to_owned());
        }
    });
    Arc::new(Controller { client: context.client.clone(), roles })
}

/// The rules of every selected role, in order of role names, each once.
fn plan(role: &ClusterRole, roles: &[Arc<ClusterRole>]) -> Result<Vec<PolicyRule>, Error> {
    let mut sorted: Vec<&Arc<ClusterRole>> =
        roles.iter().filter(|other| other.metadata.name != role.metadata.name).collect();
    sorted.compact_sort_by(|left, right| left.metadata.name.cmp(&right.metadata.name));
    let mut rules = Vec::new();
    for selector in role.aggregation_rule.iter().flat_map(|rule| rule.cluster_role_selectors.iter().flatten()) {
        let selector = pods::selector(Some(selector))?;
        for other in sorted.iter().filter(|other| selector.matches(other.metadata.labels.as_ref())) {
            for rule in other.rules.iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Ok(rules)
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(role) = self.roles.get(key).filter(|role| role.aggregation_rule.is_some()) else {
                return Ok(Requeue::Never);
            };
            let rules = plan(&role, &self.roles.list())?;
            if role.rules.clone().unwrap_or_default() != rules {
                let changed = ClusterRole { rules: Some(rules), ..ClusterRole::clone(&role) };
                self.client.all::<ClusterRole>().update(&changed).await?;
            }
            Ok(Requeue::Never)
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::rbac::v1::AggregationRule;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    use super::*;

    #[test]
    fn rules_are_gathered_once_in_order() {
        let role = |name: &str, labelled: bool, verb: &str| {
            let rule = PolicyRule { verbs: vec![verb.into()], ..PolicyRule::default() };
            let mut role = ClusterRole { rules: Some(vec![rule]), ..ClusterRole::default() };
            role.metadata.name = Some(name.into());
            role.metadata.labels = labelled.then(|| [("to".to_owned(), "admin".to_owned())].into());
            Arc::new(role)
        };
        let mut admin = ClusterRole::clone(&role("admin", false, "old"));
        let selector = LabelSelector {
            match_labels: Some([("to".to_owned(), "admin".to_owned())].into()),
            ..LabelSelector::default()
        };
        admin.aggregation_rule = Some(AggregationRule { cluster_role_selectors: Some(vec![selector]) });
        let rules = plan(
            &admin,
            &[role("b", true, "get"), role("a", true, "list"), role("c", true, "get"), role("d", false, "watch")],
        )
        .unwrap();
        assert_eq!(rules.iter().map(|rule| rule.verbs[0].as_str()).collect::<Vec<_>>(), ["list", "get"]);
    }
}
