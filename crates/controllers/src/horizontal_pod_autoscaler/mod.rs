//! HorizontalPodAutoscaler: as many replicas as the metrics ask for, within bounds and rates.
//!
//! Flow: an autoscaler (every sync period, and at once when it changes) -> the `scale` of its target -> samples of each metric
//! (`metrics`) -> what each asks for (`replicas`), the highest counts -> windows, policies and bounds (`normalize`) -> `scale`.
//! Invariant: missing data never makes a target smaller. A metric that cannot be read allows growth by the others only.

mod error;
mod metrics;
mod monitor;
mod normalize;
mod replicas;
mod target;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::cached::Pod;
use api::meta::Meta as _;
use api::quantity::{Format, Quantity};
use api::selector::Selector;
use client::{Client, Clock, Event, EventRecorder, Informer};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, ExternalMetricStatus, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
    HorizontalPodAutoscalerStatus, MetricIdentifier, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
    ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use parking_lot::Mutex;

use crate::config::Autoscaling;
use crate::controller::{CATCH_UP_TIMEOUT, Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
pub(crate) use error::Error;
use monitor::{Fault, Monitor};
use normalize::{Bounds, Memory};
use replicas::{Measurement, Proposal, Samples, Start, Tolerances};
pub(crate) use target::Resources;

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    scalers: Informer<HorizontalPodAutoscaler>,
    pods: Informer<Pod>,
    memory: Memory,
    resources: Resources,
    /// Which pods each autoscaler's target had when it was last looked at.
    selectors: Mutex<BTreeMap<String, Selector>>,
    monitor: Monitor,
    settings: Autoscaling,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let scalers = context.on::<HorizontalPodAutoscaler, _>(|event| match event {
        Event::Modified { old, new } if old.spec == new.spec => None,
        _ => Some(client::object_key(&**event.object())),
    });
    let monitor = Monitor::new(&context.config.metrics, &scalers);
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        scalers,
        pods: context.informer::<Pod>().wakes_nothing("every period is a new look at all pods"),
        memory: Memory::default(),
        resources: Resources::default(),
        selectors: Mutex::default(),
        monitor,
        settings: context.config.autoscaling.clone(),
    })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(scaler) = self.scalers.get(key) else {
                self.memory.forget(key);
                self.selectors.lock().remove(key);
                self.monitor.forget(key);
                return Ok(Requeue::Never);
            };
            let began = Instant::now();
            let mut look = Look {
                controller: self,
                scaler: &scaler,
                now: self.clock.now(),
                key,
                conditions: conditions(&scaler),
                resized: None,
                is_interrupted: false,
            };
            let ended = look.run().await;
            let fault = match &ended {
                Ok(Ok(())) => None,
                Ok(Err(unfinished)) => Some(unfinished.fault),
                Err(_) => Some(Fault::Internal),
            };
            self.monitor.reconciled(look.resized, fault, began.elapsed());
            if let Err(Unfinished { why, .. }) = ended? {
                tracing::warn!(key, why, "autoscaler did not get through");
            }
            Ok(Requeue::After(if look.is_interrupted { CATCH_UP_TIMEOUT } else { self.settings.sync_period }))
        })
    }
}

fn conditions(scaler: &HorizontalPodAutoscaler) -> Vec<HorizontalPodAutoscalerCondition> {
    scaler.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default()
}

/// What one metric asks for, and how to name it and show it.
struct Answer {
    replicas: i32,
    name: String,
    status: MetricStatus,
}

/// A metric that could not be used: the reason of the event and condition, and what happened.
struct Unusable {
    fault: Fault,
    reason: &'static str,
    why: String,
    /// How the message of the whole look goes on about it.
    message: String,
}

/// Why a look ended early. Events and conditions have said it already.
struct Unfinished {
    why: String,
    fault: Fault,
}

/// What it asks for was not to be had.
fn unfinished(why: impl Into<String>) -> Unfinished {
    Unfinished { why: why.into(), fault: Fault::Internal }
}

struct Wanted {
    replicas: i32,
    name: String,
    /// Some metrics could not be read; the others ask for more than there is.
    partly: Option<String>,
}

/// One look at one autoscaler.
struct Look<'a> {
    controller: &'a Controller,
    scaler: &'a HorizontalPodAutoscaler,
    now: Timestamp,
    key: &'a str,
    conditions: Vec<HorizontalPodAutoscalerCondition>,
    /// From which size to which.
    resized: Option<(i32, i32)>,
    /// It has recorded what the next look does.
    is_interrupted: bool,
}

/// Bytes of a message: part of it may be what an adapter says, and the object has to be stored.
const MAX_MESSAGE: usize = 8 << 10;

fn bounded(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        message.push('…');
    }
    message
}

const ABLE: &str = "AbleToScale";
const ACTIVE: &str = "ScalingActive";
const LIMITED: &str = "ScalingLimited";
const TO_ZERO: &str = "ScaledToZero";

impl Look<'_> {
    fn condition(&mut self, kind: &str, is_true: bool, reason: &str, message: impl Into<String>) {
        let status = if is_true { "True" } else { "False" };
        let new = HorizontalPodAutoscalerCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(bounded(message.into())),
            last_transition_time: Some(Time(self.now)),
        };
        match self.conditions.iter_mut().find(|condition| condition.type_ == kind) {
            Some(old) => {
                let since = if old.status == new.status { old.last_transition_time.take() } else { None };
                let since = since.or(new.last_transition_time.clone());
                *old = HorizontalPodAutoscalerCondition { last_transition_time: since, ..new };
            }
            None => self.conditions.push(new),
        }
    }

    fn warn(&self, reason: &str, message: impl Into<String>) {
        self.controller.recorder.warning(&client::reference(self.scaler), reason, bounded(message.into()));
    }

    fn namespace(&self) -> &str {
        self.scaler.metadata.namespace()
    }

    async fn run(&mut self) -> Result<Result<(), Unfinished>, crate::Error> {
        let controller = self.controller;
        let spec = &self.scaler.spec;
        let reference = &spec.scale_target_ref;
        let old = self.scaler.status.clone().unwrap_or_default();
        let api_version = reference.api_version.as_deref().unwrap_or_default();
        let found = controller.resources.find(&controller.client, api_version, &reference.kind).await;
        let found = match found.map(|found| controller.client.dynamic(&found.gvr, Some(self.namespace()))) {
            Ok(api) => {
                let scale: Result<Scale, _> = api.get_subresource(&reference.name, "scale").await;
                scale.map(|scale| (api, scale)).map_err(Error::Api)
            }
            Err(error) => Err(error),
        };
        let (api, scale) = match found {
            Ok(found) => found,
            Err(error) => {
                let why = error.to_string();
                self.warn("FailedGetScale", &*why);
                let message = format!("the HPA controller was unable to get the target's current scale: {why}");
                self.condition(ABLE, false, "FailedGetScale", message);
                self.write(HorizontalPodAutoscalerStatus { ..old }).await?;
                let is_misspelt = matches!(error, Error::GroupVersion(_));
                return Ok(Err(Unfinished { why, fault: if is_misspelt { Fault::Spec } else { Fault::Internal } }));
            }
        };
        self.condition(
            ABLE,
            true,
            "SucceededGetScale",
            "the HPA controller was able to get the target's current scale",
        );
        let current = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
        controller.memory.begin(self.key, current, self.now);
        let bounds = Bounds { min: spec.min_replicas.unwrap_or(1), max: spec.max_replicas };
        // Metrics that are not asked have no values: old ones would be taken for the present.
        let mut statuses = None;
        let mut partly = None;
        let mut sources = spec.metrics.iter().flatten();
        let reads_idle_targets = sources.any(|metric| matches!(metric.type_.as_str(), "Object" | "External"));
        let recorded = self.conditions.iter().find(|condition| condition.type_ == TO_ZERO);
        let was_scaled_to_zero = recorded.map(|condition| condition.status == "True");
        let was_scaled = was_scaled_to_zero == Some(true);
        let (desired, why) = if current == 0 && !normalize::can_wake(was_scaled, bounds, reads_idle_targets) {
            let message = "scaling is disabled since the replica count of the target is zero";
            self.condition(ACTIVE, false, "ScalingDisabled", message);
            (current, String::new())
        } else if current > bounds.max {
            (bounds.max, "Current number of replicas above Spec.MaxReplicas".to_owned())
        } else if current < bounds.min && current > 0 {
            (bounds.min, "Current number of replicas below Spec.MinReplicas".to_owned())
        } else {
            let (answers, wanted) = self.ask(&scale, current).await;
            statuses = answers;
            let wanted = match wanted {
                Ok(wanted) => wanted,
                Err(unfinished) => {
                    let status = HorizontalPodAutoscalerStatus {
                        current_replicas: Some(current),
                        current_metrics: statuses,
                        ..old
                    };
                    self.write(status).await?;
                    self.warn("FailedComputeMetricsReplicas", &*unfinished.why);
                    return Ok(Err(unfinished));
                }
            };
            partly = wanted.partly;
            let why = match wanted.replicas.cmp(&current) {
                std::cmp::Ordering::Greater => format!("{} above target", wanted.name),
                std::cmp::Ordering::Less => "All metrics below target".to_owned(),
                std::cmp::Ordering::Equal => String::new(),
            };
            let desired = self.normalize(current, wanted.replicas, bounds);
            // The minimum was raised since.
            match current == 0 && desired < bounds.min {
                true if why.is_empty() => (bounds.min, "Current number of replicas below Spec.MinReplicas".to_owned()),
                true => (bounds.min, why),
                false => (desired, why),
            }
        };
        let rescales = desired != current;
        let goes_to_zero = current > 0 && desired == 0 && bounds.min == 0 && reads_idle_targets;
        if goes_to_zero && !was_scaled {
            // Recorded first: whatever is at zero without this record is taken for switched off, and never wakes up again.
            self.condition(TO_ZERO, true, "ScaledToZero", "the HPA controller scaled the workload to zero");
            let status =
                HorizontalPodAutoscalerStatus { current_replicas: Some(current), current_metrics: statuses, ..old };
            self.write(status).await?;
            self.is_interrupted = true;
            return Ok(Ok(()));
        }
        if rescales {
            if let Err(error) = target::resize(&api, &reference.name, scale, desired).await {
                self.warn("FailedRescale", format!("New size: {desired}; reason: {why}; error: {error}"));
                let message = format!("the HPA controller was unable to update the target scale: {error}");
                self.condition(ABLE, false, "FailedUpdateScale", message);
                let status =
                    HorizontalPodAutoscalerStatus { current_replicas: Some(current), current_metrics: statuses, ..old };
                self.write(status).await?;
                return Ok(Err(unfinished(format!("failed to rescale: {error}"))));
            }
            let message = format!("the HPA controller was able to update the target scale to {desired}");
            self.condition(ABLE, true, "SucceededRescale", message);
            let message = format!("New size: {desired}; reason: {why}");
            controller.recorder.normal(&client::reference(self.scaler), "SuccessfulRescale", message);
            self.resized = Some((current, desired));
            if let Some(behavior) = &spec.behavior {
                controller.memory.changed(self.key, behavior, current, desired, self.now);
            }
        }
        if !goes_to_zero && normalize::is_not_scaled_to_zero(was_scaled_to_zero, bounds, current, rescales) {
            let message = "the HPA controller did not scale the workload to zero";
            self.condition(TO_ZERO, false, "NotScaledToZero", message);
        }
        let status = HorizontalPodAutoscalerStatus {
            current_replicas: Some(current),
            desired_replicas: desired,
            current_metrics: statuses,
            last_scale_time: if rescales { Some(Time(self.now)) } else { old.last_scale_time },
            ..HorizontalPodAutoscalerStatus::default()
        };
        let name = self.scaler.metadata.name();
        controller.monitor.desires(self.namespace(), name, desired);
        self.write(status).await?;
        Ok(partly.map_or(Ok(()), |why| Err(unfinished(why))))
    }

    fn normalize(&mut self, current: i32, wanted: i32, bounds: Bounds) -> i32 {
        let (memory, window) = (&self.controller.memory, self.controller.settings.downscale_stabilization);
        let normalized = match &self.scaler.spec.behavior {
            None => memory.plain(self.key, window, current, wanted, bounds, self.now),
            Some(behavior) => memory.ruled(self.key, behavior, window, (current, wanted), bounds, self.now),
        };
        let (reason, message) = normalized.able;
        self.condition(ABLE, true, reason, message);
        let (limited, reason, message) = normalized.limited;
        self.condition(LIMITED, limited, reason, message);
        normalized.replicas
    }

    async fn write(&mut self, status: HorizontalPodAutoscalerStatus) -> Result<(), crate::Error> {
        let status = HorizontalPodAutoscalerStatus {
            conditions: Some(std::mem::take(&mut self.conditions)),
            observed_generation: self.scaler.metadata.generation,
            ..status
        };
        if self.scaler.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let changed = HorizontalPodAutoscaler { status: Some(status), ..self.scaler.clone() };
        let written = self.controller.client.all::<HorizontalPodAutoscaler>().update_status(&changed).await;
        if let Err(error) = &written {
            self.warn("FailedUpdateStatus", error.to_string());
        }
        if_unchanged(written).map(|_| ())
    }

    /// Asks every metric. The highest answer counts; where some could not be asked, only if it is not lower than what there is.
    async fn ask(&mut self, scale: &Scale, current: i32) -> (Option<Vec<MetricStatus>>, Result<Wanted, Unfinished>) {
        let (selector, pods) = match self.selected(scale) {
            Ok(found) => found,
            Err(why) => return (None, Err(why)),
        };
        let specs = self.scaler.spec.metrics.clone().unwrap_or_default();
        let mut statuses = Vec::with_capacity(specs.len());
        let mut answers: Vec<Option<(i32, String)>> = Vec::with_capacity(specs.len());
        let mut failed: Vec<Unusable> = Vec::new();
        for spec in &specs {
            let target = Target { selector: &selector, pods: &pods, current, scale };
            let began = Instant::now();
            let answer = self.answer(spec, &target).await;
            let (sizes, fault) = match &answer {
                Ok(answer) => (Some((current, answer.replicas)), None),
                Err(unusable) => (None, Some(unusable.fault)),
            };
            self.controller.monitor.computed(&spec.type_, sizes, fault, began.elapsed());
            match answer {
                Ok(answer) => {
                    statuses.push(answer.status);
                    answers.push(Some((answer.replicas, answer.name)));
                }
                Err(unusable) => {
                    self.warn(unusable.reason, &*unusable.why);
                    // Statuses stand in the order of the metrics, so that one without a value still has its place.
                    statuses.push(MetricStatus::default());
                    answers.push(None);
                    failed.push(unusable);
                }
            }
        }
        let partly = failed.first().map(|first| {
            format!(
                "invalid metrics ({} invalid out of {}), first error is: {}",
                failed.len(),
                specs.len(),
                first.message
            )
        });
        let sizes: Vec<Option<i32>> = answers.iter().map(|answer| answer.as_ref().map(|(size, _)| *size)).collect();
        let chosen = replicas::choose(&sizes, current).and_then(|at| answers.swap_remove(at));
        let wanted = match chosen {
            Some((replicas, name)) => {
                let message = format!("the HPA was able to successfully calculate a replica count from {name}");
                self.condition(ACTIVE, true, "ValidMetricFound", message);
                Ok(Wanted { replicas, name, partly })
            }
            None => {
                if let Some(first) = failed.first() {
                    let message = format!("the HPA was unable to compute the replica count: {}", first.why);
                    self.condition(ACTIVE, false, first.reason, message);
                }
                Err(unfinished(partly.unwrap_or_else(|| "the HPA has no metrics".to_owned())))
            }
        };
        (Some(statuses), wanted)
    }

    /// The pods of the target. Pods that two autoscalers claim are scaled by neither.
    fn selected(&mut self, scale: &Scale) -> Result<(Selector, Vec<Arc<Pod>>), Unfinished> {
        let text = scale.status.as_ref().and_then(|status| status.selector.clone()).unwrap_or_default();
        if text.is_empty() {
            let why = "selector is required";
            self.warn("SelectorRequired", why);
            self.condition(ACTIVE, false, "InvalidSelector", "the HPA target's scale is missing a selector");
            return Err(unfinished(why));
        }
        let selector = match Selector::parse(&text) {
            Ok(selector) => selector,
            Err(error) => {
                let why = format!("couldn't convert selector into a corresponding internal selector object: {error}");
                self.warn("InvalidSelector", &*why);
                self.condition(ACTIVE, false, "InvalidSelector", &*why);
                return Err(unfinished(why));
            }
        };
        let pods = self.controller.pods.by_namespace(self.namespace()).into_iter();
        let pods: Vec<Arc<Pod>> = pods.filter(|pod| selector.matches(pod.metadata.labels.as_ref())).collect();
        let mut selectors = self.controller.selectors.lock();
        selectors.insert(self.key.to_owned(), selector.clone());
        let prefix = format!("{}/", self.namespace());
        let claims = |other: &Selector| pods.iter().any(|pod| other.matches(pod.metadata.labels.as_ref()));
        let claimants: Vec<String> = selectors
            .range(prefix.clone()..)
            .map_while(|(key, other)| Some((key.strip_prefix(&prefix)?, other)))
            .filter(|(_, other)| claims(other))
            .map(|(name, _)| format!("{{{name} {}}}", self.namespace()))
            .collect();
        if claimants.len() > 1 {
            let claimants = claimants.join(" ");
            drop(selectors);
            let why = format!("pods by selector {text} are controlled by multiple HPAs: [{claimants}]");
            self.warn("AmbiguousSelector", &*why);
            self.condition(ACTIVE, false, "AmbiguousSelector", &*why);
            return Err(unfinished(why));
        }
        drop(selectors);
        Ok((selector, pods))
    }

    fn tolerances(&self) -> Tolerances {
        let default = self.controller.settings.tolerance;
        let behavior = self.scaler.spec.behavior.as_ref();
        let of = |rules: Option<&k8s_openapi::api::autoscaling::v2::HPAScalingRules>| {
            let own = rules.and_then(|rules| rules.tolerance.as_ref());
            own.and_then(|own| Quantity::try_from(own).ok()).map_or(default, |own| own.as_f64())
        };
        Tolerances {
            down: of(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
            up: of(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
        }
    }

    fn measurement<'p>(&self, target: &Target<'p>, samples: Samples) -> Measurement<'p> {
        let settings = &self.controller.settings;
        Measurement {
            pods: target.pods,
            samples,
            current: target.current,
            tolerances: self.tolerances(),
            start: Start {
                cpu_initialization: settings.cpu_initialization_period,
                initial_readiness: settings.initial_readiness_delay,
            },
            now: self.now,
        }
    }

    async fn answer(&self, spec: &MetricSpec, target: &Target<'_>) -> Result<Answer, Unusable> {
        match spec.type_.as_str() {
            "Resource" => self.resource(spec, target).await,
            "ContainerResource" => self.container_resource(spec, target).await,
            "Pods" => self.pods_metric(spec, target).await,
            "Object" => self.object(spec, target).await,
            "External" => self.external(spec, target).await,
            other => Err(Unusable {
                fault: Fault::Spec,
                ..unusable("InvalidMetricSourceType", format!("unknown metric source type \"{other}\""), "")
            }),
        }
    }

    async fn resource(&self, spec: &MetricSpec, target: &Target<'_>) -> Result<Answer, Unusable> {
        let source = spec.resource.clone().unwrap_or_default();
        let reason = "FailedGetResourceMetric";
        let message = format!("failed to get {} resource metric value: ", source.name);
        let found = self.of_resource(target, &source.name, None, &source.target).await;
        let proposal = found.map_err(|error| unusable(reason, error, &message))?;
        let name = match proposal.utilization {
            Some(_) => format!("{} resource utilization (percentage of request)", source.name),
            None => format!("{} resource", source.name),
        };
        let current = current(&proposal, &source.name);
        let status = ResourceMetricStatus { name: source.name, current };
        let status = MetricStatus { type_: spec.type_.clone(), resource: Some(status), ..MetricStatus::default() };
        Ok(Answer { replicas: proposal.replicas, name, status })
    }

    async fn container_resource(&self, spec: &MetricSpec, target: &Target<'_>) -> Result<Answer, Unusable> {
        let source = spec.container_resource.clone().unwrap_or_default();
        let reason = "FailedGetContainerResourceMetric";
        let message = format!("failed to get {} container metric value: ", source.container);
        let container = Some(source.container.as_str());
        let found = self.of_resource(target, &source.name, container, &source.target).await;
        let proposal = found.map_err(|error| unusable(reason, error, &message))?;
        let name = match proposal.utilization {
            Some(_) => format!("{} container resource utilization (percentage of request)", source.name),
            None => format!("{} resource", source.name),
        };
        let current = current(&proposal, &source.name);
        let status = ContainerResourceMetricStatus { name: source.name, container: source.container, current };
        let status =
            MetricStatus { type_: spec.type_.clone(), container_resource: Some(status), ..MetricStatus::default() };
        Ok(Answer { replicas: proposal.replicas, name, status })
    }

    async fn of_resource(
        &self,
        target: &Target<'_>,
        resource: &str,
        container: Option<&str>,
        wanted: &MetricTarget,
    ) -> Result<Proposal, Error> {
        let samples = async || {
            let client = &self.controller.client;
            let selector = target.selector.to_string();
            let samples = metrics::of_resource(client, self.namespace(), &selector, resource, container).await;
            samples.map_err(Error::doing(format!("unable to get metrics for resource {resource}")))
        };
        if let Some(value) = &wanted.average_value {
            let usage = |error| Error::doing(format!("failed to get {resource} usage"))(error);
            let value = milli(value).map_err(usage)?;
            let measurement = self.measurement(target, samples().await.map_err(usage)?);
            return measurement.per_pod(resource, value).map_err(usage);
        }
        let Some(percent) = wanted.average_utilization else {
            return Err(Error::NoTarget(
                "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set",
            ));
        };
        let utilization = |error| Error::doing(format!("failed to get {resource} utilization"))(error);
        let measurement = self.measurement(target, samples().await.map_err(utilization)?);
        measurement.utilization(resource, container, percent).map_err(utilization)
    }

    async fn pods_metric(&self, spec: &MetricSpec, target: &Target<'_>) -> Result<Answer, Unusable> {
        let source = spec.pods.clone().unwrap_or_default();
        let fail = |error: Error| unusable("FailedGetPodsMetric", error, "failed to get pods metric value: ");
        let metric = &source.metric.name;
        let selector = target.selector.to_string();
        let value = source.target.average_value.as_ref();
        let value = value.ok_or(Error::NoTarget("no average value target was set"));
        let value = value.and_then(milli).map_err(fail)?;
        let metric_selector = text(source.metric.selector.as_ref()).map_err(fail)?;
        let samples = metrics::of_pods(&self.controller.client, self.namespace(), &selector, metric, &metric_selector);
        let samples = samples.await.map_err(Error::doing(format!("unable to get metric {metric}"))).map_err(fail)?;
        let proposal = self.measurement(target, samples).per_pod("", value).map_err(fail)?;
        let name = format!("pods metric {metric}");
        let status = PodsMetricStatus { current: current(&proposal, ""), metric: source.metric };
        let status = MetricStatus { type_: spec.type_.clone(), pods: Some(status), ..MetricStatus::default() };
        Ok(Answer { replicas: proposal.replicas, name, status })
    }

    async fn object(&self, spec: &MetricSpec, target: &Target<'_>) -> Result<Answer, Unusable> {
        let source = spec.object.clone().unwrap_or_default();
        let (metric, object) = (&source.metric.name, &source.described_object);
        let wanted = match (source.target.type_.as_str(), &source.target.value, &source.target.average_value) {
            ("Value", Some(whole), _) => Some(Wish::Whole(whole)),
            ("AverageValue", _, Some(average)) => Some(Wish::Average(average)),
            _ => None,
        };
        let mut message = "failed to get object metric value: ".to_owned();
        if matches!(wanted, Some(Wish::Average(_))) {
            message += &format!("failed to get {metric} object metric: ");
        }
        let fail = |error: Error| unusable("FailedGetObjectMetric", error, &message);
        let wanted = wanted.ok_or_else(|| {
            fail(Error::NoTarget(
                "invalid object metric source: neither a value target nor an average value target was set",
            ))
        })?;
        let metric_selector = text(source.metric.selector.as_ref()).map_err(fail)?;
        let value = metrics::of_object(
            &self.controller.client,
            &self.controller.resources,
            self.namespace(),
            object,
            metric,
            &metric_selector,
        );
        let value = value.await.map_err(|error| {
            let on = format!("{} on {} {}/{error}", object.kind, self.namespace(), object.name);
            unusable("FailedGetObjectMetric", format!("unable to get metric {metric}: {on}"), &message)
        })?;
        let proposal = self.of_one(&wanted, value, target).map_err(fail)?;
        let name = match wanted {
            Wish::Whole(_) => format!("{} metric {metric}", object.kind),
            Wish::Average(_) => external_name(&source.metric),
        };
        let current = one(&proposal, &wanted);
        let status = ObjectMetricStatus {
            current,
            described_object: source.described_object.clone(),
            metric: source.metric.clone(),
        };
        let status = MetricStatus { type_: spec.type_.clone(), object: Some(status), ..MetricStatus::default() };
        Ok(Answer { replicas: proposal.replicas, name, status })
    }

    async fn external(&self, spec: &MetricSpec, target: &Target<'_>) -> Result<Answer, Unusable> {
        let source = spec.external.clone().unwrap_or_default();
        let metric = &source.metric.name;
        let wanted = match (&source.target.average_value, &source.target.value) {
            (Some(average), _) => Some(Wish::Average(average)),
            (None, Some(whole)) => Some(Wish::Whole(whole)),
            (None, None) => None,
        };
        let message = match wanted {
            Some(Wish::Average(_)) => format!("failed to get {metric} external metric: "),
            Some(Wish::Whole(_)) => format!("failed to get external metric {metric}: "),
            None => String::new(),
        };
        let message = format!("failed to get {metric} external metric value: {message}");
        let fail = |error: Error| unusable("FailedGetExternalMetric", error, &message);
        let wanted = wanted.ok_or_else(|| {
            fail(Error::NoTarget(
                "invalid external metric source: neither a value target nor an average value target was set",
            ))
        })?;
        let selector = text(source.metric.selector.as_ref()).map_err(fail)?;
        let value = metrics::from_outside(&self.controller.client, self.namespace(), metric, &selector).await;
        let value = value.map_err(|error| {
            let shown = shown(source.metric.selector.as_ref());
            fail(Error::doing(format!("unable to get external metric {}/{metric}/{shown}", self.namespace()))(error))
        })?;
        let proposal = self.of_one(&wanted, value, target).map_err(fail)?;
        let name = external_name(&source.metric);
        let status = ExternalMetricStatus { current: one(&proposal, &wanted), metric: source.metric.clone() };
        let status = MetricStatus { type_: spec.type_.clone(), external: Some(status), ..MetricStatus::default() };
        Ok(Answer { replicas: proposal.replicas, name, status })
    }

    /// One value for all pods, compared as a whole or by their shares of it.
    fn of_one(&self, wanted: &Wish<'_>, value: i64, target: &Target<'_>) -> Result<Proposal, Error> {
        let tolerances = self.tolerances();
        match wanted {
            Wish::Average(average) => {
                let replicas = target.scale.status.as_ref().map_or(0, |status| status.replicas);
                Ok(replicas::shared(value, milli(average)?, replicas, tolerances))
            }
            Wish::Whole(whole) => replicas::whole(value, milli(whole)?, target.current, tolerances, target.pods),
        }
    }
}

/// What one value for all pods should be.
enum Wish<'a> {
    Whole(&'a RawQuantity),
    /// Of each pod's share.
    Average(&'a RawQuantity),
}

/// What is scaled, as it is now.
struct Target<'a> {
    selector: &'a Selector,
    pods: &'a [Arc<Pod>],
    current: i32,
    scale: &'a Scale,
}

fn unusable(reason: &'static str, why: impl std::fmt::Display, message: &str) -> Unusable {
    Unusable { fault: Fault::Internal, reason, message: format!("{message}{why}"), why: why.to_string() }
}

fn milli(quantity: &RawQuantity) -> Result<i64, Error> {
    let value = Quantity::try_from(quantity)?.milli_value();
    if value > 0 { Ok(value) } else { Err(Error::NotPositive) }
}

fn text(selector: Option<&LabelSelector>) -> Result<String, Error> {
    match selector {
        None => Ok(String::new()),
        Some(selector) => Ok(Selector::from_label_selector(Some(selector))?.to_string()),
    }
}

fn external_name(metric: &MetricIdentifier) -> String {
    format!("external metric {}({})", metric.name, shown(metric.selector.as_ref()))
}

/// A selector the way upstream's messages show it.
fn shown(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".to_owned() };
    let labels: Vec<String> =
        selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}: {value},")).collect();
    let expressions: Vec<String> = selector
        .match_expressions
        .iter()
        .flatten()
        .map(|one| {
            let values = one.values.clone().unwrap_or_default().join(" ");
            format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", one.key, one.operator)
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{}}},MatchExpressions:[]LabelSelectorRequirement{{{}}},}}",
        labels.concat(),
        expressions.concat()
    )
}

fn quantity(milli: i64, format: Format) -> RawQuantity {
    Quantity::from_milli(milli, format).into()
}

/// Memory is written as `metrics.k8s.io` writes it.
fn current(proposal: &Proposal, resource: &str) -> MetricValueStatus {
    let format = if resource == "memory" { Format::BinarySI } else { Format::DecimalSI };
    MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: Some(quantity(proposal.value, format)),
        value: None,
    }
}

fn one(proposal: &Proposal, wanted: &Wish<'_>) -> MetricValueStatus {
    let value = Some(quantity(proposal.value, Format::DecimalSI));
    match wanted {
        Wish::Average(_) => MetricValueStatus { average_value: value, ..MetricValueStatus::default() },
        Wish::Whole(_) => MetricValueStatus { value, ..MetricValueStatus::default() },
    }
}
