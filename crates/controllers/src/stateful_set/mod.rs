//! StatefulSet: pods with names, storage and an order.
//!
//! Flow: set, pod and revision events -> set key -> claim pods -> record the template as a revision -> `plan` -> claims, pods -> status.
//! Names are fixed, so nothing can be created twice.

mod plan;
mod retention;

use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::selector::Selector;
use client::metrics::Metrics;
use client::{Client, Clock, DeleteParams, Event, EventRecorder, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod as NewPod, PodTemplateSpec, Volume,
};

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::owners::{
    adopters, candidates, claim, controller_key, controller_reference, former_controller, index_orphans,
};
use crate::{Error, history, pods};
use plan::{Availability, Plan, Revisions, ordinal, plan};

const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    sets: Informer<StatefulSet>,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    revisions: Informer<ControllerRevision>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let sets = context.on_self::<StatefulSet>();
    let owners = sets.clone();
    let pods = context.on::<Pod, _>(move |event| {
        let pod = event.object();
        let mut keys: Vec<String> = controller_key(&pod.metadata, &owners).into_iter().collect();
        keys.extend(former_controller(event, &owners));
        if !matches!(event, Event::Deleted(_)) {
            keys.extend(adopters(&pod.metadata, &owners, selector));
        }
        keys
    });
    index_orphans(&pods);
    let owners = sets.clone();
    let claims = context.on::<PersistentVolumeClaim, _>(move |event| match event {
        Event::Modified { old, new }
            if old.metadata.owner_references == new.metadata.owner_references
                && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp =>
        {
            Vec::new()
        }
        _ => sets_of(&owners, event.object()),
    });
    let owners = sets.clone();
    let revisions = context.on::<ControllerRevision, _>(move |event| history::keys(event, &owners));
    measure(&context.config.metrics, context.config.clock.clone(), sets.clone(), pods.clone());
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        sets,
        pods,
        claims,
        revisions,
    })
}

/// The sets whose pods use a claim of this name.
fn sets_of(sets: &Informer<StatefulSet>, claim: &PersistentVolumeClaim) -> Vec<String> {
    let (namespace, name) = (claim.metadata.namespace(), claim.metadata.name());
    let uses = |set: &StatefulSet| {
        let set_name = set.metadata.name();
        set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten()).any(|template| {
            let pod = name.strip_prefix(template.metadata.name());
            pod.and_then(|pod| pod.strip_prefix('-')).is_some_and(|pod| ordinal(set_name, pod).is_some())
        })
    };
    sets.by_namespace(namespace).iter().filter(|set| uses(set)).map(|set| pods::key(&**set)).collect()
}

/// How available each set is, is looked at when somebody asks.
fn measure(metrics: &Metrics, clock: Clock, sets: Informer<StatefulSet>, pods: Informer<Pod>) {
    let gauges = metrics.downgrade();
    metrics.on_render(move || {
        let Some(metrics) = gauges.upgrade() else { return };
        let now = clock.now();
        let all = sets.list().into_iter().map(|set| {
            let mine = pods.by_owner(set.metadata.uid());
            let policy = set.spec.as_ref().and_then(|spec| spec.pod_management_policy.as_deref());
            let labels = [
                set.metadata.namespace().to_owned(),
                set.metadata.name().to_owned(),
                policy.unwrap_or("OrderedReady").to_owned(),
            ];
            (labels, Availability::of(&set, &mine, now))
        });
        let sets: Vec<_> = all.collect();
        let labels = ["statefulset_namespace", "statefulset_name", "pod_management_policy"];
        let row = |value: fn(&Availability) -> usize| {
            sets.iter().map(move |(labels, seen)| (labels.clone(), value(seen) as f64))
        };
        let (name, help) = ("statefulset_controller_statefulset_unavailable_replicas", "Pods missing or unavailable");
        metrics.set_gauges(name, help, labels, row(|seen| seen.unavailable));
        let (name, help) = ("statefulset_controller_statefulset_max_unavailable", "Pods that an update may take away");
        metrics.set_gauges(name, help, labels, row(|seen| seen.most_unavailable));
    });
}

fn selector(set: &StatefulSet) -> Result<Selector, Error> {
    pods::selector(set.spec.as_ref().map(|spec| &spec.selector))
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(set) = self.sets.get(key) else { return Ok(Requeue::Never) };
        let Some(spec) = &set.spec else { return Ok(Requeue::Never) };
        let is_member = |pod: &Pod| ordinal_of(&set, pod).is_some();
        let mine =
            claim(&self.client, &*set, &selector(&set)?, candidates(&self.pods, &set.metadata), is_member).await?;
        let recorded = history::of(&self.revisions, &*set);
        let status = set.status.clone().unwrap_or_default();
        let update = history::record(&self.client, &*set, &spec.template, &recorded, status.collision_count).await?;
        let current = match status.current_revision.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => history::named(&self.client, &*set, &recorded, name).await?,
            None => None,
        };
        let current = current.unwrap_or_else(|| update.clone());
        let plan = plan(
            &set,
            &mine,
            Revisions { current: history::name(&current), update: history::name(&update) },
            self.clock.now(),
        );
        let failure = match self.settle_claims(&set, &mine).await {
            Ok(()) => self.carry_out(&set, &plan, &current, &update).await.err(),
            Err(error) => Some(error),
        };

        if set.status.as_ref() != Some(&plan.status) {
            let changed = StatefulSet { status: Some(plan.status.clone()), ..StatefulSet::clone(&set) };
            self.client.all::<StatefulSet>().update_status(&changed).await?;
        }
        let used: Vec<String> =
            mine.iter().filter_map(|pod| pod.metadata.labels.as_ref()?.get(history::REVISION_LABEL).cloned()).collect();
        let is_live = |name: &str| {
            name == history::name(&current) || name == history::name(&update) || used.iter().any(|used| used == name)
        };
        history::truncate(&self.client, &recorded, is_live, spec.revision_history_limit.unwrap_or(10)).await?;
        match failure {
            Some(error) => Err(error),
            None => Ok(plan.recheck.map(|delay| delay + Duration::from_secs(1)).into()),
        }
    }

    async fn carry_out(
        &self,
        set: &StatefulSet,
        plan: &Plan,
        current: &ControllerRevision,
        update: &ControllerRevision,
    ) -> Result<(), Error> {
        let about = client::reference(set);
        let set_name = set.metadata.name();
        for number in &plan.claims {
            self.ensure_claims(set, *number).await?;
        }
        for (number, new) in &plan.create {
            let revision = if *new { update } else { current };
            let Some(template) = history::template(revision) else { continue };
            let pod = new_pod(set, &template, *number, history::name(revision));
            let pod_name = pod.metadata.name().to_owned();
            if self.has_doomed_claim(set, *number, &pod_name) {
                return Err(Error::object(format!("pod {pod_name}: a claim of its predecessor is not gone yet")));
            }
            self.ensure_claims(set, *number).await?;
            match self.client.all::<NewPod>().create(&pod).await {
                Ok(_) => self.recorder.normal(
                    &about,
                    "SuccessfulCreate",
                    format!("create Pod {pod_name} in StatefulSet {set_name} successful"),
                ),
                Err(error) if error.is_already_exists() || error.is_namespace_terminating() => {}
                Err(error) => {
                    self.recorder.warning(
                        &about,
                        "FailedCreate",
                        format!("create Pod {pod_name} in StatefulSet {set_name} failed error: {error}"),
                    );
                    return Err(error.into());
                }
            }
        }
        for pod in &plan.delete {
            let pod_name = pod.metadata.name();
            if pods::is_finished(pod) {
                self.recorder.warning(
                    &about,
                    "RecreatingFailedPod",
                    format!("StatefulSet {}/{set_name} is recreating failed Pod {pod_name}", set.metadata.namespace()),
                );
            }
            let api = self.client.namespaced::<Pod>(pod.metadata.namespace());
            let params = DeleteParams { uid: pod.metadata.uid.clone(), ..DeleteParams::default() };
            match api.delete(pod_name, &params).await {
                Ok(()) => self.recorder.normal(
                    &about,
                    "SuccessfulDelete",
                    format!("delete Pod {pod_name} in StatefulSet {set_name} successful"),
                ),
                Err(error) if error.is_not_found() => {}
                Err(error) if error.is_conflict() => return Err(error.into()),
                Err(error) => {
                    self.recorder.warning(
                        &about,
                        "FailedDelete",
                        format!("delete Pod {pod_name} in StatefulSet {set_name} failed error: {error}"),
                    );
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Gives the claims of every pod the owners that the retention policy wants, before any pod goes.
    async fn settle_claims(&self, set: &StatefulSet, pods: &[Arc<Pod>]) -> Result<(), Error> {
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let namespace = set.metadata.namespace();
        for pod in pods {
            let Some(number) = ordinal_of(set, pod) else { continue };
            let is_wanted = set.spec.as_ref().is_some_and(|spec| plan::is_wanted(spec, number));
            for template in claims(set, number) {
                let key = format!("{namespace}/{}", template.metadata.name());
                let Some(claim) = self.claims.get(&key) else { continue };
                let owners = retention::owners(&claim.metadata, set, pod, is_wanted);
                if claim.metadata.owner_references.as_deref().unwrap_or_default() != owners {
                    let mut changed = PersistentVolumeClaim::clone(&claim);
                    changed.metadata.owner_references = Some(owners);
                    self.client.all::<PersistentVolumeClaim>().update(&changed).await?;
                }
            }
        }
        Ok(())
    }

    fn has_doomed_claim(&self, set: &StatefulSet, number: i32, pod_name: &str) -> bool {
        let namespace = set.metadata.namespace();
        claims(set, number).iter().any(|claim| {
            let key = format!("{namespace}/{}", claim.metadata.name());
            self.claims.get(&key).is_some_and(|claim| retention::is_doomed(&claim, pod_name))
        })
    }

    /// The storage of an ordinal outlives its pods; it is made once and found again.
    async fn ensure_claims(&self, set: &StatefulSet, number: i32) -> Result<(), Error> {
        let about = client::reference(set);
        let namespace = set.metadata.namespace();
        for claim in claims(set, number) {
            let name = claim.metadata.name().to_owned();
            if self.claims.get(&format!("{namespace}/{name}")).is_some() {
                continue;
            }
            let set_name = set.metadata.name();
            match self.client.namespaced::<PersistentVolumeClaim>(namespace).create(&claim).await {
                Ok(_) => self.recorder.normal(
                    &about,
                    "SuccessfulCreate",
                    format!("create Claim {name} Pod {set_name}-{number} in StatefulSet {set_name} success"),
                ),
                Err(error) if error.is_already_exists() || error.is_namespace_terminating() => {}
                Err(error) => {
                    self.recorder.warning(&about, "FailedCreate", format!("create Claim {name} for Pod {set_name}-{number} in StatefulSet {set_name} failed error: {error}"));
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }
}

fn ordinal_of(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    ordinal(set.metadata.name(), pod.metadata.name())
}

fn claims(set: &StatefulSet, number: i32) -> Vec<PersistentVolumeClaim> {
    let set_name = set.metadata.name();
    let Some(spec) = &set.spec else { return Vec::new() };
    let templates = spec.volume_claim_templates.iter().flatten();
    templates
        .map(|template| {
            let mut claim = template.clone();
            claim.metadata.name = Some(format!("{}-{set_name}-{number}", template.metadata.name()));
            claim.metadata.namespace.clone_from(&set.metadata.namespace);
            let labels = claim.metadata.labels.get_or_insert_default();
            labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
            claim.status = None;
            claim
        })
        .collect()
}

fn new_pod(set: &StatefulSet, template: &PodTemplateSpec, number: i32, revision: &str) -> NewPod {
    let set_name = set.metadata.name();
    let name = format!("{set_name}-{number}");
    let mut pod = pods::from_template(template, set.metadata.namespace(), set_name, controller_reference(set));
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME_LABEL.into(), name.clone());
    labels.insert(POD_INDEX_LABEL.into(), number.to_string());
    labels.insert(history::REVISION_LABEL.into(), revision.into());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone()).filter(|name| !name.is_empty());
    for claim in claims(set, number) {
        let template_name = claim
            .metadata
            .name
            .as_deref()
            .and_then(|name| name.strip_suffix(&format!("-{set_name}-{number}")))
            .unwrap_or_default()
            .to_owned();
        let volumes = spec.volumes.get_or_insert_default();
        volumes.retain(|volume| volume.name != template_name);
        volumes.push(Volume {
            name: template_name,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.metadata.name.unwrap_or_default(),
                read_only: None,
            }),
            ..Volume::default()
        });
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_its_name_its_labels_and_its_storage() {
        let mut set = StatefulSet::default();
        set.metadata.name = Some("db".into());
        let mut template = PersistentVolumeClaim::default();
        template.metadata.name = Some("data".into());
        let spec = set.spec.get_or_insert_default();
        spec.service_name = Some("peers".into());
        spec.volume_claim_templates = Some(vec![template]);
        let pod = new_pod(&set, &PodTemplateSpec::default(), 2, "db-abc");
        assert_eq!(pod.metadata.name.as_deref(), Some("db-2"));
        assert_eq!(pod.metadata.generate_name.as_deref(), Some("db-"));
        assert_eq!(pod.metadata.labels.unwrap()[POD_NAME_LABEL], "db-2");
        let spec = pod.spec.unwrap();
        assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("db-2"), Some("peers")));
        assert_eq!(spec.volumes.unwrap()[0].persistent_volume_claim.as_ref().unwrap().claim_name, "data-db-2");
    }
}
