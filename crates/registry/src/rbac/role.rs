//! Role and ClusterRole: what may be done.

use api::field::{FieldErrors, Path};
use api::time::rfc3339;
use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use serde_json::{Value, json};

use crate::cells;
use crate::column::Column;
use crate::metadata::label_selector;
use crate::unset::items;
use crate::{NameRule, Strategy};

pub struct RoleStrategy;
pub struct ClusterRoleStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::CREATED];

impl Strategy for RoleStrategy {
    type Object = Role;
    const CREATES_ON_UPDATE: bool = true;

    fn validate_create(&self, role: &Role) -> FieldErrors {
        let mut errors = FieldErrors::default();
        rules(&mut errors, items(&role.rules), true);
        errors
    }

    fn validate_update(&self, new: &Role, _: &Role) -> FieldErrors {
        self.validate_create(new)
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, role: &Role, _: Timestamp) -> Vec<Value> {
        let created = role.metadata.creation_timestamp.as_ref().map(|time| rfc3339(time.0));
        vec![cells::name(&role.metadata), json!(created.unwrap_or_default())]
    }
}

impl Strategy for ClusterRoleStrategy {
    type Object = ClusterRole;
    const CREATES_ON_UPDATE: bool = true;

    fn validate_create(&self, role: &ClusterRole) -> FieldErrors {
        let mut errors = FieldErrors::default();
        rules(&mut errors, items(&role.rules), false);
        if let Some(aggregation) = &role.aggregation_rule {
            let path = Path::new("aggregationRule.clusterRoleSelectors");
            let selectors = items(&aggregation.cluster_role_selectors);
            if selectors.is_empty() {
                errors.required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil");
            }
            for (i, selector) in selectors.iter().enumerate() {
                label_selector(&mut errors, &path.index(i), Some(selector));
            }
        }
        errors
    }

    fn validate_update(&self, new: &ClusterRole, _: &ClusterRole) -> FieldErrors {
        self.validate_create(new)
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, role: &ClusterRole, _: Timestamp) -> Vec<Value> {
        let created = role.metadata.creation_timestamp.as_ref().map(|time| rfc3339(time.0));
        vec![cells::name(&role.metadata), json!(created.unwrap_or_default())]
    }
}

fn rules(errors: &mut FieldErrors, rules: &[PolicyRule], namespaced: bool) {
    let path = Path::new("rules");
    for (i, rule) in rules.iter().enumerate() {
        let path = path.index(i);
        if rule.verbs.is_empty() {
            errors.required(path.child("verbs"), "verbs must contain at least one value");
        }
        let (groups, resources) = (items(&rule.api_groups), items(&rule.resources));
        let urls = items(&rule.non_resource_urls);
        if urls.is_empty() {
            if groups.is_empty() {
                errors.required(path.child("apiGroups"), "resource rules must supply at least one api group");
            }
            if resources.is_empty() {
                errors.required(path.child("resources"), "resource rules must supply at least one resource");
            }
            continue;
        }
        let path = path.child("nonResourceURLs");
        if namespaced {
            errors.invalid(path, urls, "namespaced rules cannot apply to non-resource URLs");
        }
        if !groups.is_empty() || !resources.is_empty() || !items(&rule.resource_names).is_empty() {
            errors.invalid(path, urls, "rules cannot apply to both regular resources and non-resource URLs");
        }
    }
}
