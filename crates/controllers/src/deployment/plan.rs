//! What a Deployment does next, decided from itself and its ReplicaSets alone.
//!
//! A pass changes sizes in one direction at a time and stops; the ReplicaSets' own events bring the next pass. Bounds
//! hold at every moment: at most `replicas + maxSurge` pods are asked for, at least `replicas - maxUnavailable` stay available.

use std::cmp::Reverse;

use api::sort::CompactSort as _;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet};

use super::replica_sets::{
    ROLLBACK_TO, annotation, available, by_age, desired_replicas, is_rolling, max_replicas, name, new_replica_set,
    revision, rolled_back_annotations, same_template, set_new_annotations, set_sizes, size, surge_and_unavailable,
    template_hash,
};
use super::status;

/// Everything one pass wants done, in order.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// A ReplicaSet for the present template.
    pub(super) create: Option<ReplicaSet>,
    /// ReplicaSets whose size or annotations change.
    pub(super) update: Vec<ReplicaSet>,
    /// Names of old ReplicaSets beyond the history limit.
    pub(super) delete: Vec<String>,
    /// The Deployment itself, rolled back to an older template.
    pub(super) rollback: Option<Deployment>,
    /// The Deployment's revision annotation.
    pub(super) revision: Option<String>,
    pub(super) events: Vec<Event>,
    pub(super) status: DeploymentStatus,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// `sets` are all ReplicaSets that the Deployment owns; `old_pods_run` says whether pods of old templates still do.
pub(super) fn plan(
    deployment: &Deployment,
    sets: &[ReplicaSet],
    old_pods_run: impl Fn(&[ReplicaSet]) -> bool,
    now: Timestamp,
) -> Plan {
    let spec = deployment.spec.clone().unwrap_or_default();
    let mut pass = Pass::new(deployment, &spec, sets, now);
    if deployment.metadata.deletion_timestamp.is_some() {
        return pass.finish(false);
    }
    status::pause_or_resume(&mut pass.status, &spec, now);
    if spec.paused == Some(true) {
        pass.refresh_new();
        pass.scale();
        if rollback_target(deployment).is_none() {
            pass.clean_up();
        }
        return pass.finish(false);
    }
    if let Some(target) = rollback_target(deployment) {
        pass.rollback(target);
        return pass.finish(false);
    }
    if pass.scaling_event() {
        pass.refresh_new();
        pass.scale();
        return pass.finish(false);
    }
    if is_rolling(&spec) {
        pass.roll();
    } else {
        pass.recreate(old_pods_run);
    }
    pass.finish(true)
}

pub(super) fn rollback_target(deployment: &Deployment) -> Option<i64> {
    annotation(&deployment.metadata, ROLLBACK_TO)?.parse().ok()
}

/// One pass over working copies; what differs from the originals at the end is the plan.
struct Pass<'a> {
    deployment: &'a Deployment,
    spec: &'a DeploymentSpec,
    originals: &'a [ReplicaSet],
    replicas: i32,
    surge: i32,
    unavailable: i32,
    new: Option<ReplicaSet>,
    is_created: bool,
    old: Vec<ReplicaSet>,
    plan: Plan,
    /// The status with the conditions of this pass.
    status: DeploymentStatus,
    now: Timestamp,
}

impl<'a> Pass<'a> {
    fn new(deployment: &'a Deployment, spec: &'a DeploymentSpec, sets: &'a [ReplicaSet], now: Timestamp) -> Self {
        let mut old = sets.to_vec();
        old.compact_sort_by(|left, right| by_age(left).cmp(&by_age(right)));
        // Of several with the same template the oldest is the one to keep using.
        let found = old.iter().position(|set| {
            set.spec
                .as_ref()
                .and_then(|spec| spec.template.as_ref())
                .is_some_and(|template| same_template(template, &spec.template))
        });
        let new = found.map(|at| old.remove(at));
        let (surge, unavailable) = surge_and_unavailable(spec);
        Self {
            deployment,
            spec,
            originals: sets,
            replicas: spec.replicas.unwrap_or(1),
            surge,
            unavailable,
            new,
            is_created: false,
            old,
            plan: Plan::default(),
            status: deployment.status.clone().unwrap_or_default(),
            now,
        }
    }

    fn finish(mut self, rollout: bool) -> Plan {
        // Judged by what the ReplicaSets report, not by what was just asked of them.
        let observed =
            |set: &ReplicaSet| self.originals.iter().find(|original| original.metadata.name == set.metadata.name);
        let new = self.new.as_ref().map(|set| observed(set).unwrap_or(set).clone());
        let all: Vec<ReplicaSet> =
            self.originals.iter().cloned().chain(new.clone().filter(|_| self.is_created)).collect();
        self.plan.status = if rollout {
            status::rollout(self.deployment, self.spec, self.status, &all, new.as_ref(), self.now)
        } else {
            status::counted(self.deployment, self.spec, self.status, &all, new.as_ref(), self.now)
        };
        for set in self.new.into_iter().filter(|_| !self.is_created).chain(self.old) {
            if self.originals.iter().any(|original| original.metadata.name == set.metadata.name && *original != set) {
                self.plan.update.push(set);
            }
        }
        self.plan
    }

    fn all(&self) -> impl Iterator<Item = &ReplicaSet> {
        self.old.iter().chain(&self.new)
    }

    fn total_size(&self) -> i32 {
        self.all().map(size).fold(0, i32::saturating_add)
    }

    /// Keeps the annotations of the present ReplicaSet and the revision of the Deployment up to date.
    fn refresh_new(&mut self) {
        let next = self.old.iter().map(revision).max().unwrap_or(0).saturating_add(1);
        let Some(new) = &mut self.new else { return };
        set_new_annotations(new, self.deployment, next);
        if let Some(spec) = &mut new.spec
            && spec.min_ready_seconds.unwrap_or_default() != self.spec.min_ready_seconds.unwrap_or_default()
        {
            spec.min_ready_seconds = self.spec.min_ready_seconds;
        }
        let message = format!("Found new replica set \"{}\"", name(&new.metadata));
        self.plan.revision = Some(revision(new).to_string());
        if status::has_deadline(self.spec) && status::condition(&self.status, "Progressing").is_none() {
            status::set(&mut self.status, "Progressing", "True", "FoundNewReplicaSet", message, self.now);
        }
    }

    fn ensure_new(&mut self) {
        if self.new.is_some() {
            return self.refresh_new();
        }
        let next = self.old.iter().map(revision).max().unwrap_or(0).saturating_add(1);
        let hash = template_hash(&self.spec.template, self.status.collision_count);
        let mut set = new_replica_set(self.deployment, self.spec, &hash, next);
        let count = self.room_for_new(0);
        if let Some(spec) = &mut set.spec {
            spec.replicas = Some(count);
        }
        set_sizes(&mut set, self.replicas, self.replicas + self.surge);
        if status::has_deadline(self.spec) {
            let message = format!("Created new replica set \"{}\"", name(&set.metadata));
            status::set(&mut self.status, "Progressing", "True", "NewReplicaSetCreated", message, self.now);
        }
        if count > 0 {
            self.event("ScalingReplicaSet", format!("Scaled up replica set {} from 0 to {count}", name(&set.metadata)));
        }
        self.plan.revision = Some(next.to_string());
        self.plan.create = Some(set.clone());
        self.is_created = true;
        self.new = Some(set);
    }

    /// The size the new ReplicaSet may have now, given its present one.
    fn room_for_new(&self, present: i32) -> i32 {
        if !is_rolling(self.spec) {
            return self.replicas;
        }
        let room = self.replicas + self.surge - self.total_size();
        if room <= 0 { present } else { present + room.min(self.replicas - present) }
    }

    fn roll(&mut self) {
        self.ensure_new();
        if self.grow_new() || self.shrink_old() {
            return;
        }
        if status::is_complete(self.deployment, self.spec, &self.deployment.status.clone().unwrap_or_default()) {
            self.clean_up();
        }
    }

    fn grow_new(&mut self) -> bool {
        let Some(present) = self.new.as_ref().map(size).filter(|_| !self.is_created) else { return false };
        match present.cmp(&self.replicas) {
            std::cmp::Ordering::Equal => false,
            std::cmp::Ordering::Greater => self.resize_new(self.replicas),
            std::cmp::Ordering::Less => self.resize_new(self.room_for_new(present)),
        }
    }

    fn shrink_old(&mut self) -> bool {
        if self.old.iter().all(|set| size(set) == 0) {
            return false;
        }
        let (new_size, new_available) = self.new.as_ref().map_or((0, 0), |new| (size(new), available(new)));
        let min_available = self.replicas - self.unavailable;
        // Pods of the new template that are not available yet must not cost old ones that are.
        let budget = (self.total_size() - min_available).saturating_sub(new_size - new_available);
        if budget <= 0 {
            return false;
        }
        // Those that do not work anyway go first: losing them loses nothing.
        let mut removed = 0;
        for at in 0..self.old.len() {
            let broken = size(&self.old[at]) - available(&self.old[at]);
            let count = broken.min(budget - removed);
            if count > 0 {
                self.resize_old(at, size(&self.old[at]) - count);
                removed += count;
            }
        }
        let at_work = self.all().map(|set| available(set).min(size(set))).fold(0, i32::saturating_add);
        let spare = at_work - min_available;
        let mut taken = 0;
        for at in 0..self.old.len() {
            let count = size(&self.old[at]).min(spare - taken);
            if count > 0 {
                self.resize_old(at, size(&self.old[at]) - count);
                taken += count;
            }
        }
        removed > 0 || taken > 0
    }

    fn recreate(&mut self, old_pods_run: impl Fn(&[ReplicaSet]) -> bool) {
        self.refresh_new();
        let mut shrunk = false;
        for at in 0..self.old.len() {
            if size(&self.old[at]) > 0 {
                shrunk |= self.resize_old(at, 0);
            }
        }
        if shrunk || old_pods_run(&self.old) {
            return;
        }
        self.ensure_new();
        if !self.is_created {
            self.resize_new(self.replicas);
        }
        if status::is_complete(self.deployment, self.spec, &self.deployment.status.clone().unwrap_or_default()) {
            self.clean_up();
        }
    }

    /// True if someone changed `spec.replicas` since the sizes were last worked out.
    fn scaling_event(&self) -> bool {
        self.all()
            .filter(|set| size(set) > 0)
            .any(|set| desired_replicas(set).is_some_and(|desired| desired != self.replicas))
    }

    /// Scales all ReplicaSets in proportion, so that scaling in the middle of a rollout does not hasten it.
    fn scale(&mut self) {
        let active = self.all().filter(|set| size(set) > 0).count();
        if active <= 1 {
            return self.scale_only();
        }
        let saturated = self.new.as_ref().is_some_and(|new| {
            desired_replicas(new) == Some(self.replicas)
                && size(new) == self.replicas
                && available(new) == self.replicas
        });
        if saturated {
            for at in 0..self.old.len() {
                if size(&self.old[at]) > 0 {
                    self.resize_old(at, 0);
                }
            }
        } else if is_rolling(self.spec) {
            self.scale_in_proportion();
        }
    }

    /// At most one ReplicaSet has pods: it, or else the newest, takes the whole count.
    fn scale_only(&mut self) {
        if let Some(at) = self.old.iter().position(|set| size(set) > 0) {
            self.resize_old(at, self.replicas);
        } else if self.new.is_some() {
            self.resize_new(self.replicas);
        } else if !self.old.is_empty() {
            self.resize_old(self.old.len() - 1, self.replicas);
        }
    }

    fn scale_in_proportion(&mut self) {
        let allowed = if self.replicas > 0 { self.replicas + self.surge } else { 0 };
        let to_add = allowed - self.total_size();
        // Index `old.len()` is the new one. Largest first; ties go to the newer when growing, to the older when shrinking.
        let mut order: Vec<usize> = (0..self.old.len() + usize::from(self.new.is_some()))
            .filter(|at| self.set(*at).is_some_and(|set| size(set) > 0))
            .collect();
        order.compact_sort_by_key(|at| {
            let set = self.set(*at);
            let age = set.map(|set| by_age(set).0);
            (Reverse(set.map_or(0, size)), (to_add < 0).then_some(age), (to_add > 0).then_some(Reverse(age)))
        });
        let status_replicas = self.status.replicas.unwrap_or_default();
        let mut added = 0;
        let mut sizes = Vec::new();
        for at in &order {
            let Some(set) = self.set(*at) else { continue };
            let share = fraction(set, self.replicas, self.replicas + self.surge, status_replicas);
            let share = match to_add {
                0 => 0,
                1.. => share.min(to_add.saturating_sub(added)),
                _ => share.max(to_add.saturating_sub(added)),
            };
            added = added.saturating_add(share);
            sizes.push(size(set).saturating_add(share));
        }
        // What rounding left over goes to the largest.
        if let Some(first) = sizes.first_mut()
            && to_add != 0
        {
            *first = first.saturating_add(to_add.saturating_sub(added)).max(0);
        }
        for (at, count) in order.into_iter().zip(sizes) {
            if at == self.old.len() {
                self.resize_new_and_note(count);
            } else {
                self.resize_old_and_note(at, count);
            }
        }
    }

    fn set(&self, at: usize) -> Option<&ReplicaSet> {
        self.old.get(at).or(self.new.as_ref().filter(|_| at == self.old.len()))
    }

    fn resize_new(&mut self, count: i32) -> bool {
        self.new.as_ref().map(size) != Some(count) && self.resize_new_and_note(count)
    }

    fn resize_old(&mut self, at: usize, count: i32) -> bool {
        size(&self.old[at]) != count && self.resize_old_and_note(at, count)
    }

    fn resize_new_and_note(&mut self, count: i32) -> bool {
        let Some(mut set) = self.new.take() else { return false };
        let event = resize(&mut set, count, self.replicas, self.surge);
        self.new = Some(set);
        self.scaled(event)
    }

    fn resize_old_and_note(&mut self, at: usize, count: i32) -> bool {
        let event = resize(&mut self.old[at], count, self.replicas, self.surge);
        self.scaled(event)
    }

    fn scaled(&mut self, message: Option<String>) -> bool {
        let scaled = message.is_some();
        if let Some(message) = message {
            self.event("ScalingReplicaSet", message);
        }
        scaled
    }

    fn event(&mut self, reason: &'static str, message: String) {
        self.plan.events.push(Event { warning: false, reason, message });
    }

    fn warning(&mut self, reason: &'static str, message: String) {
        self.plan.events.push(Event { warning: true, reason, message });
    }

    /// Old ReplicaSets beyond the history limit, oldest revision first, if nothing runs from them.
    fn clean_up(&mut self) {
        let Some(limit) = self.spec.revision_history_limit.filter(|limit| *limit != i32::MAX) else { return };
        let mut old: Vec<&ReplicaSet> =
            self.old.iter().filter(|set| set.metadata.deletion_timestamp.is_none()).collect();
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or_default());
        old.compact_sort_by_key(|set| (revision(set), by_age(set).0));
        let unused = |set: &&&ReplicaSet| {
            let observed = set.status.as_ref().and_then(|status| status.observed_generation).unwrap_or_default();
            size(set) == 0
                && super::replica_sets::actual(set) == 0
                && set.metadata.generation.unwrap_or_default() <= observed
        };
        self.plan.delete = old.iter().take(surplus).filter(unused).map(|set| name(&set.metadata).to_owned()).collect();
    }

    /// The deprecated rollback annotation: copy an old template back and remove the annotation in any case.
    fn rollback(&mut self, target: i64) {
        self.ensure_new();
        let mut rolled = self.deployment.clone();
        let found = match target {
            0 => self.last_revision(),
            wanted => Some(wanted),
        };
        match found.and_then(|wanted| self.all().find(|set| revision(set) == wanted).cloned().map(|set| (wanted, set)))
        {
            None if target == 0 => {
                self.warning("DeploymentRollbackRevisionNotFound", "Unable to find last revision.".into())
            }
            None => {
                self.warning("DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.".into())
            }
            Some((wanted, set)) => {
                let template = set.spec.as_ref().and_then(|spec| spec.template.clone()).unwrap_or_default();
                let deployment = name(&self.deployment.metadata).to_owned();
                if same_template(&template, &self.spec.template) {
                    let message = format!(
                        "The rollback revision contains the same template as current deployment \"{deployment}\""
                    );
                    self.warning("DeploymentRollbackTemplateUnchanged", message);
                } else {
                    let spec = rolled.spec.get_or_insert_default();
                    spec.template = template;
                    if let Some(labels) = spec.template.metadata.as_mut().and_then(|metadata| metadata.labels.as_mut())
                    {
                        labels.remove(super::replica_sets::HASH_LABEL);
                    }
                    rolled.metadata.annotations = Some(rolled_back_annotations(self.deployment, &set));
                    self.event(
                        "DeploymentRollback",
                        format!("Rolled back deployment \"{deployment}\" to revision {wanted}"),
                    );
                }
            }
        }
        if let Some(annotations) = &mut rolled.metadata.annotations {
            annotations.remove(ROLLBACK_TO);
        }
        self.plan.rollback = Some(rolled);
    }

    /// The second highest revision.
    fn last_revision(&self) -> Option<i64> {
        let mut revisions: Vec<i64> = self.all().map(revision).collect();
        revisions.compact_sort();
        revisions.iter().rev().nth(1).copied().filter(|revision| *revision > 0)
    }
}

/// Sets size and size annotations; says what happened if the size changed.
fn resize(set: &mut ReplicaSet, count: i32, replicas: i32, surge: i32) -> Option<String> {
    let before = size(set);
    if let Some(spec) = &mut set.spec {
        spec.replicas = Some(count);
    }
    set_sizes(set, replicas, replicas + surge);
    let direction = if before < count { "up" } else { "down" };
    (before != count)
        .then(|| format!("Scaled {direction} replica set {} from {before} to {count}", name(&set.metadata)))
}

/// How many pods a ReplicaSet gains or loses when the Deployment's maximum changes to `max`.
fn fraction(set: &ReplicaSet, replicas: i32, max: i32, status_replicas: i32) -> i32 {
    if replicas == 0 {
        return -size(set);
    }
    let before = max_replicas(set).filter(|before| *before != 0).unwrap_or(status_replicas);
    if before == 0 {
        return 0;
    }
    let share = f64::from(size(set)) * f64::from(max) / f64::from(before);
    #[expect(clippy::cast_possible_truncation, reason = "both factors are 32-bit counts and the result is rounded")]
    let share = share.round() as i32;
    share.saturating_sub(size(set))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
