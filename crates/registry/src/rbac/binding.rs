//! RoleBinding and ClusterRoleBinding: who gets a role.

use api::field::{FieldErrors, Path};
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, RoleRef, Subject};
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::{items, items_mut, or_empty, set_text, text};
use crate::{NameRule, Strategy, cells};

pub struct RoleBindingStrategy;
pub struct ClusterRoleBindingStrategy;

const GROUP: &str = "rbac.authorization.k8s.io";

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Role", "The role that is given."),
    Column::AGE,
    Column::string("Users", "Users who get it.").wide(),
    Column::string("Groups", "Groups that get it.").wide(),
    Column::string("ServiceAccounts", "Service accounts that get it.").wide(),
];

macro_rules! binding_strategy {
    ($strategy:ty, $kind:ty, $kinds:expr, $namespaced:expr) => {
        impl Strategy for $strategy {
            type Object = $kind;
            const CREATES_ON_UPDATE: bool = true;

            fn apply_defaults(&self, binding: &mut $kind) {
                defaults(&mut binding.role_ref, items_mut(&mut binding.subjects));
            }

            fn validate_create(&self, binding: &$kind) -> FieldErrors {
                validate(&binding.role_ref, items(&binding.subjects), $kinds, $namespaced)
            }

            fn validate_update(&self, new: &$kind, old: &$kind) -> FieldErrors {
                let mut errors = self.validate_create(new);
                if new.role_ref != old.role_ref {
                    errors.invalid("roleRef", &new.role_ref, "cannot change roleRef");
                }
                errors
            }

            fn name_rule(&self) -> NameRule {
                NameRule::PathSegment
            }

            fn columns(&self) -> &'static [Column] {
                COLUMNS
            }

            fn cells(&self, binding: &$kind, now: Timestamp) -> Vec<Value> {
                let role = &binding.role_ref;
                let [users, groups, accounts] = subjects(items(&binding.subjects));
                vec![
                    cells::name(&binding.metadata),
                    json!(format!("{}/{}", role.kind, role.name)),
                    cells::age(&binding.metadata, now),
                    json!(users),
                    json!(groups),
                    json!(accounts),
                ]
            }
        }
    };
}

binding_strategy!(RoleBindingStrategy, RoleBinding, &["Role", "ClusterRole"], true);
binding_strategy!(ClusterRoleBindingStrategy, ClusterRoleBinding, &["ClusterRole"], false);

fn defaults(role: &mut RoleRef, subjects: &mut [Subject]) {
    set_text(&mut role.api_group, GROUP);
    for subject in subjects {
        if matches!(subject.kind.as_str(), "User" | "Group") {
            set_text(&mut subject.api_group, GROUP);
        }
    }
}

fn validate(role: &RoleRef, subjects: &[Subject], kinds: &[&str], namespaced: bool) -> FieldErrors {
    let mut errors = FieldErrors::default();
    if or_empty(&role.api_group) != GROUP {
        errors.not_supported("roleRef.apiGroup", &role.api_group, &[GROUP]);
    }
    if !kinds.contains(&role.kind.as_str()) {
        errors.not_supported("roleRef.kind", &role.kind, kinds);
    }
    if role.name.is_empty() {
        errors.required("roleRef.name", "");
    } else {
        errors.invalid_each("roleRef.name", &role.name, validation::path_segment_name(&role.name));
    }
    let path = Path::new("subjects");
    for (i, subject) in subjects.iter().enumerate() {
        let path = path.index(i);
        if subject.name.is_empty() {
            errors.required(path.child("name"), "");
        }
        let group = or_empty(&subject.api_group);
        match subject.kind.as_str() {
            "ServiceAccount" => {
                if !subject.name.is_empty() {
                    let messages = validation::dns1123_subdomain(&subject.name);
                    errors.invalid_each(path.child("name"), &subject.name, messages);
                }
                if !group.is_empty() {
                    errors.not_supported(path.child("apiGroup"), group, &[""]);
                }
                if !namespaced && text(&subject.namespace).is_none() {
                    errors.required(path.child("namespace"), "");
                }
            }
            "User" | "Group" => {
                if group != GROUP {
                    errors.not_supported(path.child("apiGroup"), group, &[GROUP]);
                }
            }
            other => errors.not_supported(path.child("kind"), other, &["ServiceAccount", "User", "Group"]),
        }
    }
    errors
}

fn subjects(subjects: &[Subject]) -> [String; 3] {
    let of = |kind: &str| {
        let names: Vec<String> = subjects
            .iter()
            .filter(|subject| subject.kind == kind)
            .map(|subject| match (kind, text(&subject.namespace)) {
                ("ServiceAccount", Some(namespace)) => format!("{namespace}/{}", subject.name),
                ("ServiceAccount", None) => format!("/{}", subject.name),
                _ => subject.name.clone(),
            })
            .collect();
        names.join(", ")
    };
    [of("User"), of("Group"), of("ServiceAccount")]
}
