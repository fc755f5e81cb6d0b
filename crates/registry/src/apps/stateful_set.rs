//! StatefulSet: pods with names, an order and volumes of their own.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::sort::CompactCollect as _;
use api::validation as names;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, PodTemplateSpec, Volume};
use serde_json::{Value, json};

use super::rules;
use crate::column::Column;
use crate::core::persistent_volume_claim;
use crate::core::pod_spec::{defaults, template, template_warnings};
use crate::core::volume_warnings::of_claim_spec;
use crate::metadata::same;
use crate::unset::{items, items_mut, or_empty, set_text, text};
use crate::{Strategy, cells};

pub struct StatefulSetStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Ready", "How many pods are ready, of how many."),
    Column::AGE,
    cells::CONTAINERS,
    cells::IMAGES,
];

impl Strategy for StatefulSetStrategy {
    type Object = StatefulSet;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, set: &mut StatefulSet) {
        let spec = set.spec.get_or_insert_default();
        set_text(&mut spec.pod_management_policy, "OrderedReady");
        let strategy = spec.update_strategy.get_or_insert_default();
        if text(&strategy.type_).is_none() {
            strategy.type_ = Some("RollingUpdate".to_owned());
            strategy.rolling_update.get_or_insert_default();
        }
        if strategy.type_.as_deref() == Some("RollingUpdate")
            && let Some(rolling) = &mut strategy.rolling_update
        {
            rolling.partition.get_or_insert(0);
        }
        let retention = spec.persistent_volume_claim_retention_policy.get_or_insert_default();
        set_text(&mut retention.when_deleted, "Retain");
        set_text(&mut retention.when_scaled, "Retain");
        spec.replicas.get_or_insert(1);
        spec.revision_history_limit.get_or_insert(10);
        // No pointers upstream: there whether anyone set them or not.
        spec.service_name.get_or_insert_default();
        if let Some(ordinals) = &mut spec.ordinals {
            ordinals.start.get_or_insert_default();
        }
        defaults::pod_template(&mut spec.template);
        for claim in items_mut(&mut spec.volume_claim_templates) {
            if let Some(claim) = &mut claim.spec {
                defaults::claim(claim);
            }
            let status = claim.status.get_or_insert_default();
            set_text(&mut status.phase, "Pending");
        }
    }

    fn validate_create(&self, set: &StatefulSet) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if let Some(spec) = &set.spec {
            let path = Path::new("spec");
            validate_spec(&mut errors, &path, spec);
            if let Some(service) = text(&spec.service_name) {
                errors.invalid_each(path.child("serviceName"), service, names::dns1123_label(service));
            }
            let path = path.child("volumeClaimTemplates");
            for (i, claim) in items(&spec.volume_claim_templates).iter().enumerate() {
                let claim = claim.spec.clone().unwrap_or_default();
                persistent_volume_claim::validate_spec(&mut errors, &path.index(i).child("spec"), &claim);
            }
        }
        errors
    }

    fn validate_update(&self, new: &StatefulSet, old: &StatefulSet) -> FieldErrors {
        let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return FieldErrors::default() };
        let found = |spec| {
            let mut errors = FieldErrors::default();
            validate_spec(&mut errors, &Path::new("spec"), spec);
            errors
        };
        let mut errors = template::forgive(found(new), || found(old));
        let mut munged = new.clone();
        munged.replicas = old.replicas;
        munged.template.clone_from(&old.template);
        munged.update_strategy.clone_from(&old.update_strategy);
        munged.min_ready_seconds = old.min_ready_seconds;
        munged.ordinals.clone_from(&old.ordinals);
        munged.revision_history_limit = old.revision_history_limit;
        munged.persistent_volume_claim_retention_policy.clone_from(&old.persistent_volume_claim_retention_policy);
        if !same(&munged, old) {
            errors.forbidden(
                "spec",
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
            );
        }
        errors
    }

    fn warnings(&self, new: &StatefulSet, old: Option<&StatefulSet>) -> Vec<String> {
        fn template(object: &StatefulSet) -> Option<&PodTemplateSpec> {
            object.spec.as_ref().map(|spec| &spec.template)
        }
        let Some(spec) = &new.spec else { return Vec::new() };
        let mut warnings = template_warnings("spec.template", &spec.template, old.and_then(template));
        let list = Path::new("spec.volumeClaimTemplates");
        for (i, claim) in items(&spec.volume_claim_templates).iter().enumerate() {
            // Upstream leaves the second step out, or begins it with a capital.
            let (item, claim) = (list.index(i), claim.spec.clone().unwrap_or_default());
            let at = if old.is_some() { item.child("Spec") } else { item };
            warnings.extend(of_claim_spec(&at, &claim));
        }
        if spec.revision_history_limit.is_some_and(|limit| limit < 0) {
            let why = "a negative value retains all historical revisions; a value >= 0 is recommended";
            warnings.push(format!("spec.revisionHistoryLimit: {why}"));
        }
        warnings
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, set: &StatefulSet, now: Timestamp) -> Vec<Value> {
        let spec = set.spec.clone().unwrap_or_default();
        let ready = set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
        let [containers, images] = cells::template(Some(&spec.template));
        vec![
            cells::name(&set.metadata),
            json!(format!("{ready}/{}", spec.replicas.unwrap_or(0))),
            cells::age(&set.metadata, now),
            containers,
            images,
        ]
    }
}

fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &StatefulSetSpec) {
    match or_empty(&spec.pod_management_policy) {
        "" => errors.required(path.child("podManagementPolicy"), ""),
        "OrderedReady" | "Parallel" => {}
        other => errors.invalid(path.child("podManagementPolicy"), other, "must be 'OrderedReady' or 'Parallel'"),
    }
    let strategy = spec.update_strategy.clone().unwrap_or_default();
    let strategy_path = path.child("updateStrategy");
    match (or_empty(&strategy.type_), &strategy.rolling_update) {
        ("", _) => errors.required(strategy_path, ""),
        ("OnDelete", Some(rolling)) => errors.invalid(
            strategy_path.child("rollingUpdate"),
            rolling,
            "only allowed for updateStrategy 'RollingUpdate'",
        ),
        ("RollingUpdate", Some(rolling)) => {
            let path = strategy_path.child("rollingUpdate");
            rules::non_negative(errors, &path.child("partition"), rolling.partition.map(i64::from));
            if let Some(unavailable) = &rolling.max_unavailable {
                let path = path.child("maxUnavailable");
                rules::count_or_percent(errors, &path, Some(unavailable));
                rules::at_most_all(errors, &path, Some(unavailable));
                if rules::is_zero(Some(unavailable)) {
                    errors.invalid(path, unavailable, "cannot be 0");
                }
            }
        }
        ("OnDelete" | "RollingUpdate", None) => {}
        (_, _) => errors.invalid(strategy_path, &strategy, "must be 'RollingUpdate' or 'OnDelete'"),
    }
    if let Some(retention) = &spec.persistent_volume_claim_retention_policy {
        let path = path.child("persistentVolumeClaimRetentionPolicy");
        for (name, value) in [("whenDeleted", &retention.when_deleted), ("whenScaled", &retention.when_scaled)] {
            let value = or_empty(value);
            if !matches!(value, "Retain" | "Delete") {
                errors.not_supported(path.child(name), value, &["Retain", "Delete"]);
            }
        }
    }
    rules::non_negative(errors, &path.child("replicas"), spec.replicas.map(i64::from));
    rules::non_negative(errors, &path.child("minReadySeconds"), spec.min_ready_seconds.map(i64::from));
    if let Some(ordinals) = &spec.ordinals {
        rules::non_negative(errors, &path.child("ordinals.start"), ordinals.start.map(i64::from));
    }
    let template = template_with_claims(spec);
    rules::selector_and_template(errors, path, &spec.selector, &template, "statefulset");
    rules::always_restarts(errors, path, &spec.template, "StatefulSet");
}

/// The template as its pods will be: with a volume for each claim, and names the controller sets itself left out.
fn template_with_claims(spec: &StatefulSetSpec) -> PodTemplateSpec {
    let mut template = spec.template.clone();
    if let Some(pod) = &mut template.spec {
        pod.subdomain = None;
        pod.hostname = None;
        let claims = items(&spec.volume_claim_templates);
        let claim_names: Vec<String> = claims.iter().filter_map(|claim| claim.metadata.name.clone()).collect();
        let volumes = pod.volumes.get_or_insert_default();
        let taken: BTreeSet<&String> = claim_names.iter().compact_collect();
        volumes.retain(|volume| !taken.contains(&volume.name));
        volumes.extend(claim_names.into_iter().map(|name| Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: name.clone(),
                ..Default::default()
            }),
            name,
            ..Volume::default()
        }));
    }
    template
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_judged_before_a_pod_waits_for_them() {
        let set = |claim: Value| -> StatefulSet {
            let template =
                json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}});
            let mut set = serde_json::from_value(json!({"metadata": {"name": "db"}, "spec": {
                "selector": {"matchLabels": {"a": "b"}}, "template": template,
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
            }}))
            .unwrap();
            StatefulSetStrategy.apply_defaults(&mut set);
            set
        };
        let size = json!({"requests": {"storage": "1Gi"}});
        for (claim, expected) in [
            (json!({"accessModes": ["ReadWriteOnce"], "resources": size}), "[]"),
            (json!({"resources": size}), "spec.volumeClaimTemplates[0].spec.accessModes: Required value"),
            (
                json!({"accessModes": ["ReadWriteOnce"]}),
                "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value",
            ),
        ] {
            let found = StatefulSetStrategy.validate_create(&set(claim.clone())).to_string();
            assert!(found.starts_with(expected), "{claim}: {found}");
            // What is there already can still be scaled, and go.
            let found = StatefulSetStrategy.validate_update(&set(claim.clone()), &set(claim)).to_string();
            assert_eq!(found, "[]");
        }
    }
}
